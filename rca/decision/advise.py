"""Verdict -> what to do first, whom to evict, what comes next and what it costs. Pure: nothing is ever run, commands are text for a person.

1. The action is that of the cause, or of our rule for the kernel record that the verdict rests on.
2. It moves where the same fault came back too often, a network event repeats, spares are out, or going on slower is known to lose less.
3. The branch of the tree, the steps after it, the way back with its seconds and the checklist follow. What is not known is None, and said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rca.causes import CAUSES, is_full
from rca.checkpoints import Rollback
from rca.commands import commands, drain, node_name
from rca.decision.broken_hosts import broken_hosts
from rca.decision.endings import booked_end, timed_out
from rca.decision.even_work import even_work
from rca.decision.facts import NO_FACTS, Alerts, Facts
from rca.decision.history import NO_HISTORY, History
from rca.decision.job_size import ranks_per_host, seen_size
from rca.decision.keep_out import SDC, fitting_hosts, keep_out
from rca.decision.losses import can_go_on, loss
from rca.decision.reasons import because, instead
from rca.decision.recovery import recovery
from rca.decision.restart_checks import restart_checks
from rca.decision.retries import CAPPED, fault_of, retries
from rca.decision.shrink import is_needed, shrink
from rca.decision.slow_beside import slow_beside
from rca.decision.steps import next_steps
from rca.decision.stop_time import stop_time_checks
from rca.decision.tree import FLAPS, SURE, branch_of
from rca.eviction import EvictionPlan, eviction_plan
from rca.policies import Rule, rule_of_verdict, spread
from rca.replay import COMMANDS
from rca.roster import Roster
from rca.settings import NOT_SAID, Settings
from rca.types import Advice, Finding, Outcome, Verdict

__all__ = ["advise"]

EVICT_TOO: Final = frozenset({SDC})  # causes whose machine must go even where the first action is another
REPLAY_TELLS: Final = EVICT_TOO | {
    "gpu_fault",
    "gpu_memory_fault",
    "host_fault",
}  # causes for which a bitwise replay names or clears a host
RULED: Final = frozenset({"retry", "replace", "human"})  # actions that the rule for a kernel record may choose where the cause says replace
GROUP_GOES: Final = ("unknown", "slow_rank")  # causes, with nobody named, for which the group that stands apart goes as a whole
NO_GROUP_LAYERS: Final = ("software", "operator", "none")  # layers of causes for which no machine of a group goes
PROGRAM: Final = "user_exception"  # the rival of hardware where CUDA says the same of both
CHECKED_NOW: Final = ("stop_time_checks", "check_and_evict")  # branches whose checks come before anything else
ENDS: Final = ("process_death", "first_exception", "planned_stop")  # analyses whose findings show that the job ended
ENDS_NOT: Final = frozenset({"outlived", "stop_after_fault", "tie", "end_unread", "unplaced", "other_killed_on_host", "ended_well"})


@dataclass(frozen=True)
class _Move:
    """The action after all, and the sentence where it is not that of the cause or rule."""

    action: str
    says: str = ""


def advise(
    verdict: Verdict,
    roster: Roster,
    findings: Sequence[Finding] = (),
    back: Rollback | None = None,
    *,
    outcomes: Sequence[Outcome] = (),
    facts: Facts = NO_FACTS,
    history: History = NO_HISTORY,
    settings: Settings | None = None,
) -> Advice:
    """The advice. `back` tells the newest checkpoint from before the fault, `facts` what the case tells of the job, `history` what happened before,
    `settings` what the site says of itself.

    Hosts are evicted only when the cause lies in hardware or network, a rank or machine is named and the rule takes it out.
    """
    site = settings if settings is not None else NOT_SAID
    rule = rule_of_verdict(verdict, findings)
    action, is_ruled = _of_rule(verdict, rule)
    plan = _plan(verdict, findings, roster)
    if action == "replace" and not verdict.hosts and not verdict.ranks:
        action = "human"  # a group is named, no machine: nothing can be replaced yet
    has_ended = _has_ended(outcomes)
    size = facts.size if facts.size.num_ranks is not None else seen_size(roster)
    world, per_host = size.num_ranks, ranks_per_host(roster)
    num_hosts = _num_hosts(roster, world, per_host)
    spares = site.spares if site.spares is not None else None if facts.idle_hosts is None else len(facts.idle_hosts)
    tried = retries(fault_of(verdict, findings, facts), facts, history, limit=site.same_fault_restarts, at=verdict.failed_at)
    alerts = next((facts.alerts[host] for host in verdict.hosts if host in facts.alerts), None)
    would_go = len(verdict.hosts) or (len(plan.hosts) if plan is not None else 0) or min(len(verdict.ranks), 1)  # a rank sits on some host

    def way(to: str) -> dict[str, Any]:
        return recovery(to, history, site, machines=num_hosts, spares=spares, num_evicted=would_go, can_rejoin=facts.can_rejoin)

    goes_on = can_go_on(verdict, findings, has_ended=has_ended)
    costs = loss(
        verdict, findings, step_s=facts.step_s, size=size, repair_h=site.repair_h, recovery_s=_expected(way("replace")),
        again_s=_again_s(facts, back, site), is_running=has_ended is False,
        goes_on=goes_on,
    )  # fmt: skip
    moved = _move(verdict, action, tried, alerts, costs, site.spares)  # an idle node that a list does not show may be had all the same
    if plan is not None and moved.action == "human" and verdict.cause in GROUP_GOES:
        is_short = site.spares is not None and is_needed(len(plan.hosts), site.spares)
        moved = _Move("shrink", f"{plan.because}; {_short(len(plan.hosts), site.spares)}") if is_short else _Move("replace", plan.because)
    action = moved.action
    evict = verdict.hosts if action in ("replace", "shrink") or verdict.cause in EVICT_TOO else ()
    if plan is not None and action in ("replace", "shrink"):
        evict = plan.hosts
    evict_ranks = tuple(sorted({rank for host in evict for rank in roster.ranks_on(host)})) if evict else ()
    group = str(verdict.last_collective["group"]) if verdict.last_collective and not verdict.ranks else None
    branch = branch_of(
        verdict,
        action,
        findings,
        alerts=alerts,
        is_capped=tried["stopped"] and bool(moved.says),
        has_plan=plan is not None,
        has_ended=has_ended,
    )
    stay = sorted({*roster.hosts.values()} - {*evict})  # who is checked if it fails again
    reason = moved.says or even_work(verdict, findings, facts.layout, site)
    reason = reason or because(verdict, roster, action, findings, back, rule if is_ruled else None, goes_on=goes_on)
    if evict and action != "shrink" and site.spares is not None and is_needed(len(evict), site.spares):
        reason += f"; {_short(len(evict), site.spares)}"
    if action != "none" and (slow := slow_beside(verdict, findings, roster, evict)):
        reason += f"; {slow}"
    return Advice(
        action=action,
        evict_hosts=tuple(node_name(roster.spelled(host)) for host in evict),
        evict_ranks=evict_ranks,
        evict_group=group or (plan.group if plan is not None else None),
        innocent_hosts=_innocents(plan, roster) if plan is not None and evict else (),
        because=reason,
        commands=commands(verdict, roster, evict, has_no_room=is_full(f.says for f in findings)),
        checkpoint=back.save.name if back is not None and back.save is not None and action == "rollback" else None,
        replay=_replay(verdict, roster, findings, plan if evict else None),
        rule=rule.as_row() if rule is not None else None,
        differ=spread(rule) if rule is not None else "",
        branch=branch,
        checks=stop_time_checks([roster.spelled(host) for host in verdict.hosts or stay], layer=verdict.layer, gpus_per_host=per_host)
        if branch in CHECKED_NOW
        else (),
        next=next_steps(
            branch, history, hosts=[roster.spelled(host) for host in stay], layer=verdict.layer, gpus_per_host=per_host,
            is_capped=tried["stopped"], is_retried=action == "retry",
        ),
        retries=tried,
        losses=costs,
        shrink=shrink(
            facts.layout, site, world_size=world, num_hosts=num_hosts, num_gone=would_go, rests_on=size.says if size.is_least else ""
        )
        if evict or action in ("replace", "shrink")
        else None,
        recovery=way(action),
        before_restart=tuple(
            restart_checks(
                outcomes, roster, back, captured=facts.captured, has_ended=has_ended, pending=history.pending_changes,
                broken=broken_hosts(findings, {*evict, *verdict.hosts}),
            )
            if action not in ("none", "degrade")
            else ()
        ),
        eviction=_eviction(plan, verdict, roster) if plan is not None else None,
        spares=spares,
        keep_out=tuple(node_name(roster.spelled(host)) for host in keep_out(verdict, roster, findings)),
    )  # fmt: skip


def _num_hosts(roster: Roster, world: int | None, per_host: int | None) -> int | None:
    """Hosts of the job: all are seen, or each that is seen holds as many ranks and the rest is as full."""
    if not roster.everyone or not roster.everyone <= set(roster.hosts):
        return None
    if world is None or world <= len(roster.everyone):
        return len(set(roster.hosts.values()))
    return world // per_host if per_host and world % per_host == 0 else None


def _of_rule(verdict: Verdict, rule: Rule | None) -> tuple[str, bool]:
    """The action of the cause, or of the rule for its kernel record, and whether the rule chose."""
    action = CAUSES[verdict.cause].action
    if rule is not None and action == "replace" and rule.action in RULED - {action}:
        return rule.action, True
    return action, False


def _move(
    verdict: Verdict,
    action: str,
    tried: Mapping[str, Any],
    alerts: Alerts | None,
    costs: Mapping[str, Any] | None,
    spares: int | None,
) -> _Move:
    """Where retries, alerts, spares, losses or doubt ask for another action. Only a host that is named is evicted."""
    if (
        verdict.cause == "network_transient"
        and action == "retry"
        and verdict.hosts
        and alerts is not None
        and (alerts.most_in_window or 0) >= FLAPS
    ):
        words = {"alerts": alerts.most_in_window, "host": ", ".join(verdict.hosts), "places": ", ".join(alerts.places)}
        return _Move("replace", instead("flaps", **words))
    if tried["stopped"] and action in CAPPED and verdict.cause != SDC:
        to = "replace" if verdict.cause == "network_transient" and verdict.hosts else "human"
        return _Move("quarantine_data" if verdict.data and action == "rollback" else to, instead("capped", retries=tried["says"]))
    if action == "replace" and verdict.probability < SURE and _may_be_the_program(verdict):
        return _Move("retry", instead("either", hosts=", ".join(verdict.hosts) or "its host"))
    if action == "replace" and verdict.hosts and is_needed(len(verdict.hosts), spares):
        return _Move("shrink", _short(len(verdict.hosts), spares))
    if action == "replace" and verdict.cause == "slow_rank" and costs is not None and costs["prefers"] == "degrade":
        return _Move("degrade", instead("degrade", loss=costs["says"]))
    return _Move(action)


def _may_be_the_program(verdict: Verdict) -> bool:
    """Whether all that speaks for a fault of hardware speaks for the program's own error too, and that is no remote possibility: nothing was seen of
    the hardware itself then."""
    own = {i for h in verdict.hypotheses if (h.cause, h.ranks) == (verdict.cause, verdict.ranks) for i in h.supports}
    rival = next((h for h in verdict.hypotheses if (h.cause, h.ranks) == (PROGRAM, verdict.ranks)), None)
    return verdict.layer == "hardware" and rival is not None and rival.probability > 1.0 - SURE and bool(own) and own <= {*rival.supports}


def _short(gone: int, spares: int | None) -> str:
    """That fewer spares stand ready than hosts go, and what follows."""
    ready = (
        "no spare is told of"
        if spares is None
        else f"{spares or 'no'} spare{'' if spares == 1 else 's'} stand{'s' if spares == 1 else ''} ready"
    )
    return instead("shrink", gone=gone, s="" if gone == 1 else "s", es="es" if gone == 1 else "", spares=ready)


def _expected(way: Mapping[str, Any]) -> float | None:
    """Seconds of a way back; where the size is not told, the least that is printed: a loss is never made larger than it is known to be."""
    seconds: float | None = way["expected_s"] if way["expected_s"] is not None else way["least_s"]
    return seconds


def _again_s(facts: Facts, back: Rollback | None, site: Settings) -> float | None:
    """Seconds that a restart computes again: from the checkpoint to the last step, else half of the site's interval; None where neither is told."""
    step = back.save.step if back is not None and back.save is not None else None
    if step is not None and facts.last_step is not None and facts.step_s is not None and facts.last_step >= step:
        return (facts.last_step - step) * facts.step_s
    return None if site.checkpoint_every_s is None else site.checkpoint_every_s / 2.0


