"""The last collectives of every rank, compared by content: the same call as far as the members of a group must make it the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from rca.analyses._wait_graph import group_kind, group_name
from rca.analyses._waits import is_done
from rca.types import Cite, Tables

__all__ = [
    "SAME_SHAPES",
    "Calls",
    "OddCall",
    "RecordedCall",
    "calls_near",
    "difference",
    "group_kind_of",
    "last_calls",
    "recorded",
    "shift",
]

SAME_SHAPES = (  # operations whose members must all call with the same sizes; others (all_to_all) differ by right
    "all_reduce", "allreduce_coalesced", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "_all_gather_base",
    "reduce_scatter", "_reduce_scatter_base",
)  # fmt: skip
LOOK_ON = 4  # calls that tell a shift by one from two swapped: some programs alternate between two


@dataclass(frozen=True)
class RecordedCall:
    """One collective of a rank, as recorded."""

    rank: int
    group: str
    seq: int
    op: str
    sizes: str
    dtypes: str
    order: int
    content: int  # equal numbers: the same call as far as it must be the same
    evidence_id: str
    record: str

    @property
    def kind(self) -> str:
        """The kind of its group."""
        return group_kind(self.group)

    def cite(self) -> Cite:
        """The row behind it."""
        text = f"rank {self.rank}: {self.op} #{self.seq} on {group_name(self.group)} {self.sizes} {self.dtypes}"
        return Cite("collectives", self.evidence_id, "", self.record, text)


@dataclass(frozen=True)
class OddCall:
    """A call that parts from what peers made there: the call, what was due by one of them, how many made that, and who they are."""

    sign: str  # odd_op, odd_size, odd_dtype, skipped_call, extra_call
    call: RecordedCall
    due: RecordedCall
    votes: int
    who: str = "sister ranks"
    peers: tuple[int, ...] = ()  # those of them that are ranks of a list


@dataclass(frozen=True)
class Calls:
    """Collectives of every rank: numbers only; the words of a call are fetched when a finding needs them."""

    rows: pl.DataFrame  # rank, group_id, collective_seq_id, record_id, content, open; sorted by rank and order of recording
    case: Tables
    where: str | None

    def call(self, rank: int, order: int) -> RecordedCall:
        """One call, by its place in the rank's recording."""
        return self._calls((pl.col("rank") == rank) & (pl.col("record_id") == order))[0]

    def _calls(self, which: pl.Expr) -> list[RecordedCall]:
        texts = ("op", "sizes", "dtypes", "evidence_id", "record")
        words = self.case.table("collectives", where=self.where).filter(which).select("rank", "record_id", *texts).collect()
        rows = self.rows.filter(which).join(words, on=["rank", "record_id"], how="left", maintain_order="left")
        return [
            RecordedCall(r["rank"], r["group_id"], r["collective_seq_id"], r["op"] or "?", r["sizes"] or "", r["dtypes"] or "", r["record_id"],
                  r["content"], r["evidence_id"], r["record"])
            for r in rows.iter_rows(named=True)
        ]  # fmt: skip

    def at(self, group: str, seq: int) -> list[RecordedCall]:
        """What every member called there."""
        return self._calls((pl.col("group_id") == group) & (pl.col("collective_seq_id") == seq))

    def onward(self, rank: int, group: str, seq: int) -> list[int]:
        """The contents of one rank's calls of a group from this number on, as far as they follow each other without a gap."""
        which = (pl.col("rank") == rank) & (pl.col("group_id") == group) & pl.col("collective_seq_id").is_between(seq, seq + LOOK_ON)
        rows = self.rows.filter(which).select("collective_seq_id", "content").rows()
        return [content for place, (number, content) in enumerate(rows) if number == seq + place]


def last_calls(case: Tables, torn: frozenset[int]) -> Calls:
    """The last collectives of all ranks but the torn ones, whose last calls are missing."""
    return _load(case, "is_tail", ~pl.col("rank").is_in(list(torn)))


def calls_near(case: Tables, kind: str, seq: int, reach: int) -> Calls:
    """What all groups of a kind called at a number and up to `reach` calls before and after it."""
    return _load(case, None, (group_kind_of() == kind) & pl.col("collective_seq_id").is_between(seq - reach, seq + reach))


def group_kind_of() -> pl.Expr:
    """`group_kind` of each row."""
    return pl.col("group_id").str.extract(r"^([^:?]*)")


def _load(case: Tables, where: str | None, which: pl.Expr) -> Calls:
    same = pl.col("op").is_in(SAME_SHAPES)
    content = pl.struct("op", pl.when(same).then("sizes"), pl.when(same).then("dtypes"))
    rows = (
        case.table("collectives", where=where)
        .filter(pl.col("rank").is_not_null() & pl.col("record_id").is_not_null() & pl.col("collective_seq_id").is_not_null())
        .filter(~pl.col("is_p2p").fill_null(value=False) & (pl.col("op") != "coalesced").fill_null(value=True))
        .filter(which)
        .select(
            "rank",
            pl.col("group_id").fill_null("?"),
            "collective_seq_id",
            "record_id",
            content.rank("dense").cast(pl.Int64).alias("content"),
            (~is_done().fill_null(value=False)).alias("open"),
        )
        .sort("rank", "record_id")
        .collect()
    )
    return Calls(rows, case, where)


def recorded(case: Tables, rank: int, order: int) -> RecordedCall:
    """A call by its number of recording, wherever in the record it stands."""
    row = case.table("collectives").filter((pl.col("rank") == rank) & (pl.col("record_id") == order)).collect().row(0, named=True)
    seq = row["p2p_seq_id"] if row["is_p2p"] else row["collective_seq_id"]
    return RecordedCall(
        rank, row["group_id"] or "?", seq if seq is not None else -1, row["op"] or "?", row["sizes"] or "", row["dtypes"] or "", order, 0,
        row["evidence_id"], row["record"],
    )  # fmt: skip


def difference(call: RecordedCall, due: RecordedCall) -> str:
    """The sign for two calls that are not the same."""
    return "odd_op" if call.op != due.op else "odd_size" if call.sizes != due.sizes else "odd_dtype"


def shift(own: Sequence[int], due: Sequence[int]) -> str | None:
    """By contents, from the first that differs on, of a rank and of a peer: skipped when its calls are those that come next for the peer, extra
    when its next calls are those that were due, else None: it called something else, or swapped two."""
    if len(due) > 1 and due[0] != due[1] and _alike(own, due[1:]):
        return "skipped_call"
    return "extra_call" if _alike(own[1:], due) else None


def _alike(one: Sequence[int], other: Sequence[int]) -> bool:
    shared = min(len(one), len(other), LOOK_ON)
    return shared > 0 and tuple(one[:shared]) == tuple(other[:shared])
