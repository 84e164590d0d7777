"""Reports of clusters and health services that may concern the job: which hosts, GPUs and ranks, when, and why one does not count.

1. Only hosts that carry ranks of the job. A report without a host counts where the whole job is on one.
2. Only what a service itself calls fatal, a bad condition of a node, a component called unhealthy, or an Xid that the catalogue knows as the
   beginning of a fault of hardware. Warnings are mentioned.
3. Only from the beginning of the job to its end, and as much later as services need to see and say it: a node is called lost 40 s to 5 min
   after its last sign. What came before a step that all ranks made has not ended the job.
4. A recovery takes back what the same service said before of the same check (and GPU, where it names one).
5. Without an instant nothing is counted: labels and conditions without history may be older than the job, or its consequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from rca.analyses._alive import last_steps
from rca.analyses._faults import Story, story
from rca.analyses._kernel_users import users_of
from rca.analyses._words import quoted
from rca.catalogues import by_code, rows
from rca.types import Cite, Tables

__all__ = ["Report", "Reports", "cites_of", "reports"]

LAG: Final = timedelta(seconds=120)  # from a fault to the report of a service on the node: its checks run every 10 to 60 s
LOST_LAG: Final = timedelta(seconds=330)  # of Kubernetes' node controller: a grace of 40 to 50 s, and up to 5 min until pods are evicted
BEFORE: Final = timedelta(seconds=60)  # clocks of controllers and hosts
STOP_REACH: Final = timedelta(minutes=15)  # how long before the end a drain or preemption may be announced
PLANNED: Final = ("preemption", "planned")
_ON_NODE: Final = frozenset({"nvsentinel", "gpud", "gcm", "hyperpod"})  # agents that stamp by the clock of the node itself
HARDWARE: Final = frozenset({"gpu_fault", "gpu_memory_fault", "nvlink_fault", "host_fault", "host_lost", "network_fault", "storage_stall"})
BEGINS: Final = ("root", "either")


@dataclass(frozen=True)
class Report:
    """One report that speaks of the job's hosts."""

    row: Mapping[str, Any]
    host: str
    cause: str
    at: datetime | None
    ranks: tuple[int, ...]  # of the GPU that it names, where that can be told
    aside: str = ""  # why it does not count; "" = it does

    @property
    def name(self) -> str:
        """In a few words."""
        code = self.row["code"]
        if self.row["kind"] == "xid" and code:
            return f"Xid {code}"
        return quoted(str(self.row["reason"] or code or self.row["kind"]), 120)


@dataclass(frozen=True)
class Reports:
    """All that concern the job."""

    faults: tuple[Report, ...]  # of hardware, that count
    stops: tuple[Report, ...]  # planned, that count
    aside: tuple[Report, ...]  # seen and not counted
    needs_map: bool  # reports are there, and no rank is placed on a host


def reports(case: Tables) -> Reports:
    """As all files tell them, each fact once per file."""
    told = case.derive(story)
    hosts = set(told.logs.hosts.values())
    table = case.table("node_events").sort("evidence_id", "record").collect().rows(named=True)
    if not hosts:
        return Reports((), (), (), needs_map=any(_is_severe(row) for row in table))
    alone = next(iter(hosts)) if len(hosts) == 1 and told.logs.hosts.keys() == told.logs.everyone else None
    healthy = [row for row in table if row["is_healthy"] and row["logged_at"] is not None]
    placed = [(row, host) for row in table if (host := row["host"] or alone) in hosts and host is not None]
    found = [_report(case, told, row, host, healthy) for row, host in placed]
    seen = sorted(
        (r for r in found if r is not None), key=lambda r: (r.at is None, r.at or datetime.min, r.row["evidence_id"], r.row["record"])
    )
    faults = [r for r in seen if not r.aside and r.cause in HARDWARE]
    broken = {r.host for r in seen if r.cause in HARDWARE and (not r.aside or _is_severe(r.row))}
    stops = [
        r for r in seen if not r.aside and r.row["kind"] in PLANNED and r.host not in broken
    ]  # a drain of a broken node follows from that
    return Reports(tuple(faults), tuple(stops), tuple(r for r in seen if r.aside), needs_map=False)


