"""The text evidence of simulated incidents: every kind plays, the same seed says the same, confusions leave the truth alone."""

from __future__ import annotations

import random
import re
from datetime import datetime

import numpy as np
import pytest

from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS
from rca.drills._synthetic_world import World
from rca.drills.simulated import CONFUSIONS, KINDS, layouts, simulate
from rca.drills.simulated import _kernel_gpu as kernel_gpu
from rca.drills.simulated._kernel_text import FORMS, boots, kernel_files
from rca.drills.simulated._logbook import LogBook
from rca.drills.simulated._metrics import gpu_metrics
from rca.drills.simulated._numbers import Trouble, run_numbers
from rca.drills.simulated._op_trace import op_trace
from rca.drills.simulated._steps import Pace, run_steps
from rca.drills.simulated._text import text_files, written_numbers

S = 1_000_000_000
AT = 1_780_000_000 * S
MINE = ("data", "deaths", "hardware", "healthy", "mixed", "numeric", "operator", "slow")
TEXT_KINDS = sorted(name for name, kind in KINDS.items() if kind.module in MINE)


def places(world: World) -> dict[str, np.ndarray]:
    return {"lane": world.places[:, 0], "replica": world.places[:, 2], "stage": world.places[:, 3]}


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_every_kind_plays_in_its_smallest_world_the_same_each_time(kind: str) -> None:
    scene, again = (simulate(kind, layouts(kind)[0], 5) for _ in range(2))
    files = text_files(scene) | written_numbers(scene)
    assert files == text_files(again) | written_numbers(again)
    assert scene.truth == again.truth
    assert any(path.startswith("logs/") for path in files)
    assert not any("<<" in line for lines in files.values() for line in lines), "a token without its stamp"
    assert set(scene.truth["cause"]) <= set(CAUSES)
    assert set(scene.truth["layer"]) <= set(LAYERS)
    assert set(scene.truth["attribution"]) <= set(ATTRIBUTIONS)
    assert set(scene.truth["action"]) <= set(ACTIONS)
    assert set(scene.truth["hosts"]) == {scene.world.host_of(rank) for rank in scene.truth["first_failing_ranks"]}


def test_another_seed_says_something_else() -> None:
    world = World(tp=2, pp=2, dp=4)
    assert text_files(simulate("user_exception", world, 1)) != text_files(simulate("user_exception", world, 2))


@pytest.mark.parametrize("confusion", sorted(CONFUSIONS))
def test_a_confusion_leaves_the_truth_and_what_tells_alone(confusion: str) -> None:
    for kind in ("user_exception", "host_oom", "preempted", "healthy_running"):
        world = next(world for world in layouts(kind) if world.num_hosts > 3)
        plain, confused = simulate(kind, world, 7), simulate(kind, world, 7, [CONFUSIONS[confusion]])
        assert plain.truth == confused.truth
        told = {path: set(map(unstamped, lines)) for path, lines in text_files(confused).items()}
        for rank in plain.truth["first_failing_ranks"]:
            for path, lines in text_files(plain).items():
                if path.endswith(f"/rank_{rank}.stderr.log") or f"/{world.host_of(rank)}." in path:
                    assert set(map(unstamped, lines)) <= told[path]


def unstamped(line: str) -> str:
    return re.sub(r"\d\d:\d\d:\d\d|\d+[-/]?\d+|[A-Z][a-z]{2} +\d+", "", line)


def test_confusions_change_something_somewhere() -> None:
    world = World(tp=2, pp=2, dp=8, gpus_per_host=4)
    plain = {kind: simulate(kind, world, 3) for kind in ("user_exception", "lock_hang", "host_gone")}
    for name, confuse in CONFUSIONS.items():
        changed = []
        for kind, scene in plain.items():
            other = simulate(kind, world, 3, [confuse])
            changed.append(
                (text_files(other), other.files, other.skew_s, other.recorder.missing, set(other.recorder.edits))
                != (text_files(scene), scene.files, scene.skew_s, scene.recorder.missing, set(scene.recorder.edits))
            )
        assert any(changed), name


def test_a_slow_rank_computes_longer_and_everybody_else_waits_for_it() -> None:
    world = World(tp=2, pp=4, dp=4)
    pace = Pace(2.0, 20, 8)
    slow = world.rank(0, 2, 1)
    pace.slow[slow] = np.where(np.arange(20) < 10, 1.0, 2.0)
    times = run_steps(pace, **places(world), seed=1)
    rest = [rank for rank in range(world.world_size) if rank != slow]
    assert times.compute[slow, 10:].mean() == pytest.approx(2 * times.compute[slow, :10].mean(), rel=0.05)
    assert times.compute[rest, 10:].mean() == pytest.approx(times.compute[rest, :10].mean(), rel=0.02)
    assert (times.comm[rest, 10:].mean(axis=1) > times.comm[rest, :10].mean(axis=1) + 0.5).all()
    assert times.comm[slow, 10:].mean() < times.comm[rest, 10:].mean(axis=1).min()
    assert times.step[:, 10:].mean() > 1.4 * times.step[:, :10].mean()


def test_a_late_batch_delays_all_and_a_long_stage_fills_no_bubble() -> None:
    world = World(tp=1, pp=4, dp=2)
    late = Pace(2.0, 10, 8)
    late.data_wait[0] = np.full(10, 1.0)
    times = run_steps(late, **places(world), seed=2)
    assert times.data[0].mean() == pytest.approx(1.0, abs=0.05)
    assert times.step.mean() == pytest.approx(3.0, rel=0.05)
    heavy = Pace(2.0, 10, 8, stage_weight=np.array([0.8, 0.8, 0.8, 1.6]))
    own = run_steps(heavy, **places(world), seed=2).compute.mean(axis=1)
    last = world.places[:, 3] == 3
    assert own[last].mean() == pytest.approx(2 * own[~last].mean(), rel=0.05)


