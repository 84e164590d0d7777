"""The record of an incident (`rca.incident/1`): made by `fold` of its notes and of nothing else.

So the same notes give the same record, and one that is closed again still holds all that was said before. The fields stand in
docs/incident.schema.json. Pure: instants are passed in.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rca.causes import CAUSES, STAGES, did_first
from rca.errors import UsageError
from rca.incidents.records import DIAGNOSED, INCIDENT, STATED, Record, instant, iso, problem_of

__all__ = ["RECURS_WITHIN", "fold", "incident_record", "is_settled", "merged", "recurrence", "said_instead", "stages_of"]

RECURS_WITHIN: Final = timedelta(days=28)  # in which a fault of the same node counts as the same fault
_LOOKING: Final = ("detect", "localize")  # stages in which nothing is repaired yet
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def incident_record(
    *,
    incident_id: str,
    job: Mapping[str, Any],
    diagnosis: Mapping[str, Any],
    opened_at: datetime,
    closed_at: datetime | None,
    began_at: datetime | None = None,
    detected_at: datetime | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
    stated: Mapping[str, Any] | None = None,
    because: str | None = None,
    action: str | None = None,
    evicted: Sequence[str] = (),
    code_version: str | None = None,
    recomputed_steps: int | None = None,
    recurs_incident_id: str | None = None,
    revision: int = 1,
    history: Sequence[Mapping[str, Any]] = (),
    evidence: Mapping[str, Any] | None = None,
) -> Record:
    """`rca.incident/1`. `job` as `job_of` makes it, `diagnosis` as `diagnosis_of` does; `stages` hold at least stage, started_at, ended_at
    (ISO). `stated` are the values that a person put in place of the diagnosis' own: any of cause, layer, attribution, action, ranks, hosts,
    `because` the reason; `action` is what was done first, where that is not what was advised. Of an overruled cause, layer, attribution and
    action follow unless they are stated too; of overruled ranks the hosts are open."""
    stated = {name: value for name, value in (stated or {}).items() if name in STATED}
    says = said_instead(diagnosis, stated)
    is_overruled = any(_plain(diagnosis[name]) != _plain(value) for name, value in stated.items())
    whole = sorted((_stage(stage) for stage in stages), key=lambda stage: list(STAGES).index(stage["stage"]))
    return {
        "schema_version": INCIDENT,
        "incident_id": incident_id,
        "revision": revision,
        "job_id": job["job_id"],
        "attempt": job["attempt"],
        "summary": _summary(diagnosis, says),
        "began_at": iso(began_at),
        "opened_at": iso(opened_at),
        "detected_at": iso(detected_at),
        "closed_at": iso(closed_at),
        "attribution": says["attribution"],
        "layer": says["layer"],
        "cause": says["cause"],
        "because": because or diagnosis["summary"],
        "is_overruled": is_overruled,
        "proven_cause": diagnosis["cause"] if diagnosis["proven"] else None,
        "action": action or says["action"],
        "ranks": sorted(set(says["ranks"])),
        "hosts": sorted(set(says["hosts"])),
        "gpus": sorted(set(diagnosis["gpus"])) if sorted(says["ranks"]) == sorted(diagnosis["ranks"]) else [],
        "evicted": sorted(set(evicted)),
        "code_version": code_version,
        "world_size": job["world_size"],
        "num_gpus": job["num_gpus"],
        "lost_gpu_s": _lost(job["num_gpus"], began_at, whole),
        "recomputed_steps": recomputed_steps,
        "recomputed_s": _times(recomputed_steps, job["step_s"]),
        "recomputed_tokens": _times(recomputed_steps, job["tokens_per_step"]),
        "recurs_incident_id": recurs_incident_id,
        "diagnosis": {name: diagnosis[name] for name in DIAGNOSED},
        "stages": whole,
        "history": [dict(one) for one in history],
        "evidence": {name: (evidence or {}).get(name) for name in ("files", "fingerprint")},
    }


def said_instead(diagnosis: Mapping[str, Any], stated: Mapping[str, Any]) -> Record:
    """What counts of cause, layer, attribution, action, ranks and hosts once a person stated some of them: of a stated cause its layer,
    attribution and action follow unless they are stated too; of other ranks the hosts are open."""
    says: Record = {name: diagnosis[name] for name in STATED}
    if "cause" in stated:
        cause = CAUSES[stated["cause"]]
        says |= {"layer": cause.layer, "attribution": cause.attribution, "action": cause.action}
    if sorted(stated.get("ranks", diagnosis["ranks"])) != sorted(diagnosis["ranks"]):
        says["hosts"] = []  # where other ranks ran, only a person can say here
    return says | dict(stated)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def _stage(stage: Mapping[str, Any]) -> Record:
    return {
        "stage": stage["stage"],
        "started_at": stage["started_at"],
        "ended_at": stage["ended_at"],
        "budget_s": STAGES[stage["stage"]],
        "origin": stage.get("origin") or "hand",
        "why": stage.get("why"),
    }


def _summary(diagnosis: Mapping[str, Any], says: Mapping[str, Any]) -> str:
    if all(says[name] == diagnosis[name] for name in ("cause", "ranks", "hosts")):
        return str(diagnosis["summary"])
    who = f"rank{'s' if len(says['ranks']) > 1 else ''} {', '.join(map(str, says['ranks']))}" if says["ranks"] else ""
    where = f"on {', '.join(says['hosts'])}" if says["hosts"] else ""
    did = f"{did_first(says['cause'], len(says['ranks'] or says['hosts']))}; "
    words = " ".join(filter(None, [who, where, did if who or where else ""]))
    cause = CAUSES[says["cause"]]
    return f"{words}{cause.name.replace('_', ' ')}: {cause.means} (stated by a person)".replace(";  ", "; ")


def _times(count: int | None, each: float | None) -> Any:
    return None if count is None or each is None else count * each


def _lost(num_gpus: int | None, began_at: datetime | None, stages: Sequence[Mapping[str, Any]]) -> float | None:
    """GPU seconds from the fault to the end of the last stage that has ended: of `resume`, which makes up for it, where that is told."""
    ends = {stage["stage"]: stage["ended_at"] for stage in stages if stage["ended_at"] is not None}
    last = ends.get("resume") or max(ends.values(), key=lambda text: instant(text) or _LONG_AGO, default=None)
    ended = instant(last)
    if num_gpus is None or began_at is None or ended is None or ended < began_at:
        return None
    return num_gpus * (ended - began_at).total_seconds()


def is_settled(stages: Iterable[Mapping[str, Any]], *, is_closed: bool) -> bool:
    """Whether the stages tell how long the whole took: the job goes on again, or the incident was closed with a repair timed and none still
    running. Until then a budget may be overrun, but cannot have been kept. `stages` hold stage, started_at, ended_at."""
    seen = list(stages)
    if any(stage["stage"] == "resume" and stage["ended_at"] is not None for stage in seen):
        return True
    is_running = any(stage["started_at"] is not None and stage["ended_at"] is None for stage in seen)
    is_repaired = any(stage["stage"] not in _LOOKING and stage["ended_at"] is not None for stage in seen)
    return is_closed and is_repaired and not is_running


# From notes to the record


def merged(*histories: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Notes from several places, each once, oldest first.

    Within one history the order stays as it is: lines are appended under a lock, while the moments in them are those of the writers' clocks, of
    which one may be ahead. Between histories the moments tell; of one moment the order in which they were given.
    """
    named = [{json.dumps(one, sort_keys=True): dict(one) for one in history} for history in histories]
    notes = {name: one for history in named for name, one in history.items()}
    waiting = [deque(history) for history in named if history]
    behind = Counter(name for names in named for name in list(names)[1:])  # in how many histories a note waits for another
    ordered: dict[str, Record] = {}
    while waiting:
        heads = [names[0] for names in waiting]
        free = [name for name in heads if not behind[name]] or heads  # none is: histories that contradict each other
        first = min(free, key=lambda name: instant(notes[name]["at"]) or _LONG_AGO)
        ordered[first] = notes[first]
        for names in waiting:
            while names and names[0] in ordered:
                names.popleft()
                behind.subtract([names[0]] if names else [])
        waiting = [names for names in waiting if names]
    return list(ordered.values())


