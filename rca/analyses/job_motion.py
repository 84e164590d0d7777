"""Did the job still move when it was captured, and at its usual pace?

1. Compare each rank's main thread between samples: changed inside the training loop = moved, unchanged = still. At least half moved: the
   job runs. A wait that ended and began anew looks unchanged: so a job runs as well where the kernel counted, between the samples, that at
   least half of the ranks left their wait for others and came back to it, or where logs or timings tell of steps meanwhile. None moved, and
   some wait for others: it hangs. Where nobody is seen waiting for another, a short look at ranks in one place shows no hang.
2. The pace is the time between collectives of the group with the most ranks, as the recorder has them. A lasting slow-down (the later half
   against the earlier, both steady) is a finding even though the job moves.
3. A job that ended well was not captured for a hang: that it moved tells nothing of its speed or its numbers, so this question stays open. So it
   does where logs were collected too, but nothing of speed and numbers. With dumps and stacks alone, a hang is all that was asked.
4. `clear` needs every rank seen twice in a job that moves (a rank may be caught twice in one place; if it were stuck there, its peers
   would stand still too) and a pace on record; a rank seen once, or a failed dump, leaves it open. Where step timings were kept, it needs
   those of every rank, in units that can be: a job with a slow rank moves as well, and that may be the one whose file is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

import polars as pl

from rca.analyses._stack_views import Motion, View, awaits, cite_view, main_motion, main_views, seen, steps_meanwhile
from rca.analyses._step_times import step_rows
from rca.analyses._time_units import PARTS, odd_times
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("stacks",)
USES = ("stack_frames", "collectives", "log_events", "steps", "memberships", "ranks", "progress", "dump_index")
SIGNS = {
    "job_hangs": Sign("motion", ()),
    "job_runs": Sign("motion", ()),
    "pace_dropped": Sign("pace", ("slow_rank", "data_stall", "network_fault", "unknown")),
}

LONG_LOOK_S = (
    10.0  # the same place for so long, where nobody is seen to wait for another: steps are shorter, unless they are known to be longer
)
FEW_SAMPLES = 2
SLOWER = 1.3  # later pace over earlier: below that is the noise of a shared file system or an evaluation
STEADY = 1.25  # spread (90th over 10th percentile) within each part; a drift or a saw-tooth is no step
MIN_STEPS = 4  # intervals on each side of the break
WARM_UP = 1  # first intervals: allocation, compilation


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding when the job stands still or has slowed; nothing when every rank was seen moving at a steady pace."""
    views = case.derive(main_views)
    _, motion = case.derive(main_motion)
    gaps = _gaps(case)
    found = _pace(gaps)
    if not motion.is_known:
        if found:
            return found
        raise NotEnoughEvidence(
            "no rank has two stack dumps that are more than a second apart: take at least two rounds, some seconds apart"
        )
    expected = _expected_ranks(case)
    steps = () if len(motion.moved) >= len(motion.still) else steps_meanwhile(case, views)
    if not found and (steps or (motion.job_moves and motion.returned)):
        return [_runs(motion, views, steps)]
    if not motion.job_moves and motion.ran:
        if found:
            return found
        raise NotEnoughEvidence(
            f"every rank was seen in one place, but {len(motion.ran)} of them ran there between whiles, so the job may have come back to it: "
            "take more rounds of stacks"
        )
    long_s = max(LONG_LOOK_S, _step_s(case))
    if not motion.job_moves and _is_a_moment(motion, views, long_s):
        if found:
            return found
        raise NotEnoughEvidence(
            "the ranks were seen in one place, but none of them in a wait for others, and not for long: a step in progress looks the same. "
            f"Take more rounds of stacks, over more than {long_s:.0f} s"
        )
    if not motion.job_moves:
        return [*found, _still(motion, views)]
    if found:
        return found
    if expected and expected <= _ended_well(case):
        raise NotEnoughEvidence(
            "the job ended well, so a hang is not the question: its speed and its numbers are, and motion shows neither"
        )
    has_timings = _has(case, "steps", of_ranks=True)
    if _has(case, "log_events") and not has_timings:
        raise NotEnoughEvidence(
            "the job moves; its logs were kept and no step timings, so who slows it and whose numbers are wrong was not looked at"
        )
    untimed = sorted((expected | set(views)) - _timed(case)) if has_timings else []
    if untimed:
        raise NotEnoughEvidence(
            f"the job moves, but {len(untimed)} of {len(expected | set(views))} ranks left no step timings of use, so whether one of them slows it "
            f"was not looked at (ranks {', '.join(map(str, untimed[:8]))})"
        )
    unseen = sorted((expected - set(motion.moved) - set(motion.still)) | set(motion.once))
    if unseen:
        shown = ", ".join(map(str, unseen[:8]))
        raise NotEnoughEvidence(
            f"the job moves, but {len(unseen)} of {max(len(expected), len(views))} ranks were not seen twice (ranks {shown})"
        )
    if gaps is None:
        raise NotEnoughEvidence(
            "every rank moves, but at which pace is not recorded: without a recorder dump a slow job looks like a healthy one"
        )
    return ()


