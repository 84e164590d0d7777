"""Waits for others that no Python frame names (backward pass, device, `work.wait()`): who stands apart from them, and who does not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _house import call


class At(NamedTuple):
    """Where a main thread is: frames as (function, file, line), innermost first, and whether it runs."""

    frames: tuple[tuple[str, str, int], ...]
    active: bool = False
    gil: bool = False

    def running(self) -> At:
        return self._replace(active=True)


SITE = "/opt/venv/lib/python3.11/site-packages/"
ROOT_FRAMES = (("main", "/srv/job/train.py", 40), ("<module>", "/srv/job/train.py", 60))
ENGINE = (("_engine_run_backward", SITE + "torch/autograd/graph.py", 979), ("backward", SITE + "torch/autograd/__init__.py", 395))
BACKWARD = At((*ENGINE, ("Tensor.backward", SITE + "torch/_tensor.py", 623), *ROOT_FRAMES))
BARRIER = At((("barrier", SITE + "torch/distributed/distributed_c10d.py", 4901), *ROOT_FRAMES))
DEVICE = At((("synchronize", SITE + "torch/cuda/__init__.py", 1083), *ROOT_FRAMES))
WORK_WAIT = At((("GradSync.__call__", "/srv/job/sync.py", 10), *ROOT_FRAMES))
LOCK = At((("Meter.update", "/srv/job/meter.py", 17), *ROOT_FRAMES))
QUEUE = At((("Queue.get", "/usr/lib/python3.11/queue.py", 171), ("fetch", "/srv/job/tokens.py", 5), *ROOT_FRAMES))
DATASET = (
    ("Words.__getitem__", "/srv/job/words.py", 18),
    ("fetch", SITE + "torch/utils/data/_utils/fetch.py", 54),
    ("_BaseDataLoaderIter.__next__", SITE + "torch/utils/data/dataloader.py", 725),
    *ROOT_FRAMES,
)
READS, SPINS = At(DATASET), At(DATASET, active=True, gil=True)
PACKS = tuple(
    At(((name, "/srv/job/packing.py", line), *ROOT_FRAMES), active=True) for name, line in (("plan", 9), ("fits", 31), ("plan", 12))
)
PIPE = At((("get", "/usr/lib/python3.11/multiprocessing/queues.py", 103), ("recv_from_peers", "/srv/job/sync.py", 5), *ROOT_FRAMES))
DEEPER = At((("is_completed", "/srv/job/work.py", 4), *WORK_WAIT.frames), active=True, gil=True)
ENCODES = At((("encode_batch", "/srv/job/tokens.py", 77), *ROOT_FRAMES), active=True, gil=True)
NATIVE_FRAMES = {  # the C frames above a Python stack, as py-spy --native prints them
    BACKWARD: ("pthread_cond_wait (libc.so.6)", "c10d::Reducer::finalize_backward (libtorch_cpu.so)"),
    WORK_WAIT: ("pthread_cond_wait (libc.so.6)", "c10d::ops::(anonymous namespace)::wait (libtorch_cpu.so)"),
    LOCK: ("0x7f2e34aa3f16 (libc.so.6)", "PyThread_acquire_lock_timed (libpython3.11.so)"),
}


def _thread(pid: int, at: At) -> dict[str, Any]:
    frames = [
        {"name": name, "filename": file, "short_filename": file.rpartition("/")[2], "module": None, "line": line, "locals": None}
        for name, file, line in at.frames
    ]
    named = {"thread_id": pid, "thread_name": "MainThread", "os_thread_id": pid}
    return {"pid": pid, **named, "active": at.active, "owns_gil": at.gil, "frames": frames, "process_info": None}


def _native(pid: int, at: At) -> str:
    shown = [*NATIVE_FRAMES[at], *(f"{name} ({file}:{line})" for name, file, line in at.frames)]
    head = f'Process {pid}: /opt/venv/bin/python3 -u train.py\nPython v3.11.7 (/opt/python/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n'
    return head + "".join(f"    {frame}\n" for frame in shown)


def _captured(folder: Path, ranks: Mapping[int, Sequence[At]], *, native: int | None = None, beside: bool = True) -> Path:
    """Stack dumps of every rank and round; with C frames in round `native` too, or there only."""
    for rank, samples in ranks.items():
        for number, at in enumerate(samples):
            into = folder / "stacks" / f"round_{number}"
            into.mkdir(parents=True, exist_ok=True)
            if number == native:
                (into / f"rank_{rank}.main.native.txt").write_text(_native(100 + rank, at))
            if number != native or beside:
                (into / f"rank_{rank}.main.json").write_text(json.dumps([_thread(100 + rank, at)]))
    return folder


GAP_S = 2.0  # between two rounds


def _counted(folder: Path, ranks: Mapping[int, Sequence[At]], per_round: Mapping[int, tuple[int, float]], gap_s: float = GAP_S) -> Path:
    """The same with the index of `rca capture`: by rank, how many switches and CPU seconds its main thread gains from round to round."""
    _captured(folder, ranks)
    rows = [
        {
            "round": number, "rank": rank, "host": "host-a", "role": "main", "pid": 100 + rank, "format": "json", "rc": 0, "err": "",
            "t_ns": 1_700_000_000_000_000_000 + int(number * gap_s * 1e9), "voluntary_switches": 50 + number * per_round[rank][0],
            "involuntary_switches": 0, "cpu_s": 9 + number * per_round[rank][1],
        }
        for rank, samples in ranks.items()
        for number in range(len(samples))
    ]  # fmt: skip
    (folder / "stacks" / "index.json").write_text(json.dumps(rows))
    return folder


def _peers(at: At, bad: At, size: int = 4) -> dict[int, list[At]]:
    return {rank: [bad if rank == 1 else at] * 3 for rank in range(size)}


def _verdict(folder: Path) -> dict[str, Any]:
    return dict(call("diagnose", folder, "--json").doc["verdict"])


@pytest.mark.parametrize(
    ("peers", "bad", "cause"),
    [
        (BACKWARD, LOCK, "code_hang"),
        (BACKWARD, QUEUE, "code_hang"),
        (BACKWARD, READS, "data_stall"),
        (BACKWARD, SPINS, "code_hang"),
        (BARRIER, SPINS, "code_hang"),
        (DEVICE, LOCK, "code_hang"),
        (WORK_WAIT, QUEUE, "code_hang"),
        (WORK_WAIT, LOCK, "code_hang"),
    ],
)
def test_who_stands_apart_from_waits_without_a_name_is_named(peers: At, bad: At, cause: str, tmp_path: Path) -> None:
    verdict = _verdict(_captured(tmp_path, _peers(peers, bad)))
    assert (verdict["first_failing"]["ranks"], verdict["cause"]) == ([1], cause)


@pytest.mark.parametrize(
    ("samples", "rank"),
    [
        pytest.param([ENCODES] * 3, 1, id="holds the lock"),
        pytest.param([PACKS[0]._replace(gil=True), *PACKS[1:]], 1, id="moves, and holds the lock now and then"),
        pytest.param(PACKS, None, id="moves, and was never seen with the lock"),
        pytest.param([LOCK.running()] * 3, None, id="spins elsewhere"),
        pytest.param([QUEUE] * 3, 1, id="waits for a queue"),
        pytest.param([QUEUE, QUEUE, LOCK], None, id="waited for a queue"),
        pytest.param([PIPE] * 3, None, id="waits for a message"),
        pytest.param([DEEPER] * 3, None, id="holds the lock inside the wait of all others"),
        pytest.param([ENCODES, LOCK, LOCK], None, id="held it once"),
        pytest.param([ENCODES] * 2, None, id="two samples"),
    ],
)
def test_against_ranks_that_spin_only_one_that_works_is_named(samples: Sequence[At], rank: int | None, tmp_path: Path) -> None:
    peers = {r: [WORK_WAIT.running()] * len(samples) for r in range(5)}
    verdict = _verdict(_captured(tmp_path, {**peers, 1: samples}))
    assert verdict["first_failing"]["ranks"] == ([] if rank is None else [rank])
    assert verdict["cause"] == ("unknown" if rank is None else "code_hang")


def _at_work(name: str, file: str, rank: int) -> dict[int, Sequence[At]]:
    """One rank that moves from line to line, with the interpreter lock, while all others wait in a call."""
    lines = [At(((name, file, line), *ROOT_FRAMES), active=True, gil=True) for line in (60, 64, 71)]
    return {**{r: [BARRIER] * 3 for r in range(4)}, rank: lines}


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        (_at_work("_plan_buckets", "/srv/job/packing.py", 1), [1]),
        (_at_work("_plan_buckets", "/srv/job/packing.py", 0), []),  # the first rank writes logs and builds indexes for all
        (_at_work("evaluate", "/srv/job/loop.py", 1), []),
        (_at_work("_build_sample_idx", "/srv/job/gpt_dataset.py", 1), []),
        (_at_work("compile_fx", SITE + "torch/_inductor/compile_fx.py", 1), []),
        (_at_work("_save", SITE + "torch/serialization.py", 1), []),
        ({**_at_work("_plan_buckets", "/srv/job/packing.py", 1), 2: _at_work("_fits", "/srv/job/packing.py", 2)[2]}, []),
    ],
)
def test_who_gets_on_with_long_work_is_not_named(ranks: dict[int, Sequence[At]], named: list[int], tmp_path: Path) -> None:
    assert _verdict(_captured(tmp_path, ranks))["first_failing"]["ranks"] == named


def test_a_wait_that_a_call_names_is_the_firmer_ground(tmp_path: Path) -> None:
    named = _verdict(_captured(tmp_path / "a", _peers(BARRIER, LOCK)))["first_failing"]["probability"]
    guessed = _verdict(_captured(tmp_path / "b", _peers(WORK_WAIT, LOCK)))["first_failing"]["probability"]
    assert guessed < named


def test_a_lone_rank_in_its_backward_pass_is_named_and_why_is_open(tmp_path: Path) -> None:
    verdict = _verdict(_captured(tmp_path, _peers(BARRIER, BACKWARD)))
    assert (verdict["first_failing"]["ranks"], verdict["cause"]) == ([1], "unknown")


def _one(rank: int, samples: Sequence[At], others: At) -> dict[int, Sequence[At]]:
    return {**{r: [others] * 3 for r in range(4)}, rank: samples}


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({r: [BACKWARD] * 3 for r in range(4)}, id="all in backward"),
        pytest.param(_one(2, [BACKWARD, BACKWARD.running(), BACKWARD], BACKWARD), id="one of them ran"),
        pytest.param(_one(2, [WORK_WAIT, WORK_WAIT.running(), WORK_WAIT], WORK_WAIT), id="one ran in the common place"),
        pytest.param(_one(1, [LOCK, BACKWARD, LOCK], BACKWARD), id="one was elsewhere for a moment"),
        pytest.param(_one(1, [DEVICE] * 3, BACKWARD), id="another hidden wait"),
        pytest.param(_one(1, [LOCK] * 3, BACKWARD.running()), id="the others compute"),
        pytest.param({0: [BACKWARD] * 3, 1: [LOCK] * 3, 2: [BACKWARD] * 3, 3: [QUEUE] * 3}, id="half is not most"),
        pytest.param({0: [LOCK], 1: [BACKWARD], 2: [BACKWARD], 3: [BACKWARD]}, id="one sample shows a moment only"),
        pytest.param({0: [WORK_WAIT] * 3, 1: [LOCK] * 3, 2: [WORK_WAIT] * 3}, id="two of three in one place"),
    ],
)
def test_nobody_is_accused_where_it_may_be_a_moment_of_a_running_job(ranks: Mapping[int, Sequence[At]], tmp_path: Path) -> None:
    assert _verdict(_captured(tmp_path, ranks))["first_failing"]["ranks"] == []


def test_who_ran_in_the_place_where_it_waits_may_have_come_back_to_it(tmp_path: Path) -> None:
    ran = call(
        "analyse", "job_motion", _captured(tmp_path / "a", _one(2, [BACKWARD.running(), BACKWARD, BACKWARD], BACKWARD)), "--json"
    ).doc
    still = call("analyse", "job_motion", _captured(tmp_path / "b", _peers(BACKWARD, LOCK)), "--json").doc
    assert (ran["status"], still["status"]) == ("blind", "found")
    assert "1 of them ran there" in ran["why"]


@pytest.mark.parametrize("beside", [True, False])
def test_c_frames_of_the_same_place_tell_what_python_cannot(beside: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    ranks = {0: [BACKWARD] * 3, 1: [LOCK] * 3, 2: [WORK_WAIT] * 3, 3: [BACKWARD] * 3, 4: [WORK_WAIT] * 3}
    assert _verdict(_captured(tmp_path / "a", ranks))["first_failing"]["ranks"] == []  # three and two in two places: no rule
    said = call("diagnose", _captured(tmp_path / "b", ranks, native=2, beside=beside), "--json").doc
    assert (said["verdict"]["first_failing"]["ranks"], said["verdict"]["cause"]) == ([1], "code_hang")
    told = {finding["sign"]: finding["says"] for finding in said["findings"]}
    assert "4 peers wait for other ranks" in told["in_user_code"]
    assert "5 of 5 ranks show the same stack" in told["job_hangs"]


def test_a_dump_of_another_place_sharpens_nothing(tmp_path: Path) -> None:
    folder = _captured(tmp_path, _peers(WORK_WAIT, QUEUE, size=3))
    for rank in (0, 2):
        text = _native(100 + rank, WORK_WAIT).replace("sync.py:10", "sync.py:12")
        (folder / "stacks" / "round_2" / f"rank_{rank}.main.native.txt").write_text(text)
    assert _verdict(folder)["first_failing"]["ranks"] == []


# What the kernel counts of a main thread from round to round, the two switches of the dump included.
BLOCKED, POLLS, STEPS, BURNS = (2, 1e-4), (2002, 0.05), (8, 0.02), (3, 1.9)


def _signs(said: Mapping[str, Any]) -> set[str]:
    return {finding["sign"] for finding in said["findings"]}


@pytest.mark.parametrize("peers", [BARRIER, BACKWARD])
@pytest.mark.parametrize(("peer", "bad"), [(BLOCKED, BLOCKED), (POLLS, BLOCKED), (BLOCKED, BURNS), (BLOCKED, POLLS)])
def test_peers_that_did_not_leave_their_wait_hang(peer: tuple[int, float], bad: tuple[int, float], peers: At, tmp_path: Path) -> None:
    counts = dict.fromkeys(range(4), peer) | {1: bad}
    said = call("diagnose", _counted(tmp_path, _peers(peers, LOCK), counts), "--json").doc
    assert (said["verdict"]["first_failing"]["ranks"], said["verdict"]["cause"]) == ([1], "code_hang")
    assert "job_hangs" in _signs(said)


@pytest.mark.parametrize(("peers", "size"), [(BARRIER, 4), (BACKWARD, 4), (BACKWARD, 2)])
def test_peers_that_come_back_to_their_wait_wait_for_a_slow_rank(peers: At, size: int, tmp_path: Path) -> None:
    said = call("diagnose", _counted(tmp_path, _peers(peers, LOCK, size), dict.fromkeys(range(size), STEPS)), "--json").doc
    assert (said["verdict"]["first_failing"]["ranks"], said["verdict"]["cause"]) == ([1], "slow_rank")
    assert _signs(said) >= {"job_runs", "always_awaited"}
    assert not _signs(said) & {"job_hangs", "in_user_code", "apart_from_peers"}


def test_a_loader_that_everybody_comes_back_to_wait_for_is_slow_with_data(tmp_path: Path) -> None:
    said = _verdict(_counted(tmp_path, _peers(BARRIER, READS), dict.fromkeys(range(4), STEPS)))
    assert (said["first_failing"]["ranks"], said["cause"]) == ([1], "data_stall")


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(_one(1, [LOCK, BARRIER, LOCK], BARRIER), id="it waits too for once"),
        pytest.param(_one(1, [LOCK, QUEUE, LOCK], BARRIER), id="it gets on"),
        pytest.param({r: [LOCK if r == 1 else BARRIER] * 2 for r in range(4)}, id="twice is an ordinary moment"),
        pytest.param({**_peers(BARRIER, LOCK), 2: [QUEUE] * 3}, id="two do not wait"),
        pytest.param(_peers(WORK_WAIT, LOCK), id="whether the others wait is not told"),
    ],
)
def test_nobody_is_slow_where_it_may_be_a_moment_of_a_running_job(ranks: Mapping[int, Sequence[At]], tmp_path: Path) -> None:
    said = call("diagnose", _counted(tmp_path, ranks, dict.fromkeys(range(4), STEPS)), "--json").doc
    assert said["verdict"]["first_failing"]["ranks"] == []
    assert "job_hangs" not in _signs(said)


@pytest.mark.parametrize(("gap_s", "stands"), [(2.0, False), (20.0, True)])
def test_ranks_on_one_line_where_none_waits_for_another_stand_still_only_after_long(gap_s: float, stands: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    said = call(
        "diagnose", _counted(tmp_path, {r: [WORK_WAIT] * 2 for r in range(3)}, dict.fromkeys(range(3), BLOCKED), gap_s), "--json"
    ).doc
    assert ("job_hangs" in _signs(said)) is stands
    assert said["verdict"]["first_failing"]["ranks"] == []


def test_samples_of_one_moment_are_one_look_and_show_no_standstill(tmp_path: Path) -> None:
    said = call("diagnose", _counted(tmp_path, _peers(BARRIER, LOCK), dict.fromkeys(range(4), BLOCKED), 0.4), "--json").doc
    assert "job_hangs" not in _signs(said)
    apart = [f["says"] for f in said["findings"] if f["analysis"] == "stack_clusters"]
    assert all("all was seen in one moment, and a moment of a running job may look the same" in says for says in apart)
    assert len(apart) == 1


def test_steps_that_logs_tell_of_meanwhile_are_motion(tmp_path: Path) -> None:
    folder = _counted(tmp_path / "a", _peers(BARRIER, LOCK), dict.fromkeys(range(4), BLOCKED))
    plain = [
        {k: v for k, v in row.items() if k not in ("voluntary_switches", "cpu_s")}
        for row in json.loads((folder / "stacks/index.json").read_text())
    ]
    (folder / "stacks" / "index.json").write_text(json.dumps(plain))
    assert _verdict(folder)["cause"] == "code_hang"
    lines = [f"2023-11-14 22:13:{20 + second}+00:00 [rank0] step {step} loss 2.5\n" for step, second in ((7, 1), (8, 2), (9, 3))]
    (folder / "rank_0.log").write_text("".join(lines))
    said = call("diagnose", folder, "--json").doc
    assert "job_runs" in _signs(said)
    assert said["verdict"]["cause"] != "code_hang"


@pytest.mark.parametrize(
    ("peer", "bad", "cause"), [(BARRIER, LOCK, "code_hang"), (BACKWARD, LOCK, "code_hang"), (BARRIER, READS, "data_stall")]
)
def test_of_two_ranks_the_one_that_the_other_waits_for_is_named_less_firmly(peer: At, bad: At, cause: str, tmp_path: Path) -> None:
    two, four = (_verdict(_captured(tmp_path / str(size), _peers(peer, bad, size))) for size in (2, 4))
    assert (two["first_failing"]["ranks"], two["cause"]) == ([1], cause)
    assert two["first_failing"]["probability"] <= four["first_failing"]["probability"]


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({0: [BARRIER] * 3, 1: [BARRIER] * 3}, id="both wait"),
        pytest.param({0: [BARRIER] * 3, 1: [BACKWARD] * 3}, id="the other may wait too"),
        pytest.param({0: [BARRIER] * 3, 1: [DEVICE] * 3}, id="or for its device"),
        pytest.param({0: [LOCK] * 3, 1: [QUEUE] * 3}, id="neither waits for the other"),
        pytest.param({0: [BARRIER], 1: [LOCK]}, id="seen once"),
        pytest.param({0: [BARRIER] * 3, 1: [LOCK, QUEUE, LOCK]}, id="it gets on"),
    ],
)
def test_of_two_ranks_nobody_is_accused_where_either_may_wait(ranks: Mapping[int, Sequence[At]], tmp_path: Path) -> None:
    assert _verdict(_captured(tmp_path, ranks))["first_failing"]["ranks"] == []
