"""Does the loss that a trainer prints stop being finite, or jump and stay high, and does it skip more updates than a search for a loss scale?

1. Each file with progress (and each rank in it) is a series of its own, in the order of its lines; of a resumed run the newest pass counts.
2. Not finite: the loss, or the gradient norm where it lasts (loss scaling skips single steps). A jump: at least five times the moving median of the
   loss, or of the gradient norm with a loss that is up too (1.4 times), that lasts; where no norm is printed a lower one (_numbers). Steps whose
   update was skipped are left out.
3. Skipped updates are counted. Single ones, and up to 32 in a row while a loss scale is searched for, are benign; more in a row, up to the end of
   the record, is a job that learns nothing, and so are 8 in a row, after sound ones, whose loss itself is not finite.
4. What trainers print is an average over all ranks: it tells the step, and accuses nobody. Where ranks print losses that differ, each prints its
   own: one that is not finite while others still print sound ones names its rank.
5. A loss that only steps to another level, or is another one behind a resume (_loss_level), leaves open why.
6. What passed or healed is a note: so is a loss of exactly 0 where it was far above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from rca.analyses._first_wrong import accused, earliest
from rca.analyses._layout import hosts
from rca.analyses._loss_level import Level, level_from
from rca.analyses._numbers import DRIFT_LOSS, PERSISTS, WINDOW, drift_start, judged, newest
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("progress",)
USES = ("ranks", "groups", "memberships", "steps", "dump_index", "log_events")
SIGNS = {
    "loss_not_finite": Sign("numbers", ("numeric_divergence", "silent_data_corruption", "bad_sample")),
    "own_loss_not_finite": Sign("origin", ("numeric_divergence", "bad_sample", "silent_data_corruption", "unknown")),
    "loss_jumped": Sign("numbers", ("numeric_divergence", "bad_sample", "unknown")),
    "level_moved": Sign("numbers", ("numeric_divergence", "bad_sample", "unknown")),
    "always_skipped": Sign("numbers", ("numeric_divergence", "unknown")),
    "skipped": Sign("mention", (), is_note=True),
    "passed": Sign("mention", (), is_note=True),
    "healed": Sign("mention", (), is_note=True),
    "zero": Sign("mention", (), is_note=True),
}

MIN_STEPS: Final = 3  # with a loss, before "all sound" says anything
FAR_ABOVE_ZERO: Final = 0.05  # usual loss from which on a loss of exactly 0 is no small loss
NEAR_STEPS: Final = 64  # before a jump, in which a raised learning rate is told
OWN_SHARE: Final = 0.5  # of the steps that several ranks print, on which they differ: then each prints its own loss
OWN_RATIO: Final = 1e-3  # difference that is no rounding
NAN_PERSISTS: Final = (
    8  # skipped steps in a row at the end, after sound ones, whose loss itself is not finite: loss scaling looks at gradients
)
JITTER: Final = 1.0  # steps back that lines of several ranks in one file may be out of order


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the earliest step of any file, one where updates are skipped for good, and notes on what passed."""
    at = pl.coalesce(pl.col("step").cast(pl.Float64), "epoch").alias("at")
    told = case.table("progress").with_columns(at).filter(pl.col("at").is_not_null())
    kept = told.filter(~pl.col("is_skipped").fill_null(value=False))
    columns = (
        "evidence_id",
        "record",
        "rank",
        "step",
        "epoch",
        "at",
        "loss",
        "grad_norm",
        "learning_rate",
        "is_finite",
        "ended_at",
        "ended_at_local",
    )
    series = pl.format("{} {}", "evidence_id", pl.col("rank").fill_null(-1)).alias("line_of")
    all_states = judged(_with_numbers(kept.select(*columns, series)), series="line_of", by="at", slack=JITTER, epoch="epoch", is_alone=True)
    states = all_states.filter(pl.any_horizontal(pl.col("loss_is", "norm_is").is_not_null())).collect()
    skips = _skips(told.collect())
    if states.height < MIN_STEPS and not skips:
        raise NotEnoughEvidence(f"{states.height} printed steps with a loss or gradient norm")
    rows = newest(states, series="line_of", by="at").with_row_index("nr")
    wrong = rows.filter(pl.any_horizontal(pl.col("loss_is", "norm_is").is_in(["nonfinite", "spike"])))
    first = pl.col("at").first().over("line_of")  # steps may count anew in each epoch: in a series the lines tell the order
    wrong = wrong.sort(first, "line_of", maintain_order=True)
    until = wrong["at"][0] if wrong.height else None
    notes = [note for kind in ("passed", "healed") if (note := _note(kind, rows, until))]
    if wrong.height:
        own = _own_loss(rows, case)
        found = [own or _first(wrong, rows, case), *skips, *notes]
    else:
        found = [*skips, *notes, *_zero(rows)]
    return found


