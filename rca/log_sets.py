"""Which sets of logs had ended before the job made its steps: of an earlier launch, whatever their files are called. Pure.

A set is all logs below one folder, or one log. It is older where it says how a process or job ended, and the others print steps after that: no job
goes on after the end of one of its ranks. The order is told by Slurm's job numbers, by the counts of steps, else by stamps. Clocks without zone are
compared as they are where both sets have a log of one name or of one rank, else only where they are further apart than any two zones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, TypeVar

import polars as pl

from rca import log_calls, log_jobs
from rca.local_time import MAX_ZONE_S
from rca.log_launches import APART, HALF_YEAR, YEAR, LogFile
from rca.types import Tables

__all__ = ["MAX_ZONE", "ended_before", "later", "yearless"]

T = TypeVar("T")
MAX_ZONE: Final = timedelta(seconds=MAX_ZONE_S)

ENDS: Final = (  # lines that say how a process, or the job, ended
    *("python_traceback", "process_signal", "elastic_root_cause", "elastic_child_failed", "elastic_sigterm_victim", "elastic_agent_signal"),
    *("nccl_watchdog_timeout", "nccl_watchdog_terminated", "store_barrier_timeout", "worker_finished", "k8s_eviction", "slurm_task_exit"),
    *("slurm_time_limit", "slurm_preempted", "slurm_requeued", "slurm_cancelled", "slurm_step_failed", "slurm_node_failure"),
    *("cuda_oom", "cuda_ecc"),
    *("cuda_illegal_access", "cuda_launch_failure", "cuda_unknown_error", "host_out_of_memory", "heap_corruption", "gpu_handle_lost"),
)
GOES_ON: Final = 3  # steps one after the other; other ranks finish at most the one or two that were under way when a rank ends


@dataclass
class _Set:
    """What logs tell together."""

    first: datetime | None = None  # local, their year left aside
    last: datetime | None = None
    steps: tuple[int, int] | None = None  # lowest, highest
    begin: datetime | None = None  # of the first step printed, local
    num_steps: int = 0  # made from the first to the last that one log prints: every tenth may be printed
    every: int = 1  # steps from one printed to the next, at most
    pace: timedelta = timedelta()  # time from one printed to the next, at most
    has_end: bool = False
    has_start: bool = False
    job: int = 0  # number of its Slurm job, 0: not told
    is_launch: bool = False  # tells of a launch of the training: steps, a start of workers, ranks
    programs: set[str] = field(default_factory=set)  # scripts in which its tracebacks begin
    ranks: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    started: set[int] = field(default_factory=set)  # ranks of which a start is told
    is_of_dumps: bool = False  # names a call that the dump of its rank ends at

    def adds(self, other: _Set) -> None:
        self.last = max((t for t in (self.last, other.last) if t is not None), default=None)
        self.begin = min((t for t in (self.begin, other.begin) if t is not None), default=None)
        if other.steps is not None:
            low, high = self.steps or other.steps
            self.steps = min(low, other.steps[0]), max(high, other.steps[1])
        self.num_steps = max(self.num_steps, other.num_steps)
        self.every, self.pace = max(self.every, other.every), max(self.pace, other.pace)
        self.has_end, self.job = self.has_end or other.has_end, max(self.job, other.job)
        self.is_launch, self.programs = self.is_launch or other.is_launch, self.programs | other.programs
        self.ranks |= other.ranks
        self.names |= other.names
        self.started |= other.started
        self.is_of_dumps = self.is_of_dumps or other.is_of_dumps


def ended_before(
    case: Tables,
    files: Mapping[str, LogFile],
    names: Mapping[str, tuple[str, str | None]],
    *,
    kept: Set[str],
    left_out: Collection[str],
    span: Sequence[datetime | None],
) -> dict[str, str]:
    """evidence_id -> why, of logs of earlier launches among `files`, and of other jobs beside a running one.

    `names` as `rca.log_launches.names_of` gives them, `kept`: logs known to be of the job, `left_out`: dumps of earlier launches, `span`: first and
    last instant that dumps and timings tell, None where there are none.
    """
    told = _told(case, files, names)
    for id_ in log_calls.of_dumps(case, left_out) & told.keys():
        told[id_].is_of_dumps = True
    if not any(one.has_end for one in told.values()):
        return {}
    span = _with_stacks(case, span)
    paths = dict(case.table("readings").select("evidence_id", "path").unique("evidence_id", keep="first").collect().iter_rows())
    units = [unit for unit in _units({id_: paths.get(id_, id_) for id_ in told}) if kept.isdisjoint(unit[1])]
    older: dict[str, str] = {}
    found = True
    while found:  # of three launches the second is only found when the first is out
        found = False
        rest = _Rest({id_: one for id_, one in told.items() if id_ not in older})
        for where, unit in units:
            inside = [id_ for id_ in unit if id_ not in older]
            is_all = len(inside) + len(older) == len(told)
            if not inside or (is_all and not any(span)):
                continue
            own = _Set()
            for id_ in inside:
                own.adds(told[id_])
            if own.has_end and (why := _why(own, rest.but(frozenset(inside)), span, is_file=where == "")) is not None:
                older |= dict.fromkeys(inside, f"an earlier launch: {why}")
                found = True
                break
    return older | _beside({id_: one for id_, one in told.items() if id_ not in older}, kept)


def _beside(told: Mapping[str, _Set], kept: Set[str]) -> dict[str, str]:
    """Logs of other Slurm jobs that tell of no launch, and that ended while the steps of this one went on: an evaluation, a preparation.

    Where the job's own logs tell of an end, or the other log begins behind its last step, that may be a next launch of which nothing was printed.
    """
    steps = {id_: one for id_, one in told.items() if one.num_steps >= GOES_ON}
    if not steps or any(one.job == 0 or one.has_end for one in told.values() if one.is_launch):
        return {}
    jobs, last = {one.job for one in steps.values()}, max((one.last for one in steps.values() if one.last is not None), default=None)
    scripts = set().union(*(one.programs for one in told.values() if one.is_launch))
    return {
        id_: f"another job: it is of Slurm job {one.job} and tells of no step, rank or start, others print steps of job {max(jobs)}"
        for id_, one in told.items()
        if one.has_end and one.job and one.job not in jobs and not one.is_launch and id_ not in kept and not one.programs & scripts
        and (one.last is None or last is None or later(last, one.last) > timedelta())
    }  # fmt: skip


def _why(own: _Set, others: _Set, span: Sequence[datetime | None], *, is_file: bool) -> str | None:
    """Why a set that tells of an end is of an earlier launch than the others, or than dumps and timings; None where it may be of this one."""
    is_twin = bool(own.names & others.names or own.ranks & others.ranks)
    gap = later(others.first, own.last) if own.last is not None and others.first is not None else None
    if 0 < own.job < others.job and (gap > timedelta() if gap is not None else is_twin or is_file):
        return f"it is of Slurm job {own.job}, others are of the later job {others.job}"
    if 0 < others.job < own.job:
        return None  # whatever zones their stamps are of
    if is_twin and not is_file and others.has_start and gap is not None and gap > APART:
        return "it had ended before the others begin, with a start of workers"
    if own.started & others.started and not is_file and gap is None:
        if not others.has_end:
            return "it tells of a start and of an end, and others of another start of the same ranks and of no end"
        if others.is_of_dumps and not own.is_of_dumps:
            return "it tells of another start of the same ranks than the logs whose time-outs name the calls that dumps end at"
    begun, over = (t.replace(tzinfo=None, year=2000) if t is not None else None for t in span)
    zone = MAX_ZONE
    if own.last is not None and begun is not None and not is_file and later(begun, own.last) > zone:
        return "it had ended before the first recorded step or call, in whatever zone its stamps are"
    if others.steps is None or others.num_steps < GOES_ON or (others.begin and over and later(others.begin, over) > zone):
        return None
    gap = later(others.begin, own.last) if own.last is not None and others.begin is not None else None
    is_behind = own.steps is not None and others.steps[0] > own.steps[1] + GOES_ON * max(own.every, others.every)
    if own.steps is not None and is_behind and (gap > APART if gap is not None else is_twin):
        return f"it ended behind step {own.steps[1]}, and others print steps {others.steps[0]} to {others.steps[1]} later"
    if gap is not None and gap > (APART + GOES_ON * max(own.pace, others.pace) if is_twin and not is_file else zone):
        return f"it had ended before step {others.steps[0]} and those behind it were printed"
    return None


def _with_stacks(case: Tables, span: Sequence[datetime | None]) -> list[datetime | None]:
    """The span with the instants at which processes were seen alive."""
    sampled = pl.col("sampled_at")
    seen = case.table("stacks").filter(pl.col("rank").is_not_null()).select(sampled.min().alias("first"), sampled.max().alias("last"))
    first, last = seen.collect().row(0)
    return [
        min((at for at in (span[0], first) if at is not None), default=None),
        max((at for at in (span[1], last) if at is not None), default=None),
    ]


def later(one: datetime, two: datetime) -> timedelta:
    """From the second to the first, both without their year; over New Year the shorter way."""
    gap = one - two
    return gap - YEAR if gap > HALF_YEAR else gap + YEAR if gap < -HALF_YEAR else gap


class _Rest:
    """All logs but a few, told without going through all of them for each set."""

    def __init__(self, told: Mapping[str, _Set]) -> None:
        self._told = told
        self._begins = sorted((one.begin, id_) for id_, one in told.items() if one.begin is not None)
        self._firsts = sorted((one.first, id_) for id_, one in told.items() if one.first is not None)
        self._starts = {id_ for id_, one in told.items() if one.has_start}
        self._ends = {id_ for id_, one in told.items() if one.has_end}
        self._of_dumps = {id_ for id_, one in told.items() if one.is_of_dumps}
        self._jobs = sorted(((one.job, id_) for id_, one in told.items()), reverse=True)
        # Of a launch without number any numbered log may be: then numbers alone judge.
        is_told = all(one.job for one in told.values() if one.is_launch)
        self._launches = [(job, id_) for job, id_ in self._jobs if told[id_].is_launch] if is_told else self._jobs
        self._scripts = {id_: one for id_, one in told.items() if one.programs}
        self._lows = sorted((one.steps[0], id_) for id_, one in told.items() if one.steps is not None)
        self._highs = sorted(((one.steps[1], id_) for id_, one in told.items() if one.steps is not None), reverse=True)
        self._nums = sorted(((one.num_steps, id_) for id_, one in told.items()), reverse=True)
        self._every = sorted(((one.every, id_) for id_, one in told.items()), reverse=True)
        self._pace = sorted(((one.pace, id_) for id_, one in told.items()), reverse=True)
        self._with: dict[int | str, set[str]] = defaultdict(set)
        for id_, one in told.items():
            keys: set[int | str] = {*one.ranks, *one.names}
            for key in keys:
                self._with[key].add(id_)

    def but(self, inside: frozenset[str]) -> _Set:
        """What the others tell; of ranks and names only those that the logs inside have too."""
        found = _Set(first=_first(self._firsts, inside), begin=_first(self._begins, inside), job=self._job(inside))
        found.num_steps = _first(self._nums, inside) or 0
        found.has_start, found.has_end = bool(self._starts - inside), bool(self._ends - inside)
        found.is_of_dumps = bool(self._of_dumps - inside)
        low, high = _first(self._lows, inside), _first(self._highs, inside)
        found.steps = (low, high) if low is not None and high is not None else None
        found.every, found.pace = _first(self._every, inside) or 1, _first(self._pace, inside) or timedelta()
        for id_ in inside:
            found.ranks |= {rank for rank in self._told[id_].ranks if self._with[rank] - inside}
            found.names |= {name for name in self._told[id_].names if self._with[name] - inside}
        found.started = {rank for id_ in self._starts - inside for rank in self._told[id_].started}
        return found

    def _job(self, inside: frozenset[str]) -> int:
        """The latest job of the others; beside a launch only of what tells of a launch too, or of the same program."""
        if not any(self._told[id_].is_launch for id_ in inside):
            return _first(self._jobs, inside) or 0
        scripts = set().union(*(self._told[id_].programs for id_ in inside))
        same = [one.job for id_, one in self._scripts.items() if id_ not in inside and one.programs & scripts]
        return max([_first(self._launches, inside) or 0, *same])


def _first(ordered: Sequence[tuple[T, str]], inside: frozenset[str]) -> T | None:
    return next((value for value, id_ in ordered if id_ not in inside), None)


def _units(paths: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Folders with the logs below each, the outermost first; then each log for itself, with no folder."""
    folders: dict[str, list[str]] = defaultdict(list)
    for id_, path in sorted(paths.items()):
        for place, letter in enumerate(path):
            if letter == "/":
                folders[path[:place]].append(id_)
    yield from sorted(folders.items(), key=lambda item: (item[0].count("/"), item[0]))
    yield from (("", [id_]) for id_ in sorted(paths))


