"""What the decision wants to know of the job beside the verdict: its pace, its layout, spares, network alerts, launches, who was seen alive. Pure.

Read from the tables of a case once; what they do not tell is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from rca.clocks import clocks
from rca.decision.job_size import UNKNOWN_SIZE, JobSize, job_size
from rca.decision.launches import NO_LAUNCHES, Launches, launches
from rca.incidents.course import fingerprint, last_step, step_s
from rca.roster import Roster
from rca.types import Tables

__all__ = ["NO_FACTS", "Alerts", "Facts", "Layout", "facts"]

FLAP_WINDOW: Final = timedelta(minutes=5)  # ByteRobust, SOSP'25, section 4: 2 alerts in 5 minutes, for example
REJOINS: Final = ("torchft",)  # sources of events whose programs let ranks rejoin without a new launch
IDLE: Final = ("idle",)  # base states of a node that takes work at once


@dataclass(frozen=True)
class Alerts:
    """Network alerts of a host, and how many fell into one window of five minutes at most."""

    count: int
    most_in_window: int | None  # None = their times are not told
    places: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel axes; a size that nothing tells is None."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    dp: int | None = None
    told_by: str = ""

    @property
    def replica(self) -> int | None:
        """Ranks of one model replica, tp x pp x cp; None unless tensor and pipeline sizes are told."""
        return None if self.tp is None or self.pp is None else self.tp * self.pp * (self.cp or 1)


NO_LAYOUT: Final = Layout()


@dataclass(frozen=True)
class Facts:
    """Of the job at hand."""

    job_id: str | None = None  # as its scheduler knows it
    step_s: float | None = None  # usual length of a step, s
    last_step: int | None = None
    size: JobSize = UNKNOWN_SIZE
    layout: Layout = NO_LAYOUT
    launches: Launches = NO_LAUNCHES
    alerts: Mapping[str, Alerts] = field(default_factory=dict)  # host -> its network alerts
    idle_hosts: tuple[str, ...] | None = None  # nodes that the scheduler shows idle beside those of the job; None = it was not asked
    listed_hosts: int = 0  # nodes that it shows at all
    can_rejoin: bool | None = None  # ranks can rejoin without a new launch; None = nothing tells
    captured: frozenset[int] = frozenset()  # ranks of which a stack or process was taken
    fingerprint: str | None = None  # of the evidence


NO_FACTS: Final = Facts()


def facts(case: Tables, who: Roster) -> Facts:
    """The facts of a case."""
    files = dict(case.table("evidence").select("evidence_id", "path").collect().iter_rows())
    idle, listed = _spares(case, who)
    rejoins = case.table("trainer_events").filter(pl.col("source").is_in(REJOINS)).head(1).collect().height
    return Facts(
        job_id=_job(case),
        step_s=step_s(case),
        last_step=last_step(case),
        size=(size := job_size(case, who)),
        layout=_layout(case, size),
        launches=launches(case),
        alerts=_alerts(case, files),
        idle_hosts=idle,
        listed_hosts=listed,
        can_rejoin=True if rejoins else None,
        captured=who.ranks_with.get("stacks", frozenset()),
        fingerprint=fingerprint(case)[1],
    )


def _job(case: Tables) -> str | None:
    """The job's name in its scheduler's books, or in the records of its launches, where they tell of one job only."""
    for table, column in (("attempts", "job_id"), ("job_records", "base_job_id")):
        names = case.table(table).select(pl.col(column).drop_nulls().unique()).collect()[column].to_list()
        if len(names) == 1 and names[0] != "job-0":
            return str(names[0])
    return None


def _spares(case: Tables, who: Roster) -> tuple[tuple[str, ...] | None, int]:
    """Idle nodes beside the job's own. A list that holds only nodes of the job was not asked for spares."""
    rows = case.table("node_states").filter(pl.col("host").is_not_null()).select("host", "base_state", "is_drain", "is_responding")
    mine = set(who.hosts.values())
    others = rows.filter(~pl.col("host").is_in(sorted(mine))).unique().collect() if mine else None
    if others is None or not others.height:
        return None, 0
    bad = pl.col("is_drain").fill_null(value=False) | ~pl.col("is_responding").fill_null(value=True)
    free = others.filter(pl.col("base_state").str.to_lowercase().is_in(IDLE) & ~bad)["host"].unique().sort().to_list()
    return tuple(free), others["host"].n_unique()


def _layout(case: Tables, size: JobSize) -> Layout:
    """By the coordinates of a rank map; else by the sizes of the groups, where all of a kind have one size."""
    axes = ("tp", "pp", "cp", "dp")
    told = case.table("ranks").select([pl.col(axis).max() for axis in axes] + [pl.col("tp", "pp").count().name.suffix("_n")]).collect()
    row = told.row(0, named=True)
    if row["tp_n"] and row["pp_n"]:
        sizes = {axis: None if row[axis] is None else int(row[axis]) + 1 for axis in axes}
        return Layout(**sizes, told_by="a rank map")
    members = (
        case.table("memberships").filter(~pl.col("is_inferred").fill_null(value=False)).select("group_id", "rank").drop_nulls().unique()
    )
    kinds = case.table("groups").filter(pl.col("kind").is_in(axes)).select("group_id", "kind").unique()
    counted = members.join(kinds, on="group_id").group_by("group_id", "kind").len().collect()
    found = {kind[0]: rows["len"].unique().to_list() for kind, rows in counted.group_by("kind")}
    one = {kind: sizes[0] for kind, sizes in found.items() if len(sizes) == 1}
    if not one:
        return NO_LAYOUT
    world = 0 if size.is_least else size.num_ranks or 0
    if {"tp", "dp"} <= set(one) and "pp" not in one and world == one["tp"] * one["dp"] * one.get("cp", 1):
        one["pp"] = 1
    if {"pp", "dp"} <= set(one) and "tp" not in one and world == one["pp"] * one["dp"] * one.get("cp", 1):
        one["tp"] = 1
    if set(one) == {"dp"} and world == one["dp"]:
        one |= {"tp": 1, "pp": 1}
    return Layout(**one, told_by="the process groups")


def _alerts(case: Tables, files: Mapping[str, str]) -> dict[str, Alerts]:
    """Events of ports and adapters by host: of its kernel, and of its transport. A burst that was folded is one alert."""
    told = case.derive(clocks)
    found: dict[str, list[tuple[datetime | None, str]]] = defaultdict(list)
    for table, which in (
        ("kernel_events", pl.col("kind").is_in(["nic", "ib"])),
        ("log_events", pl.col("signature") == "nccl_net_async_event"),
    ):
        for row in case.table(table).filter(which & pl.col("host").is_not_null()).collect().iter_rows(named=True):
            found[row["host"]].append((told.at(row), f"{files.get(row['evidence_id'], 'evidence')} {row['record']}"))
    return {host: _counted(alerts) for host, alerts in sorted(found.items())}


def _counted(alerts: list[tuple[datetime | None, str]]) -> Alerts:
    times = sorted(at for at, _ in alerts if at is not None)
    most = max((sum(first <= at <= first + FLAP_WINDOW for at in times) for first in times), default=0)
    return Alerts(len(alerts), most if len(times) == len(alerts) else None, tuple(place for _, place in alerts[:4]))
