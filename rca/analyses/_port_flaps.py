"""Ports of adapters that report an error in a trainer's log, and whether their link was up again soon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import polars as pl

from rca.analyses._faults import Story
from rca.analyses._job_logs import Line
from rca.analyses._network_reports import speaker
from rca.types import Tables

__all__ = ["back_of", "downed", "flapped", "is_port_error"]

NEAR_S: Final = (
    900.0  # a link that is down is reported so long after at most: transports retry for tens of seconds, watchdogs wait ten minutes
)

_PORT_ERROR: Final = re.compile(
    r"(?i)port error|catastrophic|(?<!non-)(?<!non)fatal event(?! on)"
)  # the others tell of changes, or of one queue
_PORT_BACK: Final = re.compile(r"(?i)\bport (?:is )?active\b|\blink (?:is )?up\b")
_DEVICE: Final = re.compile(r"(?<![\w:])[a-z][\w-]{1,30}_[0-9]{1,3}(?::[0-9]{1,3})?")  # mlx5_3:1


def is_port_error(line: Line) -> bool:
    """Whether a line tells that a port of its own host failed."""
    return line.signature == "nccl_net_async_event" and _PORT_ERROR.search(line.text) is not None


def back_of(line: Line, told: Story) -> Line | None:
    """The line in which the same log says later that the port of a line is up again; None where none does."""
    device = _DEVICE.search(line.text)
    later = (o for o in told.logs.lines if o.signature == line.signature and o.evidence_id == line.evidence_id and o.place > line.place)
    return next((o for o in later if _PORT_BACK.search(o.text) and (not device or device[0] in o.text)), None)


def flapped(case: Tables, lines: Sequence[Line], told: Story) -> frozenset[str]:
    """Hosts whose link went down and came up again, as their kernel or transport says."""
    links = case.table("kernel_events").filter(pl.col("kind").is_in(["nic", "ib"]) & (pl.col("recovery") == "none"))
    kernels = set(links.select("host").drop_nulls().unique().collect()["host"])
    return frozenset(kernels | {speaker(line, told.logs) for line in lines if is_port_error(line) and back_of(line, told)})


def downed(case: Tables, told: Story, reported: datetime | None) -> frozenset[str]:
    """Hosts of the job whose kernel says that a link went down, and not that it came back: shortly before `reported`, or whenever where either
    bears no date."""
    rows = case.table("kernel_events").filter(pl.col("kind").is_in(["nic", "ib"]) & (pl.col("recovery").fill_null("") != "none"))
    found = set()
    for row in rows.collect().iter_rows(named=True):
        at = told.logs.clocks.at(row)
        is_near = at is None or reported is None or abs((reported - at).total_seconds()) <= NEAR_S
        if row["host"] is not None and is_near:
            found.add(row["host"])
    return frozenset(found)
