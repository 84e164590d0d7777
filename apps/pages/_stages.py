"""Stages and notes of an incident that was opened, or what evidence alone tells of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from apps.pages._words import chart, fact, quote, say, table, utc

if TYPE_CHECKING:
    import polars as pl

    from apps.look import Look

__all__ = ["notes_shown", "opened", "overruled", "stages_shown", "untold"]


def opened(look: Look) -> str | None:
    """The incident that was opened on this evidence, picked by the reader where there are several; None = none was."""
    import streamlit as st

    ids = sorted({*look.tables["stages"]["incident_id"], *look.tables["notes"]["incident_id"], *look.tables["incidents"]["incident_id"]})
    return ids[st.selectbox("Incident", range(len(ids)), format_func=lambda i: ids[i]) or 0] if len(ids) > 1 else ids[0] if ids else None


def stages_shown(look: Look, incident_id: str) -> None:
    """An incident's stages against their budgets, as a picture and as rows."""
    import polars as pl

    from apps.charts import stage_timeline
    from rca.causes import WHOLE_BUDGET_S
    from rca.incidents.incident import is_settled

    known = _known(look, incident_id)
    timed = known.filter(pl.col("started_at").is_not_null())
    if not timed.height:
        say("no stage of this incident is timed")
        return
    chart(stage_timeline(timed), key="stages")
    whole = timed.select((pl.col("ended_at").max() - pl.col("started_at").min()).dt.total_seconds(fractional=True)).item()
    if whole is not None:
        is_closed = any(note == "close" for note in _notes(look, incident_id)["kind"]) or incident_id in set(
            look.tables["incidents"]["incident_id"]
        )
        is_over = is_settled(known.iter_rows(named=True), is_closed=is_closed)
        words = "to the end of the last" if is_over else "to the last end told so far"
        say(f"from the first stage {words}: {whole:,.0f} s of {WHOLE_BUDGET_S:,.0f} s allowed")
    length = (pl.col("ended_at") - pl.col("started_at")).dt.total_seconds(fractional=True).round(1).cast(pl.String)
    allowed = pl.col("budget_s").cast(pl.String)
    rows = timed.sort("started_at").select(
        "stage", "started_at", length.fill_null("end not told").alias("took_s"), allowed.fill_null("none").alias("budget_s"), "origin"
    )
    table(rows, key="stage_rows", labels=("stage", "began (UTC)", "took, s", "budget, s", "told by"))


def notes_shown(look: Look, incident_id: str) -> None:
    """What people and the tool wrote down, oldest first."""
    import streamlit as st

    notes = _notes(look, incident_id)
    if notes.height:
        st.caption("Notes, oldest first")
    with st.container(gap=None):
        for note in notes.iter_rows(named=True):
            at = utc(note["noted_at"]) if note["noted_at"] else "no time"
            by = f" by {note['author']}" if note["author"] else ""
            words = f": {note['text']}" if note["text"] else ""
            say(f"{at}  {note['kind']}{by}{_stage_words(note)}{words}")


def _known(look: Look, incident_id: str) -> pl.DataFrame:
    """Stages of the closed record, else of the notes so far."""
    import polars as pl

    from apps.scene import stages_so_far

    closed = look.tables["stages"].filter(pl.col("incident_id") == incident_id)
    return closed if closed.height else stages_so_far(_notes(look, incident_id))


def _notes(look: Look, incident_id: str) -> pl.DataFrame:
    import polars as pl

    return look.tables["notes"].filter(pl.col("incident_id") == incident_id).sort("noted_at", nulls_last=True)


def _stage_words(note: Mapping[str, Any]) -> str:
    """Which stage a note is about, and what it says of it."""
    if note["kind"] != "stage":
        return ""
    data = _data(note)
    moments = [f"{word} {data[name]}" for word, name in (("began", "started_at"), ("ended", "ended_at")) if data.get(name)]
    return f" {data.get('stage', '')} {', '.join(moments)}".rstrip()


def overruled(look: Look, incident_id: str) -> dict[str, Any]:
    """What stands of what people put in the place of the tool's words: a later note replaces an earlier one field by field, as in the record, and
    who says what the tool says overrules nothing. Shown, and given back by field with what follows from it; {} = nothing was overruled."""
    from rca.incidents.incident import merged, said_instead
    from rca.incidents.records import problem_of

    judged = look.judgement
    tool = {name: getattr(judged.verdict, name) for name in ("cause", "layer", "attribution", "ranks", "hosts")}
    tool["action"] = judged.advice.action
    stated: dict[str, Any] = {}
    because: dict[str, str] = {}
    for note in merged(*_histories(look, incident_id)):
        if note["kind"] == "overrule" and problem_of(note) is None:  # a file that anybody can edit
            stated |= note["data"]
            because |= dict.fromkeys(note["data"], note["text"] or "no reason given")
    standing = {name: value for name, value in sorted(stated.items()) if name not in tool or _plain(value) != _plain(tool[name])}
    if not standing:
        return {}
    reasons = "; ".join(dict.fromkeys(because[name] for name in standing))
    fact("Overruled by a person", f"{', '.join(f'{name} {_words(value)}' for name, value in standing.items())}: {reasons}")
    says = said_instead(tool, standing)
    return {name: value for name, value in says.items() if _plain(value) != _plain(tool[name])}


def _histories(look: Look, incident_id: str) -> list[list[dict[str, Any]]]:
    """The notes of an incident by file, each in the order of its lines."""
    files: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for note in _notes(look, incident_id).iter_rows(named=True):
        at = note["noted_at"].isoformat() if note["noted_at"] else None
        line = int(re.sub(r"\D", "", note["record"]) or 0)
        files.setdefault(note["evidence_id"], []).append(
            (line, {"at": at, "kind": note["kind"], "text": note["text"], "data": _data(note)})
        )
    return [[note for _, note in sorted(notes, key=lambda pair: pair[0])] for _, notes in sorted(files.items())]


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, list | tuple) else value


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) or "nobody" if isinstance(value, list) else str(value).replace("_", " ")


def _data(note: Mapping[str, Any]) -> dict[str, Any]:
    """What a note states beside its words."""
    data = json.loads(note["data"] or "{}")
    return data if isinstance(data, dict) else {}


def untold(look: Look) -> None:
    """No incident was opened here: what evidence alone tells of the stages."""
    events = look.events.filter("is_utc")
    failed_at = look.judgement.verdict.failed_at
    say("No incident was opened on this evidence, so nobody told when it was noticed and dealt with. What the evidence tells:")
    say(f"the fault: {utc(failed_at) if failed_at else 'no instant'}")
    if events.height:
        calls = events.filter(events["kind"] == "last recorded call")["at"]
        moments: list[tuple[str, Any]] = [
            ("last recorded call of the first rank to stop", calls.min()),
            ("last recorded call of any rank", calls.max()),
        ]
        for name, at in moments:
            if at is not None:
                say(f"{name}: {utc(at)}")
    quote([f"rca open {shlex.quote(look.path)}"])
