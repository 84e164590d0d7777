"""What a replay makes of a verdict: proven where it names exactly the hosts, its candidates where it does not, less hardware where it is clean."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from _house import frames
from _replays import RAN_AT, Fault, rows_of

from rca import plugins
from rca.case import MemoryCase
from rca.judge import Judgement, judge
from rca.probes._replay_plan import double_run, dual_phase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome
from rca.weighing import weights

HOSTS = {0: "host-a", 1: "host-b", 2: "host-c"}  # of data/cases/bit_flip, whose rank 2 on host-b is wrong
DOUBLE = {"phases": double_run(3)}


def with_replay(tables: Mapping[str, pl.DataFrame], rows: Sequence[Mapping[str, Any]]) -> MemoryCase:
    return MemoryCase({**tables, "replays": TABLES["replays"].rows([dict(row) for row in rows])})


def judged(case_name: str, rows: Sequence[Mapping[str, Any]]) -> Judgement:
    return judge(with_replay(frames(case_name), rows))


def asked(rows: Sequence[Mapping[str, Any]], tables: Mapping[str, pl.DataFrame] | None = None) -> Outcome:
    return ask(with_replay(tables or {}, rows), "replay_proof")


def test_a_replay_that_names_the_host_proves_the_verdict() -> None:
    before = judge(MemoryCase(frames("bit_flip"))).verdict
    after = judged("bit_flip", rows_of(DOUBLE, [Fault(1)], repeats=2, names=HOSTS))
    assert (before.proven, after.verdict.proven) == (False, True)
    assert (after.verdict.ranks, after.verdict.hosts, after.verdict.cause) == ((2,), ("host-b",), "silent_data_corruption")
    assert after.verdict.probability > before.probability
    assert after.verdict.summary.endswith("proven by replay")
    assert after.advice.replay is None
    assert after.advice.evict_hosts == ("host-b",)


def test_a_replay_that_names_another_host_or_more_of_them_proves_nothing() -> None:
    found = judged("bit_flip", rows_of(DOUBLE, [Fault(2)], repeats=2, names=HOSTS)).verdict
    assert (found.hosts, found.proven, found.concurrent) == (("host-b",), False, True)
    rows = rows_of({"phases": double_run(5)}, [Fault(1), Fault(2)], repeats=2, names={**HOSTS, 3: "host-d", 4: "host-e"})
    found = judged("bit_flip", rows).verdict
    assert (found.hosts, found.proven) == (("host-b",), False)


def test_a_cause_that_wrong_bits_do_not_show_is_not_proven() -> None:
    """A hang in code on a host that a replay names: the host may be bad, and is not shown to be why the code hangs."""
    case = frames("lock_hang")
    host = case["ranks"].filter(pl.col("rank") == 3)["host"].drop_nulls()[0]
    names = dict(enumerate([host, *sorted(set(case["ranks"]["host"].drop_nulls()) - {host})]))
    rows = rows_of({"phases": double_run(len(names))}, [Fault(0)], repeats=2, names=names)
    found = judge(with_replay(case, rows)).verdict
    assert (found.cause, found.hosts, found.proven) == ("code_hang", (host,), False)


def test_records_alone_name_the_host_though_no_rank_is_known() -> None:
    found = judge(with_replay({}, rows_of({"phases": dual_phase(4, 6)}, [Fault(13)])))
    assert (found.verdict.cause, found.verdict.hosts, found.verdict.ranks) == ("silent_data_corruption", ("n13",), ())
    assert found.verdict.proven
    assert "n13" in found.verdict.summary
    assert found.advice.evict_hosts == ("n13",)


def test_a_replay_that_leaves_several_hosts_accuses_nobody() -> None:
    faults = [Fault(0, spreads_at_once=True), Fault(7, spreads_at_once=True)]
    found = judge(with_replay({}, rows_of({"phases": dual_phase(6, 6)}, faults)))
    assert (found.verdict.cause, found.verdict.hosts, found.verdict.proven) == ("silent_data_corruption", (), False)
    assert found.advice.evict_hosts == ()
    assert found.advice.replay is not None
    assert found.advice.replay["suspects"] == ["n0", "n1", "n6", "n7"]
    assert "rca replay plan" in found.advice.because


def test_a_clean_replay_makes_hardware_less_likely_and_health_no_less() -> None:
    rows = rows_of(DOUBLE, repeats=2, names=HOSTS)
    (finding,) = asked(rows).findings
    assert (finding.sign, finding.ranks, finding.hosts) == ("replay_clean", (), ())

    def share(judgement: Judgement, causes: set[str]) -> float:
        return sum(h.probability for h in judgement.verdict.hypotheses if h.cause in causes)

    hardware = {"silent_data_corruption"}
    assert share(judged("bit_flip", rows), hardware) < share(judge(MemoryCase(frames("bit_flip"))), hardware)
    healthy = judged("none", rows)
    assert (healthy.verdict.cause, healthy.verdict.proven) == ("healthy", False)
    assert healthy.verdict.probability >= judge(MemoryCase(frames("none"))).verdict.probability - 0.02


def test_what_is_missing_or_tied_is_blind_and_says_why() -> None:
    dead = rows_of(DOUBLE, killed=[("double_run", 1)], repeats=2)
    assert (asked(dead).status, asked(dead).findings) == ("blind", ())
    assert "left no whole record" in asked(dead).why
    tie = asked(rows_of({"phases": double_run(2)}, [Fault(0)], repeats=2))
    assert (tie.status, "tie" in tie.why) == ("blind", True)
    planned = [{**row, "step": None, "fingerprint": None, "repeat": None, "outcome": "missing"} for row in rows_of(DOUBLE, steps=1)]
    assert asked(planned).status == "blind"
    assert "no record of a run" in asked(planned).why


def test_a_later_clean_replay_does_not_clear_a_host_that_one_named() -> None:
    later = [{**row, "replay_id": "s", "ran_at": RAN_AT + timedelta(hours=1)} for row in rows_of(DOUBLE, repeats=2)]
    assert [f.sign for f in asked([*rows_of(DOUBLE, [Fault(1)], repeats=2), *later]).findings] == ["replay_culprit"]


def test_findings_cite_the_rows_that_differ_first_and_do_not_hang_on_their_order() -> None:
    rows = rows_of({"phases": dual_phase(4, 6)}, [Fault(13, step=2)], repeats=2)
    expected = asked(rows).findings
    assert expected[0].cites
    assert all(cite.table == "replays" and "n13, step 2" in cite.text for cite in expected[0].cites)
    known = {(row["evidence_id"], row["record"]) for row in rows}
    assert {(cite.evidence_id, cite.record) for cite in expected[0].cites} <= known
    for seed in range(3):
        assert asked(random.Random(seed).sample(rows, len(rows))).findings == expected


def test_all_ranks_of_the_named_host_are_accused_whatever_their_numbers() -> None:
    rows = rows_of({"phases": dual_phase(2, 3)}, [Fault(4)])
    for seed in range(3):
        numbers = random.Random(seed).sample(range(12), 12)
        ranks = [{"record": f"E{at}", "rank": rank, "host": f"n{at // 2}", "local_rank": at % 2} for at, rank in enumerate(numbers)]
        (finding,) = asked(rows, {"ranks": TABLES["ranks"].rows(ranks)}).findings
        assert finding.ranks == tuple(sorted(numbers[8:10]))
        assert finding.hosts == ("n4",)


@pytest.mark.parametrize("sign", ["replay_culprit", "replay_differs", "replay_clean"])
def test_each_sign_is_shown_by_some_replay(sign: str) -> None:
    plan = {"phases": dual_phase(2, 3)}
    rows = {
        "replay_culprit": rows_of(plan, [Fault(3)]),
        "replay_differs": [row for row in rows_of(plan, [Fault(3, spreads_at_once=True)]) if row["phase"] == "horizontal"],
        "replay_clean": rows_of(plan),
    }
    assert [f.sign for f in asked(rows[sign]).findings] == [sign]
    assert sign in plugins.load("rca.analyses", "replay_proof").SIGNS


# Whose hosts


ELSEWHERE = {n: f"other-{n}" for n in range(8)}
SIX = {"phases": dual_phase(2, 3)}


def on(hosts: Mapping[int, str]) -> dict[str, pl.DataFrame]:
    """A job that is told by its rank map alone."""
    rows = [{"record": f"E{rank}", "rank": rank, "host": host, "local_rank": 0} for rank, host in hosts.items()]
    return {"ranks": TABLES["ranks"].rows(rows)}


@pytest.mark.parametrize("case_name", ["none", "bit_flip", "lock_hang"])
@pytest.mark.parametrize("faults", [[Fault(3)], []])
def test_a_replay_of_hosts_that_are_not_of_the_job_changes_nothing_and_is_said(case_name: str, faults: list[Fault]) -> None:
    before = judge(MemoryCase(frames(case_name))).verdict
    after = judged(case_name, rows_of(SIX, faults, names=ELSEWHERE))
    assert after.verdict == before
    (finding,) = next(o for o in after.outcomes if o.analysis == "replay_proof").findings
    assert (finding.sign, finding.ranks, finding.hosts) == ("replay_elsewhere", (), ())
    assert "other-0" in finding.says
    assert finding.cites


def test_a_culprit_that_carries_no_rank_of_the_job_accuses_nobody_of_it() -> None:
    """A spare host that was added to the groups is the wrong one."""
    names = {**HOSTS, 3: "spare"}
    after = judged("bit_flip", rows_of({"phases": double_run(4)}, [Fault(3)], repeats=2, names=names))
    assert (after.verdict, after.verdict.proven) == (judge(MemoryCase(frames("bit_flip"))).verdict, False)
    (finding,) = asked(rows_of({"phases": double_run(4)}, [Fault(3)], repeats=2, names=names), frames("bit_flip")).findings
    assert finding.sign == "replay_elsewhere"
    assert "spare" in finding.says


def test_a_spare_that_is_wrong_beside_a_host_of_the_job_leaves_that_one_accused() -> None:
    names = {**HOSTS, 3: "spare", 4: "spare-2"}
    (finding,) = asked(rows_of({"phases": double_run(5)}, [Fault(1), Fault(3)], repeats=2, names=names), frames("bit_flip")).findings
    assert (finding.sign, finding.hosts, finding.numbers["proven_hosts"]) == ("replay_culprit", ("host-b",), ["host-b"])


def test_where_only_some_ranks_are_placed_a_culprit_beside_them_may_be_of_the_job() -> None:
    """A map of half of the ranks is no word on the other half; a replay that none of the known hosts took part in is still of another job."""
    job = on({0: "n0", 1: "n1"})
    job["groups"] = TABLES["groups"].rows([{"record": "E0", "group_id": "w", "kind": "world", "size": 6}])
    assert [(f.sign, f.hosts) for f in asked(rows_of(SIX, [Fault(4)]), job).findings] == [("replay_culprit", ("n4",))]
    assert [f.sign for f in asked(rows_of(SIX, [Fault(4)], names=ELSEWHERE), job).findings] == ["replay_elsewhere"]


def test_a_kernel_log_of_another_machine_makes_it_no_host_of_a_job_whose_ranks_are_all_placed() -> None:
    logs = TABLES["host_logs"].rows([{"record": "E0", "host": "n9"}])
    rows = rows_of(SIX, [Fault(4)], names={**{n: f"n{n}" for n in range(4)}, 4: "n9", 5: "n5"})
    assert [f.sign for f in asked(rows, {**on({0: "n0", 1: "n1"}), "host_logs": logs}).findings] == ["replay_elsewhere"]
    unplaced = {"ranks": TABLES["ranks"].rows([{"record": "E0", "rank": 0}]), "host_logs": logs}
    assert [(f.sign, f.hosts) for f in asked(rows, unplaced).findings] == [("replay_culprit", ("n9",))]


def test_a_clean_replay_lowers_only_whoever_took_part() -> None:
    def accused(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, tuple[int, ...]], float]:
        return {(h.cause, h.ranks): h.probability for h in judged("bit_flip", rows).verdict.hypotheses}

    before = {(h.cause, h.ranks): h.probability for h in judge(MemoryCase(frames("bit_flip"))).verdict.hypotheses}
    without = accused(rows_of({"phases": double_run(2)}, repeats=2, names={0: "host-a", 1: "host-c"}))  # the accused host took no part
    assert without == before
    beside = accused(rows_of({"phases": double_run(2)}, repeats=2, names={0: "host-a", 1: "host-b"}))  # it did, another did not
    key = ("silent_data_corruption", (2,))
    odds = {name: of[key] / of["unknown", (2,)] for name, of in (("before", before), ("after", beside))}
    assert odds["after"] == pytest.approx(odds["before"] * 2 ** (-1.7 * weights().sharpness), rel=1e-3)
    found = asked(rows_of({"phases": double_run(2)}, repeats=2, names={0: "host-a", 1: "host-b"}), frames("bit_flip")).findings[0]
    assert "took no part are as suspect as before" in found.says
    assert found.numbers["clears_all"] is False
    whole = asked(rows_of(DOUBLE, repeats=2, names=HOSTS), frames("bit_flip")).findings[0]
    assert (whole.numbers["clears_all"], "no part" in whole.says) == (True, False)


def test_findings_of_other_jobs_do_not_hang_on_the_order_of_rows() -> None:
    rows = rows_of(SIX, [Fault(3)], names=ELSEWHERE)
    expected = asked(rows, frames("none")).findings
    for seed in range(3):
        assert asked(random.Random(seed).sample(rows, len(rows)), frames("none")).findings == expected
