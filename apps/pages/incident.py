"""One incident: the answer first, then what it rests on, down to the lines of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apps.pages._words import chart, fact, quote, say, table

if TYPE_CHECKING:
    import polars as pl

    from apps.look import Look
    from rca.judge import Judgement
    from rca.types import Cite, Finding

__all__ = ["OVER", "TITLE", "render"]

TITLE = "Incident"
OVER = "case"
MAX_OUTLIERS = 200  # rows of the list beside a grid
MAX_FINDINGS = 40  # shown one by one


def render(look: Look) -> None:
    """The page of a case."""
    import streamlit as st

    if look.is_fleet:
        _of_record(look)
        return
    _answer(look)
    _ranks(look)
    _evidence(look)
    _timeline(look)
    st.subheader("Stages and notes")
    ids = sorted({*look.tables["stages"]["incident_id"], *look.tables["notes"]["incident_id"], *look.tables["incidents"]["incident_id"]})
    if ids:
        _of_incident(look, ids)
    else:
        _untold(look)
    _unseen(look)


def _answer(look: Look) -> None:
    """Who, why, how sure, proven or not, what to do."""
    import streamlit as st

    from apps.headline import condition, headline, percent
    from rca.causes import CAUSES

    judgement = look.judgement
    verdict, advice = judgement.verdict, judgement.advice
    with st.container(key="where"):
        say(f"{look.path}: {look.num_files:,} files, job {judgement.roster.job_id}, attempt {judgement.roster.attempt}")
    with st.container(key="headline"):
        say(headline(judgement))
    say(condition(judgement))
    _overruled(look)
    cause = CAUSES.get(verdict.cause)
    sure = f"{percent(verdict.ranks_probability)} of the ranks, " if verdict.ranks else ""
    action = "a person must look" if advice.action == "human" else advice.action.replace("_", " ")
    who, why, what = st.columns(3, gap="medium")
    with who:
        fact("Who failed first", _who(judgement))
        fact("When", _when(judgement))
    with why:
        fact("Why", f"{verdict.cause.replace('_', ' ')}: {cause.means if cause else ''}")
        fact("Layer and whose it is", f"{verdict.layer.replace('_', ' ')}; {verdict.attribution}")
    with what:
        fact("How sure", f"{sure}{percent(verdict.probability)} of the cause")
        fact("Proven", "yes, by a replay or probe" if verdict.proven else "no: concluded from evidence, not reproduced")
    fact("What to do", f"{action}: {advice.because}")
    if advice.evict_hosts:
        fact("Evict", f"{', '.join(advice.evict_hosts)} (ranks {_some(advice.evict_ranks)})")
    if advice.commands:
        st.caption("Commands, to be checked and run by a person")
        quote(advice.commands)


def _overruled(look: Look) -> None:
    """What a person put in the place of the tool's words, newest last."""
    import polars as pl

    for note in look.tables["notes"].filter(pl.col("kind") == "overrule").sort("noted_at", nulls_last=True).iter_rows(named=True):
        stated = ", ".join(f"{name} {_words(value)}" for name, value in sorted(_data(note).items()))
        fact("Overruled by a person", f"{stated}: {note['text'] or 'no reason given'}")


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) or "nobody" if isinstance(value, list) else str(value).replace("_", " ")


def _data(note: Mapping[str, Any]) -> dict[str, Any]:
    """What a note states beside its words."""
    import json

    data = json.loads(note["data"] or "{}")
    return data if isinstance(data, dict) else {}


def _who(judgement: Judgement) -> str:
    verdict, gpus = judgement.verdict, judgement.roster.gpus
    if not verdict.ranks:
        return "no rank is named" + (f"; on {', '.join(verdict.hosts)}" if verdict.hosts else "")
    named = [gpus[rank] for rank in verdict.ranks if rank in gpus]
    ranks = f"rank{'s' if len(verdict.ranks) > 1 else ''} {_some(verdict.ranks)}"
    return f"{ranks} on {', '.join(verdict.hosts) or 'a host not known'}" + (f", GPU {', '.join(named[:8])}" if named else "")


def _when(judgement: Judgement) -> str:
    verdict = judgement.verdict
    at = _utc(verdict.failed_at) if verdict.failed_at else "no evidence with a date and zone tells"
    order = {"collective": "the order of calls", "wait": "who waits for whom", "clock": "clocks", "log": "the order in the logs"}
    by = f"; ordered by {order[verdict.ordered_by]}" if verdict.ordered_by else ""
    return f"{at}{f', step {verdict.step}' if verdict.step is not None else ''}{by}"


def _utc(at: Any) -> str:
    """An instant to the millisecond: faults of a job lie closer together than a second."""
    return f"{at.strftime('%Y-%m-%d %H:%M:%S')}.{at.microsecond // 1000:03d} UTC"


