"""What an answer rests on: the findings down to the lines of the files, what was not seen, what else it could be."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from apps.pages._words import quote, say

if TYPE_CHECKING:
    from apps.look import Look
    from rca.types import Cite, Finding

__all__ = ["evidence", "unseen"]

MAX_FINDINGS = 40  # shown one by one


def evidence(look: Look) -> None:
    """Findings, those for the verdict first, each with the lines it rests on."""
    import streamlit as st

    from apps.text import chain

    st.subheader("Evidence")
    findings = chain(look.judgement)
    if not findings:
        clear = [o.analysis for o in look.judgement.outcomes if o.status == "clear"]
        say(f"looked, and found nothing out of the ordinary: {', '.join(clear)}" if clear else "no question could be answered from it")
    for number, (finding, aside) in enumerate(findings[:MAX_FINDINGS], 1):
        _finding(look, number, finding, aside)
    if len(findings) > MAX_FINDINGS:
        say(f"and {len(findings) - MAX_FINDINGS} more: rca diagnose --json {shlex.quote(look.path)}")


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


def unseen(look: Look) -> None:
    """What was not looked at, and what else it could be."""
    import streamlit as st

    from apps.text import alternative_lines, unseen_lines

    st.subheader("Not seen")
    with st.container(gap=None):
        for line in _joined(unseen_lines(look.judgement, look.skips, are_named=True)[1:]) or [
            "nothing that this version knows to look for is missing"
        ]:
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
