"""One incident: the answer first, then what it rests on, down to the lines of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apps.pages._decision import decision
from apps.pages._evidence import evidence, unseen
from apps.pages._record import record
from apps.pages._stages import notes_shown, opened, overruled, stages_shown, untold
from apps.pages._words import chart, fact, quote, say, some, table, utc

if TYPE_CHECKING:
    import polars as pl

    from apps.look import Look
    from rca.judge import Judgement

__all__ = ["OVER", "TITLE", "render"]

TITLE = "Incident"
OVER = "case"
MAX_OUTLIERS = 200  # rows of the list beside a grid


def render(look: Look) -> None:
    """The page of a case, or of a record in a fleet."""
    import streamlit as st

    if look.is_fleet:
        record(look)
        return
    if look.judgement.is_blind:
        _blind(look)
        return
    first = st.container()  # the answer stands above what it depends on: which incident is picked
    incident = opened(look)
    with first:
        _answer(look, incident)
    if incident is not None:
        st.subheader("Stages")
        stages_shown(look, incident)
    _ranks(look)
    evidence(look)
    _timeline(look)
    if incident is not None:
        st.subheader("Notes")
        notes_shown(look, incident)
    else:
        st.subheader("Stages")
        untold(look)
    unseen(look)


def _blind(look: Look) -> None:
    """Nothing was read, so nothing is said of ranks or causes; what stands in the way is."""
    import streamlit as st

    from apps.text import blind_lines

    first, *rest = blind_lines(look.path, look.num_files + len(look.refused), look.kinds, look.refused)
    with st.container(key="headline"):
        say(first)
    for line in rest:
        say(line)
    unseen(look)


def _answer(look: Look, incident: str | None) -> None:
    """Who, why, how sure, proven or not, what to do."""
    import streamlit as st

    from apps.headline import condition, headline, percent
    from rca.causes import CAUSES

    judgement = look.judgement
    verdict, advice = judgement.verdict, judgement.advice
    with st.container(key="where"):
        say(f"{look.path}: {look.num_files:,} files, job {judgement.roster.job_id}, attempt {judgement.roster.attempt}")
    with st.container(key="headline"):
        answer = st.empty()  # how it is said depends on what was overruled, which stands below it
    say(condition(judgement))
    instead = overruled(look, incident) if incident is not None else {}
    with answer.container():
        say(f"{'The tool said, and was overruled: ' if instead else ''}{headline(judgement)}")
    sure = f"{percent(verdict.ranks_probability)} of the ranks, " if verdict.ranks else ""
    who, why, what = st.columns(3, gap="medium")
    with who:
        who_says = _who(judgement)
        if {"ranks", "hosts"} & set(instead):
            ranks, hosts = instead.get("ranks", verdict.ranks), instead.get("hosts", verdict.hosts)
            who_says = (
                f"{f'ranks {some(ranks)}' if ranks else 'no rank'} on {', '.join(hosts) or 'hosts not told'} (the tool said: {who_says})"
            )
        fact("Who failed first", who_says)
        fact("When", _when(judgement))
    with why:
        cause = instead.get("cause", verdict.cause)
        means = f"{_plain(cause)}: {CAUSES[cause].means if cause in CAUSES else ''}"
        fact("Why", f"{means}{_tool(_plain(verdict.cause)) if 'cause' in instead else ''}")
        layer, whose = instead.get("layer", verdict.layer), instead.get("attribution", verdict.attribution)
        is_other = (layer, whose) != (verdict.layer, verdict.attribution)
        fact(
            "Layer and whose it is",
            f"{_plain(layer)}; {whose}{_tool(f'{_plain(verdict.layer)}; {verdict.attribution}') if is_other else ''}",
        )
    with what:
        fact("How sure of its verdict the tool is" if instead else "How sure", f"{sure}{percent(verdict.probability)} of the cause")
        fact("Proven", "yes, by a replay or probe" if verdict.proven else "no: concluded from evidence, not reproduced")
    advised = f"{_to_do(advice.action)}: {advice.because}"
    is_other = "action" in instead
    fact("What to do", f"{_to_do(instead['action'])}{_tool(advised)}" if is_other else advised)
    if advice.evict_hosts:
        fact(
            "Evict, as the tool advised before it was overruled" if instead else "Evict",
            f"{', '.join(advice.evict_hosts)} (ranks {some(advice.evict_ranks)})"
            + (f"; of these {', '.join(advice.innocent_hosts)} only go along" if advice.innocent_hosts else ""),
        )
    if advice.commands:
        if instead:
            st.caption("Commands of what the tool advised before it was overruled, to be checked and run by a person")
        else:
            st.caption("Commands, to be checked and run by a person")
        quote(advice.commands)
    if not instead:
        decision(advice)


def _plain(word: str) -> str:
    return word.replace("_", " ")


def _to_do(action: str) -> str:
    return "a person must look" if action == "human" else _plain(action)


def _tool(said: str) -> str:
    """What the tool said, beside what a person stated in its place."""
    return f" (stated by a person; the tool said: {said})"


def _who(judgement: Judgement) -> str:
    verdict, gpus = judgement.verdict, judgement.roster.gpus
    if not verdict.ranks:
        return "no rank is named" + (f"; on {', '.join(verdict.hosts)}" if verdict.hosts else "")
    named = [gpus[rank] for rank in verdict.ranks if rank in gpus]
    ranks = f"rank{'s' if len(verdict.ranks) > 1 else ''} {some(verdict.ranks)}"
    return f"{ranks} on {', '.join(verdict.hosts) or 'a host not known'}" + (f", GPU {', '.join(named[:8])}" if named else "")


def _when(judgement: Judgement) -> str:
    verdict = judgement.verdict
    at = utc(verdict.failed_at) if verdict.failed_at else "no evidence with a date and zone tells"
    order = {"collective": "the order of calls", "wait": "who waits for whom", "clock": "clocks", "log": "the order in the logs"}
    by = f"; ordered by {order[verdict.ordered_by]}" if verdict.ordered_by else ""
    return f"{at}{f', step {verdict.step}' if verdict.step is not None else ''}{by}"


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
        st.caption(f"Not of the state '{usual}' as {num_usual:,} ranks are: {odd.height:,}")
        if odd.height > MAX_OUTLIERS:
            st.caption(f"the first {MAX_OUTLIERS} of them")
        table(odd.head(MAX_OUTLIERS).select("rank", "state", "host", "says"), key="outliers")


def _timeline(look: Look) -> None:
    import streamlit as st

    from apps.charts import event_timeline
    from apps.scene import EARLY

    st.subheader("First symptoms")
    if not look.events.height:
        say("no event, call or log line with a date was read")
    else:
        parts = [look.events]
        if _is_torn(look.events):  # printed times far from the others: their zone is another, and one axis would hide both
            parts = [look.events.filter("is_utc"), look.events.filter(~look.events["is_utc"])]
        for number, part in enumerate(parts):
            chart(event_timeline(part, began_at=_drawn(look, part), suspects=look.judgement.verdict.hosts), key=f"events_{number}")
    if look.num_early:
        say(f"{look.num_early:,} events from more than {EARLY.seconds // 60} minutes before the job's first sign of life are left out")
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
