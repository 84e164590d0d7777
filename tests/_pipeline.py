"""Made-up traces of a pipeline: operations with the times at which they would run. What they cost is known from the durations that go in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from rca.tables import TABLES

Took = Callable[[str, int, int, int, int, int], float]  # way, replica, stage, step, micro-batch, chunk -> s
SEND_S = 0.001


def pipeline(
    took: Took, *, dp: int, pp: int, batches: int, steps: int, chunks: int = 1, has_transfers: bool = True, tail_s: float = 0.01
) -> pl.DataFrame:
    """Rows of `ops` of a job that runs one forward, one backward (all forwards first where it is interleaved). Rank = replica + dp * stage."""
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        for replica in range(dp):
            rows += _replica(took, replica, pp, batches, step, chunks, has_transfers=has_transfers, dp=dp)
        ready = {(row["dp"], row["stage"]): 0.0 for row in rows if row["step"] == step}
        for row in rows:
            if row["step"] == step:
                place = row["dp"], row["stage"]
                ready[place] = max(ready[place], row["start_s"] + row["op_s"])
        reduced = {stage: max(at for (_, of), at in ready.items() if of == stage) + tail_s for stage in range(pp)}
        clipped = max(reduced.values()) + tail_s
        for (replica, stage), at in ready.items():
            for name, kind, begin, end in (
                ("grads-reduce-scatter", "collective", at, reduced[stage]),
                ("optimizer-clip-main-grad", "optimizer", reduced[stage], clipped),
                ("optimizer", "optimizer", clipped, clipped + tail_s),
            ):
                rows.append(_row(replica, stage, step, name, kind, begin, end - begin, dp))
    frame = TABLES["ops"].rows(rows)
    return frame.with_columns(pl.lit("a" * 16).alias("evidence_id"), pl.format("E{}", pl.int_range(pl.len())).alias("record"))


def _row(
    replica: int, stage: int, step: int, op: str, kind: str, at: float, took: float, dp: int, batch: int | None = None
) -> dict[str, Any]:
    place = {"rank": replica + dp * stage, "dp": replica, "stage": stage, "step": step, "microbatch": batch}
    return place | {"op": op, "kind": kind, "start_s": at, "op_s": took}


def _replica(
    took: Took, replica: int, pp: int, batches: int, step: int, chunks: int, *, has_transfers: bool, dp: int
) -> list[dict[str, Any]]:
    order = {stage: _order(stage, pp, batches, chunks) for stage in range(pp)}
    ends: dict[tuple[str, int, int, int], float] = {}
    rows: list[dict[str, Any]] = []
    free = dict.fromkeys(order, 0.0)
    while any(order.values()):
        for stage, todo in order.items():
            while todo:
                way, chunk, batch = todo[0]
                needs = _needs(way, chunk, batch, stage, pp, chunks)
                if needs is not None and needs not in ends:
                    break
                at, todo[:] = free[stage], todo[1:]
                if needs is not None:
                    arrived = max(at, ends[needs]) + (SEND_S if has_transfers else 0.0)
                    if has_transfers and needs[2] != stage:
                        rows.append(_row(replica, stage, step, f"{way}-recv", "p2p", at, arrived - at, dp))
                        rows.append(_row(replica, needs[2], step, f"{way}-send", "p2p", ends[needs], arrived - ends[needs], dp))
                    at = arrived
                rows.append(
                    _row(replica, stage, step, f"{way}-compute", "compute", at, took(way, replica, stage, step, batch, chunk), dp, batch)
                )
                free[stage] = ends[way, chunk, stage, batch] = at + rows[-1]["op_s"]
    return rows


def _order(stage: int, pp: int, batches: int, chunks: int) -> list[tuple[str, int, int]]:
    forward = [("forward", chunk, batch) for chunk in range(chunks) for batch in range(batches)]
    backward = [("backward", chunk, batch) for chunk in reversed(range(chunks)) for batch in range(batches)]
    ahead = min(pp - stage - 1, batches) if chunks == 1 else len(forward)
    found = forward[:ahead]
    for n, work in enumerate(backward):
        found += [*forward[ahead + n : ahead + n + 1], work]
    return found


def _needs(way: str, chunk: int, batch: int, stage: int, pp: int, chunks: int) -> tuple[str, int, int, int] | None:
    """What goes over to this computation from another stage (or, at the turn, from its own)."""
    if way == "forward":
        if stage:
            return "forward", chunk, stage - 1, batch
        return ("forward", chunk - 1, pp - 1, batch) if chunk else None
    if stage < pp - 1:
        return "backward", chunk, stage + 1, batch
    return ("backward", chunk + 1, 0, batch) if chunk < chunks - 1 else None
