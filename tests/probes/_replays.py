"""Rows of replays as a run would leave them, made up: which hosts compute wrongly, from when on, how often, and how far it spreads at once."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

__all__ = ["RAN_AT", "Fault", "rows_of"]

RAN_AT = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Fault:
    """A host that computes wrongly from a step on, with a probability in each run; at once in its whole group, or a step later."""

    host: int
    step: int = 1
    probability: float = 1.0
    spreads_at_once: bool = False


def rows_of(
    plan: Mapping[str, Any],
    faults: Iterable[Fault] = (),
    *,
    steps: int = 4,
    repeats: int = 1,
    killed: Iterable[tuple[str, int]] = (),
    names: Mapping[int, str] | None = None,
    replay_id: str = "r",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows of the table `replays`. Wrong bits depend on what was wrong in the run and where: two hosts seldom err alike."""
    rng, rows = random.Random(seed), []
    for phase in plan["phases"]:
        for number, group in enumerate(phase["groups"]):
            for repeat in range(repeats):
                shown = [fault for fault in faults if fault.host in group and rng.random() < fault.probability]
                last = 1 if (phase["name"], number) in set(killed) else steps
                for place, host in enumerate(group):
                    common = {
                        "evidence_id": f"{phase['name']}-{number}-{repeat}", "replay_id": replay_id, "phase": phase["name"], "group_number": number,
                        "repeat": repeat, "host": (names or {}).get(host, f"n{host}"), "place": place, "expected": None, "ran_at": RAN_AT,
                    }  # fmt: skip
                    for step in range(last):
                        wrong = sorted(
                            f"{group.index(f.host)} {f.step}"
                            for f in shown
                            if step > f.step or (step == f.step and (f.spreads_at_once or f.host == host))
                        )
                        told = f"{place} {step} {' '.join(wrong)}"
                        rows.append({**common, "record": f"hosts/E{place}/E{step}", "step": step, "fingerprint": told, "outcome": None})
                    if last < steps:
                        missing = {"record": f"hosts/E{place}", "step": None, "fingerprint": None, "outcome": "missing"}
                        rows.append({**common, **missing})
    return rows
