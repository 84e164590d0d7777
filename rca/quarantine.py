"""Samples that a data loader must leave out: what the evidence proposes, what people decided, and every time that a sample failed. Pure.

Decisions are only ever appended (`rca.quarantine/1`, beside the notes of an incident); the list is folded from them, so that who put a sample there,
when, why and on what grounds stays to be read. Nothing is quarantined by the tool itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from rca.types import Finding, Verdict

__all__ = ["QUARANTINE", "Entry", "accepted", "decision", "entries"]

QUARANTINE: Final = "rca.quarantine/1"
STATES: Final = ("accepted", "proposed", "suspected", "released")  # in the order in which they are listed
TELLING: Final = frozenset({("steps_again", "sample_fails_again"), ("sample_again", "fails_elsewhere")})  # a sample that fails anywhere
Record = dict[str, Any]


@dataclass
class Entry:
    """A sample. `state`: accepted (on the list), released (was on it), proposed (the verdict, or that it failed on other ranks too, says that it is
    bad), suspected (it was in a batch that went wrong; sample, program and chip are not told apart)."""

    sample_id: str
    data_shard: str | None = None
    state: str = "suspected"
    probability: float | None = None  # that a bad sample is the cause, by the verdict
    failures: list[Record] = field(default_factory=list)  # what, step, rank, host, attempt, path, record
    decisions: list[Record] = field(default_factory=list)  # at, by, decision, because; the oldest first

    def as_row(self) -> Record:
        """As the JSON document has it."""
        return {
            "sample_id": self.sample_id, "data_shard": self.data_shard, "state": self.state, "probability": self.probability,
            "failures": self.failures, "decisions": self.decisions,
        }  # fmt: skip


def decision(
    sample_id: str,
    *,
    at: str | None,
    what: str,
    because: str,
    by: str | None = None,
    shard: str | None = None,
    failures: Iterable[Record] = (),
) -> Record:
    """One line of the list. `what`: add or release; `at`: ISO 8601 with a zone."""
    return {
        "schema_version": QUARANTINE, "at": at, "by": by, "decision": what, "sample_id": sample_id, "data_shard": shard, "because": because,
        "failures": [dict(one) for one in failures],
    }  # fmt: skip


def entries(
    rows: Iterable[Mapping[str, Any]],
    *,
    failed: Iterable[tuple[Sequence[str], str | None, Record]] = (),
    verdict: Verdict | None = None,
    findings: Iterable[Finding] = (),
) -> list[Entry]:
    """The list, accepted ones first. `rows` of `quarantines` in the order in which they were written; `failed`: (samples, shard, the failure) of each
    time that a batch went wrong, as the evidence shows it now.

    Raises nothing: what a row lacks is None.
    """
    found: dict[str, Entry] = {}
    for row in rows:
        entry = found.setdefault(row["sample_id"], Entry(row["sample_id"]))
        entry.data_shard = row["data_shard"] or entry.data_shard
        entry.state = "accepted" if row["decision"] == "add" else "released"
        told = {"at": _iso(row["decided_at"]), "by": row["author"], "decision": row["decision"], "because": row["because"]}
        if told not in entry.decisions:
            entry.decisions.append(told)
        if row["what"] is not None:
            place = {"path": row["failed_path"], "record": row["failed_record"]}
            _add(entry, {name: row[name] for name in ("what", "step", "rank", "host")} | {"attempt": row["failed_attempt"]} | place)
    for samples, shard, failure in failed:
        for sample in samples:
            entry = found.setdefault(sample, Entry(sample))
            entry.data_shard = entry.data_shard or shard
            _add(entry, failure)
    _propose(found, verdict, findings)
    return sorted(found.values(), key=lambda e: (STATES.index(e.state), -len(e.failures), len(e.sample_id), e.sample_id))


def accepted(listed: Iterable[Entry]) -> list[str]:
    """The ids that a data loader must leave out."""
    return [entry.sample_id for entry in sorted(listed, key=lambda e: (len(e.sample_id), e.sample_id)) if entry.state == "accepted"]


def _propose(found: dict[str, Entry], verdict: Verdict | None, findings: Iterable[Finding]) -> None:
    bad = {str(s) for f in findings if (f.analysis, f.sign) in TELLING for s in f.numbers.get("sample_ids", ())}
    share = None
    if verdict is not None:
        share = round(sum(h.probability for h in verdict.hypotheses if h.cause == "bad_sample"), 4)
        if verdict.cause == "bad_sample" and verdict.data is not None:
            bad |= {str(s) for s in verdict.data["sample_ids"]} if not bad else set()
            for sample in bad:
                found.setdefault(sample, Entry(sample, verdict.data["shard"]))
    for sample, entry in found.items():
        if entry.state in ("suspected", "proposed"):
            entry.state = "proposed" if sample in bad else "suspected"
            entry.probability = share


def _add(entry: Entry, failure: Record) -> None:
    """Each time once: what a decision wrote down may still be in the evidence."""
    same = ("what", "rank", "path", "record") if failure.get("path") else ("what", "rank", "host", "step", "attempt")
    if not any(all(one.get(name) == failure.get(name) for name in same) for one in entry.failures):
        entry.failures.append(dict(failure))


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
