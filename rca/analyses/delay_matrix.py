"""Which rank's sending or receiving side, or which connection, is slow, by how long transfers between pairs of ranks take?

1. A matrix of source and destination: the usual time of the transfers between two ranks, over that of transfers of the same kind and size between
   others (rca/analyses/_transfer_pairs.py). Waiting for a peer is no part of it.
2. A cell is hot that is HOT times as long and stands out from the scatter of all cells; so must the faster quarter of its own transfers, or a few
   slow ones made it so.
3. Nearly all cells of a row hot: the source's sending side. Of a column: the destination's receiving side. A single cell: that connection, and
   either end or what lies between them may be it, so nobody is accused. A rank whose row has one cell only has but that one connection.
4. A table of transfers in which too few are of one kind and size to be compared is told as read, and accuses nobody.
5. Much of the matrix hot is the fabric, or ranks of another kind: nobody is accused.

After C4D (HPCA'25): hot cell, hot row, hot column.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import polars as pl

from rca.analyses._layout import hosts
from rca.analyses._transfer_pairs import READS, Cell, cells, ranks_in
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("evidence",)  # any of the tables of times will do
USES = tuple(sorted({"transfers", "collectives", "nccl_calls", "ops", *READS} - {*NEEDS}))
SIGNS = {
    "hot_source": Sign("transfers", ("network_fault", "nvlink_fault", "gpu_fault", "unknown")),
    "hot_destination": Sign("transfers", ("network_fault", "nvlink_fault", "gpu_fault", "unknown")),
    "hot_connection": Sign("transfers", ("network_fault", "unknown")),
    "hot_link_inside": Sign("transfers", ("nvlink_fault", "unknown")),
    "hot_everywhere": Sign("mention", (), is_note=True),
    "too_few": Sign("mention", ()),
}

HOT: Final = 1.5  # times the transfers of others: a port or lane of two that is lost doubles them
LOW: Final = 1.2  # the same for the faster quarter of a pair's own transfers
SCATTER: Final = 5.0  # widths of the scatter of all cells that a hot one stands out
MIN_SCATTER: Final = 0.05  # of the logarithm: cells repeat no better
MOST: Final = 0.8  # of a row or column that must be hot
MIN_LINE: Final = 2  # cells of a row or column, or it is but a connection
MANY: Final = 1 / 3  # of the cells hot at once is no longer an exception
MAX_CITES: Final = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding per slow side or connection. NotEnoughEvidence where too few pairs were timed."""
    matrix, left_out = cells(case)
    if not matrix:
        return _too_few(case, "no transfers of one kind between at least four pairs of ranks are timed")
    hot = _hot(matrix)
    if not hot and left_out:
        return _too_few(
            case, f"{left_out} of {left_out + len(matrix)} pairs of ranks have no three others of their kind to be compared with"
        )
    if not hot:
        return ()
    if len(hot) > max(1, MANY * len(matrix)):
        says = f"{len(hot)} of {len(matrix)} timed pairs take longer than the rest: their links are of another kind, or the fabric is slow"
        return [Finding("delay_matrix", "hot_everywhere", says, scope="all", cites=tuple(cell.cite for cell in _worst(hot)))]
    where = hosts(case)
    found: list[Finding] = []
    left = list(hot)
    for sign, side in (("hot_source", "src"), ("hot_destination", "dst")):
        lines = _lines(left, matrix, side)
        found += _sides(sign, lines, left, where)
        left = [cell for cell in left if getattr(cell, side) not in lines]
    ends = {(min(cell.src, cell.dst), max(cell.src, cell.dst)): cell for cell in reversed(_worst(left))}  # of both directions the worse
    return [*found, *(_connection(cell, [c for c in left if {c.src, c.dst} == {*pair}], where) for pair, cell in sorted(ends.items()))]