def _has_ended(outcomes: Sequence[Outcome]) -> bool | None:
    """Whether the job is seen to have ended; False = it was alive when captured; None where nothing tells."""
    if any(f.sign not in ENDS_NOT and f.analysis in ENDS for o in outcomes for f in o.findings):
        return True
    findings = [f for o in outcomes for f in o.findings]
    if timed_out(findings) or booked_end(findings) or any(o.analysis == "process_death" and o.status == "clear" for o in outcomes):
        return True
    return False if any(o.analysis == "job_motion" and o.status in ("clear", "found") for o in outcomes) else None


def _plan(verdict: Verdict, findings: Sequence[Finding], roster: Roster) -> EvictionPlan | None:
    """Whom a group that stands apart would take along; None where a machine is named, or the cause is none of a machine, or a rank left no stack:
    all that stand apart may only wait for that one."""
    if verdict.hosts or verdict.ranks or verdict.layer in NO_GROUP_LAYERS or (roster.ranks_with.get("stacks") and roster.missing("stacks")):
        return None
    return eviction_plan(findings, roster)


def _innocents(plan: EvictionPlan, roster: Roster) -> tuple[str, ...] | None:
    """Who only goes along, as nodes are called; None where that is not told."""
    return None if plan.innocent_hosts is None else tuple(node_name(roster.spelled(host)) for host in plan.innocent_hosts)


