"""Which step timings are of this job? Others lie beside: of an earlier run, of another job. Pure: tables in, reasons out.

Timings name hosts and ranks, and instants by the very clock of the process that a recorder dump is of. A set that contradicts the rest of the
evidence is foreign; of two sets that contradict each other, the one that the rest knows is the job's; where nothing tells, neither is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import polars as pl

from rca.timing_launches import other_launches
from rca.types import Tables

__all__ = ["FIRM", "LOST_STEPS", "KnownJob", "Span", "TimedFile", "foreign_timings", "known_timings", "wide", "world_size"]

TIMINGS = ("steps", "rank_progress")
LOST_STEPS = (
    10  # of a rank's last steps that may be missing where it kept its timings in memory: so far they may end before its oldest call
)
OTHER_CLOCK = timedelta(minutes=5)  # that the clocks of two hosts may be apart, where the dump of a rank itself is missing
LOGGED = timedelta(hours=1)  # before the first line that is known of a log, or after its last one
SAME_START_S, SAME_SHARE = 1.0, 0.05  # two files that mean the same step differ by less; s, and share of a time or loss
FIRM = 3  # tie of a file to the job: by the recorded calls of its own ranks, or it was being written when stacks were taken
Span = tuple[datetime, datetime]


@dataclass
class TimedFile:
    """What one file of timings says of the job."""

    folder: str = ""
    name: str = ""
    hosts: set[tuple[int, str]] = field(default_factory=set)
    spans: dict[int, Span] = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> first and last
    step_s: float = 0.0

    @property
    def span(self) -> Span | None:
        return wide(self.spans.values())


@dataclass(frozen=True)
class KnownJob:
    """What everything but the timings says of the job."""

    world_size: int | None
    hosts: Mapping[int, str]
    calls: Mapping[int, Span]  # by rank
    sampled: Span | None
    logged: Span | None


def foreign_timings(case: Tables, foreign: Collection[str]) -> dict[str, str]:
    """evidence_id -> why it is left out, of step timings that are not of this job or cannot be told from those that are.

    `foreign`: evidence that was left out before (logs, dumps). What a file without instants is, the others of its folder tell.
    1. A rank that the job has not; other hosts for its ranks than the rest names, where another file agrees with the rest.
    2. Outside the recorded calls of the same ranks, else of the job; else outside its stacks or logs.
    3. Two files (or folders of them) with other values for one step of a rank: the one that 2 ties to the job counts, else the one that goes on
       where the other was; else neither.
    4. Other launches of the same ranks, an hour or more away, at other steps (rca/timing_launches.py).
    """
    files = _files(case, foreign)
    job = _job(case, frozenset(foreign) | files.keys())
    found = _other_ranks(files, job) | _other_hosts(files, job)
    told = {id_: _in_time(file, job) for id_, file in files.items()}
    found |= {id_: why for id_, (_, why) in told.items() if why and not _goes_on(id_, files, told)}
    ties = {id_: tie for id_, (tie, _) in told.items()}
    found |= _beside(files, found, ties)
    found |= other_launches({id_: file for id_, file in files.items() if id_ not in found}, ties, firm=FIRM)
    rest = {id_: file for id_, file in files.items() if id_ not in found}
    return found | _contradicting(case, rest, {id_: told[id_][0] for id_ in rest})


def known_timings(case: Tables, foreign: Collection[str]) -> tuple[KnownJob, dict[str, TimedFile], dict[str, int]]:
    """What everything but the timings says of the job, what each file of timings says, and how firmly its time ties it to the job (0 = not)."""
    files = _files(case, foreign)
    job = _job(case, frozenset(foreign) | files.keys())
    return job, files, {id_: _in_time(file, job)[0] for id_, file in files.items()}


def _files(case: Tables, foreign: Collection[str]) -> dict[str, TimedFile]:
    logs = {
        id_
        for table in ("log_events", "progress")
        for id_ in case.table(table).select(pl.col("evidence_id").unique()).collect()["evidence_id"]
    }
    paths = dict(case.table("readings").select("evidence_id", "path").unique("evidence_id", keep="first").collect().iter_rows())
    files: dict[str, TimedFile] = defaultdict(TimedFile)
    end = pl.col("started_at") + pl.duration(microseconds=(pl.col("step_s").fill_null(0.0) * 1e6).round().cast(pl.Int64))
    for table in TIMINGS:
        rows = (
            case.table(table)
            .filter(pl.col("rank").is_not_null())
            .with_columns(end.alias("end") if table == "steps" else pl.lit(None).alias("end"))
        )
        timed = (
            [pl.col("started_at").min().alias("first"), pl.col("end").max().alias("last"), pl.col("step_s").median()]
            if table == "steps"
            else []
        )
        told = rows.group_by("evidence_id", "rank").agg(pl.col("step").min().alias("low"), pl.col("step").max().alias("high"), *timed)
        for row in told.sort("evidence_id", "rank").collect().iter_rows(named=True):
            file = files[row["evidence_id"]]
            if row["low"] is not None:
                file.steps[row["rank"]] = (row["low"], row["high"])
            if row.get("first") is not None and row["last"] is not None:
                file.spans[row["rank"]] = (row["first"], row["last"])
            file.step_s = max(file.step_s, row.get("step_s") or 0.0)
    for id_, rank, host in case.table("steps").select("evidence_id", "rank", "host").drop_nulls().unique().collect().iter_rows():
        files[id_].hosts.add((rank, host))
    for id_, file in files.items():
        file.folder, _, file.name = paths.get(id_, "").rpartition("/")
    return {id_: file for id_, file in sorted(files.items()) if id_ not in foreign and id_ not in logs}


def _job(case: Tables, left_out: frozenset[str]) -> KnownJob:
    def rows(table: str) -> pl.LazyFrame:
        return case.table(table).filter(~pl.col("evidence_id").is_in(sorted(left_out)))

    hosts: dict[int, set[str]] = defaultdict(set)
    for table in ("ranks", "dump_index", "stacks", "log_events"):
        for rank, host in rows(table).select("rank", "host").drop_nulls().unique().collect().iter_rows():
            hosts[rank].add(host)
    calls = (
        rows("dumps")
        .select("rank", "first_at", "last_at")
        .drop_nulls()
        .group_by("rank")
        .agg(pl.col("first_at").min(), pl.col("last_at").max())
    )
    logged = [_span(rows(table), moment) for table, moment in (("log_events", "logged_at"), ("progress", "ended_at"))]
    return KnownJob(
        world_size(rows("groups"), rows("ranks")), {rank: next(iter(names)) for rank, names in hosts.items() if len(names) == 1},
        {rank: (first, last) for rank, first, last in calls.collect().iter_rows()}, _last_look(rows("dump_index"), rows("stacks")),
        wide(span for span in logged if span is not None),
    )  # fmt: skip


def world_size(groups: pl.LazyFrame, ranks: pl.LazyFrame) -> int | None:
    """Members of the default group, else of a map that names all from 0 on."""
    size = groups.filter(pl.col("kind") == "world").select(pl.col("size").max()).collect().item()
    mapped = (
        ranks.filter(pl.any_horizontal(pl.col("local_rank", "tp", "dp", "pp", "gpu").is_not_null())).select("rank").drop_nulls().unique()
    )
    named = mapped.collect()["rank"].sort().to_list()
    return size if size is not None else len(named) if named and named == list(range(len(named))) else None


def _last_look(*tables: pl.LazyFrame) -> Span | None:
    """When stacks were last taken: the file with the latest ones, as an earlier capture may lie beside."""
    files = pl.concat([rows.select("evidence_id", "sampled_at").drop_nulls() for rows in tables]).group_by("evidence_id")
    spans = (
        files.agg(pl.col("sampled_at").min().alias("low"), pl.col("sampled_at").max().alias("high"))
        .sort("high", "low", "evidence_id")
        .tail(1)
    )
    return next(((low, high) for _, low, high in spans.collect().iter_rows()), None)


def _span(rows: pl.LazyFrame, moment: str) -> Span | None:
    low, high = rows.select(pl.col(moment).min().alias("low"), pl.col(moment).max().alias("high")).collect().row(0)
    return (low, high) if low is not None else None


def wide(spans: Collection[Span] | Iterator[Span]) -> Span | None:
    """The time from the first beginning to the last end; None of none."""
    listed = list(spans)
    return (min(first for first, _ in listed), max(last for _, last in listed)) if listed else None


def _other_ranks(files: Mapping[str, TimedFile], job: KnownJob) -> dict[str, str]:
    size = job.world_size
    beyond = {id_: max(file.steps) for id_, file in files.items() if size is not None and file.steps and max(file.steps) >= size}
    return {id_: f"another job: it has a rank {rank}, and the job {size} ranks" for id_, rank in beyond.items()}


def _other_hosts(files: Mapping[str, TimedFile], job: KnownJob) -> dict[str, str]:
    """Files that put most of their ranks on other hosts; not where no file agrees, as then hosts only bear other names there (pods)."""
    told = {id_: [(rank, host) for rank, host in sorted(file.hosts) if rank in job.hosts] for id_, file in files.items()}
    wrong = {id_: [(rank, host) for rank, host in pairs if job.hosts[rank] != host] for id_, pairs in told.items()}
    is_foreign = {id_: 2 * len(wrong[id_]) > len(told[id_]) for id_ in files if told[id_]}
    if all(is_foreign.values()):
        return {}
    return {
        id_: f"another job: rank {wrong[id_][0][0]} is on {wrong[id_][0][1]} there, and on {job.hosts[wrong[id_][0][0]]} in the job"
        for id_, foreign in is_foreign.items()
        if foreign
    }


def _in_time(file: TimedFile, job: KnownJob) -> tuple[int, str]:
    """How firmly the time of a file ties it to the job (0 = not at all), and why it cannot be of it ("" = it can)."""
    span = file.span
    if span is None:
        return 0, ""
    begin, end = span
    if job.sampled is not None and begin <= job.sampled[1] and job.sampled[0] <= end:
        return FIRM, ""  # it was running when it was looked at
    slack = timedelta(seconds=LOST_STEPS * file.step_s)
    both = [(own, job.calls[rank], timedelta()) for rank, own in sorted(file.spans.items()) if rank in job.calls]
    calls, own_clock = wide(job.calls.values()), bool(both)
    if not both and calls is not None:
        both = [(span, calls, OTHER_CLOCK)]
    if both:
        outside = [_outside(own, (first - slack, last), margin) for own, (first, last), margin in both]
        why = next((why for why in outside if why), "")
        return (0, f"another run: {why} the recorded calls") if sum(map(bool, outside)) * 2 > len(outside) else (FIRM - (not own_clock), "")
    if job.sampled is not None and begin > job.sampled[1] + OTHER_CLOCK:
        return 0, f"another run: {_outside(span, job.sampled, OTHER_CLOCK)} the stacks"
    if job.logged is not None:
        why = _outside(span, job.logged, LOGGED)
        return (0, f"another run: {why} the logs") if why else (2 if not _outside(span, job.logged, timedelta()) else 1, "")
    return (1 if job.sampled is not None and end > job.sampled[0] - LOGGED else 0), ""


def _outside(span: Span, window: Span, margin: timedelta) -> str:
    if span[0] > window[1] + margin:
        return f"it begins {span[0]:%Y-%m-%d %H:%M:%S} UTC, after"
    return f"it ends {span[1]:%Y-%m-%d %H:%M:%S} UTC, before" if span[1] < window[0] - margin else ""


def _goes_on(id_: str, files: Mapping[str, TimedFile], told: Mapping[str, tuple[int, str]]) -> bool:
    """Whether it is the next part of a file that is of the job: a job may run on after its dump."""
    own = files[id_]
    return any(
        other.steps[rank][1] < first and (rank not in own.spans or rank not in other.spans or other.spans[rank][0] < own.spans[rank][0])
        for other_id, other in files.items()
        if other_id != id_ and told[other_id][0] and not told[other_id][1]
        for rank, (first, _) in own.steps.items()
        if rank in other.steps
    )


def _beside(files: Mapping[str, TimedFile], found: Mapping[str, str], ties: Mapping[str, int]) -> dict[str, str]:
    """Files that nothing ties firmly to the job, in a folder of which most of what can be told is foreign, and nothing firmly the job's."""
    folders: dict[str, list[str]] = defaultdict(list)
    for id_, file in files.items():
        folders[file.folder].append(id_)
    beside: dict[str, str] = {}
    for inside in folders.values():
        foreign = [id_ for id_ in inside if id_ in found]
        rest = [id_ for id_ in inside if id_ not in found]
        if len(foreign) > sum(bool(files[id_].spans) for id_ in rest) and not any(ties[id_] >= FIRM for id_ in rest):
            beside |= dict.fromkeys(rest, found[foreign[0]])
    return beside