def _with_numbers(lines: pl.LazyFrame) -> pl.LazyFrame:
    """The lines that tell of loss or gradients, with what other lines of the step tell: DeepSpeed prints learning rate and loss on lines of
    their own, and a jump lasts for so many losses, not lines."""
    rest = (pl.coalesce(name, pl.col(name).max().over("line_of", "at")).alias(name) for name in ("learning_rate", "ended_at"))
    return lines.with_columns(rest).filter(pl.any_horizontal(pl.col("loss", "grad_norm", "is_finite").is_not_null()))


def _first(wrong: pl.DataFrame, rows: pl.DataFrame, case: Tables) -> Finding:
    """The earliest trouble that is more than another level of the loss; where there is none the earliest level. `wrong`: rows, first series first."""
    moved: Finding | None = None
    while wrong.height:
        row = wrong.row(0, named=True)
        finding = _finding(row, rows, case)
        if finding.sign != "level_moved":
            return finding
        moved = moved or finding
        same = pl.col("line_of") == row["line_of"]
        behind = rows.filter(same & (pl.col("nr") >= row["nr"]) & pl.col("loss").is_not_null()).head(WINDOW)
        settled = behind.row(-1, named=True)  # from there on the median is of the new level; other series print the same step
        is_bad = pl.any_horizontal(pl.col("loss_is", "norm_is") == "nonfinite").fill_null(value=False)
        later = pl.when(same).then(pl.col("nr") > settled["nr"]).otherwise(pl.col("at") > settled["at"])
        wrong = wrong.filter(later | (is_bad & pl.when(same).then(pl.col("nr") > row["nr"]).otherwise(pl.col("at") > row["at"])))
    assert moved is not None  # the first one was a level
    return moved


def _finding(row: dict[str, Any], rows: pl.DataFrame, case: Tables) -> Finding:
    place = _place(row)
    numbers = {name: row[name] for name in ("step", "epoch", "loss", "grad_norm") if row[name] is not None}
    same = rows.filter((pl.col("line_of") == row["line_of"]) & (pl.col("run") == row["run"]))
    started = drift_start(same, by="at", at=row["at"])
    if "nonfinite" in (row["loss_is"], row["norm_is"]):
        sign, what = "loss_not_finite", "loss" if row["loss_is"] == "nonfinite" else "gradient norm"
        says = f"from {place} on the printed {what} of the job is not finite"
    else:
        loads = case.table("log_events").filter((pl.col("evidence_id") == row["evidence_id"]) & (pl.col("signature") == "checkpoint_load"))
        level = level_from(same, started, loads.select("record").collect())
        if level is not None:
            return _moved(row, same, started, level)
        sign = "loss_jumped"
        times = [
            f"{what} to {row[x]:.3g} times" for what, x in (("the loss", "loss_x"), ("the gradient norm", "norm_x")) if row[x] is not None
        ]
        words, before = _rate_rose(row, same)
        says = f"at {place} the printed loss of the job jumps and stays high ({' and '.join(times)} the moving median){words}"
        numbers |= before
    if row["step"] is not None:
        numbers["first_divergence_step"] = int(started)
        says += f" (raised from step {int(started)} on)" if started < row["at"] else ""
    if row["ended_at"] is not None:
        numbers["failed_at"] = row["ended_at"].isoformat()
    return Finding(
        "loss_divergence", sign, f"{says}; an average over all ranks, it accuses nobody", scope="loss", numbers=numbers, cites=(_cite(row),)
    )


