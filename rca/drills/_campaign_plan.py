"""Which simulated incidents a campaign plays: kinds x sizes x seeds, each with a layout and confusions of its own. Pure.

Small ones are played once more with their evidence thinned (`simulated.thin`): of whole evidence hardly an answer is wrong, so what a stated
probability is worth shows only where much is missing.

Weights are fitted and measured on different incidents. CALIBRATING kinds, the sizes FITTED and the seeds from FITTED_SEED on are for the fit
alone; kinds that are no variant of them, other sizes and smaller seeds are what figures are reported on.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rca.drills import simulated
from rca.drills.simulated import Scene, World
from rca.errors import UsageError

__all__ = [
    "CALIBRATING",
    "FITTED",
    "FITTED_SEED",
    "REPORTED",
    "SEEDS",
    "Wanted",
    "Way",
    "drawn",
    "fitted",
    "layout_text",
    "plan_lines",
    "played",
    "reported",
]

Way = Literal["tables", "files"]
REPORTED = (8, 32, 64, 256, 1024, 4096, 16384)  # sizes, in ranks
FITTED = (16, 60, 128, 512)
SEEDS = (0, 1, 2)  # of a standard campaign
FITTED_SEED = 1_000_000
FITTED_THINNED = (16, 60, 128)  # sizes that are fitted with their evidence thinned too: in about the share that a campaign has
ONCE = frozenset(
    {32, 1024, 4096, 16384}
)  # sizes at which a kind is played with the first seed only: a large job costs as much as fifty small ones
LARGE = {4096: 1, 16384: 2}  # sizes that only every third kind is played at, each its own third
QUIET = ("healthy", "planned")  # classes of kinds in which nothing failed
QUIET_TIMES = 2  # so many seeds more of small ones: that nobody is accused takes hundreds of jobs to show
THINNED = (8, 32, 64, 256)  # sizes that are played with their evidence thinned too, with every seed
WRITTEN = 8  # ranks: of the last seed of each kind the files are written out and read by every collector
WRITTEN_TOO = {64: 0}  # and at this size of every third kind
NUM_CONFUSIONS = ((0, 0.35), (1, 0.4), (2, 0.2), (3, 0.05))  # how many at once, and how often
CALIBRATING = frozenset(
    {
        *("infinite_loop", "gil_held", "checkpoint_stuck", "gpu_hang_in_kernel", "silent_rank_unseen"),
        *("barrier_skipped", "extra_collective", "mismatched_dtype", "p2p_skipped"),
        *("network_down", "network_flap", "network_down_unseen", "slow_machine_by_votes"),
        *("host_oom", "pod_memory_limit", "segfault", "user_exception", "host_panic", "oom_then_exception"),
        *("gpu_memory", "gpu_firmware_timeout", "illegal_access_once", "host_stuck_in_driver"),
        *("loader_timed_out", "storage_full", "storage_stale_handle"),
        *("nan_one_rank", "nan_in_replica", "loss_spike_everywhere", "silent_corruption_unseen"),
        *("slow_gpu_ramp", "slow_data_all", "data_imbalance", "two_slow_ranks"),
        *("cancelled_by_user", "preempted_in_cloud", "scaled_down", "stopped_without_a_word"),
        *("healthy_running", "healthy_retries", "healthy_old_errors", "healthy_uneven_steps", "healthy_resumed", "healthy_compiles_first"),
    }
)  # half of each layer; variants of one mechanism stand on one side


@dataclass(frozen=True)
class Wanted:
    """One incident to play. The same three (kind, ranks, seed) always give the same evidence, whole and thinned."""

    kind: str
    ranks: int
    seed: int
    way: Way = "tables"
    is_thinned: bool = False  # of the same incident a part of the evidence

    @property
    def key(self) -> str:
        """Tells it from all others of a campaign."""
        return f"{self.kind} {self.ranks} {self.seed} {self.way}{' thinned' if self.is_thinned else ''}"


def reported(kinds: Collection[str], sizes: Collection[int], seeds: Sequence[int], *, is_named: bool = False) -> list[Wanted]:
    """Incidents of a campaign: those of each kind at each size that has a layout for it. In an order that mixes them, so that a part of it tells
    of the whole. `is_named`: somebody named these kinds and sizes, and gets each with every seed, no more and no fewer."""
    found = []
    for number, kind in enumerate(sorted(kinds)):
        for ranks in _sizes(kind, sizes):
            if not is_named and len(kinds) >= len(simulated.KINDS) and number % 3 != LARGE.get(ranks, number % 3):
                continue
            told = list(dict.fromkeys(seeds)) if is_named else _seeds(kind, ranks, seeds)
            is_written = ranks == WRITTEN or number % 3 == WRITTEN_TOO.get(ranks)
            found += [Wanted(kind, ranks, seed, "files" if is_written and seed == told[-1] else "tables") for seed in told]
            if ranks in THINNED:
                found += [Wanted(kind, ranks, seed, is_thinned=True) for seed in dict.fromkeys(seeds)]
    return _mixed(found)


def plan_lines(wanted: Sequence[Wanted], seeds: Sequence[int]) -> list[str]:
    """What is played: how many incidents of how many kinds, and with which seeds at each size, where those are not the ones asked for with why."""
    thinned = [one for one in wanted if one.is_thinned]
    wanted = [one for one in wanted if not one.is_thinned]
    lines = [f"{len(wanted)} incidents of {_kinds(len({one.kind for one in wanted}))}; seeds asked for: {_numbers(seeds)}"]
    for ranks in sorted({one.ranks for one in wanted}):
        of_kind: dict[tuple[int, ...], set[str]] = {}
        for kind in sorted({one.kind for one in wanted if one.ranks == ranks}):
            of_kind.setdefault(tuple(sorted(one.seed for one in wanted if (one.kind, one.ranks) == (kind, ranks))), set()).add(kind)
        for own, kinds in sorted(of_kind.items()):
            lines.append(f"  {ranks} ranks: seed{'s' if len(own) > 1 else ''} {_numbers(own)} of {_kinds(len(kinds))}{_why(own, seeds)}")
    if thinned:
        lines.append(
            f"  and {len(thinned)} with a part of their evidence: every seed at {_numbers(sorted({one.ranks for one in thinned}))} ranks"
        )
    return lines


def _why(own: Sequence[int], seeds: Sequence[int]) -> str:
    if set(own) < set(seeds):
        return " (a large job is played once; name kinds and sizes to have every seed)"
    return " (nothing failed in them: more seeds than asked for; name kinds and sizes to have those alone)" if set(own) > set(seeds) else ""


def _kinds(count: int) -> str:
    return f"{count} kind{'' if count == 1 else 's'}"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def fitted(kinds: Collection[str], sizes: Collection[int], seeds: int) -> list[Wanted]:
    """Incidents that weights are fitted on."""
    found = []
    for kind in sorted(kinds):
        for ranks in _sizes(kind, sizes):
            found += [Wanted(kind, ranks, FITTED_SEED + turn) for turn in range(seeds)]
            if ranks in FITTED_THINNED:
                found += [Wanted(kind, ranks, FITTED_SEED + turn, is_thinned=True) for turn in range(seeds)]
    return _mixed(found)


def drawn(wanted: Wanted) -> tuple[World, tuple[str, ...]]:
    """The layout and the names of the confusions that the incident's seed draws."""
    chance = random.Random(f"{wanted.kind} {wanted.ranks} {wanted.seed}")
    worlds = [world for world in simulated.layouts(wanted.kind) if world.world_size == wanted.ranks]
    if not worlds:
        sizes = ", ".join(str(size) for size in sorted({world.world_size for world in simulated.layouts(wanted.kind)}))
        raise UsageError(f"{wanted.kind} has no layout of {wanted.ranks} ranks: choose of {sizes}")
    number = chance.choices([count for count, _ in NUM_CONFUSIONS], [part for _, part in NUM_CONFUSIONS])[0]
    fitting = sorted(simulated.CONFUSIONS)
    return chance.choice(worlds), tuple(sorted(chance.sample(fitting, min(number, len(fitting)))))


