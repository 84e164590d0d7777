"""Faults of programs that kernels report (an Xid 13 or 31 and its like) while nobody in the job died or complains: they accuse nobody.

A program that meets such a fault loses its context and ends with an error of its own, and the others of its job miss it. So where the job's own
lines tell of its steps, and no line of it tells of an end, an error or a wait in vain, the program was another one or of another time. The ends by
which a stop that was announced comes about are none of a program's. Only a record that is tied to a rank says more: by its process, or in the job's
time by the address of its GPU and the name that trainers have. Where stacks or recorder dumps were taken somebody thought that the job hangs, and
they are what tells.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rca.analyses._alive import ENDS
from rca.analyses._faults import Story, complains, kind_of
from rca.analyses._job_logs import Line
from rca.analyses._kernel_aside import Aside
from rca.analyses._kernel_events import Record
from rca.analyses._kernel_users import TRAINS, users_of
from rca.analyses._stops import ASKED
from rca.types import Tables

__all__ = ["has_steps", "is_calm", "without_unheard"]

WHY: Final = "a program met it, nothing ties it to a rank, and the job's own log tells of no error"
_WORKS: Final = ("progress", "steps")
_TAKEN_OF_A_HANG: Final = ("stacks", "dumps")
_OF_STOPS: Final = frozenset({"elastic_agent_signal", "elastic_sigterm_victim"})  # a launcher was told to stop, and stops its workers


def without_unheard(case: Tables, told: Story, records: Sequence[Record], repeated: Collection[Record]) -> tuple[list[Record], list[Aside]]:
    """The records without those of programs of which nobody in the job complains; and these, with why. `repeated`: those that tell of a GPU."""
    faults = [r for r in records if r.role == "application" and r not in repeated and not _is_tied(case, r)]
    if not faults or not is_calm(case, told):
        return list(records), []
    gone = {id(r) for r in faults}
    return [r for r in records if id(r) not in gone], [(r, WHY) for r in faults]


def _is_tied(case: Tables, record: Record) -> bool:
    """Whether a record is of a process of the job, as far as that can be told."""
    if record.line.rank is not None:
        return True
    is_trainers = record.process is not None and TRAINS.match(record.process) is not None
    return is_trainers and record.line.at is not None and bool(case.derive(users_of).uses(record.host, record.gpu))


def is_calm(case: Tables, told: Story) -> bool:
    """Whether the job tells of its steps, and of no trouble but that somebody stopped it on purpose."""
    if told.first or told.others or told.unplaced:
        return False
    is_announced = told.stop.announcement is not None
    if any(_tells_trouble(line) and not (is_announced and _is_stopped(line)) for line in told.logs.lines):
        return False
    return has_steps(case) and not any(_has_rows(case, name) for name in _TAKEN_OF_A_HANG)


def _tells_trouble(line: Line) -> bool:
    """Whether a line tells of an end, an error or a wait in vain."""
    return complains(line) or kind_of(line) is not None or line.signature in ENDS or line.signature.startswith("elastic_")


def _is_stopped(line: Line) -> bool:
    """Whether a line tells of an end as it comes to what was told to end."""
    return line.signature in _OF_STOPS or (line.signature in ENDS and (line.signal == "SIGTERM" or line.exit_code in ASKED))


def has_steps(case: Tables) -> bool:
    """Whether the job's own lines tell of its steps."""
    return any(_has_rows(case, name) for name in _WORKS)


def _has_rows(case: Tables, name: str) -> bool:
    return case.table(name).head(1).collect().height > 0
