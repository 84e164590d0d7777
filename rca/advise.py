"""Verdict -> what to do first, and whom to evict. Pure: nothing is ever run, commands are text for a person."""

from __future__ import annotations

import shlex

from rca.causes import CAUSES
from rca.roster import Roster
from rca.types import Advice, Verdict

__all__ = ["advise"]

LOOK_INSIDE = frozenset({"unknown", "code_hang"})  # causes for which the stack of the living process tells more

_BECAUSE = {
    "retry": "nothing here says that a restart meets the same fault again; watch whether it comes back on the same host",
    "replace": "the fault sits on hardware, and a restart there would meet it again",
    "fix_code": "the fault is in the program: a restart meets it again, and no host is to blame",
    "human": "the evidence does not carry an action; the next thing to do is to look where it points",
    "rollback": "state after the fault cannot be trusted",
    "quarantine_data": "the same sample would fail again",
    "none": "nothing to do",
}


def advise(verdict: Verdict, roster: Roster) -> Advice:
    """The first action: that of the cause. Hosts are evicted only when the cause lies in hardware or network and a rank is named."""
    action = CAUSES[verdict.cause].action
    if action == "replace" and not verdict.ranks:
        action = "human"  # a group is named, no machine: nothing can be replaced yet
    evict = verdict.hosts if action == "replace" else ()
    evict_ranks = tuple(sorted({rank for host in evict for rank in roster.ranks_on(host)})) if evict else ()
    group = str(verdict.last_collective["group"]) if verdict.last_collective and not verdict.ranks else None
    return Advice(
        action=action, evict_hosts=evict, evict_ranks=evict_ranks, evict_group=group, innocent_hosts=(),
        because=_because(verdict, action), commands=_commands(verdict, action, evict),
    )  # fmt: skip


def _because(verdict: Verdict, action: str) -> str:
    if action == "replace" and verdict.ranks and not verdict.hosts:
        return "the rank is known but not its host: give a rank map (rank,host) and ask again"
    if action == "human" and verdict.ranks:
        return "who failed first is clear, why is not: take stacks (with --native) and the log of this rank before restarting"
    return _BECAUSE.get(action, "")


def _commands(verdict: Verdict, action: str, evict: tuple[str, ...]) -> tuple[str, ...]:
    """Lines a person may run: a drain for hosts to replace, a look for what is still open."""
    if evict:
        reason = shlex.quote(f"rca: {verdict.cause} rank {','.join(map(str, verdict.ranks[:4]))}")
        return (f"scontrol update nodename={shlex.quote(','.join(evict))} state=drain reason={reason}",)
    if verdict.cause in LOOK_INSIDE and verdict.ranks and verdict.hosts:
        find = f"grep -lzx RANK={verdict.ranks[0]} /proc/[0-9]*/environ | cut -d/ -f3 | head -1"
        return (f"ssh {shlex.quote(verdict.hosts[0])} 'py-spy dump --native --pid $({find})'",)
    return ()