def _too_few(case: Tables, why: str) -> Sequence[Finding]:
    """What is said of a table of transfers that was read; NotEnoughEvidence where there is none: other sources time transfers beside."""
    told = case.table("transfers").filter(pl.all_horizontal(pl.col("src_rank", "dst_rank", "transfer_s").is_not_null()))
    rows = told.select("src_rank", "dst_rank", "transfer_s", "evidence_id", "record").collect()
    if not rows.height:
        raise NotEnoughEvidence(why)
    ranks = set(rows["src_rank"]) | set(rows["dst_rank"])
    says = f"{rows.height:,} transfers between {len(ranks)} rank{'s' if len(ranks) > 1 else ''} were read, but {why}"
    src, dst, seconds, id_, record = rows.row(0)
    cite = Cite("transfers", id_, "", record, f"{src} -> {dst}: {seconds:.3g} s")
    return [Finding("delay_matrix", "too_few", says, scope="transfers", numbers={"transfers": rows.height}, cites=(cite,))]


def _hot(matrix: Sequence[Cell]) -> list[Cell]:
    """Cells that are slow for good and stand out from the scatter of the others."""
    logs = sorted(math.log(cell.ratio) for cell in matrix)
    middle = median(logs)
    scatter = max(MIN_SCATTER, 1.4826 * median(abs(log - middle) for log in logs))
    return [
        cell
        for cell in matrix
        if cell.ratio >= HOT and cell.low >= LOW and math.log(cell.ratio) - middle >= SCATTER * scatter
    ]  # fmt: skip


def _lines(hot: Sequence[Cell], matrix: Sequence[Cell], side: str) -> dict[int, list[Cell]]:
    """Rows ("src") or columns ("dst") that are hot nearly throughout: rank -> its hot cells."""
    everything: dict[int, int] = defaultdict(int)
    found: dict[int, list[Cell]] = defaultdict(list)
    for cell in matrix:
        everything[getattr(cell, side)] += 1
    for cell in hot:
        found[getattr(cell, side)].append(cell)
    return {rank: line for rank, line in sorted(found.items()) if len(line) >= max(MIN_LINE, MOST * everything[rank])}


def _sides(sign: str, lines: Mapping[int, Sequence[Cell]], hot: Sequence[Cell], where: Mapping[int, str]) -> Iterator[Finding]:
    """One finding per host whose ranks are hot; per rank where the host is not known."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in lines:
        by_host[where.get(rank) or f"rank {rank}"].append(rank)
    does = "sends" if sign == "hot_source" else "receives"
    for ranks in by_host.values():
        line = [cell for rank in ranks for cell in lines[rank]]
        on = tuple(sorted({where[rank] for rank in ranks if rank in where}))
        ratio = median(cell.ratio for cell in line)
        far = sorted({cell.dst if sign == "hot_source" else cell.src for cell in line})
        says = (
            f"{ranks_text(ranks)}{' on ' + on[0] if on else ''} {does if len(ranks) == 1 else does[:-1]} {ratio:.2f} times as long as others do, "
            f"in {len(line)} of the pairs timed: {'to' if sign == 'hot_source' else 'from'} {ranks_text(far)}"
        )
        numbers = {"ratio": round(ratio, 3), "pairs": len(line)}
        cites = tuple(cell.cite for cell in _worst(line))
        explains = tuple(sorted(set(ranks_in(line)) - set(ranks)))
        yield Finding("delay_matrix", sign, says, ranks=tuple(ranks), hosts=on, numbers=numbers, explains=explains, cites=cites)


def _connection(cell: Cell, both: Sequence[Cell], where: Mapping[int, str]) -> Finding:
    inside = cell.src in where and where.get(cell.src) == where.get(cell.dst)
    on = " and ".join(dict.fromkeys(where[rank] for rank in (cell.src, cell.dst) if rank in where))
    back = " and back" if len(both) > 1 else ""
    says = (
        f"from rank {cell.src} to rank {cell.dst}{back}{' on ' + on if on else ''} a transfer takes {cell.seconds:.3g} s, {cell.ratio:.2f} times as "
        "long as between others: either end, or what lies between"
    )
    numbers = {"ratio": round(cell.ratio, 3), "candidates": sorted((cell.src, cell.dst))}
    sign = "hot_link_inside" if inside else "hot_connection"
    return Finding("delay_matrix", sign, says, scope=f"{sorted((cell.src, cell.dst))}", numbers=numbers, cites=tuple(c.cite for c in both))


def _worst(some: Collection[Cell]) -> list[Cell]:
    return sorted(some, key=lambda cell: (-cell.ratio, cell.src, cell.dst))[:MAX_CITES]
