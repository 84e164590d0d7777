"""Every error the project raises on purpose.

RcaError                 something a person can act on; its text says what, where and what to do
+-- UsageError           the command was called in a way that cannot work           (exit 2)
+-- EvidenceError        one piece of evidence cannot be read; the rest goes on     (counted in `readings`)
+-- CaseError            the case file cannot be built or opened                    (exit 2)
|   +-- UnwritableCase   no case file can be written at that place; another may do  (exit 2 when none does)
+-- NotEnoughEvidence    an analysis cannot answer from what is there               (outcome `blind`)
+-- ProbeError           an active test or a drill could not run                    (exit 2)
"""

from __future__ import annotations

__all__ = ["CaseError", "EvidenceError", "NotEnoughEvidence", "ProbeError", "RcaError", "UnwritableCase", "UsageError"]


class RcaError(Exception):
    """Something a person can act on."""


class UsageError(RcaError):
    """The command was called in a way that cannot work."""


class EvidenceError(RcaError):
    """One piece of evidence cannot be read. `path` and `record` say where, `why` says what is wrong."""

    def __init__(self, path: str, record: str | None, why: str) -> None:
        self.path, self.record, self.why = path, record, why
        super().__init__(f"{path}{f' at {record}' if record else ''}: {why}")


class CaseError(RcaError):
    """The case file cannot be built or opened."""


class UnwritableCase(CaseError):
    """No case file can be written at `target`, and `why`. It says nothing about the evidence."""

    def __init__(self, target: str, why: str) -> None:
        self.target, self.why = target, why
        super().__init__(f"{target}: the case cannot be written ({why}). Free some space, or name another place with --case.")


class NotEnoughEvidence(RcaError):
    """An analysis cannot answer from what is there: it says `blind`, never `clear`."""


class ProbeError(RcaError):
    """An active test or a drill could not run."""
