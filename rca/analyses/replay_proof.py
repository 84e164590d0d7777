"""Which host computes wrong bits, as a replay of the same steps on groups of hosts shows?

1. Judge every replay on record: its groups computed the same steps, so their bits must agree (rca/replay.py has the rules).
2. A replay tells of the hosts it ran on. Where the evidence places every rank of the job, a culprit that carries none of them is not of this job;
   where it places only some, a replay counts when one of its hosts is named at all. What is left is set aside, and said.
3. A culprit is the host that the differing groups of both phases share, or that differs first in each of them; in a double run the host that
   differs from the majority. Its ranks are accused, all of them: a replay tells hosts apart, not their ranks.
4. Groups that differ without leaving one host accuse nobody: the hosts that fit are candidates.
5. Where every group computed the same in every repeat, hardware becomes less likely on the hosts that took part and nothing more: vendors' own
   tests find about 70 % of chips that corrupt silently. Runs that are missing, or have no majority, tell nothing.

Source: ByteRobust (SOSP'25), algorithm 1 and section 9; SDCHunter (OSDI'26).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rca.analyses._job_hosts import READS, JobHosts, job_hosts
from rca.analyses._layout import hosts
from rca.analyses._words import iso
from rca.errors import NotEnoughEvidence
from rca.replay import Judged, Row, judge_replays
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("replays",)
USES = READS
_WRONG_BITS = ("silent_data_corruption", "gpu_fault", "gpu_memory_fault", "host_fault")
SIGNS = {
    "replay_culprit": Sign("replay", (*_WRONG_BITS, "unknown")),
    "replay_differs": Sign("replay", ("silent_data_corruption", "unknown")),
    "replay_clean": Sign("replay", _WRONG_BITS, is_against=True),
    "replay_elsewhere": Sign("replay", ()),
}

MAX_CITES = 6
MAX_NAMES = 8


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for each replay that tells something; NotEnoughEvidence when none does."""
    rows = list(case.table("replays").collect().iter_rows(named=True))
    judged = judge_replays(rows)
    telling = [one for one in judged if one.outcome != "undecided"]
    if not telling:
        ran = any(row["fingerprint"] is not None for row in rows)
        raise NotEnoughEvidence(judged[-1].because if judged and ran else "a replay is planned and left no record of a run")
    job = job_hosts(case)
    ours = [(one, _of_job(one, job)) for one in telling]
    found = [_finding(one, case) for _, one in ours if one is not None and one.outcome != "clean"]
    clean = [one for _, one in ours if one is not None and one.outcome == "clean"]
    if not found and clean:
        found = [_clean(clean, rows, job)]
    found += [_elsewhere(one, rows, job) for one, of_job in ours if of_job is None]
    return sorted(found, key=lambda finding: finding.id)


def _of_job(judged: Judged, job: JobHosts) -> Judged | None:
    """What a replay tells of this job: of the hosts it names those that may be of it; None where it ran elsewhere, or names only others."""
    if job.named.isdisjoint(_took_part([judged])):
        return judged if not job.named else None
    if not job.is_whole or judged.outcome == "clean":
        return judged
    inside = tuple(host for host in judged.hosts if host in job.named)
    return replace(judged, hosts=inside) if inside else None


def _took_part(judged: Iterable[Judged]) -> set[str]:
    return {host for one in judged for group in one.groups for host in group.hosts}


