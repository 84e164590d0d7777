"""Which files are of this job? Others lie beside: of another job, of an earlier launch. Pure: tables in, reasons out.

Logs are told here, step timings by rca/timing_sets.py; what lies among them goes with them. What is no log (maps, recorder dumps, stacks,
step timings) says who the job is: host and process id of each rank, and when it ran. A log that contradicts it is foreign. Where nothing else
is there, logs that contradict each other are told apart by who they name, and the newest set counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from rca.log_launches import LogFile, launched_before, names_of, older_sets, pairs
from rca.log_sets import MAX_ZONE, ended_before, later, yearless
from rca.other_runs import foreign_reports
from rca.timing_sets import foreign_timings, world_size
from rca.types import Tables

__all__ = ["foreign_evidence", "foreign_logs"]

LOGS = ("log_events", "scheduler_events", "progress")  # tables that only logs fill
NEAR = timedelta(hours=1)  # a log may begin before the first recorded call and end after the last one
PRINTS = (
    3  # steps are printed so many times as far apart before the oldest recorded call, at most: a dump may hold less than lies between two
)
QUARTER = timedelta(minutes=15)  # stamps without zone are off by a multiple of this


@dataclass(frozen=True)
class _Job:
    """What everything but the logs says of the job."""

    hosts: Mapping[int, str]
    pids: Mapping[int, frozenset[int]]
    first_at: datetime | None
    last_at: datetime | None
    calls: Mapping[int, tuple[datetime, datetime]]  # rank -> first and last recorded call
    size: int | None  # ranks of its world


def foreign_evidence(case: Tables, stale: Collection[str]) -> dict[str, str]:
    """evidence_id -> why it is left out, of logs, step timings and what lies among them; `stale` dumps are of an earlier launch."""
    logs = foreign_logs(case, stale)
    reports = foreign_reports(case, _of_its_processes(case, stale) - logs.keys(), {*stale, *logs})
    timings = foreign_timings(case, {*stale, *logs, *reports})
    before = {*stale, *reports, *timings}
    logs = foreign_logs(case, before)  # again: other timings told another time of the job
    return reports | _kernels(case, logs, before) | _among(case, logs, timings, before) | logs | timings


def foreign_logs(case: Tables, left_out: Collection[str] = ()) -> dict[str, str]:
    """evidence_id -> why it is left out, of every log that cannot be of this job. `left_out`: other evidence that is foreign.

    1. By process id, else by host: a file that names another one for a rank than maps, dumps and stacks do is foreign. Not when no log
       agrees with them: then they only number or name things differently (pids inside a container, names of pods). But a log that names other
       processes, and prints steps only when the recorded calls were over or had not begun, is of another run even so. So is one that names
       only ranks beyond the world.
    2. Where 1 decides nothing, files are tied by the (rank, process id) they share; of sets that contradict each other the newest stays, by
       instants, or by local stamps where no file has any instant.
    3. A file that ends before the rest begins is of an earlier launch where a later one has its name (that of a host or rank) and none of its
       processes; so are logs that had ended before the others, or dumps and timings, tell of steps (rca/log_sets.py).
    4. By time: a file that says nothing of ranks and lies outside the time of the job.
    """
    files = _files(case)
    if not files:
        return {}
    job = _job(case, frozenset(files), sorted(left_out))
    foreign = _contradicting(files, job)
    foreign |= _another_run({id_: file for id_, file in files.items() if id_ not in foreign}, job, _printed(case))
    foreign |= _beyond(case, job)
    rest = {id_: file for id_, file in sorted(files.items()) if id_ not in foreign}
    foreign |= older_sets(rest, job.pids)
    names = names_of(case)
    foreign |= launched_before({id_: file for id_, file in rest.items() if id_ not in foreign}, names)
    rest = {id_: file for id_, file in rest.items() if id_ not in foreign}
    own = {id_ for id_, file in rest.items() if _by_pid(file, job) is None}
    foreign |= ended_before(case, rest, names, kept=own, left_out=left_out, span=(job.first_at, job.last_at))
    return foreign | _outside({id_: file for id_, file in rest.items() if id_ not in foreign}, job)


def _of_its_processes(case: Tables, left_out: Collection[str]) -> set[str]:
    """Logs that name processes of the job, or ranks on the hosts that they are on and no other process."""
    files = _files(case)
    job = _job(case, frozenset(files), sorted(left_out))
    whys = {id_: (_by_pid(file, job), _by_host(file, job)) for id_, file in files.items()}
    return {id_ for id_, (by_pid, by_host) in whys.items() if by_pid is None or (by_pid == "" and by_host is None)}


def _files(case: Tables) -> dict[str, LogFile]:
    """evidence_id -> what it says, for every log."""
    files: dict[str, LogFile] = defaultdict(LogFile)
    for table, moment in (("log_events", "logged_at"), ("scheduler_events", "changed_at"), ("progress", "ended_at")):
        rows = case.table(table).group_by("evidence_id").agg(pl.col(moment).min().alias("first"), pl.col(moment).max().alias("last"))
        for id_, first, last in rows.collect().iter_rows():
            files[id_].saw(first, last)
        local = case.table(table).select("evidence_id", pl.col(f"{moment}_local").alias("local")).drop_nulls().unique().collect()
        for id_, text in local.iter_rows():
            if (at := yearless(text)) is not None:
                files[id_].first_local = min(files[id_].first_local or at, at)
                files[id_].last_local = max(files[id_].last_local or at, at)
    for row in case.table("ranks").select("evidence_id", "rank", "host", "pid", "role").unique().collect().iter_rows(named=True):
        if row["evidence_id"] in files and row["rank"] is not None and row["role"] in (None, "trainer"):
            files[row["evidence_id"]].ranks.add((row["rank"], row["host"], row["pid"]))
    said = case.table("log_events").select("evidence_id", "rank", "host", "pid").unique().collect()
    for id_, rank, host, pid in said.iter_rows():
        if rank is not None and host is not None:
            files[id_].ranks.add((rank, host, None))
        if host is not None:
            files[id_].hosts.add(host)
        if pid is not None:
            files[id_].pids.add(pid)
    return dict(files)


def _job(case: Tables, logs: frozenset[str], left_out: Collection[str]) -> _Job:
    """The job as maps, dumps, stacks and timings know it."""
    hosts: dict[int, set[str]] = defaultdict(set)
    pids: dict[int, set[int]] = defaultdict(set)
    for table in ("ranks", "dump_index", "stacks"):
        rows = (
            case.table(table).filter(pl.col("rank").is_not_null()).select("evidence_id", "rank", "host", "pid", "role").unique().collect()
        )
        for id_, rank, host, pid, role in rows.iter_rows():
            if id_ in logs:
                continue
            if host is not None:
                hosts[rank].add(host)
            if pid is not None and role in (None, "trainer", "main", "unknown"):
                pids[rank].add(pid)
    dumps = case.table("dumps").filter(~pl.col("evidence_id").is_in(left_out)).select("rank", "first_at", "last_at").drop_nulls()
    calls = dumps.group_by("rank").agg(pl.col("first_at").min(), pl.col("last_at").max())
    others = {name: case.table(name).filter(~pl.col("evidence_id").is_in([*logs, *left_out])) for name in ("groups", "ranks")}
    return _Job(
        {rank: next(iter(names)) for rank, names in hosts.items() if len(names) == 1},
        {rank: frozenset(ids) for rank, ids in pids.items()},
        *_span(case, left_out),
        {rank: (first, last) for rank, first, last in calls.collect().iter_rows()},
        world_size(others["groups"], others["ranks"]),
    )


def _span(case: Tables, left_out: Collection[str]) -> tuple[datetime | None, datetime | None]:
    """First and last instant that dumps and step timings tell."""
    found = []
    for table, first, last in (("dumps", "first_at", "last_at"), ("steps", "started_at", "started_at")):
        rows = case.table(table).filter(~pl.col("evidence_id").is_in(left_out))
        found.append(rows.select(pl.col(first).min().alias("first"), pl.col(last).max().alias("last")).collect().row(0))
    firsts, lasts = [f for f, _ in found if f is not None], [t for _, t in found if t is not None]
    return min(firsts, default=None), max(lasts, default=None)


def _contradicting(files: Mapping[str, LogFile], job: _Job) -> dict[str, str]:
    """Files that name other processes or hosts than the rest of the evidence, as long as some log names the same ones."""
    by_pid = {id_: _by_pid(file, job) for id_, file in files.items()}
    by_host = {id_: _by_host(file, job) for id_, file in files.items()}
    trusts = [None in (whys.values()) for whys in (by_pid, by_host)]  # pids, hosts: some file agrees
    found = {}
    for id_ in sorted(files):
        whys = [by_pid[id_], by_host[id_]]
        telling = [why for why, trust in zip(whys, trusts, strict=True) if trust and why != ""]
        if telling and telling[0] is not None:
            found[id_] = telling[0]
        elif not any(trusts) and all(whys):
            found[id_] = str(whys[0])
    return found


def _beyond(case: Tables, job: _Job) -> dict[str, str]:
    """Logs of ranks that the job does not have: of another job, or of a launch that was larger."""
    if job.size is None:
        return {}
    named = pl.concat([case.table(name).select("evidence_id", "rank").drop_nulls() for name in ("ranks", "log_events", "progress")])
    least = named.group_by("evidence_id").agg(pl.col("rank").min()).filter(pl.col("rank") >= job.size)
    logs = case.table("log_events").select("evidence_id").unique()
    rows = least.join(logs, on="evidence_id", how="semi").sort("evidence_id").collect()
    return {id_: f"another job: it is of rank {rank}, and the job has {job.size} ranks" for id_, rank in rows.iter_rows()}


@dataclass(frozen=True)
class _Printed:
    """When a log printed its first and last step, how far apart it prints them, and whether the stamps lack their zone."""

    first: datetime
    last: datetime
    every: timedelta
    is_local: bool


def _printed(case: Tables) -> dict[str, _Printed]:
    rows = case.table("progress").select("evidence_id", "ended_at", "ended_at_local").collect()
    found = {}
    for (id_,), own in sorted(rows.group_by("evidence_id"), key=lambda item: str(item[0])):
        dated = own["ended_at"].drop_nulls()
        moments = [at.replace(tzinfo=None) for at in dated.to_list()] or [
            at for text in own["ended_at_local"].drop_nulls().to_list() if (at := _naive(text)) is not None
        ]
        if len(moments) > 1:
            first, last = min(moments), max(moments)
            found[str(id_)] = _Printed(first, last, (last - first) / (len(moments) - 1), is_local=not dated.len())
    return found


def _naive(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace(",", ".")).replace(tzinfo=None)
    except ValueError:
        return None


def _another_run(files: Mapping[str, LogFile], job: _Job, printed: Mapping[str, _Printed]) -> dict[str, str]:
    """Logs whose processes are not the job's, and whose steps were printed before its recorded calls or after them; with them whoever names those."""
    found = {}
    for id_, file in sorted(files.items()):
        why, ranks, steps = _by_pid(file, job), {rank for rank, _, _ in file.ranks} & job.calls.keys(), printed.get(id_)
        if why and ranks and steps is not None and all(_apart(steps, *job.calls[rank]) for rank in ranks):
            found[id_] = f"{why}; its steps were printed when the recorded calls were over or had not begun"
    known = {pair: why for id_, why in found.items() for pair in pairs(files[id_])}
    for id_, file in sorted(files.items()):
        shared = [known[pair] for pair in pairs(file) if pair in known]
        if id_ not in found and shared and _by_pid(file, job):
            found[id_] = shared[0]
    return found


