"""Which host computes wrong bits, as a replay of the same steps on groups of hosts shows?

1. Judge every replay on record: its groups computed the same steps, so their bits must agree (rca/replay.py has the rules).
2. A culprit is the host that the differing groups of both phases share, or that differs first in each of them; in a double run the host that
   differs from the majority. Its ranks are accused, all of them: a replay tells hosts apart, not their ranks.
3. Groups that differ without leaving one host accuse nobody: the hosts that fit are candidates.
4. Where every group computed the same in every repeat, hardware becomes less likely and nothing more: vendors' own tests find about 70 % of
   chips that corrupt silently. Runs that are missing, or have no majority, tell nothing.

Source: ByteRobust (SOSP'25), algorithm 1 and section 9; SDCHunter (OSDI'26).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rca.analyses._layout import hosts
from rca.analyses._words import iso
from rca.errors import NotEnoughEvidence
from rca.replay import Judged, Row, judge_replays
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("replays",)
USES = ("dump_index", "log_events", "ranks", "steps")
_WRONG_BITS = ("silent_data_corruption", "gpu_fault", "gpu_memory_fault", "host_fault", "unknown")
_NOT_THAT_HARDWARE = (
    *("bad_sample", "checkpoint_corrupt", "code_hang", "collective_mismatch", "config_drift", "data_imbalance", "data_stall"),
    *("gpu_out_of_memory", "healthy", "host_lost", "host_out_of_memory", "network_fault", "network_transient", "numeric_divergence"),
    *("planned_stop", "preemption", "process_killed", "slow_rank", "stage_imbalance", "storage_stall", "unknown", "user_exception"),
)  # a replay looks at bits: every cause but those of hardware that computes wrongly stays as likely as it was
SIGNS = {
    "replay_culprit": Sign("replay", _WRONG_BITS),
    "replay_differs": Sign("replay", ("silent_data_corruption", "unknown")),
    "replay_clean": Sign("replay", _NOT_THAT_HARDWARE),
}

MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for each replay that tells something; NotEnoughEvidence when none does."""
    rows = list(case.table("replays").collect().iter_rows(named=True))
    judged = judge_replays(rows)
    telling = [one for one in judged if one.outcome != "undecided"]
    if not telling:
        ran = any(row["fingerprint"] is not None for row in rows)
        raise NotEnoughEvidence(judged[-1].because if judged and ran else "a replay is planned and left no record of a run")
    found = [_finding(one, case) for one in telling if one.outcome != "clean"]
    clean = [one for one in telling if one.outcome == "clean"]
    if not found:
        found = [_clean(clean, rows)]
    return sorted(found, key=lambda finding: finding.id)


def _finding(judged: Judged, case: Tables) -> Finding:
    on: dict[str, list[int]] = defaultdict(list)
    for rank, host in hosts(case).items():
        on[host].append(rank)
    ranks = tuple(sorted(rank for host in judged.hosts for rank in on[host]))
    differed, whole = judged.shown
    names = ", ".join(judged.hosts[:8]) + (f" and {len(judged.hosts) - 8} more" if len(judged.hosts) > 8 else "")
    told = f"{judged.because}; {differed} of {whole} runs of their groups differed (replay {judged.replay_id})"
    numbers: dict[str, Any] = {"replay_id": judged.replay_id, "runs_differed": differed, "runs": whole, "ran_at": iso(judged.ran_at)}
    cites = tuple(_cite(row) for row in judged.rows[:MAX_CITES])
    if judged.outcome == "culprit":
        numbers["proven_hosts"] = list(judged.hosts)
        says = f"a replay proves that {names} compute{'s' if len(judged.hosts) == 1 else ''} wrong bits: {told}"
        return Finding(
            "replay_proof", "replay_culprit", says, ranks=ranks, hosts=judged.hosts, scope=judged.replay_id, numbers=numbers, cites=cites
        )
    numbers |= {"candidate_hosts": list(judged.hosts), **({"candidates": list(ranks)} if ranks else {})}
    says = f"a replay computed different bits and does not name one host: {told}"
    return Finding("replay_proof", "replay_differs", says, scope=judged.replay_id, numbers=numbers, cites=cites)


def _clean(judged: Sequence[Judged], rows: Sequence[Row]) -> Finding:
    """One for all clean replays."""
    last = max(judged, key=lambda one: (iso(one.ran_at) or "", one.replay_id))
    repeats = max(sum(group.repeats.values()) for group in last.groups)
    num_hosts = len({host for group in last.groups for host in group.hosts})
    says = f"a replay on {num_hosts} hosts found no wrong bit: {last.because} (replay {last.replay_id}, {repeats} repeats)"
    own = [row for row in rows if row["replay_id"] == last.replay_id and row["fingerprint"] is not None]
    own.sort(
        key=lambda row: (
            row["phase"],
            row["group_number"],
            row["repeat"],
            row["place"] or 0,
            row["step"],
            row["evidence_id"],
            row["record"],
        )
    )
    numbers = {"replay_id": last.replay_id, "num_hosts": num_hosts, "repeats": repeats, "ran_at": iso(last.ran_at)}
    return Finding("replay_proof", "replay_clean", says, scope="clean", numbers=numbers, cites=(_cite(own[0]),))


def _cite(row: Row) -> Cite:
    expected = f", expected {row['expected'][:12]}" if row["expected"] else ""
    text = f"{row['phase']} group {row['group_number']}, {row['host']}, step {row['step']}: fingerprint {row['fingerprint'][:12]}{expected}"
    return Cite("replays", row["evidence_id"], "", row["record"], text)
