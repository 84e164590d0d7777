"""Writing a case out: every table as files, or as a case file; whole or not at all, and read back as evidence."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from uuid import uuid4

from apps.plain import one_line, safe_json
from rca.errors import UsageError
from rca.sources import WORKSPACE

if TYPE_CHECKING:
    import polars as pl

    from rca.case import Case

__all__ = ["FORMATS", "MANIFEST", "exported_tables", "is_export", "new_folder", "refuse_to_lose", "write_case", "write_key", "write_tables"]

FORMATS: Final = ("parquet", "csv", "jsonl", "case")
MANIFEST: Final = "manifest.json"
VERSION: Final = "rca.export/1"
KEY: Final = "rca.key/1"
_NOT_FINITE: Final = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
_FORMULA: Final = tuple("=+-@\t\r\n\uff0b\uff0d\uff1d\uff20")  # with what a spreadsheet begins to calculate, of full width too
ANONYMISED: Final = "anonymised"  # instead of the fingerprint, which is a hash of names


@contextmanager
def new_folder(out: Path, *, is_forced: bool) -> Iterator[Path]:
    """A folder to write into that becomes `out` when all is written; else nothing is left. Only an earlier export is ever replaced."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not is_forced:
            raise UsageError(f"{out}: something lies there; name another --to, or write over an earlier export with --force")
        if not is_export(out):
            raise UsageError(f"{out}: no export of a case lies there, and --force replaces nothing else")
    draft = out.with_name(f".{out.name}{WORKSPACE}{uuid4().hex}")
    old = draft.with_name(f"{draft.name}-old")
    try:
        draft.mkdir(parents=True)
        yield draft
        for file in draft.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        if out.exists():
            out.rename(old)
        try:
            draft.rename(out)
        except OSError:
            if old.exists():
                old.rename(out)
            raise
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written ({error.strerror or error}); nothing was kept. Free some space or name another --to"
        ) from None
    finally:
        for folder in (draft, old):
            shutil.rmtree(folder, ignore_errors=True)


def refuse_to_lose(file: Path, what: str, *, is_forced: bool) -> None:
    """Raises UsageError where something lies that may not be written over: even `is_forced` all but an earlier case, timeline or key."""
    if not os.path.lexists(file):
        return
    if not is_forced:
        raise UsageError(f"{file}: something lies there; name another place, or write over an earlier {what} with --force")
    if file.is_symlink() or not file.is_file() or not _is_earlier(file, what):
        raise UsageError(f"{file}: no {what} that `rca export` wrote lies there, and --force replaces nothing else; name another place")


def _is_earlier(file: Path, what: str) -> bool:
    from rca.case import Case, is_case_file
    from rca.errors import CaseError
    from rca.timeline import SCHEMA

    try:
        if what == "case":
            if not is_case_file(file):
                return False
            case = Case.open(file)
            is_ours = "firstfault" in case.meta()
            case.close()
            return is_ours
        with file.open("rb") as content:
            head = content.read(200)
    except (OSError, CaseError):
        return False
    return {"timeline": SCHEMA, "key": KEY}[what].encode() in head


def write_tables(case: Case, folder: Path, kind: str, names: Iterable[str], *, is_anonymised: bool) -> dict[str, int]:
    """One file for each table, and the manifest. Returns the rows of each."""
    from rca import __version__
    from rca.case import SCHEMA_VERSION
    from rca.tables import TABLES

    counts = {}
    for name in names:
        target = folder / f"{name}.{kind}"
        counts[name] = case.write_parquet(name, target) if kind == "parquet" else _write_text(case, name, target, kind)
    manifest: dict[str, Any] = {"schema_version": VERSION, "firstfault": __version__, "case_schema": SCHEMA_VERSION, "format": kind}
    manifest["is_anonymised"] = is_anonymised
    manifest["fingerprint"] = ANONYMISED if is_anonymised else case.meta().get("fingerprint", "")
    manifest["tables"] = {n: {"file": f"{n}.{kind}", "rows": count, "one_row_per": TABLES[n].grain} for n, count in counts.items()}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    return counts