def test_a_trace_of_operations_is_what_the_pipeline_did() -> None:
    world = World(tp=2, pp=4, dp=2)
    pace = Pace(2.0, 3, 8, is_traced=True)
    pace.slow[world.rank(1, 1, 2)] = np.full(3, 2.0)
    times = run_steps(pace, **places(world), seed=5)
    text = op_trace(times, rank_of=lambda d, p: world.rank(0, d, p), first_step=10, step_s=2.0, reached=3).decode()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    assert min(float(row[6]) for row in rows) >= 0
    assert max(float(row[5]) + float(row[6]) for row in rows) <= times.step.max() + 1e-3
    spent = {(int(d), int(p)): 0.0 for d, p, *_ in rows}
    for d, p, _, _, op, _, duration, *_ in rows:
        spent[int(d), int(p)] += float(duration) if op.endswith("compute") else 0.0
    assert spent[1, 2] == pytest.approx(2 * spent[0, 2], rel=0.06)  # its stage mates wait for it inside their own computation


def test_metrics_show_the_throttled_gpu_and_no_other() -> None:
    files = gpu_metrics(
        ["host-0000", "host-0001"], gpus=lambda _host: 4, first_at=AT, last_at=AT + 300 * S, seed=1, throttled={("host-0001", 2): (AT, 1.5)},
    )  # fmt: skip
    clocks = {}
    for path, text in files.items():
        for line in text.decode().splitlines():
            if line.startswith("DCGM_FI_DEV_SM_CLOCK{"):
                clocks.setdefault((path, line.split('"')[1]), []).append(float(line.split()[-2]))
    slow = {key for key, values in clocks.items() if np.mean(values) < 1500}
    assert slow == {("metrics/host-0001.prom", "2")}


def test_numbers_that_are_not_finite_spread_over_the_replica_then_over_all() -> None:
    world = World(tp=2, pp=2, dp=4)
    rank = world.rank(1, 2, 0)
    numbers = run_numbers(Trouble(nan_at={rank: 6}), **places(world), num_steps=10, first_step=100, batch=4, seed=3)
    mates = world.places[:, 2] == 2
    assert np.isfinite(numbers.norm[:, :6]).all()
    assert np.isnan(numbers.norm[mates, 6]).all()
    assert np.isfinite(numbers.norm[~mates, 6]).all()
    assert np.isnan(numbers.norm[:, 7:]).all()


def test_replicas_have_equal_checksums_until_one_parts() -> None:
    world = World(tp=2, pp=1, dp=4)
    wrong = world.rank(0, 3, 0)
    numbers = run_numbers(Trouble(parted={wrong: 5}), **places(world), num_steps=9, first_step=1, batch=4, seed=4)
    peers = [world.rank(0, d, 0) for d in range(3)]
    assert len({tuple(numbers.checksum[rank]) for rank in peers}) == 1
    assert (numbers.checksum[wrong, :5] == numbers.checksum[peers[0], :5]).all()
    assert (numbers.checksum[wrong, 5:] != numbers.checksum[peers[0], 5:]).all()


def test_the_log_book_stamps_by_the_clock_of_each_host() -> None:
    book = LogBook(filing="ranks")
    book.say(0, AT, "<<py>> INFO a")
    book.say(9, AT, "<<py>> INFO b", "[E<<glog>> x.cpp:1] c")
    book.agent("host-0001", AT + S, "<<iso>> d")
    files = book.laid_out(host_of=lambda rank: f"host-{rank // 8:04d}", job_id="7", skew_ns={"host-0001": 90 * S})
    first, second = (datetime.fromisoformat(files[f"logs/rank_{rank}.stderr.log"][0][:19]) for rank in (0, 9))
    assert (second - first).total_seconds() == 90
    assert re.fullmatch(r"\[E\d{3,4} \d\d:\d\d:\d\d\.\d{9} x\.cpp:1\] c", files["logs/rank_9.stderr.log"][1])
    assert files["logs/host-0001.agent.log"][0].endswith("Z d")


@pytest.mark.parametrize("form", FORMS)
def test_kernel_logs_of_each_form_hold_what_is_told_in_order(form: str) -> None:
    lines = kernel_gpu.lost_gpu(AT, random.Random(1), address="0000:3a:00", pid=None, switches=False)
    hosts = ["host-0000", "host-0001"]
    files = kernel_files(
        {"host-0001": lines}, hosts, form=form, booted=boots(hosts, AT, 1), began_at=AT - 600 * S, captured_at=AT + 900 * S, seed=1, skew_ns={},
    )  # fmt: skip
    mine = next(rows for path, rows in files.items() if "host-0001" in path)
    told = [row for row in mine if "NVRM" in row]
    assert [text for _, text in lines if "NVRM" in text] == [row[row.index("NVRM") :] for row in told]
    assert not any("NVRM" in row for path, rows in files.items() if "host-0000" in path for row in rows)


def test_healthy_kinds_and_their_layouts_give_more_than_200_different_runs() -> None:
    seen = set()
    for kind in (name for name, known in KINDS.items() if known.of_class == "healthy"):
        for world in layouts(kind)[:3]:
            for seed in range(7):
                scene = simulate(kind, world, seed)
                assert scene.truth["first_failing_ranks"] == []
                seen.add(tuple(tuple(lines) for _, lines in sorted(text_files(scene).items())))
    assert len(seen) >= 200
