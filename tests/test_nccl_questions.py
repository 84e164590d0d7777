"""The questions about RAS, GPU metrics, hang gauges and finished calls. Small tables, one story each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
Rows = dict[str, list[dict[str, Any]]]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def a_map(num: int = 8, **more: Any) -> Rows:
    """Ranks on one host; rank r is process 100 + r, but in communicators all count backwards."""
    return {
        "ranks": [
            {"rank": r, "host": "host-a", "local_rank": r, "pid": 100 + r, "gpu": f"00000000:{16 + r:02x}:00.0", **more} for r in range(num)
        ]
    }


def outcome(name: str, *parts: Rows) -> Outcome:
    rows: Rows = {}
    for part in parts:
        for table, some in part.items():
            rows.setdefault(table, []).extend({"evidence_id": table[:8], "record": f"L{i}", **row} for i, row in enumerate(some, 1))
    return ask(MemoryCase({table: TABLES[table].rows(some) for table, some in rows.items()}), name)


def reports(
    *counts: dict[int, int], apart_s: float = 30, comm: str = "0x1", op: str = "AllReduce", host: str = "host-a", size: int = 8
) -> Rows:
    """JSON reports: calls by the rank of the communicator, which is 7 - the global one."""
    told: Rows = {"nccl_ras": [], "nccl_ras_ranks": [], "nccl_ras_ops": []}
    for number, calls in enumerate(counts, 1):
        of = {"snapshot": number, "taken_at": at(number * apart_s), "comm": comm}
        told["nccl_ras"].append({**of, "num_ranks": size, "ranks_per_comm": size, "errors": "MISMATCH", "status": "RUNNING"})
        told["nccl_ras_ranks"] += [
            {**of, "group_rank": r, "host": host, "pid": 107 - r, "local_gpu": 7 - r, "is_missing": False} for r in calls
        ]
        told["nccl_ras_ops"] += [{**of, "group_rank": r, "op": op, "num_calls": n} for r, n in calls.items()]
    return told


LATE = {r: 12 if r else 11 for r in range(8)}  # rank 0 of the communicator is behind: it is global rank 7


def test_a_rank_that_stays_behind_is_named_by_its_process_and_not_by_its_number_in_the_communicator() -> None:
    found = outcome("ras_counts", a_map(), reports(LATE, LATE)).findings
    assert [(f.sign, f.ranks, f.hosts) for f in found] == [("behind", (7,), ("host-a",))]
    assert found[0].explains == tuple(range(7))


def test_without_a_map_process_and_host_are_named_and_no_rank() -> None:
    (found,) = outcome("ras_counts", reports(LATE, LATE)).findings
    assert (found.sign, found.ranks, found.hosts) == ("behind", (), ("host-a",))
    assert "process 107 on host-a" in found.says


def test_one_report_or_two_of_one_moment_or_counts_that_go_on_accuse_nobody() -> None:
    later = {r: n + 5 for r, n in LATE.items()}
    for shots, sign in ((reports(LATE), "differs_once"), (reports(LATE, LATE, apart_s=1), "moves"), (reports(LATE, later), "moves")):
        told = outcome("ras_counts", a_map(), shots)
        assert (told.status, [f.sign for f in told.findings], [f.ranks for f in told.findings]) == ("clear", [sign], [()])
    even = dict.fromkeys(range(8), 12)
    assert outcome("ras_counts", a_map(), reports(even, even)).status == "clear"
    assert outcome("ras_counts", a_map(), reports(LATE, LATE, later)).status == "clear", "it went on after the two"


def test_the_few_that_ras_lists_may_be_ahead() -> None:
    ahead = {r: 641 if r in (2, 3) else 640 for r in range(8)}
    (found,) = outcome("ras_counts", a_map(), reports(ahead, ahead)).findings
    assert (found.sign, found.ranks, found.hosts) == ("few_ahead", (), ())
    assert "2 of 8" in found.says


def test_text_that_lists_those_ahead_and_text_that_lists_those_behind() -> None:
    def text(named: int, num_behind: int) -> Rows:
        of = [{"snapshot": n, "taken_at": at(30 * n), "comm": "00a1"} for n in (1, 2)]
        calls = 641 if num_behind == 7 else 640
        return {
            "nccl_ras": [{**o, "ranks_per_comm": 8, "errors": "MISMATCH"} for o in of],
            "nccl_ras_ranks": [{**o, "group_rank": named, "host": "host-a", "pid": 100 + named} for o in of],
            "nccl_ras_ops": [
                row
                for o in of
                for row in (
                    {
                        **o,
                        "op": "AllGather",
                        "num_behind": num_behind,
                        "count_behind": 640,
                        "num_ahead": 8 - num_behind,
                        "count_ahead": 641,
                    },
                    {**o, "op": "AllGather", "group_rank": named, "num_calls": calls},
                )
            ],
        }

    assert [(f.sign, f.ranks) for f in outcome("ras_counts", a_map(), text(3, 1)).findings] == [("behind", (3,))]
    assert [(f.sign, f.ranks) for f in outcome("ras_counts", a_map(), text(3, 7)).findings] == [("few_ahead", ())]


def test_a_rank_that_is_behind_in_one_group_and_waits_in_another_is_not_accused() -> None:
    """Ranks 7 and 6 are behind in the large group, and 7 because it waits for 6 in a small one."""
    large, small = {r: 11 if r < 2 else 12 for r in range(8)}, {0: 5, 1: 4}  # the small one is of ranks 7 and 6
    told = outcome("ras_counts", a_map(), reports(large, large), reports(small, small, comm="0x2", size=3))
    assert [(f.sign, f.ranks) for f in told.findings] == [("behind", (6,))]
    crossed = outcome("ras_counts", a_map(), reports(LATE, LATE), reports(small, small, comm="0x2", size=3))
    assert [(f.sign, f.ranks) for f in crossed.findings] == [("few_ahead", ())], "each is ahead where the other waits for it"


def test_a_process_that_does_not_answer_and_one_that_left_the_communicator() -> None:
    def gone(**row: Any) -> Rows:
        of = {"snapshot": 1, "comm": "0x1", "host": "host-a", "pid": 103, "group_rank": 4, "is_missing": True, **row}
        return {"nccl_ras": [{"snapshot": 1, "comm": "0x1", "ranks_per_comm": 8, "errors": "INCOMPLETE"}], "nccl_ras_ranks": [of]}

    for row, sign in (({"is_unresponsive": True, "is_dead": False}, "unresponsive"), ({"is_dead": True}, "dead")):
        assert [(f.sign, f.ranks) for f in outcome("ras_counts", a_map(), gone(**row)).findings] == [(sign, (3,))]
    assert outcome("ras_counts", a_map(), gone(status="NOCOMM")).status == "clear"
    well = {"log_events": [{"rank": r, "signature": "worker_finished", "logged_at": at(50)} for r in range(8)]}
    assert outcome("ras_counts", a_map(), gone(is_dead=True), well).status == "clear", "processes end when jobs do"


def test_ras_says_ok_and_a_watchdog_times_out() -> None:
    ok = {"nccl_ras": [{"snapshot": 1, "errors": "OK", "status": "RUNNING"}]}
    late = {"log_events": [{"rank": 1, "signature": "nccl_watchdog_timeout", "logged_at": at(90), "message": "Watchdog caught"}]}
    told = outcome("ras_counts", a_map(), ok, late)
    assert (told.status, [f.sign for f in told.findings], told.findings[0].ranks) == ("clear", ["says_ok"], ())


def test_the_monitor_declares_a_process_dead() -> None:
    event = {"trainer_events": [{"event": "PEER_DEAD", "source": "nccl_ras", "host": "host-a", "pid": 102}]}
    assert [(f.sign, f.ranks) for f in outcome("ras_monitor", a_map(), event).findings] == [("peer_dead", (2,))]
    assert outcome("ras_monitor", a_map(), {"trainer_events": [{"event": "step_end", "source": "torchtitan"}]}).status == "blind"


def xids(
    *values: float, gpu: int = 2, start: float = 0, name: str = "DCGM_FI_DEV_XID_ERRORS", timed: bool = True, host: str = "host-a"
) -> Rows:
    rows = []
    for number, value in enumerate(values):
        code = int(value) if "XID_ERRORS" in name and value else None
        moment = at(start + 15 * number) if timed else None
        rows.append(
            {
                "name": name,
                "host": host,
                "gpu": f"0000:{16 + gpu:02x}:00",
                "scrape": number + 1,
                "sampled_at": moment,
                "value": value,
                "code": code,
            }
        )
    return {"gpu_samples": rows}


def test_an_edge_is_an_event_and_a_level_is_none() -> None:
    (found,) = outcome("gpu_metrics", a_map(), xids(0, 0, 79, 79)).findings
    assert (found.sign, found.ranks, found.numbers["failed_at"]) == ("gpu_edge", (2,), at(15).isoformat())
    assert "cannot show repeats" in found.says
    told = outcome("gpu_metrics", a_map(), xids(79, 79, 79))
    assert (told.status, [f.sign for f in told.findings]) == ("clear", ["level"])
    assert "cannot show repeats" in told.findings[0].says


def test_edges_that_accuse_nobody() -> None:
    after = {"steps": [{"rank": r, "step": n, "started_at": at(20 + 10 * n)} for r in range(8) for n in range(10)]}
    for parts, sign in (
        ((xids(0, 45),), "not_counted"),  # it only follows
        ((xids(0, 31),), "not_counted"),  # a program's
        ((xids(0, 79, timed=False),), "not_counted"),
        ((xids(0, 79, gpu=40),), "not_counted"),  # of no rank
        ((xids(0, 79, host="host-b"),), "not_counted"),
        ((xids(0, 79), after), "not_counted"),
        ((xids(0, 79), xids(0, 79, gpu=3)), "several_edges"),
    ):
        told = outcome("gpu_metrics", a_map(), *parts)
        assert [(f.sign, f.ranks) for f in told.findings] == [(sign, ())], sign
    assert outcome("gpu_metrics", a_map(), xids(0)).status == "blind", "one sample shows no change"
    assert outcome("gpu_metrics", a_map(), xids(0, 0)).status == "clear"


def test_counters_of_memory_count_a_little_and_replays_are_a_note() -> None:
    told = outcome("gpu_metrics", a_map(), xids(0, 0), xids(0, 1, name="DCGM_FI_DEV_ROW_REMAP_FAILURE"))
    assert [(f.sign, f.ranks) for f in told.findings] == [("memory_rises", (2,))]
    told = outcome("gpu_metrics", a_map(), xids(0, 0), xids(3, 9, name="DCGM_FI_DEV_PCIE_REPLAY_COUNTER"))
    assert (told.status, [f.sign for f in told.findings]) == ("clear", ["rises"])
    slow = [xids(*[1980 if g else 900] * 3, gpu=g, name="DCGM_FI_DEV_SM_CLOCK") for g in range(4)]
    told = outcome("gpu_metrics", a_map(), xids(0, 0), *slow)
    assert [(f.sign, f.numbers.get("candidates")) for f in told.findings] == [("slow_clock", [0])]


def test_hang_gauges_accuse_nobody() -> None:
    def states(hang: set[int]) -> Rows:
        return {"rank_states": [{"rank": r, "is_hang": r in hang} for r in range(8)]}

    for hang, signs in ((set(range(8)), ["all_hang"]), ({0, 2, 5}, ["some_hang"]), (set(), [])):
        told = outcome("hang_gauges", states(hang))
        assert (told.status, [f.sign for f in told.findings], [f.ranks for f in told.findings]) == ("clear", signs, [()] * len(signs))


def test_calls_that_finished() -> None:
    def calls(last: dict[int, int]) -> Rows:
        return {
            "nccl_calls": [
                {
                    "comm": "0x1",
                    "group_rank": r,
                    "op": "AllReduce",
                    "collective_seq_id": n,
                    "is_p2p": False,
                    "exec_s": 0.01,
                    "logged_at": at(n),
                    "size_bytes": 1,
                }
                for r, most in last.items()
                for n in range(most)
            ]
        }

    told = outcome("last_finished", calls({0: 30, 1: 30, 2: 25}))
    assert (told.status, [f.sign for f in told.findings], told.findings[0].ranks) == ("clear", ["behind"], ())
    assert "rank 2 finished AllReduce number 24 last" in told.findings[0].says
    assert outcome("last_finished", calls({0: 30, 1: 30, 2: 29})).findings == ()