def _write_text(case: Case, name: str, target: Path, kind: str) -> int:
    """CSV with lists as JSON and text as a spreadsheet may show it, or a JSON object a line; instants in UTC with their zone."""
    import polars as pl

    count = 0
    with target.open("wb") as file:
        for number, frame in enumerate(case.chunks(name)):
            count += frame.height
            instants = [pl.col(n).dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ") for n, t in frame.schema.items() if isinstance(t, pl.Datetime)]
            frame = frame.with_columns(instants)
            if kind == "csv":
                frame = frame.with_columns(_as_json(frame))
                frame.with_columns(map(_as_cells, frame.select(pl.col(pl.String)))).write_csv(file, include_header=number == 0)
            else:
                _write_lines(frame, file)
    return count


def _as_json(frame: pl.DataFrame) -> list[pl.Series]:
    import polars as pl

    lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    return [
        pl.Series(n, [None if v is None else safe_json(json.dumps(v, ensure_ascii=False)) for v in frame[n].to_list()], dtype=pl.String)
        for n in lists
    ]


def _as_cells(column: pl.Series) -> pl.Series:
    """Text of evidence for a spreadsheet, which would run what looks like a formula and turn around what follows a mark of direction."""
    told = {text: cell for text in column.drop_nulls().unique() if (cell := _cell(text)) != text}
    return column.replace(list(told), list(told.values()))


def _cell(text: str) -> str:
    return f"'{one_line(text)}" if text.startswith(_FORMULA) else one_line(text)


def _write_lines(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """JSON knows no infinity: such a number becomes the text "Infinity", "-Infinity" or "NaN"."""
    for row in frame.iter_rows(named=True):
        told = {
            name: _NOT_FINITE[str(value)] if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
        }
        file.write(safe_json(json.dumps(told, ensure_ascii=False)).encode("utf-8", "replace") + b"\n")


def write_case(case: Case, target: Path, *, is_anonymised: bool) -> None:
    """The case as a file of its own, written anew: nothing but its rows comes along."""
    from rca.building import copy

    copy(case.chunks, target, {"fingerprint": ANONYMISED if is_anonymised else case.meta().get("fingerprint", "")}, None)


def write_key(target: Path, names: Mapping[str, Mapping[str, str]], *, is_forced: bool) -> None:
    """New name -> old name, readable by its owner alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if is_forced else os.O_EXCL)
    try:
        handle = os.open(target, flags, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o600)
            json.dump({"schema_version": KEY, "names": names}, file, indent=2, ensure_ascii=False)
            file.write("\n")
    except FileExistsError:
        raise UsageError(f"{target}: a file lies there; name another --key, or write over it with --force") from None
    except OSError as error:
        raise UsageError(f"{target}: the key cannot be written ({error.strerror or error})") from None


def is_export(folder: Path) -> bool:
    """Whether a folder is what `rca export` wrote, by its manifest."""
    return folder.is_dir() and _manifest(folder) is not None


def _manifest(folder: Path) -> dict[str, Any] | None:
    file = folder / MANIFEST
    try:
        if not file.is_file() or file.stat().st_size > 1 << 20:
            return None
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("schema_version") == VERSION else None


def exported_tables(folder: Path) -> tuple[dict[str, Path], str]:
    """The Parquet files of an export by table, and what it was made of. Raises UsageError where it cannot be read back."""
    from rca.case import SCHEMA_VERSION
    from rca.tables import TABLES

    found = _manifest(folder) or {}
    if found.get("format") != "parquet":
        raise UsageError(f"{folder}: an export as {found.get('format')}, which is not read back: export with --format parquet or case")
    if found.get("case_schema") != SCHEMA_VERSION:
        raise UsageError(f"{folder}: exported by another version (firstfault {found.get('firstfault')}): export again with this one")
    files = {name: folder / f"{name}.parquet" for name in TABLES}
    if missing := [name for name, file in files.items() if not file.is_file()]:
        raise UsageError(f"{folder}: the export lacks {', '.join(missing[:5])}: export all tables to have a verdict from them")
    return files, str(found.get("fingerprint") or "")
