"""The tree: on which branch the answer stands, and what comes next if that fails. Pure.

After ByteRobust's flow (SOSP'25, arXiv 2509.16293v4, figure 5). Every branch but the last leads on:

1. A machine event of high confidence: evict at once. 2. A network event: tolerate a flap, evict after repeats.
3. An error of the program: mend or roll back the code. 4. A crash or bad metric without a culprit: stop-time checks, then a reattempt.
5. What comes back after that: the code is rolled back, then a dual-phase replay finds the machine.
Beside it stand what the paper does not need: bad samples, damaged state, slow ranks, uneven work, stops on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rca.causes import CAUSES
from rca.decision.facts import Alerts
from rca.types import Finding, Verdict

__all__ = ["BRANCHES", "FLAPS", "SURE", "branch_of", "ladder"]

SURE: Final = (
    0.9  # probability of the answer from which a machine goes without being tested first; ours, and `advise` asks for no replay then
)
FLAPS: Final = 2  # alerts within five minutes from which a network event is no flap any more; ByteRobust, section 4
BROKEN: Final = "is_broken"  # number of a finding: the machine's own record shows the fault


@dataclass(frozen=True)
class Branch:
    """A place in the tree."""

    name: str
    says: str  # what stands on it
    then: tuple[str, ...]  # branches that follow if it fails, in order


_TAIL: Final = ("stop_time_checks", "reattempt", "roll_back_code", "dual_phase_replay")
BRANCHES: Final = {
    branch.name: branch
    for branch in (
        Branch("nothing", "nothing failed", ()),
        Branch("evict_at_once", "a machine event of high confidence: evict at once, no checks first", _TAIL),
        Branch("check_and_evict", "a machine is suspected, not sure: check it while it is idle, and evict it", _TAIL),
        Branch("tolerate_flap", "a network event: tolerate it, evict the host only if it repeats", ("evict_after_repeats", *_TAIL)),
        Branch("evict_after_repeats", "a network event that repeats: evict the host", _TAIL),
        Branch("degrade_or_replace", "a slow rank or lossy link: go on slower or replace, whichever loses less", _TAIL),
        Branch("shrink", "fewer spares than bad hosts: go on smaller", _TAIL),
        Branch(
            "fix_code",
            "an error of the program: mend the code or roll it back",
            ("roll_back_code", "stop_time_checks", "dual_phase_replay"),
        ),
        Branch(
            "bring_in_line",
            "a host runs other versions than its peers: bring it in line or leave it out",
            ("stop_time_checks", "roll_back_code", "dual_phase_replay"),
        ),
        Branch("even_out", "work that is uneven, and nothing failed: even it out", ("stop_time_checks",)),
        Branch("quarantine_data", "a bad sample: leave it out", ("dual_phase_replay", "fix_code")),
        Branch(
            "roll_back_state",
            "state that cannot be trusted: go back to a checkpoint from before",
            ("stop_time_checks", "roll_back_code", "dual_phase_replay"),
        ),
        Branch("isolate_and_replay", "wrong bits from a chip: roll back, isolate, run it twice", ("dual_phase_replay", "roll_back_code")),
        Branch(
            "reattempt", "assume that it was transient: restart as it is, once", ("stop_time_checks", "roll_back_code", "dual_phase_replay")
        ),
        Branch("stop_time_checks", "a crash or bad metric without a culprit: check the idle machines", _TAIL[1:]),
        Branch("roll_back_code", "it comes back: roll the code back to the last version that ran", ("dual_phase_replay",)),
        Branch("dual_phase_replay", "it still comes back: replay a few steps in two phases, evict whom both accuse", ()),
        Branch("over_evict", "only a parallel group is told: evict it, or fewer of it and replay", _TAIL),
        Branch(
            "look",
            "too little is told: look where the evidence points",
            _TAIL,
        ),
    )
}
_OF_ACTION: Final = {
    "none": "nothing",
    "fix_code": "fix_code",
    "quarantine_data": "quarantine_data",
    "degrade": "degrade_or_replace",
    "shrink": "shrink",
    "rollback": "roll_back_state",
    "retry": "reattempt",
}
_UNEVEN: Final = ("stage_imbalance", "data_imbalance")  # causes by which steps take longer and nothing fails
_CRASHES: Final = ("process_killed",)  # causes of a crash that name no culprit


def branch_of(
    verdict: Verdict,
    action: str,
    findings: Sequence[Finding],
    *,
    alerts: Alerts | None,
    is_capped: bool,
    has_plan: bool,
    has_ended: bool | None,
) -> str:
    """The branch on which an action stands. `alerts` of the host that is accused, `is_capped` = the fault came back too often, `has_plan` = groups
    cover the outliers, `has_ended` = the job is seen to have ended."""
    if verdict.cause == "silent_data_corruption":
        return "isolate_and_replay"
    if verdict.cause in ("network_fault", "network_transient") and action in ("retry", "replace"):
        if action == "retry":
            return "tolerate_flap"
        if alerts is not None and (alerts.most_in_window or 0) >= FLAPS:
            return "evict_after_repeats"
    if is_capped:
        return "roll_back_code" if CAUSES[verdict.cause].attribution == "workload" else "stop_time_checks"
    if has_plan and action in ("replace", "human"):
        return "over_evict"
    if action == "replace":
        if verdict.cause == "slow_rank":
            return "degrade_or_replace"
        is_sure = verdict.probability >= SURE or verdict.proven or any(f.numbers.get(BROKEN) for f in findings)
        return "evict_at_once" if is_sure else "check_and_evict"
    if action == "human" and verdict.cause == "config_drift" and verdict.hosts:
        return "bring_in_line"
    if action == "human":
        return "stop_time_checks" if has_ended else "look"
    if verdict.cause in _CRASHES:
        return "stop_time_checks"
    if action == "fix_code" and verdict.cause in _UNEVEN:
        return "even_out"
    return _OF_ACTION[action]


def ladder(branch: str) -> tuple[str, ...]:
    """What follows a branch if it fails, in order; () where nothing is left but people."""
    return BRANCHES[branch].then
