"""Which parallel group stands apart: ByteRobust's figure 7, a counter-example, BLOOM's hang, two faults, moments, and simulated hangs."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from _group_jobs import ORDERS, PLACES, Job, hung, lost, tables
from _house import ROOT, read_folder

from rca.case import MemoryCase
from rca.eviction import eviction_plan
from rca.group_ids import group_id
from rca.judge import judge
from rca.questions import ask
from rca.roster import roster
from rca.types import Finding

FIGURE_7 = Job(
    {"tp": 2, "pp": 4, "dp": 4}, ORDERS["tp-pp-dp"], per_host=2
)  # ByteRobust: machine m = data-parallel copy m // 4, stage m % 4
AT_MACHINE = {15: "all_gather", 14: "isend", 13: "irecv", 12: "irecv"}  # the others are in the gradient sync
BLOOM = ROOT.parent / "shared" / "figures" / "bloom_eval_hang_2node_stacks.json"


def found(case: MemoryCase) -> Finding:
    outcome = ask(case, "outlier_group")
    assert len(outcome.findings) == 1, (outcome.status, outcome.why)
    return outcome.findings[0]


def figure_7() -> dict[int, str]:
    return {rank: AT_MACHINE.get(rank // 2, "grad_sync") for rank in range(32)}


@pytest.mark.parametrize("told", ["coordinates", "groups"])
def test_figure_7_of_byterobust_evicts_machines_12_to_15_and_suspects_15(told: str) -> None:
    case = tables(FIGURE_7, [figure_7()] * 2, told=told)
    finding = found(case)
    assert (finding.sign, finding.ranks, finding.numbers["kind"]) == ("group_apart", (), "mp")
    assert "they fit into one mp group of 8 ranks (" in finding.says, "a pipeline group has four, one of each tensor pair"
    assert finding.hosts == ("m12", "m13", "m14", "m15")
    assert finding.numbers["dominance_share"] == 0.75
    plan = eviction_plan([finding], roster(case))
    assert plan is not None
    assert (plan.hosts, plan.machine_precision, plan.num_innocent) == (("m12", "m13", "m14", "m15"), 0.25, 3)
    assert plan.innocent_hosts == ("m12", "m13", "m14")
    assert plan.alternative is not None
    assert plan.alternative["hosts"] == ["m15"]


def test_stages_without_a_rule_add_the_rest_of_the_copy_that_stands_apart() -> None:
    """Half of the copies hang in the first stages, joined by their experts, and only in the last stage the one that is at fault is the exception."""
    at = {rank: FIGURE_7.at[rank] for rank in range(32)}
    places = {rank: "device" if a["dp"] == 3 or (a["dp"] == 2 and a["pp"] < 3) else "grad_sync" for rank, a in at.items()}
    case = tables(FIGURE_7, [places] * 2)
    finding = found(case)
    assert finding.numbers["outliers"] == [30, 31]
    assert finding.hosts == ("m12", "m13", "m14", "m15")
    plan = eviction_plan([finding], roster(case))
    assert plan is not None
    assert (plan.hosts, plan.machine_precision) == (("m12", "m13", "m14", "m15"), 0.25)


INSIDE = {0: "irecv", 1: "irecv", 2: "isend", 3: "all_gather"}  # stage -> where its ranks stand while the pipeline works


@pytest.mark.parametrize(
    ("of_few", "of_most", "names", "is_behind"),
    [
        ("pipeline", "grad_sync", (), True),  # the figure
        ("grad_sync", "pipeline", (), False),  # the figure turned over: one copy is through and waits
        ("grad_sync", "pipeline", ("grad_sync", "finish_grad_sync"), False),
        ("all_gather", "broadcast", (), True),  # nothing tells which of the two comes first
        ("all_gather", "broadcast", ("all_gather", "_exec_reduce_grads"), False),
        ("all_gather", "broadcast", ("broadcast", "finish_param_sync"), True),  # the others have got theirs
        ("all_gather", "broadcast", ("all_gather", "finish_param_sync"), True),  # still before its first stage
    ],
)
@pytest.mark.parametrize("told", ["coordinates", "groups"])
def test_a_copy_that_is_ahead_of_all_others_is_never_evicted(
    of_few: str, of_most: str, names: tuple[str, ...], told: str, *, is_behind: bool
) -> None:
    places = {rank: of_few if at["dp"] == 3 else of_most for rank, at in enumerate(FIGURE_7.at)}
    places = {rank: INSIDE[FIGURE_7.at[rank]["pp"]] if place == "pipeline" else place for rank, place in places.items()}
    case = tables(FIGURE_7, [places] * 2, told=told)
    if names:
        own = pl.when(pl.col("stack_id") == names[0]).then(pl.concat_list(pl.col("frames").list.head(1), pl.lit(f"engine:{names[1]}")))
        case = MemoryCase({**case.frames, "stack_frames": case.frames["stack_frames"].with_columns(frames=own.otherwise(pl.col("frames")))})
    outcome = ask(case, "outlier_group")
    (finding,) = outcome.findings
    assert (finding.sign, finding.ranks) == ("group_apart" if is_behind else "group_apart_unsure", ())
    plan = eviction_plan([finding], roster(case))
    assert (plan is not None, finding.hosts) == (is_behind, ("m12", "m13", "m14", "m15") if is_behind else ())
    assert (set(finding.numbers["candidates"]) <= set(range(24))) is not is_behind


def test_figure_7_from_stacks_to_advice() -> None:
    judgement = judge(tables(FIGURE_7, [figure_7()] * 2, told="groups"))
    assert (judgement.verdict.cause, judgement.verdict.ranks) == ("unknown", ())
    advice = judgement.advice
    assert (advice.evict_hosts, advice.innocent_hosts) == (("m12", "m13", "m14", "m15"), ("m12", "m13", "m14"))
    assert (advice.evict_ranks, advice.evict_group) == (tuple(range(24, 32)), group_id("mp", tuple(range(24, 32))))


def test_the_same_figure_in_megatrons_order_is_found_by_the_map_alone() -> None:
    """Tensor fastest, then data: the pipeline's machines are 3, 7, 11 and 15."""
    job = Job(FIGURE_7.sizes, ORDERS["tp-dp-pp"], per_host=2)
    stage = {3: "all_gather", 2: "isend", 1: "irecv", 0: "irecv"}
    places = {rank: stage[at["pp"]] if at["dp"] == 3 else "grad_sync" for rank, at in enumerate(job.at)}
    assert found(tables(job, [places] * 2)).hosts == ("m11", "m15", "m3", "m7")