def _some(ranks: Sequence[int], limit: int = 12) -> str:
    return ", ".join(map(str, ranks[:limit])) + (f" and {len(ranks) - limit} more" if len(ranks) > limit else "")


def _ranks(look: Look) -> None:
    """The grid; beside it, where there are many, the ranks that are not fine."""
    import polars as pl
    import streamlit as st

    from apps.charts import LABELLED, RANK_STATES, rank_grid

    states = look.states
    if not states.height:
        return
    if states.height <= LABELLED:
        chart(rank_grid(states, look.links), key="rank_grid")
        return
    left, right = st.columns([2, 1], gap="medium")
    with left:
        chart(rank_grid(states, look.links), key="rank_grid")
    usual, num_usual = states["state"].value_counts().sort("count", "state", descending=True).row(0)
    worst = pl.col("state").replace_strict({name: i for i, name in enumerate(RANK_STATES)}, return_dtype=pl.Int64)
    odd = states.filter(pl.col("state") != usual).sort(worst, "rank")
    with right:
        st.caption(f"{odd.height:,} rank{'s' * (odd.height != 1)}, all but the {num_usual:,} of state: {usual}")
        if odd.height > MAX_OUTLIERS:
            st.caption(f"the first {MAX_OUTLIERS} of them")
        table(odd.head(MAX_OUTLIERS).select("rank", "state", "host", "says"), key="outliers")


def _evidence(look: Look) -> None:
    """Findings, those for the verdict first, each with the lines it rests on."""
    import streamlit as st

    from apps.text import chain

    st.subheader("Evidence")
    findings = chain(look.judgement)
    if not findings:
        clear = [o.analysis for o in look.judgement.outcomes if o.status == "clear"]
        say(f"looked, and found nothing out of the ordinary: {', '.join(clear) or 'no analysis could look'}")
    for number, (finding, aside) in enumerate(findings[:MAX_FINDINGS], 1):
        _finding(look, number, finding, aside)
    if len(findings) > MAX_FINDINGS:
        say(f"and {len(findings) - MAX_FINDINGS} more: rca diagnose --json {look.path}")


def _finding(look: Look, number: int, finding: Finding, aside: str) -> None:
    import streamlit as st

    say(f"{number}. {finding.says}{aside}.")
    if not finding.cites:
        return
    places = f"{len(finding.cites)} place{'s' if len(finding.cites) > 1 else ''}"
    opened = st.expander(f"Finding {number}: what stands in {places}", key=f"finding_{number}", on_change="rerun")
    if opened.open:
        with opened:
            for cite in finding.cites:
                _cite(look, cite)


def _cite(look: Look, cite: Cite) -> None:
    """A place in a file: what was read there, and around a line its neighbours."""
    say(f"{cite.path} {cite.record}")
    found = look.excerpt(cite)
    if not found.lines:
        quote([cite.text])
        if found.why and cite.record.startswith("L"):
            say(found.why)
        return
    if not any(cite.text in text for number, text in found.lines if number == found.hit):
        quote([cite.text])  # of a traceback that begins at the line, or as a reader took it apart
    width = len(str(found.lines[-1][0]))
    quote(f"{'>' if number == found.hit else ' '} {number:{width}}  {text}" for number, text in found.lines)


def _timeline(look: Look) -> None:
    import streamlit as st

    from apps.charts import event_timeline

    st.subheader("First symptoms")
    if not look.events.height:
        say("no event, call or log line with a date was read")
    else:
        parts = [look.events]
        if _is_torn(look.events):  # printed times far from the others: their zone is another, and one axis would hide both
            parts = [look.events.filter("is_utc"), look.events.filter(~look.events["is_utc"])]
        for number, part in enumerate(parts):
            chart(event_timeline(part, began_at=_drawn(look, part), suspects=look.judgement.verdict.hosts), key=f"events_{number}")
    if look.num_unplaced:
        say(f"{look.num_unplaced} kinds of events bear no full date and are not drawn")


def _is_torn(events: pl.DataFrame) -> bool:
    """Whether the printed times lie apart from those in UTC by more than both last."""
    utc, local = events.filter("is_utc")["at"], events.filter(~events["is_utc"])["at"]
    if not utc.len() or not local.len():
        return False
    spans: list[Any] = [(utc.min(), utc.max()), (local.min(), local.max())]
    gap = max(spans[0][0], spans[1][0]) - min(spans[0][1], spans[1][1])
    return bool(gap > max(high - low for low, high in spans) and gap.total_seconds() > 600)


def _drawn(look: Look, events: pl.DataFrame) -> Any:
    return look.judgement.verdict.failed_at if events["is_utc"].any() else None


