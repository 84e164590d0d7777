"""Which rank computes slower than its peers, or waits longer for its data, and stays so?

1. Per rank and step take the time of its own computation; whole steps, forward and backward include waiting, and the wait for one slow rank
   makes every rank's step longer. Leave out the first steps.
2. Compare with the peers of the same pipeline stage, step by step, by their median. A rank without two peers there is compared with its own
   first steps, and that change with the change of all others: only a rank that changed, and others not, counts.
   Where all are quiet and near each other, half as much counts.
3. A rise has to last (rca/analyses/_lasting.py): spikes and the noise of a busy machine are none. Ranks that are slowed much less than one of
   their own host are taken for its victims. All ranks of one host: the host. Many ranks at once: nobody.
4. The same for the time a rank waits for its next batch, against all others, in units of the usual step (rca/analyses/_late_data.py).
5. A rank whose times contradict the clock by far (microseconds under a name of milliseconds) is shown and not compared: nobody is accused by it.
6. A rank that became slower than all others and recovered is told, and not accused (rca/analyses/_slow_passing.py).
7. Where the tokens of every batch are told and explain the times, what counts is what a rank takes beyond them; of a rank that always has more
   tokens than its peers, what it takes beyond those (rca/analyses/_workload.py). Work that is uneven itself is another question (uneven_work);
   it leaves open whether a slower rank hides in it.
8. What makes the steps less than a tenth longer, and was so from the first steps on, proves no sick hardware: a rank may have more to do in its
   place (it logs, it holds the embedding). It is named with what it costs, and with less certainty.
9. The same local rank of every host has more to do there, or sits badly; it is told, and nobody is accused (rca/analyses/_slow_places.py).
10. Where nothing tells the stages, one rank alone that computes longer than all others, and for which all others wait as much longer, needs no
   peers (rca/analyses/_mirrored_wait.py).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from rca.analyses._lasting import MIN_LENGTH, Rise, medians, over_peers, rises
from rca.analyses._late_data import late_data
from rca.analyses._layout import batches, hosts, unseen
from rca.analyses._mirrored_wait import alone_and_waited_for
from rca.analyses._slow_passing import for_a_while, passed
from rca.analyses._slow_places import SamePlace, local_places, parted, same_place
from rca.analyses._step_times import Times, began, cite_step, times
from rca.analyses._time_units import PARTS, OddTimes
from rca.analyses._uneven_work import COSTS, uneven
from rca.analyses._words import ranks_text
from rca.analyses._workload import WARM_UP, aligned, by_stage, loads, work, workload
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("steps",)
USES = ("ranks", "groups", "memberships", "dump_index", "log_events")
SIGNS = {
    "slow_compute": Sign("slowness", ("slow_rank", "gpu_fault", "unknown")),
    "slow_host": Sign("slowness", ("slow_rank", "host_fault", "unknown")),
    "slow_a_little": Sign("slowness", ("slow_rank", "unknown")),
    "slow_data": Sign("slowness", ("data_stall", "storage_stall", "unknown")),
    "same_place": Sign("mention", ()),
    "was_slow": Sign("mention", ()),
    "was_slow_once": Sign("mention", (), is_note=True),
    "units_disagree": Sign("contradiction", ()),
}

SLOWER = math.log(1.2)  # times the peers; GREYHOUND verifies suspects at 1.1 to 1.2
MILDLY = math.log(1.1)  # times the peers, where these are quiet: GREYHOUND's smallest slow-down
QUIET = 0.03  # noise of a step, as GPUs have; a busy processor has more, and its ranks differ by a tenth for no fault
APART = 3.0  # times as far from the peers as the one of these that is farthest: machines of a job differ by some per cent
MILD_SHARE = 1 / 6  # of the ranks that may be so, unless they are of one host: more are a kind of machine, or of work
MIN_PEERS = 2  # of a stage, or it is open whether one is slow or the other fast
BASELINE = 8  # first steps of a rank that stand for its usual pace
BASELINE_ERROR = 4 * 1.25 / math.sqrt(BASELINE)  # noise widths by which the median of so few may be off in one of many ranks
VICTIM = 0.5  # of the slowness of another rank of its host: whoever has less only shares the host with it
ALIKE = 0.75  # of the slowness of another rank of its host at the same time: they share the reason
MANY = 1 / 3  # of the ranks slow at once is no longer an exception
MAX_OWN = 4  # ranks whose own figure the sentence holds; of more the least and the most


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the ranks that compute slower, one for those that wait longer for data, one for times in odd units."""
    import numpy as np

    of = case.derive(work)
    rows, odd, compute, stage = of.rows, of.odd, of.compute, of.stage
    data = times(rows, "data_s")
    found: list[Finding] = [_units(odd)] if odd else []
    at = local_places(case)
    waits, late = late_data(data, rows, batches(case))
    if waits and isinstance(usual_s := rows["step_s"].median(), float):
        waits, same = parted(waits, over_peers(data.values) / usual_s, data.ranks, at)
        found += [same_place(place, data, rows, "data_s") for place in same]
    if waits:
        found.append(_finding("slow_data", waits, data, rows, case))
    if not rows.height and not odd:
        blind = "no step of any rank: what is timed is the whole job, and a slow rank makes every rank's step longer"
    elif not compute.ranks:
        blind = "no step tells the time of a rank's own computation; a whole step includes waiting for others"
    elif len(compute.ranks) < 2 or len(compute.steps) <= MIN_LENGTH:
        blind = f"{len(compute.steps)} steps of {len(compute.ranks)} ranks after the first {WARM_UP}: too few to tell slowness from noise"
    else:
        expected, laden = workload(of), loads(of)
        if expected is None and laden:
            expected = np.zeros_like(compute.values)
            for row, load in laden.items():
                expected[row] = load.expected
        slow, same, blind = _slow(compute, stage, expected, at)
        lone = None if stage or slow or same or expected is not None else alone_and_waited_for(compute.values, aligned(of, "comm_s"))
        if lone is not None:
            slow, blind = [rise for rise in rises(over_peers(np.log(compute.values)), least=SLOWER) if rise.row == lone], ""
        found += [same_place(place, compute, rows, "compute_s") for place in same]
        work_is = case.derive(uneven)
        if slow and work_is is not None and {compute.ranks[rise.row] for rise in slow} <= work_is.replicas.keys():
            slow, blind = [], "a replica is longer on all its stages: its batches, and no rank, as far as this tells (uneven_work)"
        if slow:
            told = _finding("slow_compute", slow, compute, rows, case)
            found.append(told if lone is None else replace(told, says=f"{told.says}; all others wait as much longer in communication"))
        elif work_is is not None and (work_is.is_batches or work_is.heavy):
            blind = blind or "no rank is slower than its peers, but the work itself is uneven (uneven_work): a slower rank may hide in it"
        elif more := sorted(compute.ranks[row] for row, load in laden.items() if load.longer >= MILDLY):
            blind = (
                blind or f"more tokens than its peers, and longer with them: {ranks_text(more)}; that one is slow as well may hide in it"
            )
        if passing := for_a_while(compute, {rise.row for rise in slow}.union(*(place.rows for place in same)), expected, least=SLOWER):
            found.append(passed(passing, compute, rows, is_open=bool(blind)))
    if all(SIGNS[finding.sign].is_note for finding in found) and (
        blind := blind or late or unseen(case, compute.ranks, also=rows["rank"].unique().to_list())
    ):
        raise NotEnoughEvidence(blind)
    return found


