"""Who is who: rank -> host, process and groups, joined from maps, indexes, names and the dumps themselves. Pure: frames in, frames out.

Identities are decided here once: which rank a stack dump is of, which dump of a rank counts when there are several, who belongs to a group
whose members no dump lists.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from rca.tables import TABLES

__all__ = [
    "HOST_FILES",
    "Hint",
    "group_members",
    "link_stacks",
    "members_by_coordinates",
    "rename_groups",
    "same_groups",
    "stale_dumps",
    "status_by_peers",
]

Frames = Mapping[str, pl.DataFrame]
HOST_FILES = ("kernel_events", "host_logs", "clock_anchors", "configs")  # tables of files that are of one host each, and may not name it


@dataclass(frozen=True)
class Hint:
    """What the name of a file says: the rank outright, a trailing number that may be one, the capture round."""

    rank_said: int | None
    rank_hint: int | None
    sample: int | None
    path: str
    modified_at: datetime | None


def stale_dumps(dumps: pl.DataFrame, hints: Mapping[str, Hint]) -> dict[str, str]:
    """evidence_id -> why it is left out: of several dumps of one rank only the newest counts, and a set of older dumps goes as a whole.

    1. Per (rank, backend) the dump with the latest call wins; a pickle beats the JSON form of the same moment (it has the stacks).
    2. A loser that ends before the winner begins is of an earlier launch. Every other dump of its folder that ends before the newest set
       begins is of that launch too: a rank that left no dump this time must not be diagnosed from last time's.
    """
    stale: dict[str, str] = {}
    rows = [row for row in dumps.iter_rows(named=True) if row["rank"] is not None and row["last_at"] is not None]
    by_view: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_view[row["rank"], row["backend"]].append(row)
    old_folders: set[str] = set()
    winners = []
    for views in by_view.values():
        views.sort(
            key=lambda r: (
                r["last_at"],
                r["format"] == "pickle",
                not r["is_torn"],
                r["num_entries"] or 0,
                r["evidence_id"],
            )
        )
        winner = views[-1]
        winners.append(winner)
        for row in views[:-1]:
            earlier = row["last_at"] < winner["first_at"]
            stale[row["evidence_id"]] = "an earlier launch of the job" if earlier else f"an older view of rank {row['rank']}"
            if earlier:
                old_folders.add(_folder(hints, row))
    if old_folders and winners:
        starts = sorted(w["first_at"] for w in winners if _folder(hints, w) not in old_folders)
        for row in winners:
            if starts and _folder(hints, row) in old_folders and row["last_at"] < starts[len(starts) // 2]:
                stale[row["evidence_id"]] = "an earlier launch of the job"
    return stale


def _folder(hints: Mapping[str, Hint], row: Mapping[str, Any]) -> str:
    return hints[row["evidence_id"]].path.rpartition("/")[0] if row["evidence_id"] in hints else ""


def misnamed_dumps(frames: Frames, hints: Mapping[str, Hint]) -> list[str]:
    """Dumps whose rank is only a number at the end of their name, and one that no rank of this job has: a process id, a serial number.

    A rank beyond the world of a map or group, or far beyond the number of dumps, is none.
    """
    dumps = frames["dumps"].drop_nulls("rank")
    known: list[int] = frames["groups"]["size"].drop_nulls().to_list()
    known += [rank + 1 for rank in frames["ranks"]["rank"].drop_nulls().to_list()]
    world = max(known, default=None)
    limit = world if world is not None else 64 + 16 * dumps.height
    far = dumps.filter(pl.col("rank") >= limit)["evidence_id"].to_list()
    return [e for e in far if e in hints and hints[e].rank_said is None and hints[e].rank_hint is not None]


def without_ranks(frame: pl.DataFrame, evidence: list[str]) -> pl.DataFrame:
    """A frame in which the rows of these files have no rank."""
    if not evidence or "rank" not in frame.columns:
        return frame
    return frame.with_columns(pl.when(~pl.col("evidence_id").is_in(evidence)).then("rank").alias("rank"))


def known_ranks(frames: Frames) -> set[int]:
    """Ranks that something other than a trailing number names."""
    found: set[int] = set()
    for table in ("dumps", "ranks", "memberships", "dump_index"):
        found |= set(frames[table]["rank"].drop_nulls().to_list())
    return found


def link_stacks(frames: Frames, hints: Mapping[str, Hint]) -> pl.DataFrame:
    """`stacks` with rank, host and sample filled in.

    Rank, first that speaks: the content, the name outright, an index by process id, the thread id shared with a recorder dump, a trailing
    number in the name that is a known rank and not the process id. Host: from the index or map. Sample: index folder, else order of files.
    """
    stacks = frames["stacks"]
    if not stacks.height:
        return stacks
    by_pid = _unique((row["pid"], row["rank"]) for t in ("dump_index", "ranks") for row in frames[t].iter_rows(named=True))
    by_thread = _unique((row["main_thread_id"], row["rank"]) for row in frames["dumps"].iter_rows(named=True))
    hosts = rank_hosts(frames)
    known = known_ranks(frames)
    files = stacks.group_by("evidence_id", "pid", maintain_order=True).agg(
        pl.col("rank").drop_nulls().first(),
        pl.col("host").drop_nulls().first(),
        pl.col("pthread_id").drop_nulls().unique(maintain_order=True),
        pl.col("format").first(),
    )
    rows = []
    for row in files.iter_rows(named=True):
        hint = hints[row["evidence_id"]]
        rank = row["rank"]
        if rank is None:
            rank = hint.rank_said
        if rank is None:
            rank = by_pid.get(row["pid"])
        if rank is None:
            rank = next((by_thread[t] for t in row["pthread_id"] or () if t in by_thread), None)
        if rank is None and hint.rank_hint in known and hint.rank_hint != row["pid"]:
            rank = hint.rank_hint
        rows.append(
            {
                **row,
                "rank": rank,
                "host": row["host"] or hosts.get(rank if rank is not None else -1),
                "path": hint.path,
                "hint": hint.sample,
            }
        )
    link = _with_samples(rows)
    schema = {"evidence_id": pl.String, "pid": pl.Int64, "_rank": pl.Int64, "_host": pl.String, "_sample": pl.Int64}
    joined = stacks.join(
        pl.DataFrame(link, schema=schema, orient="row"),
        on=["evidence_id", "pid"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return joined.with_columns(
        pl.coalesce("rank", "_rank").alias("rank"),
        pl.coalesce("host", "_host").alias("host"),
        pl.coalesce("sample", "_sample").alias("sample"),
    ).select(TABLES["stacks"].schema.names())


def _with_samples(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(evidence_id, pid, rank, host, sample): the folder's round, else the place among the dumps of that process in that format."""
    seen: Counter[Any] = Counter()
    found = []
    for row in sorted(rows, key=lambda r: (r["path"], r["evidence_id"], r["pid"] or -1)):
        sample = row["hint"]
        if sample is None:
            key = (row["host"], row["rank"], row["pid"], row["format"])
            sample = seen[key]
            seen[key] += 1
        found.append((row["evidence_id"], row["pid"], row["rank"], row["host"], sample))
    return found


