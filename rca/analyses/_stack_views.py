"""What the trainers' main threads did from sample to sample: the one view of stacks that several questions share."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from rca.types import Cite, Tables

__all__ = [
    "BACKWARD",
    "UNTOLD",
    "WAITS_FOR_OTHERS",
    "Loop",
    "Motion",
    "View",
    "awaits",
    "call_paths",
    "cite_view",
    "in_loop",
    "loop_of",
    "main_motion",
    "main_views",
    "movement",
    "ran_between",
    "seen",
    "shared",
    "stands_still",
    "steps_meanwhile",
    "turns",
]

Loop = tuple[str, ...]  # frames from the outermost one to the body of the training loop

WAITS_FOR_OTHERS = frozenset({"collective", "p2p", "comm_init", "store"})  # whoever sits there waits for another rank
# The autograd engine, as torch 2.2 and later show it, and as before. Its frame is all that shows of a wait for the gradients of others.
BACKWARD = frozenset({"torch/autograd/graph:_engine_run_backward", "torch/autograd/__init__:backward"})
UNTOLD = "unknown"  # wait kind of a Python stack whose innermost call is C code: a lock, a sleep and `work.wait()` have no frame
MOVING_SHARE = 0.5  # of the ranks seen twice: a hung job has at most its culprit and failing ranks change
MOMENT_S = 1.0  # from the first sample of a rank to its last: a program that moves may stay in one place for as long
MAX_PATTERNS = 200  # distinct stacks compared in pairs
# What the kernel counted of a main thread. One in gloo's wait does not switch at all (torch 2.13); what a dump itself adds is taken off.
DUMP_SWITCHES, DUMP_CPU_S = 2, 1e-4  # of one py-spy dump: measured 2 switches (once 3) and 20-50 us
MIN_STEPS = 2  # that end between the first sample and the last: of one, a rank may tell late
MIN_SWITCHES, MIN_CPU_S = 1, 5e-4  # beyond those of the dumps: it left its wait, made a step (1 ms or more of Python) and began another
# CPU time per switch. Who sleeps, looks and sleeps again spends 20-70 us (in C or Python); a step between two waits took 300 us at the least.
POLL_CPU_S = 1.5e-4
BUSY_SHARE = 0.5  # of the time on the processor: it computes, or waits spinning as CUDA does; its switches do not tell which
_ONE_STEP = re.compile(r":_*(?:\w+_)?train(?:ing)?_(?:one_)?step$")  # Megatron's train_step, Lightning's and Hugging Face's training_step
SEQUENCES = 3  # ranks whose calls are followed in order


@dataclass(frozen=True)
class View:
    """The main thread of one rank in one sample."""

    rank: int
    sample: int
    host: str | None
    pid: int | None
    frames: tuple[str, ...]  # innermost first
    stack_id: str | None
    leaf: str | None
    shown: tuple[str, ...]  # the frames to cite
    activity: str
    wait_kind: str
    lines: str
    is_active: bool | None
    owns_gil: bool | None
    dump_status: str
    evidence_id: str
    record: str
    at: datetime | None = None  # when it was taken, where told
    num_switches: int | None = None  # times the thread had gone to wait until then; null = not noted
    cpu_s: float | None = None  # on the processor until then


def main_views(case: Tables) -> dict[int, list[View]]:
    """rank -> its main thread's views by sample. Of several files of one sample the JSON form counts; failed dumps are views too.

    A dump with C frames tells what a Python stack cannot; it is compared by its Python frames, and what it waits for holds for every sample
    of the rank in the same place. Samples of one moment count as one.
    """
    stacks = case.table("stacks").filter(
        pl.col("rank").is_not_null()
        & pl.col("role").fill_null("unknown").is_in(["trainer", "unknown", "other"])
        & ((pl.col("thread_name") == "MainThread") | (pl.col("dump_status") != "ok"))
    )
    columns = ("stack_id", "frames", "leaf", "shown", "activity", "wait_kind")
    frames = case.table("stack_frames").select(columns).unique("stack_id", keep="first")
    order = [
        (pl.col("dump_status") != "ok"),
        (pl.col("role") == "other").fill_null(value=False),  # a process that the trainer forked, a saver: only where nothing else is there
        ~pl.col("format").fill_null("").str.contains("json"),
        pl.col("evidence_id"),
        pl.col("record"),
    ]
    key = ["rank", "pid", "sample"]
    noted = case.table("dump_index").sort("sampled_at", "record").select(*key, "num_switches", "cpu_s", noted_at="sampled_at")
    rows = (
        stacks.sort("rank", "sample", *order, nulls_last=True)
        .join(frames, on="stack_id", how="left", maintain_order="left")
        .join(noted.unique(key, keep="first", maintain_order=True), on=key, how="left", maintain_order="left")
        .collect()
    )
    found: dict[int, list[View]] = defaultdict(list)
    told = rows.select(
        "rank", pl.col("sample").fill_null(0), "host", "pid", "frames", "stack_id", "leaf", "shown",
        pl.col("activity", "wait_kind").replace("", None).fill_null("unknown"), pl.col("lines").fill_null(""), "is_active", "owns_gil",
        pl.col("dump_status").replace("", None).fill_null("ok"), "evidence_id", "record",
        pl.coalesce("noted_at", "sampled_at"), "num_switches", "cpu_s",
    )  # fmt: skip
    for rank, sample, host, pid, inner, stack_id, leaf, shown, *rest in told.iter_rows():
        of = tuple(inner or ())
        found[rank].append(View(rank, sample, host, pid, of, stack_id, leaf, tuple(shown or of[:3]), *rest))
    return _looks({rank: _sharpened(views) for rank, views in found.items()})


def _looks(views: dict[int, list[View]]) -> dict[int, list[View]]:
    """The last view of each rank alone, where all were taken within a moment: that nothing changed in it shows no standstill. What did change on most
    ranks shows that the job moves, however short the look."""
    twice = [shown for of in views.values() if len(shown := seen(of)) > 1]
    if not twice or not all(_is_moment(shown) for shown in twice):
        return views
    moved = sum(len({(v.stack_id, v.lines) for v in shown}) > 1 or bool(ran_between(shown)) for shown in twice)
    return views if moved >= MOVING_SHARE * len(twice) else {rank: (seen(of) or of)[-1:] for rank, of in views.items()}


def _is_moment(shown: Sequence[View]) -> bool:
    """Whether a rank's samples tell their times, and these lie within MOMENT_S."""
    moments = [v.at for v in shown if v.at is not None]
    return len(moments) == len(shown) and (max(moments) - min(moments)).total_seconds() <= MOMENT_S


