"""How much faster were a step without stragglers, and is a rank, a pipeline stage or the batches to blame? What-if analysis of traced operations.

1. Replay the operations of the steps (rca/analyses/_op_graph.py, _op_replay.py) as they were (T) and with every kind at its usual time
   (T_ideal). S = T / T_ideal; what is wasted is 1 - 1/S. Below STRAGGLES nothing is to blame.
2. Everything ideal but one kind of operation, one replica or one stage: S_t, S_dp, S_stage. S_w of a rank is the smaller of those of its replica
   and its stage. M_W: the share of the loss that goes away with the top TOP of ranks by S_w; M_S: with the last stage (OSDI'25, 2505.05713).
3. A rank is accused where its computation rises above that of the same stage in the other replicas, and stays there, and the loss goes away
   with it. Of two replicas, where it is above its twin and above all other stages. A replica that is so on all its stages has longer batches.
4. Else the loss is held against two repairs: the same work on every stage (M_P), and the same work in every batch (M_D: each rank of a stage at
   its own mean). The one that mends more names the cause. Batches also have to show: forward and backward of one micro-batch are long together.

Source of the method and its figures: Lin et al., OSDI'25; the thresholds of S, M_W, M_S and the correlation are theirs. M_P and M_D are ours: a
job with uneven batches and a longer last stage has a high M_S as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from rca.analyses._lasting import MIN_LENGTH, over_peers, rises
from rca.analyses._layout import hosts
from rca.analyses._op_repairs import even_batches, even_stages, together, usual, workers
from rca.analyses._op_replay import Replay
from rca.analyses._op_trace import op_rows, traced
from rca.analyses._words import ranks_text
from rca.analyses._workload import work
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("ops",)
USES = ("ranks", "steps", "dump_index", "log_events", "groups", "memberships")
SIGNS = {
    "slow_worker": Sign("slowness", ("slow_rank", "gpu_fault", "unknown")),
    "heavy_stage": Sign("imbalance", ("stage_imbalance", "unknown")),
    "uneven_batches": Sign("imbalance", ("data_imbalance", "unknown")),
    "straggling": Sign("mention", ()),
    "no_straggler": Sign("mention", (), is_note=True),
}

STRAGGLES: Final = 1.1  # S from which a job is held up by stragglers
EXPLAINS: Final = 0.5  # of the loss, that goes away with what is to blame
TOP: Final = 0.03  # of the ranks, that M_W takes away
TOGETHER: Final = 0.9  # correlation of forward and backward from which batches are to blame
SLOWER: Final = math.log(1.2)  # times the peers, as in slow_rank
ALIKE: Final = 0.75  # of the slowness of another rank of its host, as in slow_rank
MIN_PEERS: Final = 2  # of a stage, or it is open whether one is slow or the other fast
MANY: Final = 1 / 3  # of the ranks slow at once is no longer an exception
MAX_TOLD: Final = 64  # replicas and ranks whose numbers are told, the slowest first
_MOVES: Final = re.compile(r"^(forward|backward)[-_](?:send|recv)$")


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding with all numbers, and one for what is to blame where something is."""
    rows = op_rows(case)
    if not rows.height:
        raise NotEnoughEvidence(
            "no timed operation tells its step and, itself or by a map, its replica (dp): what waits for what is not known"
        )
    if not rows.select((pl.col("op_s") > 0).any()).item():
        raise NotEnoughEvidence("no operation took any time: the clock of the trace is too coarse, or its durations are in another unit")
    replay = Replay(traced(rows))
    if not (replay.ideal_s > 0 and replay.real_s > 0):
        raise NotEnoughEvidence("a usual step takes no time: most operations last 0 s, so the clock of the trace is too coarse")
    numbers = _numbers(replay)
    cites = _cites(rows, replay)
    ratio, lost = numbers["S"], replay.real_s - replay.ideal_s
    times = f"a step takes {replay.real_s:.3g} s as traced and would take {replay.ideal_s:.3g} s without stragglers"
    if ratio < STRAGGLES or lost <= 0:
        says = f"{times} (S {ratio:.3f}): nothing holds the others up"
        return [Finding("straggler_what_if", "no_straggler", says, scope="job", numbers=numbers, cites=cites)]
    found = _blame(case, replay, numbers)
    says = f"{times} (S {ratio:.3f}): {numbers['waste']:.0%} of the time is lost to waiting for the slowest"
    if not found and numbers["M_D"] >= EXPLAINS:
        says += "; computation varies from batch to batch, but forward and backward not together: noise of the hosts, not longer batches"
    elif not found:
        says += "; neither a rank nor a stage nor the batches explain half of it"
    straggling = Finding("straggler_what_if", "straggling", says, scope="job", numbers=numbers, cites=cites)
    return [*found, straggling]


def _of_all(share: float) -> float:
    """A share of the loss as it is told: a replay may win back more than is lost, or less than nothing."""
    return min(max(share, 0.0), 1.0)


