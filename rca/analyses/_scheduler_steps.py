"""Which step of a job ended worse than the job itself: a batch script may end well whatever became of the step that it started. Pure.

In this order: the node failed, memory ran out, it failed or ended by a signal, it was ended. Steps of another launch of the same job, and those
that were over before the evidence begins, say nothing of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

__all__ = ["exit_words", "worst_step"]

Row = Mapping[str, Any]

NODE, MEMORY, FAILED, ENDED, NOTHING = range(5)
_BY_STATE: Final = {
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL"), NODE),
    "OUT_OF_MEMORY": MEMORY,
    "FAILED": FAILED,
    **dict.fromkeys(("CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED"), ENDED),
}
OF_THEMSELVES: Final = frozenset({"COMPLETED", "FAILED", "RUNNING", "COMPLETING"})  # other states say themselves why all steps ended
MEMORY_SIGNAL: Final = 125  # what slurmstepd writes of a step that memory ran out on


def _badness(row: Row) -> int:
    """How bad an end is, the worst first."""
    by_exit = MEMORY if row["exit_signal"] == MEMORY_SIGNAL else FAILED if row["exit_code"] or row["exit_signal"] else NOTHING
    state = _BY_STATE.get(row["state"] or "", NOTHING)
    return state if state == ENDED else min(state, by_exit)


def worst_step(job: Row, steps: Sequence[Row], is_over: Callable[[Row], bool]) -> Row | None:
    """The step that ended worst, if worse than its job; `is_over`: whether a step had ended before the evidence begins."""
    if job["state"] not in OF_THEMSELVES:
        return None
    mine = [step for step in steps if step["base_job_id"] == job["base_job_id"] and _is_within(step, job) and not is_over(step)]
    worst = min(mine, key=lambda step: (_badness(step), step["job_id"], step["record"]), default=None)
    return worst if worst is not None and _badness(worst) < _badness(job) else None


def exit_words(row: Row) -> str:
    """` with exit code 1`, ` by signal 9`; "" where none is told, or a good one."""
    if row["exit_signal"] and row["exit_signal"] != MEMORY_SIGNAL:
        return f" by signal {row['exit_signal']}"
    return f" with exit code {row['exit_code']}" if row["exit_code"] else ""


def _is_within(step: Row, job: Row) -> bool:
    """Whether a step began in this launch of its job; both stamps are of the scheduler's clock."""
    for began, first, last in ((step[f"started_at{kind}"], job[f"started_at{kind}"], job[f"ended_at{kind}"]) for kind in ("", "_local")):
        if began is not None and first is not None and (_day(began) < _day(first) or (last is not None and _day(began) > _day(last))):
            return False
    return True


def _day(stamp: datetime | str) -> datetime:
    return datetime.fromisoformat(stamp) if isinstance(stamp, str) else stamp