def _moved(row: dict[str, Any], same: pl.DataFrame, started: float, level: Level) -> Finding:
    """A step to another level. It has no `step` and no `failed_at`: whether anything failed is open."""
    place = f"step {int(started)}" if row["step"] is not None else _place(row)
    says = f"at {place} the printed loss of the job is at another level, {level.times:.3g} times the old one, and as calm as before"
    says += f"; {level.resumed}, so the old level is no baseline" if level.resumed is not None else ""
    words, before = _rate_rose(row, same)
    says += f"{words}; other data, batches, sequence lengths or learning rates do that in one step, a divergence climbs or swings: "
    says += "see what changed there before anything is rolled back; an average over all ranks, it accuses nobody"
    numbers = {"level_from": started, "times": level.times} | before
    return Finding("loss_divergence", "level_moved", says, scope="loss", numbers=numbers, cites=(_cite(row),))


def _rate_rose(row: dict[str, Any], same: pl.DataFrame) -> tuple[str, dict[str, Any]]:
    """What is said of a learning rate that rose right before, and what it was; nothing where it did not."""
    before = same.filter((pl.col("at") < row["at"]) & (pl.col("at") >= row["at"] - NEAR_STEPS))["learning_rate"].drop_nulls().to_list()
    lowest = min(before, default=0.0)
    if row["learning_rate"] is None or not row["learning_rate"] > DRIFT_LOSS * lowest > 0:
        return "", {}
    words = f"; the learning rate rose from {lowest:.3g} to {row['learning_rate']:.3g} in the steps before"
    return words, {"learning_rate_before": lowest}


def _own_loss(rows: pl.DataFrame, case: Tables) -> Finding | None:
    """One rank whose own printed loss is the first not to be finite, while others print sound ones; None where ranks print what they share."""
    ranked = rows.filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null())
    spread = (pl.col("loss").max() - pl.col("loss").min()).abs() > OWN_RATIO * pl.col("loss").abs().max()
    shared = ranked.group_by("step").agg(pl.col("loss").count().alias("n"), spread.alias("differ")).filter(pl.col("n") > 1)
    if shared.height < MIN_STEPS or int(shared["differ"].sum()) <= OWN_SHARE * shared.height:
        return None
    anomaly = earliest(ranked)
    if anomaly is None or anomaly.kind != "nonfinite" or not anomaly.sound:
        return None
    ranks = accused(anomaly, frozenset(), case)
    bad = ranked.filter((pl.col("step") == anomaly.step) & pl.col("rank").is_in(anomaly.bad))
    bad = bad.unique("rank", keep="first", maintain_order=True)
    who = f"rank{'s' if len(anomaly.bad) > 1 else ''} {', '.join(map(str, anomaly.bad[:8]))}"
    says = f"step {anomaly.step} is the first at which a printed loss is not finite, on {who}"
    says += f"; each rank prints its own, and those of {len(anomaly.sound)} others are sound"
    where = hosts(case)
    numbers: dict[str, Any] = {"step": anomaly.step, "first_divergence_step": anomaly.step, "num_sound": len(anomaly.sound)}
    numbers |= {} if ranks else {"candidates": list(anomaly.bad)}
    return Finding(
        "loss_divergence", "own_loss_not_finite", says, ranks=ranks, hosts=tuple(where[r] for r in ranks if r in where), scope="own loss",
        numbers=numbers, cites=tuple(_cite(row) for row in bad.head(3).iter_rows(named=True)),
    )  # fmt: skip