def _slow(
    compute: Times, stage: Mapping[int, Hashable], expected: Matrix | None, at: Mapping[int, tuple[str, int]]
) -> tuple[list[Rise], list[SamePlace], str]:
    """Ranks whose computation rises, places of every host where it does, and why a rank may have been missed ("" = each has peers).

    `expected`: what their tokens let expect, as logarithms; then what they take beyond it counts. `at`: rank -> host and place there.
    """
    import numpy as np

    logs = np.log(compute.values) - (0.0 if expected is None else expected)
    excess = np.full(logs.shape, np.nan)
    host = [at[rank][0] if rank in at else None for rank in compute.ranks]
    alone: list[int] = []
    for members in by_stage(compute.ranks, stage):
        if len(members) > MIN_PEERS:
            excess[members] = over_peers(logs[members])
        else:
            alone += members
    peers = sorted(set(range(len(logs))) - set(alone))
    found = [replace(rise, row=peers[rise.row]) for rise in rises(excess[peers], least=SLOWER)]
    if alone:
        change = logs - medians(logs[:, :BASELINE].T)[:, None]
        excess[alone] = np.minimum(change, over_peers(change))[alone]
        found += [replace(rise, row=alone[rise.row]) for rise in rises(excess[alone], least=SLOWER, margin=BASELINE_ERROR)]
    slow, same = parted(_without_victims(_with_alike(found, excess, host), host), excess, compute.ranks, at)
    if not found and (mild := [replace(rise, row=peers[rise.row]) for rise in _mildly(excess[peers], [host[row] for row in peers])]):
        mild_on = {host[rise.row] for rise in mild}
        if len(mild) <= max(1, MILD_SHARE * len(logs)) or (len(mild_on) == 1 and None not in mild_on):
            slow, same = parted(_with_alike(mild, excess, host), excess, compute.ranks, at)
    if len(slow) > max(1, MANY * len(logs)):
        return [], same, f"{len(slow)} of {len(logs)} ranks are slower than their peers or than before: too many to be the exception"
    if alone:
        return slow, same, "no rank changed its pace; whether one was slow from the start, only two peers of its pipeline stage can tell"
    return slow, same, ""


