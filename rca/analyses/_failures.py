"""Every time that a computation or a sample went wrong by itself: what, on which rank and host, with which samples, in which launch.

Earlier launches and jobs beside this one count too: that a sample fails again there is what tells it from a chip.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from rca.analyses._layout import hosts
from rca.analyses._numbers import judged, wild
from rca.analyses._sample_names import sample_names
from rca.types import Cite, Tables

__all__ = ["READS", "Failure", "by_sample", "failures", "independent", "sound_with"]

READS: Final = ("rank_progress", "log_events", "quarantines", "ranks", "steps", "dump_index")  # and `evidence`, which is always there
APART: Final = timedelta(seconds=60)  # between two times that a sample fails: copies of one batch fail within seconds of each other
MAX_SAMPLES: Final = 4096  # of a batch that are looked at
MAX_FAILURES: Final = 5000  # of numbers, those that lasted first: a job of many ranks may mask a loss in every step
_ATTEMPT: Final = re.compile(r"(?i)(?:^|[/_.-])(?:attempt|restart|cycle)[_-]?([0-9]{1,4})(?![0-9])")
_BROKEN: Final = ("nonfinite", "passed", "spike")


@dataclass(frozen=True)
class Failure:
    """One time that it went wrong."""

    what: str  # not_finite, spike, exception
    samples: tuple[str, ...]
    shard: str | None
    rank: int | None
    host: str | None
    step: int | None
    at: datetime | None
    origin: str  # now, old (a launch or job that was left out), told (written down by a person)
    run: int | None  # pass of its file: a resumed run counts again
    is_over: bool  # of another launch than the one that is diagnosed, or of an earlier pass of it
    attempt: int | None  # where the path tells
    path: str
    cite: Cite | None

    def row(self) -> dict[str, Any]:
        """As a record of its own."""
        place = {"path": self.path or None, "record": self.cite.record if self.cite else None}
        return {"what": self.what, "step": self.step, "rank": self.rank, "host": self.host, "attempt": self.attempt} | place


def failures(case: Tables) -> tuple[Failure, ...]:
    """All of them, in the order of their places; of a trouble that lasts only its first step."""
    paths = dict(case.table("evidence").select("evidence_id", "path").collect().iter_rows())
    stale = set(case.table("evidence").filter(pl.col("is_stale").fill_null(value=False)).select("evidence_id").collect()["evidence_id"])
    found = [*_of_numbers(case, paths, stale), *_of_logs(case, paths, stale)]
    return tuple(_once([*found, *_told_earlier(case)]))


def _of_numbers(case: Tables, paths: dict[str, str], stale: set[str]) -> list[Failure]:
    rows = case.table("rank_progress", with_stale=True).filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null())
    kept = wild(rows, series="rank", by="step").collect()
    if kept.is_empty():
        return []
    is_bad = pl.any_horizontal(pl.col("loss_is", "norm_is").is_in(_BROKEN)).fill_null(value=False)
    begins = is_bad & ~is_bad.shift(1).over("rank", "evidence_id", "run").fill_null(value=False)
    marked = judged(kept.lazy(), series="rank", by="step").with_columns(
        is_bad.alias("bad"), begins.alias("begins"), pl.col("run").max().over("rank", "evidence_id").alias("last")
    )
    states = marked.filter("bad").collect()
    has_passed = pl.any_horizontal(pl.col("loss_is", "norm_is") == "passed").fill_null(value=False)
    bad = states.filter("begins").sort(has_passed, "step", "rank", "evidence_id").head(MAX_FAILURES)
    is_old = pl.col("evidence_id").is_in(sorted(stale)).alias("old")
    seen = (
        rows.filter(pl.col("step").is_in(bad["step"].unique().implode())).group_by("step", is_old).agg(pl.col("rank").n_unique().alias("n"))
    )
    wrong = states.group_by("step", is_old).agg(pl.col("rank").n_unique().alias("of"))
    both = seen.collect().join(wrong, on=["step", "old"])
    few = {(step, old) for step, old, n, of in both.iter_rows() if of * 2 <= n}  # on more ranks at once it has spread already
    where = hosts(case)
    found = []
    for row in bad.sort("evidence_id", "rank", "step").iter_rows(named=True):
        id_ = row["evidence_id"]
        if (row["step"], id_ in stale) not in few:
            continue
        is_spike = "spike" in (row["loss_is"], row["norm_is"])
        values = ", ".join(
            f"{name} {row[key] if row[key] is not None else 'not finite'}" for name, key in (("loss", "loss"), ("norm", "grad_norm"))
        )
        cite = Cite("rank_progress", id_, "", row["record"], f"rank {row['rank']}, step {row['step']}: {values}")
        found.append(
            Failure(
                "spike" if is_spike else "not_finite", tuple(row["sample_ids"] or ())[:MAX_SAMPLES], row["data_shard"], row["rank"],
                None if id_ in stale else where.get(row["rank"]), row["step"], None, "old" if id_ in stale else "now", row["run"],
                id_ in stale or row["run"] < row["last"], _attempt(paths.get(id_, "")), paths.get(id_, ""), cite,
            )
        )  # fmt: skip
    return found


def _of_logs(case: Tables, paths: dict[str, str], stale: set[str]) -> list[Failure]:
    is_named = pl.col("sample_ids").is_not_null() | (pl.col("signature") == "python_traceback")
    own = pl.col("signature").is_in(["python_traceback", "loss_nan"]) & is_named
    rows = case.table("log_events", with_stale=True).filter(own & (pl.col("rank").is_not_null() | pl.col("host").is_not_null()))
    where = hosts(case)
    found = []
    for row in rows.sort("evidence_id", "record").collect().iter_rows(named=True):
        id_ = row["evidence_id"]
        named = tuple(row["sample_ids"] or sample_names(row["exception"], row["message"], row["frames"] or ()))[:MAX_SAMPLES]
        if not named:
            continue
        text = f"{row['exception'] or row['signature']}: {row['message'] or ''}"[:200]
        what = "exception" if row["signature"] == "python_traceback" else "not_finite"
        host = row["host"] or (None if id_ in stale else where.get(row["rank"]))
        found.append(
            Failure(
                what, named, None, row["rank"], host, row["step"], row["logged_at"],
                "old" if id_ in stale else "now", None, id_ in stale, _attempt(paths.get(id_, "")), paths.get(id_, ""),
                Cite("log_events", id_, "", row["record"], text),
            )
        )  # fmt: skip
    return found


def _told_earlier(case: Tables) -> list[Failure]:
    """What decisions on samples say of the times that they failed."""
    found = []
    rows = case.table("quarantines").filter(pl.col("what").is_not_null()).sort("evidence_id", "record").collect()
    for row in rows.iter_rows(named=True):
        text = f"sample {row['sample_id']} failed on rank {row['rank']}, step {row['step']} (written down {row['decided_at']})"
        cite = Cite("quarantines", row["evidence_id"], "", row["record"], text)
        found.append(
            Failure(
                row["what"], (row["sample_id"],), row["data_shard"], row["rank"], row["host"], row["step"], None, "told", None, True,
                row["failed_attempt"], row["failed_path"] or "", cite,
            )
        )  # fmt: skip
    return found


def _attempt(path: str) -> int | None:
    found = _ATTEMPT.search(path)
    return int(found[1]) if found else None


def _once(found: Sequence[Failure]) -> list[Failure]:
    """Each failure once: what a person wrote down of this very evidence is not another time, nor is a log's word on what the numbers show."""
    kept: dict[int | None, list[Failure]] = defaultdict(list)  # rank -> its failures
    for one in found:
        is_of_numbers = one.run is not None  # each of these is another step or pass
        if is_of_numbers or not any(_is_same(one, other) for other in kept[one.rank]):
            kept[one.rank].append(one)
    return [one for times in kept.values() for one in times]