def _unique(pairs: Any) -> dict[Any, int]:
    """key -> rank for the keys that lead to one rank only."""
    found: dict[Any, set[int]] = defaultdict(set)
    for key, rank in pairs:
        if key is not None and rank is not None:
            found[key].add(rank)
    return {key: next(iter(ranks)) for key, ranks in found.items() if len(ranks) == 1}


def rank_hosts(frames: Frames) -> dict[int, str]:
    """rank -> host where all sources that name one agree."""
    found: dict[int, set[str]] = defaultdict(set)
    for table in ("ranks", "dump_index"):
        for row in frames[table].iter_rows(named=True):
            if row["rank"] is not None and row["host"]:
                found[row["rank"]].add(row["host"])
    return {rank: next(iter(names)) for rank, names in found.items() if len(names) == 1}


def hosts_by_name(frames: Frames, hints: Mapping[str, Hint]) -> dict[str, str]:
    """evidence_id -> host, for files of one host that do not name it: one that other evidence knows stands in the file's name, else its folder's."""
    silent = {row["evidence_id"] for t in HOST_FILES for row in frames[t].iter_rows(named=True) if row["host"] is None}
    named = [frames[t]["host"].drop_nulls().unique() for t in ("ranks", "dump_index", "log_events", "steps")]
    known = sorted(set().union(*named), key=len, reverse=True)
    patterns = [(host, re.compile(rf"(?<![a-z0-9]){re.escape(host)}(?![a-z0-9])", re.I)) for host in known]
    found = {}
    for evidence_id in sorted(silent & hints.keys()):
        for part in reversed(hints[evidence_id].path.split("/")[-2:]):
            hits = [host for host, pattern in patterns if pattern.search(part)]
            if hits and all(host in hits[0] for host in hits):  # node-1 in node-1-gpu is no second host
                found[evidence_id] = hits[0]
                break
    return found


