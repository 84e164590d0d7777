"""Writes flight-recorder dumps of a simulated tp x pp x dp job with a fault, and says what truly happened.

1. `Job` and `Fault` (_synthetic_job.py) give every rank a program. 2. `play` (_synthetic_run.py) finds how far each
comes. 3. Each rank's ring buffer is written as the recorder of its version would (_synthetic_pickle.py), one rank at a
time, so that a job of a thousand ranks needs the memory of one dump. The layout follows torch's FlightRecorder and real
dumps of NCCL (recorder 2.9) and gloo (2.10).
"""

from __future__ import annotations

import gzip
import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from rca.drills._synthetic_job import Fault, Group, Job, Op, Plan, Truth, plan
from rca.drills._synthetic_pickle import Pickler
from rca.drills._synthetic_run import START_NS, created_ns, enqueued, play

__all__ = ["Dump", "Fault", "Job", "Recorder", "Truth", "dump_of", "stored", "write"]

Dump = dict[str, Any]
Edit = Callable[[int, Dump], "Dump | bytes | None"]
SEEN_NS = 700_000  # the watchdog sees the start and the end of a call this much later
HIDDEN = 4096  # width of the simulated model
GLOO_NAMES = {"_reduce_scatter_base": "all_reduce", "_all_gather_base": "all_gather"}


@dataclass(frozen=True)
class Recorder:
    """How the job's flight recorder is set up, and how its files are named and stored."""

    name: str = "nccl_trace_rank_{rank}"  # also: {host}
    version: str = "2.10"
    format: Literal["pickle", "json"] = "pickle"
    compression: Literal["none", "gzip", "zstd"] = "none"
    buffer: int = 2000  # records kept (TORCH_FR_BUFFER_SIZE)
    frames: bool = True
    only_active: bool = False
    timing: bool = True  # start events (TORCH_NCCL_ENABLE_TIMING); without them a running call stays "scheduled"
    timed_out: bool = False  # the watchdog has given up the call that each rank waits in
    group_names: Literal["number", "axis"] = "number"  # "axis": groups of an axis share a name (split_group)
    gpus_per_host: int = 8
    began_ns: int = START_NS  # when the first call was made
    stretch: float = 1.0  # the played time passes so many times slower
    stacks: Sequence[list[dict[str, Any]]] = ()  # frames of each call site; none: made-up ones

    def instant(self, played_ns: int) -> int:
        """The instant on the clock of a moment of the play, ns since 1970."""
        return self.began_ns + round((played_ns - START_NS) * self.stretch)


def write(
    job: Job,
    fault: Fault | Sequence[Fault] | None,
    out: Path,
    *,
    recorder: Recorder | None = None,
    edit: Edit | None = None,
) -> Truth:
    """Write one dump per rank into `out`; `edit` may change a dump, replace its bytes or (None) leave it out."""
    recorder = recorder or Recorder()
    faults = [fault] if isinstance(fault, Fault) else list(fault or ())
    plans, truth, stuck = plan(job, faults)
    done = play(plans, stuck, blocking=job.backend == "gloo")
    if any(len(done[rank]) < plans[rank].limit for f in faults if f.kind in ("stop", "no_dump") for rank in f.ranks):
        raise ValueError("a rank that was to stop already waits for another one: choose its call or the other fault anew")
    out.mkdir(parents=True, exist_ok=True)
    for rank, mine in enumerate(plans):
        if rank in truth.without_dump:
            continue
        dump: Dump | bytes | None = dump_of(job, recorder, rank, mine, done[rank])
        if edit is not None:
            dump = edit(rank, dump)  # type: ignore[arg-type]
        if dump is not None:
            name = recorder.name.format(rank=rank, host=f"host-{rank // recorder.gpus_per_host}")
            (out / name).write_bytes(stored(dump, recorder))
    waiting = tuple(r for r, p in enumerate(plans) if len(done[r]) < p.limit)
    if recorder.group_names == "axis" and truth.axis:
        truth = replace(truth, group_name=truth.axis)
    return replace(truth, waiting=waiting)


def stored(dump: Dump | bytes, recorder: Recorder) -> bytes:
    if isinstance(dump, bytes):
        return dump
    raw = json.dumps(_as_json(dump)).encode() if recorder.format == "json" else Pickler().dump(dump)
    if recorder.compression == "gzip":
        return gzip.compress(raw, 1)
    if recorder.compression == "zstd":
        import zstandard

        return zstandard.compress(raw)
    return raw


def _as_json(dump: Dump) -> Dump:
    """The JSON form: no frames, absent times are 0, the numbers of pg_status are strings."""
    told = dict(dump)
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    entries = [{k: v or 0 if k in times else v for k, v in e.items() if k != "frames"} for e in dump.get("entries", ())]
    told.pop("entries", None)
    if entries:
        told["entries"] = entries
    if "pg_status" in dump:
        told["pg_status"] = {pg: {k: str(v) for k, v in numbers.items()} for pg, numbers in dump["pg_status"].items()}
    return told


