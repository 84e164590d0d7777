"""The timed operations of a step, one row an operation, of the first lane of each stage: a table as straggler studies publish it.

Columns: dp_rank, stage, rank, step, optype, start_ts (s since the step began), duration (s), seq_id, mb_id. Computation, the hand-over of
micro-batches between stages with the wait for it, the joining of gradients, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rca.drills.simulated._steps import OPTIMIZER_SHARE, Times

__all__ = ["MAX_RANKS", "op_trace"]

MAX_RANKS = 128  # of a traced job
MAX_STEPS = 24  # that a tracer keeps
HEAD = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mb_id"
Row = tuple[int, int, str, float, float, int, int]  # replica, stage, operation, start, duration, number, micro-batch


def op_trace(times: Times, *, rank_of: Callable[[int, int], int], first_step: int, step_s: float, reached: int) -> bytes:
    """The text of the table, of the last steps that were reached. `rank_of`: (replica, stage) -> rank of the first lane."""
    lines = [HEAD]
    for place in range(max(0, reached - MAX_STEPS), reached):
        for replica, stage, op, start, duration, number, batch in _rows(times, place, step_s):
            head = f"{replica},{stage},{rank_of(replica, stage)},{first_step + place},{op}"
            lines.append(f"{head},{start:.6f},{duration:.6f},{number},{batch}")
    return ("\n".join(lines) + "\n").encode()


def _rows(times: Times, k: int, step_s: float) -> Iterator[Row]:
    assert times.synced is not None
    replicas, stages = times.synced.shape[:2]
    for one in times.passes:
        way = "backward" if one.is_backward else "forward"
        source = one.stage + 1 if one.is_backward else one.stage - 1
        for replica in range(replicas):
            start, end, free = (float(array[replica, k]) for array in (one.start, one.end, one.waits_from))
            if 0 <= source < stages:
                yield replica, one.stage, f"{way}-recv", min(free, start), start - min(free, start), one.batch, -1
            yield replica, one.stage, f"{way}-compute", start, end - start, one.batch, one.batch
            if 0 <= (one.stage - 1 if one.is_backward else one.stage + 1) < stages:
                yield replica, one.stage, f"{way}-send", end, 5e-4, one.batch, -1
    for replica in range(replicas):
        for stage in range(stages):
            begin, end = (float(value) for value in times.synced[replica, stage, :, k])
            yield replica, stage, "grads-reduce-scatter", begin, end - begin, 0, -1
            yield replica, stage, "optimizer", float(np.max(times.synced[:, :, 1, k])), OPTIMIZER_SHARE * step_s, 0, -1