def _numbers(replay: Replay) -> dict[str, Any]:
    """S, S_t, S_dp, S_stage, S_w, M_W, M_S, M_P, M_D, waste: ratios of times, and shares of the loss."""
    import numpy as np

    of = replay.of
    ops, dps = np.arange(len(of.ops)), np.arange(len(of.dps))

    def slowdown(kept_ops: Any, kept_dps: Any) -> float:
        return replay.slowdown(np.isin(ops, kept_ops)[:, None] & np.isin(dps, kept_dps)[None])

    kinds: dict[str, list[int]] = {}
    for name, at in replay.kinds.items():
        kinds.setdefault(_MOVES.sub(r"\1-pp-comm", name), []).extend(at)
    by_kind = {name: slowdown(at, dps) for name, at in kinds.items()}
    by_dp = {dp: slowdown(ops, [at]) for at, dp in enumerate(of.dps)}
    of_stage = {stage: [i for i, op in enumerate(of.ops) if op.stage == stage] for stage in of.stages}
    by_stage = {stage: slowdown(of_stage[stage], dps) for stage in of.stages}
    by_worker = {place: min(by_dp[place[0]], by_stage[place[1]]) for place in of.ranks}
    slowest = sorted(by_worker, key=lambda place: (-by_worker[place], place))
    top = slowest[: math.ceil(TOP * len(slowest))]
    last = of.stages[-1]
    return {
        "S": replay.real_s / replay.ideal_s,
        "waste": 1 - replay.ideal_s / replay.real_s,
        "step_s": replay.real_s,
        "ideal_step_s": replay.ideal_s,
        "S_t": _sorted(by_kind),
        "S_dp": _sorted(by_dp),
        "S_stage": _sorted(by_stage),
        "S_w": _sorted({of.ranks[place]: by_worker[place] for place in slowest}),
        "M_W": replay.without(workers(replay, top)),
        "M_S": replay.without(workers(replay, [place for place in of.ranks if place[1] == last])),
        "M_P": replay.removed(even_stages(replay)),
        "M_D": replay.removed(even_batches(replay)),
        "num_steps": len(of.steps),
        "num_steps_left_out": of.left_out,
        "num_ops": int(of.took.size),
    }


def _sorted(values: dict[Any, float]) -> dict[str, float]:
    return {str(name): value for name, value in sorted(values.items(), key=lambda item: (-item[1], str(item[0])))[:MAX_TOLD]}


def _blame(case: Tables, replay: Replay, numbers: dict[str, Any]) -> list[Finding]:
    import numpy as np

    of = replay.of
    slow = _slow_workers(replay)
    numbers["forward_backward_correlation"] = long_together = together(replay)
    if slow and len(of.stages) > 1 and {stage for _, stage in slow} == {*of.stages} and len({dp for dp, _ in slow}) == 1:
        return [_long_replica(case, replay, slow)]
    if slow and len(slow) <= max(1, MANY * len(of.ranks)):
        share = replay.without(workers(replay, list(slow)))
        if share >= EXPLAINS:
            return [_slow_worker(case, replay, slow, share)]
    batches, stages = numbers["M_D"], numbers["M_P"]
    both = f"the same work in every batch would win {_of_all(batches):.0%} of the loss back, the same work on every stage {_of_all(stages):.0%}"
    if batches >= max(EXPLAINS, stages) and long_together is not None and long_together >= TOGETHER:
        says = f"{both}; forward and backward of a micro-batch are long together (correlation {long_together:.2f}): batches differ, no rank is slow"
        shares = {"share": batches, "stage_share": stages, "correlation": long_together}
        return [
            Finding(
                "straggler_what_if", "uneven_batches", says, scope="batches", numbers=shares, cites=_cites_of(case, replay, of.stages[0])
            )
        ]
    if stages >= max(EXPLAINS, batches) and len(of.dps) > 1:
        compute = {stage: float(np.median(sum(m for (_, s), m in usual(replay).items() if s == stage))) for stage in of.stages}
        heavy = max(compute, key=lambda stage: (compute[stage], -stage))
        others = float(np.median([value for stage, value in compute.items() if stage != heavy]))
        says = (
            f"{both}; a micro-batch takes {compute[heavy]:.3g} s on pipeline stage {heavy}, on the others {others:.3g} s, in every replica"
        )
        mine = sorted(rank for (_, stage), rank in of.ranks.items() if stage == heavy)
        shares = {
            "share": stages, "batch_share": batches, "stage": heavy, "ratio": compute[heavy] / others, "stage_ranks": mine,
            "num_stages": len(of.stages),
        }  # fmt: skip
        return [
            Finding("straggler_what_if", "heavy_stage", says, scope=f"stage {heavy}", numbers=shares, cites=_cites_of(case, replay, heavy))
        ]
    return []


def _long_replica(case: Tables, replay: Replay, slow: dict[tuple[int, int], float]) -> Finding:
    """A replica that is longer on all its stages: what these share is their batches."""
    of, dp = replay.of, min(dp for dp, _ in slow)
    share = replay.without(workers(replay, list(slow)))
    ranks = sorted(of.ranks[place] for place in slow)
    says = (
        f"all stages of replica {dp} ({ranks_text(ranks)}) compute {math.exp(max(slow.values())):.2f} times as long as in the other replicas; with "
        f"its work as usual {_of_all(share):.0%} of the loss is gone: what they share is their batches, longer samples and no slow rank"
    )
    numbers = {"share": share, "candidates": ranks, "replica": dp}
    return Finding(
        "straggler_what_if", "uneven_batches", says, scope="batches", numbers=numbers, cites=_cites_of(case, replay, of.stages[0], dp)
    )


