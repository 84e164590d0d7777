"""What a drill adds to a capture or takes from it afterwards: kernel logs that fit the run, a wrong clock, a torn file."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _dumps import load_dump

from rca import plugins
from rca.drills._kernel import Line, write_kernel_logs
from rca.drills._layout import Injection, Layout, Scene
from rca.drills._spoil import cut, shift_clock

CASE = Path(__file__).parents[2] / "data" / "cases" / "lock_hang"
SECOND_NS = 1_000_000_000
LAYOUT = Layout(tp=2, pp=2, dp=2)


def entries(case: Path, rank: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_dump((case / "fr" / f"nccl_trace_rank_{rank}").read_bytes())["entries"]
    return found


def scene(*, seed: int = 0, injection: Injection | None = None) -> Scene:
    """Of the shipped capture, whose first recorded call marks the run's beginning."""
    began = entries(CASE, 0)[0]["time_created_ns"]
    pids = {rank: 4000 + rank for rank in range(8)}
    return Scene(LAYOUT, injection or Injection(), seed, pids, began, began + 5 * SECOND_NS, began + 60 * SECOND_NS)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A copy of the shipped capture."""
    out = tmp_path / "case"
    shutil.copytree(CASE, out, ignore=shutil.ignore_patterns("case.duckdb"))
    return out


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_wrong_clock_shifts_every_stamp_of_its_host_and_no_other(case: Path) -> None:
    before = {path: path.read_bytes() for path in case.rglob("*") if path.is_file()}
    shift_clock(case, scene(), host="host-c", by_s=-300)
    changed = {str(path.relative_to(case)) for path, data in before.items() if path.read_bytes() != data}
    of_host_c = {*(f"fr/nccl_trace_rank_{rank}" for rank in (4, 5)), *(f"timings/rank_{rank}.jsonl" for rank in (4, 5))}
    of_host_c |= {*(f"logs/rank_{rank}.stderr.log" for rank in (4, 5)), "logs/host-c.agent.log", "kernel/host-c.dmesg.log"}
    assert changed == of_host_c | {"kernel/hosts.json", "stacks/index.json"}
    for rank in range(8):
        moved = {
            late["time_created_ns"] - early["time_created_ns"] for late, early in zip(entries(CASE, rank), entries(case, rank), strict=True)
        }
        assert moved == {300 * SECOND_NS if rank in (4, 5) else 0}
    rows = zip(
        json.loads((CASE / "stacks" / "index.json").read_text()), json.loads((case / "stacks" / "index.json").read_text()), strict=True
    )
    assert {(old["host"] == "host-c", old["t_ns"] - new["t_ns"]) for old, new in rows} == {(True, 300 * SECOND_NS), (False, 0)}


def test_a_wrong_clock_keeps_all_but_the_stamps(case: Path) -> None:
    shift_clock(case, scene(), host="host-c", by_s=-300)
    old = (CASE / "logs" / "rank_4.stderr.log").read_text().splitlines()
    new = (case / "logs" / "rank_4.stderr.log").read_text().splitlines()
    assert [line[19:] for line in new] == [line[19:] for line in old]
    assert seconds(old[0][:19]) - seconds(new[0][:19]) == 300
    agent = re.compile(r"(?m)^[IWE]\d{4} \d\d:\d\d:\d\d")
    texts = [(folder / "logs" / "host-c.agent.log").read_text() for folder in (CASE, case)]
    assert len({agent.sub("", text) for text in texts}) == 1
    assert len({agent.search(text)[0] for text in texts}) == 2  # type: ignore[index]
    kept = [{k: v for k, v in entry.items() if k != "time_created_ns"} for entry in entries(CASE, 5)]
    assert [{k: v for k, v in entry.items() if k != "time_created_ns"} for entry in entries(case, 5)] == kept


def test_a_torn_dump_ends_in_the_middle(case: Path) -> None:
    dump = case / "fr" / "nccl_trace_rank_2"
    whole = dump.read_bytes()
    cut(dump, 0.5)
    assert dump.read_bytes() == whole[: len(whole) // 2]
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        entries(case, 2)


def kernel_lines(folder: Path, host: str) -> list[str]:
    return (folder / f"{host}.dmesg.log").read_text().splitlines()


def test_kernel_logs_lie_in_order_and_say_since_boot_or_the_date(tmp_path: Path) -> None:
    told: dict[str, list[Line]] = {"host-b": [(scene().bite_ns, "something happened")]}
    for seed in (0, 1):
        at = scene(seed=seed)
        folder = tmp_path / str(seed)
        write_kernel_logs(folder, at, told)
        boots = json.loads((folder / "hosts.json").read_text())
        assert set(boots) == set(LAYOUT.hosts)
        for host in LAYOUT.hosts:
            if seed:
                stamps = [float(line[1:].split("]")[0]) + boots[host]["boot_time_ns"] / 1e9 for line in kernel_lines(folder, host)]
            else:
                stamps = [seconds(line.split()[0].replace(",", ".")) for line in kernel_lines(folder, host)]
            assert stamps == sorted(stamps)
            assert min(stamps) > boots[host]["boot_time_ns"] / 1e9
        last = kernel_lines(folder, "host-b")[-1]
        assert last.endswith(" something happened")
        assert stamps[0] < at.began_ns / 1e9


def test_the_killed_process_stands_in_the_kernel_log_of_its_host() -> None:
    drill = plugins.load("rca.drills", "worker_oom_killed")
    injection = drill.inject(LAYOUT, seed=0)
    at = scene(injection=injection)
    (host, lines), *others = drill.kernel(at).items()
    (rank,) = injection.ranks
    assert others == []
    assert host == LAYOUT.host(rank)
    assert [f"pid={4000 + rank}," in text or f"process {4000 + rank} " in text for _, text in lines] == [False, True, True]
    assert {at // SECOND_NS for at, _ in lines} == {at.bite_ns // SECOND_NS}


@pytest.mark.parametrize("seed", range(12))
def test_harmless_trouble_is_on_hosts_without_the_culprit(seed: int) -> None:
    drill = plugins.load("rca.drills", "two_faults")
    injection = drill.inject(LAYOUT, seed=seed)
    lines = drill.kernel(scene(seed=seed, injection=injection))
    assert len(lines) == 2
    assert LAYOUT.host(injection.ranks[0]) not in lines
    old = lines[injection.place["old_error_host"]]
    days = (scene().bite_ns - old[0][0]) / (86_400 * SECOND_NS)
    assert days == 13
    assert datetime.fromtimestamp(old[0][0] / SECOND_NS, UTC) < datetime.fromtimestamp(scene().began_ns / SECOND_NS, UTC)
