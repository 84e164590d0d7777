"""Logs whose lines begin with the number of a rank on its host, not in the job: told by numbers that several hosts use at once. Pure.

torch writes global ranks before lines, many launchers local ones, and `[rank3]:` does not say whose it is. A rank is on one host: where the logs of
several hosts, written at one time, have the same numbers before their lines, and none that a host has no rank for, the numbers are local. Then a line
is of the rank that a map has at that place of its host; where none tells, it is of the host, and of a rank that nobody knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Final

import polars as pl

from rca.log_launches import APART, HALF_YEAR
from rca.log_sets import yearless
from rca.types import Source

__all__ = ["globally"]

USUAL: Final = 8  # GPUs of a host, where no map tells
# Kinds of lines in which a launcher names a rank of the job, whatever stands before them; at its start a rank may do so too.
LAUNCHERS: Final = r"^(?:elastic_|slurm_|k8s_|rendezvous_)"
STARTS: Final = r"^worker_"
TABLES_OF_LOGS: Final = (("log_events", "logged_at"), ("progress", "ended_at"))

Frames = dict[str, pl.DataFrame]
Places = dict[tuple[str, int], int]  # (host, local rank) -> rank


@dataclass
class _Host:
    """What the logs of a host have before their lines, and when they were written: as they say it, without zone and year."""

    numbers: set[int] = field(default_factory=set)
    moments: list[datetime] = field(default_factory=list)


def globally(frames: Frames) -> Frames:
    """The tables that change where logs count the ranks of their hosts: with the ranks of the job, or none. Empty where they do not."""
    logs = _logs(frames)
    known, places = _known(frames)
    most = max((local + 1 for _, local in places), default=USUAL)
    if not _are_local(_hosts(frames, logs), most, known):
        return {}
    seats = _seats(frames["ranks"], logs, places)
    places |= {(host, local): rank for rank, host, local in seats.select("rank", "host", "local_rank").drop_nulls().iter_rows()}
    return {"ranks": seats} | {name: _lines(frames[name], logs, places, most) for name, _ in TABLES_OF_LOGS}


def _logs(frames: Frames) -> dict[str, str]:
    """evidence_id -> host, of logs that are of one host and not of one rank: by their name or folder, else by the processes that they name."""
    named: dict[str, set[str]] = defaultdict(set)
    for id_, host in frames["ranks"].select("evidence_id", "host").drop_nulls().unique().iter_rows():
        named[id_].add(host)
    files = frames["readings"].select("evidence_id", "path").unique("evidence_id", keep="first")
    found = {}
    for id_, path in files.join(frames["log_events"].select("evidence_id").unique(), on="evidence_id", how="semi").iter_rows():
        source = Source(path, Path(path), 0)
        host = source.host_said or (next(iter(named[id_])) if len(named[id_]) == 1 else None)
        if host is not None and source.rank_said is None:
            found[id_] = host
    return found


def _known(frames: Frames) -> tuple[set[int], Places]:
    """Ranks that other evidence than logs names, and where a map has them: by their local rank, else by their order on the host."""
    logs = frames["log_events"]["evidence_id"].unique()
    others = {
        name: frames[name].filter(~pl.col("evidence_id").is_in(logs.implode())) for name in ("ranks", "dump_index", "dumps", "stacks")
    }
    ranks = {rank for rows in others.values() for rank in rows["rank"].drop_nulls().unique().to_list()}
    of_host: dict[str, set[int]] = defaultdict(set)
    places: Places = {}
    for host, local, rank in others["ranks"].select("host", "local_rank", "rank").drop_nulls(["host", "rank"]).unique().iter_rows():
        of_host[host].add(rank)
        if local is not None:
            places[host, local] = rank
    return ranks, places or {(host, local): rank for host, own in of_host.items() for local, rank in enumerate(sorted(own))}


def _hosts(frames: Frames, logs: Mapping[str, str]) -> dict[str, _Host]:
    """Hosts in whose logs numbers stand before lines."""
    found: dict[str, _Host] = defaultdict(_Host)
    for name, moment in TABLES_OF_LOGS:
        at, local = pl.col(moment), pl.col(f"{moment}_local")
        told = _with_bare(frames[name], ~pl.col("signature").str.contains(STARTS) if name == "log_events" else pl.lit(value=True))
        numbers = pl.col("rank").filter("is_bare").drop_nulls().unique()
        ends = (at.min().alias("first"), at.max().alias("last"), local.min().alias("low"), local.max().alias("high"))
        for id_, ranks, first, last, *texts in told.group_by("evidence_id").agg(numbers, *ends).iter_rows():
            if id_ in logs:
                host = found[logs[id_]]
                host.numbers.update(ranks)
                instants = [moment.replace(tzinfo=None, year=2000) for moment in (first, last) if moment is not None]
                host.moments += instants or [stamp for text in texts if (stamp := yearless(text or "")) is not None]
    return {name: host for name, host in found.items() if host.numbers}


def _with_bare(frame: pl.DataFrame, also: pl.Expr | None = None) -> pl.DataFrame:
    """With `is_bare`: the rank of a row is the number before its line. What else a launcher's line tells is of the same rank."""
    is_bare = pl.lit(value=True) if also is None else also
    if "signature" in frame.columns:
        is_bare &= ~pl.col("signature").str.contains(LAUNCHERS).any().over("evidence_id", "record")
    return frame.with_columns(is_bare=is_bare)


