"""Ranks that were slow in a job that something else ended: the restart would be slow again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rca.commands import node_name
from rca.rank_rows import rows_text
from rca.roster import Roster
from rca.types import Finding, Verdict
from rca.weighing import FIRM_BITS, sign_of, strength

__all__ = ["slow_beside"]

SLOW = "slow_rank"  # the cause that is told beside another one


def slow_beside(verdict: Verdict, findings: Sequence[Finding], who: Roster, gone: Collection[str]) -> str:
    """Whom to look at before the restart, beside what ended the job; "" where nobody was slow, or they are what failed, or their hosts go anyway."""
    if verdict.cause == SLOW:
        return ""
    others = [f for f in findings if not set(f.ranks) <= set(verdict.ranks)]
    slow = {rank for f in others if sign_of(f).causes[:1] == (SLOW,) and strength(f) >= FIRM_BITS for rank in f.ranks}
    ranks = sorted(rank for rank in slow - set(verdict.ranks) if who.hosts.get(rank) not in gone)
    if not ranks:
        return ""
    hosts = ", ".join(node_name(who.spelled(host)) for host in who.hosts_of(tuple(ranks))) or "where it sits is not told"
    several = len(ranks) > 1
    return (
        f"a second matter, which ended nothing: rank{'s' if several else ''} {rows_text(ranks)} ({hosts}) {'were' if several else 'was'} slower than "
        f"{'their' if several else 'its'} peers; check that host or leave it out before the restart, or steps wait for it again"
    )
