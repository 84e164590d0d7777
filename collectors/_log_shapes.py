"""The steps of a block of lines that fit shapes known from other lines of the file: many lines at once, by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectors._log_progress import WORDS
from collectors._log_shape import Hear, Shape, learn

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Lines", "Shapes", "Steps"]

MIN_ALIKE = 150  # lines without a shape from which on learning one pays: it costs about that many careful readings
MIN_FITTING = 16  # lines from which on fitting a shape pays
MAX_SHAPES = 64  # of a file; the least used one is forgotten
MAX_TRIES = 6  # lines of a block of which a shape is learnt
MAX_LEARNT = 500  # of a file: one that changes its format all the time is read carefully


@dataclass(frozen=True)
class Lines:
    """The lines of a block; place 0 is the line of number `first`."""

    texts: Sequence[str]
    first: int
    has_returns: bool  # some lines are written over (progress bars), or end in the way of Windows

    def items(self, places: Sequence[int]) -> pl.DataFrame:
        """Pieces of the lines at these places, those that hold something: item (a number that grows), place and text."""
        import polars as pl

        items = pl.DataFrame(
            {"place": pl.Series(places, dtype=pl.Int64), "text": pl.Series([self.texts[place] for place in places], dtype=pl.String)}
        )
        if not self.has_returns:
            return items.with_columns(item=items["place"])
        pieces = pl.col("text").str.strip_chars_end(" \t\r").str.split("\r")
        return (
            items.lazy()
            .with_columns(pieces)
            .explode("text")
            .filter(pl.col("text") != "")
            .with_row_index("item")
            .cast({"item": pl.Int64})
            .collect()
        )


@dataclass
class Steps:
    """The steps of one shape in a block, as `Shape.read` gives them."""

    shape: Shape
    rows: pl.DataFrame


@dataclass
class Shapes:
    """The shapes learnt of a file so far."""

    hear: Hear
    _shapes: dict[str, Shape] = field(default_factory=dict)  # by their pattern
    _hits: dict[str, int] = field(default_factory=dict)
    _num_learnt: int = 0

    def find(self, block: Lines, held: Sequence[int], *, tasks_are_ranks: bool) -> list[Steps]:
        """The steps among the held lines whose shape is known or can be learnt. A line of several pieces is found whole or not at all."""
        if len(held) < MIN_FITTING or (len(held) < MIN_ALIKE and not self._shapes):
            return []
        items = block.items(held)
        num_items = items.height
        found: list[Steps] = []

        def fit(shape: Shape, items: pl.DataFrame) -> pl.DataFrame:
            """Adds what fits to `found`; gives the items left."""
            if items.height < MIN_FITTING:
                return items
            rows = shape.read(items, block.first, tasks_are_ranks=tasks_are_ranks)
            fits = rows["fits"].fill_null(value=False)
            if num := int(fits.sum()):
                self._hits[shape.regex] += num
                found.append(Steps(shape, rows if num == rows.height else rows.filter(fits)))
            return items.clear() if num == rows.height else items.filter(~fits) if num else items

        for regex in sorted(self._shapes, key=lambda regex: -self._hits[regex]):
            items = fit(self._shapes[regex], items)
        tries = iter(range(MAX_TRIES))
        while items.height >= MIN_ALIKE and self._num_learnt < MAX_LEARNT and (at := next(tries, None)) is not None:
            candidates = items["text"].filter(items["text"].str.contains_any(list(WORDS), ascii_case_insensitive=True))
            if len(candidates) < MIN_ALIKE:
                break
            self._num_learnt += 1
            shape = learn(candidates[len(candidates) * (2 * at + 1) // (2 * MAX_TRIES)], self.hear)
            if shape is not None and shape.regex not in self._shapes:
                self._shapes[shape.regex], self._hits[shape.regex] = shape, 0
                items = fit(shape, items)
        while len(self._shapes) > MAX_SHAPES:
            least = min(self._hits, key=self._hits.__getitem__)
            del self._hits[least], self._shapes[least]
        if items.height and num_items > len(held):
            for steps in found:
                steps.rows = steps.rows.join(items, on="place", how="anti", maintain_order="left")
        return found
