"""What the logs of this job say, line by line, with rank, clock and instant: the one view of logs that several questions share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import polars as pl

from rca.analyses import _scheduler_records as scheduler
from rca.analyses._slurm_tasks import of_others, with_ranks
from rca.clocks import Clocks, clocks
from rca.local_time import QUARTER_S, filled
from rca.types import Cite, Tables

__all__ = ["READS", "TORN", "JobLogs", "Line", "cite_line", "job_logs", "kernel_line", "place", "step_at_end"]

READS = (
    "log_events",
    "scheduler_events",
    "progress",
    "ranks",
    "dump_index",
    "stacks",
    "stack_frames",
    "dumps",
    "collectives",
    "group_status",
    "steps",
    "hosts",
    "kernel_events",
    "host_logs",
    "clock_anchors",
    "groups",
    "memberships",
    "job_records",
    "node_states",
    "evidence",
)
MAX_TEXT = 300
# state of an accounting row that ended on purpose -> the line of a scheduler's log that says the same
_RECORDED = {"PREEMPTED": "slurm_preempted", "CANCELLED": "slurm_cancelled", "TIMEOUT": "slurm_time_limit", "DEADLINE": "slurm_time_limit"}
TORN = "log_breaks_off"
WRITES_ITSELF = frozenset({"worker_started", "train_progress", "python_traceback"})  # lines of a shared log that a rank itself writes


@dataclass(frozen=True)
class Line:
    """One recognised line of a log."""

    table: str
    evidence_id: str
    record: str
    rank: int | None  # as said, else by process id, else the one rank of the file
    host: str | None  # named in the line
    clock: str | None  # host whose clock stamped it; None where the file names several or none
    pid: int | None
    at: datetime | None  # UTC
    signature: str
    signal: str | None
    exit_code: int | None
    exception: str | None
    frames: tuple[str, ...]
    step: int | None
    sample_ids: tuple[str, ...]
    text: str
    is_planned: bool | None = None  # of an announcement
    peer: str | None = None  # other host or address that the line names
    local: str | None = None  # its stamp without zone, as written
    uptime_s: float | None = None  # of a kernel's line, since boot
    is_retried: bool = False  # what failed was tried again

    @property
    def place(self) -> tuple[int, ...]:
        """Order of lines within their file."""
        return place(self.record)

    @property
    def zone_s(self) -> float | None:
        """Local time minus UTC of its stamp, s, to the quarter of an hour; None where its stamp names a zone, or nothing tells it."""
        at = self.at.replace(tzinfo=None) if self.at is not None else None
        local = filled(self.local, at) if self.local and at is not None else None
        return QUARTER_S * round((local - at).total_seconds() / QUARTER_S) if local is not None and at is not None else None

    @property
    def said(self) -> str:
        """The text, that of an exception behind its name."""
        text = self.text.strip()
        return text if not self.exception or text.startswith(self.exception) else f"{self.exception}: {text}".removesuffix(": ")


@dataclass(frozen=True)
class JobLogs:
    """The lines of this job and the people they speak of."""

    lines: tuple[Line, ...]  # by file and place
    hosts: Mapping[int, str]
    pids: Mapping[int, frozenset[int]]  # of the trainers
    worker_pids: Mapping[int, frozenset[int]]  # of their loader workers
    clocks: Clocks
    world_size: int | None
    span: tuple[datetime, datetime] | None = None  # first and last instant of logs, dumps and step timings
    own_logs: frozenset[str] = frozenset()  # files that are of one rank alone
    book: scheduler.Book = field(default_factory=scheduler.Book)  # what the scheduler's own records say of this launch
    aside: tuple[tuple[Line, str], ...] = ()  # what srun says of tasks that are none of this job, and why

    @cached_property
    def everyone(self) -> frozenset[int]:
        """All ranks of the job as far as known."""
        named = frozenset(self.hosts) | frozenset(self.pids) | {line.rank for line in self.lines if line.rank is not None}
        return named | frozenset(range(self.world_size or 0))

    @cached_property
    def read_to_the_end(self) -> frozenset[int]:
        """Ranks whose own words were read to their end: a log that is torn, empty or not there tells nothing of how its rank ended."""
        heard = {line.rank for line in self.lines if line.evidence_id in self.own_logs or line.signature in WRITES_ITSELF}
        return frozenset(rank for rank in heard - self.torn if rank is not None)

    @cached_property
    def torn(self) -> frozenset[int]:
        """Ranks of whose own words a file is torn."""
        return frozenset(line.rank for line in self.lines if line.signature == TORN and line.rank is not None)

    def ranks_on(self, host: str | None) -> tuple[int, ...]:
        """Ranks of a host, sorted."""
        return self._by_host.get(host or "", ())

    @cached_property
    def _by_host(self) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for rank, host in sorted(self.hosts.items()):
            found.setdefault(host, []).append(rank)
        return {host: tuple(ranks) for host, ranks in found.items()}

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Their hosts, each once, sorted."""
        return tuple(sorted({self.hosts[rank] for rank in ranks if rank in self.hosts}))

    def rank_of(self, pid: int | None, host: str | None = None) -> int | None:
        """The one rank that has this process (or a loader worker of this id), on this host where both are known."""
        fitting = {rank for rank in self._by_pid.get(pid or 0, ()) if host is None or self.hosts.get(rank, host) == host}
        return fitting.pop() if len(fitting) == 1 else None

    @cached_property
    def _by_pid(self) -> Mapping[int, set[int]]:
        found: dict[int, set[int]] = defaultdict(set)
        for known in (self.pids, self.worker_pids):
            for rank, pids in known.items():
                for pid in pids:
                    found[pid].add(rank)
        return found

    def order(self, one: Line, two: Line) -> int | None:
        """-1, 0, 1: the first is earlier, at the same place, later; None: not to be told. Within a file by instant, else by place."""
        if one.evidence_id == two.evidence_id:
            mine, yours = (one.at, two.at) if one.at is not None and two.at is not None and one.at != two.at else (one.place, two.place)
            return (mine > yours) - (mine < yours)  # type: ignore[operator]
        return self.clocks.order((one.at, one.clock), (two.at, two.clock))

    def is_earlier_by_clock(self, one: Line, two: Line) -> bool:
        """Whether the first is earlier, and clocks tell so, not their places in one file."""
        return one.evidence_id != two.evidence_id and self.order(one, two) == -1