def _sharpened(views: Sequence[View]) -> list[View]:
    """One view per sample, with the wait kind that a dump with C frames shows in the same place."""
    chosen = list({v.sample: v for v in reversed(views)}.values())[::-1]
    deep = [v for v in views if v.leaf and v.frames[:1] != (v.leaf,)]
    if not deep:
        return chosen
    plain = [v for v in chosen if v not in deep]
    shallow = []
    for view in chosen:
        like = next((p for p in plain if view in deep and _same_place(p, view)), view)
        shallow.append(replace(view, stack_id=like.stack_id, frames=like.frames, lines=like.lines))
    return [replace(v, wait_kind=_told(v, deep)) if v.wait_kind == UNTOLD else v for v in shallow]


def _told(view: View, deep: Iterable[View]) -> str:
    """What the dumps with C frames say of a place in which the Python frames say nothing."""
    kinds = (d.wait_kind for d in deep if d.pid == view.pid and d.wait_kind != UNTOLD and _same_place(view, d))
    return next(kinds, UNTOLD)


def _same_place(plain: View, deep: View) -> bool:
    """Whether a stack with C frames has the Python frames of the other, in their order, and no other line where it tells lines."""
    if plain.leaf != deep.leaf or not plain.frames:
        return False
    rest = iter(deep.frames)
    if not all(frame in rest for frame in plain.frames):
        return False
    told = [line for line in deep.lines.split(",") if line not in ("", "0")]
    return all(one == two for one, two in zip(told, plain.lines.split(","), strict=False))


