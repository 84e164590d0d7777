"""A smaller job: what follows for layout, batch, learning rate, memory and network when hosts go and no spare takes their place. Pure.

1. Tensor and pipeline sizes stay, replicas go: a replica is tp x pp x cp ranks. The ranks left over wait as spares.
2. Keep the global batch: accumulation rises by the ratio of the replicas, the learning rate stays. Or keep the accumulation: the batch shrinks, and
   the learning rate with it: in proportion (linear rule, Goyal et al. 2017, SGD), or by the square root (Krizhevsky 2014; Malladi et al. 2022, Adam).
3. Where not one whole replica is left, tensor or pipeline sizes cannot stay: stages are split anew, and each rank's share grows.
4. Optimizer state that is sharded over replicas has other owners afterwards: all of it is dealt out anew. State that every replica holds stays.
   Bytes per parameter: 2 weights, 2 gradients, 12 Adam with fp32 master weights (ZeRO, SC'20), unless the site says otherwise.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

from rca.decision.facts import Layout
from rca.settings import Settings

__all__ = ["CATASTROPHE", "is_needed", "shrink"]

CATASTROPHE: Final = 32  # hosts that go at once, from which on unknown spares are too few; ByteRobust, table 5: a switch takes so many
WEIGHT_BYTES: Final = 2.0
GRADIENT_BYTES: Final = 2.0
OPTIMIZER_BYTES: Final = 12.0
GB: Final = 1e9


def is_needed(num_evicted: int, spares: int | None) -> bool:
    """Whether fewer spares are known to stand ready than hosts go, or so many go that nobody holds spares for them."""
    return num_evicted >= CATASTROPHE if spares is None else spares < num_evicted


def shrink(
    layout: Layout, settings: Settings, *, world_size: int | None, num_hosts: int | None, num_gone: int, rests_on: str = ""
) -> dict[str, Any] | None:
    """The consequences of going on without `num_gone` hosts; None where none goes or the size of the job is not told. `rests_on`: what the size was
    taken from, where nothing tells it for certain.

    Keys are always there; what is not told is None, and `missing` names it.
    """
    if not num_gone or world_size is None or not num_hosts or num_gone >= num_hosts:
        return None
    left = world_size * (num_hosts - num_gone) // num_hosts
    replica, before = layout.replica, None
    missing = []
    if replica is None:
        missing.append("the tensor and pipeline sizes: give a rank map with tp and pp")
    elif world_size % replica:
        missing.append(f"a layout that fits: {world_size} ranks are no whole number of replicas of {replica}")
        replica = None
    else:
        before = world_size // replica
    after = None if replica is None else left // replica
    row: dict[str, Any] = {
        "hosts_left": num_hosts - num_gone,
        "ranks_left": left,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "dp": before,
        "dp_after": after,
        "ranks_spare": None if after is None or replica is None else left - after * replica,
        "keeps_layout": None if after is None else after >= 1,
        **_batch(settings, before, after, missing),
        **_resplit(layout, settings, left, after),
        **_state(layout, settings, before, after, missing),
        "missing": missing,
    }
    if rests_on:
        missing.append(f"the size of the job: reckoned with {rests_on}")
    return {**row, "says": _says(row, layout)}


def _batch(settings: Settings, before: int | None, after: int | None, missing: list[str]) -> dict[str, Any]:
    """Batch, accumulation and learning rate, either way."""
    found: dict[str, Any] = dict.fromkeys(
        (
            "accumulation",
            "accumulation_kept_batch",
            "step_time_factor",
            "global_batch",
            "global_batch_kept_accumulation",
            "lr_linear",
            "lr_sqrt",
        )
    )
    if not before or not after:
        return found
    ratio = Fraction(after, before)
    found["step_time_factor"] = round(float(1 / ratio), 4)
    if settings.global_batch is not None:
        found["global_batch"] = settings.global_batch
        found["global_batch_kept_accumulation"] = float(settings.global_batch * ratio)
        if settings.micro_batch is not None:
            accumulation = Fraction(settings.global_batch, settings.micro_batch * before)
            found["accumulation"] = float(accumulation)
            found["accumulation_kept_batch"] = float(accumulation / ratio)
        else:
            missing.append("micro_batch: accumulation = global_batch / (micro_batch x dp)")
    else:
        missing.append("global_batch: it shrinks by dp_after / dp with the accumulation kept")
    if settings.learning_rate is not None:
        found["lr_linear"] = settings.learning_rate * float(ratio)
        found["lr_sqrt"] = settings.learning_rate * math.sqrt(float(ratio))
    else:
        missing.append("learning_rate: x dp_after / dp (linear rule) or x sqrt(dp_after / dp), with the accumulation kept")
    return found


def _resplit(layout: Layout, settings: Settings, left: int, after: int | None) -> dict[str, Any]:
    """The largest pipeline that still fits once, where the layout cannot stay."""
    if after is None or after >= 1 or layout.tp is None or layout.pp is None:
        return {"pp_after": layout.pp if after else None, "layers_per_stage": None, "resplit": None}
    unit = layout.tp * (layout.cp or 1)
    fitting = [pp for pp in range(1, layout.pp) if pp * unit <= left and (settings.num_layers is None or settings.num_layers % pp == 0)]
    if not fitting:
        return {
            "pp_after": None,
            "layers_per_stage": None,
            "resplit": f"not one tensor group of {unit} ranks is left: tp has to shrink too",
        }
    pp = fitting[-1]
    layers = None if settings.num_layers is None else settings.num_layers // pp
    each = f", {layers} layers each" if layers else "; how many layers each gets needs num_layers"
    told = f"stages are split anew: {layout.pp} to {pp}{each}; memory for weights and gradients x {layout.pp / pp:.3g} a rank"
    return {"pp_after": pp, "layers_per_stage": layers, "resplit": told}


def _state(layout: Layout, settings: Settings, before: int | None, after: int | None, missing: list[str]) -> dict[str, Any]:
    """Memory of a rank before and after, and what is moved to deal the optimizer out anew."""
    found: dict[str, Any] = dict.fromkeys(
        ("optimizer_owner", "rank_gb", "rank_gb_after", "moved_gb", "moved_s", "memory_formula", "network_formula")
    )
    found["memory_formula"] = (
        "P / (tp x pp) x (2 weights + 2 gradients) + P x optimizer_bytes / (tp x pp x dp) where the optimizer is sharded"
    )
    found["network_formula"] = "P x optimizer_bytes moved at most, / reshard_gb_s"
    is_sharded = settings.is_optimizer_sharded
    if is_sharded is None:
        found["optimizer_owner"] = "whether the optimizer is sharded over replicas is not told (is_optimizer_sharded of rca.toml)"
        missing.append("is_optimizer_sharded")
    elif is_sharded:
        found["optimizer_owner"] = (
            "each replica owns 1/dp of the optimizer state: all of it gets other owners, from the checkpoint or the ranks left"
        )
    else:
        found["optimizer_owner"] = "every replica holds the whole optimizer state: nothing is moved"
    params, bytes_each = settings.model_params, settings.optimizer_bytes or OPTIMIZER_BYTES
    if params is None:
        missing.append("model_params (P): memory and network of the reshard")
        return found
    if layout.tp is None or layout.pp is None or not before or not after or is_sharded is None:
        return found
    own = params / (layout.tp * layout.pp)
    for name, replicas in (("rank_gb", before), ("rank_gb_after", after)):
        optimizer = own * bytes_each / (replicas if is_sharded else 1)
        found[name] = round((own * (WEIGHT_BYTES + GRADIENT_BYTES) + optimizer) / GB, 2)
    found["moved_gb"] = round(params * bytes_each / GB, 1) if is_sharded else 0.0
    if settings.reshard_gb_s is not None:
        found["moved_s"] = round(found["moved_gb"] / settings.reshard_gb_s, 1)
    else:
        missing.append("reshard_gb_s: how long that takes")
    return found


def _says(row: dict[str, Any], layout: Layout) -> str:
    if row["dp_after"] is None:
        return f"{row['ranks_left']} ranks are left; what that means for the layout is open: {row['missing'][0]}"
    if not row["keeps_layout"]:
        return f"{row['ranks_left']} ranks are left, not one whole replica of {layout.replica}: {row['resplit']}"
    says = f"tp {row['tp']} and pp {row['pp']} stay, data parallelism goes from {row['dp']} to {row['dp_after']}"
    says += f" ({row['ranks_spare']} ranks wait as spares)" if row["ranks_spare"] else ""
    exact = row["accumulation_kept_batch"]
    if exact is not None:
        whole = "" if exact == int(exact) else ", no whole number: the batch changes a little, or replicas take unequal shares"
        says += f"; same batch with accumulation {row['accumulation']:g} to {exact:g}{whole}"
    return f"{says}; steps take {row['step_time_factor']:.3g} times as long with the batch kept, or the batch and the learning rate shrink with it"