def _contradicting(case: Tables, files: Mapping[str, TimedFile], ties: Mapping[str, int]) -> dict[str, str]:
    """Of files or folders that give other values for one step of a rank all but the one that is the job's; all, where that cannot be told."""
    found: dict[str, str] = {}
    sets: dict[tuple[str, ...], str] = {}
    for one, two, rank in _clashes(case, files):
        pair = [_set(id_, files, alone=files[one].folder == files[two].folder) for id_ in (one, two)]
        sets.setdefault((pair[0], pair[1]), f"rank {rank}")
    members: dict[str, list[str]] = defaultdict(list)
    for id_, file in files.items():
        members[file.folder + "/"].append(id_)
        members[_set(id_, files, alone=True)].append(id_)
    for (one, two), who in sorted(sets.items()):
        first, second = ([id_ for id_ in members[name] if id_ not in found] for name in (one, two))
        if not first or not second:
            continue
        firm, other = (max(ties[id_] for id_ in ids) for ids in (first, second))
        later = _later([files[i] for i in first], [files[i] for i in second]) if firm == other else None
        if firm != other or later is not None:
            is_first = firm > other or later == 0
            loser, winner = (second, one) if is_first else (first, two)
            kind = "an earlier run" if later is not None else "another run"
            found |= dict.fromkeys(loser, f"{kind}: {winner} has other values for the same steps of {who}, in the time of the job")
        else:
            why = f"not to be told: {one} and {two} have other values for the same steps of {who}, and nothing tells which is of this job"
            found |= dict.fromkeys([*first, *second], why)
    return found


