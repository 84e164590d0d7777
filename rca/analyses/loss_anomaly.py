"""Where do loss or gradients stop being finite, or jump, and is it one rank or all at once?

1. A rank's own loss and the norm of its own gradients show the step at which it went wrong before averaging spreads it to all. Find the
   earliest step at which one of them is not finite, or jumps against its moving median and stays high (_numbers). Of a run that was resumed the
   newest pass counts.
2. What passed is a note: a loss that is masked away on one rank, a gradient for which loss scaling skipped the update, a jump that healed. One
   rank whose numbers stay up for six steps in a row while those of the others do not counts even if it healed: so many batches are no chance.
3. At that step take the number (loss or gradient norm) that the fewest ranks show: when others still write a sound one, it comes from these.
4. One rank is accused, unless all that share its batch or its model parallel groups are unseen or as bad: then they stay candidates. All ranks
   at once, and metrics of the whole job, accuse nobody.
5. The steps right before it at which its numbers were already raised are where the state may first be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rca.analyses._first_wrong import SIGNALS, Anomaly, accused, earliest
from rca.analyses._layout import hosts, unseen
from rca.analyses._numbers import drift_start, judged_where_wild, newest
from rca.analyses._step_times import began, last_stretch
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
    "passed": Sign("mention", (), is_note=True),
    "healed": Sign("mention", (), is_note=True),
}

MIN_STEPS = 3  # with a loss or gradient norm, before "all sound" says anything
MAX_SAMPLES = 64  # listed
MAX_CITES = 4
FEW = 4  # of as many ranks one at most: those that share its batch show its loss too
MAX_SHOWN = 8  # ranks or steps in a sentence


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the earliest anomaly, or none; notes on what passed before it."""
    rows = case.table("rank_progress").filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null())
    written = rows.filter(pl.any_horizontal(pl.col("loss", "grad_norm", "is_finite").is_not_null()))
    recent = last_stretch(written.select("step").unique().collect())["step"]
    if len(recent) >= MIN_STEPS:  # numbers before a hole in the record may be of another launch: no jump is dated into it
        rows = rows.filter(pl.col("step") >= recent.min())
    states = judged_where_wild(rows, series="rank", by="step")
    states = states.filter(pl.any_horizontal(pl.col(list(SIGNALS)).is_not_null()))
    if (steps := states["step"].n_unique()) < MIN_STEPS:
        raise NotEnoughEvidence(f"loss or gradient norm of a rank in {steps} steps only")
    states = _stubborn(newest(states, series="rank", by="step"))
    anomaly = earliest(states)
    until = anomaly.step if anomaly else None
    notes = [note for kind in ("passed", "healed") if (note := _note(kind, states, until))]
    if anomaly:
        return [_finding(anomaly, states, case), *notes]
    if why := unseen(case, states["rank"].unique()):
        raise NotEnoughEvidence(why)
    return notes


def _stubborn(states: pl.DataFrame) -> pl.DataFrame:
    """The same, where a healed jump of few ranks that lasted long is a jump."""
    is_up = pl.any_horizontal(pl.col(list(SIGNALS)).is_in(["healed", "spike"])).fill_null(value=False)
    at = states.group_by("step").agg(pl.col("rank").n_unique().alias("all"), pl.col("rank").filter(is_up).n_unique().alias("of"))
    few = at.filter((pl.col("of") > 0) & (pl.col("of") * FEW <= pl.col("all")))["step"]
    turns = pl.col("is_long").fill_null(value=False) & pl.col("step").is_in(few.implode())
    return states.with_columns(pl.when(turns).then(pl.col(s).replace("healed", "spike")).otherwise(s).alias(s) for s in SIGNALS)


def _note(kind: str, states: pl.DataFrame, until: int | None) -> Finding | None:
    """What was wrong for a while only, before the anomaly (or at all)."""
    own = states.filter(pl.any_horizontal(pl.col(list(SIGNALS)) == kind) & (pl.lit(until is None) | (pl.col("step") < (until or 0))))
    if own.is_empty():
        return None
    steps, ranks = own["step"].unique().sort().to_list(), own["rank"].unique().sort().to_list()
    where = f"{_words('step', steps)} on {_words('rank', ranks)}"
    if kind == "passed":
        says = f"loss or gradients were not finite at {where}, and sound ones follow: masked away, or the update was skipped, as loss scaling does"
    else:
        says = f"loss and gradient norm jumped at {where} and came back by themselves; running such a step again tells a real spike from a wrong bit"
    numbers = {"num_steps": len(steps), "steps": steps[:MAX_SAMPLES], "noted_ranks": ranks[:MAX_SAMPLES]}
    first = own.sort("step", "rank").head(2)
    return Finding("loss_anomaly", kind, says, scope=kind, numbers=numbers, cites=tuple(_cite(row) for row in first.iter_rows(named=True)))


def _words(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:MAX_SHOWN]))}{' ...' if len(numbers) > MAX_SHOWN else ''}"


def _finding(anomaly: Anomaly, states: pl.DataFrame, case: Tables) -> Finding:
    at = states.filter(pl.col("step") == anomaly.step).unique("rank", keep="last", maintain_order=True)
    bad = at.filter(pl.col("rank").is_in(anomaly.bad))
    samples = bad["sample_ids"].drop_nulls().to_list()
    same_batch = frozenset(at.filter(pl.col("sample_ids").is_in(samples[:1]))["rank"]) if samples else frozenset()
    ranks = accused(anomaly, same_batch, case)
    what = (
        "is not finite" if anomaly.kind == "nonfinite" else f"jumps to {_times(bad, anomaly.signal)} times its moving median and stays up"
    )
    says = f"step {anomaly.step} is the first at which the {SIGNALS[anomaly.signal]} {what} on {_words('rank', anomaly.bad)}"
    started = int(drift_start(states.filter(pl.col("rank").is_in(anomaly.bad)), by="step", at=anomaly.step))
    if started < anomaly.step:
        says += f" (raised from step {started} on)"
    numbers: dict[str, Any] = {
        "step": anomaly.step, "first_divergence_step": started, "signal": anomaly.signal.removesuffix("_is"), "num_sound": len(anomaly.sound),
    }  # fmt: skip
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


def _times(bad: pl.DataFrame, signal: str) -> str:
    """How many times its median the number is, on the rank where it is highest."""
    highest = bad[signal.replace("_is", "_x")].max()
    return f"{highest:.3g}" if isinstance(highest, float) else "several"


def _cite(row: Mapping[str, Any]) -> Cite:
    loss, norm = (
        row[name] if row[name] is not None else f"null ({row[state] or 'not written'})"
        for name, state in (("loss", "loss_is"), ("grad_norm", "norm_is"))
    )
    text = f"rank {row['rank']}, step {row['step']}: loss {loss}, gradient norm {norm}"
    return Cite("rank_progress", row["evidence_id"], "", row["record"], text)
