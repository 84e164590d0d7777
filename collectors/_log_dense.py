"""Steps that were read by columns, among lines that are read carefully: which of them stand, in which order, and what they count to.

Left to the careful reader are lines of which it makes a row of `log_events` or learns something: the first step of a writer, steps that are
not finite as long as each of them is a row, and a rank that is not the number of its task. All others only count to rows that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from collectors._log_shape import PROGRESS
from collectors._log_shapes import Lines, Steps

if TYPE_CHECKING:
    import polars as pl

    from collectors._log_careful import Log

__all__ = ["Dense", "StepRows"]

_NOT_FINITE: Final = "loss_nan"


class Dense:
    """The lines of one block whose steps are read by columns. A place is that of a line in the block, from 0."""

    def __init__(self, found: Sequence[Steps], log: Log) -> None:
        self._found, self._log = found, log
        self._left = {place for steps in found for place in self._to_leave(steps)}

    def _to_leave(self, steps: Steps) -> set[int]:
        fixed, rows = steps.shape.fixed, steps.rows
        left: set[int] = set()
        if not self._log.tasks_are_nodes and _has(rows["task"]) and _has(rows["said"]):
            left.update(rows["place"].filter(rows["said"] != rows["task"]).head(1))
        for rank in rows["rank"].unique():
            if not self._log.rows.knows_writer(rank, fixed["host"]):
                left.add(rows["place"].filter(rows["rank"].eq_missing(rank))[0])
            if fixed["is_finite"] is False:
                is_one_kind = "pid" in fixed and self._log.rows.is_full(_NOT_FINITE, rank, fixed["host"], fixed["pid"])
                left.update(() if is_one_kind else rows["place"].filter(rows["rank"].eq_missing(rank)))
        return left

    def without(self, held: Sequence[int]) -> list[int]:
        """The held places that are not read by columns, ascending."""
        import polars as pl

        if not self._found:
            return list(held)
        places = pl.concat([steps.rows["place"] for steps in self._found])
        rest = pl.Series(held, dtype=pl.Int64)
        rest = rest.filter(~rest.is_in(places.implode())) if len(rest) > len(places) or places.n_unique() < len(rest) else rest.clear()
        return sorted({*rest, *(self._left.intersection(held))})

    def passes(self, place: int) -> bool:
        """Whether the line is read by columns and counts to nothing that is open."""
        if place in self._left or place not in self._streams:
            return False
        stream = self._streams[place]
        return stream is None or not self._log.is_open(stream)

    @cached_property
    def _streams(self) -> dict[int, tuple[Any, ...] | None]:
        """The writer of each line, as `Line.stream` names it; None = the line counts to no traceback. Lines of several pieces are left out."""
        streams: dict[int, tuple[Any, ...] | None] = {}
        several: set[int] = set()
        for steps in self._found:
            fixed = steps.shape.fixed
            for place, rank, task in zip(steps.rows["place"], steps.rows["said"], steps.rows["task"], strict=True):
                if place in streams:
                    several.add(place)
                streams[place] = (fixed["host"], rank, task, fixed["is_bare"]) if fixed["has_stream"] else None
        return {place: stream for place, stream in streams.items() if place not in several}

    def leave(self, place: int) -> None:
        """The line is read carefully instead."""
        self._left.add(place)

    def leave_tasks(self, start: int) -> None:
        """From `start` on the lines whose rank was the number of their task are read carefully."""
        for steps in self._found:
            rows = steps.rows
            if _has(rows["task"]) and not _has(rows["said"]):
                self._left.update(rows["place"].filter(rows["place"] >= start))

    def count_up(self, block: Lines) -> Iterator[Steps]:
        """The steps that stand, each counted to the row of its writer."""
        import polars as pl

        for steps in self._found:
            fixed, rows = steps.shape.fixed, steps.rows
            rows = rows.filter(~rows["place"].is_in(pl.Series(sorted(self._left), dtype=pl.Int64).implode())) if self._left else rows
            for rank in rows["rank"].unique():
                if not self._log.rows.knows_writer(rank, fixed["host"]):  # its first step in the block turned out to be text of a traceback
                    place = rows["place"].filter(rows["rank"].eq_missing(rank))[0]
                    self._log.take(block.texts[place], block.first + place, "")
                    rows = rows.filter(rows["place"] != place)
            for rank, num in rows["rank"].value_counts().iter_rows():
                self._log.rows.count_steps(rank, fixed["host"], num)
                if fixed["is_finite"] is False:
                    self._log.rows.fold(_NOT_FINITE, rank, fixed["host"], fixed["pid"], num=num)
            yield Steps(steps.shape, rows)


def _has(column: pl.Series) -> bool:
    return column.null_count() < len(column)


class StepRows:
    """Rows of `progress` on their way out, in the order of the lines."""

    def __init__(self, rank_said: int | None) -> None:
        self._rank_said = rank_said  # by the name of the file: the rank of those that name none
        self._rows: list[dict[str, Any]] = []  # after those of `_frames`
        self._frames: list[pl.DataFrame] = []
        self.num_waiting = 0

    def add(self, dense: Sequence[Steps], careful: list[dict[str, Any]], first: int) -> None:
        """The steps of a block, read in either way; `first` is the number of its first line."""
        import polars as pl

        self.num_waiting += len(careful) + sum(steps.rows.height for steps in dense)
        if not dense:
            self._rows += careful
            return
        self._flush()
        parts = [steps.rows.select("item", "place", *PROGRESS.schema) for steps in dense]
        if careful:
            places = [int(row["record"][1:]) - first for row in careful]
            order = pl.DataFrame({"item": range(len(careful)), "place": places}, schema={"item": pl.Int64, "place": pl.Int64})
            parts.append(order.hstack(_frame(careful)))
        rows = pl.concat(parts).sort("place", "item") if len(parts) > 1 else parts[0]
        self._frames.append(rows.drop("item", "place"))

    def take(self) -> pl.DataFrame:
        """All rows that wait."""
        import polars as pl

        self._flush()
        frame = pl.concat([PROGRESS.frame(), *self._frames])
        self._frames, self.num_waiting = [], 0
        return frame.with_columns(pl.col("rank").fill_null(self._rank_said)) if self._rank_said is not None else frame

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._frames.append(_frame(rows))


def _frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    names = sorted({name for row in rows for name in row})
    return PROGRESS.frame({name: [row.get(name) for row in rows] for name in names})
