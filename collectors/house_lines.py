"""Lines of a trainer's own kind, read with the adapters that a site writes (lines.yaml, docs/site.md) and those that ship.

An adapter is a regular expression with named groups: rank, step, times, loss, or phases of a step with their times. Rows: `steps` of lines with
times, `rank_progress` of losses beside a rank, `progress` of those without. Where a line holds one phase, the lines of a step of a rank are one
row; else each line is. Flat memory but for those steps. The expressions are run by Rust's regex crate: no line can hold them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from collectors._lines import blocks, is_text
from collectors._step_table import Layout, frames, wholes
from rca.catalogues import line_adapters
from rca.catalogues import site as site_of
from rca.errors import EvidenceError
from rca.line_adapters import COLUMNS, UNITS, Adapter
from rca.types import Skip, Source

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("steps", "progress", "rank_progress")

MAX_LINE: Final = 16384  # characters of a line that are looked at
SNIFF_BYTES: Final = 1 << 16
MAX_WAITING: Final = 1_000_000  # phases that wait for the end of the file
MAX_PHASES: Final = 200  # names of phases that are kept of a file
MAX_TOLD: Final = 8  # that are told
_ESCAPES: Final = r"\x1b\[[0-9;]{0,20}[A-Za-z]"
_METRICS: Final = ("loss", "grad_norm", "learning_rate", "epoch")


def claims(name: str, head: bytes) -> bool:
    """Text of which a line fits one of the adapters."""
    if not head or b"\0" in head[:1024] or not is_text(head):
        return False
    lines = _lines(head[:SNIFF_BYTES].splitlines())
    return any(lines.str.contains(adapter.line).any() for adapter in line_adapters())


def _lines(lines: Sequence[bytes]) -> pl.Series:
    texts = pl.Series([line[: 4 * MAX_LINE].decode("utf-8", "replace")[:MAX_LINE] for line in lines], dtype=pl.String)
    return texts.str.replace_all(_ESCAPES, "")


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows in the order of the lines; steps that are put together from several lines last. Raises EvidenceError without any row."""
    waiting: dict[str, list[pl.DataFrame]] = {}
    seen: dict[str, set[str]] = {}  # phases that the lines of each adapter hold
    num_rows = 0
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        lines = _lines(block.lines)
        left = pl.DataFrame({"line": lines, "place": pl.Series(range(block.first, block.first + len(lines)), dtype=pl.Int64)})
        for adapter in line_adapters():
            fits = left["line"].str.contains(adapter.line)
            mine, left = left.filter(fits), left.filter(~fits)
            if not mine.height:
                continue
            num_rows += mine.height
            rows = _rows(adapter, mine, seen.setdefault(adapter.name, set()))
            if not adapter.is_long:
                yield from _frames(adapter, rows, source)
                continue
            kept = waiting.setdefault(adapter.name, [])
            kept.append(rows)
            if sum(frame.height for frame in kept) > MAX_WAITING:
                yield from _frames(adapter, _together(kept), source)
                kept.clear()
    for adapter in line_adapters():
        if kept := waiting.get(adapter.name, []):
            yield from _frames(adapter, _together(kept), source)
    own = site_of()
    for adapter in own.adapters if own is not None else ():
        if adapter.columns and adapter.name in seen and (why := _strange_phases(adapter, seen[adapter.name])):
            yield Skip(None, why)
    if not num_rows:
        raise EvidenceError(source.path, None, "no line fits an adapter of lines.yaml")


def _strange_phases(adapter: Adapter, seen: set[str]) -> str:
    """What `columns` of a site's adapter and the lines do not share, "" where they agree: a misspelt phase leaves its time out without a word."""
    missing, unnamed = sorted(set(adapter.columns) - seen), sorted(seen - set(adapter.columns))
    parts = [f"no line holds a phase {_some(missing)}, which its `columns` name"] if missing else []
    parts += [f"left out, as its `columns` do not name them: phases {_some(unnamed)}"] if unnamed else []
    return f"adapter {adapter.name} of this site's lines.yaml: {'; '.join(parts)}" if parts else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else ""
    return ", ".join(name[:40] for name in names[:MAX_TOLD]) + more


def _note(seen: set[str], phases: pl.Series) -> None:
    if len(seen) < MAX_PHASES:
        seen.update(phases.drop_nulls().unique().sort().head(MAX_PHASES))


