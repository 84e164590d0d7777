"""Recorder tables of a job whose ranks compute, call and wait: every rank's work and every group's transfer can be set, step by step.

Programs are those of the simulator (rca/drills/_synthetic_job.py). A rank works, then starts its next call; the call ends for all members
`transfer` after the last of them has started it. One stream a rank, so whoever is early waits inside the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from rca.drills._synthetic_job import Group, Job, plan
from rca.tables import TABLES

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORK_S, TRANSFER_S = 0.010, 0.004
Work = Callable[[int, int], float]  # rank, step -> times the usual work
Transfer = Callable[[Group, int], float]  # group, step -> times the usual transfer
Link = Callable[[int, int], float]  # sending and receiving rank -> the same of a point-to-point transfer


def noise(*of: int) -> float:
    """-1..1, the same for the same numbers, and without any pattern to speak of."""
    number = 0
    for part in of:
        number = (number * 1_000_003 + part * 7_919 + 12_345) * 2_654_435_761 % (1 << 32)
        number ^= number >> 15
    return number / (1 << 31) - 1


def paced(
    job: Job,
    *,
    work: Work = lambda rank, step: 1.0,
    transfer: Transfer = lambda group, step: 1.0,
    link: Link = lambda src, dst: 1.0,
    skew_s: Callable[[int], float] = lambda rank: 0.0,
    per_host: int = 8,
    timing: bool = True,
    jitter: float = 0.03,
) -> dict[str, pl.DataFrame]:
    """`collectives`, `groups`, `memberships`, `ranks`. `skew_s`: what a rank's clock is ahead. Without `timing` no start is recorded."""
    plans, _, _ = plan(job, [])
    place, free = [0] * len(plans), [0.0] * len(plans)
    open_: dict[tuple[int, int, int, int], list[tuple[int, float]]] = {}
    left = [0] * len(plans)
    start, rows = [0.0] * len(plans), []
    ready = deque(range(len(plans)))
    steps: dict[int, list[int]] = {id(p.program): [] for p in plans}
    for p in plans:
        if not steps[id(p.program)]:
            step = 0
            for op in p.program.ops:
                steps[id(p.program)].append(step // job.world_ops)
                step += op.axis == "world"
    while ready:
        rank = ready.popleft()
        mine = plans[rank]
        if place[rank] >= len(mine.program.ops):
            continue
        at, step = place[rank], steps[id(mine.program)][place[rank]]
        start[rank] = free[rank] + WORK_S * work(rank, step) * (1 + jitter * noise(rank, at))
        left[rank] = len(mine.program.meets[at])
        for axis, src, dst, number in mine.program.meets[at]:
            group = mine.groups[axis]
            key = (group.number, src, dst, number)
            met = open_.setdefault(key, [])
            met.append((rank, start[rank]))
            if len(met) < (2 if src >= 0 else len(group.members)):
                continue
            took = TRANSFER_S * transfer(group, step) * (1 + jitter * noise(group.number, number, src))
            took *= link(group.members[src], group.members[dst]) if src >= 0 else 1.0
            end = max(began for _, began in open_.pop(key)) + took
            for other, _ in met:
                left[other] -= 1
                free[other] = max(free[other], end)
                if left[other]:
                    continue
                theirs = plans[other]
                rows.append((other, place[other], theirs, start[other], free[other]))
                place[other] += 1
                ready.append(other)
    return _tables(job, rows, skew_s, per_host, timing=timing)


def _tables(job: Job, rows: list[Any], skew_s: Callable[[int], float], per_host: int, *, timing: bool) -> dict[str, pl.DataFrame]:
    kind = {"emb": "embedding"}
    names: dict[int, str] = {}
    members: dict[int, Group] = {}
    calls = []
    for rank, at, mine, start, end in sorted(rows, key=lambda row: row[:2]):
        op, (collective, p2p, op_id) = mine.program.ops[at], mine.program.seq[at]
        group = mine.groups[op.axis]
        names[group.number] = f"{kind.get(op.axis, op.axis)}:{group.number:08x}"
        members[group.number] = group
        src, dst = (group.members[end_] for end_ in op.transfers[0]) if op.transfers else (None, None)
        ahead = skew_s(rank)
        calls.append(
            {
                "evidence_id": f"dump-{rank}", "record": f"E{at}", "rank": rank, "group_id": names[group.number], "backend": "nccl",
                "record_id": at, "collective_seq_id": collective, "p2p_seq_id": p2p, "op_id": op_id, "op": op.name,
                "is_p2p": bool(op.transfers), "src": src, "dst": dst, "state": "completed", "is_retired": True,
                "sizes": "[4096,1] -> [4096,1]", "created_at": _at(start + ahead), "started_at": _at(start + ahead) if timing else None,
                "completed_at": _at(end + ahead), "is_tail": True,
            }
        )  # fmt: skip
    groups = [
        {"evidence_id": "dump-0", "record": "E0", "group_id": names[n], "kind": kind.get(g.axis, g.axis), "size": len(g.members)}
        for n, g in sorted(members.items())
    ]
    memberships = [
        {"evidence_id": "dump-0", "record": "E0", "group_id": names[n], "rank": rank, "group_rank": place}
        for n, g in sorted(members.items())
        for place, rank in enumerate(g.members)
    ]
    ranks = [
        {"evidence_id": "map", "record": f"L{r + 1}", "rank": r, "host": f"n{r // per_host}", "local_rank": r % per_host}
        for r in range(job.world_size)
    ]
    told: Mapping[str, list[dict[str, Any]]] = {"collectives": calls, "groups": groups, "memberships": memberships, "ranks": ranks}
    return {name: TABLES[name].rows(some) for name, some in told.items()}


def _at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)
