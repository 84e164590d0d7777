"""Which process ended first, and how: killed for memory, killed by a signal, crashed, lost with its host?

1. Read how every process ended from launchers and logs, and whom the kernel says it killed for memory: by process id, on the rank's host.
2. Leave out who was stopped: closed by its launcher, ended after the job was told to stop, aborted by a watchdog or its communication
   library, failed in a call with another rank (`_faults`). An exception of a rank's own is told by `first_exception`.
3. The first death that is left accuses its rank; equally early ones accuse nobody. A memory kill on a host of the job whose process no
   evidence ties to a rank accuses the one rank of the host that no other process is known of, else nobody. Where the killed program is by its
   name no trainer, loader or launcher, that memory was short is only noted.
4. Where logs tell no death: one rank, or all of one host, whose log breaks off without a complaint and that left neither dump nor stack while
   the others have both and lost connections, is gone. All of one host may be so where the others only ran out of time.
   Where its log is torn, empty or not there, whether it raised or was killed is not told: both are kept (`end_unread`).
5. `clear` only when the job was seen to come to its end (`_ended_well`): then who says so is told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from rca.analyses._ended_well import ended_well
from rca.analyses._faults import DEATHS, TIMED_OUT, Fault, Story, complains, story
from rca.analyses._job_logs import READS, TORN, JobLogs, Line, cite_line, kernel_line, step_at_end
from rca.analyses._memory_kills import loader_worker, unplaced_kills
from rca.analyses._words import iso, quoted, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("ranks",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "killed_for_memory": Sign("death", ("host_out_of_memory",)),
    "killed": Sign("death", ("process_killed", "host_out_of_memory", "unknown")),
    "bus_error": Sign("death", ("storage_stall", "host_fault", "user_exception", "unknown")),
    "crashed": Sign("death", ("user_exception", "process_killed", "host_fault", "unknown")),
    "loader_killed": Sign("death", ("host_out_of_memory", "process_killed", "unknown")),
    "host_lost": Sign("death", ("host_lost", "host_fault")),
    "memory_killed_on_host": Sign("death", ("host_out_of_memory",)),
    "other_killed_on_host": Sign("death", ("host_out_of_memory", "unknown")),
    "rank_gone": Sign("silent", ("process_killed", "host_out_of_memory", "user_exception", "unknown")),
    "host_gone": Sign("death", ("host_lost", "process_killed", "unknown")),
    "host_silent": Sign("death", ("host_lost", "host_fault", "network_fault", "unknown")),
    "end_unread": Sign("unread", ("user_exception",)),
    "ended_well": Sign("mention", (), is_note=True),
    "elsewhere": Sign("mention", ()),
}

TRACED_SHARE = 0.6  # of the ranks must have left a dump or stack, or the capture is no roll-call
MAX_CITES = 6
_MODULE = re.compile(r" in ([\w.+-]+)\[[0-9a-f]+\+[0-9a-f]+\]")  # object and its mapping, as the kernel writes of a fault in user space
_HOW = {
    "killed_for_memory": "the kernel killed it because memory ran out",
    "killed": "SIGKILL ended it, by whom the logs do not say",
    "bus_error": "SIGBUS ended it, as when shared memory or a mapped file has no room",
    "crashed": "a fault in native code ended it",
    "loader_killed": "its data loader worker was killed",
    "host_lost": "its host is lost, the scheduler says",
}


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the first death, or for a memory kill that no rank is tied to; ends that are none of this launch's are mentioned."""
    told = case.derive(story)
    mentioned = _elsewhere([fault for fault in told.outlived if fault.kind in DEATHS])
    try:
        return [*_first(case, told), *mentioned]
    except NotEnoughEvidence:
        if mentioned:
            return mentioned
        raise


