"""Is the work itself uneven: has one pipeline stage more of it than the others, or do batches differ from step to step? Nobody is accused.

1. Take what each rank computed in each step, and split it (rca/analyses/_uneven_work.py) into its stage's usual time, its own slowness, and what it
   takes more in one step alone. What each of these costs is what a step would be shorter without it.
2. A stage whose ranks all compute longer than other stages in nearly all steps has more work. Where no layout is told, stages are known by the places
   of the heavier ranks alone, or not at all (rca/analyses/_guessed_stages.py).
3. Batches differ where what a rank takes more in one step alone costs most, and goes with its batch: with its tokens, with the other stages of its
   replica, or with forward and backward alike while it is new in every step. Long sequences cost more than their tokens: attention is quadratic.
   Where a job tells none of these, the shape of the times has to do, and it is a weaker sign: all ranks vary as widely, as far below as above their
   usual time, and anew in every step, which noise does not.
   A rank whose own time rose at some step and stayed so is no draw: that is left to slow_rank (rca/analyses/_slow_risen.py).
   Or where one replica takes longer on every stage, in all steps: several hosts that became slow at once, and just those, are less likely.
   Or where a rank has more tokens than its peers in all steps, and takes no longer for a token.
4. Where the two meet, the one that costs more names the cause; the other is told beside. Where something varies from step to step that nothing
   connects with batches, no cause is named: busy hosts look the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rca.analyses._guessed_stages import two_levels
from rca.analyses._layout import unseen
from rca.analyses._slow_risen import risen
from rca.analyses._step_times import cite_step
from rca.analyses._uneven_work import COSTS, Uneven, uneven
from rca.analyses._words import ranks_text
from rca.analyses._workload import WARM_UP, Work, work, workload
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("steps",)
USES = ("ranks", "groups", "memberships", "dump_index", "log_events")
SIGNS = {
    "heavy_stage": Sign("imbalance", ("stage_imbalance", "unknown")),
    "heavy_places": Sign("imbalance", ("stage_imbalance", "data_imbalance", "unknown")),
    "uneven_batches": Sign("imbalance", ("data_imbalance", "unknown")),
    "uneven_draws": Sign("imbalance", ("data_imbalance", "unknown")),
    "lesser": Sign("mention", (), is_note=True),
}
FOLLOWS: Final = {
    "tokens": "it goes with the tokens of their batches",
    "stages": "the other ranks of a replica, which work on the same batch, are long in the same steps",
    "siblings": "ranks that work on one batch are long together, and others of their host are not",
    "twins": "each goes with one rank of another stage, as if they worked on the same batch",
    "ways": "forward and backward are long together, and it is new in every step",
    "draws": "all ranks vary as widely, as far below their usual time as above it, and anew in every step, as work that is dealt out does and noise, "
    "which only adds, does not (the tokens of each step would prove it)",
}


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for what costs most of uneven batches and heavy stages, and notes for the rest."""
    of, found = case.derive(work), case.derive(uneven)
    if found is None:
        told = f"{len(of.compute.steps)} steps of {len(of.compute.ranks)} ranks with a time of computation, after the first {WARM_UP}"
        raise NotEnoughEvidence(f"{told}: too few to tell uneven work")
    heavy = [_heavy_stage(of, ranks, ratio, found) for ranks, ratio in found.heavy]
    if found.replicas:
        return [_long_batches(of, found), *(_lesser(finding) for finding in heavy)]
    if found.laden and found.costs >= COSTS and found.loads >= max(found.stages, found.batches if found.is_batches else 0.0):
        return [_laden(of, found), *(_lesser(finding) for finding in heavy)]
    if found.is_batches:
        if rose := _rose(of):
            if heavy:
                return [_lesser(finding) for finding in heavy]
            raise NotEnoughEvidence(f"computation differs from step to step, and {rose}: whether it is slow is asked by slow_rank")
        return [_uneven_batches(of, found), *(_lesser(finding) for finding in heavy)]
    is_open = found.costs >= COSTS and found.batches > max(found.stages, 0.0) and bool(found.why)
    if is_open:
        found_notes = [_lesser(finding) for finding in heavy]
        if found_notes:
            return found_notes
        raise NotEnoughEvidence(
            f"what ranks take more in one step alone makes the steps {found.costs:.2f} times as long as even work; {found.why}"
        )
    if not heavy and not of.stage and (high := two_levels(of.compute))[0]:
        raise NotEnoughEvidence(
            f"{ranks_text(high[0])}: computation is {high[1]:.2f} times as long as that of the others in all steps, and nothing tells which ranks "
            "are of one pipeline stage: a heavier stage, or slower machines, or what those ranks do besides; a rank map or the names of groups tell"
        )
    if not heavy and (blind := unseen(case, of.compute.ranks, also=of.rows["rank"].unique().to_list())):
        raise NotEnoughEvidence(blind)
    return heavy


def _rose(of: Work) -> str:
    """Whose own time, beyond what its tokens let expect, rose against all others and stayed; "" = nobody's."""
    import numpy as np

    expected = workload(of)
    found = risen(np.log(of.compute.values) - (0.0 if expected is None else expected))
    if not found:
        return ""
    most = max(found, key=lambda rise: rise.height)
    rank, first = of.compute.ranks[most.row], of.compute.steps[most.first]
    more = [of.compute.ranks[rise.row] for rise in found if rise is not most]
    as_well = f" (as did that of {ranks_text(more)})" if more else ""
    return f"that of rank {rank} rose to {math.exp(most.height):.2f} times, against all others, at step {first} and stayed{as_well}"


