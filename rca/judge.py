"""From tables to an answer: ask every question, weigh the outcomes, advise."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rca.advise import advise
from rca.diagnose import diagnose
from rca.questions import ask_all, verdict_frames
from rca.roster import Roster, roster
from rca.types import Advice, Outcome, Tables, Verdict

__all__ = ["Judgement", "judge"]


@dataclass(frozen=True)
class Judgement:
    """A verdict with all that led to it."""

    outcomes: tuple[Outcome, ...]
    verdict: Verdict
    advice: Advice
    roster: Roster

    def frames(self) -> dict[str, pl.DataFrame]:
        """The verdict as tables, as the case stores it."""
        return verdict_frames(self.outcomes, self.verdict)


def judge(case: Tables) -> Judgement:
    """The answer that a case gives."""
    outcomes = tuple(ask_all(case))
    who = roster(case)
    verdict = diagnose(outcomes, who)
    return Judgement(outcomes, verdict, advise(verdict, who), who)
