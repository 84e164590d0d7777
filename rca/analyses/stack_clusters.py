"""Which ranks' stacks stand apart from their peers', and what are they doing there?

1. Take the main thread of every trainer in its last sample inside the training loop; group by canonical frames within the pipeline stage.
   With many distinct patterns, near-duplicates are joined first (scikit-learn, on the distinct patterns only, weight falling from the leaf).
2. In a hang most ranks wait for others; those are victims, whatever group they form. The rank that does not wait for others, in the same
   place in every sample, is the outlier; its activity and wait kind say why (loader, checkpoint or other I/O, lock, interpreter lock, code).
3. Not every wait for others shows as one: the gradients of others are awaited inside the backward pass, a device may wait for them, and
   `work.wait()` has no frame of its own. So ranks that stand still off the processor in one place in every sample wait as well, when they are
   most of all ranks (backward pass, device) or nearly all (a line of their own code). Against these one rank at most is accused, and none
   that may itself be waiting so. A lone rank in the backward pass, while its peers are inside collectives, is an exception like any other,
   unless its recorder shows it in a call that lacks another rank: that is what it waits for.
   Ranks that spin at one line in three samples over ten seconds or more, nearly all of them, may be in a step that is long. Against these only
   one that cannot spin for others is accused: it waits for a lock, a queue or a file, its main thread holds the interpreter lock in every sample,
   or moves and holds it now and then. Whoever waits for others has let go of it.
4. In a job that runs, ranks that come back to their wait for others between the samples wait again and again. If all but one do, in every
   sample, and that one is in a place of its own in every sample, it is the slow one. Of two ranks too.
   Nobody is accused who is seen to get on with work that is long in sound jobs: an evaluation, a save, a compiler, the first rank's logs and
   indexes; nor several that move.
5. A failed dump is evidence too: a process that cannot be suspended sits in the kernel, one that is gone has died.
6. Nothing else when the job moves, when too few ranks were seen, or when so many stand apart that the waiting ones are not the rule. In a
   job of two, the one that waits in a call or its backward pass is the rule for the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from rca.analyses._stack_patterns import patterns
from rca.analyses._stack_scene import Scene, ends_by_itself, moves, scene, stays
from rca.analyses._stack_views import BACKWARD, UNTOLD, View, awaits, cite_view, in_loop, seen
from rca.analyses._stack_waits import MIN_SAMPLES, MIN_SEEN, PAIR, Waits, waits_of, waits_of_pair, works
from rca.analyses._waits import build_waits
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("stacks", "stack_frames")
USES = ("ranks", "collectives", "memberships", "dump_index", "steps", "progress", "dumps", "group_status")
SOCKETS: Final = re.compile(r"(http|urllib3?|requests|httpx|httpcore|aiohttp|ssl|redis|websocket\w*|paramiko)\b|socket:")
STORES: Final = re.compile(  # libraries that read objects and files over the network: there a silent peer is storage
    r"(fsspec|gcsfs|s3fs|adlfs|boto3|botocore|s3transfer|minio|oss2|smart_open|h5py|pyarrow|zarr|tensorstore|webdataset|huggingface_hub|datasets|"
    r"google/cloud/storage|google/resumable_media|azure|torch/serialization|torch/distributed/checkpoint|safetensors)\b"
)
SIGNS = {
    "in_dataloader": Sign("stack", ("data_stall", "storage_stall", "code_hang")),
    "in_checkpoint": Sign("stack", ("storage_stall", "code_hang")),
    "in_io": Sign("stack", ("storage_stall", "data_stall", "code_hang")),
    "in_service": Sign("stack", ("unknown", "code_hang", "storage_stall", "data_stall")),
    "holds_gil": Sign("stack", ("code_hang",)),
    "in_user_code": Sign("stack", ("code_hang", "slow_rank")),
    "apart_from_peers": Sign("stack", ("code_hang", "slow_rank")),
    "in_backward": Sign("stack", ("gpu_fault", "code_hang", "collective_mismatch", "nvlink_fault")),
    "in_device_sync": Sign("stack", ("gpu_fault", "code_hang", "nvlink_fault")),
    "cannot_be_suspended": Sign("stack", ("storage_stall", "host_fault")),
    "always_awaited": Sign("stack", ("slow_rank", "unknown")),
    "loader_always_awaited": Sign("stack", ("data_stall", "storage_stall", "unknown")),
    "process_gone": Sign("stack", ("process_killed", "user_exception", "host_out_of_memory")),
}

OWN_CODE: Final = frozenset({"in_user_code", "apart_from_peers"})
MAY_WAIT: Final = frozenset({"in_backward", "in_device_sync"})  # places in which the work of others is awaited too
MAX_OUTLIER_SHARE = 0.25
MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per kind of outlier."""
    shown = case.derive(scene)
    views, last, failed = shown.views, shown.last, shown.failed
    if not views:
        raise NotEnoughEvidence("no stack dump has a rank: nothing says whose stacks they are")
    if shown.runs:
        return _awaited_again(shown)
    is_pair = len(last) == PAIR and not failed and len(_known_ranks(case) | set(views)) == PAIR
    if len(last) + len(failed) < MIN_SEEN and not is_pair:
        raise NotEnoughEvidence(f"stacks of {len(last)} ranks only; at least {MIN_SEEN} are needed to tell an exception from the rule")
    waits = waits_of_pair(views, last) if is_pair else waits_of(views, last, len(last) + len(failed))
    outliers: dict[str, list[View]] = defaultdict(list)
    waiting, num_moving = frozenset(waits.ranks), 0
    for rank, view in last.items():
        if rank in waiting:
            continue
        is_busy = works(views[rank], shown.loop)
        num_moving += is_busy and moves(views[rank])
        if ends_by_itself(views[rank], view):
            continue
        if not waits.may_hold(view, works=is_busy) and (is_busy or stays(views[rank], view)):
            sign = _sign(views[rank], view, waits)
            if sign in MAY_WAIT and case.derive(build_waits).ways_out(rank):
                continue
            if sign in OWN_CODE and moves(views[rank]) and not is_busy and all(v.owns_gil is False for v in seen(views[rank])):
                continue  # it gets on with what its device or a library does: slow, or in the midst of it
            if sign not in OWN_CODE or in_loop(view, shown.loop):  # outside the loop it has ended or failed: an after-effect
                outliers[sign].append(view)
    for view in failed.values():
        outliers["cannot_be_suspended" if view.dump_status == "suspend_failed" else "process_gone"].append(view)
    if num_moving > 1:
        raise NotEnoughEvidence(f"{num_moving} ranks are seen at work: whether they come to an end, later samples tell")
    count = sum(map(len, outliers.values()))
    if count > (max(1, MAX_OUTLIER_SHARE * (len(last) + len(failed))) if waits.is_told else 1):
        raise NotEnoughEvidence(f"{count} ranks stand apart, too many to be the exception")
    numbers = patterns(last, _stages(case))
    workers = _workers(case)
    is_once = all(len(seen(all_views)) < 2 for all_views in views.values())
    return [_finding(sign, outliers[sign], waits, numbers, workers, is_once=is_once) for sign in sorted(outliers)]