def played(wanted: Wanted) -> Scene:
    """The scene of an incident."""
    world, confusions = drawn(wanted)
    over = [simulated.CONFUSIONS[name] for name in confusions]
    return simulated.simulate(wanted.kind, world, wanted.seed, over, is_thinned=wanted.is_thinned)


def layout_text(world: World) -> str:
    """A layout in short: "tp8 pp4 dp8 ep4, tp-cp-dp-pp, 8 a host"."""
    axes = " ".join(f"{axis}{world.size(axis)}" for axis in ("tp", "cp", "pp", "dp", "ep") if world.size(axis) > 1)
    return f"{axes or 'tp1'}, {world.order}, {world.gpus_per_host} a host"


def _sizes(kind: str, sizes: Collection[int]) -> Iterator[int]:
    has = {world.world_size for world in simulated.layouts(kind)}
    yield from sorted(has & set(sizes))


def _seeds(kind: str, ranks: int, seeds: Sequence[int]) -> list[int]:
    if ranks in ONCE:
        return list(seeds[:1])
    if simulated.class_of(kind) in QUIET:
        step = 1 + max(seeds) - min(seeds)
        return [seed + step * turn for turn in range(QUIET_TIMES) for seed in seeds]
    return list(seeds)


def _mixed(found: list[Wanted]) -> list[Wanted]:
    return random.Random(0).sample(found, len(found))
