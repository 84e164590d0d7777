"""A table with a column of steps: what its other columns are by their headings, and its rows as rows of `steps`, `progress` and `rank_progress`.

Whole columns at a time, whatever the file they come from. Used by the readers of CSV, Parquet and of series of metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from collectors._stack_dump import host_label
from collectors._step_names import (
    DP,
    HOST,
    LOSS,
    MAX_TIME_S,
    NORM,
    PER_SECOND,
    PLAIN,
    RANK,
    SQUARED_TOKENS,
    STAGE,
    START,
    STEP,
    STEP_TIME,
    TOKENS,
    columns,
    heading,
    split,
)
from rca.tables import TABLES

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["Layout", "frames", "instants", "layout", "metric", "numbers", "wholes"]

_STEPS: Final = frozenset({*STEP, "iterations", "train_iteration", "current_iteration", "step_count", "steps"})
# Of times that a table may well count up from its first row (elapsed, total, wall) none is taken for that of a step.
_STEP_TIMES: Final = frozenset(
    {
        *(STEP_TIME - {"elapsed", "total", "wall"}),
        *(
            "end_to_end",
            "iterations",
            "elapsed_time_per_iteration",
            "elapsed_per_iteration",
            "per_step",
            "time_per_step",
            "time_per_iteration",
            "iteration_timing",
            "step_timing",
            "step_timing_in",
        ),
    }
)
_PER_STEP: Final = re.compile(rf"^({'|'.join(PER_SECOND)})_per_(?:step|iter|iteration)$")
_METRICS: Final[Mapping[str, frozenset[str]]] = {
    "loss": frozenset({*LOSS, "global_avg_loss", "reduced_train_loss", "training_loss", "loss_total", "total_loss"}),
    "grad_norm": frozenset({*NORM, "gradient_norm", "global_grad_norm", "grad_norm_global"}),
    "learning_rate": frozenset({"lr", "learning_rate"}),
    "epoch": frozenset({"epoch"}),
    "tokens_total": frozenset({"consumed_samples", "consumed_tokens", "consumed_train_samples", "n_tokens_seen", "tokens_total"}),
    "tokens_per_s_per_gpu": frozenset(
        {"throughput(tps)", "tps", "tokens_per_s_per_gpu", "tokens_per_sec_per_gpu", "tokens_per_second_per_gpu"}
    ),
    "mfu_ratio": frozenset({"mfu", "mfu_ratio", "mfu(%)", "mfu_pct", "mfu_percent"}),
}
# Where one of these tells rows of a step apart, a row is a part of it.
_PARTS_OF_A_STEP: Final = frozenset(
    {"optype", "op_type", "op", "op_name", "operation", "phase", "event", "kernel", "layer", "microbatch", "mb_id"}
)
_STAMPS: Final = frozenset({"timestamp", "ended_at", "logged_at", "time_utc", "datetime", "wall_time"})
_TIMES: Final = ("step_s", "compute_s", "comm_s", "data_s", "checkpoint_s", "forward_s", "backward_s")
_BESIDE: Final = frozenset({"forward_s", "backward_s"})  # times that alone make no table of steps: they include waiting
_FIRST_US, _LAST_US = 946_684_800_000_000, 7_258_118_400_000_000  # 2000 and 2200: outside, a clock that does not count from 1970
_INT64: Final = 2.0**63


@dataclass(frozen=True)
class Layout:
    """Which column of a table holds what; columns by their number."""

    step: int
    rank: int | None = None
    stage: int | None = None
    host: int | None = None
    start: tuple[int, int | None] | None = None  # column, units per second
    stamp: int | None = None  # when the row was written
    dp: int | None = None
    tokens: int | None = None
    squared: int | None = None  # squared lengths of sequences
    times: Mapping[str, tuple[tuple[int, int], ...]] = field(
        default_factory=dict
    )  # column of `steps` -> those it is the sum of, units per second
    metrics: Mapping[str, tuple[int, bool]] = field(default_factory=dict)  # column of `progress` -> column, whether in per cent

    @property
    def used(self) -> list[int]:
        """The columns that are read, sorted."""
        single = [n for n in (self.step, self.rank, self.stage, self.host, self.stamp, self.start and self.start[0]) if n is not None]
        single += [n for n in (self.dp, self.tokens, self.squared) if n is not None]
        return sorted({*single, *(n for parts in self.times.values() for n, _ in parts), *(n for n, _ in self.metrics.values())})


def metric(name: str) -> tuple[str, float] | None:
    """The column of `steps` or `progress` that a heading or tag stands for, and what its values are divided by; None for any other."""
    name = heading(name)
    for column, names in _METRICS.items():
        if name in names:
            return column, 100.0 if column == "mfu_ratio" and re.search(r"%|pct|percent", name) else 1.0
    if (part := _time(name)) is not None and part[0] not in _BESIDE:
        return part[0], float(part[1] or 1)
    return None


def _time(name: str) -> tuple[str, int | None, bool] | None:
    """The column of `steps` that a time of this name is of (first of them), its unit, and whether it stands for all of the column."""
    if found := _PER_STEP.match(name):
        return "step_s", PER_SECOND[found[1]], True
    plain, unit = split(name)
    if unit is None and plain.endswith("_avg"):  # train_iterations_time_msecs_avg
        plain, unit = split(plain.removesuffix("_avg"))
    if PLAIN.sub("", plain) in _STEP_TIMES and (
        unit or PLAIN.search(plain) or plain.startswith(("dur", "elapsed", "time_per")) or "timing" in plain
    ):
        return "step_s", unit, True
    return next(((column, unit, exact) for column, exact in columns(plain)), None)


def layout(headings: Sequence[str]) -> Layout | None:
    """What the columns of a table are; None without a step, or without anything that is measured.

    A time whose name states no unit has that of the step's time, if it states one, else it is in seconds.
    """
    names = [heading(text) for text in headings]
    if not _PARTS_OF_A_STEP.isdisjoint(names):
        return None
    place = {name: number for number, name in reversed(list(enumerate(names)))}

    def first(known: Sequence[str]) -> int | None:
        return next((place[name] for name in known if name in place), None)

    step = first([*STEP, *sorted(_STEPS - {*STEP})])
    if step is None:
        return None
    found: dict[str, list[tuple[int, int | None, bool]]] = {}
    metrics: dict[str, tuple[int, bool]] = {}
    start: tuple[int, int | None] | None = None
    for number, name in enumerate(names):
        if number == step or name.endswith(("__min", "__max")):
            continue
        told = metric(name)
        if told is not None and told[0] in _METRICS:
            metrics.setdefault(told[0], (number, told[1] == 100.0))
        elif (part := _time(name)) is not None:
            found.setdefault(part[0], []).append((number, part[1], part[2]))
            for column, exact in columns(split(name)[0]):  # computation of the forward pass is both
                if column in _BESIDE and column != part[0]:
                    found.setdefault(column, []).append((number, part[1], exact))
        elif split(name)[0] in START and start is None:
            start = (number, split(name)[1])
    whole = next((unit for _, unit, _ in found.get("step_s", ()) if unit), 1)
    times = {}
    for column, parts in found.items():
        totals = [part for part in parts if part[2]][:1]  # a total beside its parts: not both
        times[column] = tuple((number, unit or whole) for number, unit, _ in totals or parts)
    rank = first(RANK)
    if not times.keys() - _BESIDE and not metrics.keys() - {"epoch"}:
        return None
    beside = first(DP), first(TOKENS), first(SQUARED_TOKENS)
    return Layout(step, rank, first(STAGE), first(HOST), start, first(sorted(_STAMPS)), *beside, times, metrics)


def frames(
    about: Layout, cells: Mapping[int, pl.Series], records: pl.Series, rank_said: int | None = None
) -> Iterator[tuple[Table, pl.DataFrame]]:
    """The rows of a batch: `cells` by the number of their column, texts or numbers, all with a step. Empty cells and NaN are null."""
    step = wholes(cells[about.step])
    rank = wholes(cells[about.rank]) if about.rank is not None else None
    of = {"record": records, "rank": rank if rank is not None else rank_said, "step": step}
    height = len(records)
    if about.times:
        rows = {
            "host": _hosts(cells[about.host]) if about.host is not None else None,
            "stage": wholes(cells[about.stage]) if about.stage is not None else None,
            "dp": wholes(cells[about.dp]) if about.dp is not None else None,
            "num_tokens": wholes(cells[about.tokens]) if about.tokens is not None else None,
            "squared_tokens": numbers(cells[about.squared]) if about.squared is not None else None,
            "started_at": instants(cells[about.start[0]], about.start[1]) if about.start else None,
            **{column: _sum(cells, about.times[column]) for column in _TIMES if column in about.times},
        }
        yield TABLES["steps"], TABLES["steps"].frame(of | rows, height=height)
    values = {column: numbers(cells[number]) for column, (number, _) in about.metrics.items()}
    if not values:
        return
    norms = [cells[about.metrics[column][0]] for column in ("loss", "grad_norm") if column in about.metrics]
    if rank is not None:
        kept = {column: values[column] for column in ("loss", "grad_norm") if column in values}
        if kept:
            yield TABLES["rank_progress"], TABLES["rank_progress"].frame(of | kept | {"is_finite": _finite(norms)}, height=height)
        return
    if "mfu_ratio" in values and about.metrics["mfu_ratio"][1]:
        values["mfu_ratio"] = values["mfu_ratio"] / 100
    if "tokens_total" in values:
        values["tokens_total"] = wholes(cells[about.metrics["tokens_total"][0]])
    if about.stamp is not None:
        values["ended_at"] = instants(cells[about.stamp], None)
        values["ended_at_local"] = _locals(cells[about.stamp])
    if "step_s" in about.times:
        values["logged_step_s"] = _sum(cells, about.times["step_s"])
    yield TABLES["progress"], TABLES["progress"].frame(of | values | ({"is_finite": _finite(norms)} if norms else {}), height=height)


def wholes(cells: pl.Series) -> pl.Series:
    """Cells as 64-bit integers, also those written 3.0 or 3.2e+4; null for anything else."""
    if cells.dtype.is_integer():
        return cells.cast(pl.Int64, strict=False)
    whole = _texts(cells).cast(pl.Int64, strict=False) if cells.dtype == pl.String else None
    near = numbers(cells)
    near = near.set((near != near.round()) | (near.abs() >= _INT64 / 1024), None).cast(pl.Int64, strict=False)
    return near if whole is None else whole.zip_with(whole.is_not_null(), near)


def _texts(cells: pl.Series) -> pl.Series:
    return cells.str.strip_chars(" \t\r\"'")


def _raw(cells: pl.Series) -> pl.Series:
    if cells.dtype == pl.String:
        return _texts(cells).cast(pl.Float64, strict=False)
    return (
        cells.cast(pl.Float64, strict=False)
        if cells.dtype.is_numeric() or cells.dtype == pl.Null
        else pl.Series([None] * len(cells), dtype=pl.Float64)
    )


def numbers(cells: pl.Series) -> pl.Series:
    """Cells as finite numbers; null for empty ones, NaN, infinity and anything else."""
    found = _raw(cells)
    return found.set(~found.is_finite().fill_null(value=False), None)


def _finite(cells: Sequence[pl.Series]) -> pl.Series:
    """Whether a row's numbers are finite: false where one is infinite. NaN says nothing: tables write it for what is missing."""
    found = [_raw(series) for series in cells]
    frame = pl.DataFrame({f"{n}": series for n, series in enumerate(found)})
    infinite = pl.any_horizontal(pl.all().is_infinite().fill_null(value=False))
    told = pl.any_horizontal(pl.all().is_finite().fill_null(value=False))
    return frame.select(pl.when(infinite).then(statement=False).when(told).then(statement=True).alias("is_finite"))["is_finite"]


