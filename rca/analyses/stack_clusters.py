"""Which ranks' stacks stand apart from their peers', and what are they doing there?

1. Take the main thread of every trainer in its last sample inside the training loop; group by canonical frames within the pipeline stage.
   With many distinct patterns, near-duplicates are joined first (scikit-learn, on the distinct patterns only, weight falling from the leaf).
2. In a hang most ranks wait for others; those are victims, whatever group they form. The rank that does not wait for others, in the same
   place in every sample, is the outlier; its activity and wait kind say why (loader, checkpoint or other I/O, lock, interpreter lock, code).
3. A failed dump is evidence too: a process that cannot be suspended sits in the kernel, one that is gone has died.
4. Nothing when the job moves, when too few ranks were seen, or when so many stand apart that the waiting ones are not the rule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from rca.analyses._stack_views import WAITS_FOR_OTHERS, Loop, View, cite_view, in_loop, loop_of, main_views, movement, seen
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("stacks", "stack_frames")
USES = ("ranks", "collectives")
SIGNS = {
    "in_dataloader": Sign("stack", ("data_stall", "storage_stall", "code_hang")),
    "in_checkpoint": Sign("stack", ("storage_stall", "code_hang")),
    "in_io": Sign("stack", ("storage_stall", "data_stall", "code_hang")),
    "holds_gil": Sign("stack", ("code_hang",)),
    "in_user_code": Sign("stack", ("code_hang", "slow_rank")),
    "in_device_sync": Sign("stack", ("gpu_fault", "code_hang", "nvlink_fault")),
    "cannot_be_suspended": Sign("stack", ("storage_stall", "host_fault")),
    "process_gone": Sign("stack", ("process_killed", "user_exception", "host_out_of_memory")),
}

WAITING_SHARE = 0.5  # of the ranks seen must wait for others, or there is no rule to be an exception to
MAX_OUTLIER_SHARE = 0.25
MIN_SEEN = 3
CLUSTER_FROM = 16  # distinct patterns; below, exact groups are as readable and need no scikit-learn
NEAR = 0.2  # distance under which two patterns are one: they differ in a frame or two away from the leaf
LEAF_WEIGHT = 0.8  # each frame weighs this much of the one it called
MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per kind of outlier."""
    views = case.derive(main_views)
    loop = loop_of(case, views)
    motion = movement(views, loop)
    if not views:
        raise NotEnoughEvidence("no stack dump has a rank: nothing says whose stacks they are")
    if motion.job_moves:
        return ()
    last = _last_inside(views, loop)
    failed = _failed(views)
    if len(last) + len(failed) < MIN_SEEN:
        raise NotEnoughEvidence(f"stacks of {len(last)} ranks only; at least {MIN_SEEN} are needed to tell an exception from the rule")
    waiting = [rank for rank, view in last.items() if view.wait_kind in WAITS_FOR_OTHERS]
    if len(waiting) < WAITING_SHARE * (len(last) + len(failed)):
        raise NotEnoughEvidence(f"only {len(waiting)} of {len(last) + len(failed)} ranks wait for others: their stacks show no common hang")
    outliers: dict[str, list[View]] = defaultdict(list)
    for rank, view in last.items():
        if view.wait_kind not in WAITS_FOR_OTHERS and _stays(views[rank], view):
            sign = _sign(views[rank], view)
            if sign != "in_user_code" or in_loop(view, loop):  # outside the loop it has ended or failed: an after-effect
                outliers[sign].append(view)
    for view in failed.values():
        outliers["cannot_be_suspended" if view.dump_status == "suspend_failed" else "process_gone"].append(view)
    count = sum(map(len, outliers.values()))
    if count > max(1, MAX_OUTLIER_SHARE * (len(last) + len(failed))):
        raise NotEnoughEvidence(f"{count} ranks stand apart, too many to be the exception")
    patterns = _patterns(last, _stages(case))
    workers = _workers(case)
    return [_finding(sign, outliers[sign], waiting, patterns, workers) for sign in sorted(outliers)]


def _last_inside(views: Mapping[int, Sequence[View]], loop: Loop) -> dict[int, View]:
    """rank -> its last view inside the training loop (a rank that left the loop after a failed call still shows where it waited)."""
    found = {}
    for rank, all_views in views.items():
        shown = seen(all_views)
        inside = [v for v in shown if in_loop(v, loop)]
        if inside or (shown and len(shown) == len(all_views)):
            found[rank] = (inside or shown)[-1]
    return found


def _failed(views: Mapping[int, Sequence[View]]) -> dict[int, View]:
    """rank -> its last view, where no sample of the rank gave a stack and the failure says something of the process."""
    telling = ("suspend_failed", "process_gone")
    return {rank: v[-1] for rank, v in views.items() if v and not seen(v) and v[-1].dump_status in telling}


def _stays(views: Sequence[View], view: View) -> bool:
    """Whether every sample shows the rank at the same thing (a loader that polls changes its leaf, not its activity)."""
    shown = seen(views)
    return all(v.stack_id == view.stack_id or (v.activity == view.activity and v.activity in ("dataloader", "checkpoint")) for v in shown)


