"""A simulated tp x pp x dp job: its groups, the program of every rank, the faults that change one, and the truth.

A program is the list of calls a rank makes, in order. Ranks of one pipeline stage share one program, so a job of a
thousand ranks holds a handful; a fault gives its rank a changed copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from rca.drills._synthetic_world import World

__all__ = ["Fault", "Group", "Job", "Kind", "Op", "Plan", "Program", "Truth", "groups_of", "plan", "program_of"]

Axis = Literal["tp", "cp", "dp", "pp", "ep", "emb", "world"]
Kind = Literal["stop", "no_dump", "kernel", "skip", "p2p_skip", "extra", "size", "dtype", "op", "stuck", "cut", "swap"]
COLLECTIVE = (-1, -1)  # stands for (src, dst) where every member of the group takes part
DESCRIPTIONS = {
    "world": "default_pg",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "emb": "EMBEDDING_GROUP",
}
UNSIZED = ("all_to_all", "all_to_all_single", "barrier", "all_reduce_barrier")  # members may differ in size by right


@dataclass(frozen=True)
class Job(World):
    """Layout and work of one training job."""

    order: str = "tp-dp-pp"
    steps: int = 3
    microbatches: int = 2
    tp_ops: int = 6  # per micro-batch, half of them before and half after the turn from forward to backward
    dp_ops: int = 4  # per step
    world_ops: int = 1  # per step; the CPU waits for the last one
    extra: int = 0  # further tensor-parallel calls per micro-batch on the last stage
    tp_names: tuple[str, ...] = ("all_reduce", "_all_gather_base", "_reduce_scatter_base")
    world_name: str = "all_reduce"
    p2p: Literal["plain", "coalesced"] = "plain"
    p2p_sync: bool = False  # the CPU waits for every transfer
    embedding: bool = False  # first and last stage share a group, with one call per step
    backend: str = "nccl"  # "gloo": every call blocks the CPU, point-to-point calls leave no entries
    earlier_steps: int = 0  # done before those that are played: calls are numbered on from there


@dataclass(frozen=True)
class Fault:
    """What goes wrong at `ranks`, at (or before) their `nth` call on `axis`; a negative `nth` counts from the end.

    stop, no_dump     the rank makes no further call; with no_dump it leaves no file either
    kernel            its CPU goes on, its GPU reaches neither this call nor any later one
    skip, p2p_skip    it leaves this one call out and runs on
    extra             it makes this call twice
    swap              it makes this call and the next in opposite order
    size, dtype, op   its call differs from that of the others
    stuck             all members arrive, the call never ends; nobody is to blame
    cut               from this call on, none ends that has members among `ranks` and others: the network between them is gone
    """

    kind: Kind
    ranks: tuple[int, ...]
    axis: Axis = "tp"
    nth: int = -8


@dataclass(frozen=True)
class Truth:
    """What happened: who failed first (`ranks`, empty when nobody is to blame) and at which call of which group."""

    kind: str
    ranks: tuple[int, ...] = ()
    axis: str = ""
    group_name: str = ""
    group_desc: str = ""
    members: tuple[int, ...] = ()
    op: str = ""
    seq: int = 0  # collective_seq_id of the call, p2p_seq_id for a point-to-point call
    waiting: tuple[int, ...] = field(default=(), repr=False)  # ranks that had arrived at a call that never ended
    without_dump: tuple[int, ...] = ()


class Op(NamedTuple):
    """One call of a program. `transfers`: (source, destination) of a point-to-point call, as ranks of the group."""

    axis: Axis
    name: str
    transfers: tuple[tuple[int, int], ...] = ()
    sync: bool = False  # the CPU waits here until the call has ended
    stack: int = 0
    dtype: str = "BFloat16"
    grown: int = 0  # added to the first dimension of the tensor

    @property
    def signature(self) -> tuple[object, ...]:
        """What all members have to agree on for the call to end."""
        return (self.name, self.dtype, 0 if self.name in UNSIZED else self.grown)


class Group(NamedTuple):
    """A process group. `number` counts the groups of the whole job in order of creation."""

    number: int
    axis: Axis
    members: tuple[int, ...]

    @property
    def desc(self) -> str:
        return DESCRIPTIONS[self.axis]


class Program:
    """The calls of a rank with the numbers that a recorder gives them."""

    def __init__(self, ops: Sequence[Op], before: Sequence[Op] = (), times: int = 0) -> None:
        """`before`: calls made `times` over before these; they are only counted."""
        self.ops = tuple(ops)
        self.before, self.times = tuple(before), times
        self.seq: list[tuple[int, int, int]] = []  # per call: collective_seq_id, p2p_seq_id, op_id (of its last transfer)
        self.meets: list[tuple[tuple[Axis, int, int, int], ...]] = []  # per call: (axis, src, dst, number) of each meeting
        last: dict[str, tuple[int, int, int]] = {}
        for op in self.before:
            collective, p2p, op_id = last.get(op.axis, (0, 0, 0))
            more = (0, times, times * len(op.transfers)) if op.transfers else (times, 0, times)
            last[op.axis] = (collective + more[0], p2p + more[1], op_id + more[2])
        pairs: dict[tuple[str, int, int], int] = {}
        for op in self.ops:
            collective, p2p, op_id = last.get(op.axis, (0, 0, 0))
            numbers = (collective, p2p + 1, op_id + len(op.transfers)) if op.transfers else (collective + 1, p2p, op_id + 1)
            last[op.axis] = numbers
            self.seq.append(numbers)
            self.meets.append(tuple(_meetings(op, numbers[0], pairs)))

    def nth(self, axis: str, nth: int) -> int:
        """Place in the program of the nth call on an axis."""
        return [place for place, op in enumerate(self.ops) if op.axis == axis][nth]


class Plan(NamedTuple):
    """What one rank does: its program, how many calls of it, in which groups."""

    program: Program
    limit: int  # calls it makes; fewer than the program has when it stops
    groups: dict[str, Group]
    reach: int | None = None  # calls that its GPU reaches, where fewer than its CPU makes
    cut: int | None = None  # from this call on it is cut off from ranks that are not


def plan(job: Job, faults: Sequence[Fault]) -> tuple[list[Plan], Truth, tuple[int, int, int, int] | None]:
    """The plan of every rank, the truth (of the first fault, ranks of all), and the meeting that never ends, if any."""
    stages = [program_of(job, stage) for stage in range(job.pp)]
    plans = []
    groups = groups_of(job)
    for rank in range(job.world_size):
        program = stages[job.coordinates(rank).p]
        plans.append(Plan(program, len(program.ops), groups[rank]))
    truth = Truth("healthy")
    stuck = None
    for number, fault in enumerate(faults):
        told = _truth(plans, fault)
        truth = told if number == 0 else replace(truth, ranks=tuple(sorted({*truth.ranks, *told.ranks})))
        if fault.kind == "no_dump":
            truth = replace(truth, without_dump=tuple(sorted({*truth.without_dump, *fault.ranks})))
        if fault.kind == "stuck":
            first = plans[fault.ranks[0]]
            place = first.program.nth(fault.axis, fault.nth)
            _, src, dst, seq = first.program.meets[place][0]
            stuck = (first.groups[fault.axis].number, src, dst, seq)
            continue
        for rank in fault.ranks:
            plans[rank] = _changed(plans[rank], fault)
    return plans, truth, stuck


def _truth(plans: Sequence[Plan], fault: Fault) -> Truth:
    rank = fault.ranks[0]
    program, groups = plans[rank].program, plans[rank].groups
    place = program.nth(fault.axis, fault.nth)
    op, (collective, p2p, _), group = program.ops[place], program.seq[place], groups[fault.axis]
    blamed = () if fault.kind == "stuck" else tuple(sorted(fault.ranks))
    seq = p2p if op.transfers else collective
    return Truth(fault.kind, blamed, fault.axis, str(group.number), group.desc, group.members, op.name, seq)


def _changed(old: Plan, fault: Fault) -> Plan:
    ops = list(old.program.ops)
    at = old.program.nth(fault.axis, fault.nth)
    if fault.kind in ("stop", "no_dump"):
        return old._replace(limit=min(old.limit, at))
    if fault.kind == "kernel":
        return old._replace(reach=at)
    if fault.kind == "cut":
        return old._replace(cut=at)
    if fault.kind in ("skip", "p2p_skip"):
        del ops[at]
    elif fault.kind == "extra":
        ops.insert(at, ops[at])
    elif fault.kind == "swap":
        ops[at], ops[at + 1] = ops[at + 1], ops[at]
    elif fault.kind == "size":
        ops[at] = ops[at]._replace(grown=2)
    elif fault.kind == "dtype":
        ops[at] = ops[at]._replace(dtype="Float")
    elif fault.kind == "op":
        ops[at] = ops[at]._replace(name="broadcast")
    program = Program(ops, old.program.before, old.program.times)
    return old._replace(program=program, limit=len(ops))


def _meetings(op: Op, seq: int, pairs: dict[tuple[str, int, int], int]) -> Iterator[tuple[Axis, int, int, int]]:
    if not op.transfers:
        yield op.axis, *COLLECTIVE, seq
    for src, dst in op.transfers:
        pairs[op.axis, src, dst] = pairs.get((op.axis, src, dst), 0) + 1
        yield op.axis, src, dst, pairs[op.axis, src, dst]


def groups_of(job: Job) -> list[dict[str, Group]]:
    """Per rank the group of each axis, numbered as a job creates them: world, tp, cp, dp, pp, ep, embedding."""
    made = job.groups()
    found: list[tuple[Axis, tuple[int, ...]]] = [
        (axis, members) for axis in ("world", "tp", "cp", "dp", "pp", "ep") for members in made.get(axis, ())
    ]
    if job.embedding:
        found += [("emb", (members[0], members[-1])) for members in made.get("pp", ((r, r) for r in range(job.world_size)))]
    groups: list[dict[str, Group]] = [{} for _ in range(job.world_size)]
    for number, (axis, members) in enumerate(found):
        for rank in members:
            groups[rank][axis] = Group(number, axis, members)
    return groups


def program_of(job: Job, stage: int) -> Program:
    """The program of a pipeline stage; what was done before it, step by step, only moves its numbers on."""
    return Program(_stage(job, stage, job.steps), _stage(job, stage, 1) if job.earlier_steps else (), job.earlier_steps)


def _stage(job: Job, stage: int, steps: int) -> list[Op]:
    """The calls of a pipeline stage: micro-batches (1F1B with several stages), gradients, then the world."""
    ops: list[Op] = []
    for _ in range(steps):
        if job.pp > 1:
            ops += _one_forward_one_backward(job, stage)
        else:
            for _ in range(job.microbatches):
                ops += _forward(job) + _backward(job, stage)
        names = ("_reduce_scatter_base", "_all_gather_base")
        ops += [Op("dp", names[k % 2], stack=20 + k % 8) for k in range(job.dp_ops)]
        if job.embedding and stage in (0, job.pp - 1):
            ops.append(Op("emb", "all_reduce", stack=30))
        ops += [Op("world", job.world_name, sync=k == job.world_ops - 1, stack=31) for k in range(job.world_ops)]
    return ops


def _forward(job: Job) -> list[Op]:
    ops = [Op("tp", job.tp_names[k % len(job.tp_names)], stack=k % 12) for k in range((job.tp_ops + 1) // 2)]
    return ops + _attention_and_experts(job, 10)


def _backward(job: Job, stage: int) -> list[Op]:
    calls = job.tp_ops // 2 + (job.extra if stage == job.pp - 1 else 0)
    ops = [Op("tp", job.tp_names[-1 - k % len(job.tp_names)], stack=12 + k % 8) for k in range(calls)]
    return _attention_and_experts(job, 18) + ops


def _attention_and_experts(job: Job, stack: int) -> list[Op]:
    """Keys and values gathered over context parallelism; tokens to their experts and back."""
    ops = [Op("cp", "_all_gather_base", stack=stack)] if job.cp > 1 else []
    return ops + [Op("ep", "all_to_all", stack=stack + 1) for _ in range(2 if job.ep > 1 else 0)]


def _one_forward_one_backward(job: Job, stage: int) -> Iterator[Op]:
    """Megatron's 1F1B schedule: warm up, one forward and one backward in turn, cool down."""
    before, after = (stage - 1, stage), (stage, stage + 1)
    warm = min(job.pp - 1 - stage, job.microbatches)
    steady = job.microbatches - warm
    for _ in range(warm):
        yield from _p2p(job, stage, before)
        yield from _forward(job)
        yield from _p2p(job, stage, after)
    if steady:
        yield from _p2p(job, stage, before)
    for turn in range(steady):
        yield from _forward(job)
        yield from _p2p(job, stage, after, after[::-1])
        yield from _backward(job, stage)
        yield from _p2p(job, stage, before[::-1], *([before] if turn < steady - 1 else []))
    for _ in range(warm):
        yield from _p2p(job, stage, after[::-1])
        yield from _backward(job, stage)
        yield from _p2p(job, stage, before[::-1])


def _p2p(job: Job, stage: int, *transfers: tuple[int, int]) -> Iterator[Op]:
    """The calls for these transfers, those beyond the first and last stage left out."""
    real = [pair for pair in transfers if min(pair) >= 0 and max(pair) < job.pp]
    if not real:
        return
    if job.p2p == "coalesced":
        sends_first = sorted(real, key=lambda pair: pair[0] != stage)
        yield Op("pp", "coalesced", tuple(sends_first), sync=job.p2p_sync, stack=32)
        return
    # As in Megatron without batching, even stages send first and odd ones receive first: else both ends would wait.
    for src, dst in sorted(real, key=lambda pair: (pair[0] == stage) == bool(stage % 2)):
        name = f"send {src}->{dst}" if src == stage else f"recv {dst}<-{src}"
        yield Op("pp", name, ((src, dst),), sync=job.p2p_sync, stack=33)
