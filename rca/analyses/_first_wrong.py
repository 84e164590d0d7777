"""The earliest step at which numbers of ranks go wrong, and whether that is one rank's own doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._layout import model_peers
from rca.types import Tables

__all__ = ["SIGNALS", "Anomaly", "accused", "earliest"]

SIGNALS: Final[Mapping[str, str]] = {"norm_is": "norm of its own gradients", "loss_is": "loss"}
SOUND: Final = ("ok", "raised")


@dataclass(frozen=True)
class Anomaly:
    """The earliest step at which something is wrong: what, in which number, on which ranks, and which ranks still write a sound one."""

    step: int
    kind: str  # nonfinite or spike
    signal: str  # a key of SIGNALS
    bad: tuple[int, ...]
    sound: frozenset[int]


def earliest(states: pl.DataFrame) -> Anomaly | None:
    """Of rows with rank, step and the states of `_numbers.judged`; of its numbers the one that the fewest ranks show."""
    first = {kind: states.filter(pl.any_horizontal(pl.col(list(SIGNALS)) == kind))["step"].min() for kind in ("nonfinite", "spike")}
    known = [(step, kind) for kind, step in first.items() if isinstance(step, int)]
    if not known:
        return None
    step, kind = min(known)
    at = states.filter(pl.col("step") == step)
    found = []
    for signal in SIGNALS:
        bad = at.filter(pl.col(signal) == kind)["rank"].unique().sort().to_list()
        sound = set(at.filter(pl.col(signal).is_in(SOUND))["rank"]) - set(bad)
        if bad:
            found.append(Anomaly(step, kind, signal, tuple(bad), frozenset(sound)))
    return min(found, key=lambda a: (not a.sound, len(a.bad)))


def accused(anomaly: Anomaly, same_batch: frozenset[int], case: Tables) -> tuple[int, ...]:
    """The one rank that is wrong alone; () where others share its batch or model and none of those is sound, or several are wrong."""
    if len(anomaly.bad) != 1 or not anomaly.sound:
        return ()
    (alone,) = anomaly.bad
    peers = (model_peers(case).get(alone, frozenset()) | same_batch) - {alone}
    return (alone,) if not peers or peers & anomaly.sound else ()
