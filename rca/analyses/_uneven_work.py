"""Is the work itself uneven: between pipeline stages, or between batches from step to step? Measured on what each rank computed in each step.

1. The logarithm of a time is split: what its stage usually takes, what the rank takes more than its stage in all steps, what all ranks of the stage
   take more in this step, and the rest: what this rank takes more in this step alone.
2. A step is as long as its slowest rank. What that costs goes away by halves: with the rest taken away (the same batches), with the usual times of
   the stages made equal (the same work). `batches` and `stages` are the shares of the loss that each repair wins back.
3. A rest alone is no uneven batch: busy hosts make one too. It follows the batches where it goes with the tokens; or is the same on other stages
   of the replica, which work on the same batch (where no replicas are told, on the one rank of another stage that goes best with each); or is
   the same in forward and backward and new in every step; or, where none of these is told, has the shape of work that is dealt out anew
   (rca/analyses/_drawn_work.py).
4. A replica whose ranks on all stages take longer alike, in all steps, gets longer batches: that several hosts became slow at once, and just those
   of one replica, is less likely.
5. So does a rank that has more tokens than its peers in every step, and takes no longer for each of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rca.analyses._drawn_work import why_not_drawn
from rca.analyses._lasting import MIN_LENGTH, medians, over_peers
from rca.analyses._layout import batches, hosts
from rca.analyses._workload import MIN_PEERS, TRIM, Load, Work, aligned, loads, rest_of, work, workload
from rca.types import Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]

__all__ = ["COSTS", "Uneven", "uneven"]

VARIES: Final = 0.03  # of a step, that the rest of the rank in the middle varies: below that is what any machine does
COSTS: Final = 1.1  # times as long as with even work: as what-if analysis (OSDI'25) counts a job that is held up
SAME: Final = 0.8  # correlation from which the rest is that of the batch
OTHER: Final = 0.5  # correlation below which it is not
TOGETHER: Final = 0.9  # the same of forward and backward of one rank, which a busy host may slow both
RENEWED: Final = 0.3  # correlation of a rest with that of the step before, below which every batch is a new one
TWIN_STEPS: Final = 16  # steps from which the best of a thousand unrelated ranks does not go with one by chance
MAX_TWINS: Final = 64  # ranks whose twins are looked for
MAX_LOOKED: Final = 512  # ranks that are held against others with the same batch; of more, evenly spread ones
LARGE: Final = 1 / 3  # of the loss, that uneven batches cost at least; what else costs is mended beside
WHOLE: Final = 0.05  # of the computation, that forward and backward may miss of it
HEAVIER: Final = math.log(1.25)  # times the other stages; first and last ones are always a little heavier
LONGER: Final = math.log(1.2)  # times the other replicas, on every stage
ALIKE: Final = 0.5  # of the largest, that the smallest is at least: a slow host, and those that only share its cables, are not alike
FEW: Final = 1 / 4  # of the replicas at most may be the longer ones
ALWAYS: Final = 0.9  # of the steps in which a heavier stage is heavier


@dataclass(frozen=True)
class Uneven:
    """What uneven work costs, as times and shares; `sign` = by what the rest follows the batches ("" = it does not, or nothing tells)."""

    costs: float  # times as long as with even work
    batches: float
    stages: float
    sign: str
    correlation: float
    why: str  # what speaks against batches, or is missing; "" = nothing
    heavy: Sequence[tuple[tuple[int, ...], float]]  # ranks of a stage that is heavier in nearly all steps, and how many times
    replicas: Mapping[int, float]  # rank -> how many times as long, of replicas that are longer on all their stages in all steps
    laden: Mapping[int, Load]  # rank -> its load, of ranks that are longer by their tokens in all steps
    loads: float = 0.0  # share of the loss that the laden ranks make

    @property
    def is_batches(self) -> bool:
        """Whether batches are what costs most."""
        return bool(self.sign) and self.costs >= COSTS and self.batches >= max(LARGE, self.stages)


def uneven(case: Tables) -> Uneven | None:
    """What uneven work costs; None where too few ranks or steps are told. For `case.derive`."""
    import numpy as np

    of = case.derive(work)
    values = of.compute.values
    if len(of.compute.ranks) < 2 or len(of.compute.steps) <= MIN_LENGTH:
        return None
    logs = np.log(values)
    rest, rank, usual = np.zeros_like(logs), np.zeros((len(logs), 1)), np.zeros((len(logs), 1))
    for members in of.groups:
        middle = medians(logs[members])
        usual[members] = np.nanmedian(middle)
        if len(members) >= MIN_PEERS:
            excess = logs[members] - middle
            rank[members] = medians(excess.T)[:, None]
            rest[members] = excess - rank[members]
    even = math.log(float(np.mean(np.exp(usual))))
    ideal, real = _slowest(logs - rest - rank - usual + even), _slowest(logs)
    lost = real - ideal
    shares = [(real - _slowest(repaired)) / lost if lost > 0 else 0.0 for repaired in (logs - rest, logs - usual + even)]
    told = "", 0.0, ""
    if real >= COSTS * ideal and shares[0] >= LARGE and _width(rest) >= VARIES:
        told = _follows(case, of, rest)
    laden = {row: load for row, load in loads(of).items() if LONGER <= load.longer < load.tokens + LONGER}
    load = (real - _slowest(logs - rank * np.isin(np.arange(len(rank)), list(laden))[:, None])) / lost if laden and lost > 0 else 0.0
    return Uneven(
        real / ideal, shares[0], shares[1], *told, _heavy(of, logs), _long_replicas(case, of, rank[:, 0]),
        {of.compute.ranks[row]: load for row, load in laden.items()}, load,
    )  # fmt: skip


def _width(rest: Matrix) -> float:
    """How far a rank usually varies about its own level, of the logarithm; 0 where no rank has peers."""
    import numpy as np

    varying = rest[np.any(rest, axis=1)]
    return float(np.median(np.nanstd(varying, axis=1))) if len(varying) else 0.0


def _slowest(logs: Matrix) -> float:
    """Usual time of a step that is as long as its slowest rank, s."""
    import numpy as np

    return float(np.median(np.exp(np.nanmax(logs, axis=0))))


def _follows(case: Tables, of: Work, rest: Matrix) -> tuple[str, float, str]:
    """By what the rest follows the batches, with which correlation, and what speaks against it or is missing."""
    import numpy as np

    tokens = workload(of, least=0.0)
    if tokens is not None and (found := _correlation(rest, rest_of(tokens, of.groups))) is not None:
        if found >= SAME:
            return "tokens", found, ""
        if found < OTHER:
            return "", found, f"the tokens of the batches do not go with it (correlation {found:.2f})"
    far, near, mates = _elsewhere(case, of, rest)
    by_far, by_near, by_mates = (_correlation(rest, other) for other in (far, near, mates))
    if by_far is not None and by_far >= SAME:
        return "stages", by_far, ""
    if by_far is not None and by_far < OTHER:
        return "", by_far, f"other ranks that work on the same batch are not long with it (correlation {by_far:.2f}): noise of the hosts"
    if by_far is None and by_near is not None and by_near >= SAME and by_mates is not None and by_mates < OTHER:
        return "siblings", by_near, ""
    twins = _twins(of, rest) if by_far is None and by_near is None else None
    if twins is not None and twins >= TOGETHER:
        return "twins", twins, ""
    forward, backward = (aligned(of, column) for column in ("forward_s", "backward_s"))
    if not np.any(np.abs(forward + backward - of.compute.values) <= WHOLE * of.compute.values):
        blind = "neither tokens nor replicas nor forward and backward are told, by which batches could be known"
        if by_near is not None and by_near < SAME:
            return "", by_near, f"ranks that work on the same batch are not long together (correlation {by_near:.2f}): noise of each"
        if by_mates is not None and by_mates >= OTHER:
            return "", by_mates, f"{blind}; ranks of one host are long together (correlation {by_mates:.2f}): noise of the hosts"
        if twins is not None:
            return "", twins, f"{blind}; no rank of another stage is long in the same steps (correlation {twins:.2f}): noise of each"
        against = why_not_drawn(np.log(of.compute.values), rest)
        return ("", 0.0, f"{blind}; {against}") if against else ("draws", 0.0, "")
    with np.errstate(divide="ignore", invalid="ignore"):
        pair = [rest_of(np.log(part), of.groups) for part in (forward, backward)]
    found, again = _correlation(*pair), _correlation(rest[:, 1:], rest[:, :-1])
    if found is None or again is None or found < TOGETHER:
        return "", found or 0.0, "forward and backward are not long together: noise of the hosts"
    if again > RENEWED:
        return (
            "",
            found,
            f"a rank that is long in one step is so in the next (correlation {again:.2f}): of the host, or of its share of the data",
        )
    return "ways", found, ""


def _elsewhere(case: Tables, of: Work, rest: Matrix) -> list[Matrix]:
    """The mean rest of other ranks with the same batch, on other stages or hosts; on the same host; and of ranks of that host with other batches."""
    import numpy as np

    batch, where, ranks = batches(case), hosts(case), of.compute.ranks
    same: dict[Hashable, list[int]] = defaultdict(list)
    on: dict[Hashable, list[int]] = defaultdict(list)
    for row, rank in enumerate(ranks):
        if rank in batch:
            same[batch[rank]].append(row)
            on[where.get(rank)].append(row)
    found = [np.full_like(rest, np.nan) for _ in range(3)]
    for row in range(0, len(ranks), max(len(ranks) // MAX_LOOKED, 1)):
        rank = ranks[row]
        if rank not in batch:
            continue
        host, stage = where.get(rank), of.stage.get(rank)
        others = [other for other in _some(same[batch[rank]]) if other != row]
        known = [other for other in others if host is not None and where.get(ranks[other]) is not None]
        far = [other for other in known if where[ranks[other]] != host]
        far += [
            other for other in others if other not in known and of.stage.get(ranks[other]) != stage
        ]  # stages are spread over hosts, as a rule
        mates = [other for other in _some(on[host]) if batch[ranks[other]] != batch[rank]] if host is not None else []
        for values, members in zip(found, (far, [other for other in known if where[ranks[other]] == host], mates), strict=True):
            if members:
                values[row] = rest[members].mean(axis=0)
    return found


def _some(rows: list[int]) -> list[int]:
    return rows[:: max(len(rows) // MAX_TWINS, 1)]


def _correlation(one: Matrix, other: Matrix) -> float | None:
    """Correlation of what both tell, spikes limited; None where they tell nothing, or one never varies."""
    import numpy as np

    known = np.isfinite(one) & np.isfinite(other)
    if np.sum(known) <= MIN_LENGTH * MIN_PEERS:
        return None
    pair = []
    for values in (one[known], other[known]):
        width = float(np.median(np.abs(values))) * 1.4826
        if width <= 0:
            return None
        pair.append(np.clip(values, -TRIM * width, TRIM * width))
    return float(np.corrcoef(pair[0], pair[1])[0, 1])


def _twins(of: Work, rest: Matrix) -> float | None:
    """Where no replicas are told: the correlation with the rank of another stage that goes best with each, in the middle; None = too few steps."""
    import numpy as np

    groups = [members for members in of.groups if len(members) >= MIN_PEERS and of.compute.ranks[members[0]] in of.stage]
    whole = [np.array([row for row in members if np.isfinite(of.compute.values[row]).all()], dtype=int) for members in groups]
    if len(groups) < 2 or rest.shape[1] < TWIN_STEPS or min(map(len, whole)) < MIN_PEERS:
        return None
    one, other = (rest[rows] for rows in sorted(whole, key=len)[:2])
    one = one[:MAX_TWINS]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = [part / np.sqrt(np.sum(part**2, axis=1, keepdims=True)) for part in (one, other)]
    best = np.nan_to_num(scaled[0] @ scaled[1].T).max(axis=1)
    return float(np.median(best))


def _heavy(of: Work, logs: Matrix) -> list[tuple[tuple[int, ...], float]]:
    """Stages whose ranks compute longer than those of other stages in nearly all steps."""
    import numpy as np

    ranks = of.compute.ranks
    groups = [members for members in of.groups if ranks[members[0]] in of.stage]
    if len(groups) < 2:
        return []
    low = [
        np.sort(logs[members], axis=0)[(len(members) - 1) // 2] for members in groups
    ]  # of two ranks the faster one: both have to be heavy
    found = []
    for members, height in zip(groups, over_peers(np.array(low)), strict=True):
        known = height[np.isfinite(height)]
        if len(members) > 1 and known.size and np.mean(known >= HEAVIER) >= ALWAYS:
            found.append((tuple(ranks[row] for row in members), math.exp(float(np.median(known)))))
    return found


def _long_replicas(case: Tables, of: Work, longer: Vector) -> dict[int, float]:
    """Ranks of replicas that are longer than the others on each of at least two stages, alike, and not all on one host."""
    batch, where, ranks = batches(case), hosts(case), of.compute.ranks
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row, rank in enumerate(ranks):
        if rank in batch:
            members[batch[rank]].append(row)
    found: dict[int, float] = {}
    num_long = 0
    for rows in members.values():
        heights = [float(longer[row]) for row in rows]
        stages = {of.stage.get(ranks[row]) for row in rows}
        spread = {where.get(ranks[row], f"of rank {ranks[row]}") for row in rows}
        if len(stages - {None}) > 1 and len(spread) > 1 and min(heights) >= max(LONGER, ALIKE * max(heights)):
            num_long += 1
            found |= {ranks[row]: math.exp(height) for row, height in zip(rows, heights, strict=True)}
    return found if num_long <= FEW * len(members) else {}