def with_hosts(table: pl.DataFrame, hosts: Mapping[str, str]) -> pl.DataFrame:
    """The table with the host of a file filled in where a row has none; a row that names a rank is of that rank's host, which others tell."""
    if not hosts:
        return table
    of_file = pl.col("evidence_id").replace_strict(hosts, default=None, return_dtype=pl.String)
    if "rank" in table.columns:
        of_file = pl.when(pl.col("rank").is_null()).then(of_file)
    return table.with_columns(pl.col("host").fill_null(of_file))


def same_groups(frames: Frames) -> dict[tuple[str, int], str]:
    """(group_id, rank) -> the group_id to use instead, where one group goes by two ids.

    1. A dump that does not list a group's members (gloo lists none) knows only its name: it is the listed group of that name, in a map or
       another dump, that contains the rank, when there is just one. Where none bears the name, maps number their groups as they like: it is the one
       of its kind that contains the rank, where the rank uses no other group of that kind.
    2. A group described differently on some of its ranks has different kinds there: of groups with the same name and members the id that
       most ranks use stands for all.
    """
    members = group_members(frames["memberships"])
    groups = frames["groups"].select("group_id", "group_name", "size").unique(maintain_order=True)
    listed: dict[str, set[str]] = defaultdict(set)
    for id_, name, size in groups.iter_rows():
        if size is not None:
            listed[name].add(id_)
    users = frames["memberships"].select("group_id", "rank").drop_nulls().unique().rows()
    instead: dict[tuple[str, int], str] = {}
    majority = _majority_ids(listed, members, frames["groups"])
    names = {id_: name for id_, name, size in groups.iter_rows() if size is None}
    of_kind: dict[str, set[str]] = defaultdict(set)
    for id_, kind, size in frames["groups"].select("group_id", "kind", "size").unique().iter_rows():
        if size is not None:
            of_kind[kind].add(id_)
    used = Counter((id_.partition("?")[0], rank) for id_, rank in users if id_ in names)
    for id_, rank in users:
        if id_ in names:
            fitting = {majority.get(g, g) for g in listed[names[id_]] if rank in members.get(g, ())}
            kind = id_.partition("?")[0]
            if not listed[names[id_]] and kind not in UNTOLD and used[kind, rank] == 1:
                fitting = {majority.get(g, g) for g in of_kind[kind] if rank in members.get(g, ())}
            if len(fitting) == 1:
                instead[id_, rank] = next(iter(fitting))
        elif id_ in majority:
            instead[id_, rank] = majority[id_]
    return instead


UNTOLD = ("other", "unknown", "")  # kinds that say nothing of what a group is
AXES = ("tp", "dp", "pp", "cp", "ep")


def members_by_coordinates(frames: Frames) -> pl.DataFrame:
    """`memberships` plus the members of groups that nothing lists, where a map gives the parallel coordinates of the ranks.

    The ranks of a group along one axis share all other coordinates; a model-parallel group shares those of data parallelism.
    """
    memberships, ranks = frames["memberships"], frames["ranks"]
    used = [axis for axis in AXES if ranks[axis].drop_nulls().len()]
    unlisted = set(frames["groups"].filter(pl.col("size").is_null())["group_id"].to_list())
    if not used or not unlisted:
        return memberships
    known = ranks.drop_nulls(["rank", *used]).unique("rank", keep="first", maintain_order=True)
    coordinates = {row["rank"]: {axis: row[axis] for axis in used} for row in known.iter_rows(named=True)}
    more = []
    for row in (
        memberships.filter(pl.col("group_id").is_in(sorted(unlisted)))
        .unique("group_id", keep="first", maintain_order=True)
        .iter_rows(named=True)
    ):
        kind, own = row["group_id"].partition("?")[0], coordinates.get(row["rank"])
        shared = [axis for axis in used if axis != kind] if kind in used else ["dp"] if kind == "mp" and "dp" in used else None
        if own is not None and shared is not None:
            same = [rank for rank, other in coordinates.items() if all(other[axis] == own[axis] for axis in shared)]
            more += [{**row, "rank": rank, "group_rank": None, "is_inferred": False} for rank in sorted(same)]
    return pl.concat([memberships, TABLES["memberships"].rows(more)]).unique(
        ["group_id", "rank", "evidence_id"], keep="last", maintain_order=True
    )