def _sign(views: Sequence[View], view: View) -> str:
    if view.activity == "dataloader":
        return "in_dataloader"
    if view.activity == "checkpoint":
        return "in_checkpoint"
    if view.wait_kind == "io":
        return "in_io"
    if view.wait_kind == "cuda_sync":
        return "in_device_sync"
    if all(v.owns_gil for v in seen(views)):
        return "holds_gil"
    return "in_user_code"


_DOING = {
    "in_dataloader": "waiting for its data loader",
    "in_checkpoint": "in a checkpoint",
    "in_io": "reading or writing",
    "holds_gil": "running and holding the interpreter lock in every sample",
    "in_user_code": "in code of its own, outside any collective",
    "in_device_sync": "waiting for its device",
    "cannot_be_suspended": "not to be suspended: the process sits in the kernel (state D)",
    "process_gone": "gone: the process was no longer there",
}


def _finding(
    sign: str,
    views: Sequence[View],
    waiting: Sequence[int],
    patterns: Mapping[int, int],
    workers: Mapping[int, list[tuple[str, Cite]]],
) -> Finding:
    ranks = tuple(sorted(v.rank for v in views))
    where = Counter(v.leaf for v in views if v.leaf).most_common(1)
    says = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'} {_DOING[sign]}"
    says += f" ({where[0][0]})" if where else ""
    says += f", while {len(waiting)} peers wait for other ranks"
    cites = [cite_view(v) for v in views]
    busy = [item for rank in ranks for item in workers.get(rank, [])] if sign == "in_dataloader" else []
    if busy:
        says += f"; its loader worker is in {busy[0][0]}"
        cites += [cite for _, cite in busy]
    same = {rank: patterns[rank] for rank in (*ranks, *waiting) if rank in patterns}
    numbers = {"waiting": len(waiting), "patterns": len(set(same.values())), "leaf": where[0][0] if where else None}
    return Finding(
        "stack_clusters", sign, says, ranks=ranks, hosts=tuple(sorted({v.host for v in views if v.host})), explains=tuple(sorted(waiting)),
        numbers=numbers, cites=tuple(cites[:MAX_CITES]),
    )  # fmt: skip


def _workers(case: Tables) -> dict[int, list[tuple[str, Cite]]]:
    """rank -> loader workers that are busy in dataset code (an idle one waits for its index queue)."""
    rows = (
        case.table("stacks")
        .filter((pl.col("role") == "dataloader_worker") & (pl.col("thread_name") == "MainThread") & pl.col("rank").is_not_null())
        .join(case.table("stack_frames").select("stack_id", "frames", "shown", "leaf", "wait_kind"), on="stack_id", how="inner")
        .filter(~pl.col("wait_kind").is_in(["queue", "idle"]) & pl.col("leaf").is_not_null())
        .sort("rank", "sample", "evidence_id", "record")
        .collect()
    )
    found: dict[int, list[tuple[str, Cite]]] = defaultdict(list)
    for r in rows.iter_rows(named=True):
        text = " < ".join(r["shown"] or r["frames"][:3])
        found[r["rank"]].append((r["leaf"], Cite("stacks", r["evidence_id"], "", r["record"], text)))
    return found


def _stages(case: Tables) -> dict[int, int]:
    rows = (
        case.table("ranks")
        .filter(pl.col("rank").is_not_null() & pl.col("pp").is_not_null())
        .select("rank", "pp")
        .unique("rank", keep="first")
        .collect()
    )
    return dict(rows.iter_rows())


def _patterns(last: Mapping[int, View], stages: Mapping[int, int]) -> dict[int, int]:
    """rank -> number of its pattern: same canonical stack in the same stage, near-duplicates joined."""
    keys = sorted({(stages.get(rank, -1), view.frames) for rank, view in last.items()})
    number = dict(zip(keys, _joined(keys), strict=True))
    return {rank: number[stages.get(rank, -1), view.frames] for rank, view in last.items()}


def _joined(keys: Sequence[tuple[int, tuple[str, ...]]]) -> list[int]:
    """Cluster number of each distinct pattern; exact while there are few of them."""
    if len(keys) < CLUSTER_FROM:
        return list(range(len(keys)))
    import numpy as np
    from sklearn.cluster import DBSCAN

    weights = [{frame: LEAF_WEIGHT**depth for depth, frame in reversed(list(enumerate(frames)))} for _, frames in keys]
    distance = np.ones((len(keys), len(keys)))
    for one, (stage, _) in enumerate(keys):
        for two in range(one + 1):
            if keys[two][0] == stage:
                distance[one, two] = distance[two, one] = _distance(weights[one], weights[two])
    return [int(label) for label in DBSCAN(eps=NEAR, min_samples=1, metric="precomputed").fit(distance).labels_]


def _distance(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """Weighted Jaccard distance of two stacks."""
    both = sum(min(one[f], two[f]) for f in one.keys() & two.keys())
    either = sum(max(one.get(f, 0.0), two.get(f, 0.0)) for f in one.keys() | two.keys())
    return 1.0 - both / either if either else 0.0


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
