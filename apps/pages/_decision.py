"""What the advice rests on: what comes next, restarts so far, losses, the way back, and a checklist before the restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apps.pages._words import fact, quote, say

if TYPE_CHECKING:
    from rca.types import Advice

__all__ = ["decision"]


def decision(advice: Advice) -> None:
    """A few facts at once, and all of it in a box to be opened."""
    import streamlit as st

    from apps.decision import recovery_words, steps_words, why_parts

    if not advice.next:
        return
    fact("If it fails", steps_words(advice.next))
    if advice.recovery is not None and advice.recovery["path"] != "none":
        fact("Way back", recovery_words(advice.recovery))
    with st.expander("What the decision rests on", key="decision"):
        for heading, lines in why_parts(advice):
            say(f"{heading}:")
            for line in lines:
                if not line.startswith("$ "):
                    say(f"  {line}")
            if commands := [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]:
                quote(commands)
