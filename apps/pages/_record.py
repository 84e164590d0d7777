"""An incident of a fleet, as its record tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apps.pages._stages import notes_shown, stages_shown
from apps.pages._words import fact, say, some

if TYPE_CHECKING:
    from apps.look import Look

__all__ = ["record"]


def record(look: Look) -> None:
    """An incident of a fleet, as its record tells."""
    import streamlit as st

    from apps.report.words import counted, quantity

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
        fact("Ranks and hosts that failed first", f"{some(row['ranks'] or [])} on {', '.join(row['hosts'] or []) or 'hosts not told'}")
        fact("What was done", f"{row['action'] or 'not told'}; taken out: {', '.join(row['evicted'] or []) or 'nobody'}")
        lost, steps = row["lost_gpu_s"], row["recomputed_steps"]
        again = "steps done again not told" if steps is None else f"{counted(steps, 'step')} done again"
        fact("Lost", f"{'GPU time not told' if lost is None else quantity(lost / 3600.0, 'GPU h')}; {again}")
    if row["recurs_incident_id"]:
        fact("Repeats", row["recurs_incident_id"])
    st.subheader("Stages")
    stages_shown(look, row["incident_id"])
    st.subheader("Notes")
    notes_shown(look, row["incident_id"])
