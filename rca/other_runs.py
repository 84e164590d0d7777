"""Series, reports and samples of another run beside the job's own: left out where they contradict it. Pure: tables in, reasons out.

A series of losses, scores of a straggler detector, metrics of GPUs, snapshots of RAS or events of a trainer name little: some hosts, ranks,
step numbers, instants. One that contradicts what is surely the job's (rca/job_reach.py) is of another job, run or launch. One that
contradicts nothing stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import polars as pl

from rca.job_reach import Reach, label, local_time, reach_of
from rca.timing_sets import LOST_STEPS
from rca.types import Tables

__all__ = ["foreign_reports"]

SERIES = ("progress", "rank_progress", "steps", "rank_stats", "trainer_events", "spans", "ops", "nccl_calls", "host_samples")
STATES = ("rank_states", "gpu_samples", "nccl_ras", "nccl_ras_ranks")  # taken at any time after a job stands still
OF_FLEET = ("node_events",)  # tell of more hosts than those of the job, long before and after it: only their hosts count
STAMPED = ("log_events",)  # other readers tell their hosts and ranks: only stamps count
MOMENTS = ("ended_at", "started_at", "logged_at", "sampled_at", "taken_at")
SIZES = ("group_size", "ranks_per_comm")  # ranks of a communicator: never more than the job has
NEAR, ANY_ZONE = timedelta(hours=1), timedelta(hours=14)  # beside the known time of the job; zones that a stamp without one may be in
OTHER_LOSS = 10.0  # how far the ratio of two series of one loss may swing: one may be a mean or a sum of the other


@dataclass
class _Report:
    """What one file of such tables says of the job it is of."""

    ranks: set[tuple[int, str]] = field(default_factory=set)  # rank, host
    hosts: set[str] = field(default_factory=set)
    highest_rank: int = -1
    size: int = 0  # largest communicator
    steps: tuple[int, int] | None = None
    dated: list[datetime] = field(default_factory=list)
    local: list[datetime] = field(default_factory=list)
    is_state: bool = False
    is_stamped: bool = False  # its stamps may be held against it


def foreign_reports(case: Tables, own_logs: Collection[str], left_out: Collection[str]) -> dict[str, str]:
    """evidence_id -> why it is left out, of series, reports and samples that cannot be of this job.

    `own_logs`: logs of the job's processes; `left_out`: evidence that is known to be foreign.
    1. A rank or communicator beyond the world; hosts of which none is the job's.
    2. Instants before the job began or after it ended, also where they lack their zone.
    3. Steps that the job never reached, or that lie before its first; NaN or other losses for steps of which it noted sound ones. Not of a
       file whose instants lie within the time of the job.
    4. What tells nothing by itself goes with the files of its folder and kind, where most of them are foreign.
    """
    reports = _reports(case, left_out)
    if not reports:
        return {}
    reach = reach_of(case, own_logs, left_out)
    others = {id_: report for id_, report in reports.items() if id_ not in reach.own}
    known = _comparable(case, reach, reports)
    tells_other_loss = _other_losses(case, reach, others)
    found: dict[str, str] = {}
    for id_, report in sorted(others.items()):
        why = _too_many(report, reach) or _of_other_hosts(report, reach, known) or _at_another_time(report, reach)
        if not why and not _is_within(report, reach):
            why = _other_steps(report, reach) or tells_other_loss.get(id_, "")
        if why:
            found[id_] = why
    return found | _with_their_folder(case, reports, found)


def _reports(case: Tables, left_out: Collection[str]) -> dict[str, _Report]:
    """evidence_id -> what it says, of files with rows in these tables and no recorder dump or stack."""
    never = {*left_out, *_evidence_of(case, "dumps"), *_evidence_of(case, "stacks")}
    reports: dict[str, _Report] = defaultdict(_Report)
    for table in (*SERIES, *STATES, *OF_FLEET, *STAMPED):
        rows = case.table(table)
        columns = rows.collect_schema().names()
        for row in rows.group_by("evidence_id").agg(_bounds(columns)).sort("evidence_id").collect().iter_rows(named=True):
            if row["evidence_id"] not in never:
                _add(reports[row["evidence_id"]], row, table)
        if "host" in columns and table not in STAMPED:
            rank = pl.col("rank") if "rank" in columns else pl.lit(None, pl.Int64).alias("rank")
            for id_, number, host in rows.select("evidence_id", rank, "host").drop_nulls("host").unique().collect().iter_rows():
                if id_ in never:
                    continue
                reports[id_].hosts.add(host)
                if number is not None:
                    reports[id_].ranks.add((number, host))
    return dict(reports)


def _evidence_of(case: Tables, table: str) -> Collection[str]:
    return set(case.table(table).select(pl.col("evidence_id").unique()).collect()["evidence_id"])


def _bounds(columns: Collection[str]) -> list[pl.Expr]:
    """Smallest and largest of what a table tells."""
    moment = next((name for name in MOMENTS if name in columns), None)
    wanted = {"at": moment, "local": f"{moment}_local", "rank": "rank", "step": "step"} | {name: name for name in SIZES}
    return [
        getattr(pl.col(column), end)().alias(f"{what}_{end}")
        for what, column in wanted.items()
        if column is not None and column in columns
        for end in ("min", "max")
    ]


def _add(report: _Report, row: Mapping[str, object], table: str) -> None:
    """One table's bounds."""
    for end in ("min", "max"):
        if table not in OF_FLEET and isinstance(at := row.get(f"at_{end}"), datetime):
            report.dated.append(at)
        if table not in OF_FLEET and isinstance(text := row.get(f"local_{end}"), str) and (naive := local_time(text)) is not None:
            report.local.append(naive)
    if table in STAMPED:
        return
    report.is_state |= table in STATES
    report.highest_rank = max(report.highest_rank, *(n for name in ("rank_max",) if isinstance(n := row.get(name), int)), -1)
    report.size = max(report.size, *(n for name in SIZES if isinstance(n := row.get(f"{name}_max"), int)), 0)
    low, high = row.get("step_min"), row.get("step_max")
    if isinstance(low, int) and isinstance(high, int):
        first, last = report.steps or (low, high)
        report.steps = (min(first, low), max(last, high))