def _majority_ids(listed: Mapping[str, set[str]], members: Mapping[str, frozenset[int]], groups: pl.DataFrame) -> dict[str, str]:
    """id -> id that most files use for the group of that name with the same members."""
    uses = dict(groups.group_by("group_id").agg(pl.len().alias("n")).iter_rows())
    found: dict[str, str] = {}
    for ids in listed.values():
        by_members: dict[frozenset[int], list[str]] = defaultdict(list)
        for id_ in sorted(ids):
            by_members[members.get(id_, frozenset())].append(id_)
        for same in by_members.values():
            best = max(same, key=lambda i: (uses.get(i, 0), i))
            found |= {id_: best for id_ in same if id_ != best}
    return found


def rename_groups(frame: pl.DataFrame, instead: Mapping[tuple[str, int], str]) -> pl.DataFrame:
    """A frame with rank and group_id in which groups go by one id."""
    if not instead or not frame.height or "group_id" not in frame.columns:
        return frame
    names = pl.DataFrame(
        [(g, r, new) for (g, r), new in sorted(instead.items())],
        schema={"group_id": pl.String, "rank": pl.Int64, "_new": pl.String},
        orient="row",
    )
    if "rank" not in frame.columns:
        names = names.unique("group_id", keep="first", maintain_order=True).drop("rank")
    on = ["group_id", "rank"] if "rank" in frame.columns else ["group_id"]
    joined = frame.join(names, on=on, how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("_new", "group_id").alias("group_id")).select(frame.columns)


def status_by_peers(frames: Frames) -> pl.DataFrame:
    """`group_status` with statuses tied to groups by what peers say, where a dump's own calls do not tell.

    Ranks create their groups in one order. So where all dumps with the same number of statuses whose calls tell it have the same kind of
    group at a place, that place is of this kind on the others too, and means the one group of the kind that the dump lists.
    """
    status = frames["group_status"]
    if not status.filter(pl.col("group_id").is_null() & pl.col("place").is_not_null()).height:
        return status
    kind = pl.col("group_id").str.extract(r"^([^:?]*)")
    numbered = status.with_columns(pl.col("place").count().over("evidence_id").alias("_n"), kind.alias("_kind"))
    told = numbered.filter(pl.col("mapped_by") == "entries").group_by("_n", "place").agg(pl.col("_kind").unique())
    kinds = {(n, place): found[0] for n, place, found in told.iter_rows() if len(found) == 1}
    own: dict[tuple[str, str], set[str]] = defaultdict(set)
    for evidence_id, group, group_kind in frames["groups"].select("evidence_id", "group_id", "kind").iter_rows():
        own[evidence_id, group_kind].add(group)
    rows = []
    for row in numbered.iter_rows(named=True):
        groups = own.get((row["evidence_id"], kinds.get((row["_n"], row["place"]), "")), set())
        if row["group_id"] is None and len(groups) == 1:
            row |= {"group_id": next(iter(groups)), "mapped_by": "peers"}
        rows.append({name: row[name] for name in TABLES["group_status"].schema})
    return TABLES["group_status"].rows(rows)


def group_members(memberships: pl.DataFrame) -> dict[str, frozenset[int]]:
    """group_id -> its known members."""
    found: dict[str, set[int]] = defaultdict(set)
    for group, rank in memberships.select("group_id", "rank").drop_nulls().unique().iter_rows():
        found[group].add(rank)
    return {group: frozenset(ranks) for group, ranks in found.items()}
