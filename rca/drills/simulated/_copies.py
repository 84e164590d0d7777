"""Spreads the rows of one rank's files over all ranks whose files say the same: ranks, hosts, groups, peers and instants become those of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from rca.drills.simulated._rank_files import RankFiles, late_ns
from rca.drills.simulated._scene import Scene
from rca.tables import TABLES

__all__ = ["Copies"]

BY_RANK = ("dumps", "collectives", "group_status", "groups", "stacks")  # tables of files that each rank leaves
SHORT_LIST = 64  # members of a group that every member's file lists in full
INSTANTS = ("created_at", "started_at", "completed_at", "first_at", "last_at")


@dataclass
class Copies:
    """The files that were not written, each with the one that stands for it."""

    scene: Scene
    shown: list[str] = field(default_factory=list)  # path of the file that is read
    ranks: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)

    def add(self, files: RankFiles) -> None:
        """Note whose files one file stands for; its own among them."""
        first = files.ranks[0]
        self.shown += [files.path(first)] * len(files.ranks)
        self.firsts += [first] * len(files.ranks)
        self.ranks += files.ranks
        self.paths += [files.path(rank) for rank in files.ranks]

    def spread(self, frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """The tables with the rows of every rank's files."""
        if not self.shown:
            return frames
        targets = self._targets(frames["evidence"])
        if targets.height <= targets["shown_id"].n_unique():
            return frames
        found = dict(frames)
        own = self._own_groups(frames["groups"], targets)
        for name in BY_RANK:
            if name in frames:
                found[name] = self._spread(frames[name], targets, own)
        files = dict(found["dumps"].select("rank", "evidence_id").iter_rows())
        found["memberships"] = self._memberships(frames["memberships"], targets, own, files)
        found["evidence"] = _of_files(frames["evidence"], targets)
        found["readings"] = _of_files(frames["readings"], targets)
        return found

    def _targets(self, evidence: pl.DataFrame) -> pl.DataFrame:
        """One row per file of a rank: the id of the file that was read for it, its own id, rank, place, and how far its clock is from that one's."""
        late = {rank: late_ns(self.scene, rank) for rank in {*self.ranks, *self.firsts}}
        world = self.scene.world
        rows = pl.DataFrame(
            {
                "path": self.shown,
                "own_path": self.paths,
                "first": self.firsts,
                "own_rank": self.ranks,
                "own_host": [world.host_of(rank) for rank in self.ranks],
                "pid_shift": [self.scene.pid(rank) - self.scene.pid(first) for rank, first in zip(self.ranks, self.firsts, strict=True)],
                "late": [late[rank] - late[first] for rank, first in zip(self.ranks, self.firsts, strict=True)],
            },
            schema_overrides={"late": pl.Duration("ns")},
        )
        joined = rows.join(evidence.select("path", pl.col("evidence_id").alias("shown_id")), on="path", how="inner", maintain_order="left")
        own = [
            shown if rank == first else hashlib.sha256(f"{shown} {path}".encode()).hexdigest()[:16]
            for shown, rank, first, path in joined.select("shown_id", "own_rank", "first", "own_path").iter_rows()
        ]
        return joined.with_columns(pl.Series("own_id", own, dtype=pl.String)).sort("own_rank", maintain_order=True)

    def _axes(self, groups: pl.DataFrame, targets: pl.DataFrame) -> pl.DataFrame:
        """(rank whose file was read, group) -> axis."""
        first = targets.select(pl.col("shown_id").alias("evidence_id"), "first").unique()
        rows = []
        for rank, name, id_ in groups.join(first, on="evidence_id").select("first", "group_name", "group_id").iter_rows():
            mine = self.scene.play.groups[rank]
            axis = name if name in mine else next((axis for axis, group in mine.items() if str(group.number) == name), None)
            rows.append((rank, id_, axis))
        return pl.DataFrame(rows, schema={"first": pl.Int64, "group_id": pl.String, "axis": pl.String}, orient="row").unique(
            ["first", "group_id"]
        )

    def _memberships(self, frame: pl.DataFrame, targets: pl.DataFrame, own: pl.DataFrame, files: dict[int, str]) -> pl.DataFrame:
        """A long list of members comes once, in the name of the first member that left a file; a short one from every member, as it is read."""
        first = targets.select(pl.col("shown_id").alias("evidence_id"), "first").unique()
        told = frame.join(first, on="evidence_id", how="left", maintain_order="left")
        is_short = (pl.len().over("evidence_id", "group_id") <= SHORT_LIST) | pl.col("first").is_null()
        is_list = is_short & pl.col("group_rank").is_not_null()
        lists = self._spread(told.filter(is_list).drop("first").rename({"rank": "member"}), targets, own).rename({"member": "rank"})
        is_own = pl.col("first").is_null() | (pl.col("rank") == pl.col("first"))
        single = self._spread(told.filter(~is_list & is_own).drop("first"), targets, own)
        spread = pl.concat([lists.select(frame.columns), self._with_own_places(single).select(frame.columns)])
        long = told.filter(~is_short).select("group_id", "first").unique().join(own, on=["first", "group_id"], how="inner")
        kinds = {axis: id_.partition(":")[0] for id_, axis in long.select("group_id", "axis").iter_rows()}
        found = [spread]
        for axis, kind in kinds.items():
            for members, digits in zip(self.seats[axis].members.tolist(), self.seats[axis].ids, strict=True):
                by = next((files[rank] for rank in members if rank in files), None)
                if by is not None:
                    data = {
                        "evidence_id": by,
                        "record": "E0",
                        "group_id": f"{kind}:{digits}",
                        "rank": members,
                        "group_rank": list(range(len(members))),
                    }
                    rows = TABLES["memberships"].frame({**data, "is_inferred": False, "job_id": "job-0", "attempt": 0}, height=len(members))
                    found.append(rows)
        return pl.concat(found).unique(["evidence_id", "group_id", "rank"], keep="first", maintain_order=True)

    def _with_own_places(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Memberships of ranks that their own files tell of, with the place of each in its group where the members are listed."""
        places = {
            (self.seats[axis].id_of(rank), rank): int(self.seats[axis].place[rank])
            for axis in self.seats
            for rank in rows["rank"].unique().to_list()
            if self.seats[axis].group[rank] >= 0
        }
        told = [places.get((id_.partition(":")[2].partition(".")[0], rank)) for id_, rank in rows.select("group_id", "rank").iter_rows()]
        return rows.with_columns(pl.when(pl.col("group_rank").is_not_null()).then(pl.Series(told, dtype=pl.Int64)).alias("group_rank"))

    def _spread(self, frame: pl.DataFrame, targets: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
        names = frame.columns
        others = frame.join(targets.select("shown_id").unique(), left_on="evidence_id", right_on="shown_id", how="anti")
        rows = targets.select("shown_id", "own_id", "first", "own_rank", "own_host", "pid_shift", "late").join(
            frame, left_on="shown_id", right_on="evidence_id", how="inner", maintain_order="left_right"
        )
        if "group_id" in names:
            rows = self._in_own_groups(rows, own)
        changes = [pl.col("own_id").alias("evidence_id")]
        if "rank" in names:
            changes.append(pl.when(pl.col("rank").is_not_null()).then("own_rank").alias("rank"))
        if "host" in names:
            changes.append(pl.when(pl.col("host").is_not_null()).then("own_host").alias("host"))
        changes += [pl.col(name) + pl.col("pid_shift") for name in ("pid", "thread_id") if rows.schema.get(name) == pl.Int64]
        changes += [pl.col(name) + pl.col("late") for name in INSTANTS if name in names]
        return pl.concat([rows.with_columns(changes).select(names), others])

    @cached_property
    def seats(self) -> dict[str, _Seats]:
        """Per axis who sits where in which group."""
        return _seats(self.scene)

    def _own_groups(self, groups: pl.DataFrame, targets: pl.DataFrame) -> pl.DataFrame:
        """(rank whose file was read, rank, group of the first) -> axis, own group, its name."""
        known: dict[tuple[int, str], list[tuple[str, str]]] = {}
        for first, id_, axis in self._axes(groups, targets).drop_nulls().iter_rows():
            known.setdefault((first, axis), []).append((id_, axis))
        rows = []
        for first, own in targets.select("first", "own_rank").unique().iter_rows():
            for axis, seats in self.seats.items():
                for id_, _ in known.get((first, axis), ()):
                    kind, listed, digits = id_.partition(":")
                    twin = digits.partition(".")[2]
                    own_id = (
                        f"{kind}:{seats.id_of(own)}{'.' + twin if twin else ''}"
                        if listed
                        else f"{id_.partition('?')[0]}?{seats.name_of(own)}"
                    )
                    rows.append((first, own, id_, axis, own_id, seats.name_of(own)))
        names = ("first", "own_rank", "group_id", "axis", "own_group", "own_name")
        return pl.DataFrame(rows, schema={name: pl.Int64 if name in ("first", "own_rank") else pl.String for name in names}, orient="row")

    def _in_own_groups(self, rows: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
        """Rows of another rank's file with the groups, and the peers in them, of the rank itself."""
        rows = rows.join(own, on=["first", "own_rank", "group_id"], how="left", maintain_order="left")
        for peer in (name for name in ("src", "dst", "member") if name in rows.columns):
            rows = self._with_own_peers(rows, peer)
        changes = [pl.coalesce("own_group", "group_id").alias("group_id")]
        if "group_name" in rows.columns:
            is_number = pl.col("group_name").str.contains(r"^[0-9]+$")
            changes.append(pl.when(is_number).then(pl.coalesce("own_name", "group_name")).otherwise("group_name").alias("group_name"))
        return rows.with_columns(changes)

    def _with_own_peers(self, rows: pl.DataFrame, peer: str) -> pl.DataFrame:
        """A column of ranks of the first rank's group as those that sit at the same places in the own group."""
        at = rows.select((pl.col(peer).is_not_null() & pl.col("axis").is_not_null()).arg_true()).to_series()
        if not at.len():
            return rows
        told = rows[at].select(peer, "axis", "own_rank")
        values = told[peer].to_numpy(writable=True)
        for axis in told["axis"].unique().to_list():
            here, seats = told.select((pl.col("axis") == axis).arg_true()).to_series().to_numpy(), self.seats[axis]
            values[here] = seats.members[seats.group[told["own_rank"].to_numpy()[here]], seats.place[values[here]]]
        return rows.with_columns(rows[peer].scatter(at, pl.Series(values)).alias(peer))


@dataclass(frozen=True)
class _Seats:
    """Groups of an axis: number of each rank's group among them (-1 = in none), place of each rank in it, members."""

    group: np.ndarray
    place: np.ndarray
    members: np.ndarray
    ids: list[str]
    names: list[str]

    def id_of(self, rank: int) -> str:
        return self.ids[int(self.group[rank])]

    def name_of(self, rank: int) -> str:
        return self.names[int(self.group[rank])]


def _seats(scene: Scene) -> dict[str, _Seats]:
    by_axis: dict[str, dict[int, tuple[int, ...]]] = {}
    for mine in scene.play.groups:
        for axis, one in mine.items():
            by_axis.setdefault(axis, {})[one.number] = one.members
    found = {}
    for axis, groups in by_axis.items():
        members = np.array(list(groups.values()))
        group, place = (np.full(scene.world.world_size, -1, dtype=np.int64) for _ in range(2))
        group[members] = np.arange(len(members))[:, None]
        place[members] = np.arange(members.shape[1])[None, :]
        ids = [hashlib.sha256(",".join(map(str, mine)).encode()).hexdigest()[:8] for mine in members.tolist()]  # as collectors name a group
        found[axis] = _Seats(group, place, members, ids, [str(number) for number in groups])
    return found


def _of_files(frame: pl.DataFrame, targets: pl.DataFrame) -> pl.DataFrame:
    """Rows of a table with one row per file and path, copied to the files that were not written."""
    copies = targets.filter(pl.col("own_rank") != pl.col("first")).join(
        frame, left_on="path", right_on="path", how="inner", maintain_order="left"
    )
    own = [pl.col("own_id").alias("evidence_id"), pl.col("own_path").alias("path")]
    if "rank" in frame.columns:
        own += [
            pl.when(pl.col("rank").is_not_null()).then("own_rank").alias("rank"),
            pl.when(pl.col("host").is_not_null()).then("own_host").alias("host"),
        ]
    return pl.concat([frame, copies.with_columns(own).select(frame.columns)])
