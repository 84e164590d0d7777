"""Takes this machine's paths out of captured evidence, byte for byte, so that pickles keep their lengths."""

from __future__ import annotations

import sys
from pathlib import Path

from rca.errors import ProbeError

__all__ = ["leaks", "machine_prefixes", "neutralise"]

NEUTRAL_ROOTS = ("/opt/", "/usr/", "/lib/", "/tmp/")


def neutralise(folder: Path, *, prefixes: dict[str, str]) -> None:
    """Replace each {prefix: label} by `/opt/<label>` of equal length in every file; raise if one is left."""
    swaps = [(old.encode(), _alias(old, label).encode()) for old, label in _ordered(prefixes)]
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = before = path.read_bytes()
        for old, new in swaps:
            data = data.replace(old, new)
        if data != before:
            path.write_bytes(data)
    found = leaks(folder, words=[old.decode() for old, _ in swaps])
    if found:
        raise ProbeError(f"a path of this machine is left in {found[0]}: don't publish this capture")


def _ordered(prefixes: dict[str, str]) -> list[tuple[str, str]]:
    """Longest first, so that a home directory does not eat the start of a longer prefix; neutral ones left out."""
    wanted = [(old, label) for old, label in prefixes.items() if len(old) > 1 and not old.startswith(NEUTRAL_ROOTS)]
    return sorted(wanted, key=lambda item: (-len(item[0]), item[0]))


def _alias(old: str, label: str) -> str:
    """A path of the same length: `/opt/python______`; `/home` where there is no room."""
    stem = f"/opt/{label}" if len(old) >= len(f"/opt/{label}") else "/home"
    return stem[: len(old)].ljust(len(old), "_")


def leaks(folder: Path, *, words: list[str]) -> list[str]:
    """The files, relative to `folder`, that hold one of `words`."""
    needles = [word.encode() for word in words]
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return [str(p.relative_to(folder)) for p in files if any(needle in p.read_bytes() for needle in needles)]


def machine_prefixes(python: str, job: Path) -> dict[str, str]:
    """What gives this machine away: the interpreter's own and virtual prefix, the job's folder, the tool, the home."""
    real = Path(python).resolve()
    return {
        str(real.parent.parent): "python",
        str(Path(python).absolute().parent.parent): "venv",
        str(job): "train",
        str(Path(sys.prefix).absolute()): "tool",
        str(Path.home()): "home",
    }