def _expected_ranks(case: Tables) -> set[int]:
    ranks: set[int] = set()
    for table in ("memberships", "ranks"):
        ranks |= set(case.table(table).select(pl.col("rank").drop_nulls().unique()).collect()["rank"].to_list())
    return ranks


def _has(case: Tables, table: str, *, of_ranks: bool = False) -> bool:
    """Whether a table has rows; with `of_ranks`, rows of a rank: steps that a log prints of the whole job are timings of nobody."""
    rows = case.table(table).filter(pl.col("rank").is_not_null()) if of_ranks else case.table(table)
    return bool(rows.select("record").head(1).collect().height)


def _timed(case: Tables) -> set[int]:
    """Ranks with step timings that can be compared."""
    rows = step_rows(case, warm_up=0)
    measured = ["compute_s"] if rows["compute_s"].drop_nulls().len() else list(PARTS)  # what tells who is slow, where any rank wrote it
    told = set(rows.filter(pl.any_horizontal(pl.col(measured) > 0))["rank"].to_list())
    return told - {odd.rank for odd in odd_times(rows)}


def _ended_well(case: Tables) -> set[int]:
    rows = case.table("log_events").filter(pl.col("signature") == "worker_finished")
    return set(rows.select(pl.col("rank").drop_nulls().unique()).collect()["rank"].to_list())


def _step_s(case: Tables) -> float:
    """How long a step takes, s, by timings, else as the trainer prints it; 0 where nothing tells."""
    for table, column in (("steps", "step_s"), ("progress", "logged_step_s")):
        usual = case.table(table).select(pl.col(column).median()).collect().item()
        if usual is not None:
            return float(usual)
    return 0.0


def _is_a_moment(motion: Motion, views: Mapping[int, Sequence[View]], long_s: float) -> bool:
    """Whether ranks in one place may be in the midst of a step: nobody is seen to wait for others, and they were not watched for long."""
    last = [seen(views[rank])[-1] for rank in motion.still]
    if motion.left or any(awaits(v) or v.wait_kind == "cuda_sync" for v in last):
        return False
    taken = [v.at for rank in motion.still for v in seen(views[rank]) if v.at is not None]
    is_long = bool(taken) and (max(taken) - min(taken)).total_seconds() >= long_s
    few = max(len(seen(views[rank])) for rank in motion.still) <= FEW_SAMPLES
    return not is_long and (few or len({(v.stack_id, v.lines) for v in last}) == 1)


def _runs(motion: Motion, views: Mapping[int, Sequence[View]], steps: tuple[Cite, ...]) -> Finding:
    twice = len(motion.still) + len(motion.moved) + len(motion.left)
    if steps:
        says = f"the job runs: {steps[0].text} to {steps[-1].text} were told while the stacks were taken"
    else:
        says = f"the job runs: {len(motion.returned)} of {twice} ranks left their wait for others and came back to it between the samples"
    cites = steps or tuple(cite_view(seen(views[rank])[-1]) for rank in motion.returned[:3])
    return Finding(
        "job_motion", "job_runs", says, scope="job",
        numbers={"still": len(motion.still), "moved": len(motion.moved), "returned": len(motion.returned)}, cites=cites,
    )  # fmt: skip


