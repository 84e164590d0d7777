"""What dumps and maps say of process groups: kind, members, names."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

from rca.catalogues import cached, rows
from rca.group_ids import group_id

__all__ = ["Ranks", "group_id", "group_kind", "parse_ranks", "plain_text", "unlisted_group_id"]

_RANKS = re.compile(r"[\[\](){}\s,0-9]*")
MAX_RANK = 1 << 31
MAX_KNOWN = 4096  # descriptions whose kind is remembered
MAX_RANKS = 1_000_000  # members of one group; more is not a list of ranks


@cached
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(row["pattern"]), row["kind"]) for row in rows("group_kinds"))


@cached
def _known() -> dict[str, str]:
    """Kinds told so far: few descriptions stand in very many dumps."""
    return {}


def group_kind(desc: str) -> str:
    """Kind of a group from its description (rca/catalogue/group_kinds.csv); `other` when it has one that says nothing, else `unknown`."""
    known = _known()
    if desc not in known:
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[desc] = _kind(desc)
    return known[desc]


def _kind(desc: str) -> str:
    lowered = desc.strip().lower()
    for pattern, kind in _patterns():
        if pattern.search(lowered):
            return kind
    return "other" if lowered and lowered != "undefined" else "unknown"


class Ranks(tuple[int, ...]):
    """Members of a group, sorted. The world of a large job stands in the dump of every rank: it is hashed once, and searched by halving."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            self.__dict__["hash"] = known = super().__hash__()
        return known

    def place(self, rank: int | None) -> int | None:
        """Where a rank stands; None where it is no member."""
        if rank is None:
            return None
        at = bisect_left(self, rank)
        return at if at < len(self) and self[at] == rank else None


def parse_ranks(value: object) -> Ranks:
    """Global ranks of a `pg_config` entry, sorted: a list, or the text "[0, 1]"; empty when it says nothing."""
    if isinstance(value, str):
        return _ranks_in(value)
    return _unique(value) if isinstance(value, list | tuple) else Ranks()


@lru_cache(maxsize=4096)  # the list of a large group stands in the dump of every member
def _ranks_in(text: str) -> Ranks:
    return _unique(map(int, re.findall(r"[0-9]{1,9}", text))) if _RANKS.fullmatch(text) else Ranks()


def _unique(found: Iterable[object]) -> Ranks:
    ranks = sorted({rank for rank in found if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < MAX_RANK})
    return Ranks(ranks) if len(ranks) <= MAX_RANKS else Ranks()


def unlisted_group_id(kind: str, name: str) -> str:
    """Id of a group whose members the dump does not list (gloo): its name is all there is to tell it by."""
    return f"{kind}?{name}"


def plain_text(value: object) -> str:
    """The text or number in a value, at most 400 characters; "" for anything else (writing out a hostile nested list could take for ever)."""
    if isinstance(value, str):
        return value[:400].encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return str(value) if isinstance(value, int) and abs(value) < 1 << 63 else ""
