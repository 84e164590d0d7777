"""Whom the kernel killed for memory: which of its records are of a process of the job, and of which rank.

1. A process id ties a record to a rank only on the rank's host, and alone it is a weak tie: containers number their processes anew, and numbers
   are used again. A log that tells the end of this very process settles it.
2. Else the name that the record gives must be one that a trainer or its worker can have: a browser is no rank, whatever its number.
3. And the rank must not have been seen alive afterwards.
4. Where no process ties it: on a host on which the kernel killed one trainer, and the logs tell of one rank that was killed, these are one. The
   numbers of a container's processes are not the kernel's, and srun tells none.
5. What a kernel calls its host need not be what the job calls it (a cloud's address): where the log of the rank's own host was not read, the
   process that a log says was killed is the one of this number that a kernel of a host unknown to the job killed then.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import polars as pl

from rca.analyses._alive import was_seen_after
from rca.analyses._job_logs import JobLogs, Line, job_logs, kernel_line
from rca.analyses._kernel_users import TRAINS, hosts_by_process
from rca.kernel_record import merged
from rca.types import Tables

__all__ = ["loader_worker", "memory_kills", "unplaced_kills"]

AROUND: Final = timedelta(minutes=10)  # before the first and after the last line of the job: memory kills there may still be of it
LAUNCHES: Final = re.compile(r"(?i)slurm|srun|elastic|launch|agent|prted|hydra|bash$|sh$")  # programs whose end ends ranks
NOTICED_S: Final = 60.0  # a launcher looks after its workers every few seconds


def memory_kills(case: Tables, logs: JobLogs) -> list[Line]:
    """The kernel's records of processes killed for memory, by file and place, each once however many files tell it; with the rank where one is
    tied to its process. `logs`: those of the case."""
    return list(case.derive(_kills)) if logs is case.derive(job_logs) else _kills_of(case, logs)


def unplaced_kills(case: Tables, logs: JobLogs) -> tuple[list[Line], list[Line]]:
    """Memory kills on hosts of the job, in its time, of processes that no evidence ties to a rank: of what may be the job's by its name, and of
    other programs. Not where all ranks of the host lived on."""
    found: tuple[list[Line], list[Line]] = [], []
    names = {(row["evidence_id"], row["record"]): row["process"] for row in _records(case)}
    for line in memory_kills(case, logs):
        ranks = logs.ranks_on(line.host)
        in_time = line.at is not None and logs.span is not None and logs.span[0] - AROUND <= line.at <= logs.span[1] + AROUND
        if ranks and line.rank is None and in_time and not all(was_seen_after(case, logs, line, rank) for rank in ranks):
            name = names.get((line.evidence_id, line.record))
            found[name is not None and not TRAINS.match(name) and not LAUNCHES.match(name)].append(line)
    return found


def loader_worker(logs: JobLogs, kill: Sequence[Line]) -> str | None:
    """The killed process in words where it is told to be a loader worker of its rank: by evidence of that process, or by the trainer that lost it."""
    ended = {(line.rank, line.pid) for line in kill if line.rank is not None and line.pid is not None}
    if len(ended) != 1:
        return None
    ((rank, pid),) = ended
    lost = any(line.signature == "dataloader_worker_killed" and (line.rank, line.pid) == (rank, pid) for line in logs.lines)
    is_worker = pid not in logs.pids.get(rank, ()) and (lost or pid in logs.worker_pids.get(rank, ()))
    return f"a data-loader worker (pid {pid})" if is_worker else None


def _records(case: Tables) -> list[dict[str, Any]]:
    return case.table("kernel_events").filter(pl.col("kind") == "oom").collect().rows(named=True)


def _kills(case: Tables) -> tuple[Line, ...]:
    """Two questions ask, and there may be very many."""
    return tuple(_kills_of(case, case.derive(job_logs)))


def _kills_of(case: Tables, logs: JobLogs) -> list[Line]:
    rows = [row for row in _records(case) if row["pid"] is not None]
    tied = hosts_by_process(case, rows, logs)
    kills = sorted((kill.row for kill in merged(rows, logs.clocks)), key=lambda row: (row["evidence_id"], row["record"]))
    names = _names(case)
    told: dict[int, list[Line]] = defaultdict(list)
    for line in logs.lines:
        if line.pid is not None and line.rank is not None and _tells_kill(line):
            told[line.pid].append(line)
    found = [_tied(case, logs, row, names, told.get(row["pid"], ()), tied) for row in kills]
    return [line if line.rank is not None else _only_one(line, row, kills, logs) for line, row in zip(found, kills, strict=True)]


def _only_one(line: Line, row: Mapping[str, Any], kills: Sequence[Mapping[str, Any]], logs: JobLogs) -> Line:
    """The record with the one rank of its host that a log says was killed, where no other trainer of that host was killed for memory."""
    host = row["host"]
    trainers = [kill for kill in kills if kill["host"] == host and kill["process"] is not None and TRAINS.match(kill["process"])]
    killed = {o.rank: o for o in logs.lines if o.rank is not None and _tells_kill(o) and logs.hosts.get(o.rank) == host}
    if host is None or trainers != [row] or len(killed) != 1:
        return line
    ((rank, end),) = killed.items()
    is_anothers = any(row["pid"] in pids for other, pids in logs.pids.items() if other != rank and logs.hosts.get(other) == host)
    return line if is_anothers or not _is_then(line, [end]) else kernel_line(row, rank, logs)


def _is_then(kill: Line, ends: Collection[Line]) -> bool:
    """Whether a record is of the time at which logs tell of a process's end, as far as both are dated."""
    dated = [abs((kill.at - end.at).total_seconds()) for end in ends if kill.at is not None and end.at is not None]
    return not dated or min(dated) <= NOTICED_S


