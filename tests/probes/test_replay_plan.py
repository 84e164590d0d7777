"""Plans of dual-phase replay: the figures of the paper, every size up to 1,200 hosts, sizes that do not fit, hosts of a case."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _house import call, copy_case, frames

from rca import plugins
from rca.case import MemoryCase
from rca.errors import UsageError
from rca.probes._replay_case import hosts_in_order
from rca.probes._replay_plan import chance, dual_phase, max_suspects, repeats_needed
from rca.roster import roster
from rca.tables import TABLES

MAX_EXHAUSTIVE = 1200
plan = plugins.load("rca.probes", "dual_phase_replay").plan


def suspects_of(faulty: int, phases: list[dict[str, Any]]) -> list[int]:
    """Hosts in the groups of both phases that hold the faulty one."""
    first, second = (next(set(group) for group in phase["groups"] if faulty in group) for phase in phases)
    return sorted(first & second)


def largest(m: int, n: int) -> int:
    """By counting: the most hosts that a horizontal and a vertical group share."""
    shared: dict[tuple[int, int], int] = {}
    for host in range(m * n):
        shared[host // m, host % n] = shared.get((host // m, host % n), 0) + 1
    return max(shared.values())


def test_figure_6_of_the_paper_names_host_13() -> None:
    made = plan(24, 4, k=1)
    horizontal, vertical = (phase["groups"] for phase in made["phases"])
    assert (made["m"], made["n"]) == (4, 6)
    assert horizontal[3] == [12, 13, 14, 15]
    assert vertical[1] == [1, 7, 13, 19]
    assert suspects_of(13, made["phases"]) == [13]


@pytest.mark.parametrize(("m", "n", "size"), [(4, 6, 1), (6, 4, 2), (12, 6, 2), (16, 75, 1), (80, 15, 6)])
def test_largest_suspect_set_of_known_sizes(m: int, n: int, size: int) -> None:
    assert max_suspects(m, n) == size
    assert max(len(suspects_of(host, dual_phase(m, n))) for host in range(m * n)) == size
    assert plan(m * n, m)["max_suspects"] == size


def test_largest_suspect_set_of_every_size_by_counting() -> None:
    wrong = [
        (m, n)
        for num_hosts in range(1, MAX_EXHAUSTIVE + 1)
        for m in range(1, num_hosts + 1)
        if num_hosts % m == 0 and largest(m, n := num_hosts // m) != max_suspects(m, n)
    ]
    assert wrong == []


def test_each_phase_holds_every_host_once_in_groups_of_one_size() -> None:
    for m in range(1, 13):
        for n in range(2, 13):
            for phase in dual_phase(m, n):
                assert sorted(host for group in phase["groups"] for host in group) == list(range(m * n))
                assert {len(group) for group in phase["groups"]} == {m}


def test_the_faulty_host_is_among_the_suspects_whatever_it_is() -> None:
    for m in range(1, 20):
        for n in range(2, 20):
            phases = dual_phase(m, n)
            for faulty in random.Random(m * 20 + n).sample(range(m * n), min(8, m * n)):
                found = suspects_of(faulty, phases)
                assert faulty in found
                assert (len(found) == 1) or m > n


def test_chance_and_repeats_of_a_fault_that_seldom_shows() -> None:
    assert chance(0.02, 150) == pytest.approx(0.906, abs=5e-4)
    assert chance(0.02, 50) == pytest.approx(0.40, abs=5e-3)
    assert chance(0.02, 1) == pytest.approx(0.0004, abs=1e-6)
    assert chance(1.0, 1) == 1.0
    for q in (1e-4, 0.001, 0.02, 0.1, 0.5, 0.9, 0.949, 0.96, 1.0):
        for phases in (1, 2):
            least = repeats_needed(q, phases)
            assert chance(q, least, phases) >= 0.9
            assert least == 1 or chance(q, least - 1, phases) < 0.9
    assert plan(24, 4, reproduction=0.02)["detection"] == {
        "reproduction": 0.02,
        "repeats": 1,
        "chance": pytest.approx(0.0004),
        "wanted": 0.9,
        "repeats_needed": repeats_needed(0.02),
    }
    assert plan(24, 4)["detection"]["chance"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--hosts", "23", "--pp", "4", "--k", "1"), ("no --k fits 23 hosts", "--hosts 20 or 24 fits")),
        (("--hosts", "24", "--pp", "4", "--k", "4"), ("--k 1 or 2 or 3 fits 24 hosts", "--hosts 32 fits")),
        (("--hosts", "24", "--pp", "4", "--k", "6"), ("nothing to compare it with", "--k 1 or 2 or 3 fits", "--hosts 48 fits")),
        (("--hosts", "24"), ("--pp P is missing",)),
        (("--hosts", "0", "--pp", "4"), ("--hosts 0",)),
        (("--hosts", "24", "--pp", "-1"), ("--pp -1",)),
        (("--hosts", "24", "--pp", "4", "--repeats", "0"), ("--repeats 0",)),
        (("--hosts", "24", "--pp", "4", "--reproduction", "1.5"), ("--reproduction 1.5",)),
        (("--hosts", "24", "--pp", "4", "--mode", "triple"), ("dual_phase",)),
        ((), ("one of the two",)),
    ],
)
def test_sizes_that_do_not_fit_say_which_do(words: tuple[str, ...], told: tuple[str, ...]) -> None:
    done = call("replay", "plan", *words)
    assert (done.code, done.out) == (2, "")
    for part in told:
        assert part in done.err


def test_the_document_of_the_command() -> None:
    done = call("replay", "plan", "--hosts", "24", "--pp", "4", "--k", "1", "--json")
    assert done.code == 0
    assert done.doc["schema_version"] == "rca.replay_plan/1"
    assert [phase["name"] for phase in done.doc["phases"]] == ["horizontal", "vertical"]
    assert done.doc["phases"][1]["groups"][1] == [1, 7, 13, 19]
    assert done.doc["max_suspects"] == 1
    assert call("replay", "plan", "--hosts", "24", "--pp", "4", "--k", "1", "--json").out == done.out
    assert "1, 7, 13, 19" in call("replay", "plan", "--hosts", "24", "--pp", "4").out


def test_too_few_hosts_run_twice_each_and_the_plan_says_so() -> None:
    made = plan(6, 4)
    assert made["mode"] == "double_run"
    assert made["phases"] == [{"name": "double_run", "groups": [[host] for host in range(6)], "order": list(range(6))}]
    assert made["repeats"] == 2
    assert "too few for two phases" in made["notes"][0]


def test_a_plan_from_a_case_names_its_hosts_and_runs_suspects_first(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = call("replay", "plan", copy_case("bit_flip", tmp_path / "case"), "--json", "--out", out)
    assert done.code == 0
    assert done.doc["hosts"] == ["host-a", "host-b", "host-c"]
    assert done.doc["suspects"] == ["host-b"]
    assert done.doc["mode"] == "double_run"
    assert done.doc["phases"][0]["order"] == [1, 0, 2]
    assert out.read_text() == done.out


def of_ranks(rows: list[dict[str, Any]]) -> MemoryCase:
    return MemoryCase({"ranks": TABLES["ranks"].rows([{"record": f"E{at}", **row} for at, row in enumerate(rows)])})


def a_map(pp: int, dp: int, tp: int = 2) -> list[dict[str, Any]]:
    """tp ranks of one stage on each host, tensor parallel fastest, pipeline slowest."""
    rows = []
    for rank in range(pp * dp * tp):
        stage, replica = rank // (tp * dp), rank // tp % dp
        rows.append({"rank": rank, "host": f"n{stage}-{replica}", "local_rank": rank % tp, "tp": rank % tp, "pp": stage, "dp": replica})
    return rows


def test_hosts_stand_in_pipeline_order_whatever_the_order_of_ranks_and_names() -> None:
    rows = a_map(pp=3, dp=4)
    wanted = [f"n{stage}-{replica}" for replica in range(4) for stage in range(3)]
    for seed in range(3):
        mixed = random.Random(seed).sample(rows, len(rows))
        case = of_ranks(mixed)
        assert hosts_in_order(case, roster(case).hosts) == (wanted, 3)
    new = {row["host"]: f"z{9 - at}" for at, row in enumerate(rows[::2])}
    case = of_ranks([{**row, "host": new[row["host"]]} for row in rows])
    assert hosts_in_order(case, roster(case).hosts) == ([new[host] for host in wanted], 3)


def test_a_host_with_several_stages_is_one_place_of_the_pipeline() -> None:
    rows = [{"rank": r, "host": f"n{r // 4}", "local_rank": r % 4, "tp": r % 2, "pp": r // 2 % 4, "dp": r // 8} for r in range(24)]
    case = of_ranks(rows)
    assert hosts_in_order(case, roster(case).hosts) == ([f"n{number}" for number in range(6)], 2)


def test_without_coordinates_the_pipeline_groups_tell() -> None:
    known = frames("lock_hang")
    blank = known["ranks"].with_columns(pl.lit(None, pl.Int64).alias(axis) for axis in ("dp", "tp", "pp", "cp", "ep"))
    who = roster(MemoryCase(known)).hosts
    assert hosts_in_order(MemoryCase({**known, "ranks": blank}), who) == hosts_in_order(MemoryCase(known), who)


def test_without_coordinates_and_groups_a_map_or_pp_is_asked_for() -> None:
    rows = [{"rank": rank, "host": f"n{rank}", "local_rank": 0} for rank in (10, 2, 1, 0)]
    case = of_ranks(rows)
    with pytest.raises(UsageError, match=r"stage of ranks 0, 1, 2, 10 is not told.*--pp"):
        hosts_in_order(case, roster(case).hosts)
    assert hosts_in_order(case, roster(case).hosts, 2) == (["n0", "n1", "n2", "n10"], 2)
    with pytest.raises(UsageError, match=r"add a rank map"):
        hosts_in_order(MemoryCase({}), {})


def test_hosts_that_hold_stages_unevenly_are_no_pipelines() -> None:
    rows = a_map(pp=2, dp=2)[:-2]
    case = of_ranks(rows)
    with pytest.raises(UsageError, match=r"do not hold the stages evenly.*--pp"):
        hosts_in_order(case, roster(case).hosts)


@pytest.mark.parametrize("mode", ["auto", "dual_phase"])
def test_one_host_has_no_second_to_compare_with_unless_asked_for_by_name(mode: str) -> None:
    with pytest.raises(UsageError, match="no second one to compare"):
        plan(1, 1, mode=mode)
    assert plan(1, 1, mode="double_run")["mode"] == "double_run"
    assert plan(2, 1)["num_hosts"] == 2