def _elsewhere(over: Sequence[Fault]) -> list[Finding]:
    """Ends that nothing dates, of processes that were there when the job stood still: of another launch or job, or what came when it was ended."""
    if not over:
        return []
    ranks = tuple(sorted({rank for fault in over for rank in fault.ranks}))
    says = f"an end of {ranks_text(ranks)} that nothing dates ({quoted(over[0].line.text, 200)}); {over[0].why}: "
    says += "it came later, or is of another launch or job"
    cites = tuple(cite_line(line) for fault in over for line in fault.lines)[:MAX_CITES]
    return [Finding("process_death", "elsewhere", says, scope=f"elsewhere {ranks}", numbers={"told_of": list(ranks)}, cites=cites)]


def _first(case: Tables, told: Story) -> list[Finding]:
    deaths = [fault for fault in told.first if fault.kind in DEATHS]
    if deaths:
        return [_finding(case, told, deaths)]
    on_host, others = unplaced_kills(case, told.logs)
    if on_host and not told.first:
        return [_on_host(told.logs, on_host)]
    gone = _gone(case, told)
    if gone:
        return [_gone_finding(case, told, gone)]
    if unread := _unread(case, told):
        return [_unread_finding(case, told, unread)]
    if others and not told.first:
        return [_beside(told.logs, others)]
    return [_ended_well(case, told)]


def _finding(case: Tables, told: Story, deaths: Sequence[Fault]) -> Finding:
    """The first death; several that cannot be told apart accuse nobody."""
    logs, fault = told.logs, deaths[0]
    everybody = tuple(sorted({rank for death in deaths for rank in death.ranks}))
    alone = len(told.first) == 1
    ranks = fault.ranks if alone else ()
    at, code = fault.line.at, next((line.exit_code for line in fault.lines if line.exit_code is not None), None)
    where = f" on {', '.join(logs.hosts_of(everybody))}" if logs.hosts_of(everybody) else ""
    worker = loader_worker(logs, fault.lines) if alone and fault.kind == "killed_for_memory" else None
    says = f"{f'{worker} of ' if worker else ''}{ranks_text(everybody)}{_process(logs, ranks) if worker else ''}{where} died"
    says += f" at {at:%H:%M:%S} UTC" if at is not None else ""
    says += f": {_HOW[fault.kind]}" if alone else ": which of them first is not to be told"
    says += f"; {len(told.victims)} other ranks show only what followed from it" if told.victims and alone else ""
    pids = sorted({line.pid for line in fault.lines if line.pid is not None})
    faults = _native_fault(case, logs, fault) if alone and fault.kind == "crashed" else []
    module = next((found[1] for line in faults if (found := _MODULE.search(line.text))), None)
    says += f"; the kernel says in which library: {module}" if module else ""
    numbers = {"failed_at": iso(at), "exit_code": code, "module": module, "pids": pids, "candidates": [] if alone else list(everybody)}
    numbers["step"] = step_at_end(case, ranks[0]) if ranks else None
    numbers["ordered_by"], numbers["zone_s"] = told.ordered_by, fault.line.zone_s
    shown = (*faults[:1], *(line for death in deaths for line in death.lines))
    return Finding(
        "process_death", fault.kind, says, ranks=ranks, hosts=logs.hosts_of(ranks), explains=tuple(sorted(logs.everyone - set(everybody))),
        scope=f"{everybody}", numbers=numbers, cites=tuple(map(cite_line, shown))[:MAX_CITES],
    )  # fmt: skip


def _process(logs: JobLogs, ranks: Sequence[int]) -> str:
    """The process of the one rank, where it is known."""
    pids = logs.pids.get(ranks[0], frozenset()) if len(ranks) == 1 else frozenset()
    return f" (pid {next(iter(pids))})" if len(pids) == 1 else ""


def _native_fault(case: Tables, logs: JobLogs, death: Fault) -> list[Line]:
    """What the kernel of the rank's host wrote of the fault of this very process: it names the library that it happened in."""
    pids, hosts = {line.pid for line in death.lines if line.pid is not None}, set(logs.hosts_of(death.ranks))
    rows = case.table("kernel_events").filter((pl.col("kind") == "segfault") & pl.col("pid").is_in(sorted(pids))).collect().rows(named=True)
    return [kernel_line(row, death.ranks[0], logs) for row in rows if row["host"] is None or row["host"] in hosts]


