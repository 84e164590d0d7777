"""What did running a step again tell of a result that looked wrong: a chance fault of the GPU, a lasting one, or the program?

1. Megatron's rerun machine repeats a step whose loss is not finite or jumps, first on the same GPU, then (after a restart) on another one.
2. Not the same again on the same GPU: that GPU computed wrong once. Its rank is accused.
3. The same on the same GPU, another one elsewhere: the GPU of the first runs computes wrong each time. Its rank is accused, where the first runs
   are on record: a restart may have moved the rank to a sound GPU.
4. The same on another GPU too: the program or its data. No hardware is accused; the samples of that step, where the rank wrote them, are told.
5. The same on the same GPU and nothing more: it stays open, and nobody is accused.

Source: Megatron-LM, megatron/core/rerun_state_machine.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from rca.analyses._layout import hosts
from rca.analyses._words import iso
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("trainer_events",)
USES = ("ranks", "steps", "dump_index", "log_events", "rank_progress")
SIGNS = {
    "not_again": Sign("rerun", ("silent_data_corruption", "unknown")),
    "other_gpu_differs": Sign("rerun", ("silent_data_corruption", "gpu_fault", "unknown")),
    "other_gpu_agrees": Sign("rerun", ("numeric_divergence", "bad_sample", "unknown")),
    "again_here": Sign("rerun", ("numeric_divergence", "bad_sample", "silent_data_corruption", "unknown")),
    "not_checked": Sign("mention", (), is_note=True),
}

SEEN, FIRST, SECOND = "unexpected_result", "first_rerun", "second_rerun"
SHOWS: Final = {  # what the machine's own verdict says of a rerun: often it is all that a log keeps
    "possible_transient_error": (FIRST, False),
    "possible_persistent_error": (SECOND, False),
    "correct_result": (SECOND, True),
}
HERE: Final = (SEEN, FIRST, "possible_transient_error")  # what the first GPU says
MAX_CITES: Final = 4
MAX_FINDINGS: Final = 8  # results told one by one
MAX_SAMPLES: Final = 64  # listed
Row = Mapping[str, Any]


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for each result that was checked, the earliest steps first; NotEnoughEvidence where none is on record."""
    events = case.table("trainer_events").filter(pl.col("event").is_in([SEEN, FIRST, SECOND, *SHOWS]))
    columns = ("evidence_id", "record", "event", "rank", "host", "local_gpu", "step", "is_reproducible", "logged_at", "message")
    rows = sorted(events.select(columns).collect().iter_rows(named=True), key=lambda row: (row["evidence_id"], row["record"], row["event"]))
    if not rows:
        raise NotEnoughEvidence("no result of a step was checked by running it again")
    results: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        results[-1 if row["step"] is None else row["step"], -1 if row["rank"] is None else row["rank"]].append(row)
    where = hosts(case)
    shown = sorted(results.items())[:MAX_FINDINGS]
    samples = _samples(case, [step for (step, _), _ in shown])
    return [_finding(own, where, samples.get(key, ())) for key, own in shown]


def _samples(case: Tables, steps: Sequence[int]) -> dict[tuple[int, int], Sequence[str]]:
    """(step, rank) -> the samples that the rank computed on, where it wrote them."""
    rows = case.table("rank_progress").filter(
        pl.col("step").is_in(list(steps)) & pl.col("sample_ids").is_not_null() & pl.col("rank").is_not_null()
    )
    told = rows.select("step", "rank", "sample_ids").unique(
        ["step", "rank"], keep="none"
    )  # a step that was run again may be of other samples
    return {(step, rank): ids for step, rank, ids in told.collect().iter_rows()}


def _finding(rows: Sequence[Row], where: Mapping[int, str], samples: Sequence[str]) -> Finding:
    rank, step = rows[0]["rank"], rows[0]["step"]
    here = [row for row in rows if row["event"] in HERE]
    shown = {SHOWS.get(row["event"], (row["event"], row["is_reproducible"])) for row in rows}
    first, second = ({again for event, again in shown if event == rerun} - {None} for rerun in (FIRST, SECOND))
    what = f"the result of rank {'?' if rank is None else rank} at step {'?' if step is None else step}"
    ranks: tuple[int, ...] = ()
    own = (rank,) if rank is not None else ()
    if second == {False}:
        sign, ranks = "other_gpu_differs", own if here else ()
        says = f"{what} came again on the same GPU and not on another one: its GPU computes wrong"
        if not here:
            says += "; the first runs are not on record, so on which GPU they ran is open"
    elif second == {True}:
        sign, says = (
            "other_gpu_agrees",
            f"{what} came again on another GPU: it is what the program computes from this data, not a fault of hardware",
        )
    elif first == {False}:
        sign, ranks, says = "not_again", own, f"{what} did not come again on the same GPU: it computed wrong once"
    elif first == {True}:
        sign, says = (
            "again_here",
            f"{what} came again on the same GPU; whether another GPU agrees was not tried, so it may be either's fault",
        )
    else:
        sign, why = "not_checked", "and its reruns contradict each other" if first or second else "and no rerun of it is on record"
        says = f"{what} looked wrong, {why}"
    told = {row["host"] for row in here if row["host"]}
    known = next(iter(told)) if len(told) == 1 else where.get(rank) if rank is not None and not told else None
    gpus = {row["local_gpu"] for row in here if row["local_gpu"] is not None}
    numbers: dict[str, Any] = {"step": step, "first_divergence_step": step} if step is not None else {}
    if len(told_again := second or first) == 1:
        numbers["is_reproducible"] = next(iter(told_again))
    if sign in ("other_gpu_agrees", "again_here") and samples:
        numbers["sample_ids"] = list(samples[:MAX_SAMPLES])
    if not ranks and rank is not None and sign != "other_gpu_agrees":
        numbers["suspects"] = [rank]
    if len(gpus) == 1:
        numbers["local_gpu"] = next(iter(gpus))
    if (at := min((row["logged_at"] for row in here if row["logged_at"] is not None), default=None)) is not None:
        numbers["failed_at"] = iso(at)
    on = (known,) if ranks and known else ()
    if on:
        says += f" ({', '.join([on[0], *(f'GPU {gpu}' for gpu in sorted(gpus)[:1])])})"
    cites = tuple(_cite(row) for row in rows[:MAX_CITES])
    return Finding("rerun_checks", sign, says, ranks=ranks, hosts=on, scope=f"step {step} rank {rank}", numbers=numbers, cites=cites)


def _cite(row: Row) -> Cite:
    again = {True: ", the same again", False: ", not the same again"}.get(row["is_reproducible"], "")
    text = f"{row['event'].replace('_', ' ')} of rank {row['rank']}, step {row['step']}{again}"
    return Cite("trainer_events", row["evidence_id"], "", row["record"], text)