def _tied(
    case: Tables,
    logs: JobLogs,
    row: Mapping[str, Any],
    names: Mapping[tuple[str | None, int], set[str]],
    ends: Collection[Line],
    tied: Collection[str],
) -> Line:
    """A record as a line, with its rank; `ends`: lines by which a process of this id was killed; `tied`: logs without a host's name that a process
    ties to one."""
    pid, host = row["pid"], row["host"]
    told_of = {line.rank for line in ends if line.rank is not None}
    told = sorted(rank for rank in told_of if host in (None, logs.hosts.get(rank)))
    if not told and len(told_of) == 1 and _is_named_otherwise(case, logs, row, ends):
        (named,) = told_of
        return kernel_line({**row, "host": logs.hosts.get(named)}, named, logs)
    rank = logs.rank_of(pid, host)
    if told:
        return kernel_line(row, rank if rank is not None else told[0], logs)
    if rank is None or (host is None and rank in logs.hosts and row["evidence_id"] not in tied):
        return kernel_line(row, None, logs)
    name = row["process"]
    if name is not None and not TRAINS.match(name) and name not in names.get((logs.hosts.get(rank), pid), ()):
        return kernel_line(row, None, logs)
    line = kernel_line(row, rank, logs)
    return kernel_line(row, None, logs) if was_seen_after(case, logs, line, rank) else line


def _is_named_otherwise(case: Tables, logs: JobLogs, row: Mapping[str, Any], ends: Collection[Line]) -> bool:
    """Whether a record of a host unknown to the job can be of the host of these ends: no kernel's log of that one was read, and the time agrees."""
    if row["host"] in logs.hosts.values() or not _is_then(kernel_line(row, None, logs), ends):
        return False
    theirs = {host for end in ends if end.rank is not None and (host := logs.hosts.get(end.rank)) is not None}
    return case.table("host_logs").filter(pl.col("host").is_in(sorted(theirs))).head(1).collect().is_empty()


def _tells_kill(line: Line) -> bool:
    """Whether a line of a log tells that the process which it names was killed."""
    return line.signature == "dataloader_worker_killed" or line.signal == "SIGKILL" or line.exit_code in (-9, 137)


def _names(case: Tables) -> dict[tuple[str | None, int], set[str]]:
    """(host, process) -> what other records call it: those of a GPU's driver, and threads in stacks."""
    found: dict[tuple[str | None, int], set[str]] = defaultdict(set)
    driver = case.table("kernel_events").filter(pl.col("kind") != "oom").select("host", "pid", name="process")
    threads = case.table("stacks").select("host", "pid", name="thread_name")
    for host, pid, name in pl.concat([driver, threads]).drop_nulls(["pid", "name"]).unique().collect().iter_rows():
        found[host, pid].add(name)
    return dict(found)