def _apart(steps: _Printed, first_call: datetime, last_call: datetime) -> bool:
    """Whether no step was printed while the calls were recorded, in whatever zone the stamps are."""
    first, last = first_call.replace(tzinfo=None) - PRINTS * steps.every, last_call.replace(tzinfo=None)
    most = MAX_ZONE // QUARTER if steps.is_local else 0
    return all(steps.first + n * QUARTER > last or steps.last + n * QUARTER < first for n in range(-most, most + 1))


def _kernels(case: Tables, logs: Collection[str], left_out: Collection[str]) -> dict[str, str]:
    """Kernel logs in which every record is of a process that only foreign logs know."""
    files = _files(case)
    named = {id_: file.pids | {pid for _, _, pid in file.ranks if pid is not None} for id_, file in files.items()}
    job = _job(case, frozenset(files), sorted(left_out))
    own = frozenset().union(*job.pids.values(), *(pids for id_, pids in named.items() if id_ not in logs))
    foreign = frozenset().union(*(named[id_] for id_ in logs)) - own
    told = case.table("kernel_events").group_by("evidence_id").agg(pl.col("pid").unique()).sort("evidence_id").collect()
    return {
        id_: f"of another run or job: all it records is of process {min(pids)}, which is of a log that was left out"
        for id_, pids in told.iter_rows()
        if None not in pids and set(pids) <= foreign
    }