def _beside(logs: JobLogs, kills: Sequence[Line]) -> Finding:
    """Programs that are no part of the job were killed: memory was short there, and nothing shows that the job lost a process by it."""
    hosts = tuple(sorted({line.host for line in kills if line.host}))
    says = f"memory was short on {', '.join(hosts)}: the kernel killed {'programs' if len(kills) > 1 else 'a program'} that by the name "
    says += "is no trainer, loader or launcher; that the job lost a process no evidence says"
    numbers = {
        "killed_at": iso(kills[0].at),
        "pids": sorted({line.pid for line in kills if line.pid is not None}),
        "candidates": sorted({rank for host in hosts for rank in logs.ranks_on(host)}),
    }
    return Finding(
        "process_death", "other_killed_on_host", says, scope=f"{hosts}", numbers=numbers, cites=tuple(map(cite_line, kills))[:MAX_CITES]
    )


def _on_host(logs: JobLogs, kills: Sequence[Line]) -> Finding:
    """Whose process it was is told only by elimination: one host, and all of its ranks but one are known by another process."""
    hosts = tuple(sorted({line.host for line in kills if line.host}))
    candidates = sorted({rank for host in hosts for rank in logs.ranks_on(host)})
    unseen = [rank for rank in candidates if rank not in logs.pids]
    ranks = tuple(unseen) if len(hosts) == len(unseen) == 1 < len(candidates) else ()
    what = f"{len(kills)} processes" if len(kills) > 1 else "a process"
    says = f"the kernel of {', '.join(hosts)} killed {what} for memory during the job"
    says += (
        f"; rank {ranks[0]} is the only one of the host that no evidence knows by another process"
        if ranks
        else "; of which rank, no evidence says"
    )
    numbers = {"failed_at": iso(kills[0].at), "pids": sorted({line.pid for line in kills if line.pid is not None})}
    numbers["candidates"] = [] if ranks else candidates
    return Finding(
        "process_death",
        "memory_killed_on_host",
        says,
        ranks=ranks,
        hosts=hosts,
        numbers=numbers,
        cites=tuple(map(cite_line, kills))[:MAX_CITES],
    )


def _untraced(case: Tables, logs: JobLogs) -> frozenset[int]:
    """Ranks that left neither a dump nor a stack when most others were captured; none where the capture was no roll-call."""
    dumped = case.table("dumps").select(pl.col("rank").drop_nulls().unique()).collect()["rank"].to_list()
    traced = {*dumped, *_stacked(case)}
    return logs.everyone - traced if len(traced) >= TRACED_SHARE * len(logs.everyone) else frozenset()


def _stacked(case: Tables) -> frozenset[int]:
    """Ranks of which a stack was taken."""
    taken = case.table("stacks").filter(pl.col("dump_status") == "ok").select(pl.col("rank").drop_nulls().unique()).collect()
    return frozenset(taken["rank"].to_list())


def _gone(case: Tables, told: Story) -> tuple[int, ...]:
    """The one rank, or all ranks of the one host, that stopped writing and left nothing when the others were captured."""
    logs = told.logs
    gone = _untraced(case, logs)
    complaints = [line for line in logs.lines if complains(line)]
    heard = {line.rank for line in logs.lines if line.evidence_id in logs.own_logs}
    if told.first or not gone or not gone <= heard & logs.read_to_the_end:
        return ()
    traced = logs.everyone - gone
    lost = [line for line in complaints if line.rank in traced and line.signature not in TIMED_OUT and not _after_stop(line, told)]
    timed_out = {line.rank for line in complaints if line.rank in traced and line.signature in TIMED_OUT and not told.stop.is_asked}
    hosts = logs.hosts_of(gone)
    whole_host = len(hosts) == 1 and logs.ranks_on(hosts[0]) == tuple(sorted(gone))
    # A rank that hangs may leave nothing too, and others run out of time for it; not so all of a host at once.
    waited = whole_host and len(gone) > 1 and 2 * len(timed_out) >= len(traced)
    if not (lost or waited) or any(line.rank in gone for line in complaints) or not (len(gone) == 1 or whole_host):
        return ()
    return tuple(sorted(gone))


