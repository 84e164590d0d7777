"""Lists of hosts as Slurm writes them, one name per host: `g3-[057,059-063]`, `r[1-2]n[01-04]-ib`, `node1,node2`; zeros that pad are kept.

Source: Slurm, hostlist expressions (`scontrol show hostnames`). Fields that a tool has cut (`node[1820-1822,...`, `node[1820-18+`) give the
hosts that stand in them whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import Final

from collectors._stack_dump import host_label

__all__ = ["MAX_HOSTS", "HostList", "expand"]

MAX_HOSTS: Final = 100_000  # of one list; the largest clusters have a tenth of it
MAX_TEXT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
NONE: Final = frozenset({"", "(null)", "null", "none", "none assigned", "n/a", "na", "unknown", "-", "all"})
_RANGE: Final = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,254}")
_AROUND: Final = re.compile(r"\[([^\[\]]*)\]")
_CUT: Final = re.compile(r"(?:\.{2,3}|…|\+|\*)$")  # how tools mark that there was more


@dataclass(frozen=True)
class HostList:
    """Hosts in their order, each once; `problem` says in words what of the list could not be read, None where it is whole."""

    names: tuple[str, ...] = ()
    problem: str | None = None


def expand(text: str | None) -> HostList:
    """The hosts of a list, as the tables name them; none for `(null)`, `None assigned`, `Unknown`. Over `MAX_HOSTS` of them: none, and a problem."""
    whole = (text or "").strip()
    if whole.lower() in NONE:
        return HostList()
    if len(whole) > MAX_TEXT:
        return HostList((), f"a list of hosts of {len(whole)} characters, no more than {MAX_TEXT} are read")
    parts, is_cut = _parts(whole)
    names: dict[str, None] = {}
    bad: list[str] = []
    for part in parts:
        found = _expanded(part, MAX_HOSTS - len(names))
        if isinstance(found, str):
            return HostList((), found)
        if not found:
            bad.append(part)
        names.update(dict.fromkeys(found))
    problems = ["the list of hosts is cut off"] if is_cut else []
    if bad:
        problems.append(f"no host in {', '.join(bad[:3])[:100]!r}")
    return HostList(tuple(names), "; ".join(problems) or None)


def _parts(text: str) -> tuple[list[str], bool]:
    """The list at its commas and blanks outside brackets, and whether it is cut; what was cut in its middle is left out."""
    parts: list[str] = []
    start, depth = 0, 0
    for at, letter in enumerate(text):
        if letter in "[]":
            depth += 1 if letter == "[" else -1
        elif depth <= 0 and (letter in ",;" or letter.isspace()):
            parts.append(text[start:at])
            start, depth = at + 1, 0
    last = text[start:]
    is_cut = depth > 0 or bool(_CUT.search(last)) or text.endswith(",")
    if depth > 0:  # items before the last comma are whole, the one after it may go on
        head, _, _ = last.rpartition(",")
        last = f"{head}]" if head.count("[") > head.count("]") else ""
    elif is_cut:
        last = ""
    return [part for part in (*parts, last) if part], is_cut


def _expanded(part: str, most: int) -> list[str] | str:
    """The hosts of one expression; none where it is no such; words where there are more than `most`."""
    pieces = _AROUND.split(part)  # text, inside of brackets, text, ...
    if len(pieces) > 2 * MAX_DIMENSIONS + 1:
        return []
    axes: list[list[str]] = []
    size = 1
    for place, piece in enumerate(pieces):
        found: list[str] | str = _numbers(piece, most) if place % 2 else [piece]
        if isinstance(found, str):
            return found
        size *= len(found)
        if size > most:
            return _too_many(part)
        axes.append(found)
    names = ("".join(parts) for parts in product(*axes))
    return [label for name in names if _NAME.fullmatch(name) and (label := host_label(name))]


def _numbers(text: str, most: int) -> list[str] | str:
    """What stands between brackets, number by number as padded; none where it is no list of numbers."""
    found: list[str] = []
    for item in text.split(","):
        bounds = _RANGE.fullmatch(item.strip())
        if bounds is None:
            return []
        first, last = bounds[1], bounds[2] or bounds[1]
        low, high = int(first), int(last)
        if high < low:
            return []
        if high - low >= most or len(found) + high - low >= most:
            return _too_many(text)
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        found += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return found


def _too_many(text: str) -> str:
    return f"{text[:60]!r} names more than {MAX_HOSTS} hosts: not expanded"