def test_stages_that_differ_legitimately_are_not_compared() -> None:
    """The last stage is in its gradient sync, the others wait for it; machine 7 alone is in its loader."""
    places = {rank: "grad_sync" if rank // 2 % 4 == 3 else "irecv" for rank in range(32)} | {14: "loader", 15: "broadcast"}
    finding = found(tables(FIGURE_7, [places] * 2))
    assert (finding.sign, finding.ranks, finding.hosts) == ("lone_loader", (14,), ("m7",))
    assert eviction_plan([finding], roster(tables(FIGURE_7, [places])), named=finding.ranks) is None


# BLOOM-176B, 30 April 2022: two nodes of the hang in evaluation. Leaf of each of the 16 ranks, and who called it.
LOADER = (
    "wait (threading.py)",
    "get (queue.py)",
    "_try_get_data (torch/utils/data/dataloader.py)",
    "_next_batch (deepspeed/runtime/pipe/engine.py)",
)
EVALUATION = (
    "eval_batch (deepspeed/runtime/pipe/engine.py)",
    "evaluate (megatron/training.py)",
    "main (pretrain_gpt.py)",
    "<module> (pretrain_gpt.py)",
)
C10D = "(torch/distributed/distributed_c10d.py)"
BLOOM_STACKS = {
    (f"broadcast {C10D}", "_bcast_pipe_scalar (deepspeed/runtime/pipe/engine.py)"): (0, 1, 2, 3),
    LOADER: (4,),
    (f"broadcast {C10D}", "broadcast_data (megatron/mpu/data.py)", "_next_batch (deepspeed/runtime/pipe/engine.py)"): (5, 6, 7),
    (f"all_reduce {C10D}", "_reduce_outputs (deepspeed/runtime/pipe/engine.py)"): (8, 9, 10, 11),
    (f"recv {C10D}", "recv (deepspeed/runtime/pipe/p2p.py)", "_exec_recv_activations (deepspeed/runtime/pipe/engine.py)"): (12, 13, 14, 15),
}


def _bloom(folder: Path) -> None:
    for stack, ranks in BLOOM_STACKS.items():
        for rank in ranks:
            frames = "".join(f"    {frame.rstrip(')')}:{10 + depth})\n" for depth, frame in enumerate((*stack, *EVALUATION)))
            (folder / f"rank_{rank}.txt").write_text(
                f'Process {900 + rank}: python pretrain_gpt.py\nPython v3.8.12 (/opt/python3.8)\n\nThread {900 + rank} (idle): "MainThread"\n{frames}'
            )


def test_blooms_hang_has_no_dominant_group_and_names_the_rank_in_its_loader(tmp_path: Path) -> None:
    _bloom(tmp_path)
    with read_folder(tmp_path) as read:
        case = MemoryCase(read)
        finding = found(case)
        assert (finding.sign, finding.ranks, finding.numbers["sizes"]) == ("lone_loader_thread", (4,), [4, 4, 4, 3, 1])
        assert finding.numbers["num_stages"] == 0, "no stage has a rule"
        assert finding.numbers["is_code"]
        assert "no host is evicted for what code does" in finding.says
        assert eviction_plan([finding], roster(case)) is None
        judgement = judge(case)
        assert (judgement.verdict.ranks, judgement.verdict.layer) == ((4,), "software")
        assert (judgement.advice.evict_hosts, judgement.advice.action) == ((), "fix_code")


@pytest.mark.skipif(not BLOOM.is_file(), reason="../shared/figures is not there: the published stacks are no part of this tree")
def test_the_stacks_above_are_those_published() -> None:
    groups = json.loads(BLOOM.read_text())["groups"]
    ours = Counter({(len(ranks), stack[0].split()[0]): 1 for stack, ranks in BLOOM_STACKS.items()})
    assert ours == Counter({(group["count"], group["leaf"]): 1 for group in groups})


def test_two_hung_copies_are_two_groups_and_a_plan_counts_two_faults() -> None:
    job = Job({"tp": 2, "pp": 2, "dp": 8}, per_host=2)
    places = hung(job, 0, shows=False) | {r: p for r, p in hung(job, 12, shows=False).items() if p != "grad_sync"}
    places |= {r: p for r, p in hung(job, 0, shows=False).items() if job.at[r]["dp"] == 0}
    case = tables(job, [places] * 2)
    finding = found(case)
    assert finding.hosts == ("m0", "m1", "m6", "m7")
    plan = eviction_plan([finding], roster(case))
    assert plan is not None
    assert (plan.kind, plan.group, plan.machine_precision) == ("mp", None, 0.5)


def test_one_host_goes_before_any_group() -> None:
    job = Job({"tp": 4, "dp": 8}, per_host=8)
    places = dict.fromkeys(range(32), "grad_sync") | dict.fromkeys(range(8, 12), "all_gather")
    finding = found(tables(job, [places] * 2))
    assert (finding.hosts, finding.numbers["kind"]) == (("m1",), "host")


@pytest.mark.parametrize("told", ["coordinates", "groups", "nothing"])
@pytest.mark.parametrize("place", ["grad_sync", "irecv", "device"])
def test_all_alike_is_nobody_apart(place: str, told: str) -> None:
    outcome = ask(tables(FIGURE_7, [dict.fromkeys(range(32), place)] * 2, told=told), "outlier_group")
    assert outcome.findings == ()


def test_a_job_that_moves_has_no_outliers() -> None:
    later = dict.fromkeys(range(32), "compute")
    assert ask(tables(FIGURE_7, [figure_7(), later]), "outlier_group").findings == ()


def test_one_sample_is_a_note_and_evicts_nobody() -> None:
    case = tables(FIGURE_7, [figure_7()])
    outcome = ask(case, "outlier_group")
    assert (outcome.status, outcome.findings[0].sign) == ("clear", "group_apart_unsure")
    assert eviction_plan(outcome.findings, roster(case)) is None


def test_two_copies_are_no_majority() -> None:
    """With two copies of the model nothing tells which one is the odd one, unless one rank alone does not wait."""
    job = Job({"tp": 2, "pp": 2, "dp": 2}, per_host=2)
    outcome = ask(tables(job, [hung(job, 0, shows=False)] * 2), "outlier_group")
    assert (outcome.status, outcome.findings) == ("blind", ())
    assert found(tables(job, [hung(job, 0, place="code")] * 2)).ranks == (0,)


def test_several_ranks_in_code_of_their_own_are_no_reason_to_evict() -> None:
    places = figure_7() | {30: "code", 31: "code"}
    case = tables(FIGURE_7, [places] * 2)
    finding = found(case)
    assert finding.numbers["candidates"] == [30, 31]
    assert eviction_plan([finding], roster(case)) is None


def test_a_rank_of_the_group_without_a_stack_is_looked_at_before_any_host_goes() -> None:
    places = {rank: place for rank, place in figure_7().items() if rank != 30}
    case = tables(FIGURE_7, [places] * 2)
    finding = found(case)
    assert finding.numbers["candidates"] == [30, 31]
    assert "rank 30 there left no stack inside the loop" in finding.says
    assert eviction_plan([finding], roster(case)) is None


def test_a_rank_beside_the_schedule_that_all_others_share_is_inside_of_the_step() -> None:
    """It logs in its step, while all others are in one function below it: what they share is not the loop."""
    places = {**dict.fromkeys(range(3), "irecv"), 3: "code", **dict.fromkeys(range(4, 8), "grad_sync")}
    case = tables(Job({"tp": 1, "pp": 2, "dp": 4}), [places] * 3, told="nothing")
    frames = case.frames["stack_frames"]
    rows = [
        row if row["stack_id"] == "code" else {**row, "frames": [*row["frames"][:-3], "pipe:schedule", *row["frames"][-3:]]}
        for row in frames.to_dicts()
    ]
    finding = found(MemoryCase({**case.frames, "stack_frames": pl.DataFrame(rows, schema=frames.schema)}))
    assert (finding.sign, finding.ranks) == ("lone_place", (3,))


def _spinning(samples: list[dict[int, str]]) -> MemoryCase:
    """Main threads on the processor: a device that is waited for, or a step in progress."""
    case = tables(FIGURE_7, samples)
    return MemoryCase({**case.frames, "stacks": case.frames["stacks"].with_columns(is_active=pl.lit(value=True))})


def test_where_devices_are_waited_for_a_group_is_told_after_three_samples_in_one_place_and_nobody_is_named() -> None:
    places = {rank: "device" if rank // 2 < 12 else "irecv" for rank in range(32)}
    case = _spinning([places] * 3)
    finding = found(case)
    assert (finding.sign, finding.hosts) == ("group_apart", ("m12", "m13", "m14", "m15"))
    assert eviction_plan([finding], roster(case)) is not None
    twice = found(few := _spinning([places] * 2))
    assert (twice.sign, twice.ranks, twice.hosts, twice.numbers["samples_wanted"]) == ("sample_wanted", (), (), 3)
    assert twice.numbers["candidates"] == list(range(24, 32))
    assert "3 samples over 10 s decide" in twice.says
    assert eviction_plan([twice], roster(few)) is None
    advice = judge(few).advice
    assert (advice.action, advice.evict_hosts) == ("human", ())
    assert "ranks 24-31 stand apart" in advice.because
    assert "rca capture --out DIR" in advice.because
    alone = found(_spinning([dict.fromkeys(range(32), "device") | {9: "code"}] * 3))
    assert (alone.sign, alone.ranks) == ("group_apart_unsure", ())


def test_victims_are_never_evicted_by_themselves() -> None:
    """One rank that waits, and ranks at transfers while the rest of their pipeline looks like everybody else."""
    usual = dict.fromkeys(range(32), "grad_sync")
    for places in ({9: "irecv"}, {9: "all_gather"}, {24: "irecv", 26: "irecv"}):
        case = tables(FIGURE_7, [usual | places] * 2)
        assert found(case).ranks == ()
        assert eviction_plan([found(case)], roster(case)) is None


def test_several_patterns_may_be_the_rule_of_one_stage() -> None:
    """In every copy tensor rank 0 is elsewhere than its peer."""
    job = Job({"tp": 2, "pp": 1, "dp": 6}, per_host=2)
    places = {rank: "broadcast" if at["tp"] else "device" for rank, at in enumerate(job.at)}
    assert ask(tables(job, [places] * 2), "outlier_group").findings == ()


LAYOUTS = (
    ({"tp": 2, "pp": 2, "dp": 4}, 2),
    ({"tp": 4, "pp": 4, "dp": 4}, 4),
    ({"tp": 8, "pp": 4, "dp": 8}, 8),
    ({"tp": 2, "cp": 2, "pp": 2, "dp": 6}, 8),
)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize(("sizes", "per_host"), LAYOUTS)
def test_simulated_hangs_evict_the_culprits_group_also_with_dumps_missing(sizes: dict[str, int], per_host: int, order: str) -> None:
    """A GPU that hangs inside its tensor group's call shows nothing of its own."""
    job = Job(sizes, ORDERS[order], per_host)
    rng = random.Random(order)
    for culprit in rng.sample(range(job.size), 3):
        own = {rank for rank, at in enumerate(job.at) if at["dp"] == job.at[culprit]["dp"]}
        left = lost(hung(job, culprit, shows=False), 0.1, rng, keeping=own)
        case = tables(job, [left] * 2, told=rng.choice(["coordinates", "groups"]))
        finding = found(case)
        assert finding.ranks == ()
        plan = eviction_plan([finding], roster(case))
        assert plan is not None
        assert job.host(culprit) in plan.hosts
        assert set(plan.hosts) <= {job.host(rank) for rank in own}


@pytest.mark.parametrize("place", ["code", "loader"])
def test_a_culprit_whose_stack_shows_is_named_and_no_group_goes(place: str) -> None:
    job = Job({"tp": 4, "pp": 4, "dp": 4}, per_host=8)
    finding = found(tables(job, [hung(job, 21, place=place)] * 2))
    assert (finding.ranks, set(finding.explains)) == ((21,), set(range(64)) - {21})


SAVING = ("slow_disk:fsync", "torch/distributed/checkpoint/filesystem:_write_items", "torch/distributed/checkpoint/_async_executor:save")


def _with_savers(places: dict[int, str], at: dict[int, str], *, forked: bool = False) -> MemoryCase:
    """The checkpoint threads of ranks, or processes that they forked: busy in a write, in a call with the others' savers, or at rest."""
    case = tables(FIGURE_7, [places] * 2)
    stacks, frames = case.frames["stacks"], case.frames["stack_frames"]
    kinds = {
        "writes": ("io", SAVING),
        "gathers": ("collective", (PLACES["all_gather"][0][0], *SAVING[1:])),
        "rests": ("queue", ("queue:get", SAVING[2])),
    }
    added = [
        stacks.filter(pl.col("rank") == rank).with_columns(
            thread_name=pl.lit("MainThread" if forked else "AsyncCheckpointExecutor_0"),
            role=pl.lit("other" if forked else "trainer"),
            pid=pl.col("pid") + 5000 * forked,
            stack_id=pl.lit(f"saver {what}"),
            record="A" + pl.col("record"),
        )
        for rank, what in at.items()
    ]
    new = [
        {
            "evidence_id": "f",
            "record": k,
            "stack_id": f"saver {k}",
            "frames": list(of),
            "leaf": of[0],
            "activity": "checkpoint",
            "wait_kind": wait,
        }
        for k, (wait, of) in kinds.items()
    ]
    more = pl.DataFrame([{c: row.get(c) for c in frames.columns} for row in new], schema=frames.schema, orient="row")
    return MemoryCase({**case.frames, "stacks": pl.concat([stacks, *added]), "stack_frames": pl.concat([frames, more])})


@pytest.mark.parametrize("forked", [False, True])
def test_a_hang_beside_the_main_threads_is_found_in_the_one_busy_checkpoint_thread_or_process(*, forked: bool) -> None:
    alike = dict.fromkeys(range(32), "grad_sync")
    finding = found(_with_savers(alike, dict.fromkeys(range(32), "gathers") | {9: "writes"}, forked=forked))
    assert (finding.sign, finding.ranks, finding.hosts) == ("lone_saver", (9,), ("m4",))
    for same in ("writes", "rests"):
        assert ask(_with_savers(alike, dict.fromkeys(range(32), same), forked=forked), "outlier_group").findings == ()


@pytest.mark.parametrize("bad", [{30: "loader"}, {}])
def test_ranks_at_transfers_are_no_exception_to_waits_without_a_name(bad: dict[int, str]) -> None:
    """Most ranks wait at their devices, one pipeline at transfers: those are victims in stack_clusters too, and only a loader is accused."""
    places = dict.fromkeys(range(32), "device") | dict.fromkeys(range(24, 32), "irecv") | bad
    findings = ask(tables(FIGURE_7, [places] * 3), "stack_clusters").findings
    assert [(f.sign, f.ranks) for f in findings] == [("in_dataloader", (30,))] * len(bad)
