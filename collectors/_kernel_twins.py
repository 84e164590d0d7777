"""Kernel lines that differ from an earlier line only in their stamps: that one was read with care, of the others the stamps are read.

A flood repeats a few texts a hundred thousand times. What a line says besides its time depends on nothing but the rest of its text, where
the stamps stand in one of the usual places and hold a real date; every other line is read with care, each time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from collectors._kernel_clock import NO_STAMP, Stamp, wall_stamp
from collectors._kernel_fold import Plan
from collectors._kernel_prefix import MAX_LINE, Line

__all__ = ["Twin", "Twins"]

# How the lines of floods begin that say something new each time. No prefix begins so, and no program is believed or not by what follows.
_BEGUN: Final = re.compile(
    r"NVRM: |Lustre(?:Error)?: |LNet(?:Error)?: |EDAC MC|pcieport |mlx5_core |nvidia-nvswitch|nfs: server |INFO: task "
)
MAX_TWINS: Final = 4096  # kept; of each kind; sixteen times as many that came once
# Of the usual prefixes: what stays the same from line to line, and what the clocks say. The forms of `second` differ in length.
_USUAL: Final = re.compile(
    r"(?P<priority>[0-9]{1,4},)[0-9]{1,20},(?P<us>[0-9]{1,15})(?P<flags>,[^;\s]{0,200};)"
    r"|(?P<lead>(?:<[0-9]{1,3}>|kern {0,2}:[a-z]{3,6} {0,3}: )?)"
    r"(?:(?P<second>[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]|[A-Z][a-z]{2} [ 0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9])"
    r"(?:(?P<sep>[.,])(?P<fraction>[0-9]{1,9}))?(?P<zone>(?:Z|[+\-][0-9][0-9]:?[0-9][0-9])? )"
    r"|(?P<ctime>\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9] [0-9]{4}\] ))?"
    r"(?P<tag>(?:[\w.\-]{1,255} kernel: )?)(?:\[ {0,11}(?P<uptime>[0-9]{1,9}\.[0-9]{6})\] )?",
    re.ASCII,
)
_VOLATILE: Final = re.compile(  # of the journal's fields, what differs from entry to entry; no quote stands inside a text of JSON unescaped
    r'"(__REALTIME_TIMESTAMP|__MONOTONIC_TIMESTAMP|_SOURCE_MONOTONIC_TIMESTAMP|_SOURCE_REALTIME_TIMESTAMP|__SEQNUM|__CURSOR)"'
    r' ?: ?"([^"\\\n]{1,300})"'
)
_DIGITS: Final = re.compile(r"[0-9]{1,16}")  # microseconds, within the years that a date can hold

Key = tuple[object, ...]
Split = tuple[Key, Stamp, int | None]  # of a line: what the clock does not change, what it says, where the body begins (None: somewhere)


@dataclass(slots=True)
class Twin:
    """A line as it was read with care, now with the stamp of the line at hand, and how it folds; `plan`: None where it tells no event."""

    line: Line
    plan: Plan | None


_UNKNOWN: Final = Twin(Line(""), None)


@dataclass(slots=True)
class Twins:
    """The lines read so far, by what of them the clock does not change."""

    _known: dict[Key, Twin | None] = field(default_factory=dict)  # None: its likes are read with care
    _seen: set[int] = field(default_factory=set)  # hashes of what was read once: most lines never come again
    _prefixes: dict[Key, Line] = field(default_factory=dict)  # by what the clock does not change of them, and how the body begins
    _missed: Split | None = None  # the last line that `find` did not know

    def find(self, text: str) -> Twin | None:
        """The twin of a line, with its stamp; None for a line that must be read with care (and may then be learnt)."""
        self._missed = None
        split = _split_entry(text) if text.startswith("{") else _split_line(text)
        if split is None:
            return None
        key, stamp, _ = split
        twin = self._known.get(key, _UNKNOWN)
        if twin is _UNKNOWN:
            self._missed = split
            return None
        if twin is not None:
            twin.line.stamp = stamp
        return twin

    def peeled(self, text: str) -> Line | None:
        """The line that `find` did not know, without its prefix, where a line with such a prefix is known whose body begins like this one."""
        if self._missed is None:
            return None
        key, stamp, body_at = self._missed
        if body_at is None or stamp is NO_STAMP or not (begun := _BEGUN.match(text, body_at)) or "\x1b" in text:
            return None
        like = self._prefixes.get((*key[:-1], begun[0]))
        return like and Line(text[body_at:].rstrip(), stamp, like.host, like.boot_id, like.is_kernel, 1, like.is_hearsay, like.is_tagged)

    def learn(self, text: str, line: Line, plan: Plan | None) -> None:
        """Keeps how the line that `find` did not know was read, where the place of its stamps is certain."""
        if self._missed is None:
            return
        key, stamp, body_at = self._missed
        if body_at is None:
            is_body = any(f'"MESSAGE"{colon}"{line.body}"' in text for colon in (":", ": ", " : "))
        else:
            is_body = line.body == text[body_at:].rstrip()
        is_certain = is_body and line.stamp == stamp
        if is_certain and body_at is not None and (begun := _BEGUN.match(line.body)):
            self._prefixes[(*key[:-1], begun[0])] = line
        if (once := hash(key)) not in self._seen:
            self._seen.add(once)
        else:
            self._known[key] = Twin(line, plan) if is_certain else None
        if max(len(self._known), len(self._prefixes), len(self._seen) >> 4) >= MAX_TWINS:
            self.forget()

    def forget(self) -> None:
        """Begins anew: from here on lines say something else (another boot)."""
        self._known.clear()
        self._seen.clear()
        self._prefixes.clear()
        self._missed = None


def _split_line(text: str) -> Split | None:
    """A line with one of the usual prefixes; None for any other."""
    if len(text) > MAX_LINE or not (found := _USUAL.match(text)):
        return None
    priority, us, flags, lead, second, sep, fraction, zone, ctime, tag, uptime = found.groups()
    stamp = NO_STAMP
    if printed := ctime or (second and second + zone):
        wall = _wall(printed)
        if wall is None:
            return None
        stamp = _with_fraction(wall, fraction) if fraction else wall
    if uptime is not None:
        stamp = Stamp(stamp.at, stamp.local, float(uptime))
    elif us is not None:
        stamp = Stamp(None, None, int(us) / 1e6)
    body_at = found.end()
    key = lead, second and len(second), sep, zone, ctime is None, tag, uptime is None, priority, flags, text[body_at:]
    return key, stamp, body_at


def _split_entry(text: str) -> Split | None:
    """An entry of the journal's JSON in one flat object; None for any other."""
    if len(text) > MAX_LINE or text.count("{") > 1:
        return None
    parts = _VOLATILE.split(text)
    said = dict(zip(parts[1::3], parts[2::3], strict=True))
    wall, uptime = said.get("__REALTIME_TIMESTAMP"), said.get("_SOURCE_MONOTONIC_TIMESTAMP")
    if wall is None or len(said) < len(parts) // 3 or not all(us is None or _DIGITS.fullmatch(us) for us in (wall, uptime)):
        return None
    del parts[2::3]
    at = datetime.fromtimestamp(int(wall[:-6] or "0"), UTC).replace(microsecond=int(wall[-6:]))
    return tuple(parts), Stamp(at, None, None if uptime is None else int(uptime) / 1e6), None


@lru_cache(maxsize=4096)
def _wall(printed: str) -> Stamp | None:
    """The stamp of a printed second with its zone; None where it is no date or not all of the text."""
    found = wall_stamp(printed, 0, NO_STAMP)
    return found[0] if found and found[1] == len(printed) and found[0].has_wall else None


def _with_fraction(wall: Stamp, fraction: str) -> Stamp:
    """The stamp of a second with the digits after its point, of which six count."""
    if wall.at is not None:
        return Stamp(wall.at.replace(microsecond=int(fraction[:6].ljust(6, "0"))))
    return Stamp(None, f"{wall.local}.{fraction[:6]}")
