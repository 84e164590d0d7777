"""Do replicas that must hold the same parameters, bit by bit, still hold them, and which one is wrong?

1. Replicas are the ranks of one data-parallel group; without a map, the ranks whose checksums agree at the first steps. Ranks that differ from
   the first step on are not compared: they hold other shards, or never started alike.
2. Find the first step from which on the checksums of a group never agree again. Gradients are averaged, so a replica that once differs stays
   different, and only this step counts. Where checksums are written now and then, the state may be wrong from the step after the last equal ones.
3. The value of more than half of the group (of its known size, whether or not all left a file) is right, the others are accused. Two replicas,
   or too few on record, only show that somebody is wrong: then nobody is accused.
   Three replicas or more of which no two hold the same, in every group and with steps behind, are no chip's doing: then the map does not fit (that of
   another launch), or these are no sums of one state.
4. Silent corruption does not stop a job. Where no step follows the one at which replicas part, a gradient that was not averaged (a call that
   one rank left out) is as likely a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rca.analyses._layout import Replicas, hosts, replicas, unseen
from rca.analyses._step_times import began, last_stretch
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("rank_progress",)
USES = ("ranks", "groups", "memberships", "steps", "dump_index", "log_events")
SIGNS = {
    "replica_differs": Sign("numbers", ("silent_data_corruption", "unknown")),
    "replicas_disagree": Sign("numbers", ("silent_data_corruption", "unknown")),
    "parted_at_the_end": Sign("numbers", ("collective_mismatch", "silent_data_corruption", "unknown")),
}

START = 2  # first steps whose checksums show who started alike: one step alone may be that before any training
MIN_STEPS = 3  # compared, before "all agree" says anything
MAX_CITES = 6


@dataclass(frozen=True)
class _Split:
    """A group of replicas at the first step from which on they differ."""

    group: Replicas
    step: int
    agreed: int  # last step at which all agreed
    values: Mapping[int, str]  # rank -> checksum
    is_last: bool  # no step of these replicas follows


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the earliest step at which replicas part; nothing when all were compared and agree."""
    rows = last_stretch(_checksums(case))  # what agreed before a hole in the record may be of another launch
    if rows.is_empty():
        raise NotEnoughEvidence("no checksum of parameters is written: replicas cannot be compared")
    groups, why = _groups(replicas(case), rows)
    num_steps = rows.filter(pl.col("rank").is_in([r for g in groups for r in g.ranks]))["step"].n_unique()
    if not groups or num_steps < MIN_STEPS:
        raise NotEnoughEvidence(why or f"only {num_steps} steps of replicas to compare")
    reached = _reached(case)
    splits = [split for group in _differing(groups, rows) if (split := _split(group, rows, reached))]
    if splits and all(_is_scattered(split) for split in splits):
        raise NotEnoughEvidence(
            f"from step {splits[0].step} on no two of {len(splits[0].values)} replicas hold the same parameters: one wrong chip leaves the others "
            "alike, so the map is not of this launch, or these are no checksums of one state"
        )
    if splits:
        step = min(split.step for split in splits)
        return [_finding([split for split in splits if split.step == step], rows, case)]
    if why := why or unseen(case, rows["rank"].unique()):
        raise NotEnoughEvidence(f"the replicas that could be compared agree; {why}")
    return ()


def _checksums(case: Tables) -> pl.DataFrame:
    """rank, step, param_checksum and where it stands; steps that a rank wrote twice with different values are left out."""
    rows = case.table("rank_progress").filter(
        pl.col("rank").is_not_null() & pl.col("step").is_not_null() & pl.col("param_checksum").is_not_null()
    )
    rows = rows.group_by("rank", "step").agg(
        pl.col("param_checksum").min(),
        pl.col("param_checksum").n_unique().alias("n"),
        pl.col("evidence_id", "record").sort_by("evidence_id", "record").first(),
    )
    return rows.filter(pl.col("n") == 1).sort("rank", "step").collect()


def _groups(told: Sequence[Replicas], rows: pl.DataFrame) -> tuple[list[Replicas], str]:
    """Replicas that started alike, and why others cannot be compared ("" = all can)."""
    found: list[Replicas] = []
    never: list[Replicas] = []
    groups = told or [Replicas(tuple(rows["rank"].unique().sort()), 0)]
    own = rows.join(_places(groups), on="rank")
    seen = own.group_by("place", "step").agg(pl.len().alias("n")).filter(pl.col("n") == pl.col("n").max().over("place"))
    seen = seen.sort("step").group_by("place", maintain_order=True).head(START)
    start = own.join(seen, on=["place", "step"], how="semi").group_by("place", "rank").agg(pl.col("param_checksum").sort_by("step"))
    starts: list[dict[tuple[str, ...], list[int]]] = [{} for _ in groups]
    for place, rank, values in start.sort("place", "rank").iter_rows():
        starts[place].setdefault(tuple(values), []).append(rank)
    for group, alike in zip(groups, starts, strict=True):
        same = [Replicas(tuple(ranks), group.size or len(ranks)) for ranks in alike.values() if len(ranks) > 1]
        found += same
        if len(alike) != 1 or not same:
            never.append(group)
    if not told:
        return found, "" if found else "no two ranks start with the same parameters"
    shown = "; ".join(f"ranks {', '.join(map(str, group.ranks[:8]))}" for group in never[:3])
    return found, f"some replicas differ from the first step on, or too few of them left checksums ({shown})" if never else ""