def _known_ranks(case: Tables) -> set[int]:
    """Ranks that any map or group names."""
    tables = (case.table(name).select(pl.col("rank").drop_nulls()) for name in ("ranks", "memberships"))
    return set(pl.concat(tables).unique().collect()["rank"].to_list())


def _awaited_again(job: Scene) -> list[Finding]:
    """Step 4."""
    loop, motion = job.loop, job.motion
    shown = {rank: seen(all_views) for rank, all_views in job.views.items()}
    if len(shown) < PAIR or any(len(each) < MIN_SAMPLES for each in shown.values()):
        return []
    waiting = {rank for rank, each in shown.items() if all(awaits(v) and v.is_active is not True for v in each)}
    rest = sorted(shown.keys() - waiting)
    if len(rest) != 1 or not (job.steps or waiting <= {*motion.moved, *motion.returned}):
        return []
    own = shown[rest[0]]
    is_loader = all(v.activity == "dataloader" for v in own)
    if any(awaits(v) or not in_loop(v, loop) for v in own) or not (is_loader or len({v.stack_id for v in own}) == 1):
        return []
    sign = "loader_always_awaited" if is_loader else "always_awaited"
    doing = "in its data loader" if is_loader else f"in {own[-1].leaf}"
    says = f"rank {rest[0]} is {doing} in every sample, while everybody else waits for it, again and again: the job runs, and waits for this rank"
    hosts = tuple(sorted({v.host for v in own if v.host}))
    numbers = {"waiting": len(waiting), "leaf": own[-1].leaf}
    cites = tuple(cite_view(v) for v in (own[-1], *(shown[rank][-1] for rank in sorted(waiting)[: MAX_CITES - 1])))
    return [
        Finding("stack_clusters", sign, says, ranks=(rest[0],), hosts=hosts, explains=tuple(sorted(waiting)), numbers=numbers, cites=cites)
    ]