def _too_many(report: _Report, reach: Reach) -> str:
    size = reach.job.world_size
    if size is None:
        return ""
    if report.highest_rank >= size:
        return f"another job: it has a rank {report.highest_rank}, and the job {size} ranks"
    return f"another job: a communicator has {report.size} ranks there, and the job {size}" if report.size > size else ""


def _comparable(case: Tables, reach: Reach, reports: Mapping[str, _Report]) -> Mapping[str, str] | None:
    """Other names and addresses of hosts -> name; None where nothing but the ranks bears the job's names: then machines may be called otherwise."""
    rows = case.table("host_addresses").select("address", "host").drop_nulls().unique().collect()
    known = dict(rows.iter_rows())
    machines = {label(host) for report in reports.values() for host in report.hosts}
    for table in ("host_logs", "hosts", "node_states"):
        machines |= {label(host) for host in case.table(table).select(pl.col("host").drop_nulls().unique()).collect()["host"]}
    return known if machines & reach.names else None


def _of_other_hosts(report: _Report, reach: Reach, known: Mapping[str, str] | None) -> str:
    """Not one of its hosts is the job's: by the hosts of the same ranks, or by name alone where every rank of the job is placed.

    Where the names of machines cannot be compared, only a rank tells, and not in the time of the job where nothing else of the kind is there:
    its hosts may only be called otherwise (pods).
    """
    aliases = known or {}
    called = {host: label(aliases.get(host, host)) for host in report.hosts}
    named = set(called.values()) - {""}
    if not named or not reach.names or named & reach.names:
        return ""
    for rank, host in sorted(report.ranks):
        if rank in reach.job.hosts and called[host] and (known is not None or reach.has_timings or not _is_within(report, reach)):
            return f"another job: rank {rank} is on {host} there, and on {reach.job.hosts[rank]} in the job"
    return f"another job: it is of host {min(named)}, where the job has no rank" if known is not None and reach.is_whole else ""