def _report(case: Tables, told: Story, row: Mapping[str, Any], host: str, healthy: Sequence[Mapping[str, Any]]) -> Report | None:
    """A report of the job's hosts, None for one that tells of no trouble."""
    if row["kind"] in ("none", None) or row["is_healthy"] is True:
        return None
    cause = _cause(row)
    is_planned = row["kind"] in PLANNED
    span = told.logs.span
    at = row["first_at"] or row["logged_at"]
    if span is not None and at is not None and row["logged_at"] is not None and at < span[0] - BEFORE:
        at = row["logged_at"]  # said again during the job
    aside = _aside(case, told, row, at, healthy, host) if is_planned or _is_severe(row) else "no fault that ends a job by itself"
    return Report(row, host, cause, at, _ranks(case, told, row, host), aside)


def _cause(row: Mapping[str, Any]) -> str:
    if row["kind"] == "xid":
        known = _known(row)
        return known["cause"] or "unknown" if known else "unknown"
    return next((one["cause"] for one in rows("health_reports") if one["kind"] == row["kind"]), "unknown")


def _known(row: Mapping[str, Any]) -> Mapping[str, str] | None:
    """What the catalogue knows of the Xid that a report names."""
    code = row["code"] or ""
    return by_code("xid").get(int(code)) if code.isascii() and code.isdigit() and len(code) < 10 else None


def _is_severe(row: Mapping[str, Any]) -> bool:
    """Whether a report tells of a fault that can end a job."""
    if row["attribution"] != "platform" or row["is_healthy"] is True or row["is_fatal"] is False:
        return False
    if row["kind"] == "xid":
        known = _known(row)
        return known is not None and known["role"] in BEGINS and known["cause"] in HARDWARE
    if row["kind"] == "host_lost":
        return True
    return row["is_fatal"] is True or (row["is_healthy"] is False and row["source"] in ("node_condition", "hyperpod", "gpud", "aws", "gcm"))


def _aside(case: Tables, told: Story, row: Mapping[str, Any], at: datetime | None, healthy: Sequence[Mapping[str, Any]], host: str) -> str:
    if at is None:
        return "when is not told"
    span = told.logs.span
    if span is None:
        return "when the job ran is not told"
    lag = LOST_LAG if row["kind"] == "host_lost" else LAG
    if at < span[0] - BEFORE:
        return "from before the job"
    if at > span[1] + lag:
        return "from after the job's end"
    if row["kind"] in PLANNED:
        return "" if at >= span[1] - STOP_REACH else "long before the job's end"
    clock = host if row["source"] in _ON_NODE else None
    order = told.logs.clocks.order
    if any(step > at + BEFORE or order((step, whose), (at, clock)) == 1 for step, whose in case.derive(_last_steps)):
        return "the job made steps after it"
    if any(_takes_back(one, row, host, at, span[1]) for one in healthy):
        return "taken back before the job's end"
    return ""


def _last_steps(case: Tables) -> list[tuple[datetime, str | None]]:
    return last_steps(case, case.derive(story).logs)


_PAIRS: Final = {"NodeNotReady": "NodeReady", "NodeNotSchedulable": "NodeSchedulable"}


def _takes_back(one: Mapping[str, Any], row: Mapping[str, Any], host: str, at: datetime, end: datetime) -> bool:
    """Whether a recovery is of what a report says, later than it and before the job's end."""
    if one["host"] not in (host, None) or one["source"] != row["source"] or not at < one["logged_at"] <= end:
        return False
    if one["gpu"] and row["gpu"] and one["gpu"] != row["gpu"]:
        return False
    if row["reason"] in _PAIRS:
        return bool(one["reason"] == _PAIRS[row["reason"]])
    return bool(one["object"] == row["object"]) if row["source"] in ("node_condition", "gpud") else bool(one["reason"] == row["reason"])


def _ranks(case: Tables, told: Story, row: Mapping[str, Any], host: str) -> tuple[int, ...]:
    """Ranks that a report concerns: by the address or UUID of the GPU, or its number where a map numbers them so; the host's one rank; all of
    the host's for a host."""
    on_host = told.logs.ranks_on(host)
    if row["kind"] in ("host", "host_lost") or len(on_host) == 1:
        return on_host
    if found := case.derive(users_of).uses(host, row["gpu"]):
        return found
    named = {name for name in (row["gpu"], row["gpu_uuid"]) if name}
    ranks = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("gpu").is_in(sorted(named))).select("rank").unique().collect()
    of_host = sorted(set(ranks["rank"]) & set(on_host)) if named else []
    return tuple(of_host) if len(of_host) == 1 else ()


def cites_of(found: Iterable[Report], most: int) -> tuple[Cite, ...]:
    """The rows behind reports, each once."""
    cites = [
        Cite("node_events", r.row["evidence_id"], "", r.row["record"], str(r.row["message"] or r.name)[:300]) for r in found
    ]  # fmt: skip
    return tuple(dict.fromkeys(cites))[:most]