def stages_of(notes: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The stages that the notes tell, in their order. What was told at opening or closing gives way to what a person typed of that stage, field
    by field; of two notes on one stage the later counts."""
    found: dict[str, Record] = {}
    told = [stage for one in notes for stage in one["data"].get("stages") or ()]
    typed = [
        {**one["data"], "origin": "hand", "why": one["text"] or f"typed by {one['by'] or 'hand'}"}
        for one in notes
        if one["kind"] == "stage"
    ]
    for stage in [*told, *typed]:
        known = found.setdefault(stage["stage"], {"stage": stage["stage"], "started_at": None, "ended_at": None})
        given = {name: stage[name] for name in ("started_at", "ended_at") if stage.get(name) is not None}
        known |= {**given, "origin": stage.get("origin") or "evidence", "why": stage.get("why")}
    return [_stage(found[name]) for name in STAGES if name in found]


def fold(notes: Sequence[Mapping[str, Any]]) -> Record:
    """The record of one incident, from all its notes. Before it is closed the record has revision 0 and no `closed_at`.

    What was diagnosed at closing replaces what was diagnosed at opening (a replay may have been added); both stay in the history. A later
    overrule replaces an earlier one field by field. A note that `problem_of` objects to stays in the history and counts for nothing. Raises
    UsageError without an `open` note, since nothing else says what it is about.
    """
    history = merged(notes)
    notes = [one for one in history if problem_of(one) is None]
    opened = next((one for one in notes if one["kind"] == "open"), None)
    if opened is None:
        raise UsageError("these notes hold no open note: open the incident first (rca open PATH)")
    closes = [one for one in notes if one["kind"] == "close"]
    told: Record = dict(opened["data"])
    for one in closes:
        told |= {name: value for name, value in one["data"].items() if value is not None or name == "recurs_incident_id"}
    stated: Record = {}
    because: list[str] = []
    for one in notes:
        if one["kind"] == "overrule":
            stated |= one["data"]
            because.append(one["text"])
    job, last, checkpoint = told["job"], told["job"]["last_step"], told.get("checkpoint_step")
    steps = told.get("recomputed_steps")
    if steps is None and last is not None and checkpoint is not None and last >= checkpoint:
        steps = last - checkpoint
    typed: Record = {}  # moments of `detect` that a person stated: the first is that of the fault
    for one in notes:
        if one["kind"] == "stage" and one["data"]["stage"] == "detect":
            typed |= {name: value for name, value in one["data"].items() if value is not None}
    opened_at = instant(opened["at"])
    assert opened_at is not None
    return incident_record(
        incident_id=opened["incident_id"],
        job=job,
        diagnosis=told["diagnosis"],
        opened_at=opened_at,
        closed_at=instant(closes[-1]["at"]) if closes else None,
        began_at=instant(typed.get("started_at") or told["diagnosis"]["at"] or told.get("began_at")),
        detected_at=instant(typed.get("ended_at") or told.get("detected_at")),
        stages=stages_of(notes),
        stated=stated,
        because="; ".join(because) or None,
        action=told.get("action"),
        evicted=told.get("evicted") or (),
        code_version=told.get("code_version"),
        recomputed_steps=steps,
        recurs_incident_id=told.get("recurs_incident_id"),
        revision=len(closes),
        history=history,
        evidence=told.get("evidence"),
    )


def recurrence(record: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> str | None:
    """The newest incident of the 28 days before that this one repeats: the same stated cause on a shared host or GPU; a fault of the workload
    with the same job and code version too. Planned stops and open causes repeat nothing. `earlier` needs incident_id, began_at, opened_at,
    cause, attribution, hosts, gpus, job_id, code_version; the moments may be instants or ISO text."""
    began = _moment(record)
    if record["attribution"] not in ("platform", "workload") or record["cause"] == "unknown":
        return None
    found = [
        (_moment(other), other["incident_id"])
        for other in earlier
        if other["incident_id"] != record["incident_id"]
        and other["cause"] == record["cause"]
        and timedelta(0) <= began - _moment(other) <= RECURS_WITHIN
        and _repeats(record, other)
    ]
    return max(found)[1] if found else None


def _moment(record: Mapping[str, Any]) -> datetime:
    value = record["began_at"] or record["opened_at"]
    moment = instant(value) if isinstance(value, str) else value
    return moment or _LONG_AGO


def _repeats(record: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if record["attribution"] == "workload":
        version = record["code_version"]
        return version is not None and (record["job_id"], version) == (other["job_id"], other["code_version"])
    return bool(set(record["hosts"]) & set(other["hosts"] or ()) or _uuids(record) & _uuids(other))


def _uuids(record: Mapping[str, Any]) -> set[str]:
    """GPUs by a name that is theirs wherever they are plugged in; an index or address is a slot of one host."""
    return {gpu for gpu in record["gpus"] or () if gpu.startswith(("GPU-", "MIG-"))}
