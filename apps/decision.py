"""The decision in words: a few lines under the answer, and all of it under `--why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from apps.report.words import seconds
from rca.decision.restart_checks import BROKEN, NOT_SEEN

if TYPE_CHECKING:
    from rca.types import Advice

__all__ = ["PATHS", "checklist_rows", "eviction_words", "first_lines", "recovery_words", "steps_words", "why_parts"]

PATHS: Final = {
    "none": "no restart",
    "in_process": "in-process restart",
    "hot_standby": "warm spare",
    "cold": "cold restart",
}
_SHORT: Final = {  # branches as one line names them
    "evict_after_repeats": "evict the host after repeats",
    "stop_time_checks": "stop-time checks",
    "reattempt": "one restart as it is",
    "roll_back_code": "roll the code back",
    "dual_phase_replay": "dual-phase replay",
    "fix_code": "look at the code",
}
REPLAY: Final = "rca "  # how commands of the replay begin
_STATUS: Final = {"seen": "seen", "not_seen": "not seen", "not_looked": "not looked"}


def first_lines(advice: Advice) -> list[str]:
    """What a person needs at once: what comes next if it fails, how long the way back is, and what moved the action. Sentences without indent; one
    that begins with `$ ` is a command."""
    lines = []
    for check in advice.before_restart:
        if check["check"] == BROKEN and not all(host in advice.because for host in check["hosts"]):
            lines += [str(check["says"]), *(f"$ {command}" for command in check["run"])]
    if advice.losses is not None and advice.action in ("replace", "degrade") and advice.losses["tax_most"] is not None:
        lines.append(str(advice.losses["says"]))
    if advice.shrink is not None and advice.action == "shrink":
        lines.append(str(advice.shrink["says"]))
    if advice.retries is not None and (advice.retries["same_fault"] or advice.retries["restarts"]) and advice.action != "none":
        lines.append(str(advice.retries["says"]))
    if advice.eviction is not None:
        is_known = advice.because == advice.eviction["because"]
        lines += eviction_words(advice.eviction, is_known=is_known, has_replay=advice.replay is not None)
    if advice.next:
        fails = "it fails" if advice.branch != "even_out" else str(advice.next[0]["when"])
        lines.append(f"if {fails}: {steps_words(advice.next)}")
    if advice.recovery is not None and advice.recovery["path"] != "none" and advice.recovery["fits"]:
        lines.append(f"way back: {recovery_words(advice.recovery)}")
    return lines


def steps_words(steps: Sequence[Mapping[str, Any]]) -> str:
    """The steps in one line."""
    return ", then ".join(_SHORT[step["branch"]] for step in steps)


def recovery_words(way: Mapping[str, Any]) -> str:
    """A path with its seconds and whose they are."""
    least, most, expected = way["least_s"], way["most_s"], way["expected_s"]
    if expected is None:
        length = f"{seconds(least)} to {seconds(most)}"
    elif least == most:
        length = f"about {seconds(expected)}"
    else:
        length = f"about {seconds(expected)} ({seconds(least)} to {seconds(most)})"
    return f"{PATHS[way['path']]}, {length}; {way['says']}"


def eviction_words(plan: Mapping[str, Any], *, is_known: bool = False, has_replay: bool = False) -> list[str]:
    """Whom a group would take along, and the way with fewer, with what it costs and its commands (`$ `); `is_known`: the first was just said, and
    `has_replay`: so were the commands of the replay."""
    told = [] if is_known else [f"only a group is told: {plan['because']}"]
    other = plan["alternative"]
    if other is None:
        return told
    drains = [f"$ {command}" for command in other["commands"] if not command.startswith(REPLAY)]
    replays = [f"$ {command}" for command in other["commands"] if command.startswith(REPLAY)]
    who = (
        f"evict {', '.join(other['hosts'])} only, {_share(other['probability'])} that it is the faulty one"
        if other["hosts"]
        else "evict nobody before the replay"
    )
    price = f"{_hours(other['cost_gpu_h'])} are expected, against {_hours(plan['cost_gpu_h'])}"
    rest = f"the {len(other['replay_hosts'])} other hosts of the group" if other["hosts"] else "all of them"
    then = f"{'then, if the fault comes back, replay' if other['hosts'] else 'replay'} {rest} and evict whom both phases accuse"
    return [
        *told,
        f"or, {'cheaper' if plan['alternative_costs_less'] else 'dearer'}, where the job can wait: {who}; {price} ({_made_of(other)})",
        *drains,
        *([then] if has_replay else [f"{then}:", *replays]),
    ]


def _made_of(other: Mapping[str, Any]) -> str:
    """What the GPU-hours of the way with fewer hosts consist of."""
    parts = other["cost_parts"]
    waits = f"{_hours(parts['job_waits_gpu_h'])}: all {parts['num_gpus']:,} GPUs wait {other['expected_minutes']:g} min longer on average"
    tests = f"{_hours(parts['tests_gpu_h'])}: tests of the sound hosts that go" if parts["tests_gpu_h"] else ""
    fails = _share(1.0 - other["found_probability"])
    after = f"{_hours(parts['group_after_all_gpu_h'])}: in {fails} of cases the replay finds nobody and all go after all"
    return "; ".join(part for part in (waits, tests, after) if part)


def _hours(gpu_h: float) -> str:
    return f"{gpu_h:,.0f} GPU-hour{'' if round(gpu_h) == 1 else 's'}" if gpu_h >= 1 else f"{gpu_h:.1g} GPU-hours"


def _share(probability: float) -> str:
    return f"{100 * probability:.0f} %"


def checklist_rows(advice: Advice) -> list[tuple[str, str, str]]:
    """Of each check: what trouble, whether it was seen, not seen or not looked for, and in words."""
    return [(check["check"], _STATUS[check["status"]], check["says"]) for check in advice.before_restart]


def why_parts(advice: Advice) -> list[tuple[str, list[str]]]:
    """The whole decision: headings, each with its lines; a line that begins with `$ ` is a command."""
    from rca.decision.tree import BRANCHES

    if advice.branch not in BRANCHES:
        return []
    stands = f"{advice.branch.replace('_', ' ')}: {BRANCHES[advice.branch].says}"
    parts = [("Where in the tree", [stands, *(f"$ {command}" for command in advice.checks)])]
    steps = []
    for number, step in enumerate(advice.next, 1):
        steps.append(f"{number}. {step['when']}: {step['says']}")
        steps += [f"$ {command}" for command in step["run"]]
    parts.append(("If it fails", steps))
    if advice.action != "none":
        if advice.retries is not None:
            parts.append(("Restarts so far", [advice.retries["says"], *(f"told by: {place}" for place in advice.retries["told_by"])]))
        if advice.losses is not None:
            parts.append(("Go on slower, or replace", [advice.losses["says"], f"the tax: {advice.losses['tax_basis']}"]))
        if advice.shrink is not None:
            parts.append(("On fewer hosts" if advice.action == "shrink" else "If no spare takes their place", _shrink(advice.shrink)))
        if advice.eviction is not None:
            parts.append(("The group", eviction_words(advice.eviction)))
        if advice.recovery is not None:
            parts.append(("The way back", _recovery(advice.recovery)))
        parts.append(("Before the restart", _checks(advice)))
    return [(heading, lines) for heading, lines in parts if lines]


def _checks(advice: Advice) -> list[str]:
    """What was seen, and what nobody looked for, each with what to run; what was looked for and not seen is one line."""
    lines, fine = [], []
    for check, (name, status, says) in zip(advice.before_restart, checklist_rows(advice), strict=True):
        if check["status"] == NOT_SEEN:
            fine.append(name)
        else:
            lines += [f"{name}: {status}; {says}", *(f"$ {command}" for command in check["run"])]
    return [*lines, *([f"looked for, and not seen: {', '.join(fine)}"] if fine else [])]


def _recovery(way: Mapping[str, Any]) -> list[str]:
    lines = [way["why"]]
    if way["path"] != "none":
        lines.append(recovery_words(way))
    parts: dict[str, list[str]] = {}
    for part in way["parts"]:
        length = "" if part["expected_s"] is None else f" {seconds(part['expected_s'])}"
        share = "" if part["share"] is None else f" ({_share(part['share'])})"
        whose = f"medians of this site, of {part['n']}" if part["source"] == "own" else "by published shares"
        parts.setdefault(whose, []).append(f"{part['part']}{length}{share}")
    lines += [f"of that {', '.join(told)}, {whose}" for whose, told in parts.items()]
    others = [recovery_words(other).partition(";")[0] for other in way["others"] if way["path"] != "none"]
    return [*lines, *([f"else {'; '.join(others)}"] if others else [])]


def _shrink(told: Mapping[str, Any]) -> list[str]:
    lines = [told["says"]]
    if told["global_batch_kept_accumulation"] is not None:
        lines.append(
            f"accumulation kept: global batch {told['global_batch']:g} to {told['global_batch_kept_accumulation']:g}"
            + (
                ""
                if told["lr_linear"] is None
                else f"; learning rate {told['lr_linear']:.3g} (linear rule) or {told['lr_sqrt']:.3g} (square root)"
            )
        )
    if told["optimizer_owner"]:
        lines.append(f"optimizer: {told['optimizer_owner']}")
    if told["rank_gb"] is not None:
        lines.append(f"state of a rank: {told['rank_gb']:g} to {told['rank_gb_after']:g} GB, activations not counted")
    if told["moved_gb"] is not None:
        time = "" if told["moved_s"] is None else f", {seconds(told['moved_s'])}"
        lines.append(f"moved to deal it out anew: {told['moved_gb']:g} GB at most{time}")
    missing = [name.partition(":")[0] for name in told["missing"]]
    return [*lines, *([f"not told, so not counted: {', '.join(missing)} (--json says of what)"] if missing else [])]
