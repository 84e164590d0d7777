"""Which checkpoint to go back to and which not to load again, in words, with the places that name them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rca.checkpoints import Rollback
from rca.types import Finding

__all__ = ["newest_whole", "way_back"]


def newest_whole(findings: Sequence[Finding]) -> str:
    """Where to go on from when a checkpoint here is damaged: who restarts with the newest one may load that."""
    damaged = [f for f in findings if "newest_whole" in f.numbers]
    if not damaged:
        return ""
    whole = damaged[0].numbers["newest_whole"]
    return f"; a checkpoint here is damaged: {f'the newest whole one is {whole}' if whole else 'none here is whole'}"


def way_back(back: Rollback | None) -> str:
    """The checkpoint not to load again, the one to go back to, with the place that names it, and why newer ones were passed over; that none was seen
    is said too, and where to look."""
    if back is None:
        return f"; no log here names a checkpoint saved before it: {_look(None, 'from before the fault')}"
    bad, save = back.unreadable, back.save
    again = f"; do not load {bad.name} again ({bad.path} {bad.record})" if bad is not None else ""
    passed = f"; passed over: {'; '.join(back.passed)}" if back.passed else ""
    if save is None and bad is not None:
        return f"{again}; no log here names another one{passed}: {_look(back.folder, 'older than it')}"
    if save is None:
        before = f"step {back.before}" if back.before is not None else "the fault"
        return f"; no log here names a checkpoint saved before it{passed}: {_look(back.folder, f'from before {before}')}"
    at = f", saved at step {save.step}" if save.step is not None else ""
    which = "is whole" if save.is_whole else "a log names"
    return f"{again}; the newest that {which} is {save.name}{at} ({save.path} {save.record}){passed}"


def _look(folder: str | None, which: str) -> str:
    """How to find one by hand: in the folder that logs tell, if they do."""
    if folder is None:
        return f"list the folder the job saves to, then `rca inspect CHECKPOINT_FOLDER`, and take the newest whole one {which}"
    quoted = shlex.quote(folder)
    listed = f" (`ls -dt {quoted}/*`)" if folder.startswith("/") else ""
    return f"list {folder}{listed}, then `rca inspect {quoted}`, and take the newest whole one {which}"