def _told(case: Tables, files: Mapping[str, LogFile], names: Mapping[str, tuple[str, str | None]]) -> dict[str, _Set]:
    """evidence_id -> what it tells."""
    told = {id_: _Set(first=file.first_local, last=file.last_local) for id_, file in files.items()}
    for id_, (name, host) in names.items():
        if id_ in told and name:
            told[id_].names.add(f"{name}@{host or ''}")
    signs = case.table("log_events").filter(pl.col("signature").is_in(ENDS)).select("evidence_id")
    for (id_,) in pl.concat([signs, case.table("scheduler_events").select("evidence_id")]).unique().collect().iter_rows():
        if id_ in told:
            told[id_].has_end = True
    starts = case.table("log_events").filter(pl.col("signature") == "worker_started").select("evidence_id", "rank").unique()
    for id_, rank in starts.collect().iter_rows():
        if id_ in told:
            told[id_].has_start = True
            told[id_].ranks |= {rank} if rank is not None else set()
            told[id_].started |= {rank} if rank is not None else set()
    for id_, job in log_jobs.numbers(case, told).items():
        told[id_].job = job
    scripts, named = log_jobs.programs(case), log_jobs.with_ranks(case)
    rows = case.table("progress").select(
        "evidence_id", "rank", "step", pl.col("ended_at_local").alias("local"), pl.col("ended_at").alias("at")
    )
    printed: dict[str, tuple[set[int], set[str]]] = defaultdict(lambda: (set(), set()))
    for id_, rank, step in _by_learning_rate(case):
        if id_ in told:
            told[id_].ranks |= {rank} if rank is not None else set()
            printed[id_][0].add(step)
    for id_, rank, step, local, at in rows.unique().collect().iter_rows():
        if id_ in told and rank is not None:
            told[id_].ranks.add(rank)
        if id_ not in told or step is None:
            continue
        printed[id_][0].add(step)
        if local is not None or at is not None:
            printed[id_][1].add(local or at.replace(tzinfo=None).isoformat())
    for id_, (steps, stamps) in printed.items():
        one, ordered = told[id_], sorted(steps)
        one.steps, one.num_steps = (ordered[0], ordered[-1]), ordered[-1] - ordered[0] + 1
        one.every = max((b - a for a, b in pairwise(ordered)), default=1)
        moments = sorted(at for text in stamps if (at := yearless(text)) is not None)
        if moments:
            one.begin = moments[0]
            one.pace = max((b - a for a, b in pairwise(moments)), default=timedelta())
    for id_, one in told.items():
        one.is_launch = one.steps is not None or one.has_start or id_ in named or bool(one.ranks)
        one.programs = scripts.get(id_, set())
    return told


