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
        axes = self._axes(frames["groups"], targets)
        for name in BY_RANK:
            if name in frames:
                found[name] = self._spread(frames[name], targets, axes)
        files = dict(found["dumps"].select("rank", "evidence_id").iter_rows())
        found["memberships"] = self._memberships(frames["memberships"], targets, axes, files)
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

    def _memberships(self, frame: pl.DataFrame, targets: pl.DataFrame, axes: pl.DataFrame, files: dict[int, str]) -> pl.DataFrame:
        """A long list of members comes once, in the name of the first member that left a file; a short one from every member, as it is read."""
        first = targets.select(pl.col("shown_id").alias("evidence_id"), "first").unique()
        told = frame.join(first, on="evidence_id", how="left", maintain_order="left")
        is_short = (pl.len().over("evidence_id", "group_id") <= SHORT_LIST) | pl.col("first").is_null()
        spread = self._spread(told.filter(is_short | (pl.col("rank") == pl.col("first"))).drop("first"), targets, axes)
        long = told.filter(~is_short).select("group_id", "first").unique().join(axes, on=["first", "group_id"], how="inner")
        kinds = {axis: id_.partition(":")[0] for id_, axis in long.select("group_id", "axis").iter_rows()}
        lists = [spread]
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
                    lists.append(rows)
        return pl.concat(lists).unique(["evidence_id", "group_id", "rank"], keep="first", maintain_order=True)

    def _spread(self, frame: pl.DataFrame, targets: pl.DataFrame, axes: pl.DataFrame) -> pl.DataFrame:
        names = frame.columns
        others = frame.join(targets.select("shown_id").unique(), left_on="evidence_id", right_on="shown_id", how="anti")
        rows = targets.select("shown_id", "own_id", "first", "own_rank", "own_host", "pid_shift", "late").join(
            frame, left_on="shown_id", right_on="evidence_id", how="inner", maintain_order="left_right"
        )
        if "group_id" in names:
            rows = self._in_own_groups(rows, axes)
        changes = [pl.col("own_id").alias("evidence_id")]
        if "rank" in names and "group_rank" not in names:
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

    def _in_own_groups(self, rows: pl.DataFrame, axes: pl.DataFrame) -> pl.DataFrame:
        """Rows of another rank's file with the groups, and the peers in them, of the rank itself."""
        rows = rows.join(axes, on=["first", "group_id"], how="left", maintain_order="left")
        own = rows.select("own_rank", "axis").unique().drop_nulls()
        ids = [self.seats[axis].id_of(rank) for rank, axis in own.iter_rows()]
        names = [self.seats[axis].name_of(rank) for rank, axis in own.iter_rows()]
        own = own.with_columns(pl.Series("own_digits", ids, dtype=pl.String), pl.Series("own_name", names, dtype=pl.String))
        rows = rows.join(own, on=["own_rank", "axis"], how="left", maintain_order="left")
        listed = pl.concat_str(
            pl.col("group_id").str.extract(r"^(.*:)"), "own_digits", pl.col("group_id").str.extract(r"(\.\d+)$").fill_null("")
        )
        named = pl.concat_str(pl.col("group_id").str.extract(r"^(.*\?)"), "own_name")
        is_number = pl.col("group_name").str.contains(r"^\d+$") if "group_name" in rows.columns else None
        rows = rows.with_columns(pl.coalesce(listed, named, "group_id").alias("group_id"))
        if is_number is not None:
            rows = rows.with_columns(
                pl.when(is_number).then(pl.coalesce("own_name", "group_name")).otherwise("group_name").alias("group_name")
            )
        for peer in ("src", "dst", *(("rank",) if "group_rank" in rows.columns else ())):
            if peer in rows.columns:
                rows = self._with_own_peers(rows, peer)
        return rows

    def _with_own_peers(self, rows: pl.DataFrame, peer: str) -> pl.DataFrame:
        """A column of ranks of the first rank's group as those that sit at the same places in the own group."""
        values = rows[peer].to_numpy(writable=True)
        axes, own = rows["axis"].to_numpy(), rows["own_rank"].to_numpy()
        for axis, seats in self.seats.items():
            at = np.flatnonzero((axes == axis) & ~np.isnan(values) if values.dtype.kind == "f" else axes == axis)
            if at.size:
                values[at] = seats.members[seats.group[own[at]], seats.place[values[at].astype(np.int64)]]
        return rows.with_columns(pl.Series(peer, values, nan_to_null=True).cast(pl.Int64))


@dataclass(frozen=True)
class _Seats:
    """Groups of an axis: number of each rank's group among them (-1 = in none), place of each rank in it, members."""

    group: np.ndarray
    place: np.ndarray
    members: np.ndarray
    ids: list[str]
    names: list[str]

    def id_of(self, rank: int) -> str:
        return self.ids[self.group[rank]]

    def name_of(self, rank: int) -> str:
        return self.names[self.group[rank]]


def _seats(scene: Scene) -> dict[str, _Seats]:
    by_axis: dict[str, dict[int, tuple[int, ...]]] = {}
    for mine in scene.play.groups:
        for axis, group in mine.items():
            by_axis.setdefault(axis, {})[group.number] = group.members
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