def seen(views: Sequence[View]) -> list[View]:
    """The views that show a stack."""
    return [v for v in views if v.dump_status == "ok" and v.frames]


@dataclass(frozen=True)
class Motion:
    """Whether the job moved between samples."""

    moved: tuple[int, ...]  # ranks whose stack changed inside the training loop
    still: tuple[int, ...]  # ranks whose stack did not change
    left: tuple[int, ...]  # ranks that left the training loop on the way: a call of theirs failed, or they are done
    once: tuple[int, ...]  # ranks seen once only, or not at all in the last sample
    ran: tuple[int, ...] = ()  # of the still ones: ran between the samples, or may have, so that they may have come back to their place
    returned: tuple[int, ...] = ()  # of those: their place is a wait for others, and the kernel counted that they left it and came back

    @property
    def is_known(self) -> bool:
        """Whether any rank was seen twice."""
        return bool(self.moved or self.still or self.left)

    @property
    def job_moves(self) -> bool:
        """At least half of the ranks seen twice changed inside their loop, or came back to their wait for others."""
        twice = len(self.moved) + len(self.still) + len(self.left)
        return bool(twice) and len(self.moved) + len(self.returned) >= MOVING_SHARE * twice


def movement(views: Mapping[int, Sequence[View]], loop: Loop) -> Motion:
    """Compare each rank's samples: same frames and line numbers = still; other frames in the same loop = moved.

    A rank seen inside the loop and outside has left it, in whichever order the samples are known. A wait that is over and begun anew looks
    still too; but whoever waits on does not get on the processor now and then. The kernel counts that; without its counts, a main thread
    that was on the processor in some samples and off it in others shows it.
    """
    moved, still, left, once, ran, returned = [], [], [], [], [], []
    for rank, all_views in sorted(views.items()):
        shown = seen(all_views)
        inside = {in_loop(v, loop) for v in shown}
        if len(shown) < 2:
            once.append(rank)
        elif all((v.stack_id, v.lines) == (shown[0].stack_id, shown[0].lines) for v in shown[1:]):
            still.append(rank)
            counted = ran_between(shown)
            if counted or (counted is None and awaits(shown[0]) and {v.is_active for v in shown} >= {True, False}):
                ran.append(rank)
            if counted and awaits(shown[0]):
                returned.append(rank)
        elif loop and len(inside) > 1:
            left.append(rank)
        else:
            moved.append(rank)
    return Motion(tuple(moved), tuple(still), tuple(left), tuple(once), tuple(ran), tuple(returned))


def awaits(view: View) -> bool:
    """Whether the place is one where others are awaited: inside a call that says so, or where the backward pass waits for their gradients."""
    return view.wait_kind in WAITS_FOR_OTHERS or view.leaf in BACKWARD


def ran_between(views: Sequence[View]) -> bool | None:
    """Whether a thread seen in one place worked between the samples, by what the kernel counted; None = not counted, or it spins.

    False: it slept on, or woke only to look and sleep again.
    """
    shown = [v for v in seen(views) if v.num_switches is not None and v.cpu_s is not None and v.at is not None]
    if len(shown) < 2:
        return None
    first, last = shown[0], shown[-1]
    if first.num_switches is None or last.num_switches is None or first.cpu_s is None or last.cpu_s is None or first.pid != last.pid:
        return None
    num_dumps = len(seen(views)) - 1
    switches = last.num_switches - first.num_switches - DUMP_SWITCHES * num_dumps
    cpu_s = last.cpu_s - first.cpu_s - DUMP_CPU_S * num_dumps
    if first.at is None or last.at is None or cpu_s > BUSY_SHARE * (last.at - first.at).total_seconds():
        return None
    return switches >= MIN_SWITCHES and cpu_s > max(MIN_CPU_S, POLL_CPU_S * switches)


