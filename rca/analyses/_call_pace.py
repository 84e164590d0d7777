"""How long the iterations of a job took, by the recorded calls of a few of its ranks; and what each call is called in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._call_period import Iteration, Period, iterations, period
from rca.types import Cite, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Pace", "group_kinds", "paces"]

SAMPLED: Final = 4  # ranks that are looked at: spread over the job, so that each pipeline stage of four has one
UNSIZED: Final = r"all_?to_?all|gather_?v|scatter_?v|coalesced"  # sizes that change from step to step by right
MIN_ITERATIONS: Final = 4
_COLUMNS: Final = ("rank", "record_id", "group_id", "op", "sizes", "collective_seq_id", "created_at", "evidence_id", "record")


@dataclass(frozen=True)
class Pace:
    """Iterations as one rank recorded them."""

    rank: int
    of: Period
    iterations: tuple[Iteration, ...]
    calls: pl.DataFrame  # of that rank, in order: _COLUMNS and kind

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The time of each iteration, s."""
        import numpy as np

        return np.array([one.seconds for one in self.iterations])

    def cite(self, number: int) -> Cite:
        """The call that begins an iteration."""
        row = self.calls.row(self.iterations[number].place, named=True)
        text = f"rank {self.rank}: {row['op']} #{row['collective_seq_id']} of {row['group_id']} at {row['created_at']:%H:%M:%S.%f} UTC"
        return Cite("collectives", row["evidence_id"], "", row["record"], text)

    def began(self, number: int) -> str:
        """When an iteration began, ISO 8601 in UTC, by the clock of this rank."""
        return str(self.calls["created_at"][self.iterations[number].place].isoformat())

    @property
    def per_kind(self) -> dict[str, int]:
        """Kind of group -> its calls in an iteration."""
        first = self.iterations[len(self.iterations) // 2].place
        places = [place for place in self.of.kept.tolist() if place >= first][: self.of.length]
        counts = self.calls[places].group_by("kind").len().drop_nulls().sort("kind")
        return dict(counts.iter_rows())


def group_kinds(case: Tables) -> pl.DataFrame:
    """group_id, kind: one row per group."""
    groups = case.table("groups").filter(pl.col("group_id").is_not_null()).select("group_id", "kind").unique().collect()
    return groups.sort("group_id", "kind", nulls_last=True).unique("group_id", keep="first", maintain_order=True)


def paces(case: Tables) -> list[Pace]:
    """Of up to SAMPLED ranks, those whose order of calls repeats; the one with most iterations first. Made once by `case.derive`."""
    told = case.table("collectives").filter(pl.col("rank").is_not_null() & pl.col("created_at").is_not_null())
    ranks = told.select(pl.col("rank").unique().sort()).collect()["rank"].to_list()
    chosen = sorted({ranks[i * len(ranks) // SAMPLED] for i in range(SAMPLED)}) if ranks else []
    rows = told.filter(pl.col("rank").is_in(chosen)).select(_COLUMNS).collect().join(group_kinds(case), on="group_id", how="left")
    sized = pl.when(pl.col("op").str.contains(UNSIZED)).then(None).otherwise("sizes").alias("sizes")
    found = []
    for rank in chosen:
        calls = rows.filter(pl.col("rank") == rank).sort("created_at", "record_id", "record", nulls_last=True)
        at = calls["created_at"].dt.epoch("us").to_numpy() / 1e6
        for id_ in (("kind", "op", sized), ("kind", "op")):  # batches of other lengths change the sizes
            of = period(calls.select(pl.struct(id_).rank("dense").cast(pl.Int64)).to_series().to_numpy())
            took = iterations(at, of) if of is not None else []
            if of is not None and len(took) >= MIN_ITERATIONS:
                found.append(Pace(rank, of, tuple(took), calls))
                break
    return sorted(found, key=lambda one: (-len(one.iterations), one.rank))
