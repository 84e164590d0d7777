"""Where do loss or gradients stop being finite, or jump, and is it one rank or all at once?

1. A rank's own loss and the norm of its own gradients show the step at which it went wrong before averaging spreads it to all. Find the
   earliest step at which one of them is not finite, or at least five times its moving median and stays high.
2. A gradient that is not finite for a single step is what loss scaling skips; it counts when it stays or ends the record.
3. At that step take the number (loss or gradient norm) that the fewest ranks show: when others still write a sound one, it comes from these.
4. One rank is accused, unless all that share its batch or its model parallel groups are unseen or as bad: then they stay candidates. All ranks
   at once, and metrics of the whole job, accuse nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rca.analyses._layout import hosts, model_peers, unseen
from rca.analyses._numbers import SPIKE, judged
from rca.analyses._step_times import began
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("rank_progress",)
USES = ("ranks", "groups", "memberships", "steps", "dump_index", "log_events")
SIGNS = {
    "nonfinite_local": Sign("origin", ("numeric_divergence", "bad_sample", "silent_data_corruption", "unknown")),
    "nonfinite_global": Sign("numbers", ("numeric_divergence", "bad_sample", "silent_data_corruption")),
    "spike_local": Sign("origin", ("numeric_divergence", "bad_sample", "silent_data_corruption", "unknown")),
    "spike_global": Sign("numbers", ("numeric_divergence", "bad_sample", "unknown")),
}

SIGNALS = {"norm_is": "norm of its own gradients", "loss_is": "loss"}
MIN_STEPS = 3  # with a loss or gradient norm, before "all sound" says anything
MAX_SAMPLES = 64  # listed
MAX_CITES = 4


@dataclass(frozen=True)
class _Anomaly:
    """The earliest step at which something is wrong: what, in which number, on which ranks, and which ranks still write a sound one."""

    step: int
    kind: str  # nonfinite or spike
    signal: str
    bad: tuple[int, ...]
    sound: frozenset[int]


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the earliest anomaly, or none."""
    rows = case.table("rank_progress").filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null())
    states = judged(rows, series="rank", by="step").filter(pl.any_horizontal(pl.col(list(SIGNALS)).is_not_null())).collect()
    if (steps := states["step"].n_unique()) < MIN_STEPS:
        raise NotEnoughEvidence(f"loss or gradient norm of a rank in {steps} steps only")
    if anomaly := _earliest(states):
        return [_finding(anomaly, states, case)]
    if why := unseen(case, states["rank"].unique()):
        raise NotEnoughEvidence(why)
    return ()


def _earliest(states: pl.DataFrame) -> _Anomaly | None:
    by_step = states.group_by("step").agg(
        *(pl.col(signal).eq("nonfinite").any().alias(f"{signal}_nonfinite") for signal in SIGNALS),
        *(pl.col(signal).eq("spike").any().alias(f"{signal}_spike") for signal in SIGNALS),
        pl.col("norm_is").is_null().all().alias("no_norm"),
    )
    nonfinite = by_step.filter(pl.any_horizontal("loss_is_nonfinite", "norm_is_nonfinite"))["step"].min()
    spike = by_step.filter(pl.col("loss_is_spike") & (pl.col("norm_is_spike") | pl.col("no_norm")))["step"].min()
    known = [(step, kind) for step, kind in ((nonfinite, "nonfinite"), (spike, "spike")) if isinstance(step, int)]
    if not known:
        return None
    step, kind = min(known)
    at = states.filter(pl.col("step") == step)
    found = []
    for signal in SIGNALS:
        bad = at.filter(pl.col(signal) == kind)["rank"].unique().sort().to_list()
        sound = set(at.filter(pl.col(signal) == "ok")["rank"]) - set(bad)
        if bad:
            found.append(_Anomaly(step, kind, signal, tuple(bad), frozenset(sound)))
    return min(found, key=lambda a: (not a.sound, len(a.bad)))


def _finding(anomaly: _Anomaly, states: pl.DataFrame, case: Tables) -> Finding:
    at = states.filter(pl.col("step") == anomaly.step).unique("rank", keep="last", maintain_order=True)
    bad = at.filter(pl.col("rank").is_in(anomaly.bad))
    samples = bad["sample_ids"].drop_nulls().to_list()
    same_batch = set(at.filter(pl.col("sample_ids").is_in(samples[:1]))["rank"]) if samples else set()
    alone = anomaly.bad[0] if len(anomaly.bad) == 1 and anomaly.sound else None
    ranks: tuple[int, ...] = ()
    if alone is not None:
        peers = (model_peers(case).get(alone, frozenset()) | same_batch) - {alone}
        ranks = (alone,) if not peers or peers & anomaly.sound else ()
    what = "is not finite" if anomaly.kind == "nonfinite" else f"is at least {SPIKE:g} times its moving median"
    shown = f"{', '.join(map(str, anomaly.bad[:8]))}{' ...' if len(anomaly.bad) > 8 else ''}"
    says = f"step {anomaly.step} is the first at which the {SIGNALS[anomaly.signal]} {what} on rank{'s' if len(anomaly.bad) > 1 else ''} {shown}"
    numbers: dict[str, Any] = {"step": anomaly.step, "signal": anomaly.signal.removesuffix("_is"), "num_sound": len(anomaly.sound)}
    if not anomaly.sound:
        says += ", and no rank writes a sound one: where it began is not recorded"
    elif ranks:
        says += f"; the other {len(anomaly.sound)} ranks still write sound ones"
    else:
        says += f", not on {len(anomaly.sound)} others; ranks that share a batch pass it on to each other, so which of them began is open"
        numbers["candidates"] = list(anomaly.bad)
    if anomaly.sound and samples and all(ids == samples[0] for ids in samples):
        numbers["sample_ids"] = samples[0][:MAX_SAMPLES]
        if (shards := bad["data_shard"].drop_nulls()).len():
            numbers["data_shard"] = shards[0]
    if (at_time := began(case, ranks or anomaly.bad, anomaly.step)) is not None:
        numbers["failed_at"] = at_time
    where = hosts(case)
    cited = [*bad.iter_rows(named=True), *at.filter(pl.col("rank").is_in(anomaly.sound)).head(1).iter_rows(named=True)]
    return Finding(
        "loss_anomaly", f"{anomaly.kind}_{'local' if anomaly.sound else 'global'}", says, ranks=ranks, scope="loss", numbers=numbers,
        hosts=tuple(where[rank] for rank in ranks if rank in where), cites=tuple(_cite(row) for row in [*cited[: MAX_CITES - 1], cited[-1]]),
    )  # fmt: skip


def _cite(row: Mapping[str, Any]) -> Cite:
    loss, norm = (
        row[name] if row[name] is not None else f"null ({row[state] or 'not written'})"
        for name, state in (("loss", "loss_is"), ("grad_norm", "norm_is"))
    )
    text = f"rank {row['rank']}, step {row['step']}: loss {loss}, gradient norm {norm}"
    return Cite("rank_progress", row["evidence_id"], "", row["record"], text)
