"""Tables of steps: CSV (commas, semicolons, tabs, bars) with a column of steps and times, of all ranks or of none.

    step,rank,stage,compute            one row per rank and step
    step,iteration_time_s,lm_loss      one row per step: of nobody in particular
    step,train_loss                    one metric a file, as DeepSpeed's CSV monitor writes (its steps are often samples)
    src_rank,dst_rank,transfer_s,bytes one row per transfer between two ranks: of a delay matrix

Rows: `steps` of tables with times, `progress` of the loss and what else a trainer prints of a step of the whole job, `rank_progress` of losses
beside a rank. Exactly one row per row of the file. A table of operations (rank, step, op, duration) gives `ops`, and sums of them as `steps`; one of
transfers gives `transfers`.
Headings vary; the unit is the ending of a heading (ns, us, ms, s), else that of the step's time, else seconds. Empty cells and NaN are null.
Flat memory.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from collectors._lines import blocks
from collectors._op_table import OpLayout, Sums, op_layout
from collectors._step_table import Layout, frames, layout, wholes
from collectors._transfer_table import TransferLayout, transfer_frames, transfer_layout
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["EMITS", "IS_ALONE", "claims", "read"]

EMITS = ("steps", "progress", "rank_progress", "ops", "transfers")
IS_ALONE = True

SEPARATORS: Final = "\t;,|"
MAX_HEADING: Final = 300  # characters of one
MAX_COLUMNS: Final = 2000
SNIFF_ROWS: Final = 5
MAX_TOLD: Final = 20  # rows of a block that are told one by one


def claims(name: str, head: bytes) -> bool:
    """A first line of headings, one of them of steps and one of times or of a known metric; and rows below with as many cells and a whole step."""
    lines = [line for line in head.split(b"\n", 50) if line.strip() and not line.startswith(b"#")][: SNIFF_ROWS + 1]
    if len(lines) < 2 or b"\0" in lines[0]:
        return False
    found = _headings(lines[0])
    if found is None:
        return False
    separator, about, width = found
    for line in lines[1:-1] or lines[1:]:
        cells = _cells(line.decode("utf-8", "replace"), separator)
        if cells is None or len(cells) != width or wholes(pl.Series([cells[about.step]], dtype=pl.String))[0] is None:
            return False
    return True


def _headings(line: bytes) -> tuple[str, Layout | OpLayout | TransferLayout, int] | None:
    """The separator, what the columns are, and how many there are; None where the line is no such head."""
    if len(line) > MAX_HEADING * MAX_COLUMNS:
        return None
    text = line.decode("utf-8-sig", "replace").rstrip("\r")
    separator = max(SEPARATORS, key=text.count)
    names = _cells(text, separator)
    if names is None or not 2 <= len(names) <= MAX_COLUMNS or any(len(name) > MAX_HEADING for name in names):
        return None
    about = transfer_layout(names) or layout(names) or op_layout(names)
    return (separator, about, len(names)) if about is not None else None


def _cells(line: str, separator: str) -> list[str] | None:
    if '"' not in line:
        return line.rstrip("\r").split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows in the order of the lines, in batches; torn lines and those without a step are skipped. Raises EvidenceError without any row."""
    head: tuple[str, Layout | OpLayout | TransferLayout, int] | None = None
    sums: Sums | None = None
    num_rows = 0
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        lines, first = block.lines, block.first
        if head is None:
            at = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(b"#")), None)
            if at is None:
                continue
            head = _headings(lines[at])
            if head is None:
                raise EvidenceError(
                    source.path, f"L{first + at}", "no headings with a step and a time or metric, or with two ranks and a time"
                )
            sums = Sums(head[1]) if isinstance(head[1], OpLayout) else None
            lines, first = lines[at + 1 :], first + at + 1
        if not lines:
            continue
        for item in _rows(lines, first, *head, sums, source.rank_said):
            if not isinstance(item, Skip):
                num_rows += item[1].height
            yield item
    if not num_rows:
        raise EvidenceError(source.path, None, "no row with a step (or source rank) in it")
    if sums is not None:
        yield from sums.steps()


def _rows(
    lines: Sequence[bytes],
    first: int,
    separator: str,
    about: Layout | OpLayout | TransferLayout,
    width: int,
    sums: Sums | None,
    rank_said: int | None,
) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    texts = pl.Series("line", b"\n".join(lines).decode("utf-8", "replace").split("\n"), dtype=pl.String)
    table = pl.DataFrame({"line": texts, "record": pl.Series(range(first, first + len(texts)), dtype=pl.Int64)})
    table = table.filter((pl.col("line").str.strip_chars() != "") & ~pl.col("line").str.starts_with("#"))
    if table["line"].str.contains('"', literal=True).any():
        split = pl.Series([_cells(line, separator) or [] for line in table["line"]], dtype=pl.List(pl.String))
    else:
        split = table["line"].str.strip_chars_end("\r").str.split(separator)
    table = table.select("record", split.alias("cells")).with_columns(pl.col("cells").list.len().alias("n"))
    used = {number: table["cells"].list.get(number, null_on_oob=True) for number in about.used}
    if separator == ";":  # decimal commas go with semicolons
        text = about.host if isinstance(about, Layout) else about.op
        used = {n: s if n == text else s.str.replace(r"^(\s*-?[0-9]*),([0-9]+\s*)$", "${1}.${2}") for n, s in used.items()}
    known = wholes(used[about.step]).is_not_null() & (table["n"] == width)
    bad = table.filter(~known)
    key = "source rank" if isinstance(about, TransferLayout) else "step"
    for record, n in bad.select("record", "n").head(MAX_TOLD).iter_rows():
        why = f"{n} cells under {width} headings; a last line may be torn" if n != width else f"no whole number in the column of {key}s"
        yield Skip(f"L{record}", why)
    if bad.height > MAX_TOLD:
        yield Skip(f"L{bad['record'][MAX_TOLD]}", f"{bad.height - MAX_TOLD} more rows without a {key} or of another width")
    table = table.filter(known)
    if table.height:
        records = "L" + table["record"].cast(pl.String)
        cells = {n: s.filter(known) for n, s in used.items()}
        if isinstance(about, Layout):
            yield from frames(about, cells, records, rank_said)
        elif isinstance(about, TransferLayout):
            yield from transfer_frames(about, cells, records)
        elif sums is not None:
            yield from sums.frames(cells, records)