def _still(motion: Motion, views: dict[int, list[View]]) -> Finding:
    twice = len(motion.still) + len(motion.moved) + len(motion.left)
    says = f"the job stands still: {len(motion.still)} of {twice} ranks show the same stack in every sample"
    if motion.left:
        says += f"; {len(motion.left)} left the training loop meanwhile"
    cites = tuple(cite_view(seen(views[rank])[-1]) for rank in motion.still[:3])
    return Finding(
        "job_motion", "job_hangs", says, scope="job",
        numbers={"still": len(motion.still), "moved": len(motion.moved), "left": len(motion.left)}, cites=cites,
    )  # fmt: skip


@dataclass(frozen=True)
class _Gaps:
    """Times between the collectives of the group with the most ranks, s; and the calls that end them."""

    group: str
    seconds: tuple[float, ...]
    calls: tuple[tuple[int, datetime, str, str], ...]  # number, moment, evidence_id, record


def _gaps(case: Tables) -> _Gaps | None:
    """The pace as recorded; None when no group has enough calls on record."""
    calls = case.table("collectives").filter(
        pl.col("rank").is_not_null() & ~pl.col("is_p2p").fill_null(value=False) & pl.col("created_at").is_not_null()
    )
    used = calls.group_by("group_id").agg(pl.col("rank").n_unique().alias("n"), pl.col("collective_seq_id").n_unique().alias("rounds"))
    used = used.filter(pl.col("rounds") >= MIN_STEPS + WARM_UP + 1).sort(["n", "group_id"], descending=[True, False]).head(1)
    groups = used.collect()["group_id"].to_list()
    if not groups:
        return None
    group = groups[0]
    rows = (
        calls.filter(pl.col("group_id") == group)
        .group_by("collective_seq_id")
        .agg(pl.col("created_at").max().alias("at"), pl.col("evidence_id").first(), pl.col("record").first())
        .sort("collective_seq_id")
        .collect()
    )
    seconds = (rows["at"].diff().dt.total_microseconds() / 1e6).to_list()[1 + WARM_UP :]
    return _Gaps(group, tuple(seconds), tuple(rows.iter_rows())[1 + WARM_UP :]) if len(seconds) >= MIN_STEPS else None


def _pace(gaps: _Gaps | None) -> list[Finding]:
    """The slow-down of the widest group's collectives, if there is one."""
    place = _break(gaps.seconds) if gaps else None
    if gaps is None or place is None:
        return []
    before, after = median(gaps.seconds[:place]), median(gaps.seconds[place:])
    number, at, evidence_id, record = gaps.calls[place]
    says = f"from {gaps.group} #{number} on a round takes {after:.3g} s instead of {before:.3g} s ({after / before:.2f} times as long), and stays so"
    cite = Cite("collectives", evidence_id, "", record, f"{gaps.group} #{number} at {at:%H:%M:%S.%f} UTC")
    numbers = {"before_s": before, "after_s": after}
    return [Finding("job_motion", "pace_dropped", says, scope="pace", groups=(gaps.group,), numbers=numbers, cites=(cite,))]


def _break(gaps: Sequence[float]) -> int | None:
    """The place where two steady paces meet, the later at least SLOWER times the earlier; None when there is none."""
    best: tuple[float, int] | None = None
    for place in range(MIN_STEPS, len(gaps) - MIN_STEPS + 1):
        before, after = gaps[:place], gaps[place:]
        if _spread(before) > STEADY or _spread(after) > STEADY or median(after) < SLOWER * median(before):
            continue
        error = sum(abs(g - median(before)) for g in before) + sum(abs(g - median(after)) for g in after)
        best = min(best, (error, place)) if best else (error, place)
    return best[1] if best else None


def _spread(values: Sequence[float]) -> float:
    """90th over 10th percentile."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return high / low if low > 0 else float("inf")


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
