"""Degrade or replace: what each is expected to cost, in GPU-hours. Pure.

Going on slower costs tax x time until the repair, on all GPUs of the job: the tax is the share of each step that is lost.
Replacing costs the restart, on all GPUs, and what is computed again. Of a job that still runs a checkpoint is written before it is stopped, so
nothing is computed again. A route around a failed link costs a step tax of 0.5 to 8.6 % (Google, TPU v4). Where the time until the repair is not
told, the break-even time is. Of a rank that was a little slower from the start nothing shows that another host would be faster: the job goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rca.decision.job_size import MAPPED, JobSize
from rca.reliability.published import statement
from rca.types import Finding, Verdict

__all__ = ["CAUSES_OF_TAX", "can_go_on", "loss", "slow_tax"]

SLOW: Final = "slow_rank"
WHAT_IF: Final = "straggler_what_if"  # its findings carry `waste` = 1 - 1/S of the job, and `share` of the loss that goes away with a rank
STANDS: Final = ("job_hangs",)  # signs of a job that stands still
STUCK: Final = ("stuck_collective", "first_silent_rank")  # analyses whose findings tell of calls that nobody ends
LITTLE: Final = "slow_a_little"  # sign of slow_rank
SLOWER: Final = ("slow_compute", "slow_host", LITTLE)  # signs whose numbers tell how much slower
UNPROVEN: Final = "nothing shows that another host would be faster: go on, and look at its clocks"
LINKS: Final = ("network_fault", "network_transient", "nvlink_fault")  # causes that a route around may mend for a while
CAUSES_OF_TAX: Final = (SLOW, *LINKS)


def can_go_on(verdict: Verdict, findings: Sequence[Finding], *, has_ended: bool | None) -> bool:
    """Whether the job can go on slower: it neither ended nor stands, and with a failed link it is seen to move. `has_ended`: None = not told."""
    if has_ended or any(f.sign in STANDS or f.analysis in STUCK for f in findings):
        return False
    return verdict.cause == SLOW or has_ended is False


def slow_tax(findings: Sequence[Finding], ranks: Sequence[int], step_s: float | None) -> tuple[float, str] | None:
    """Share of each step of the whole job that a slow rank costs, and how that is known; None where nothing tells how slow it is.

    Everywhere 1 - healthy step / present step: by the steps before it became slow and since, where both were timed; else by the what-if analysis
    where one looked; else the excess of its own computation over that of its peers, over the present step; without the length of a step over its own
    computation, which is the most that it can be.
    """
    waste = next((f.numbers["waste"] for f in findings if f.analysis == WHAT_IF and f.numbers.get("waste") is not None), None)
    own_of = [f.numbers for f in findings if f.sign in SLOWER and set(f.ranks) == set(ranks)]
    for numbers in own_of:
        if numbers.get("is_step_measured"):
            return numbers[
                "tax"
            ], f"a step takes {numbers['step_s']:.3g} s, {100 * numbers['tax']:.1f} % of it lost against the steps before"
    for f in findings:
        if f.analysis == WHAT_IF and waste is not None and f.numbers.get("share") is not None and set(f.ranks) == set(ranks):
            share = min(f.numbers["share"], 1.0)  # a replay may win back more than is lost: other ranks then wait where they did not
            return waste * share, f"what-if analysis: {100 * waste:.1f} % of the time is lost, and {100 * share:.0f} % of that goes with it"
    for numbers in own_of:
        own, others = numbers.get("own_s"), numbers.get("others_s")
        if not own or others is None or own <= others:
            continue
        excess = own - others
        if (tax := numbers.get("tax")) is not None:
            return tax, f"{excess:.3g} s of each step, which is {100 * tax:.1f} % of it"
        if step_s is not None and step_s >= own:
            return excess / step_s, f"{excess:.3g} s of each step of {step_s:.3g} s"
        return excess / own, f"at most: {excess:.3g} s of {own:.3g} s of its own computation; the whole step is not told or shorter"
    return None


def loss(
    verdict: Verdict, findings: Sequence[Finding], *, step_s: float | None, size: JobSize, repair_h: float | None, recovery_s: float | None,
    again_s: float | None, is_running: bool, goes_on: bool = True,
) -> dict[str, Any] | None:  # fmt: skip
    """Both losses in GPU-hours; None where the cause has no way of going on slower, or nothing goes on: the job stands or ended.

    `size` = ranks of the job, a GPU each, `recovery_s` of the restart, `again_s` of what would be computed again (None = not told), `is_running` = a
    checkpoint can be written first.
    """
    is_little = verdict.cause == SLOW and any(f.sign == LITTLE and set(f.ranks) == set(verdict.ranks) for f in findings)
    if verdict.cause not in CAUSES_OF_TAX or not (verdict.ranks or verdict.hosts) or not (goes_on or is_little):
        return None
    num_gpus = size.num_ranks
    if verdict.cause == SLOW:
        told = slow_tax(findings, verdict.ranks, step_s)
        taxes, basis = ((told[0], told[0]), told[1]) if told else (None, "how much slower it is was not measured")
    else:
        taxes = statement("reroute_tax_least") / 100.0, statement("reroute_tax_most") / 100.0
        basis = "step tax of a route around a failed link (Google, TPU v4); whether this network can route around is not told"
    recompute_s = 0.0 if is_running else again_s
    lost_s = None if recovery_s is None or recompute_s is None else recovery_s + recompute_s
    replace = _hours(num_gpus, lost_s)
    degrade = None if taxes is None or repair_h is None or num_gpus is None else tuple(tax * repair_h * num_gpus for tax in taxes)
    even = None if taxes is None or lost_s is None else tuple(lost_s / 3600.0 / tax for tax in reversed(taxes) if tax > 0)
    prefers = None
    if degrade is not None and replace is not None:
        prefers = "degrade" if degrade[1] < replace else "replace" if degrade[0] > replace else None
    row: dict[str, Any] = {
        "tax_least": taxes[0] if taxes else None,
        "tax_most": taxes[1] if taxes else None,
        "tax_basis": basis,
        "num_gpus": num_gpus,
        "num_gpus_told_by": size.told_by,
        "num_gpus_is_least": size.is_least,
        "repair_h": repair_h,
        "degrade_gpu_h": list(degrade) if degrade else None,
        "recovery_s": recovery_s,
        "recompute_s": recompute_s,
        "replace_gpu_h": replace,
        "break_even_h": list(even) if even else None,
        "prefers": "degrade" if is_little else prefers,
    }
    if not is_little:
        return {**row, "says": _says(row)}
    return {**row, "says": f"{_says({**row, 'prefers': None})}; {UNPROVEN}"}


def _hours(num_gpus: int | None, seconds: float | None) -> float | None:
    return None if num_gpus is None or seconds is None else num_gpus * seconds / 3600.0


def _says(row: Mapping[str, Any]) -> str:
    if row["tax_most"] is None:
        return f"going on slower against replacing cannot be priced: {row['tax_basis']}"
    tax = (
        f"{100 * row['tax_most']:.1f} %"
        if row["tax_least"] == row["tax_most"]
        else f"{100 * row['tax_least']:.1f} to {100 * row['tax_most']:.1f} %"
    )
    least = "at least " if row["num_gpus"] and row["num_gpus_is_least"] else ""
    told_by = "" if row["num_gpus_told_by"] in (MAPPED, "") or not row["num_gpus"] else f" ({row['num_gpus_told_by']})"
    says = f"going on slower costs {tax} of {least}{row['num_gpus'] or 'all'} GPUs{told_by}"
    if row["degrade_gpu_h"]:
        low, high = row["degrade_gpu_h"]
        says += (
            f", {_amount(low) if low == high else f'{_amount(low)} to {_amount(high)}'} GPU-hours in {row['repair_h']:g} h until the repair"
        )
    if row["replace_gpu_h"] is not None:
        says += f"; replacing costs {_amount(row['replace_gpu_h'])} GPU-hours"
        says += f" ({row['recovery_s']:.0f} s of restart, {row['recompute_s']:.0f} s computed again)"
    elif row["recovery_s"] is not None and row["recompute_s"] is None:
        says += "; what a restart would compute again is not told"
    if row["prefers"]:
        return f"{says}: {'go on until then' if row['prefers'] == 'degrade' else 'replace'}"
    if row["break_even_h"]:
        low, high = row["break_even_h"][0], row["break_even_h"][-1]
        even = _length(low) if low == high else f"{_length(low)} to {_length(high)}"
        more = "" if row["repair_h"] is not None else ", which is not told (repair_h of rca.toml)"
        return f"{says}: replacing pays once the repair takes longer than {even}{more}"
    return says


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _length(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
