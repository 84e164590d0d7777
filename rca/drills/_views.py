"""A capture with parts of its evidence taken away or disguised: what does less evidence still carry?

An on-call engineer rarely has everything: one kind of evidence was not collected, files lost their names on the way, nodes took theirs along,
and other files lie beside. A *view* is a copy of a capture as such a person would hold it; chance is seeded by the names of capture and view,
so the same view always shows the same.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["KINDS", "VIEWS", "view"]

KINDS = ("fr", "stacks", "timings", "logs", "kernel")  # folders of a capture
VIEWS = (
    "whole",
    *(f"without:{kind}" for kind in KINDS),
    *(f"only:{kind}" for kind in KINDS),
    "no-topology",
    "flat",
    "nameless",
    "lost:40",
    "clutter",
)
TRUTH = "truth.json"
INDEXES = ("index.json", "hosts.json")  # they name other files, so they mean nothing once names are gone
_RANK = re.compile(r"rank_([0-9]+)")
_STEMS = ("obj", "part", "upload", "tmp")


def view(capture: Path, name: str, into: Path, *, beside: Path | None = None) -> Path:
    """A copy of `capture` below `into` as the view `name` shows it, without its truth; `beside` is the capture that `clutter` lays next to it.

    `without:KIND` and `only:KIND` take folders away; `no-topology` the rank map; `lost:P` all files of P % of the ranks; `flat` puts all files
    into one folder under names that keep the rank alone, `nameless` not even that.
    """
    chance = random.Random(f"{capture.name} {name}")
    copy = into / "evidence"
    shutil.copytree(capture, copy, ignore=shutil.ignore_patterns(TRUTH, "case.duckdb*"))  # the case is built from evidence, it is none
    what, _, value = name.partition(":")
    if what in ("without", "only"):
        for kind in KINDS:
            if (kind == value) == (what == "without"):
                shutil.rmtree(copy / kind, ignore_errors=True)
    elif what == "no-topology":
        (copy / "topology.json").unlink(missing_ok=True)
    elif what == "lost":
        _lose(copy, int(value), chance)
    elif what in ("flat", "nameless"):
        return _disguise(copy, into / "files", chance, keeps_rank=what == "flat")
    elif what == "clutter" and beside is not None:
        _clutter(copy / "old", beside, chance)
    return copy


def _files(folder: Path) -> Iterator[tuple[Path, int | None]]:
    """Every file below the folder, with the rank in its name."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        found = _RANK.search(path.name)
        yield path, int(found[1]) if found else None


def _lose(folder: Path, percent: int, chance: random.Random) -> None:
    ranks = sorted({rank for _, rank in _files(folder) if rank is not None})
    gone = set(chance.sample(ranks, round(len(ranks) * percent / 100)))
    for path, rank in list(_files(folder)):
        if rank in gone:
            path.unlink()


def _disguise(folder: Path, into: Path, chance: random.Random, *, keeps_rank: bool) -> Path:
    into.mkdir()
    files = [(path, rank) for path, rank in _files(folder) if path.name not in INDEXES]
    chance.shuffle(files)
    for number, (path, rank) in enumerate(files):
        tail = f"-{rank}" if keeps_rank and rank is not None else ""
        shutil.move(path, into / f"{chance.choice(_STEMS)}{number:04d}{tail}")
    shutil.rmtree(folder)
    return into


def _clutter(into: Path, other: Path, chance: random.Random) -> None:
    """Logs of another job, an editor's leftover and a note lie in the same folder."""
    for kind in ("logs", "kernel"):
        if (other / kind).exists():
            shutil.copytree(other / kind, into / f"{kind}-of-another-job")
    into.mkdir(exist_ok=True)
    (into / ".train.py.swp").write_bytes(chance.randbytes(4096))
    (into / "NOTES").write_text("copied from three machines in a hurry\n")
