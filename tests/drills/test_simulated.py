"""Simulated incidents: the world's groups, the same seed, and that tables written at once are those that reading the files gives."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from rca.case import MemoryCase
from rca.drills._synthetic_job import Fault, Job, plan
from rca.drills._synthetic_run import play
from rca.drills.simulated import KINDS, Scene, Steps, World, class_of, frames, layouts, simulate, write
from rca.drills.simulated._play import played
from rca.errors import UsageError
from rca.linking import frames_of, read_all
from rca.parts import Parts
from rca.questions import ask
from rca.sources import inventory

LARGE = World(tp=4, pp=4, dp=32, cp=2, order="tp-cp-pp-dp")  # 1,024 ranks
OWN = ("evidence_id", "size_bytes", "sha256")  # columns that tell which file a row is from


class TestWorld:
    @pytest.mark.parametrize("order", ["tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-pp-cp"])
    def test_every_rank_has_one_place_and_one_group_of_each_kind(self, order: str) -> None:
        world = World(tp=2, cp=2, pp=3, dp=4, ep=2, order=order)
        places = {world.coordinates(rank) for rank in range(world.world_size)}
        assert len(places) == world.world_size == 48
        assert all(world.rank(*world.coordinates(rank)) == rank for rank in range(world.world_size))
        for kind, groups in world.groups().items():
            assert sorted(rank for members in groups for rank in members) == list(range(48)), kind

    def test_members_of_a_group_differ_along_its_axis_alone(self) -> None:
        world = World(tp=2, cp=2, pp=3, dp=4, ep=2, order="pp-tp-dp-cp")
        free = {"tp": "t", "cp": "c", "pp": "p", "dp": "dc", "ep": "d", "mp": "tp"}
        for kind, axes in free.items():
            for members in world.groups()[kind]:
                places = [world.coordinates(rank) for rank in members]
                assert {axis for axis in "tdpc" if len({getattr(place, axis) for place in places}) > 1} <= set(axes)

    def test_fastest_axis_holds_neighbours(self) -> None:
        assert World(tp=2, dp=4, order="dp-tp").groups()["dp"][0] == (0, 1, 2, 3)
        assert World(tp=2, dp=4, order="tp-dp").groups()["tp"][0] == (0, 1)

    def test_last_host_may_have_fewer(self) -> None:
        world = World(tp=4, pp=3, dp=5, order="pp-tp-dp")
        assert world.num_hosts == 8
        assert world.ranks_on(world.host_names()[-1]) == [56, 57, 58, 59]

    @pytest.mark.parametrize("wrong", [{"order": "tp-pp"}, {"ep": 3}, {"tp": 0}, {"order": "tp-tp-dp"}])
    def test_world_that_cannot_be_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(UsageError):
            World(**{"tp": 2, "dp": 4, **wrong})  # type: ignore[arg-type]


FAULTS = {
    "stop": (Fault("stop", (13,), "tp", -3),),
    "tensor_group": (Fault("stop", (0, 1, 2, 3), "tp", -3),),
    "skip": (Fault("skip", (6,), "dp", -1),),
    "size": (Fault("size", (20,), "world", -1),),
    "two": (Fault("stop", (9,), "tp", -3), Fault("no_dump", (30,), "tp", -3)),
    "cut": (Fault("cut", tuple(range(8, 16)), "tp", -3),),
    "kernel": (Fault("kernel", (21,), "tp", -3),),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(
    "job", [Job(tp=4, pp=2, dp=4, order="tp-pp-dp"), Job(tp=4, dp=4, cp=2, ep=2, order="tp-cp-dp")], ids=["pp", "cp_ep"]
)
def test_small_play_leaves_every_rank_where_the_whole_one_does(job: Job, faults: tuple[Fault, ...]) -> None:
    small = played(job, faults)
    plans, _, stuck = plan(job, faults)
    whole = play(plans, stuck, blocking=False)
    assert [small.finished(rank) for rank in range(job.world_size)] == [len(done) for done in whole]


def test_large_job_needs_a_small_play() -> None:
    small = played(Job(tp=8, pp=16, dp=64, cp=2, order="tp-cp-pp-dp"), FAULTS["stop"])
    assert len(small.plans) == 16 * 2 * 2 * 2  # stages x (the rank's place, any other) along each other axis
    assert sum(small.of == small.of[13]) == 1


def read(folder: Path, spool: Path) -> dict[str, pl.DataFrame]:
    parts = Parts(spool / "parts")
    return frames_of(parts, read_all(inventory(folder, spool / "archives"), parts).frames)


def rows(frame: pl.DataFrame) -> pl.DataFrame:
    told = frame.drop([name for name in OWN if name in frame.columns])
    return told.with_columns(pl.col(pl.List(pl.String)).list.join("|")).sort(pl.all())


CASES = {"lock_hang": (0, 3), "dataloader_stuck": (6, 1), "mismatched_size": (2, 5), "network_down": (0, 2), "wrong_order": (3, 4)}


@pytest.mark.parametrize("kind", CASES)
def test_tables_written_at_once_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    layout, seed = CASES[kind]
    scene = simulate(kind, layouts(kind)[layout], seed)
    write(scene, tmp_path / "evidence")
    (tmp_path / "evidence" / "truth.json").unlink()
    direct, of_files = frames(scene), read(tmp_path / "evidence", tmp_path)
    for table in direct.keys() - {"evidence", "readings"}:
        assert rows(direct[table]).equals(rows(of_files[table])), table


def told(scene: Scene) -> dict[str, pl.DataFrame]:
    return {name: rows(frame) for name, frame in frames(scene).items() if frame.height}


def test_same_seed_makes_the_same_and_another_one_does_not() -> None:
    world = layouts("lock_hang")[0]
    first, again, other = (told(simulate("lock_hang", world, seed)) for seed in (1, 1, 2))
    assert first.keys() == again.keys()
    assert all(first[name].equals(again[name]) for name in first)
    assert not first["ranks"].equals(other.get("ranks")) or not first["stacks"].equals(other.get("stacks"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_fits_small_and_large_worlds_and_tells_a_truth(kind: str) -> None:
    worlds = layouts(kind)
    assert worlds[0].world_size <= 64
    scene = simulate(kind, worlds[0], 7)
    assert scene.truth["cause"]
    assert set(scene.truth["first_failing_ranks"]) <= set(range(worlds[0].world_size))
    assert set(scene.truth["hosts"]) <= set(worlds[0].host_names())
    assert scene.truth["answerable"] or class_of(kind) in ("unanswerable", "fault")
    assert KINDS[kind].about.endswith(".") or KINDS[kind].about


def test_steps_of_all_ranks_are_rows(tmp_path: Path) -> None:
    import numpy as np

    scene = simulate("lock_hang", World(tp=1, dp=8), 3)
    spans = np.random.default_rng(1).uniform(0.9, 1.1, (8, 6))
    spans[2, 5] = np.nan
    scene.steps = Steps(scene.fault_step - 5, spans, compute_s=spans * 0.7, data_s=spans * 0.01)
    write(scene, tmp_path / "evidence")
    (tmp_path / "evidence" / "truth.json").unlink()
    steps = frames(scene)["steps"]
    assert rows(steps).equals(rows(read(tmp_path / "evidence", tmp_path)["steps"]))
    assert steps.filter(pl.col("rank").is_not_null()).height == 47


def test_rows_of_1024_ranks() -> None:
    """Every rank has its dump, its calls and its stacks, in its own groups, though one rank of each class was read."""
    scene = simulate("lock_hang", LARGE, 2)
    found = frames(scene)
    assert found["dumps"]["rank"].n_unique() == LARGE.world_size
    assert found["collectives"]["rank"].n_unique() == LARGE.world_size
    assert found["collectives"].height == LARGE.world_size * scene.recorder.settings.buffer
    assert found["evidence"]["evidence_id"].n_unique() == found["evidence"].height
    groups = LARGE.groups()
    by_group = (
        found["collectives"].filter(pl.col("group_id").str.starts_with("tp:")).group_by("group_id").agg(pl.col("rank").unique().sort())
    )
    assert set(map(tuple, by_group["rank"].to_list())) == set(groups["tp"])


@pytest.mark.parametrize("kind", ["barrier_skipped", "p2p_skipped"])
def test_rank_whose_order_of_calls_parts_from_its_stage_is_named(kind: str) -> None:
    scene = simulate(kind, World(tp=2, pp=2, dp=4, order="tp-dp-pp"), 6)
    scene.stacks.is_there = False
    outcome = ask(MemoryCase(frames(scene)), "mismatched_collective")
    assert {finding.ranks for finding in outcome.findings} == {tuple(scene.truth["first_failing_ranks"])}
    assert {finding.sign for finding in outcome.findings} <= {"skipped_call", "odd_op"}
