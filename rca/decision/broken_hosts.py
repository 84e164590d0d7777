"""Hosts that a restart would meet as broken: their own record shows it, though they may not be what failed first. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rca.commands import node_name
from rca.roster import Roster
from rca.types import Finding

__all__ = ["broken_hosts", "broken_words"]


def broken_hosts(findings: Sequence[Finding], gone: Collection[str]) -> dict[str, str]:
    """Host -> its record in words ("" where the finding that names it tells it), of those whose own record shows broken hardware and that are not
    among `gone`, which leave the job anyway."""
    found: dict[str, str] = {}
    for finding in findings:
        if finding.numbers.get("is_broken"):
            found |= {host: found.get(host, "") for host in finding.hosts}
        rows: Sequence[dict[str, Any]] = finding.numbers.get("broken_beside", ())
        found |= {str(row["host"]): str(row["record"]) for row in rows}
    return {host: found[host] for host in sorted(set(found) - set(gone))}


def broken_words(broken: Mapping[str, str], who: Roster) -> str:
    """Which hosts to keep out, each with its record."""
    named = ", ".join(node_name(who.spelled(host)) + (f" ({record})" if record else "") for host, record in broken.items())
    its = "its own record shows" if len(broken) == 1 else "their own records show"
    return f"keep {named} out of the restart and test {'it' if len(broken) == 1 else 'them'}: {its} broken hardware, whatever failed first"