def _sum(cells: Mapping[int, pl.Series], parts: Sequence[tuple[int, int]]) -> pl.Series:
    """Seconds in all these columns together; null unless each holds a time."""
    total: pl.Series | None = None
    for number, unit in parts:
        part = numbers(cells[number]) / unit
        total = part if total is None else total + part
    assert total is not None
    return total.set(((total < 0) | (total > MAX_TIME_S)).fill_null(value=False), None)


def _hosts(cells: pl.Series) -> pl.Series:
    known = cells.cast(pl.String, strict=False).str.slice(0, 255)
    label = {name: host_label(name.strip(" \t\r\"'")) for name in known.drop_nulls().unique()}
    return pl.Series([label.get(name) for name in known], dtype=pl.String)


def instants(cells: pl.Series, unit: int | None) -> pl.Series:
    """Instants: counts since 1970 in the given unit (or the one of seconds to nanoseconds that fits), or ISO 8601 with a zone; else null."""
    if isinstance(cells.dtype, pl.Datetime):
        return (
            cells.cast(pl.Datetime("us", "UTC"))
            if cells.dtype.time_zone
            else pl.Series([None] * len(cells), dtype=pl.Datetime("us", "UTC"))
        )
    counts = numbers(cells)
    micros = pl.Series([None] * len(cells), dtype=pl.Int64)
    for per_second in [unit] if unit else [1, 10**3, 10**6, 10**9]:
        found = counts * (1e6 / per_second)
        fits = ((found >= _FIRST_US) & (found < _LAST_US)).fill_null(value=False)
        micros = micros.zip_with(~fits | micros.is_not_null(), found.set(~fits, None).round().cast(pl.Int64, strict=False))
    at = micros.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    if cells.dtype != pl.String:
        return at
    written = _texts(cells).str.replace(r"^([0-9]{4}-[0-9][0-9]-[0-9][0-9]) ", "${1}T").str.to_datetime("%+", time_unit="us", strict=False)
    written = written.dt.replace_time_zone("UTC") if written.dtype == pl.Datetime("us") else written.dt.convert_time_zone("UTC")
    return at.zip_with(at.is_not_null(), written)


def _locals(cells: pl.Series) -> pl.Series:
    """What stamps without a zone say, as the tables write it; null for any other."""
    if cells.dtype != pl.String:
        return pl.Series([None] * len(cells), dtype=pl.String)
    parts = (
        _texts(cells)
        .str.extract_groups(r"^([0-9]{4}-[0-9][0-9]-[0-9][0-9])[ T]([0-9][0-9]:[0-9][0-9]:[0-9][0-9])[.,]?([0-9]{1,9})?$")
        .struct
    )
    day, time, rest = (parts.field(name) for name in ("1", "2", "3"))
    fraction = pl.when(pl.col("r").is_not_null()).then(pl.lit(".") + pl.col("r")).otherwise(pl.lit(""))
    return pl.DataFrame({"d": day, "t": time, "r": rest}).select(pl.concat_str("d", pl.lit("T"), "t", fraction))["d"]