def _with_alike(found: Sequence[Rise], excess: Matrix, on: Sequence[str | None]) -> list[Rise]:
    """Rises in the order of their rows, with those that are too low to be told alone, and nearly as high as one of the same host at the same time.
    `on`: hosts by row."""

    def is_alike(rise: Rise) -> bool:
        beside = (other for other in found if on[other.row] is not None and on[other.row] == on[rise.row])
        return any(rise.height >= ALIKE * other.height and rise.first <= other.last and other.first <= rise.last for other in beside)

    rows = {rise.row for rise in found}
    more = [rise for rise in (rises(excess, least=MILDLY) if found else ()) if rise.row not in rows and is_alike(rise)]
    return sorted([*found, *more], key=lambda rise: rise.row)


def _mildly(excess: Matrix, on: Sequence[str | None]) -> list[Rise]:
    """Ranks that are a little slower than their peers, where all are so quiet and near each other that it shows; many ranks: nobody. `on`: hosts."""
    import numpy as np

    if not excess.size or excess.shape[1] <= MIN_LENGTH:
        return []
    usual = medians(excess.T)
    width = float(np.nanmedian(np.abs(np.diff(excess, axis=1)))) * 1.4826 / math.sqrt(2)
    found = _without_victims(rises(excess, least=MILDLY), on)
    rows = {rise.row for rise in found}
    rest = [abs(float(usual[row])) for row in range(len(usual)) if row not in rows and np.isfinite(usual[row])]
    if not found or not rest or width > QUIET:
        return []
    return found if min(rise.height for rise in found) >= APART * max(rest) else []


def _without_victims(found: Sequence[Rise], on: Sequence[str | None]) -> list[Rise]:
    """Rises in the order of their rows, less those that a much higher one of the same host, or of an unknown one, may have made. `on`: by row."""

    def is_victim(rise: Rise) -> bool:
        worse = {on[other.row] for other in found if rise.height < VICTIM * other.height}
        return bool(worse) and (on[rise.row] is None or not worse.isdisjoint({on[rise.row], None}))

    return sorted((rise for rise in found if not is_victim(rise)), key=lambda rise: rise.row)