def _unread(case: Tables, told: Story) -> tuple[int, ...]:
    """Ranks that left nothing when stacks of the others were taken, and whose last words were not read. A dump alone may be missing of a
    process that lives."""
    if told.first or told.stop.is_asked or len(_stacked(case)) < TRACED_SHARE * len(told.logs.everyone):
        return ()
    return tuple(sorted(_untraced(case, told.logs) - told.logs.read_to_the_end))


def _unread_finding(case: Tables, told: Story, unread: tuple[int, ...]) -> Finding:
    logs = told.logs
    torn = [line for line in logs.lines if line.signature == TORN and line.rank in unread]
    why = "breaks off where the file is torn" if torn else "was not there to read, or empty"
    says = f"{ranks_text(unread)} left neither dump nor stack when the others were captured, and the log of how it ended {why}: "
    says += "whether its program raised or something killed it is not told"
    cites = tuple(map(cite_line, torn))[:MAX_CITES] or _known_by(case, unread)
    return Finding("process_death", "end_unread", says, scope=f"unread {unread}", numbers={"candidates": list(unread)}, cites=cites)


def _known_by(case: Tables, ranks: Sequence[int]) -> tuple[Cite, ...]:
    """Where these ranks are named, else any rank is: that they should have been there."""
    rows = (
        case.table("ranks").filter(pl.col("rank").is_not_null()).sort(~pl.col("rank").is_in(list(ranks)), "rank", "evidence_id", "record")
    )
    found = (
        rows.select("rank", "evidence_id", "record").collect().unique("rank", keep="first", maintain_order=True).head(min(4, len(ranks)))
    )
    return tuple(Cite("ranks", evidence_id, "", record, f"rank {rank}") for rank, evidence_id, record in found.iter_rows())


def _after_stop(line: Line, told: Story) -> bool:
    """Whether a complaint may come from a stop: it is not dated before it."""
    began = told.stop.began
    return began is not None and (line.at is None or began.at is None or line.at >= began.at)


def _gone_finding(case: Tables, told: Story, gone: tuple[int, ...]) -> Finding:
    logs = told.logs
    whole_host = len(gone) > 1 and bool(logs.hosts_of(gone))
    last = [next(line for line in reversed(logs.lines) if line.rank == rank and line.evidence_id in logs.own_logs) for rank in gone]
    complaints = [line for line in logs.lines if complains(line)]
    is_lost = any(line.signature not in TIMED_OUT for line in complaints)
    where = f" (all of {logs.hosts_of(gone)[0]})" if whole_host else f" on {logs.hosts_of(gone)[0]}" if logs.hosts_of(gone) else ""
    says = f"{ranks_text(gone)}{where}: the log breaks off without a complaint, and neither dump nor stack was left when the others were captured"
    says += "; others lost their connections" if is_lost else "; others waited for them until their time was out"
    sign = "rank_gone" if not whole_host else "host_gone" if is_lost else "host_silent"
    return Finding(
        "process_death", sign, says, ranks=gone, hosts=logs.hosts_of(gone),
        explains=tuple(sorted(logs.everyone - set(gone))),
        numbers={"last_line_at": iso(max((x.at for x in last if x.at), default=None)), "step": step_at_end(case, gone[0])},
        cites=tuple(cite_line(line) for line in (*last[:4], *complaints[:2]))[:MAX_CITES],
    )  # fmt: skip


def _ended_well(case: Tables, told: Story) -> Finding:
    """That the job came to its end; raises where nobody says so."""
    logs = told.logs
    if (ending := ended_well(case)) is not None:
        return Finding("process_death", "ended_well", f"the job came to its end: {ending.says}", scope="job", cites=ending.cites)
    if not logs.lines:
        raise NotEnoughEvidence("no log of this job, and no memory kill of one of its processes: how the ranks ended is not told")
    unseen = told.not_seen_to_end_well
    raise NotEnoughEvidence(f"no process was seen to die first, but {ranks_text(unseen) if unseen else 'no rank'} not seen to end well")


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