def _slow_workers(replay: Replay) -> dict[tuple[int, int], float]:
    """Replica and stage -> the logarithm of how slow its computation is, of those that rise above their peers and stay there."""
    import numpy as np

    of = replay.of
    excess, places = [], []
    total = {stage: np.log(replay.work[[i for i in replay.compute if of.ops[i].stage == stage]].sum(axis=0)) for stage in of.stages}
    for stage in of.stages:
        above = over_peers(total[stage])
        if len(of.dps) == 2 and len(of.stages) > 2:
            others = np.median(np.concatenate([total[s] for s in of.stages if s != stage]), axis=0)
            above = np.minimum(above, total[stage] - others)
        elif len(of.dps) < 3:
            continue
        excess.append(above)
        places += [(dp, stage) for dp in of.dps]
    if not excess:
        return {}
    rows = np.concatenate(excess)
    if rows.shape[1] <= MIN_LENGTH:  # too few steps for a test: in each of them
        return {place: float(np.median(row)) for place, row in zip(places, rows, strict=True) if np.all(row >= SLOWER)}
    return {places[rise.row]: rise.height for rise in rises(rows, least=SLOWER)}


def _slow_worker(case: Tables, replay: Replay, slow: dict[tuple[int, int], float], share: float) -> Finding:
    of, where = replay.of, hosts(case)
    worst = max(slow, key=lambda place: (slow[place], place))
    ranks = tuple(sorted(of.ranks[place] for place in slow))
    on = tuple(sorted({where[rank] for rank in ranks if rank in where}))
    who = f"{ranks_text(ranks)}{' on ' + ', '.join(on) if on else ''}"
    says = (
        f"{who} (replica {worst[0]}, pipeline stage {worst[1]}) computes {math.exp(slow[worst]):.2f} times as long as the same stage elsewhere; "
        f"with its work as usual {_of_all(share):.0%} of the loss is gone"
    )
    if len(on) == 1 and _is_host(case, replay, ranks, there := frozenset(rank for rank, host in where.items() if host == on[0])):
        ranks = tuple(sorted(there))
        says += f"; nor is any other of {on[0]} ({ranks_text(ranks)}) as fast as its peers: what they share is the host"
    others = tuple(sorted(set(of.ranks.values()) - set(ranks)))
    numbers = {"ratio": math.exp(slow[worst]), "share": share}
    cites = _cites_of(case, replay, worst[1], worst[0])
    return Finding("straggler_what_if", "slow_worker", says, ranks=ranks, hosts=on, explains=others, numbers=numbers, cites=cites)


def _is_host(case: Tables, replay: Replay, slow: Sequence[int], there: frozenset[int]) -> bool:
    """Whether all ranks of a host are as slow as these few of it: the traced ones, each for those that share its work, and no fewer than two;
    or all of them by the times of their own computation, in the last steps."""
    import numpy as np

    traced = set(replay.of.ranks.values()) & there
    if len(traced) > 1 and traced == set(slow):
        return True
    own = case.derive(work)
    excess: dict[int, float] = {}
    for members in own.groups:
        if len(members) > MIN_PEERS:
            above = over_peers(np.log(own.compute.values[members]))[:, -MIN_LENGTH:]
            excess |= {own.compute.ranks[row]: float(np.nanmedian(above[place])) for place, row in enumerate(members)}
    if not there <= excess.keys() or not set(slow) <= excess.keys():
        return False
    least, most = min(excess[rank] for rank in there), max(excess[rank] for rank in slow)
    return least >= ALIKE * most


def _cites(rows: pl.DataFrame, replay: Replay) -> tuple[Cite, ...]:
    """The longest computation of the first step that was replayed."""
    own = (
        rows.filter((pl.col("step") == replay.of.steps[0]) & (pl.col("kind") == "compute")).sort("op_s", "record", descending=True).head(1)
    )
    return _as_cites(own)


def _cites_of(case: Tables, replay: Replay, stage: int, dp: int | None = None) -> tuple[Cite, ...]:
    """The first and the last step's first computation of a stage."""
    of = replay.of
    rank = of.ranks[of.dps[0] if dp is None else dp, stage]
    own = case.table("ops").filter(
        (pl.col("rank") == rank) & pl.col("step").is_in([of.steps[0], of.steps[-1]]) & (pl.col("kind") == "compute")
    )
    first = own.sort("step", "start_s", "seq_id", "op", "record").unique("step", keep="first", maintain_order=True).collect()
    return _as_cites(first)


def _as_cites(rows: pl.DataFrame) -> tuple[Cite, ...]:
    return tuple(
        Cite("ops", row["evidence_id"], "", row["record"], f"rank {row['rank']}, step {row['step']}: {row['op']} {row['op_s']:.4g} s")
        for row in rows.iter_rows(named=True)
    )