def place(record: str) -> tuple[int, ...]:
    """Order of a record in its file: the numbers in `L12` or `M3/L12`."""
    return tuple(int(digits) for part in record.split("/") if (digits := "".join(c for c in part if c.isdigit())))


def step_at_end(case: Tables, rank: int) -> int | None:
    """The step that a rank was in when its timings break off: after the last one that it ended. None without timings of the rank."""
    rows = case.table("steps").filter((pl.col("rank") == rank) & pl.col("step").is_not_null()).sort("step").tail(1).collect()
    return rows["step"][0] + (rows["step_s"][0] is not None) if rows.height else None


def cite_line(line: Line) -> Cite:
    """The very place in the log; of an exception the line that names it, as it is printed there."""
    text = line.said.partition("\n")[0] if line.exception else line.text
    return Cite(line.table, line.evidence_id, "", line.record, text[:MAX_TEXT] or line.signature)


def kernel_line(row: Mapping[str, Any], rank: int | None, logs: JobLogs, *, host: str | None = None) -> Line:
    """A kernel event of a rank (where one is known) as a line; `host` where the row names none: else it is that of the rank."""
    host = row["host"] or host or (logs.hosts.get(rank) if rank is not None else None)
    at = logs.clocks.at({**row, "host": host})
    return Line(
        "kernel_events", row["evidence_id"], row["record"], rank, host, host, row["pid"], at, row["kind"], None, None, None, (),
        None, (), row["message"] or row["kind"], local=row["logged_at_local"], uptime_s=row["uptime_s"],
    )  # fmt: skip


def job_logs(case: Tables) -> JobLogs:
    """The logs of this job (the case shows no others), with ranks and instants filled in where other evidence tells them."""
    people = pl.concat(
        [case.table(t).select("evidence_id", "rank", "host", "pid", "role") for t in ("ranks", "dump_index", "stacks")], how="vertical"
    )
    known = people.filter(pl.col("rank").is_not_null()).drop("evidence_id").unique().collect()
    hosts: dict[int, set[str]] = defaultdict(set)
    pids: dict[int, set[int]] = defaultdict(set)
    workers: dict[int, set[int]] = defaultdict(set)
    for rank, host, pid, role in known.iter_rows():
        if host is not None:
            hosts[rank].add(host)
        if pid is not None:
            (workers if "worker" in (role or "") else pids)[rank].add(pid)
    empty = JobLogs(
        (),
        {rank: next(iter(names)) for rank, names in sorted(hosts.items()) if len(names) == 1},
        {rank: frozenset(found) for rank, found in sorted(pids.items())},
        {rank: frozenset(found) for rank, found in sorted(workers.items())},
        case.derive(clocks),
        case.table("groups").filter(pl.col("kind") == "world").select(pl.col("size").max()).collect().item(),
    )
    lines, aside, own = _lines(case, empty)
    span = _span(case, lines, empty.clocks)
    last: dict[str, datetime] = {}
    for line in lines:
        if line.at is not None and line.rank is not None and (host := empty.hosts.get(line.rank)) is not None:
            last[host] = max(last.get(host, line.at), line.at)
    book = scheduler.book(case, empty.clocks, hosts=frozenset(empty.hosts.values()), span=span, last_seen=last)
    return replace(empty, lines=(*lines, *_of_book(book)), span=span, own_logs=own, book=book, aside=aside)


def _of_book(book: scheduler.Book) -> list[Line]:
    """What the scheduler's records say of the end of this launch, as lines: on purpose or by whom, and the nodes that were lost."""
    found = []
    launch, ended = book.launch, book.launch.ended if book.launch else None
    signature = _RECORDED.get(launch.row["state"] or "") if launch is not None and launch.row["attribution"] == "planned" else None
    if launch is not None and ended is not None and signature is not None:
        found.append(_recorded("job_records", launch.row, None, ended, signature, launch.says, is_planned=True))
    for lost in book.lost:
        says = f"node {lost.row['host']} {lost.row['base_state'] or 'does not answer'}: {lost.row['reason'] or 'no reason written'}"
        found.append(_recorded("node_states", lost.row, lost.row["host"], lost.at, "node_failure", says, is_planned=False))
    return found