def _among(case: Tables, logs: Collection[str], timings: Collection[str], stale: Collection[str]) -> dict[str, str]:
    """Other files of a folder in which all that can be told is foreign: logs without ranks beside such logs; anything beside logs and timings; a
    second kernel log of a host beside logs."""
    files = _files(case)
    paths = dict(case.table("readings").select("evidence_id", "path").unique("evidence_id", keep="first").collect().iter_rows())
    told = {
        id_
        for table in ("dumps", "stacks", "steps", "rank_progress")
        for id_ in case.table(table).select(pl.col("evidence_id").unique()).collect()["evidence_id"]
        if id_ not in stale
    } | {id_ for id_, file in files.items() if file.ranks}  # a log that names no rank goes with the others
    kernels: dict[str, set[str | None]] = defaultdict(set)
    for id_, host in case.table("host_logs").select("evidence_id", "host").unique().collect().iter_rows():
        kernels[id_].add(host)
    folders: dict[str, list[str]] = defaultdict(list)
    for id_, path in sorted(paths.items()):
        for place, letter in enumerate(path):
            if letter == "/":
                folders[path[:place]].append(id_)
    found: dict[str, str] = {}
    for folder, inside in sorted(folders.items()):
        foreign = [[paths[id_] for id_ in inside if id_ in kind] for kind in (logs, timings)]
        rest = [
            id_ for id_ in inside if id_ not in logs and id_ not in timings and not (id_ in files and _is_above(paths[id_], foreign[0]))
        ]
        if not any(foreign) or told.intersection(rest):
            continue
        within = frozenset(inside)
        elsewhere = set().union(*(hosts for id_, hosts in kernels.items() if id_ not in within))
        found |= {
            id_: f"of another run or job: it lies in {folder} with logs or timings that are"
            for id_ in rest
            if all(foreign)
            or (
                id_ in files and len(foreign[0]) >= len(files.keys() & set(rest))
            )  # one stray log does not take the others of its folder along
            or (len(foreign[0]) > 1 and id_ in kernels and None not in kernels[id_] and kernels[id_] <= elsewhere)
        }
    return found