def _eviction(plan: EvictionPlan, verdict: Verdict, roster: Roster) -> dict[str, Any]:
    """The plan as a row; the way with fewer hosts has a drain of its own before the replay."""
    row = plan.as_row()
    other = row["alternative"]
    if other is not None and (line := drain(verdict, [roster.spelled(host) for host in other["hosts"]])):
        other["commands"] = [line, *other["commands"]]
    return row


def _replay(verdict: Verdict, roster: Roster, findings: Sequence[Finding], plan: EvictionPlan | None) -> Mapping[str, Any] | None:
    """The replay that would prove it, where a chip or host is suspected of wrong bits and not proven; None elsewhere. A GPU off the bus or with an
    uncorrectable error needs none: its own record shows it, and it would not run. A host that a verdict of wrong bits names is run twice, however
    sure the verdict is: what it computes tells when it may come back. Of a group that goes as a whole (`plan`) it tells who is sound."""
    if plan is not None and plan.num_innocent:
        return _dual_phase(plan.hosts, roster)
    if verdict.cause not in EVICT_TOO and any(f.numbers.get("is_broken") for f in findings):
        return None
    if verdict.proven or verdict.cause not in REPLAY_TELLS:
        return None
    if verdict.cause not in EVICT_TOO and verdict.hosts and verdict.probability >= SURE:
        return None
    told = {host for f in findings for host in f.numbers.get("candidate_hosts", ())}
    return _dual_phase(told or verdict.hosts or fitting_hosts(roster, findings), roster)


def _dual_phase(suspects: Collection[str], roster: Roster) -> dict[str, Any]:
    """The replay as a row."""
    return {
        "probe": "dual_phase_replay",
        "suspects": sorted(suspects),
        "num_hosts": len(set(roster.hosts.values())) or None,
        "commands": list(COMMANDS),
    }
