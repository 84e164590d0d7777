"""Which rank alone did not complain, while all others timed out waiting or lost their connections?

1. Read from the logs who timed out in a collective, and who lost a connection. Whoever complains was waiting for somebody else.
2. When every other rank complains, most of them of a time-out, the one rank whose log was read and does not complain never came: nobody
   waits for himself. A rank whose log was not read (to its end) is none; nor is it an answer when several are quiet, or when a rank had
   trouble of its own.
3. A communication library that reports that two ends disagree on what they transfer says why, though not who: the reporter may well be the
   one that called the right thing. It explains why the reporter ended.
4. Where all that was read are ranks that waited in vain, that is said, with the call they waited in, and accuses nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rca.analyses._faults import TIMED_OUT, Story, complains, story
from rca.analyses._job_logs import READS, Line, cite_line
from rca.analyses._stops import earliest
from rca.analyses._words import iso, quoted, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

NEEDS = ("log_events",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "quiet_rank": Sign(
        "silent", ("code_hang", "data_stall", "storage_stall", "gpu_fault", "host_fault", "process_killed", "host_out_of_memory", "unknown")
    ),
    "ends_disagree": Sign("exception", ("collective_mismatch", "unknown")),
    "only_waited": Sign("mention", (), is_note=True),
}

MIN_RANKS = 3  # with two, either may have waited for the other
MAX_CITES = 6
APART_S = 60.0  # more than a watchdog's rounds and the start of a step keep ranks of one stall apart
_CALL = re.compile(r"SeqNum=[0-9]+, OpType=\w+")  # of the work that the watchdog of PyTorch's NCCL backend gave up


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the quiet rank, and one for ends that disagree."""
    told = case.derive(story)
    lines = [line for line in told.logs.lines if line.rank is not None]
    if not lines:
        raise NotEnoughEvidence("no line of a log of this job has a rank")
    if told.first:
        return ()
    timed_out = {line.rank: line for line in lines if line.signature in TIMED_OUT}
    complaining = {line.rank for line in lines if complains(line)}
    reports = [line for line in lines if line.signature == "nccl_desync_report"]
    found = [_disagreement(reports)] if reports else []
    quiet = sorted({line.rank for line in lines if line.rank is not None and _is_own_log(line, told)} - complaining - told.logs.torn)
    # ranks are numbered without a gap: whose number nobody bears was not heard
    everyone = told.logs.everyone | set(range(1 + max(told.logs.everyone, default=-1)))
    if len(everyone) >= MIN_RANKS and len(quiet) == 1 and complaining >= everyone - set(quiet) and 2 * len(timed_out) >= len(everyone):
        found.append(_quiet(told, quiet[0], timed_out))
    if not found and timed_out and not quiet:
        found.append(_only_waited(told, timed_out))
    return found


def _only_waited(told: Story, timed_out: Mapping[int | None, Line]) -> Finding:
    """All whose logs are here waited in vain: who did not come is told by nobody among them."""
    ranks = sorted(rank for rank in timed_out if rank is not None)
    last, others = earliest(timed_out.values()), sorted(told.logs.everyone - set(ranks))
    call = next((found[0] for line in timed_out.values() if (found := _CALL.search(line.text))), None)
    says = f"{ranks_text(ranks)} waited in vain until their time-outs ended them"
    if last is not None and last.at is not None:
        says += f", the first at {last.at:%H:%M:%S} UTC{_apart(told, timed_out.values())}"
    says += f" ({call})" if call else ""
    says += f": these are symptoms, and {_others(others)}"
    cites = tuple(cite_line(timed_out[rank]) for rank in ranks)[:MAX_CITES]
    return Finding("quiet_log", "only_waited", says, scope="only waited", numbers={"timed_out": ranks, "awaited": call}, cites=cites)


def _apart(told: Story, lines: Iterable[Line]) -> str:
    """That the clocks of hosts contradict each other: ranks that wait for each other time out within moments, by the time that they began to wait."""
    firsts: dict[str, datetime] = {}
    for line in lines:
        clock = line.clock or told.logs.hosts.get(line.rank or 0)
        if line.at is not None and clock is not None:
            firsts[clock] = min(line.at, firsts.get(clock, line.at))
    apart_s = (max(firsts.values()) - min(firsts.values())).total_seconds() if firsts else 0.0
    if apart_s <= APART_S:
        return ""
    first = min(firsts, key=lambda clock: (firsts[clock], clock))
    return f" by the clock of {first} (the first stamps of hosts lie up to {apart_s:.0f} s apart: their clocks differ, or waits began so far apart)"


def _others(ranks: Sequence[int]) -> str:
    """What of the ranks beside those that only waited; which they are is told with what was not seen."""
    if not ranks:
        return "every rank timed out so: none is told apart"
    return f"the log of rank {ranks[0]} would tell more" if len(ranks) == 1 else f"the logs of the other {len(ranks)} ranks would tell more"


def _is_own_log(line: Line, told: Story) -> bool:
    """Whether a line is of the rank's own log: a launcher that names a rank says nothing of what that rank wrote."""
    return line.table == "log_events" and line.evidence_id in told.logs.own_logs


def _quiet(told: Story, rank: int, timed_out: dict[int | None, Line]) -> Finding:
    logs = told.logs
    where = f" on {logs.hosts[rank]}" if rank in logs.hosts else ""
    others = sorted(logs.everyone - {rank})
    says = f"rank {rank}{where} alone did not complain: all {len(others)} others timed out or lost a connection waiting ({len(timed_out)} timed out)"
    own = [line for line in logs.lines if line.rank == rank and line.evidence_id in logs.own_logs]
    first = earliest(timed_out.values())
    cites = [cite_line(line) for line in (own[-1], *sorted(timed_out.values(), key=lambda line: line.rank or 0))]
    numbers = {"timed_out": sorted(r for r in timed_out if r is not None), "first_time_out_at": iso(first.at if first else None)}
    return Finding(
        "quiet_log", "quiet_rank", says, ranks=(rank,), hosts=logs.hosts_of((rank,)), explains=tuple(others), numbers=numbers,
        cites=tuple(cites[:MAX_CITES]),
    )  # fmt: skip


def _disagreement(reports: Sequence[Line]) -> Finding:
    ranks = sorted({line.rank for line in reports if line.rank is not None})
    says = f"{ranks_text(ranks)}: the communication library says that two ends disagree on a call ({quoted(reports[0].text)})"
    numbers = {"reported_by": ranks, "failed_at": iso(reports[0].at)}
    return Finding(
        "quiet_log",
        "ends_disagree",
        says,
        scope="ends",
        explains=tuple(ranks),
        numbers=numbers,
        cites=tuple(map(cite_line, reports))[:MAX_CITES],
    )


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