def _finding(judged: Judged, case: Tables) -> Finding:
    on: dict[str, list[int]] = defaultdict(list)
    for rank, host in hosts(case).items():
        on[host].append(rank)
    ranks = tuple(sorted(rank for host in judged.hosts for rank in on[host]))
    differed, whole = judged.shown
    told = f"{judged.because}; {differed} of {whole} runs of their groups differed (replay {judged.replay_id})"
    numbers: dict[str, Any] = {"replay_id": judged.replay_id, "runs_differed": differed, "runs": whole, "ran_at": iso(judged.ran_at)}
    cites = tuple(_cite(row) for row in judged.rows[:MAX_CITES])
    if judged.outcome == "culprit":
        numbers["proven_hosts"] = list(judged.hosts)
        says = f"a replay proves that {_some(judged.hosts)} compute{'s' if len(judged.hosts) == 1 else ''} wrong bits: {told}"
        return Finding(
            "replay_proof", "replay_culprit", says, ranks=ranks, hosts=judged.hosts, scope=judged.replay_id, numbers=numbers, cites=cites
        )
    numbers |= {"candidate_hosts": list(judged.hosts), **({"candidates": list(ranks)} if ranks else {})}
    says = f"a replay computed different bits and does not name one host: {told}"
    return Finding("replay_proof", "replay_differs", says, scope=judged.replay_id, numbers=numbers, cites=cites)


def _clean(judged: Sequence[Judged], rows: Sequence[Row], job: JobHosts) -> Finding:
    """One for all clean replays. It speaks only for the ranks whose hosts took part; for whoever is not named, only when those are all."""
    last = max(judged, key=lambda one: (iso(one.ran_at) or "", one.replay_id))
    repeats = max(sum(group.repeats.values()) for group in last.groups)
    num_hosts = len(_took_part([last]))
    took_part = _took_part(judged)
    cleared = job.covered_by(took_part)
    is_all = len(cleared) == len(job.of_ranks) and job.is_whole == bool(job.of_ranks) and job.named <= took_part
    without = "" if is_all else "; hosts of this job that took no part are as suspect as before"
    says = f"a replay on {num_hosts} hosts found no wrong bit: {last.because} (replay {last.replay_id}, {repeats} repeats){without}"
    numbers = {
        "replay_id": last.replay_id, "num_hosts": num_hosts, "repeats": repeats, "ran_at": iso(last.ran_at),
        "cleared_ranks": cleared, "clears_all": is_all,
    }  # fmt: skip
    return Finding("replay_proof", "replay_clean", says, scope="clean", numbers=numbers, cites=(_first_cite(last, rows),))


def _elsewhere(judged: Judged, rows: Sequence[Row], job: JobHosts) -> Finding:
    """A replay that tells nothing of this job: shown, so that whoever put it there learns why it does not count."""
    ran_on = sorted(_took_part([judged]))
    if job.named.isdisjoint(ran_on):
        of_job = _some(sorted(job.named))
        says = f"replay {judged.replay_id} does not count: it ran on {_some(ran_on)}, and none of them is named for this job ({of_job})"
    else:
        says = f"replay {judged.replay_id} names {_some(judged.hosts)}, which carries no rank of this job: {judged.because}"
    numbers = {"replay_id": judged.replay_id, "other_hosts": list(judged.hosts or ran_on), "ran_at": iso(judged.ran_at)}
    cites = tuple(_cite(row) for row in judged.rows[:MAX_CITES]) or (_first_cite(judged, rows),)
    return Finding("replay_proof", "replay_elsewhere", says, scope=f"elsewhere {judged.replay_id}", numbers=numbers, cites=cites)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _first_cite(judged: Judged, rows: Sequence[Row]) -> Cite:
    """The first row with a fingerprint, whatever the order of the rows."""
    own = [row for row in rows if row["replay_id"] == judged.replay_id and row["fingerprint"] is not None]
    keys = ("phase", "group_number", "repeat", "place", "step", "evidence_id", "record")
    return _cite(min(own, key=lambda row: tuple(row[key] or 0 if key == "place" else row[key] for key in keys)))


def _cite(row: Row) -> Cite:
    expected = f", expected {row['expected'][:12]}" if row["expected"] else ""
    text = f"{row['phase']} group {row['group_number']}, {row['host']}, step {row['step']}: fingerprint {row['fingerprint'][:12]}{expected}"
    return Cite("replays", row["evidence_id"], "", row["record"], text)
