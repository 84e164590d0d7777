"""The lines of a block that fit shapes known from other lines of the file: many at once, by columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectors._log_shape import ENGINE, Hear, Shape, learn

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Alike", "Lines", "Shapes"]

MIN_ALIKE = 150  # lines without a shape from which on learning one pays: it costs about that many careful readings
MIN_FITTING = 16  # lines from which on fitting a shape pays
MAX_SHAPES = 64  # of a file, of lines that tell something and of those that do not; the least used or oldest one is forgotten
MAX_TRIES = 6  # lines of a block of which a shape is learnt
MAX_IN_VAIN = 60  # lines of which a shape was learnt, or not, that fits few others: such a file is read carefully from then on


@dataclass(frozen=True)
class Lines:
    """The lines of a block; place 0 is the line of number `first`."""

    texts: Sequence[str]
    first: int
    has_returns: bool  # some lines are written over, as progress bars do

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
            .collect(engine=ENGINE)
        )


@dataclass(frozen=True)
class Alike:
    """The lines of one shape in a block, as `Shape.read` gives them."""

    shape: Shape
    rows: pl.DataFrame


@dataclass
class Shapes:
    """The shapes learnt of a file so far."""

    hear: Hear
    _shapes: dict[str, Shape] = field(default_factory=dict)  # of lines that tell something, by their pattern
    _quiet: list[str] = field(default_factory=list)  # patterns of lines that tell nothing
    _hits: Counter[str] = field(default_factory=Counter)
    _tries_left: int = MAX_IN_VAIN

    def find(self, block: Lines, held: Sequence[int], *, tasks_are_ranks: bool) -> tuple[list[Alike], list[int]]:
        """The held lines whose shape is known or can be learnt, and the places of those that tell nothing.

        A line of several pieces is found whole or not at all.
        """

        if len(held) < MIN_FITTING or (len(held) < MIN_ALIKE and not self._hits):
            return [], []
        items = block.items(held)
        num_items = items.height
        found: list[Alike] = []
        quiet: list[pl.Series] = []

        def fit(shape: Shape, items: pl.DataFrame) -> pl.DataFrame:
            """Adds what fits to `found`; gives the items left."""
            if items.height < MIN_FITTING:
                return items
            rows = shape.read(items, block.first, tasks_are_ranks=tasks_are_ranks)
            fits = rows["fits"].fill_null(value=False)
            if num := int(fits.sum()):
                self._hits[shape.regex] += num
                found.append(Alike(shape, rows if num == rows.height else rows.filter(fits)))
            return items.clear() if num == rows.height else items.filter(~fits).rechunk() if num else items

        def silence(patterns: Sequence[str], items: pl.DataFrame) -> pl.DataFrame:
            """Adds what fits one of the patterns to `quiet`; gives the items left."""
            if items.height < MIN_FITTING or not patterns:
                return items
            fits = items["text"].str.contains(f"^(?:{'|'.join(patterns)})$")
            quiet.append(items["place"].filter(fits))
            return items.filter(~fits).rechunk()

        for regex in sorted(self._shapes, key=lambda regex: -self._hits[regex]):
            items = fit(self._shapes[regex], items)
        items = silence(self._quiet, items)
        for at in range(MAX_TRIES):
            if items.height < MIN_ALIKE or self._tries_left <= 0:
                break
            num_before = items.height
            shape = learn(items["text"][num_before * (2 * at + 1) // (2 * MAX_TRIES)], self.hear)
            if shape is not None and shape.tells_nothing and shape.regex not in self._hits:
                self._quiet = [*self._quiet[-MAX_SHAPES:], shape.regex]
                items = silence([shape.regex], items)
            elif shape is not None and shape.regex not in self._hits:
                self._shapes[shape.regex] = shape
                items = fit(shape, items)
            self._tries_left += 1 if num_before - items.height >= MIN_ALIKE else -1
        while len(self._shapes) > MAX_SHAPES:
            del self._shapes[min(self._shapes, key=lambda regex: self._hits[regex])]
        if items.height and num_items > len(held):
            found = [Alike(alike.shape, alike.rows.join(items, on="place", how="anti", maintain_order="left")) for alike in found]
        places = {place for some in quiet for place in some}
        return found, sorted(places - set(items["place"]) if num_items > len(held) else places)
