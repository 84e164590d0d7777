"""Process groups of one flight-recorder dump: names, members, and the header's status tied to the right group.

`pg_config` is keyed by name, `pg_status` by a process-local number; the link stands in the entries. Without entries it is taken from the
order when both have the same length. What the status counts differs: collectives, or (where a group also sends point to point, and with
gloo) calls of any kind; that is said in `group_status.counts` and never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import polars as pl

from collectors._dump_calls import Calls
from collectors._groups import Ranks, group_id, group_kind, parse_ranks, plain_text, unlisted_group_id
from rca.tables import TABLES

__all__ = ["Group", "Groups", "Members", "member_rows"]


@dataclass(frozen=True)
class Group:
    """A process group as this dump knows it; `ranks` empty = members not listed."""

    name: str
    desc: str
    kind: str
    ranks: Ranks
    twin: int = 1  # 2 and up: a later group of the same kind and members

    @property
    def id(self) -> str:
        """Identity across ranks."""
        if not self.ranks:
            return unlisted_group_id(self.kind, self.name)
        return group_id(self.kind, self.ranks) + (f".{self.twin}" if self.twin > 1 else "")


@dataclass(frozen=True)
class Members:
    """Some members of a group, with their places in it where they are told."""

    group_id: str
    ranks: Sequence[int]
    places: Sequence[int | None]
    is_inferred: bool


def member_rows(dumps: Iterable[tuple[str | None, Iterable[Members]]]) -> pl.DataFrame:
    """Rows of `memberships` of some dumps, each with its evidence_id."""
    told = [(evidence_id, members) for evidence_id, groups in dumps for members in groups]
    sizes = pl.Series("n", [len(members.ranks) for _, members in told], pl.UInt32)
    alike = pl.DataFrame(
        {
            "evidence_id": pl.Series([evidence_id for evidence_id, _ in told], dtype=pl.String),
            "group_id": pl.Series([members.group_id for _, members in told], dtype=pl.String),
            "is_inferred": pl.Series([members.is_inferred for _, members in told], dtype=pl.Boolean),
        }
    ).select(pl.all().repeat_by(sizes).explode())
    ranks, places = (list(chain.from_iterable(some)) for some in ([m.ranks for _, m in told], [m.places for _, m in told]))
    return TABLES["memberships"].frame({"record": "E0", "rank": ranks, "group_rank": places, **alike.to_dict()}, height=len(ranks))


class Groups:
    """All groups of a dump, by (name, description)."""

    def __init__(self, document: dict[str, Any], calls: Calls, *, is_torn: bool = False) -> None:
        self._listed = self._from_config(document.get("pg_config"))
        status = document.get("pg_status")
        self._status: dict[Any, Any] = status if isinstance(status, dict) else {}
        self._told = status  # None where the recorder is older than the status, or the header was left out
        ends = sorted(zip(calls.kinds.last(), calls.kinds.distinct, calls.local_groups, strict=True), key=itemgetter(0))
        first = dict.fromkeys(key for _, key in calls.kinds.distinct)  # in the order of their first calls
        self._last = {key: place for place, (_, key), _ in ends}  # (name, description) -> place of its last call
        local = {key: number for _, (_, key), number in ends}
        self._used = {key: self._resolve(key) for key in first}
        self._pg_names = {plain_text(local[key]): key for key in first}  # process-local number -> (name, description)
        self._sends = {calls.kinds.distinct[kind][1] for kind in calls.kinds.has(calls.flags["is_p2p"].is_set)}
        self._calls = calls
        self._is_torn = is_torn

    @staticmethod
    def _from_config(config: Any) -> dict[str, Group]:
        found: dict[str, Group] = {}
        for key, value in config.items() if isinstance(config, dict) else ():
            if not isinstance(value, dict):
                continue
            name, desc = plain_text(value.get("name", key)), plain_text(value.get("desc"))
            if not name and not desc and not parse_ranks(value.get("ranks")):
                continue  # gloo writes one empty entry
            found[name] = Group(name, desc, group_kind(desc), parse_ranks(value.get("ranks")))
        return _numbered(found)

    def _resolve(self, key: tuple[str, str]) -> Group:
        listed = self._listed.get(key[0])
        if listed is None:
            return Group(key[0], key[1], group_kind(key[1]), Ranks())
        if listed.desc != key[1] and key[1]:  # one name, two descriptions: the header lists only the last of them
            return Group(key[0], key[1], group_kind(key[1]), Ranks())
        return listed

    def of(self, key: tuple[str, str]) -> Group:
        """The group of a call's (name, description)."""
        if key not in self._used:
            self._used[key] = self._resolve(key)
        return self._used[key]

    def all(self) -> list[Group]:
        """Listed and used groups, each once, by name."""
        unique = {(g.name, g.desc): g for g in (*self._listed.values(), *self._used.values())}
        return [unique[key] for key in sorted(unique)]

    def rows(self) -> list[dict[str, Any]]:
        """Rows of `groups`."""
        return [
            {
                "record": "E0",
                "group_id": g.id,
                "group_name": g.name,
                "group_desc": g.desc,
                "kind": g.kind,
                "size": len(g.ranks) or None,
            }
            for g in self.all()
        ]

    def memberships(self, rank: int | None) -> Iterator[Members]:
        """Listed members by group, and this rank wherever it uses a group that lists none.

        At 16,384 ranks every dump lists the world: a long list is kept from four members only, spread over it so that no lost host takes all.
        """
        for g in self.all():
            place = g.ranks.place(rank)
            if g.ranks and (len(g.ranks) <= SHORT_LIST or place is None or rank in _keepers(g.ranks)):
                yield Members(g.id, g.ranks, range(len(g.ranks)), is_inferred=False)
            elif rank is not None:
                yield Members(g.id, (rank,), (place,), is_inferred=not g.ranks)

    def status_rows(self, rank: int | None) -> list[dict[str, Any]]:
        """Rows of `group_status`, each tied to its group where that can be told."""
        others = self._by_order() or self._by_elimination()
        found = []
        numbers = sorted(self._status, key=lambda n: (int(text), "") if (text := plain_text(n)).isdecimal() else (-1, text))
        for place, number in enumerate(numbers):
            status = self._status[number]
            if not isinstance(status, dict):
                continue
            key = self._pg_names.get(plain_text(number))
            group = self._used[key] if key else others.get(plain_text(number))
            found.append(
                {
                    "record": "E0",
                    "rank": rank,
                    "group_id": group.id if group else None,
                    "place": place,
                    "last_enqueued": _number(status.get("last_enqueued_collective")),
                    "last_started": _number(status.get("last_started_collective")),
                    "last_completed": _number(status.get("last_completed_collective")),
                    "mapped_by": "entries" if key else "order" if group else None,
                    "counts": self._counts(key, status),
                }
            )
        if isinstance(self._told, dict) and all(number in self._pg_names for number in map(plain_text, self._status)):
            used = {row["group_id"] for row in found}
            for group in self._listed.values():  # a group gets a status with its first call: these were never used
                if group.id not in used:
                    never = {"record": "E0", "rank": rank, "group_id": group.id, "last_enqueued": 0, "last_completed": 0}
                    found.append(never | {"mapped_by": "absence", "counts": "collectives"})
        return found

    def _by_order(self) -> dict[str, Group]:
        """Process-local number -> group, by the order of creation that numbers and names share; empty where anything contradicts it.

        Numbers and names are both counters that grow with every group a process creates. Names that are no numbers are written in the order
        of the alphabet, which says nothing of creation.
        """
        numbers, listed = list(map(plain_text, self._status)), list(self._listed.values())
        if len(numbers) != len(listed) or not all(n.isdecimal() for n in (*numbers, *(g.name for g in listed))):
            return {}
        numbers.sort(key=int)
        listed.sort(key=lambda g: int(g.name))
        order = dict(zip(numbers, listed, strict=True))
        contradicted = any(number in order and order[number].name != name for number, (name, _) in self._pg_names.items())
        return {} if contradicted else order

    def _by_elimination(self) -> dict[str, Group]:
        """The one number and the one listed group that are left over when the calls have told all others."""
        numbers = [n for n in map(plain_text, self._status) if n not in self._pg_names]
        told = {name for name, _ in self._pg_names.values()}
        groups = [g for g in self._listed.values() if g.name not in told]
        return {numbers[0]: groups[0]} if len(numbers) == len(groups) == 1 else {}

    def _counts(self, key: tuple[str, str] | None, status: dict[str, Any]) -> str:
        if key is None or self._is_torn:  # the last calls are missing: nothing to compare the numbers with
            return "unknown"
        last = self._last[key]
        sequence, op_id = self._calls.numbers["collective_seq_id"].at(last), self._calls.numbers["op_id"].at(last)
        plain = key not in self._sends and (op_id is None or op_id == sequence)
        if plain and sequence == _number(status.get("last_enqueued_collective")):
            return "collectives"
        return "calls"


SHORT_LIST = 64  # members; shorter lists are cheap enough to keep from every rank that gives them


def _keepers(ranks: Ranks) -> frozenset[int]:
    """The members from whose dumps a long list is kept."""
    last = len(ranks) - 1
    return frozenset(ranks[place] for place in (0, last // 3, 2 * last // 3, last))


def _number(value: Any) -> int | None:
    """An integer, also when the JSON form wrote it as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else None
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 19:
        return int(value)
    return None


def _numbered(groups: dict[str, Group]) -> dict[str, Group]:
    """Groups of one kind and the same members, told apart by the order of their creation: the same on every member, for all create them."""
    seen: dict[tuple[str, tuple[int, ...]], int] = {}
    twins = {}
    for group in sorted(groups.values(), key=lambda g: (int(g.name), "") if g.name.isdecimal() else (-1, g.name)):
        place = seen[group.kind, group.ranks] = seen.get((group.kind, group.ranks), 0) + 1
        twins[group.name] = replace(group, twin=place)
    return {name: twins[name] for name in groups}