def _heavy_stage(of: Work, ranks: tuple[int, ...], ratio: float, found: Uneven) -> Finding:
    says = f"the pipeline stage of {ranks_text(ranks)} computes {ratio:.2f} times as long as the other stages in all steps"
    if of.is_guessed:
        says = (
            f"{ranks_text(ranks)} compute {ratio:.2f} times as long as the others in all steps, and recur at equal distances on several hosts, as "
            "the ranks of a pipeline stage do: a heavier stage, by their places (no layout is told), or longer batches of a replica"
        )
    cites = tuple(cite_step(of.rows, ranks[0], of.compute.steps[0], "compute_s"))
    numbers = {
        "ratio": round(ratio, 3), "share": round(found.stages, 3), "costs": round(found.costs, 3), "stage_ranks": list(ranks),
        "num_stages": len(set(of.stage.values())),
    }  # fmt: skip
    return Finding(
        "uneven_work",
        "heavy_places" if of.is_guessed else "heavy_stage",
        says,
        scope=f"stage of {list(ranks)}",
        numbers=numbers,
        cites=cites,
    )


def _lesser(finding: Finding) -> Finding:
    says = f"{finding.says}: it costs less than what differs from step to step"
    return Finding("uneven_work", "lesser", says, scope=finding.scope, numbers=finding.numbers, cites=finding.cites)


def _long_batches(of: Work, found: Uneven) -> Finding:
    """Of a replica that is longer on all its stages, hosts apart."""
    ranks = sorted(found.replicas)
    ratio = sum(found.replicas.values()) / len(ranks)
    says = (
        f"{ranks_text(ranks)} are all of a replica and compute {ratio:.2f} times as long as the same stages of other replicas in all steps: what "
        "they share is their batches, and no host; longer samples, and no slow rank"
    )
    numbers = {"ratio": round(ratio, 3), "candidates": ranks, "costs": round(found.costs, 3), "follows": "replica"}
    cites = tuple(cite for rank in ranks[:2] for cite in cite_step(of.rows, rank, of.compute.steps[0], "compute_s"))
    return Finding("uneven_work", "uneven_batches", says, scope="batches", numbers=numbers, cites=cites)


def _laden(of: Work, found: Uneven) -> Finding:
    """Of ranks whose batches are longer in all steps, by their tokens."""
    ranks = sorted(found.laden)
    most = max(ranks, key=lambda rank: (found.laden[rank].longer, -rank))
    load = found.laden[most]
    says = (
        f"{ranks_text(ranks)} compute{'s' if len(ranks) == 1 else ''} longer than {'its' if len(ranks) == 1 else 'their'} peers in all steps, and on "
        f"more tokens: rank {most} {math.exp(load.longer):.2f} times as long on {math.exp(load.tokens):.2f} times as many, which is "
        f"{math.exp(load.longer - load.tokens):.2f} times as long for a token; longer batches, and no slow rank"
    )
    numbers = {
        "ratio": round(math.exp(load.longer), 3), "tokens_ratio": round(math.exp(load.tokens), 3), "candidates": ranks,
        "costs": round(found.costs, 3), "follows": "load",
    }  # fmt: skip
    cites = tuple(cite for rank in ranks[:2] for cite in cite_step(of.rows, rank, of.compute.steps[0], "compute_s"))
    return Finding("uneven_work", "uneven_batches", says, scope="batches", numbers=numbers, cites=cites)


def _uneven_batches(of: Work, found: Uneven) -> Finding:
    """With the step and rank where it shows most."""
    import numpy as np

    values = of.compute.values
    high = np.nanmax(values, axis=0) / np.nanmedian(values, axis=0)
    slowest = [of.compute.ranks[row] for row in np.nanargmax(np.nan_to_num(values), axis=0).tolist()]
    at = int(np.nanargmax(high))
    is_shape = found.sign == "draws"
    by = FOLLOWS[found.sign] if is_shape else f"{FOLLOWS[found.sign]} (correlation {found.correlation:.2f})"
    says = (
        f"which rank computes longest changes from step to step ({len(set(slowest))} ranks in {len(slowest)} steps), and {by}: batches differ, no "
        f"rank is slow; even batches would win {found.batches:.0%} of what is lost back"
    )
    numbers = {
        "share": round(found.batches, 3),
        "stage_share": round(found.stages, 3),
        "costs": round(found.costs, 3),
        "correlation": None if is_shape else round(found.correlation, 3),
        "follows": found.sign,
    }
    first = int(np.nanargmax(values[:, 0]))
    places = [(of.compute.ranks[first], of.compute.steps[0]), (slowest[at], of.compute.steps[at])]
    cites: tuple[Cite, ...] = tuple(cite for rank, step in places for cite in cite_step(of.rows, rank, step, "compute_s"))
    sign = "uneven_draws" if is_shape else "uneven_batches"
    return Finding("uneven_work", sign, says, scope="batches", numbers=numbers, cites=cites)
