"""Where things lie: the case file of an evidence folder, room for unpacked archives, notes on incidents, the records of a fleet."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from apps.remote import is_remote
from rca.errors import UsageError

__all__ = ["cache_folder", "case_path", "data_folder", "fleet_folder", "is_writable", "notes_folders", "remote_case_path"]


def case_path(evidence: Path, asked: str | None, spool: Path, *, is_plain_file: bool) -> Path:
    """The case file: where --case says; of a single file in the session's own folder, gone with it; beside the evidence where that is
    writable; else in the user's cache folder."""
    if asked:
        return _usable(Path(asked))
    if is_plain_file:
        return spool / "case.duckdb"
    if evidence.is_dir() and is_writable(evidence) and _is_text(evidence):
        return evidence / "case.duckdb"
    name = hashlib.sha256(str(evidence.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_folder() / name / "case.duckdb"


def remote_case_path(url: str, asked: str | None) -> Path:
    """The case of evidence in an object store: where --case says, else in the cache folder, by its address."""
    if asked:
        return _usable(Path(asked))
    return cache_folder() / hashlib.sha256(url.rstrip("/").encode("utf-8", "surrogateescape")).hexdigest()[:16] / "case.duckdb"


def _usable(target: Path) -> Path:
    """A path given with --case, unless something else than a case lies there."""
    if not _is_text(target):
        raise UsageError(f"--case {str(target)!r}: the name is no UTF-8; choose another")
    if target.is_dir() or (target.exists() and not target.is_file()):
        raise UsageError(f"--case {target}: a folder or device; name a file")
    if target.is_file() and target.stat().st_size:
        with target.open("rb") as file:
            if file.read(12)[8:] != b"DUCK":
                raise UsageError(f"--case {target}: this file is no case and would be overwritten; name another")
    return target


def _is_text(path: Path) -> bool:
    """DuckDB takes names in UTF-8 only."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/firstfault, else ~/.cache/firstfault."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "firstfault"


def data_folder() -> Path:
    """$XDG_DATA_HOME/firstfault, else ~/.local/share/firstfault."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "firstfault"


def fleet_folder(asked: str | Path | None) -> Path:
    """The folder of a fleet's records: where --fleet says, else $RCA_FLEET, else `fleet` in the user's data folder. It may not exist yet."""
    named = str(asked or os.environ.get("RCA_FLEET") or "")
    folder = Path(named) if named else data_folder() / "fleet"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: no folder; name the folder of the fleet's records with --fleet or RCA_FLEET")
    return folder


def notes_folders(evidence: Path) -> tuple[Path, Path]:
    """Where notes on incidents in this evidence may lie: beside it, and in the user's data folder, for evidence that must stay as it is."""
    place = evidence if is_remote(str(evidence)) else evidence.resolve()
    name = hashlib.sha256(str(place).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return evidence / "notes", data_folder() / "notes" / name


def is_writable(folder: Path) -> bool:
    """Writable by permission bits too: root may write anywhere, but a folder laid read-only is meant to stay as it is."""
    mode = folder.stat().st_mode
    return bool(mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)
