"""Did a step whose numbers went wrong give the same when it was run again, and is it always the same rank: is it the data or a chip?

1. Every time that the numbers of few ranks stopped being finite or jumped counts (_failures): also what passed, what an earlier pass of a resumed
   run shows, and earlier launches.
2. The same step run again on the same samples, with sound numbers: the data did not do it. Where the steps before it gave the same losses to the
   last digit in both passes, the program is deterministic, and a wrong bit is what is left.
3. The same step run again and wrong again: the data or the program, or, where it ran on the same rank, also its chip.
4. A sample that was in every batch that failed, on more than one rank, and in none that was sound, is bad.
5. One rank that goes wrong three times (twice, in two passes or launches) with other samples each time, while others do not, has a bad chip, unless
   it is the only one that reads a bad shard.
6. One time alone says nothing here: it stays open between sample, program and chip.

Source: Gemini 2.5 (a step is replayed before a spike is believed); SDCHunter (OSDI'26): replay of the exact workload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from rca.analyses._failures import READS, Failure, by_sample, failures, sound_with
from rca.analyses._layout import hosts, model_peers
from rca.analyses._numbers import judged
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("rank_progress",)
USES = (*(table for table in READS if table not in NEEDS), "groups", "memberships", "trainer_events")
SIGNS = {
    "not_again_bitwise": Sign("rerun", ("silent_data_corruption", "gpu_fault", "unknown")),
    "not_again": Sign("rerun", ("silent_data_corruption", "numeric_divergence", "unknown")),
    "again": Sign("rerun", ("bad_sample", "numeric_divergence", "silent_data_corruption", "unknown")),
    "sample_fails_again": Sign("sample", ("bad_sample", "unknown")),
    "same_rank_again": Sign("repeat", ("silent_data_corruption", "gpu_fault", "bad_sample", "unknown")),
}

TIMES: Final = 3  # that one rank goes wrong with other samples before it is no chance; two where they are of two passes or launches
MIN_RANKS: Final = 4  # that write the same numbers: with fewer, the same one twice is likely by chance
BEFORE: Final = 8  # steps before the failing one whose losses are compared
MIN_EQUAL: Final = 2
MAX_LISTED: Final = 64
MAX_CITES: Final = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """Findings on what was run again; none where nothing went wrong on few ranks, NotEnoughEvidence where it was not run again."""
    told = [one for one in case.derive(failures) if one.what != "exception"]
    if not told:
        return ()  # no number of few ranks went wrong: there is no step whose repetition could tell sample and chip apart
    found = [*_run_again(case, told), *_sample(case, told), *_rank(case, told)]
    if not found:
        raise NotEnoughEvidence("it went wrong once, and that step was not run again: sample, program and chip stay open")
    return found


def _run_again(case: Tables, told: Sequence[Failure]) -> list[Finding]:
    """The earliest failing step that another pass or launch ran on the same samples."""
    timed = sorted(
        (one for one in told if one.step is not None and one.samples and one.origin != "told"), key=lambda f: (f.step or 0, f.rank or 0)
    )
    if not timed:
        return []
    steps = sorted({step for one in timed for step in range((one.step or 0) - BEFORE, (one.step or 0) + 1)})
    rows = case.table("rank_progress", with_stale=True).filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null())
    batches = pl.Series([list(one.samples) for one in timed])
    at_fault = rows.filter(pl.col("step").is_in(sorted({one.step or 0 for one in timed})) & pl.col("sample_ids").is_in(batches.implode()))
    ranks = at_fault.select("rank").unique()
    ran = judged(rows.join(ranks, on="rank", how="semi"), series="rank", by="step").filter(pl.col("step").is_in(steps)).collect()
    ran_at: dict[tuple[int, tuple[str, ...]], list[dict[str, Any]]] = defaultdict(list)
    for row in ran.filter(pl.col("sample_ids").is_in(batches.implode())).iter_rows(named=True):
        ran_at[row["step"], tuple(row["sample_ids"])].append(row)
    for one in timed:
        others = [row for row in ran_at[one.step or 0, one.samples] if _is_other_pass(row, one)]
        if not others:
            continue
        sound = [row for row in others if {row["loss_is"], row["norm_is"]} <= {"ok", "raised", None}]
        broken = [row for row in others if {row["loss_is"], row["norm_is"]} & {"nonfinite", "passed", "spike"}]
        if sound and not broken:
            return [_not_again(one, sound[0], ran, case)]
        if broken and not sound:
            return [_again(one, broken[0])]
    return []


def _is_other_pass(row: dict[str, Any], one: Failure) -> bool:
    """Not it, nor a copy of the same batch beside it (tensor and pipeline parallel ranks): another pass, or another launch of the same rank."""
    return bool(row["run"] != one.run) or (row["rank"] == one.rank and one.cite is not None and row["evidence_id"] != one.cite.evidence_id)


def _not_again(one: Failure, sound: dict[str, Any], ran: pl.DataFrame, case: Tables) -> Finding:
    assert one.cite is not None
    before = pl.col("step").is_between((one.step or 0) - BEFORE, (one.step or 0) - 1) & pl.col("loss").is_not_null()
    first = ran.filter(before & (pl.col("evidence_id") == one.cite.evidence_id) & (pl.col("run") == one.run) & (pl.col("rank") == one.rank))
    again = ran.filter(
        before & (pl.col("evidence_id") == sound["evidence_id"]) & (pl.col("run") == sound["run"]) & (pl.col("rank") == sound["rank"])
    )
    both = first.join(again, on="step", suffix="_again").unique("step")
    is_bitwise = both.height >= MIN_EQUAL and bool((both["loss"] == both["loss_again"]).all())
    says = f"step {one.step} went wrong on rank {one.rank}, and the same step on the same samples was sound when it was run again"
    says += f" on rank {sound['rank']}" if sound["rank"] != one.rank else ""
    if is_bitwise:
        says += f"; the {both.height} steps before gave the same losses to the last digit, so the program repeats itself and the data did not do it"
    else:
        says += "; that the program repeats itself to the last digit is not on record, so chance in it is the other reason"
    numbers = _numbers([one]) | {"step": one.step, "is_reproducible": False, "is_bitwise": is_bitwise, "suspects": [one.rank]}
    numbers |= {} if one.is_over else {"first_divergence_step": one.step}  # a resumed run began before it
    numbers.pop("sample_ids")  # they are sound
    where, ranks = hosts(case), (one.rank,) if is_bitwise and one.rank is not None and one.origin == "now" else ()
    return Finding(
        "steps_again", "not_again_bitwise" if is_bitwise else "not_again", says, ranks=ranks,
        hosts=tuple(where[rank] for rank in ranks if rank in where), scope=f"run again {one.step}", numbers=numbers, cites=(one.cite, *_cite(sound)),
    )  # fmt: skip


def _again(one: Failure, broken: dict[str, Any]) -> Finding:
    assert one.cite is not None
    elsewhere = broken["rank"] != one.rank
    says = f"step {one.step} went wrong on rank {one.rank}, and again when it was run again on the same samples"
    says += (
        f", on rank {broken['rank']}: the samples or the program"
        if elsewhere
        else " on the same rank: the samples, the program, or its chip"
    )
    numbers = _numbers([one]) | {"step": one.step, "first_divergence_step": one.step, "is_reproducible": True, "is_elsewhere": elsewhere}
    return Finding("steps_again", "again", says, scope=f"run again {one.step}", numbers=numbers, cites=(one.cite, *_cite(broken)))


def _sample(case: Tables, told: Sequence[Failure]) -> list[Finding]:
    """Samples that were in every failing batch that could hold them, on more than one rank, and in no sound one."""
    twice = {sample: times for sample, times in by_sample(told).items() if len({(one.rank, one.host) for one in times}) > 1}
    if not twice:
        return []
    sound = sound_with(case, list(twice), [one for times in twice.values() for one in times])
    bad = sorted(sample for sample in twice if not sound.get(sample))
    if not bad:
        return []
    times = twice[bad[0]]
    where = "; ".join(f"rank {one.rank}, step {one.step}" for one in times[:4])
    says = f"sample{'s' if len(bad) > 1 else ''} {', '.join(bad[:8])} went wrong {len(times)} times, on different ranks ({where})"
    says += ", and was in no sound step"
    numbers = _numbers(times) | {"sample_ids": bad[:MAX_LISTED]}
    cites = tuple(one.cite for one in times if one.cite is not None)[:MAX_CITES]
    return [Finding("steps_again", "sample_fails_again", says, scope="sample", numbers=numbers, cites=cites)]


def _rank(case: Tables, told: Sequence[Failure]) -> list[Finding]:
    """One rank that goes wrong again and again, with other samples each time."""
    of: dict[int, list[Failure]] = defaultdict(list)
    for one in told:
        if one.rank is not None and one.origin == "now":
            of[one.rank].append(one)
    again = {rank: times for rank, times in of.items() if len(times) > 1 and all(one.samples for one in times)}
    if not again:
        return []
    writers = case.table("rank_progress").select(pl.col("rank").drop_nulls().n_unique()).collect().item()
    total, peers = sum(map(len, of.values())), model_peers(case)
    for rank, times in sorted(again.items()):
        mates = peers.get(rank, frozenset())
        others = total - len(times) - sum(len(of.get(mate, ())) for mate in mates)
        is_often = len(times) >= TIMES or len({one.run for one in times}) > 1
        if not is_often or others * 4 > len(times) or writers - len(mates) < MIN_RANKS or not _are_apart(times):
            continue
        shards = {one.shard for one in times if one.shard}
        steps = ", ".join(str(one.step) for one in times[:6])
        says = f"rank {rank} alone went wrong {len(times)} times (steps {steps}), with other samples each time: its chip, or "
        says += f"the shard that it alone reads ({next(iter(shards))})" if len(shards) == 1 else "the part of the data that it alone reads"
        numbers = _numbers(times) | {"step": times[-1].step, "first_divergence_step": min(one.step or 0 for one in times)}
        numbers.pop("sample_ids", None)
        where = hosts(case)
        cites = tuple(one.cite for one in times if one.cite is not None)[:MAX_CITES]
        on = (where[rank],) if rank in where else ()
        return [
            Finding("steps_again", "same_rank_again", says, ranks=(rank,), hosts=on, scope=f"rank {rank}", numbers=numbers, cites=cites)
        ]
    return []


def _are_apart(times: Sequence[Failure]) -> bool:
    """Whether no two of them share a sample."""
    return sum(len(set(one.samples)) for one in times) == len({sample for one in times for sample in one.samples})


def _numbers(times: Sequence[Failure]) -> dict[str, Any]:
    shards = {one.shard for one in times if one.shard}
    listed: dict[str, Any] = {"sample_ids": list(times[0].samples[:MAX_LISTED]), "failures": [one.row() for one in times[:MAX_LISTED]]}
    return listed | ({"data_shard": next(iter(shards))} if len(shards) == 1 else {})


def _cite(row: dict[str, Any]) -> tuple[Cite, ...]:
    text = f"rank {row['rank']}, step {row['step']}, run again: loss {row['loss']}, gradient norm {row['grad_norm']}"
    return (Cite("rank_progress", row["evidence_id"], "", row["record"], text),)