def _is_same(one: Failure, other: Failure) -> bool:
    if not set(one.samples) & set(other.samples):
        return False
    if one.origin == "told" and other.origin != "told":
        return bool(one.path) and one.path == other.path
    return not independent(one, other)


def independent(one: Failure, other: Failure) -> bool:
    """Whether they are two times, not one that shows in two places: another launch or pass, another step, or clearly another moment."""
    if one.origin != other.origin:
        return True
    pairs = ((one.step, other.step), (one.run, other.run), (one.attempt, other.attempt))
    if any(a is not None and b is not None and a != b for a, b in pairs):
        return True
    return one.at is not None and other.at is not None and abs(one.at - other.at) > APART


def by_sample(found: Iterable[Failure]) -> dict[str, list[Failure]]:
    """Sample -> the independent times that it, or a batch with it, failed; of samples that failed at least twice."""
    of: dict[str, list[Failure]] = defaultdict(list)
    for one in found:
        for sample in dict.fromkeys(one.samples):
            if all(independent(one, other) for other in of[sample]):
                of[sample].append(one)
    return {sample: times for sample, times in sorted(of.items()) if len(times) > 1}


def sound_with(case: Tables, samples: Sequence[str], times: Sequence[Failure]) -> dict[str, int]:
    """Sample -> steps at which every number was sound although it was in the batch; steps at which it failed on some rank are not among them."""
    bad_steps = sorted({one.step for one in times if one.step is not None})
    has_any = pl.col("sample_ids").list.eval(pl.element().is_in(list(samples))).list.any()
    rows = case.table("rank_progress", with_stale=True).filter(has_any & pl.col("is_finite").fill_null(value=False))
    steps: dict[str, set[int]] = defaultdict(set)
    for step, ids in rows.filter(~pl.col("step").is_in(bad_steps)).select("step", "sample_ids").collect().iter_rows():
        for sample in set(ids) & set(samples):
            steps[sample].add(step)
    return {sample: len(at) for sample, at in steps.items()}
