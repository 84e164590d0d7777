"""The way back: which recovery path the action takes, how long it lasts, and of what that is made. Pure.

Paths: `cold` (the whole job is queued and started anew: software faults, no spare), `hot_standby` (a warm spare takes the place of the hosts that
go), `in_process` (the ranks stay, only communicators are made again), `none` (nothing restarts).
Seconds are those of the site's own closed incidents where at least `ENOUGH` of them took that path, else those that are published; which, and of how
many, is always said. Sizes between two published ones are interpolated over the doublings; beyond them nothing is made up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from rca.decision.history import History, Past
from rca.reliability.published import statement, table
from rca.settings import Settings

__all__ = ["ENOUGH", "path_of", "recovery", "reference_s"]

ENOUGH: Final = 3  # closed incidents from which their median counts more than a paper; ours
IN_PROCESS_S: Final = (1.0, 30.0)  # "seconds": communicators are repaired and ranks stay; no paper prints them by size
PARTS: Final = ("load", "rebuild", "warmup")  # of initialisation
STANDS: Final = ("replace", "shrink")  # actions that take hosts out
STARTS_ANEW: Final = ("retry", "rollback", "fix_code", "quarantine_data")
NEEDS_NONE: Final = ("none", "degrade", "human")


def path_of(past: Past) -> str | None:
    """The path that an earlier incident took, by the stages that were timed: a queue is a cold start, a replacement without one a hot spare."""
    if "queue" in past.stage_s:
        return "cold"
    return "hot_standby" if "replace" in past.stage_s else None


def reference_s(path: str, machines: int | None) -> tuple[float | None, float, float]:
    """Published seconds of a path for a job of so many machines: expected (None: size not known), least, most."""
    if path == "in_process":
        return None, *IN_PROCESS_S
    rows = sorted((int(row["machines"]), float(row["seconds_printed"])) for row in table("recovery_paths") if row["path"] == path)
    least, most = rows[0][1], rows[-1][1]
    if machines is None or machines < 1:
        return None, least, most
    if machines <= rows[0][0]:
        return least, least, least
    if (printed := dict(rows).get(machines)) is not None:
        return printed, printed, printed
    for (size, seconds), (next_size, next_seconds) in pairwise(rows):
        if machines <= next_size:
            share = math.log2(machines / size) / math.log2(next_size / size)
            between = seconds + share * (next_seconds - seconds)
            return round(between, 1), seconds, next_seconds
    return most, most, most


def recovery(
    action: str,
    history: History,
    settings: Settings,
    *,
    machines: int | None,
    spares: int | None,
    num_evicted: int,
    can_rejoin: bool | None,
) -> dict[str, Any]:
    """The path of an action with expected seconds, and the other paths beside it. `spares` = hosts that stand ready, None = not told."""
    path, why = _path(action, settings, spares, num_evicted, can_rejoin=can_rejoin)
    others = [name for name in ("in_process", "hot_standby", "cold") if name != path]
    return {
        "path": path,
        "why": why,
        **(_expected(path, history, machines) if path != "none" else _nothing()),
        "parts": _parts(path, history, machines),
        "others": [{"path": name, **_expected(name, history, machines)} for name in others],
    }


def _path(action: str, settings: Settings, spares: int | None, num_evicted: int, *, can_rejoin: bool | None) -> tuple[str, str]:
    if action in NEEDS_NONE:
        return "none", "this action restarts nothing by itself"
    rejoins = settings.in_process if settings.in_process is not None else can_rejoin
    if action == "retry" and rejoins:
        return "in_process", "ranks of this job can rejoin without a new launch"
    if action in STANDS and action != "shrink":
        if spares is None:
            return "cold", "whether a spare stands ready is not told, so the slow way is counted with"
        if spares < num_evicted:
            return (
                "cold",
                f"{spares} spare{'' if spares == 1 else 's'} for {num_evicted} host{'' if num_evicted == 1 else 's'}: the job has to be queued anew",
            )
        if settings.hot_standby is not False:
            return "hot_standby", f"{spares} spare{'' if spares == 1 else 's'} for {num_evicted} host{'' if num_evicted == 1 else 's'}"
        return "cold", "this site's spares are not warm: they are brought in by a requeue"
    if action == "shrink":
        return "cold", "a smaller job is a new launch"
    return "cold", "the program, its data or its state changes, so all processes start anew"


def _expected(path: str, history: History, machines: int | None) -> dict[str, Any]:
    own = [past.repair_s for past in history.past if past.repair_s is not None and path_of(past) == path]
    if len(own) >= ENOUGH:
        return {
            "expected_s": round(median(own), 1), "least_s": min(own), "most_s": max(own), "source": "own", "n": len(own),
            "fits": True,
            "says": f"median of {len(own)} closed incidents of this site ({history.where}), from the end of the search to the first new step",
        }  # fmt: skip
    expected, least, most = reference_s(path, machines)
    few = f"; this site has {len(own)} timed so far, {ENOUGH} are needed" if own else ""
    rows = [row for row in table("recovery_paths") if row["path"] == path]
    says = f"{_size(machines, rows)}{few}" if rows else f"seconds: no paper prints them by size{few}"
    sizes = [int(row["machines"]) for row in rows]
    fits = not sizes or (machines is not None and min(sizes) <= machines <= max(sizes))  # a figure of another size tells little of this job
    return {"expected_s": expected, "least_s": least, "most_s": most, "source": "published", "n": None, "fits": fits, "says": says}


def _size(machines: int | None, rows: Sequence[Mapping[str, str]]) -> str:
    """For which size it is published, and by whom."""
    sizes = [int(row["machines"]) for row in rows]
    paper, _, place = rows[0]["source"].partition(", ")
    whose = f"({paper}, {place.rpartition(', ')[2]})"
    if machines is None:
        return f"published for {min(sizes)} to {max(sizes):,} machines {whose}; how many this job has is not told"
    if machines in sizes:
        return f"published for {machines:,} machines {whose}"
    if machines < min(sizes):
        return f"published for {min(sizes)} machines, the smallest size {whose}; this job has {machines}"
    if machines > max(sizes):
        return f"published for {max(sizes):,} machines, the largest size {whose}; this job has {machines:,}, so it takes longer"
    return f"published {whose}, between its sizes for {machines:,} machines"


def _nothing() -> dict[str, Any]:
    return {"expected_s": None, "least_s": None, "most_s": None, "source": None, "n": None, "fits": False, "says": ""}


def _parts(path: str, history: History, machines: int | None) -> list[dict[str, Any]]:
    """What a restart is made of: by the site's own stages where enough are timed, else, of a cold one, by TrainMover's shares of initialisation."""
    if path not in ("cold", "hot_standby"):
        return []
    of_path = [past for past in history.past if path_of(past) == path]
    found = []
    whole, _, _ = reference_s(path, machines)
    init = statement("initialisation_of_cold") / 100.0
    for part in PARTS:
        own = [past.stage_s[part] for past in of_path if part in past.stage_s]
        if len(own) >= ENOUGH:
            found.append({"part": part, "share": None, "expected_s": round(median(own), 1), "source": "own", "n": len(own)})
        elif path == "cold":
            share = init * statement(f"{part}_of_initialisation") / 100.0
            seconds = None if whole is None else round(whole * share, 1)
            found.append({"part": part, "share": round(share, 4), "expected_s": seconds, "source": "published", "n": None})
    return found
