"""Several ranks that never made the same call: said once, with those who wait in that call and no others."""

from __future__ import annotations

import polars as pl
import pytest

from rca.analyses._wait_graph import Call, Waits
from rca.analyses._wait_words import says_absent
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

GAVE_UP = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600040 milliseconds"
)


def stalled(world: int, a_host: int, silent: range) -> MemoryCase:
    """Each rank calls in its group of the data parallel ranks of its place on a host; those of one host leave out the fourth call."""
    calls, dumps, heads, members = [], [], [], []
    for rank in range(world):
        group = f"dp:{rank % a_host}"
        members.append({"group_id": group, "rank": rank, "group_rank": rank // a_host, "evidence_id": f"d{rank}"})
        heads.append({"evidence_id": f"d{rank}", "rank": rank, "backend": "nccl", "num_entries": 4, "is_torn": False})
        dumps.append({"evidence_id": f"d{rank}", "rank": rank, "host": f"host-{rank // a_host}", "dump_status": "ok"})
        for seq in range(1, 4 if rank in silent else 5):
            calls.append({
                "evidence_id": f"d{rank}", "record": f"E{seq}", "rank": rank, "group_id": group, "record_id": seq,
                "collective_seq_id": seq, "op": "all_reduce", "backend": "nccl", "is_p2p": False,
                "state": "started" if seq == 4 else "completed", "is_retired": seq < 4, "is_tail": True,
            })  # fmt: skip
    tables = {"collectives": calls, "dump_index": dumps, "memberships": members, "dumps": heads}
    return MemoryCase(
        {name: TABLES[name].frame(pl.DataFrame(rows).to_dict(as_series=True), height=len(rows)) for name, rows in tables.items()}
    )


def test_ranks_of_a_host_that_left_out_the_same_call_of_their_groups_are_told_in_one_sentence() -> None:
    outcome = ask(stalled(32, 4, range(8, 12)), "first_silent_rank")
    assert outcome.status == "found", outcome.why
    (finding,) = outcome.findings
    assert (finding.sign, finding.ranks) == ("never_joined", (8, 9, 10, 11))
    assert finding.says.count("never joined") == 1
    assert "ranks 8, 9, 10, 11 never joined all_reduce #4 of their 4 dp groups" in finding.says
    assert "the last call of each there was #3" in finding.says


def test_who_waits_in_another_call_is_not_told_as_waiting_in_the_first_one() -> None:
    groups = {"dp:a": {0, 2}, "dp:b": {1, 3}, "world:c": set(range(8))}
    at = {0: ("dp:a", 4), 1: ("dp:b", 4)} | dict.fromkeys(range(4, 8), ("world:c", 9))
    first = {r: Call(r, group, seq, "all_reduce", "", None, False, None, None, None, "", "") for r, (group, seq) in at.items()}
    members = {group: frozenset(ranks) for group, ranks in groups.items()}
    lost = frozenset({2, 3})
    waits = Waits(members, frozenset(first), frozenset(first), first, {}, {}, False, frozenset(), frozenset(), frozenset(), {("dp", 4): 0})
    for rank, node in at.items():
        waits.waiters.setdefault(node, []).append(rank)
    for node in dict.fromkeys(at.values()):
        for rank in sorted(members[node[0]] & lost):
            waits.awaited.setdefault(rank, []).append(node)
    says = says_absent(waits, sorted(lost), "host-1 left no dump")
    assert says == "host-1 left no dump, and ranks 0, 1 wait for them in all_reduce #4 of their 2 dp groups; 6 ranks wait in all"


@pytest.mark.parametrize(
    ("seq", "group_rank", "accused"),
    [(4, 2, []), (4, None, []), (3, 2, [(9,)]), (4, 1, [(9,)])],
    ids=["there", "place not told", "in another call", "in another group"],
)
def test_who_left_no_dump_and_gave_up_that_very_call_is_not_awaited_in_it(
    seq: int, group_rank: int | None, accused: list[tuple[int, ...]]
) -> None:
    case = stalled(12, 4, range(0))
    lost = {name: case.table(name).filter(pl.col("evidence_id") != "d9").collect() for name in ("collectives", "dump_index", "dumps")}
    line = {"evidence_id": ["l"], "record": ["L1"], "rank": [9], "signature": ["nccl_watchdog_timeout"], "message": [GAVE_UP.format(seq)]}
    logged = TABLES["log_events"].frame({**line, "group_rank": [group_rank]})
    outcome = ask(MemoryCase({**lost, "memberships": case.table("memberships").collect(), "log_events": logged}), "first_silent_rank")
    assert [finding.ranks for finding in outcome.findings] == accused