def _finding(sign: str, slow: Sequence[Rise], measured: Times, rows: pl.DataFrame, case: Tables) -> Finding:
    """The ranks of these rises, with figures of the slowest."""
    worst = max(slow, key=lambda rise: rise.height)
    ranks = tuple(measured.ranks[rise.row] for rise in slow)
    others = tuple(r for r in measured.ranks if r not in ranks)
    where = hosts(case)
    on = tuple(sorted({where[rank] for rank in ranks if rank in where}))
    if sign == "slow_compute" and len(ranks) > 1 and len(on) == 1 and not any(where.get(r, on[0]) == on[0] for r in others):
        sign = "slow_host"
    own_s = measured.usual({measured.ranks[worst.row]}, worst.first, worst.last)
    others_s = measured.usual(set(others), worst.first, worst.last)
    is_lasting = all(rise.first < BASELINE for rise in slow)
    tax = _tax(rows, own_s - others_s, measured.steps, slow, is_lasting=is_lasting) if sign != "slow_data" else None
    if tax is not None and tax[1] / tax[0] < COSTS and is_lasting:
        sign = "slow_a_little"
    first, last = (measured.steps[i] for i in (min(rise.first for rise in slow), max(rise.last for rise in slow)))
    column = "data_s" if sign == "slow_data" else "compute_s"
    numbers: dict[str, Any] = {"step": first, "last_step": last, "own_s": round(own_s, 6), "others_s": round(others_s, 6)}
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}{' on ' + ', '.join(on) if on else ''}"
    if sign == "slow_data":
        says = f"{who}: each batch was waited for {own_s:.3g} s (others {others_s:.3g} s)"
    else:
        numbers["ratio"] = round(math.exp(worst.height), 3)
        own = f"{own_s:.3g} s a step{' at most' if len(slow) > 1 else ''}"
        says = f"{who}: computation took {_ratios(slow, ranks, numbers)} ({own}, others {others_s:.3g} s)"
    if min(rise.first for rise in slow) == 0:  # slow already where the record begins: when that began nothing tells
        numbers["is_from_start"] = True
        says += f" at least since step {first}, the first that was compared, to {last}"
    else:
        says += f" from step {first} to {last}"
    if tax is not None:
        healthy_s, present_s = tax
        numbers |= {"tax": round(1 - healthy_s / present_s, 4), "step_s": round(present_s, 6), "is_step_measured": not is_lasting}
        without = "instead of" if not is_lasting else "and without that excess"
        says += f": a step takes {present_s:.3g} s {without} {healthy_s:.3g} s, {numbers['tax']:.1%} of the GPU time is lost"
    if sign == "slow_a_little":
        says += "; it was so from the first steps on, and may have more to do in its place: nothing shows that its hardware became slow"
    if (at := began(case, ranks, first)) is not None:
        numbers["failed_at"] = at
    places = [(r, s) for r in ranks[:2] for s in (first, last)] + [(others[0], first)]
    cites = tuple(cite for rank, step in places for cite in cite_step(rows, rank, step, column))
    return Finding("slow_rank", sign, says, ranks=ranks, hosts=on, explains=others, numbers=numbers, cites=cites)


def _tax(
    rows: pl.DataFrame, excess_s: float, steps: Sequence[int], slow: Sequence[Rise], *, is_lasting: bool
) -> tuple[float, float] | None:
    """The healthy step and the present one, s: 1 - healthy/present is the share of the GPU time that is lost. Present are the steps in which all of
    them are slow; healthy those before the first was, or, of ranks that were slow from the start, the present one without their excess. None where
    no whole step is told, or it is no longer than that."""
    now = rows.filter(pl.col("step").is_between(steps[max(r.first for r in slow)], steps[max(r.last for r in slow)]))["step_s"].median()
    if not isinstance(now, float) or not 0 < excess_s < now:
        return None
    if is_lasting:
        return now - excess_s, now
    before = rows.filter(pl.col("step") < steps[min(r.first for r in slow)])["step_s"].median()
    return (min(before, now), now) if isinstance(before, float) and before > 0 else None


def _ratios(slow: Sequence[Rise], ranks: Sequence[int], numbers: dict[str, Any]) -> str:
    """How many times as long as its peers each takes: of several from the least to the most, and of a few each one; noted as `ratios` too."""
    each = {rank: math.exp(rise.height) for rank, rise in zip(ranks, slow, strict=True)}
    if len(each) == 1:
        return f"{next(iter(each.values())):.2f} times as long as that of its peers"
    numbers["ratios"] = {str(rank): round(ratio, 3) for rank, ratio in each.items()}
    least, most = f"{min(each.values()):.2f}", f"{max(each.values()):.2f}"
    span = most if least == most else f"{least} to {most}"
    own = (
        f" (rank {', rank '.join(f'{rank} {ratio:.2f}' for rank, ratio in each.items())})" if least != most and len(each) <= MAX_OWN else ""
    )
    return f"{span} times as long as that of their peers{own}"


def _units(odd: Sequence[OddTimes]) -> Finding:
    """Ranks whose times cannot be in the unit that they are said to be in."""
    ranks, first = [rank.rank for rank in odd], odd[0]
    says = (
        f"the times of {ranks_text(ranks)} are in another unit than their names say, or worthless: rank {first.rank} writes {first.says_s:.3g} s for "
        f"a step that takes {first.clock_s:.3g} s by the clock; not compared with the others"
    )
    cites = tuple(
        Cite("steps", x.row["evidence_id"], "", x.row["record"], f"rank {x.rank}, step {x.row['step']}: {shown}")
        for x in odd[:4]
        if (shown := ", ".join(f"{part.removesuffix('_s')} {x.row[part]:.4g} s" for part in PARTS if x.row[part] is not None))
    )
    numbers = {"candidates": ranks, "says_s": round(first.says_s, 6), "clock_s": round(first.clock_s, 6)}
    return Finding("slow_rank", "units_disagree", says, scope=f"units of {ranks}", numbers=numbers, cites=cites)