def _times(report: _Report) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """First and last moment that it tells, and how far off they may be."""
    if report.dated:
        yield min(report.dated), max(report.dated), timedelta()
    elif report.local:
        yield min(report.local), max(report.local), ANY_ZONE


def _at_another_time(report: _Report, reach: Reach) -> str:
    for begin, end, zone in _times(report):
        began, ended = (at if at is None or begin.tzinfo else at.replace(tzinfo=None) for at in (reach.began, reach.ended))
        told = " UTC" if begin.tzinfo else ""
        if began is not None and end < began - NEAR - zone:
            return f"another run: it ends {end:%Y-%m-%d %H:%M:%S}{told}, before the job began"
        if ended is not None and not report.is_state and begin > ended + NEAR + zone:
            return f"another run: it begins {begin:%Y-%m-%d %H:%M:%S}{told}, after the job ended"
    return ""


def _is_within(report: _Report, reach: Reach) -> bool:
    """Whether its instants (with their zone) lie in the known time of the job."""
    began = reach.began or min((first for first, _ in reach.job.calls.values()), default=None)
    return bool(report.dated and began and reach.ended) and max(report.dated) >= began and min(report.dated) <= reach.ended  # type: ignore[operator]


def _other_steps(report: _Report, reach: Reach) -> str:
    if report.steps is None or reach.first is None or reach.last is None:
        return ""
    last = report.steps[1]
    if last > reach.last:
        return f"another run, or a later part of it: it goes to step {last}, and the job reached step {reach.seen}"
    if last < reach.first - LOST_STEPS:
        return f"another run, or an earlier part of it: it ends at step {last}, and what is known of the job begins at step {reach.first}"
    return ""


def _other_losses(case: Tables, reach: Reach, reports: Mapping[str, _Report]) -> dict[str, str]:
    """Files with losses that were not finite at steps of which the job noted sound values, or that go other ways than its own."""
    rows = case.table("progress").filter(pl.col("evidence_id").is_in(sorted(reports)) & pl.col("step").is_not_null())
    told = rows.select("evidence_id", "step", "loss", "is_finite").unique().sort("evidence_id", "step").collect()
    broken = min((step for step, is_sound in reach.is_sound.items() if not is_sound), default=None)
    ratios: dict[str, list[float]] = defaultdict(list)
    found: dict[str, str] = {}
    for id_, step, loss, is_finite in told.iter_rows():
        if is_finite is False and loss is None and reach.is_sound.get(step) and (broken is None or step < broken):
            found.setdefault(id_, f"another run: its loss or gradient norm at step {step} is not finite, and the job noted sound ones")
        ratios[id_] += [loss / own for own in reach.losses.get(step, ())[:1] if loss is not None and loss > 0 and own > 0]
    for id_, values in ratios.items():
        if values and max(values) > OTHER_LOSS * min(values):
            found.setdefault(id_, "another run: its losses at the same steps go other ways than those that the job noted")
    return found


def _with_their_folder(case: Tables, reports: Mapping[str, _Report], found: Mapping[str, str]) -> dict[str, str]:
    """Files that tell nothing by themselves, in a folder where most files that the same reader read are foreign."""
    rows = case.table("readings").select("evidence_id", "path", "collector").unique("evidence_id", keep="first").collect()
    sets: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for id_, path, reader in rows.sort("evidence_id").iter_rows():
        if id_ in reports:
            sets[path.rpartition("/")[0], reader].append(id_)
    more: dict[str, str] = {}
    for inside in sets.values():
        foreign, rest = [id_ for id_ in inside if id_ in found], [id_ for id_ in inside if id_ not in found]
        if len(foreign) > len(rest):
            silent = [id_ for id_ in rest if not reports[id_].hosts and not reports[id_].dated and not reports[id_].local]
            more |= dict.fromkeys(silent, found[foreign[0]])
    return more
