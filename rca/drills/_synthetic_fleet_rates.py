"""How often what fails, and how long each stage of an interruption takes: from the published tables, mapped to our causes.

Shares are those of the paper's own counts. The rate of all interruptions is Llama 3's per host and day (466 in 54 days on 2,048 hosts); ByteRobust
prints no host-days, so its shares come at Llama 3's rate. Stage times are drawn from a triangle between the least and the most that is
printed, with its peak at the usual value: nothing beyond what was seen, and no shape that nobody measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from rca.causes import CAUSES
from rca.reliability.published import statement, table

__all__ = ["RATES", "Component", "components", "drawn_s", "path_of", "per_host_day"]

RATES: Final = ("llama3", "byterobust")
ANY: Final = "*"


@dataclass(frozen=True)
class Component:
    """A row of a published table as one of our causes, with the share of all interruptions that it stands for."""

    name: str
    cause: str
    share: float


def per_host_day() -> float:
    """Interruptions per host and day, planned ones included."""
    hosts = statement("llama3_gpus") / statement("llama3_gpus_per_host")
    return statement("llama3_interruptions") / (statement("llama3_days") * hosts)


@cache
def components(rates: str) -> tuple[Component, ...]:
    """What interrupts a job, by the shares of a paper; a row that lumps causes is split by the weights of causes.csv."""
    counts = _llama3() if rates == "llama3" else {row["symptom"]: float(row["count"]) for row in table("byterobust_incidents")}
    weights: dict[str, dict[str, float]] = defaultdict(dict)
    for row in table("causes"):
        if row["source"] == rates:
            weights[row["component"]][row["cause"]] = float(row["weight"])
    total = sum(counts.values())
    return tuple(
        Component(name, cause, count / total * weight / sum(weights[name].values()))
        for name, count in counts.items()
        for cause, weight in weights[name].items()
    )


def _llama3() -> Mapping[str, float]:
    counts = {row["component"]: float(row["count"]) for row in table("llama3_interruptions")}
    return counts | {"planned": statement("llama3_planned")}


@cache
def _times() -> Mapping[tuple[str, str], tuple[float, float, float]]:
    return {
        (row["stage"], row["cause"]): (float(row["least_s"]), float(row["usual_s"]), float(row["most_s"])) for row in table("stage_times")
    }


def drawn_s(rng: np.random.Generator, stage: str, cause: str) -> float:
    """How long a stage takes with a cause, s, to the millisecond."""
    times = _times()
    return round(float(rng.triangular(*times.get((stage, cause), times[stage, ANY]))), 3)


def path_of(cause: str, *, has_spare: bool) -> Sequence[str]:
    """Stages of an interruption in order: a planned stop needs neither detection nor search, only a replacement needs another host."""
    if CAUSES[cause].attribution == "planned":
        return ("queue", "load", "rebuild", "warmup", "resume")
    head = ("detect", "localize", *(() if has_spare else ("queue",)))
    return (*head, *(("replace",) if CAUSES[cause].action == "replace" else ()), "load", "rebuild", "warmup", "resume")
