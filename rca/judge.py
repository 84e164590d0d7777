"""From tables to an answer: ask every question, weigh the outcomes, advise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from rca.catalogues import Site, settings, site
from rca.checkpoints import first_divergence, rollback
from rca.dating import undated
from rca.decision.advise import advise
from rca.decision.facts import facts
from rca.decision.history import NO_HISTORY, History
from rca.decision.job_size import UNKNOWN_SIZE, JobSize
from rca.diagnose import diagnose
from rca.questions import ask_all, verdict_frames
from rca.roster import Roster, roster
from rca.types import Advice, Outcome, Tables, Verdict

__all__ = ["Judgement", "judge", "with_hosts"]


@dataclass(frozen=True)
class Judgement:
    """A verdict with all that led to it."""

    outcomes: tuple[Outcome, ...]
    verdict: Verdict
    advice: Advice
    roster: Roster
    site: Site | None = None  # whose rules counted beside the shipped ones
    size: JobSize = UNKNOWN_SIZE  # ranks of the job, and what tells how many

    @property
    def is_blind(self) -> bool:
        """Nothing tells what a rank did, and no question could look: there was no readable evidence."""
        is_seen = self.roster.is_measured or any(self.roster.ranks_with.values())
        return not is_seen and {o.status for o in self.outcomes} == {"blind"}

    def frames(self) -> dict[str, pl.DataFrame]:
        """The verdict as tables, as the case stores it."""
        return verdict_frames(self.outcomes, self.verdict)


def judge(case: Tables, history: History = NO_HISTORY) -> Judgement:
    """The answer that a case gives. `history`: what happened before, which moves the advice, never the verdict."""
    who = roster(case)
    outcomes = tuple(with_hosts(outcome, who) for outcome in ask_all(case))
    findings = [f for o in outcomes for f in o.findings]
    verdict = diagnose(outcomes, who, undated=undated(case, findings))
    back = rollback(case, step=first_divergence(verdict, findings), at=verdict.failed_at, cause=verdict.cause)
    told = facts(case, who)
    advice = advise(verdict, who, findings, back, outcomes=outcomes, facts=told, history=history, settings=settings())
    return Judgement(outcomes, verdict, advice, who, site(), told.size)


def with_hosts(outcome: Outcome, who: Roster) -> Outcome:
    """Analyses accuse ranks; the roster knows where they ran."""
    return replace(outcome, findings=tuple(replace(f, hosts=f.hosts or who.hosts_of(f.ranks)) for f in outcome.findings))