def loop_of(case: Tables, views: Mapping[int, Sequence[View]]) -> Loop:
    """The root frames (outermost first) that lead into the training loop; () = cannot be told.

    Two different stacks inside the loop part company at the loop's body, a stack in the loop and one outside part company earlier. So: the
    depth at which most pairs of distinct stacks part company, the deeper one on a tie. Stacks that wait for other ranks are in the loop, and
    so are those the recorder kept of every call (each counts as often as it was used, so that a call of the set-up weighs little). Frames
    further out belong to the loop too when the calls of a rank leave one of their branches and come back to it: a set-up is never returned to.
    Whatever is below a frame that is one step by its name is inside of it, also where most stacks share more (a schedule, beside what is logged).
    """
    shown = [v for all_views in views.values() for v in seen(all_views)]
    weights: Counter[Loop] = Counter(tuple(reversed(v.frames)) for v in shown if v.wait_kind in WAITS_FOR_OTHERS)
    roots = {v.frames[-1] for v in shown}  # a recorder that kept other frames, or fewer, tells nothing of the stacks that were sampled
    weights.update({path: count for path, count in _call_paths(case).items() if path[0] in roots})
    if len(weights) < 2:
        weights.update(tuple(reversed(v.frames)) for v in shown)
    paths = sorted(dict(weights.most_common(MAX_PATTERNS)))
    forks: Counter[Loop] = Counter()
    for place, one in enumerate(paths):
        for two in paths[place + 1 :]:
            forks[shared(one, two)] += weights[one] * weights[two]
    if not forks:
        return ()
    counts: Counter[int] = Counter()
    for fork, weight in forks.items():
        counts[len(fork)] += weight
    depth = max(counts, key=lambda d: (counts[d], d))
    loop = max((fork for fork in forks if len(fork) == depth), key=lambda f: (forks[f], f))
    loop = loop[: _outermost_return(list(call_paths(case, _busiest(case)).values()), loop)]
    step = next((depth for depth, frame in enumerate(loop) if _ONE_STEP.search(frame)), len(loop))
    return loop[: step + 1]


def main_motion(case: Tables) -> tuple[Loop, Motion]:
    """The training loop, and whether the job moves, by the views of all main threads. To be derived: several questions ask."""
    views = case.derive(main_views)
    loop = loop_of(case, views)
    return loop, movement(views, loop)


def _busiest(case: Tables) -> list[int]:
    """A few ranks with the most recorded calls."""
    calls = case.table("collectives").filter(pl.col("stack_id").is_not_null() & pl.col("rank").is_not_null())
    counts = calls.group_by("rank").agg(pl.len().alias("n")).sort(["n", "rank"], descending=[True, False])
    return counts.head(SEQUENCES).collect()["rank"].to_list()


def call_paths(case: Tables, ranks: Sequence[int]) -> dict[int, list[Loop]]:
    """rank -> root paths of its recorded calls, in the order they were made."""
    calls = case.table("collectives").filter(pl.col("stack_id").is_not_null() & pl.col("rank").is_in(list(ranks)))
    frames = case.table("stack_frames").select("stack_id", "frames").unique("stack_id", keep="first")
    rows = calls.select("rank", "record_id", "stack_id").sort("rank", "record_id").join(frames, on="stack_id", maintain_order="left")
    found: dict[int, list[Loop]] = defaultdict(list)
    for rank, path in rows.select("rank", "frames").collect().iter_rows():
        found[rank].append(tuple(reversed(path)))
    return dict(found)


def turns(paths: Sequence[Loop], within: Loop, depth: int) -> list[Loop]:
    """The first `depth` frames of the calls made below `within`, in order, each once as long as it does not change."""
    parts = [path[:depth] for path in paths if path[: len(within)] == within]
    return [part for place, part in enumerate(parts) if place == 0 or part != parts[place - 1]]


def _outermost_return(sequences: Sequence[Sequence[Loop]], loop: Loop) -> int:
    """The number of root frames down to the outermost one that a call path leaves and comes back to; all of them when none is."""
    for depth in range(1, len(loop)):
        if any(len(set(order)) < len(order) for order in (turns(paths, loop[:depth], depth + 1) for paths in sequences)):
            return depth
    return len(loop)


