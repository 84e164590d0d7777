"""The fleet over a stretch of weeks: what faults cost, whose they are, whether they come back. Every figure with its denominator."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from apps.pages._words import chart, fact, say, table

if TYPE_CHECKING:
    import polars as pl

    from apps.look import Look
    from rca.reliability.ledger import Ledger
    from rca.reliability.window import Figure, Window

__all__ = ["OVER", "TITLE", "figure_text", "render"]

TITLE = "Reliability"
OVER = "fleet"
WEEKS: Final = (1, 4, 13)  # lengths of the stretch that can be chosen
KEY: Final = (  # figures shown large, three in a column
    ("mtbf", "mtbf_platform", "effective_ratio"),
    ("mttr_mean", "mttr_median", "over_budget_share"),
    ("lost_gpu_h", "lost_gpu_h_planned", "recurrence_share"),
)
MAX_WEEKS: Final = 104  # that can be picked


def render(look: Look) -> None:
    """The page of a fleet."""
    import streamlit as st

    from apps.report.words import counted
    from rca.reliability.breakdowns import bad_hosts, counts_by_week, lost_by, stage_times
    from rca.reliability.figures import figures
    from rca.reliability.ledger import open_ledger

    ledger = open_ledger(look.tables["incidents"], look.tables["stages"], look.tables["attempts"])
    weeks = _weeks(ledger)
    with st.container(key="where"):
        counts = (
            counted(ledger.incidents.height, "incident"),
            f"{counted(len(ledger.jobs), 'job')} with recorded time",
            counted(look.num_files, "record"),
        )
        say(f"{look.path}: {', '.join(counts)}")
    if not weeks:
        st.info("This fleet holds no record with a date yet: `rca close` writes one for each incident.")
        return
    window = _chosen(weeks)
    found = figures(ledger, window)
    with st.container(key="headline"):
        say(_headline(found))
    for column, names in zip(st.columns(3, gap="medium"), KEY, strict=True):
        with column:
            for name in names:
                fact(found[name].says[:1].upper() + found[name].says[1:], figure_text(found[name]))
    _pictures(
        stage_times(ledger, window),
        counts_by_week(ledger, _split(window)),
        lost_by(ledger, window, "cause"),
        lost_by(ledger, window, "attribution"),
    )
    _returning(ledger, bad_hosts(ledger, window))
    st.subheader("Every figure")
    table(_rows(found), key="figures")


def _weeks(ledger: Ledger) -> list[str]:
    """ISO weeks from the first record to the last, newest first; those to come are left out, since nothing of them can have been seen."""
    from datetime import timedelta

    from rca.incidents.records import week_of
    from rca.reliability.window import week

    moments = [at for at in ledger.incidents["at"].to_list() if at is not None]
    moments += [at for spell in ledger.spells for at in (spell.started_at, spell.ended_at) if at is not None]
    moments = [at for at in moments if at <= datetime.now(UTC)]
    if not moments:
        return []
    first, at = min(moments), week(week_of(max(moments))).start
    names: list[str] = []
    while at + timedelta(weeks=1) > first and len(names) < MAX_WEEKS:
        names.append(week_of(at))
        at -= timedelta(weeks=1)
    return names


def _chosen(weeks: list[str]) -> Window:
    """The stretch that the reader picks, up to now at most: what has not happened yet was not observed."""
    from datetime import timedelta

    import streamlit as st

    from rca.reliability.window import Window, week

    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        last = st.selectbox("Up to the week", range(len(weeks)), format_func=lambda i: weeks[i], key="week")
    with right:
        length = st.segmented_control("Weeks", WEEKS, default=WEEKS[1], key="num_weeks", required=True)
    end = week(weeks[last or 0])
    return Window(
        end.start - timedelta(weeks=(length or WEEKS[1]) - 1), min(end.end, max(datetime.now(UTC), end.start + timedelta(seconds=1)))
    )


def _split(window: Window) -> list[Window]:
    from datetime import timedelta

    from rca.reliability.window import Window

    starts, at = [], window.start
    while at < window.end:
        starts.append(at)
        at += timedelta(weeks=1)
    return [Window(start, min(start + timedelta(weeks=1), window.end)) for start in starts]


def _headline(found: dict[str, Figure]) -> str:
    from apps.report.words import counted, quantity

    stops, failures, planned = (found[name].value for name in ("interruptions", "failures", "planned_interruptions"))
    if stops is None:
        return "Nothing is recorded of this time"
    between = found["mtbf"].value
    often = f"; one failure in {quantity(between, 'h')} of a job" if between is not None else ""
    return f"{counted(stops, 'interruption')}: {counted(failures or 0, 'failure')}, {planned or 0:,.0f} planned{often}"


def figure_text(figure: Figure) -> str:
    """A figure with unit, and what it rests on, in the words of the weekly report; "not known" with the reason where there is none."""
    from apps.report import words

    if figure.value is None:
        return f"{words.MISSING}{f': {figure.why}' if figure.why else ''}"
    basis = words.basis(figure.as_row())
    return words.quantity(figure.value, figure.unit) + (f" ({basis})" if basis else "")


def _pictures(stages: pl.DataFrame, weeks: pl.DataFrame, causes: pl.DataFrame, whose: pl.DataFrame) -> None:
    import polars as pl
    import streamlit as st

    from apps.charts import interruptions_by_week, lost_time_by_cause, mttr_by_stage, platform_vs_planned

    left, right = st.columns(2, gap="medium")
    with left:
        chart(interruptions_by_week(weeks), key="weeks")
        if whose.height:
            chart(platform_vs_planned(whose), key="whose")
    timed = stages.filter(pl.col("num") > 0)
    with right:
        if timed.height:
            chart(mttr_by_stage(timed), key="mttr")
        else:
            say("of no failure a stage is timed")
        if causes.height:
            chart(lost_time_by_cause(causes), key="lost")


def _returning(ledger: Ledger, hosts: pl.DataFrame) -> None:
    """What comes back: hosts, and incidents that repeat an earlier one."""
    import polars as pl
    import streamlit as st

    st.subheader("What comes back")
    if hosts.height:
        st.caption("Hosts that failed first more than once in the 28 days up to the end of the stretch, failures of the workload left out")
        table(hosts.select("host", "num", pl.col("causes").list.join(", "), pl.col("incidents").list.join(", "), "last_at"), key="hosts")
    else:
        say("no host failed first more than once in the 28 days up to the end of the stretch")
    repeats = ledger.incidents.filter(pl.col("repeats").is_not_null()).sort("at", descending=True, nulls_last=True)
    if repeats.height:
        st.caption("Incidents that repeat an earlier one, newest first")
        table(repeats.select("at", "incident_id", "repeats", "cause", pl.col("hosts").list.join(", ")), key="repeats")


def _rows(found: dict[str, Figure]) -> pl.DataFrame:
    import polars as pl

    rows: list[dict[str, Any]] = [{"figure": f.says, **f.as_row()} for f in found.values()]
    columns = ("figure", "value", "unit", "numerator", "denominator", "n", "left_out", "low", "high", "why")
    return pl.DataFrame(rows, infer_schema_length=None).select(columns)