def _untold(look: Look) -> None:
    """No incident was opened here: what evidence alone tells of the stages."""
    events = look.events.filter("is_utc")
    failed_at = look.judgement.verdict.failed_at
    say("No incident was opened on this evidence, so nobody told when it was noticed and dealt with. What the evidence tells:")
    say(f"the fault: {_utc(failed_at) if failed_at else 'no instant'}")
    if events.height:
        calls = events.filter(events["kind"] == "last recorded call")["at"]
        for name, at in (("last recorded call of the first rank to stop", calls.min()), ("last recorded call of any rank", calls.max())):
            if at is not None:
                say(f"{name}: {_utc(at)}")
    quote([f"rca open {look.path}"])


def _of_record(look: Look) -> None:
    """An incident of a fleet, as its record tells."""
    import streamlit as st

    incidents = look.tables["incidents"].sort("began_at", "incident_id", descending=True, nulls_last=True)
    if not incidents.height:
        st.info("This fleet holds no closed incident yet.")
        return
    chosen = st.selectbox("Incident, newest first", range(incidents.height), format_func=lambda i: incidents["incident_id"][i])
    row = incidents.row(chosen or 0, named=True)
    with st.container(key="headline"):
        say(row["summary"] or "no summary")
    left, right = st.columns(2)
    with left:
        fact("Cause as stated", f"{row['cause'] or 'not told'}{' (overruled by a person)' if row['is_overruled'] else ''}")
        fact("Proven", row["proven_cause"] or "no")
        fact("Whose it is", f"{row['attribution'] or 'not told'}: {row['because'] or 'no reason given'}")
    with right:
        fact("Ranks and hosts that failed first", f"{_some(row['ranks'] or [])} on {', '.join(row['hosts'] or []) or 'hosts not told'}")
        fact("What was done", f"{row['action'] or 'not told'}; taken out: {', '.join(row['evicted'] or []) or 'nobody'}")
        lost = row["lost_gpu_s"]
        fact("Lost", "not told" if lost is None else f"{lost / 3600:,.1f} GPU h; {row['recomputed_steps'] or 0:,} steps done again")
    if row["recurs_incident_id"]:
        fact("Repeats", row["recurs_incident_id"])
    _of_incident(look, [row["incident_id"]])


def _of_incident(look: Look, ids: Sequence[str]) -> None:
    """Stages against their budgets, and the notes."""
    import polars as pl
    import streamlit as st

    from apps.charts import stage_timeline
    from apps.scene import stages_so_far
    from rca.causes import WHOLE_BUDGET_S

    chosen = ids[0] if len(ids) == 1 else ids[st.selectbox("Incident", range(len(ids)), format_func=lambda i: ids[i]) or 0]
    notes = look.tables["notes"].filter(pl.col("incident_id") == chosen).sort("noted_at", nulls_last=True)
    stages = look.tables["stages"].filter(pl.col("incident_id") == chosen)
    stages = stages if stages.height else stages_so_far(notes)
    timed = stages.filter(pl.col("started_at").is_not_null())
    if timed.height:
        chart(stage_timeline(stages), key="stages")
        whole = timed.select((pl.col("ended_at").max() - pl.col("started_at").min()).dt.total_seconds(fractional=True)).item()
        if whole is not None:
            say(f"from the first stage to the end of the last: {whole:,.0f} s of {WHOLE_BUDGET_S:,.0f} s allowed")
        length = (pl.col("ended_at") - pl.col("started_at")).dt.total_seconds(fractional=True).round(1)
        rows = timed.sort("started_at").select("stage", "started_at", length.alias("took_s"), "budget_s", "origin")
        table(rows, key="stage_rows", labels=("stage", "began (UTC)", "took, s", "budget, s", "told by"))
    else:
        say("no stage of this incident is timed")
    if notes.height:
        st.caption("Notes, oldest first")
    with st.container(gap=None):
        for note in notes.iter_rows(named=True):
            at = _utc(note["noted_at"]) if note["noted_at"] else "no time"
            by = f" by {note['author']}" if note["author"] else ""
            say(f"{at}  {note['kind']}{by}{_stage_words(note)}: {note['text'] or ''}")


def _stage_words(note: Mapping[str, Any]) -> str:
    """Which stage a note is about."""
    return f" {_data(note).get('stage', '')}".rstrip() if note["kind"] == "stage" else ""


def _unseen(look: Look) -> None:
    """What was not looked at, and what else it could be."""
    import streamlit as st

    from apps.text import alternative_lines, unseen_lines

    st.subheader("Not seen")
    with st.container(gap=None):
        for line in _joined(unseen_lines(look.judgement, look.skips)[1:]) or ["nothing that this version knows to look for is missing"]:
            say(line)
    if others := [line.strip() for line in alternative_lines(look.judgement) if line][1:]:
        st.subheader("Otherwise")
        with st.container(gap=None):
            for line in others:
                say(line)


def _joined(lines: Sequence[str]) -> list[str]:
    """Lines broken for a terminal, whole again."""
    whole: list[str] = []
    for line in filter(None, lines):
        if line.startswith("    ") and whole:
            whole[-1] += f" {line.strip()}"
        else:
            whole.append(line.strip())
    return whole
