"""Lines that were read by columns, among those that are read carefully: which of them stand, in which order, and what they count to.

Left to the careful reader are lines of which it makes a row of `log_events` or learns something: the first step of a writer, events and
steps that are not finite as long as each is a row of its own, and a rank that is not the number of its task. All others only count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from collectors._log_shape import BESIDES, PROGRESS, STEP
from collectors._log_shapes import Alike
from rca.tables import TABLES

if TYPE_CHECKING:
    import polars as pl

    from collectors._log_careful import Log
    from rca.tables import Table

__all__ = ["Dense", "StepRows"]

_STEPS: Final = TABLES["steps"]
_NOT_FINITE: Final = "loss_nan"
_Writer = tuple[int | None, int | None]  # rank and pid


class Dense:
    """The lines of one block that are read by columns. A place is that of a line in the block, from 0."""

    def __init__(self, found: Sequence[Alike], quiet: Sequence[int], log: Log) -> None:
        self._found, self._quiet, self._log = found, quiet, log
        self._writers: list[list[tuple[_Writer, int, int]]] = []  # of each of `found`
        self._left: set[int] = set()
        self._firsts: dict[int, list[tuple[Alike, _Writer]]] = {}  # lines read carefully because more of them may have to be
        for alike in found:
            rows = alike.rows
            if not log.tasks_are_nodes and _has(rows["task"]) and _has(rows["said"]):
                self._left.update(rows["place"].filter(rows["said"] != rows["task"]).head(1))
            self._writers.append(_writers(rows))
            for writer, place, _ in self._writers[-1]:
                if self._makes_row(alike, writer):
                    self._leave_first(alike, writer, place)

    def _leave_first(self, alike: Alike, writer: _Writer, place: int) -> int:
        self._left.add(place)
        self._firsts.setdefault(place, []).append((alike, writer))
        return place

    def _makes_row(self, alike: Alike, writer: _Writer) -> bool:
        fixed, (rank, pid) = alike.shape.fixed, writer
        if fixed["tells"] != STEP:
            return bool(fixed["tells"]) and not self._log.rows.is_full(fixed["tells"], rank, fixed["host"], pid)
        if not self._log.rows.knows_writer(rank, fixed["host"]):
            return True
        return fixed["is_finite"] is False and not self._log.rows.is_full(_NOT_FINITE, rank, fixed["host"], pid)

    def was_taken(self, place: int) -> Iterator[int]:
        """The line was read carefully. Gives the places of those that have to be because of that: of its writer, as that one made no row."""
        for alike, writer in self._firsts.pop(place, ()):
            if self._makes_row(alike, writer):
                places = alike.rows["place"].filter((alike.rows["place"] > place) & _is_of(alike.rows, writer))
                yield from (self._leave_first(alike, writer, following) for following in places.head(1))

    def without(self, held: Sequence[int]) -> list[int]:
        """The held places that are not read by columns, ascending."""
        import polars as pl

        if not self._found and not self._quiet:
            return list(held)
        places = pl.concat([*(alike.rows["place"] for alike in self._found), pl.Series(self._quiet, dtype=pl.Int64)])
        rest = pl.Series(held, dtype=pl.Int64)
        rest = rest.clear() if len(places) == len(rest) == places.n_unique() else rest.filter(~rest.is_in(places.implode()))
        return sorted({*rest, *self._left.intersection(held)})

    def passes(self, place: int) -> bool:
        """Whether the line is read by columns and counts to nothing that is open."""
        if place in self._left or place not in self._streams:
            return False
        stream = self._streams[place]
        return stream is None or not self._log.is_open(stream)

    @cached_property
    def _streams(self) -> dict[int, tuple[Any, ...] | None]:
        """The writer of each line, as `Line.stream` names it; None = the line counts to no traceback. Only of steps, and of lines of one piece."""
        streams: dict[int, tuple[Any, ...] | None] = {}
        several: set[int] = set()
        for alike in self._found:
            fixed = alike.shape.fixed
            for place, rank, task in zip(alike.rows["place"], alike.rows["said"], alike.rows["task"], strict=True):
                if place in streams or fixed["tells"] != STEP:
                    several.add(place)
                streams[place] = (fixed["host"], rank, task, fixed["is_bare"]) if fixed["has_stream"] else None
        return {place: stream for place, stream in streams.items() if place not in several}

    def leave(self, place: int) -> None:
        """The line is read carefully instead."""
        self._left.add(place)

    def leave_tasks(self, start: int) -> None:
        """From `start` on the lines whose rank was the number of their task are read carefully."""
        for alike in self._found:
            rows = alike.rows
            if _has(rows["task"]) and not _has(rows["said"]):
                self._left.update(rows["place"].filter(rows["place"] >= start))

    def count_up(self) -> Iterator[pl.DataFrame]:
        """The rows of the steps that stand; all that stands is counted to the rows that are there."""
        import polars as pl

        left = pl.Series(sorted(self._left), dtype=pl.Int64).implode()
        for alike, writers in zip(self._found, self._writers, strict=True):
            fixed, rows = alike.shape.fixed, alike.rows
            if not fixed["tells"]:
                continue
            if self._left:
                rows = rows.filter(~rows["place"].is_in(left))
                writers = _writers(rows)
            for (rank, pid), _, num in writers:
                if fixed["tells"] == STEP:
                    self._log.rows.count_steps(rank, fixed["host"], num)
                kind = fixed["tells"] if fixed["tells"] != STEP else _NOT_FINITE if fixed["is_finite"] is False else None
                if kind:
                    self._log.rows.fold(kind, rank, fixed["host"], pid, num=num)
            if fixed["tells"] == STEP:
                yield rows


def _writers(rows: pl.DataFrame) -> list[tuple[_Writer, int, int]]:
    """Rank and pid of each writer, the place of its first line, and how many lines it wrote."""
    import polars as pl

    if not rows.height or not (_has(rows["rank"]) or _has(rows["pid"])):
        return [((None, None), rows["place"][0], rows.height)] if rows.height else []
    writers = rows.group_by("rank", "pid", maintain_order=True).agg(pl.col("place").first(), pl.len())
    return [((rank, pid), place, num) for rank, pid, place, num in writers.iter_rows()]


def _is_of(rows: pl.DataFrame, writer: _Writer) -> pl.Series:
    rank, pid = writer
    of_rank = rows["rank"].eq_missing(rank) if rank is not None else rows["rank"].is_null()
    return of_rank & (rows["pid"] == pid) if pid is not None else of_rank & rows["pid"].is_null()


def _has(column: pl.Series) -> bool:
    return column.null_count() < len(column)


class StepRows:
    """Rows of `progress` on their way out, in the order of the lines, and of `steps` where a line states the time of an iteration."""

    def __init__(self, rank_said: int | None) -> None:
        self._rank_said = rank_said  # by the name of the file: the rank of those that name none
        self._rows: list[dict[str, Any]] = []  # after those of `_frames`
        self._frames: list[pl.DataFrame] = []
        self.num_waiting = 0

    def add(self, dense: Sequence[pl.DataFrame], careful: list[dict[str, Any]], first: int) -> None:
        """The steps of a block, read in either way; `first` is the number of its first line."""
        import polars as pl

        self.num_waiting += len(careful) + sum(rows.height for rows in dense)
        if not dense:
            self._rows += careful
            return
        self._flush()
        parts = [rows.select("item", "place", *PROGRESS.schema, *BESIDES) for rows in dense]
        if careful:
            places = [int(row["record"][1:]) - first for row in careful]
            order = pl.DataFrame({"item": range(len(careful)), "place": places}, schema={"item": pl.Int64, "place": pl.Int64})
            parts.append(order.hstack(_frame(careful)))
        rows = pl.concat(parts).sort("place", "item") if len(parts) > 1 else parts[0]
        self._frames.append(rows.drop("item", "place"))

    def take(self) -> Iterator[tuple[Table, pl.DataFrame]]:
        """All rows that wait. An iteration is the whole job's, whoever prints it: its row names no rank."""
        import polars as pl

        self._flush()
        told = pl.concat([_frame(()), *self._frames])
        self._frames, self.num_waiting = [], 0
        frame = told.select(*PROGRESS.schema)
        yield PROGRESS, frame.with_columns(pl.col("rank").fill_null(self._rank_said)) if self._rank_said is not None else frame
        timed = told.filter(pl.col("is_iteration") & pl.col("step").is_not_null() & pl.col("logged_step_s").is_not_null())
        if timed.height:
            columns = {name: timed[name] for name in ("record", "host", "step")}
            yield _STEPS, _STEPS.frame({**columns, "step_s": timed["logged_step_s"]}, height=timed.height)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._frames.append(_frame(rows))


def _frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    import polars as pl

    names = sorted({name for row in rows for name in row} - set(BESIDES))
    besides = [pl.Series(name, [row.get(name) for row in rows], dtype=_STEPS.schema.get(name, pl.Boolean())) for name in BESIDES]
    return PROGRESS.frame({name: [row.get(name) for row in rows] for name in names}).hstack(besides)