def _are_local(hosts: Mapping[str, _Host], most: int, known: Collection[int]) -> bool:
    """Whether the numbers count the ranks of each host: two hosts have the same ones at one time, and none has any beyond its own size.

    Logs of two launches or jobs have the same numbers too: of a job of one host, of another time, or beside a host that has only numbers beyond
    those.
    """
    if not hosts or max(max(host.numbers) for host in hosts.values()) >= most or (known and max(known) < most):
        return False
    shared = {
        number
        for one, two in combinations(hosts.values(), 2)
        if one.numbers & two.numbers and _are_at_once(one, two, is_wide=bool(known))
        for number in one.numbers & two.numbers
    }
    return bool(shared) and all(min(host.numbers) <= max(shared) for host in hosts.values())


def _are_at_once(one: _Host, two: _Host, *, is_wide: bool) -> bool:
    """Whether logs of two hosts were written at one time; where they bear no stamps, whether the job is known to be of several hosts."""
    if not one.moments or not two.moments:
        return is_wide
    gap = max(min(one.moments), min(two.moments)) - min(max(one.moments), max(two.moments))
    return gap <= APART or gap > HALF_YEAR  # over New Year


def _lines(frame: pl.DataFrame, logs: Mapping[str, str], places: Places, most: int) -> pl.DataFrame:
    """Rows of logs with the ranks of the job; and with their hosts, where the table has them."""
    of = pl.col("evidence_id").replace_strict(dict(logs), default=None, return_dtype=pl.String)
    is_local = of.is_not_null() & pl.col("rank").is_not_null() & (pl.col("rank") < most) & pl.col("is_bare")
    changed = {"rank": pl.when(is_local).then(_rank_at(of, places)).otherwise(pl.col("rank"))}
    if "host" in frame.columns:
        changed["host"] = pl.when(is_local).then(pl.coalesce("host", of)).otherwise(pl.col("host"))
    return _with_bare(frame).with_columns(**changed).drop("is_bare")


def _seats(frame: pl.DataFrame, logs: Mapping[str, str], places: Places) -> pl.DataFrame:
    """Rows of `ranks`: where logs put one rank on several hosts, theirs with the rank of the job, and left out where nobody knows it."""
    of_log = pl.col("evidence_id").is_in(list(logs)) & pl.col("host").is_not_null()
    many = frame.filter(of_log).group_by("rank").agg(pl.col("host").n_unique().alias("n")).filter(pl.col("n") > 1)["rank"].to_list()
    is_local = of_log & (pl.col("rank") <= max(many, default=-1))
    seats = frame.with_columns(rank=pl.when(is_local).then(_rank_at(pl.col("host"), places)).otherwise(pl.col("rank")))
    return seats.filter(pl.col("rank").is_not_null() | frame["rank"].is_null())


def _rank_at(host: pl.Expr, places: Places) -> pl.Expr:
    """The rank of the job that a host has at the place that `rank` names."""
    known = {f"{name} {local}": rank for (name, local), rank in places.items()}
    return pl.format("{} {}", host, pl.col("rank")).replace_strict(known, default=None, return_dtype=pl.Int64)