def _is_above(path: str, others: Sequence[str]) -> bool:
    """Whether all the others lie in folders below that of a log: it is not one of them."""
    folder = path.rpartition("/")[0] + "/"
    return all(other.startswith(folder) and "/" in other[len(folder) :] for other in others)


def _by_pid(file: LogFile, job: _Job) -> str | None:
    """None: it agrees; "": it says nothing; else where it contradicts. One process is enough, as a launcher also names those it replaced."""
    told = sorted((rank, pid) for rank, _, pid in file.ranks if pid is not None and rank in job.pids)
    if not told:
        known = frozenset().union(*job.pids.values())
        if not file.pids or not known or file.ranks:  # of ranks whose process nobody knows, nothing can be said
            return ""
        return None if file.pids & known else f"another launch: none of its {len(file.pids)} processes is one of the job"
    if any(pid in job.pids[rank] for rank, pid in told):
        return None
    rank, pid = told[0]
    return f"another launch: rank {rank} is process {pid} there, and {min(job.pids[rank])} in the job"


def _by_host(file: LogFile, job: _Job) -> str | None:
    """As `_by_pid`, for hosts; a few ranks may be on a host of that name by chance, so most must agree."""
    told = sorted((rank, host) for rank, host in {(r, h) for r, h, _ in file.ranks if h is not None} if rank in job.hosts)
    if not told:
        strangers = file.hosts - set(job.hosts.values())
        alien = not file.ranks and job.hosts and strangers == file.hosts
        return f"another job: it is of host {min(file.hosts)}, where the job has no rank" if alien and file.hosts else ""
    wrong = [(rank, host) for rank, host in told if job.hosts[rank] != host]
    if 2 * len(wrong) < len(told):
        return None
    rank, host = wrong[0]
    return f"another job: rank {rank} is on {host} there, and on {job.hosts[rank]} in the job"


def _outside(files: Mapping[str, LogFile], job: _Job) -> dict[str, str]:
    """Files without ranks that do not overlap the job; where another of them does, without any margin. Stamps without zone only tell where they are
    further off than any zone is, in whatever year."""
    own = [file for file in files.values() if file.ranks]
    first = min((t for t in (job.first_at, *(f.first_at for f in own)) if t is not None), default=None)
    last = max((t for t in (job.last_at, *(f.last_at for f in own)) if t is not None), default=None)
    if first is None or last is None:
        return {}
    dated = {i: (f.first_at, f.last_at) for i, f in files.items() if not f.ranks and f.first_at is not None and f.last_at is not None}
    margin = NEAR if all(end < first or begin > last for begin, end in dated.values()) else timedelta()
    found = {
        id_: f"it ends {end:%Y-%m-%d %H:%M:%S} UTC, outside the time of the job"
        for id_, (begin, end) in sorted(dated.items())
        if end < first - margin or begin > last + margin
    }
    began, ended = (at.replace(tzinfo=None, year=2000) for at in (first, last))
    for id_, file in sorted(files.items()):
        if file.ranks or id_ in dated or file.first_local is None or file.last_local is None:
            continue
        if any(_touch(file, other) for other in own):
            continue
        if later(began, file.last_local) > MAX_ZONE:
            found[id_] = f"another run: its stamps end {file.last_local:%m-%d %H:%M}, in whatever zone before the job began"
        elif later(file.first_local, ended) > MAX_ZONE:
            found[id_] = f"another run: its stamps begin {file.first_local:%m-%d %H:%M}, in whatever zone after the job ended"
    return found


def _touch(one: LogFile, two: LogFile) -> bool:
    """Whether the stamps without zone of two files may be of one time."""
    if one.first_local is None or one.last_local is None or two.first_local is None or two.last_local is None:
        return False
    return later(one.first_local, two.last_local) <= MAX_ZONE and later(two.first_local, one.last_local) <= MAX_ZONE
