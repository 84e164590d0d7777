"""Groups against their siblings: communication or computation; and whom all wait for by NCCL's Inspector. Healthy jobs show neither."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from _paced import noise, paced

from rca.case import MemoryCase
from rca.drills._synthetic_job import Group, Job
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome

JOB = Job(tp=2, pp=2, dp=4, steps=12)
EVIDENCE = {"evidence": TABLES["evidence"].rows([{"evidence_id": "dump-0", "path": "rank_0"}])}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def asked(question: str, tables: dict[str, pl.DataFrame]) -> Outcome:
    outcome = ask(MemoryCase(EVIDENCE | tables), question)
    assert outcome.status != "failed", outcome.why
    return outcome


def is_dp_of_4(group: Group) -> bool:
    return group.axis == "dp" and 4 in group.members


@pytest.mark.parametrize(
    ("transfer", "sign", "groups"),
    [
        (lambda g, s: 2.0 if g.axis == "tp" and 4 in g.members else 1.0, "slow_transfers_inside", ["tp:00000003"]),
        (lambda g, s: 1.8 if is_dp_of_4(g) else 1.0, "slow_transfers_inside", ["dp:00000009"]),
        (lambda g, s: 1.8 if is_dp_of_4(g) and s >= 5 else 1.0, "slow_transfers_inside", ["dp:00000009"]),
        (lambda g, s: 1.3 if is_dp_of_4(g) else 1.0, "suspect_group", ["dp:00000009"]),
        (lambda g, s: 2.0 if g.axis == "dp" and s >= 5 else 1.0, "slower_than_before", []),
        (lambda g, s: 3.0 if g.axis == "world" and s >= 5 else 1.0, "slower_than_before", ["world:00000000"]),
    ],
    ids=["tp", "dp", "dp from a step on", "may be the wiring", "all of a kind", "alone in its place"],
)
@pytest.mark.parametrize("late", [None, 8])
def test_slow_communication_is_told_from_a_late_rank(
    transfer: Callable[[Group, int], float], sign: str, groups: list[str], late: int | None
) -> None:
    tables = paced(JOB, transfer=transfer, work=lambda r, s: 1.6 if r == late else 1.0, skew_s=lambda r: 0.7 * (r // 8))
    found = asked("sibling_groups", tables).findings
    assert [(f.sign, list(f.groups), f.ranks) for f in found] == [(sign, groups, ())]
    assert found[0].cites
    if late is None:
        assert [f.sign for f in asked("recorded_pace", tables).findings if f.ranks] == []


def test_a_group_without_siblings_is_compared_with_its_own_first_calls() -> None:
    job = Job(tp=1, pp=2, dp=8, steps=12)
    tables = paced(job, transfer=lambda g, s: 2.0 if g.axis == "dp" and 0 in g.members and s >= 5 else 1.0, per_host=2)
    (finding,) = asked("sibling_groups", tables).findings
    assert (finding.sign, finding.ranks, len(finding.groups)) == ("slower_than_before", (), 1), "of two stages one group each: no siblings"


def test_slow_groups_of_two_kinds_name_the_rank_that_they_share() -> None:
    both = asked("sibling_groups", paced(JOB, transfer=lambda g, s: 2.0 if g.axis in ("dp", "tp") and 4 in g.members else 1.0)).findings
    shared = [f for f in both if f.ranks]
    assert [(f.sign, f.ranks, f.hosts) for f in shared] == [("slow_shared_rank", (4,), ("n0",))]
    assert len(both) == 3


def test_a_group_whose_member_computes_longer_is_said_to_compute() -> None:
    told = asked("sibling_groups", paced(JOB, work=lambda r, s: 1.6 if r == 8 else 1.0))
    assert (told.status, [f.sign for f in told.findings], [f.ranks for f in told.findings]) == ("clear", ["members_compute"], [()])
    assert "rank 8" in told.why


@pytest.mark.parametrize("usual", [{}, {"jitter": 0.3}, {"skew_s": lambda r: 0.1 * r}, {"work": lambda r, s: 1.4 if r >= 8 else 1.0}])
def test_siblings_of_a_sound_job_are_alike(usual: dict[str, Any]) -> None:
    told = asked("sibling_groups", paced(JOB, **usual))
    assert (told.status, told.findings) == ("clear", ())


def test_without_starts_and_ends_it_is_blind() -> None:
    assert asked("sibling_groups", paced(JOB, timing=False)).status == "blind"


# Whom all wait for, by the Inspector


def inspected(
    late: Callable[[int, int], float], *, tp: int = 4, dp: int = 4, calls: int = 60, batch_s: float = 2.0
) -> dict[str, pl.DataFrame]:
    """Times of tp and dp communicators: in each the members wait for the latest; whoever waited in tp is as late for dp."""
    rows: list[dict[str, Any]] = []
    num = tp * dp

    def add(comm: str, members: list[int], call: int, arrives: dict[int, float]) -> None:
        end = max(arrives[r] for r in members) + 0.002 * (1 + 0.05 * noise(call, len(rows)))
        rows.extend(
            {"evidence_id": f"i-{r}", "record": f"L{len(rows) + k}", "comm": comm, "group_rank": k, "group_size": len(members), "host": f"n{r // 4}",
             "pid": 100 + r, "op": "AllReduce", "is_p2p": False, "size_bytes": 4096, "collective_seq_id": call, "exec_s": end - arrives[r],
             "logged_at": NOON + timedelta(seconds=batch_s * (call // 20))}
            for k, r in enumerate(members)
        )  # fmt: skip
        arrives |= dict.fromkeys(members, end)

    for call in range(calls):
        arrives = {r: 0.1 * late(r, call) * (1 + 0.02 * noise(r, call)) for r in range(num)}
        for group in range(dp) if tp > 1 else ():
            add(f"0xt{group}", [group * tp + k for k in range(tp)], call, arrives)
        for k in range(tp) if dp > 1 else ():
            add(f"0xd{k}", [k + tp * group for group in range(dp)], call, arrives)
    ranks = [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": f"n{r // 4}", "pid": 100 + r} for r in range(num)]
    return {"nccl_calls": TABLES["nccl_calls"].rows(rows), "ranks": TABLES["ranks"].rows(ranks)}


def test_the_rank_that_waits_for_nobody_is_named_and_not_its_neighbours() -> None:
    for since in (0, 25):
        tables = inspected(lambda r, call, since=since: 1.5 if r == 6 and call >= since else 1.0)  # type: ignore[misc]
        (finding,) = asked("waited_for", tables).findings
        assert (finding.ranks, finding.hosts) == ((6,), ("n1",))
        assert finding.cites
    without = {name: frame for name, frame in tables.items() if name == "nccl_calls"}
    (finding,) = asked("waited_for", without).findings
    assert (finding.ranks, "process 106 on n1" in finding.says) == ((), True)


@pytest.mark.parametrize(
    ("late", "layout"),
    [
        (lambda r, call: 1.0, {}),
        (lambda r, call: 1.5 if r == 6 and call < 20 else 1.0, {}),  # over long since
        (lambda r, call: 2.0 if r == call % 16 else 1.0, {}),  # each in turn
        (lambda r, call: 1.5 if r % 4 == 0 else 1.0, {}),  # they read for their groups
        (lambda r, call: 1.5 if r % 4 == 0 else 1.0, {"dp": 4, "tp": 4, "batch_s": 0.0}),
        (lambda r, call: 1.5 if r % 2 else 1.0, {"tp": 2, "dp": 8}),
        (lambda r, call: 1.0 + 0.001 * (r == 6), {"batch_s": 60.0}),  # last by a hair, in long steps
    ],
)
def test_nobody_is_waited_for_in_a_sound_job(late: Callable[[int, int], float], layout: dict[str, Any]) -> None:
    told = asked("waited_for", inspected(late, **layout))
    assert told.findings == ()


def test_few_calls_are_too_few() -> None:
    assert asked("waited_for", inspected(lambda r, call: 1.5 if r == 6 else 1.0, calls=30)).status == "blind"


def test_siblings_by_the_inspector_too() -> None:
    tables = inspected(lambda r, call: 1.0)
    slow = (pl.col("comm") == "0xd2").cast(pl.Float64) * 0.004 + pl.col("exec_s")
    (finding,) = asked("sibling_groups", tables | {"nccl_calls": tables["nccl_calls"].with_columns(exec_s=slow)}).findings
    assert (finding.sign, finding.groups, finding.numbers["candidates"]) == ("slow_transfers", ("0xd2",), [2, 6, 10, 14])
    assert asked("sibling_groups", tables).findings == ()