def _sign(views: Sequence[View], view: View, waits: Waits) -> str:
    spins = all(v.owns_gil and v.stack_id == view.stack_id for v in seen(views))
    if spins and len(seen(views)) > 1:  # a loader or saver that runs, and never leaves one place, gets its data and does not go on
        return "holds_gil"
    if view.activity == "dataloader":
        return "in_dataloader"
    if view.activity == "checkpoint":
        return "in_checkpoint"
    if view.wait_kind == "io":
        is_service = any(map(SOCKETS.match, view.frames)) and not any(map(STORES.match, view.frames))
        return "in_service" if is_service else "in_io"
    if view.wait_kind == "cuda_sync":
        return "in_device_sync"
    if all(v.owns_gil for v in seen(views)):
        return "holds_gil"
    if view.leaf in BACKWARD and view.wait_kind == UNTOLD:
        return "in_backward"
    # Two places of the program's own code, both silent on what they wait for: the rarer one is the exception, if not for certain.
    return "apart_from_peers" if waits.is_pair or (waits.kind == "place" and view.wait_kind == UNTOLD) else "in_user_code"


_WAITING = {
    "call": "wait for other ranks",
    "backward": "stand still in the backward pass, where the gradients of others are awaited",
    "device": "stand still at their devices, which may wait for others",
    "place": "stand still at one and the same line, as ranks do that wait for another",
    "spin": "are at one and the same line in every sample, and let go of the interpreter lock, as ranks do that wait for another",
}
_DOING = {
    "in_dataloader": "waiting for its data loader",
    "in_checkpoint": "in a checkpoint",
    "in_io": "reading or writing",
    "in_service": "waiting for an answer over the network",
    "holds_gil": "running and holding the interpreter lock",
    "in_user_code": "in code of its own, outside any collective",
    "apart_from_peers": "alone in another place of its own code",
    "in_backward": "in its backward pass, which does not end",
    "in_device_sync": "waiting for its device",
    "cannot_be_suspended": "not to be suspended: the process sits in the kernel (state D)",
    "process_gone": "gone: the process was no longer there",
}
_LASTS = ("holds_gil", "apart_from_peers")  # what a moment shows of every rank that computes


def _finding(
    sign: str,
    views: Sequence[View],
    waits: Waits,
    patterns: Mapping[int, int],
    workers: Mapping[int, list[tuple[str, Cite]]],
    *,
    is_once: bool,
) -> Finding:
    ranks = tuple(sorted(v.rank for v in views))
    where = Counter(v.leaf for v in views if v.leaf).most_common(1)
    says = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'} {_DOING[sign]}"
    says += " in every sample" if sign in _LASTS and not is_once else ""
    says += f" ({where[0][0]})" if where else ""
    waiting = waits.ranks
    says += f", while {len(waiting)} peers {_WAITING[waits.kind]}" if len(waiting) > 1 else ", while its one peer waits for others"
    cites = [cite_view(v) for v in views]
    busy = [item for rank in ranks for item in workers.get(rank, [])] if sign == "in_dataloader" else []
    if busy:
        says += f"; its loader worker is in {busy[0][0]}"
        cites += [cite for _, cite in busy]
    says += "; all was seen in one moment, and a moment of a running job may look the same" if is_once else ""
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


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