def dump_of(job: Job, recorder: Recorder, rank: int, mine: Plan, done: array[int], *, late_ns: int = 0) -> Dump:
    """The dump of one rank, its clock `late_ns` ahead. Keys stand in the recorder's order; older versions lack some."""
    calls = enqueued(mine, len(done), blocking=job.backend == "gloo")
    version = tuple(int(part) for part in recorder.version.split("."))
    ids = _pg_ids(mine.groups, rank)
    names = {axis: axis if recorder.group_names == "axis" else str(group.number) for axis, group in mine.groups.items()}
    dump: Dump = {"version": recorder.version, "pg_config": _pg_config(job, mine.groups, names)}
    if version >= (2, 10):
        dump["comm_lib_version"] = "" if job.backend == "gloo" else "2.27.5"
    elif version >= (2, 6):
        dump["nccl_version"] = "2.27.3"
    if version >= (2, 3):
        dump["pg_status"] = _pg_status(job, recorder, mine, calls, len(done), ids)
    entries = list(_Ring(job, recorder, rank, mine, done, calls, late_ns).entries(ids, names))
    if entries or recorder.format == "pickle":
        dump["entries"] = entries
    return dump


def _pg_ids(groups: dict[str, Group], rank: int) -> dict[str, int]:
    """Process-local numbers of the groups: in order of creation, with gaps that differ from rank to rank."""
    gap = rank % 3
    order = sorted(groups, key=lambda axis: groups[axis].number)
    return {axis: place + gap if place else 0 for place, axis in enumerate(order)}


def _pg_config(job: Job, groups: dict[str, Group], names: dict[str, str]) -> Dump:
    if job.backend == "gloo":
        return {"": {"name": "", "desc": "", "ranks": "[]"}}
    told = {names[axis]: (group.desc, str(list(group.members))) for axis, group in groups.items()}
    return {name: {"name": name, "desc": told[name][0], "ranks": told[name][1]} for name in sorted(told)}


def _pg_status(job: Job, recorder: Recorder, mine: Plan, calls: int, finished: int, ids: dict[str, int]) -> Dump:
    """Per group the last number enqueued, started, completed: of a transfer the p2p sequence; with gloo the op_id."""
    last: dict[str, list[int]] = {}
    for place, (op, (collective, p2p, op_id)) in enumerate(zip(mine.program.ops[:calls], mine.program.seq, strict=False)):
        number = op_id if job.backend == "gloo" else p2p if op.transfers else collective
        numbers = last.setdefault(op.axis, [-1, -1, -1])
        numbers[0] = number
        if place <= finished and place != mine.reach and recorder.timing and job.backend != "gloo":
            numbers[1] = number
        if place < finished:
            numbers[2] = number
    if job.backend == "gloo":  # groups with nothing but unlogged calls have no status
        last = {axis: numbers for axis, numbers in last.items() if axis != "pp"}
    words = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {str(ids[axis]): dict(zip(words, last[axis], strict=True)) for axis in sorted(last, key=lambda a: ids[a])}