def _set(id_: str, files: Mapping[str, TimedFile], *, alone: bool) -> str:
    """Name of the set that a file is of: itself, or its folder."""
    return f"{files[id_].folder}/{'' if not alone else files[id_].name or id_}"


def _later(one: Collection[TimedFile], two: Collection[TimedFile]) -> int | None:
    """0 or 1: the set that begins after the other ended, at a step that the other had reached: a job resumed. None when neither does."""
    spans = [wide(span for file in files if (span := file.span) is not None) for files in (one, two)]
    firsts = [min(low for file in files for low, _ in file.steps.values()) for files in (one, two)]
    for late, early in ((0, 1), (1, 0)):
        begun, ended = spans[late], spans[early]
        if begun is not None and ended is not None and begun[0] > ended[1] and firsts[late] > firsts[early]:
            return late
    return None


def _clashes(case: Tables, files: Mapping[str, TimedFile]) -> list[tuple[str, str, int]]:
    """Pairs of files with other values for the same step of a rank, and that rank; each pair once."""
    told: set[tuple[str, str, int]] = set()
    for table, exact, near in (
        ("steps", "started_at", ("step_s", "compute_s")),
        ("rank_progress", "param_checksum", ("loss", "grad_norm")),
    ):
        rows = case.table(table).filter(
            pl.col("evidence_id").is_in(sorted(files)) & pl.col("rank").is_not_null() & pl.col("step").is_not_null()
        )
        last = rows.select("evidence_id", "rank", "step", exact, *near).unique(
            ["evidence_id", "rank", "step"], keep="last", maintain_order=True
        )
        shared = last.filter(pl.len().over("rank", "step") > 1)
        both = shared.join(shared, on=["rank", "step"], suffix="_too").filter(pl.col("evidence_id") < pl.col("evidence_id_too"))
        if table == "steps":
            apart = (pl.col(exact) - pl.col(f"{exact}_too")).dt.total_microseconds().abs() > SAME_START_S * 1e6
        else:
            apart = pl.col(exact) != pl.col(f"{exact}_too")
        for name in near:
            mine, other = pl.col(name), pl.col(f"{name}_too")
            apart = apart.fill_null(value=False) | ((mine - other).abs() > SAME_SHARE * pl.max_horizontal(mine.abs(), other.abs()))
        clashing = both.filter(apart.fill_null(value=False)).select("evidence_id", "evidence_id_too", "rank").unique()
        told.update(clashing.collect().rows())
    pairs = {(one, two): rank for one, two, rank in sorted(told, reverse=True)}
    return [(one, two, rank) for (one, two), rank in sorted(pairs.items())]
