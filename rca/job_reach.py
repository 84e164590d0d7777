"""How far did this job come? Its steps and its time, by what is surely its own: timings tied by their clock, logs of its processes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from rca.timing_sets import LOST_STEPS, KnownJob, TimedFile, known_timings, wide
from rca.types import Tables

__all__ = ["Reach", "label", "local_time", "reach_of"]

SURE = 2  # tie of a file to the job: its steps were timed within the recorded calls, or within the logs
QUARTER = timedelta(minutes=15)
HASTE = 2  # times as fast as usual, that the steps may have been for which nothing is left


@dataclass(frozen=True)
class Reach:
    """What is known of a job by its own evidence."""

    job: KnownJob
    own: frozenset[str]  # evidence that is surely of it
    first: int | None  # its earliest known step
    last: int | None  # the latest step that it can have reached
    seen: int | None  # the latest step that its evidence shows
    began: datetime | None  # when it started; null = what is left may begin in the midst of it
    ended: datetime | None  # the latest sign of it
    losses: Mapping[int, tuple[float, ...]]  # step -> finite losses that it noted
    is_sound: Mapping[int, bool]  # step -> both loss and gradient norm were finite wherever they were noted
    has_timings: bool  # steps of its ranks were timed by its own clocks
    names: frozenset[str]  # what its hosts are called
    is_whole: bool  # every rank of it is placed on a host


@dataclass(frozen=True)
class _Steps:
    """Steps of one file that is the job's."""

    first: int
    last: int
    every: int  # steps from one line to the next
    step_s: float
    begin: datetime | None
    end: datetime | None


def reach_of(case: Tables, own_logs: Collection[str], left_out: Collection[str]) -> Reach:
    """What the job's own evidence tells. `own_logs`: logs of its processes; `left_out`: evidence known to be foreign."""
    job, files, ties = known_timings(case, left_out)
    names = frozenset(short for host in job.hosts.values() if (short := label(host)))
    sure = {id_: file for id_, file in files.items() if ties[id_] >= SURE and file.spans and file.steps}
    named_right = {id_: file for id_, file in sure.items() if not file.hosts or not names or names & {label(h) for _, h in file.hosts}}
    sure = named_right or sure  # where all name other hosts, these only bear other names there (pods)
    folders = {file.folder for file in sure.values()}
    numbers = {id_ for id_, file in files.items() if not file.spans and file.folder in folders} & _with_rows(case, "rank_progress")
    ended = _latest(job)
    steps = [*map(_of_timings, sure.values()), *_of_logs(case, own_logs, ended)]
    begun = [s.begin for s in steps if s.begin is not None and s.first <= 1]
    ends = [s.end for s in steps if s.end is not None]
    own = frozenset({*sure, *numbers, *own_logs})
    losses, is_sound = _noted(case, own)
    looks = [span[1] for span in (job.sampled, job.logged) if span is not None]
    return Reach(
        job, own, min((s.first for s in steps), default=None), max((_furthest(s, ended, is_stop=bool(job.calls)) for s in steps), default=None),
        max((s.last for s in steps), default=None), min(begun, default=None),
        max((*ends, *looks, *([ended] if ended is not None else [])), default=None), losses, is_sound, bool(sure), names,
        bool(job.hosts) and job.world_size is not None and len(job.hosts) >= job.world_size,
    )  # fmt: skip


def label(host: str) -> str:
    """Host names as they are compared: first label, lower case; "" for an address, which is no name."""
    return "" if host.replace(".", "").isdigit() or ":" in host else host.lower().partition(".")[0]


def _with_rows(case: Tables, table: str) -> set[str]:
    return set(case.table(table).select(pl.col("evidence_id").unique()).collect()["evidence_id"])


def _latest(job: KnownJob) -> datetime | None:
    """The last recorded call; else when it was last looked at, else its last line."""
    calls = wide(job.calls.values())
    return next((span[1] for span in (calls, job.sampled, job.logged) if span is not None), None)


def _of_timings(file: TimedFile) -> _Steps:
    span = file.span
    begin, end = span if span is not None else (None, None)
    return _Steps(min(low for low, _ in file.steps.values()), max(high for _, high in file.steps.values()), 1, file.step_s, begin, end)


def _of_logs(case: Tables, logs: Collection[str], ended: datetime | None) -> Iterator[_Steps]:
    """Steps that logs of the job's processes print. Where stamps lack their zone, the log ends nearest to the end of the job."""
    rows = case.table("progress").filter(pl.col("evidence_id").is_in(sorted(logs)) & pl.col("step").is_not_null())
    for _, own in rows.select("evidence_id", "step", "ended_at", "ended_at_local").collect().group_by("evidence_id", maintain_order=True):
        steps, dated = sorted(set(own["step"].to_list())), own["ended_at"].drop_nulls().to_list()
        begin, end = (min(dated), max(dated)) if dated else _placed(own["ended_at_local"].drop_nulls().to_list(), ended)
        num = steps[-1] - steps[0]
        step_s = (end - begin).total_seconds() / num if begin is not None and end is not None and num else 0.0
        yield _Steps(steps[0], steps[-1], -(-num // max(len(steps) - 1, 1)), step_s, begin, end)


def _placed(texts: list[str], ended: datetime | None) -> tuple[datetime | None, datetime | None]:
    moments = [at for text in texts if (at := local_time(text)) is not None]
    if ended is None or not moments:
        return None, None
    end = max(moments).replace(tzinfo=ended.tzinfo)
    zone = round((ended - end) / QUARTER) * QUARTER
    return min(moments).replace(tzinfo=ended.tzinfo) + zone, end + zone


def local_time(text: str) -> datetime | None:
    """A stamp without zone that gives year and day, as a naive time; None for any other."""
    try:
        return datetime.fromisoformat(text.replace(",", ".")).replace(tzinfo=None) if text[4:5] == "-" else None
    except ValueError:
        return None


def _furthest(steps: _Steps, ended: datetime | None, *, is_stop: bool) -> int:
    """The step that was reached at most, counted from the last one known and the time that was left.

    `is_stop`: `ended` is of the last recorded call, not of a look at the job, which may have stood still by then for long: before a look,
    only what does not show the steps from the first on (a window of a profiler, a ring) may have left some out.
    """
    is_open = ended is not None and steps.end is not None and (is_stop or steps.first > 1)
    rest = (ended - steps.end).total_seconds() if is_open and ended is not None and steps.end is not None else 0.0
    more = HASTE * rest / steps.step_s if rest > 0 and steps.step_s > 0 else 0.0
    return steps.last + max(LOST_STEPS, steps.every) + int(min(more, 1e15))


def _noted(case: Tables, own: Collection[str]) -> tuple[dict[int, tuple[float, ...]], dict[int, bool]]:
    losses: dict[int, set[float]] = defaultdict(set)
    sound: dict[int, bool] = {}
    for table in ("progress", "rank_progress"):
        rows = case.table(table).filter(
            pl.col("evidence_id").is_in(sorted(own)) & pl.col("step").is_not_null() & pl.col("is_finite").is_not_null()
        )
        for step, loss, norm, is_finite in rows.select("step", "loss", "grad_norm", "is_finite").unique().collect().iter_rows():
            if loss is not None:
                losses[step].add(loss)
            if not is_finite or (loss is not None and norm is not None):
                sound[step] = sound.get(step, True) and is_finite
    return {step: tuple(sorted(values)) for step, values in losses.items()}, sound
