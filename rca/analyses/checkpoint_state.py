"""Is the state that the job could go on from whole: are there checkpoints, and are they finished, complete and of all that a run needs?

1. Join what descriptions (`.metadata`, indexes, manifests, marks) say of each checkpoint with the files that are there (`rca.saved_states`): mark,
   files, sizes, checksums where both are known, and what each shard says of its own end.
2. Where the job raised while it read a checkpoint, and the one it names (else the newest) is torn or incomplete, that is the cause. A damaged
   checkpoint that nobody tried to load broke no job: it is told, and weighs nothing.
3. Told too: saves that are not marked as finished, checkpoints that hold only weights, or no place of the sampler, and those that were not looked
   at because only their description is here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from rca.analyses._faults import Fault, story
from rca.analyses._job_logs import READS, cite_line
from rca.saved_states import DAMAGED, SavedState, saved_states
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("checkpoint_files",)
USES = (*READS, "checkpoints")  # and evidence and readings: which files are there
SIGNS = {
    "torn_when_read": Sign("checkpoint", ("checkpoint_corrupt",)),
    "incomplete_when_read": Sign("checkpoint", ("checkpoint_corrupt", "storage_stall")),
    "damaged": Sign("checkpoint", (), is_note=True),
    "unfinished": Sign("checkpoint", (), is_note=True),
    "weights_only": Sign("checkpoint", (), is_note=True),
    "no_cursor": Sign("checkpoint", (), is_note=True),
    "not_looked": Sign("checkpoint", (), is_note=True),
    "whole": Sign("checkpoint", (), is_note=True),
}
MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per damaged checkpoint, and one for all that share anything else."""
    states = case.derive(saved_states)
    told = case.derive(story)
    faults = [fault for fault in (*told.first, *told.others, *told.unplaced) if fault.kind == "checkpoint_unreadable"]
    read = _read(states, faults)
    whole = [state for state in states if state.status == "whole"]
    found = [_damaged(state, faults if state is read else (), whole) for state in states if state.status in DAMAGED]
    unfinished = [state for state in states if state.status == "unmarked"]
    found += _together("unfinished", unfinished, "the save is not marked as finished, or its mark was not copied: do not go back to it")
    weights = [state for state in states if state.is_weights_only and state.step is not None]
    found += _together("weights_only", weights, "only weights are in it: optimizer and data would begin anew")
    no_cursor = [state for state in states if state.status == "whole" and not state.is_weights_only and "sampler" in state.lacks]
    found += _together("no_cursor", no_cursor, "it does not list a place of the sampler: data may repeat after a restart")
    found += _together(
        "not_looked", [s for s in states if s.status == "not_looked"], "only what describes it is here: its files were not looked at"
    )
    return [*found, *_together("whole", whole, "all files that it names are here, and none is torn")]


def _read(states: Sequence[SavedState], faults: Sequence[Fault]) -> SavedState | None:
    """The checkpoint that the job failed to read: the one that its error names, else the newest."""
    if not faults or not states:
        return None
    text = "\n".join(line.text for fault in faults for line in fault.lines)
    for state in states:
        names = [posixpath.basename(state.name), posixpath.basename((state.saved_to or "").rstrip("/"))]
        names += [posixpath.basename(problem.file) for problem in state.problems if len(states) == 1]
        if any(len(name) > 3 and name in text for name in names):
            return state
    return states[0]


def _damaged(state: SavedState, faults: Sequence[Fault], whole: Sequence[SavedState]) -> Finding:
    is_torn = state.status == "torn"
    sign = ("torn_when_read" if is_torn else "incomplete_when_read") if faults else "damaged"
    ending = "; the job raised while it read a checkpoint" if faults else "; no log here tells that it could not be read"
    back = f"; the newest whole one here is {_named(whole[0])}" if whole else "; none here is whole"
    return Finding(
        "checkpoint_state", sign, f"checkpoint {_named(state)} is {state.why}{ending}{back}", scope=state.name,
        numbers={
            "step": state.step, "files": state.num_files, "problems": len(state.problems),
            "newest_whole": whole[0].saved_to or whole[0].name if whole else None,
        },
        cites=(*(problem.cite for problem in state.problems[:MAX_CITES]), *(cite_line(fault.line) for fault in faults[:1])),
    )  # fmt: skip


def _together(sign: str, states: Sequence[SavedState], says: str) -> list[Finding]:
    """One finding for all checkpoints of which the same is to be said."""
    if not states:
        return []
    named = ", ".join(_named(state) for state in states[:3]) + (f" and {len(states) - 3} more" if len(states) > 3 else "")
    return [
        Finding(
            "checkpoint_state", sign, f"checkpoint{'s' if len(states) > 1 else ''} {named}: {says}{_unchecked(sign, states)}",
            scope=sign, numbers={"checkpoints": len(states), "newest_step": states[0].step},
            cites=tuple(cite for state in states[:MAX_CITES] for cite in state.cites[:1]),
        )
    ]  # fmt: skip


def _unchecked(sign: str, states: Sequence[SavedState]) -> str:
    number = sum(state.num_unchecked for state in states)
    return f" ({number} checksums were not compared)" if sign == "whole" and number else ""


def _named(state: SavedState) -> str:
    return state.name + (f" of step {state.step}" if state.step is not None else "")
