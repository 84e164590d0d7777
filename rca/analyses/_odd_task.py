"""The one task that was killed where its step was cancelled: by the cancel, or before it?

1. A cancel sends SIGTERM to every task, and SIGKILL to what is left when KillWait is over. How programs end on SIGTERM is their own: with a code, an
   abort, a fault as they tear down. None of them is killed by a signal that only others send, nor for memory: where that is the end of one task and
   not of the rest, it is told.
2. The cancel came behind it where memory ran out, or where srun hears of it ahead of all others and only the step was cancelled, which srun does by
   itself once a task ended badly: what is left after KillWait is told last.
3. Else both may be: it did not end within KillWait, or something else had killed it. Where no other end is told, the others may have ended well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rca.analyses._job_logs import Line
from rca.analyses._slurm_tasks import TASKS, task_numbers

__all__ = ["OddTask", "odd_task"]

KILL_WAIT: Final = timedelta(seconds=30)  # Slurm's default
NOT_BY_ITSELF: Final = (-9, 137, -7, 135)  # SIGKILL and SIGBUS
_END: Final = re.compile(rf"srun: error: (?P<where>[\w.,\[\]-]{{1,400}}): (?P<tasks>{TASKS}): (?P<death>.{{1,60}})")
_MEMORY: Final = re.compile(r"(?i)^out of memory\b")


@dataclass(frozen=True)
class OddTask:
    """The task that ended otherwise than all the rest of its step."""

    line: Line
    cancel: Line
    is_before: bool  # the cancel came behind it
    is_alone: bool  # of no other task an end is told
    says: str  # `task 7 on host-b was killed (Killed), no other was`


def odd_task(lines: Sequence[Line], cancel: Line) -> OddTask | None:
    """The one task that was killed, of those whose ends the file of a cancel tells behind it; None where none was, or several."""
    ends = [
        (line, found)
        for line in lines
        if line.signature == "slurm_task_exit" and line.evidence_id == cancel.evidence_id and line.place > cancel.place
        for found in [_END.search(line.text)]
        if found is not None
    ]
    odd = [(line, found) for line, found in ends if line.exit_code in NOT_BY_ITSELF or _MEMORY.match(found["death"])]
    if len(odd) != 1 or len(numbers := list(task_numbers(odd[0][1]["numbers"]))) != 1:
        return None
    (line, found), others = odd[0], [other for other, _ in ends if other is not odd[0][0]]
    if not others and numbers == [0]:
        return None  # it may be the only one
    if line.at is not None and cancel.at is not None and line.at - cancel.at >= KILL_WAIT:
        return None
    is_ahead = " STEP " in cancel.text and bool(others) and all(line.place < other.place for other in others)
    rest = "; of the others nothing is told" if not others else ", no other was"
    says = f"{found['tasks']} on {found['where']} was killed ({found['death'].strip()}){rest}"
    return OddTask(line, cancel, is_ahead or bool(_MEMORY.match(found["death"])), not others, says)