def _rows(adapter: Adapter, mine: pl.DataFrame, seen: set[str]) -> pl.DataFrame:
    """The groups of each line as texts, its times in s by column, and where it stands. Phases that it holds are added to `seen`."""
    groups = adapter.groups
    told = mine["line"].str.extract_groups(adapter.line).struct.unnest()
    rows = told.with_columns(mine["place"])
    per: dict[str, list[pl.Expr]] = {column: [] for column in COLUMNS}
    for column in COLUMNS:
        per[column] += [_seconds(f"{column[:-2]}_{unit}", unit) for unit in UNITS if f"{column[:-2]}_{unit}" in groups]
    if adapter.is_long:
        _note(seen, rows["phase"])
        unit = next(unit for unit in UNITS if unit in groups)
        for phase, column in sorted(adapter.columns.items()):
            per[column].append(pl.when(pl.col("phase") == phase).then(_seconds(unit, unit)))
    rows = rows.with_columns(*(pl.coalesce(parts).alias(f"={column}") for column, parts in per.items() if parts))
    return rows.join(_phases(adapter, mine, seen), on="place", how="left", maintain_order="left") if adapter.phases else rows


def _seconds(group: str, unit: str) -> pl.Expr:
    value = pl.col(group).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value / UNITS[unit])


def _phases(adapter: Adapter, mine: pl.DataFrame, seen: set[str]) -> pl.DataFrame:
    """place -> times by column, of lines that hold several phases; a phase that comes twice in a line is added up."""
    pieces = mine.select("place", pl.col("line").str.extract_all(adapter.phases).alias("piece")).explode("piece").drop_nulls("piece")
    parts = pieces.with_columns(pieces["piece"].str.extract_groups(adapter.phases).alias("told")).unnest("told")
    _note(seen, parts["phase"])
    unit = next(unit for unit in UNITS if unit in parts.columns)
    wanted = sorted(set(adapter.columns.values()))
    sums = []
    for column in wanted:
        own = pl.col("phase").is_in([phase for phase, of in adapter.columns.items() if of == column])
        sums.append(
            pl.when((own & _seconds(unit, unit).is_not_null()).any()).then(_seconds(unit, unit).filter(own).sum()).alias(f"={column}")
        )
    return parts.group_by("place", maintain_order=True).agg(sums)


def _together(kept: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One row per step of a rank, with the place of its first line. A step that is lower than the one before it begins a new run."""
    rows = pl.concat(kept).with_columns(pl.Series("=step", wholes(pl.concat(kept)["step"])))
    by = [name for name in ("rank",) if name in rows.columns]
    back = (pl.col("=step") < pl.col("=step").shift(1)).fill_null(value=False).cum_sum()
    rows = rows.with_columns((back.over(by) if by else back).alias("=run"))
    times = [name for name in rows.columns if name.startswith("=") and name[1:] in COLUMNS]
    others = [name for name in rows.columns if name not in (*times, *by, "=step", "=run")]
    summed = [pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in times]
    return rows.group_by(*by, "=run", "=step", maintain_order=True).agg(pl.col(others).drop_nulls().first(), *summed)


def _frames(adapter: Adapter, rows: pl.DataFrame, source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    known = wholes(rows["step"]).is_not_null()
    if not known.all():
        yield Skip(f"L{rows.filter(~known)['place'][0]}", f"{int((~known).sum())} lines of {adapter.name} whose step is no number")
        rows = rows.filter(known)
    if not rows.height:
        return
    number = {name: place for place, name in enumerate(rows.columns)}
    about = Layout(
        step=number["step"],
        rank=number.get("rank"),
        stage=number.get("stage"),
        host=number.get("host"),
        start=(number["at"], None) if "at" in number and number.get("rank") is not None else None,
        stamp=number.get("at"),
        times={column: ((number[f"={column}"], 1),) for column in COLUMNS if f"={column}" in number},
        metrics=_metrics(number),
    )
    cells = {place: rows[name] for name, place in number.items()}
    yield from frames(about, cells, "L" + rows["place"].cast(pl.String), source.rank_said)


def _metrics(number: Mapping[str, int]) -> dict[str, tuple[int, bool]]:
    found = {name: (number[name], False) for name in _METRICS if name in number}
    return found | ({"tokens_total": (number["tokens"], False)} if "tokens" in number else {})