def _call_paths(case: Tables) -> dict[Loop, int]:
    """Root paths of the calls the recorder kept, with the number of calls made from each."""
    counts = case.table("collectives").filter(pl.col("stack_id").is_not_null()).group_by("stack_id").agg(pl.len().alias("n"))
    rows = case.table("stack_frames").select("stack_id", "frames").join(counts, on="stack_id", how="inner").collect()
    return {tuple(reversed(r["frames"])): r["n"] for r in rows.iter_rows(named=True) if r["frames"]}


def shared(one: Loop, two: Loop) -> Loop:
    """The root frames that two paths have in common."""
    depth = next((d for d, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return one[:depth]


def in_loop(view: View, loop: Loop) -> bool:
    """Whether a stack is below the loop's deepest shared frame."""
    return tuple(reversed(view.frames))[: len(loop)] == loop


def steps_meanwhile(case: Tables, views: Mapping[int, Sequence[View]]) -> tuple[Cite, ...]:
    """The first and last step that logs or timings tell of between the samples; () = they tell of none, or of one only.

    Each rank's steps are held against the samples of the same rank, so against one host's clock. Timings count when most ranks that kept
    some tell of steps; where none are kept, what is printed counts, of a rank that is not named against the samples of most ranks.
    """
    spans = {rank: (min(at), max(at)) for rank, of in views.items() if len(at := [v.at for v in of if v.at is not None]) > 1}
    if not spans:
        return ()
    usual = tuple(sorted(ends)[len(spans) // 2] for ends in zip(*spans.values(), strict=True))
    kept = case.table("steps").select("evidence_id", "record", "rank", "step", at="started_at").drop_nulls(["rank", "step", "at"]).collect()
    if timed := set(kept["rank"]) & set(spans):
        inside = _between(kept, spans)
        ranks = inside["rank"].unique().sort()
        return _ends("steps", inside.filter(pl.col("rank") == ranks[0])) if 2 * len(ranks) > len(timed) else ()
    printed = case.table("progress").select("evidence_id", "record", "rank", "step", at="ended_at").drop_nulls(["step", "at"]).collect()
    for (rank,), rows in printed.group_by(["rank"], maintain_order=True):
        if (inside := _between(rows, {rank: spans.get(rank, usual)})).height:
            return _ends("progress", inside)
    return ()


def _between(
    rows: pl.DataFrame, spans: Mapping[int, tuple[datetime, datetime]] | Mapping[int | None, tuple[datetime, datetime]]
) -> pl.DataFrame:
    """The steps of ranks inside the stretch of time of each, each step once, in order; none of a rank with fewer than two."""
    starts, ends = zip(*spans.values(), strict=True)
    told = pl.DataFrame(
        {"rank": list(spans), "start": starts, "end": ends},
        schema={"rank": rows.schema["rank"], "start": rows.schema["at"], "end": rows.schema["at"]},
    )
    inside = rows.join(told, on="rank", nulls_equal=True).filter((pl.col("at") > pl.col("start")) & (pl.col("at") < pl.col("end")))
    steps = inside.sort("at", "step", "evidence_id", "record").unique(["rank", "step"], keep="first", maintain_order=True)
    return steps.filter(pl.len().over("rank") >= MIN_STEPS)


def _ends(table: str, steps: pl.DataFrame) -> tuple[Cite, ...]:
    return tuple(
        Cite(table, r["evidence_id"], "", r["record"], f"step {r['step']} at {r['at']:%H:%M:%S} UTC")
        for r in (steps.row(0, named=True), steps.row(-1, named=True))
    )


def stands_still(views: Sequence[View]) -> bool:
    """Whether two samples or more show the thread in one place, off the processor and without the interpreter lock, and not between whiles."""
    shown = seen(views)
    same = all((v.stack_id, v.lines) == (shown[0].stack_id, shown[0].lines) for v in shown)
    return len(shown) > 1 and same and all(v.is_active is False and v.owns_gil is not True for v in shown) and not ran_between(views)


def cite_view(view: View) -> Cite:
    """The row behind a view, with its innermost informative frames."""
    text = " < ".join(view.shown) if view.frames else f"dump {view.dump_status}"
    return Cite("stacks", view.evidence_id, "", view.record, text)