def _skips(told: pl.DataFrame) -> list[Finding]:
    """How many updates were skipped, by the file that counts most; and whether it is for good."""
    counted = told.filter(pl.col("is_skipped").is_not_null()).with_columns(
        pl.col("record").str.extract(r"([0-9]+)\D*$").cast(pl.Int64, strict=False).alias("place"),
        pl.coalesce("num_skipped", pl.col("is_skipped").cast(pl.Int64)).alias("skips"),
    )
    sums = counted.group_by("evidence_id").agg(pl.col("skips").sum()).filter(pl.col("skips") > 0)
    worst = sums.sort("skips", "evidence_id", descending=[True, False])
    if worst.is_empty():
        return []
    lines = (
        counted.filter(pl.col("evidence_id") == worst["evidence_id"][0])
        .sort("place", "record")
        .unique("at", keep="last", maintain_order=True)
    )
    fine = lines.with_row_index("nr").filter(~pl.col("is_skipped"))["nr"].max()
    tail = lines[int(fine) + 1 :] if isinstance(fine, int) else lines
    in_a_row, total, nan = int(tail["skips"].sum()), int(lines["skips"].sum()), int(lines["num_nan"].sum() or 0)
    numbers: dict[str, Any] = {"num_skipped": total, "num_nan": nan, "num_in_a_row_at_end": in_a_row}
    rows = lines.filter("is_skipped")
    of_nan = f" ({nan} for a loss that was not finite)" if nan else ""
    is_nan = isinstance(fine, int) and int(tail["num_nan"].sum() or 0) == in_a_row >= NAN_PERSISTS
    if in_a_row < PERSISTS and not is_nan:
        says = f"the trainer skipped {total} updates{of_nan}, as loss scaling does; not more than {PERSISTS} in a row at its end"
        return [Finding("loss_divergence", "skipped", says, scope="skipped", numbers=numbers, cites=(_cite(rows.row(0, named=True)),))]
    first = tail.row(0, named=True)
    numbers |= {"step": first["step"], "first_divergence_step": first["step"]} if first["step"] is not None else {}
    says = (
        f"from {_place(first)} on the trainer skips every update ({in_a_row} in a row up to the end of the record{of_nan}): "
        f"{'no loss scale makes a loss finite' if is_nan else 'more than a search for a loss scale takes'}, so it learns nothing; it accuses nobody"
    )
    return [Finding("loss_divergence", "always_skipped", says, scope="skipped", numbers=numbers, cites=(_cite(first),))]


def _note(kind: str, rows: pl.DataFrame, until: float | None) -> Finding | None:
    """What was wrong for a while only, before the first lasting trouble (or at all)."""
    own = rows.filter(pl.any_horizontal(pl.col("loss_is", "norm_is") == kind)).sort("at", "line_of")
    own = own.filter(pl.col("at") < until) if until is not None else own
    if own.is_empty():
        return None
    places = list(dict.fromkeys(_place(row) for row in own.iter_rows(named=True)))
    shown = f"{', '.join(places[:8])}{' ...' if len(places) > 8 else ''}"
    if kind == "passed":
        says = f"the printed loss or gradient norm was not finite at {shown}, and sound ones follow: the update was skipped, as loss scaling does"
    else:
        says = f"the printed loss or gradient norm jumped at {shown} and came back by itself"
        says += "; running such a step again tells a real spike from a wrong bit"
    return Finding("loss_divergence", kind, says, scope=kind, numbers={"num_steps": len(places)}, cites=(_cite(own.row(0, named=True)),))


def _zero(rows: pl.DataFrame) -> list[Finding]:
    """A printed loss that is exactly 0 to the end, where it was far above before."""
    last = (
        rows.filter(pl.col("loss").is_not_null())
        .group_by("line_of", maintain_order=True)
        .agg(
            (pl.col("loss").reverse() == 0).cast(pl.Int8).cum_min().sum().alias("zeros"),
            pl.col("loss").filter(pl.col("loss") != 0).tail(8).min().alias("before"),
        )
    )
    flat = last.filter((pl.col("zeros") >= MIN_STEPS) & (pl.col("before") >= FAR_ABOVE_ZERO)).sort("line_of")
    if flat.is_empty():
        return []
    series, zeros, before = flat.select("line_of", "zeros", "before").row(0)
    first = rows.filter((pl.col("line_of") == series) & pl.col("loss").is_not_null()).tail(int(zeros)).row(0, named=True)
    says = (
        f"from {_place(first)} on the printed loss is exactly 0, where it was {before:.3g} or more before: every label is masked, or the trainer "
        "filters losses that are not finite out of what it prints; look at the gradient norm"
    )
    return [Finding("loss_divergence", "zero", says, scope="zero", numbers={"num_steps": int(zeros)}, cites=(_cite(first),))]


def _place(row: dict[str, Any]) -> str:
    return f"step {row['step']}" if row["step"] is not None else f"epoch {row['epoch']}"


def _cite(row: dict[str, Any]) -> Cite:
    loss, norm = (f"{row[name]:.6g}" if row[name] is not None else "not finite or not printed" for name in ("loss", "grad_norm"))
    return Cite("progress", row["evidence_id"], "", row["record"], f"{_place(row)}: loss {loss}, gradient norm {norm}")