def _reached(case: Tables) -> dict[int, int]:
    """rank -> the last step that it wrote anything of: checksums may be written now and then only."""
    written = [case.table(table).select("rank", "step").drop_nulls() for table in ("rank_progress", "steps")]
    return dict(pl.concat(written).group_by("rank").agg(pl.col("step").max()).collect().iter_rows())


def _differing(groups: Sequence[Replicas], rows: pl.DataFrame) -> list[Replicas]:
    """Groups whose replicas differ at some step: few, and only these are looked at closely."""
    values = rows.join(_places(groups), on="rank").group_by("place", "step").agg(pl.col("param_checksum").n_unique())
    return [groups[place] for place in values.filter(pl.col("param_checksum") > 1)["place"].unique().sort()]


def _places(groups: Sequence[Replicas]) -> pl.DataFrame:
    """place (of the group in the list), rank."""
    told = [(place, rank) for place, group in enumerate(groups) for rank in group.ranks]
    return pl.DataFrame(told, schema={"place": pl.Int64, "rank": pl.Int64}, orient="row")


def _split(group: Replicas, rows: pl.DataFrame, reached: Mapping[int, int]) -> _Split | None:
    own = rows.filter(pl.col("rank").is_in(group.ranks))
    steps = own.group_by("step").agg(pl.len().alias("n"), pl.col("param_checksum").n_unique().alias("values")).sort("step")
    agreed = steps.filter((pl.col("n") == len(group.ranks)) & (pl.col("values") == 1))["step"].max()
    parted = steps.filter((pl.col("values") > 1) & (pl.col("step") > agreed))["step"].min()
    if not isinstance(agreed, int) or not isinstance(parted, int):
        return None
    values = dict(own.filter(pl.col("step") == parted).select("rank", "param_checksum").iter_rows())
    return _Split(group, parted, agreed, values, is_last=max(reached[r] for r in values) == parted)


def _is_scattered(split: _Split) -> bool:
    """Whether every replica holds something else, and goes on: one wrong chip leaves the others alike."""
    return len(split.values) > 2 and len(set(split.values.values())) == len(split.values) and not split.is_last


def _odd(split: _Split) -> tuple[int, ...]:
    """Ranks that differ from the value that more than half of the group hold; () without such a value."""
    value, count = max(Counter(split.values.values()).items(), key=lambda item: (item[1], item[0]))
    return tuple(sorted(r for r, v in split.values.items() if v != value)) if count * 2 > split.group.size else ()


def _finding(splits: Sequence[_Split], rows: pl.DataFrame, case: Tables) -> Finding:
    voted = [split for split in splits if _odd(split)]
    shown = voted or splits
    first, where = shown[0], hosts(case)
    ranks = tuple(sorted(rank for split in voted for rank in _odd(split)))
    candidates = sorted(rank for split in shown for rank in split.values)
    on = tuple(sorted({where[rank] for rank in ranks if rank in where}))
    numbers = {
        "step": first.step,
        "last_agreed_step": first.agreed,
        "first_divergence_step": first.agreed + 1,
        "checksums": {str(r): v for r, v in sorted(first.values.items())},
    }
    sizes = f"{len(first.values)} of {first.group.size} replicas on record"
    if voted:
        agree = [rank for rank in sorted(first.values) if rank not in ranks]
        says = (
            f"after step {first.step} the parameters of rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            f"{' on ' + ', '.join(on) if on else ''} differ from those of the replicas that agree (ranks {', '.join(map(str, agree))}; {sizes}); "
            f"up to step {first.agreed} all held the same, bit by bit"
        )
    else:
        numbers |= {"candidates": candidates, "suspects": candidates}
        says = (
            f"after step {first.step} replicas no longer hold the same parameters (ranks {', '.join(map(str, candidates))}; {sizes}), "
            f"up to step {first.agreed} they did; which one is wrong cannot be voted: that takes the agreement of more than half"
        )
    if (at := began(case, ranks or candidates, first.step)) is not None:
        numbers["failed_at"] = at
    order = [*ranks, *(rank for rank in candidates if rank not in ranks)]
    places = [(rank, first.step) for rank in order[: MAX_CITES - 1]] + [(order[0], first.agreed)]
    cites = tuple(cite for rank, step in places for cite in _cite(rows, rank, step))
    sign = "parted_at_the_end" if all(split.is_last for split in shown) else "replica_differs" if voted else "replicas_disagree"
    return Finding("replica_divergence", sign, says, ranks=ranks, hosts=on, scope=f"{order}", numbers=numbers, cites=cites)


def _cite(rows: pl.DataFrame, rank: int, step: int) -> list[Cite]:
    found = rows.filter((pl.col("rank") == rank) & (pl.col("step") == step)).select("evidence_id", "record", "param_checksum").rows()
    return [
        Cite("rank_progress", e, "", record, f"rank {rank}, step {step}: checksum of the parameters {value}") for e, record, value in found
    ]