def _by_learning_rate(case: Tables) -> list[tuple[str, int | None, int]]:
    """(evidence_id, rank, place) of printed steps that bear no number, as Hugging Face's: how far the schedule of the learning rate had come, in
    usual distances of two lines. Empty unless it goes one way in every log, up or down: then it is a clock."""
    columns = ("evidence_id", "rank", "record", "step", "learning_rate")
    rows = case.table("progress").select(*columns).filter(pl.col("learning_rate").is_not_null()).collect()
    if not rows.height or rows["step"].count():
        return []
    line = pl.col("record").str.extract(r"([0-9]+)$").cast(pl.Int64, strict=False)
    writer = ("evidence_id", "rank")
    rows = rows.with_columns(line=line).sort(*writer, "line", nulls_last=True).with_columns(by=pl.col("learning_rate").diff().over(writer))
    steps = rows["by"].filter(rows["by"].is_not_null() & (rows["by"] != 0))
    usual = steps.abs().median()
    if not len(steps) or not isinstance(usual, float) or not ((steps > 0).all() or (steps < 0).all()):
        return []
    way = usual if steps[0] > 0 else -usual
    places = ((rows["learning_rate"] - rows["learning_rate"].min()) / way).round().cast(pl.Int64)
    return list(zip(rows["evidence_id"], rows["rank"], places, strict=True))


def yearless(text: str) -> datetime | None:
    """A local stamp in the year 2000, whether it names its year or not; None for a time of day alone."""
    try:
        at = datetime.fromisoformat((text if text[4:5] == "-" else f"2000-{text}").replace(",", "."))
    except ValueError:
        return None
    return at.replace(tzinfo=None, year=2000)