class _Ring:
    """The entries of one rank: those of its last calls that still fit the ring buffer."""

    def __init__(self, job: Job, recorder: Recorder, rank: int, mine: Plan, done: array[int], calls: int, late_ns: int) -> None:
        self.job, self.recorder, self.rank = job, recorder, rank
        self.mine, self.calls = mine, calls
        self.done = [recorder.instant(moment) + late_ns for moment in done]
        self.version = tuple(int(part) for part in recorder.version.split("."))
        created = created_ns(mine, done, calls=calls, blocking=job.backend == "gloo")
        self.at = [recorder.instant(moment) + late_ns for moment in created]
        before = mine.program.times * sum(map(self.num_records, mine.program.before))
        self.first = list(accumulate((self.num_records(op) for op in mine.program.ops[:calls]), initial=before))

    def num_records(self, op: Op) -> int:
        """A batch leaves one record per transfer and one for the whole; gloo does not record transfers at all."""
        if not op.transfers:
            return 1
        if self.job.backend == "gloo":
            return 0
        return len(op.transfers) + 1 if op.name == "coalesced" else 1

    def entries(self, ids: dict[str, int], names: dict[str, str]) -> Iterator[Dump]:
        """Entries in order of recording."""
        oldest = max(0, self.first[-1] - self.recorder.buffer)
        start = max(0, bisect_right(self.first, oldest) - 1)
        for place in range(start, self.calls):
            op = self.mine.program.ops[place]
            for part in range(self.num_records(op)):
                record_id = self.first[place] + part
                is_part = op.name == "coalesced" and part < len(op.transfers)
                is_over = place < len(self.done) and not is_part and self.job.backend != "gloo"
                if record_id >= oldest and not (self.recorder.only_active and is_over):
                    yield self.entry(place, part if is_part else None, record_id, ids[op.axis], names[op.axis])

    def entry(self, place: int, part: int | None, record_id: int, pg_id: int, pg_name: str) -> Dump:
        """One entry; `part` = number of a transfer inside a batch, whose own entry never leaves "scheduled"."""
        op, group = self.mine.program.ops[place], self.mine.groups[self.mine.program.ops[place].axis]
        collective, p2p, op_id = self.mine.program.seq[place]
        me = group.members.index(self.rank)
        ended = place < len(self.done) and part is None
        times = self.times(place, is_part=part is not None)
        size_in, size_out = _sizes(op, len(group.members), me)
        entry: Dump = {"frames": list((self.recorder.stacks or STACKS)[op.stack])} if self.recorder.frames else {}
        entry["record_id"], entry["pg_id"], entry["process_group"] = record_id, pg_id, (pg_name, group.desc)
        if self.version >= (2, 5):
            entry |= {
                "thread_name": "pt_autograd_0" if 12 <= op.stack < 20 else "python3",
                "thread_id": str(23_437_663_053_504 + op.stack // 12),
            }
        entry["collective_seq_id"] = collective
        entry["p2p_seq_id"] = 0 if self.job.backend == "gloo" else p2p
        entry["op_id"] = op_id - (len(op.transfers) - 1 - part if part is not None else 0)
        entry["profiling_name"] = f"{self.job.backend}:{self.name(op, part, me)}"
        entry["time_created_ns"] = self.at[place]
        entry |= {
            "input_sizes": size_in,
            "input_dtypes": [op.dtype] * len(size_in),
            "output_sizes": size_out,
            "output_dtypes": [op.dtype] * len(size_out),
        }
        entry["state"] = "completed" if times[1] else "started" if times[0] else "scheduled"
        entry["time_discovered_started_ns"], entry["time_discovered_completed_ns"] = times
        entry["retired"] = ended or (self.recorder.timed_out and place == len(self.done) and part is None)
        if self.version >= (2, 0):
            entry |= {"timeout_ms": 600_000, "is_p2p": bool(op.transfers)}
        return entry

    def name(self, op: Op, part: int | None, me: int) -> str:
        """The operation as recorded; some bear another name with gloo."""
        if part is not None:
            src, dst = op.transfers[part]
            return f"send {src}->{dst}" if src == me else f"recv {dst}<-{src}"
        return GLOO_NAMES.get(op.name, op.name) if self.job.backend == "gloo" else op.name

    def times(self, place: int, *, is_part: bool) -> tuple[int | None, int | None]:
        """(start, end) as the watchdog saw them, ns. Without start events no start is seen, and gloo sees neither."""
        if is_part or self.job.backend == "gloo" or place > len(self.done) or place == self.mine.reach:
            return None, None
        before = self.done[place - 1] if place else self.at[0]
        start = max(before, self.at[place]) + SEEN_NS if self.recorder.timing else None
        return start, self.done[place] + SEEN_NS if place < len(self.done) else None


def _sizes(op: Op, members: int, me: int) -> tuple[list[list[int]], list[list[int]]]:
    """Shapes of input and output, as the operation has them."""
    rows = HIDDEN + op.grown
    if op.name == "coalesced" and len(op.transfers) > 1:
        return [], []
    if "barrier" in op.name:
        return [[1]], [[1]]
    if op.name == "_all_gather_base":
        return [[rows, 8192]], [[rows * members, 8192]]
    if op.name == "_reduce_scatter_base":
        return [[rows * members, 8192]], [[rows, 8192]]
    if op.name.startswith("all_to_all"):  # tokens per expert differ from rank to rank; what is sent is received
        return [[rows + 3 * me, 5120]], [[rows + 3 * ((me + 1) % members), 5120]]
    return [[rows, 1, 8192]], [[rows, 1, 8192]]


def _stacks() -> list[list[dict[str, Any]]]:
    """Eighteen frames per call site, the lower ten shared, as in a training loop."""
    where = "/opt/train/lib/python3.11/site-packages/megatron/core"

    def frame(site: int, depth: int) -> dict[str, Any]:
        return {
            "name": f"fn_{site}_{depth}",
            "filename": f"{where}/mod_{(site + depth) % 40}.py",
            "line": 100 + 7 * site + depth,
        }

    lower = [frame(99, depth) for depth in range(8, 18)]
    return [[*(frame(site, depth) for depth in range(8)), *lower] for site in range(34)]


STACKS = _stacks()