def _recorded(
    table: str, row: Mapping[str, Any], host: str | None, at: datetime | None, signature: str, says: str, *, is_planned: bool
) -> Line:
    return Line(
        table, row["evidence_id"], row["record"], None, host, None, None, at, signature, None, None, None, (), None, (), says, is_planned
    )


def _span(case: Tables, lines: Sequence[Line], clock: Clocks) -> tuple[datetime, datetime] | None:
    moments = [line.at for line in lines if line.at is not None]
    text = pl.col("ended_at_local")
    printed = case.table("progress").filter(pl.col("ended_at").is_null() & text.is_not_null()).group_by("evidence_id")
    for id_, *ends in printed.agg(text.min().alias("low"), text.max().alias("high")).collect().iter_rows():
        moments += [at for end in ends if (at := clock.utc(id_, end)) is not None]
    for table, column in (("dumps", "first_at"), ("dumps", "last_at"), ("steps", "started_at"), ("progress", "ended_at")):
        low, high = case.table(table).select(pl.col(column).min().alias("low"), pl.col(column).max().alias("high")).collect().row(0)
        moments += [moment for moment in (low, high) if moment is not None]
    return (min(moments), max(moments)) if moments else None


def _lines(case: Tables, job: JobLogs) -> tuple[tuple[Line, ...], tuple[tuple[Line, str], ...], frozenset[str]]:
    """The lines, those of tasks of others, and the files that are of one rank."""
    # What the kernel's reader took of a file is the kernel's word and no program's, whatever else reads the same line.
    of_kernel = case.table("kernel_events").select("evidence_id", "record").unique()
    events = case.table("log_events").join(of_kernel, on=["evidence_id", "record"], how="anti").collect().rows(named=True)
    announced = case.table("scheduler_events").collect().rows(named=True)
    own_rank, clock = _files(case, events)
    others = of_others(case, events)

    def logged(row: Mapping[str, Any]) -> Line:
        return _line("log_events", row, row["signature"] or "unknown", row["message"], "logged_at", job, own_rank, clock)

    lines = [logged(row) for row in with_ranks([row for n, row in enumerate(events) if n not in others], job.hosts)]
    aside = sorted(((logged(events[n]), why) for n, why in others.items()), key=lambda told: (told[0].evidence_id, told[0].place, told[1]))
    lines += [
        _line("scheduler_events", row, row["state"] or "unknown", row["reason"], "changed_at", job, own_rank, clock) for row in announced
    ]
    ordered = sorted(lines, key=lambda line: (line.evidence_id, line.place, line.table, line.signature, line.text))
    return tuple(ordered), tuple(aside), frozenset(own_rank)


def _files(case: Tables, events: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], dict[str, str]]:
    """evidence_id -> the one rank it is of, -> the one host it is of. A launcher's log is of no rank, however few it names."""
    ranks: dict[str, set[int]] = defaultdict(set)
    hosts: dict[str, set[str]] = defaultdict(set)
    for table in ("ranks", "progress"):
        for id_, rank in case.table(table).select("evidence_id", "rank").unique().collect().iter_rows():
            ranks[id_] |= {rank} if rank is not None else set()
    launchers = set()
    for row in events:
        if row["rank"] is not None:
            ranks[row["evidence_id"]].add(row["rank"])
        if row["host"] is not None:
            hosts[row["evidence_id"]].add(row["host"])
        if (row["signature"] or "").startswith(("elastic_", "slurm_")):
            launchers.add(row["evidence_id"])
    return (
        {id_: next(iter(found)) for id_, found in ranks.items() if len(found) == 1 and id_ not in launchers},
        {id_: next(iter(found)) for id_, found in hosts.items() if len(found) == 1},
    )


def _line(
    table: str,
    row: Mapping[str, Any],
    signature: str,
    text: str | None,
    moment: str,
    job: JobLogs,
    own_rank: Mapping[str, int],
    clock: Mapping[str, str],
) -> Line:
    id_, host = row["evidence_id"], row["host"]
    rank = row.get("rank")
    if rank is None:
        rank = job.rank_of(row.get("pid"), host)
    if rank is None:
        rank = own_rank.get(id_)
    of_rank = job.hosts.get(own_rank[id_]) if id_ in own_rank else None
    return Line(
        table, id_, row["record"], rank, host, clock.get(id_) or of_rank, row.get("pid"), job.clocks.at(row, moment=moment), signature,
        row.get("signal"), row.get("exit_code"), row.get("exception"), tuple(row.get("frames") or ()), row.get("step"),
        tuple(row.get("sample_ids") or ()), text or "", row.get("is_planned"), row.get("peer"),
        local=row.get(f"{moment}_local"), is_retried=bool(row.get("is_retried")),
    )  # fmt: skip
