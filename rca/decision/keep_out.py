"""Which hosts stay out of use until a replay clears them, where wrong bits were seen and no chip is named: those that fit, else all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rca.roster import Roster
from rca.types import Finding, Verdict

__all__ = ["SDC", "fitting_hosts", "keep_out"]

SDC: Final = "silent_data_corruption"


def fitting_hosts(roster: Roster, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Hosts that findings tell as possible ones, or of ranks that they do; () where any may be."""
    ranks = {rank for f in findings for name in ("suspects", "candidates") for rank in f.numbers.get(name, ()) if isinstance(rank, int)}
    told = {str(host) for f in findings for host in f.numbers.get("candidate_hosts", ())}
    return tuple(sorted(told or set(roster.hosts_of(tuple(sorted(ranks))))))


def keep_out(verdict: Verdict, roster: Roster, findings: Sequence[Finding]) -> tuple[str, ...]:
    """The hosts, sorted; () for any other cause, and where a machine is named, which is evicted."""
    if verdict.cause != SDC or verdict.ranks or verdict.hosts:
        return ()
    return fitting_hosts(roster, findings) or tuple(sorted(set(roster.hosts.values())))
