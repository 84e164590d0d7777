"""What straggler detectors and rerun checks report, and what their reports must not be taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding, Outcome

SAMPLE_GPU = (0.703, 0.978, 0.689, 0.663, 0.673, 0.925, 0.720, 0.737)  # six of eight below 0.75: the published sample of a sound job
SAMPLE_DATA = (0.961, 0.919, 0.941, 0.999, 1.0, 0.847, 0.591, 0.788)


def report(name: str, values: Sequence[float], *, column: str = "score_ratio", line: int = 1, file: str = "f" * 16) -> list[dict[str, Any]]:
    return [
        {"evidence_id": file, "record": f"L{line}", "rank": rank, "name": name, "source": "nvrx", column: value}
        for rank, value in enumerate(values)
    ]


def asked(rows: list[dict[str, Any]], name: str = "reported_stragglers", **more: Any) -> Outcome:
    table = "rank_stats" if name == "reported_stragglers" else "trainer_events"
    outcome = ask(MemoryCase({table: TABLES[table].rows(rows)} | more), name)
    assert outcome.status != "failed", outcome.why
    return outcome


def accused(findings: Sequence[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.sign, finding.ranks) for finding in findings]


def near(num_ranks: int, **odd: float) -> list[float]:
    """Scores of ranks that lie near each other, but for some."""
    values = [round(0.95 - 0.002 * (rank % 7), 3) for rank in range(num_ranks)]
    for rank, value in odd.items():
        values[int(rank[1:])] = value
    return values


@pytest.mark.parametrize("name", ["gpu", "gpu_individual"])
@pytest.mark.parametrize("num_ranks", [4, 8, 64])
def test_a_gpu_alone_behind_its_peers_is_named(name: str, num_ranks: int) -> None:
    outcome = asked(report(name, near(num_ranks, r2=0.55)))
    assert accused(outcome.findings) == [("reported_slow", (2,))]
    assert len(outcome.findings[0].explains) == num_ranks - 1


def test_what_names_nobody() -> None:
    spread = [1.0, 0.9, 0.8, 0.72, 0.66, 0.6, 0.55, 0.5]
    for rows, signs in (
        (report("gpu", SAMPLE_GPU), ["many_below"]),
        (report("gpu", spread), ["many_below"]),
        (report("data_loading", SAMPLE_DATA), ["many_below"]),
        (report("data_loading", near(8, r6=0.5)), ["apart_unaccused"]),  # waits for data: not its computation
        (report("fwd", near(8, r6=0.5)), ["apart_unaccused"]),  # no map says that its stage has the same work
        (report("forward-backward", [1.0] * 7 + [3.0], column="value_s"), ["apart_unaccused"]),  # holds the waiting
        (report("gpu", near(8, r1=0.5, r6=0.5)), ["many_below"]),  # two of eight
        (report("gpu", near(8, r6=0.74)), ["many_below"]),  # below a threshold, not far from the others
        (report("gpu", near(8)), []),
    ):
        outcome = asked(rows)
        assert [finding.sign for finding in outcome.findings] == signs, rows[0]["name"]
        assert all(not finding.ranks for finding in outcome.findings)
        assert outcome.status == "clear"


def test_extremes_without_peers_are_no_comparison() -> None:
    rows = report("min_round_trip", [3.4], column="value_s") + report("max_round_trip", [9.9], column="value_s", line=2)
    assert asked(rows).status == "blind"
    assert asked([{"evidence_id": "f" * 16, "record": "L1", "name": "forward-compute", "min_s": 1.0, "max_s": 9.0}]).status == "blind"
    assert asked(report("gpu", [0.9, 0.4, 0.9])).status == "blind"  # three ranks have no middle


def test_of_several_reports_most_and_the_last_must_agree() -> None:
    slow, fine = near(8, r3=0.5), near(8)
    for order, ranks in (((slow, slow, slow), (3,)), ((fine, slow, slow), (3,)), ((slow, fine, fine), ()), ((slow, slow, fine), ())):
        rows = [row for line, values in enumerate(order, 1) for row in report("gpu", values, line=line * 10)]
        assert [finding.ranks for finding in asked(rows).findings if finding.ranks] == ([ranks] if ranks else [])


def test_a_rank_that_became_slow_in_mid_run_is_named_once_it_lasts() -> None:
    slow, fine = near(8, r3=0.5), near(8)
    for order, ranks in (
        ((fine, fine, fine, slow, slow, slow), [(3,)]),
        ((fine,) * 20 + (slow,) * 3, [(3,)]),
        ((fine, fine, fine, fine, slow, slow), []),  # two are no lasting run
        ((fine, fine, fine, slow, slow, slow, fine), []),  # over
        ((fine, fine, fine, slow, fine, slow, slow), []),
    ):
        rows = [row for line, values in enumerate(order, 1) for row in report("gpu", values, line=line * 10)]
        findings = asked(rows).findings
        assert [finding.ranks for finding in findings if finding.ranks] == ranks, len(order)


def listed(scores: Mapping[int, float], line: int, *, is_told: bool = True) -> list[dict[str, Any]]:
    """A report that lists the three worst and best ranks of all, a line each."""
    order = sorted(scores, key=scores.__getitem__)
    fixed = {"evidence_id": "f" * 16, "name": "gpu", "source": "nvrx", "report": line, "num_ranks": len(scores) if is_told else None}
    return [
        {**fixed, "record": f"L{line + 1 + at}", "rank": rank, "score_ratio": scores[rank]}
        for at, rank in enumerate(order[:3] + order[-3:])
    ]


def test_lists_of_the_worst_and_best_are_compared_report_by_report() -> None:
    rng = np.random.default_rng(2)

    def scores(*, slow: bool) -> dict[int, float]:
        found = {rank: float(value) for rank, value in enumerate(rng.uniform(0.94, 1.0, 16))}
        return found | ({11: 0.58} if slow else {})

    for when, ranks in (
        ((True,), [(11,)]),
        ((False, True, True, True), [(11,)]),
        ((False,) * 6 + (True,) * 3, [(11,)]),
        ((True,) * 4, [(11,)]),
        ((False,) * 4, []),
        ((True, True, True, False), []),  # no longer among the worst
        ((False, False, False, True), []),
    ):
        for is_told in (True, False):
            rows = [row for at, slow in enumerate(when, 1) for row in listed(scores(slow=slow), at * 100, is_told=is_told)]
            if is_told or when[-1]:  # one that does not say of how many it is may have lost a rank
                assert [finding.ranks for finding in asked(rows).findings if finding.ranks] == ranks, (when, is_told)


def test_a_detectors_own_warning_is_cited() -> None:
    rows = listed(dict(enumerate(near(16, r11=0.5))), 100)
    warned = [{"evidence_id": "f" * 16, "record": f"L{line}", "event": "straggler_gpus_relative", "rank": 11} for line in (7, 99)]
    (finding,) = asked(rows, trainer_events=TABLES["trainer_events"].rows(warned)).findings
    assert "of 16" in finding.says
    assert "2 warnings" in finding.says
    assert [cite.record for cite in finding.cites if cite.table == "trainer_events"] == ["L99"]


def test_a_rank_that_writes_its_own_file_is_compared_with_the_others() -> None:
    rows = [report("gpu", near(8, r5=0.5), file=f"{rank:016d}")[rank] for rank in range(8)]
    assert accused(asked(rows).findings) == [("reported_slow", (5,))]


def test_sections_of_computation_count_within_a_stage() -> None:
    stages = {"ranks": TABLES["ranks"].rows([{"evidence_id": "m" * 16, "record": "L1", "rank": r, "pp": r // 4} for r in range(8)])}
    heavy_stage = [1.0, 1.01, 1.0, 1.02, 2.0, 2.01, 2.02, 2.0]
    slow = [1.0, 1.01, 1.0, 2.2, 1.03, 1.01, 1.02, 1.0]
    for values, ranks in ((heavy_stage, []), (slow, [(3,)])):
        findings = asked(report("forward-compute", values, column="value_s"), **stages).findings
        assert [finding.ranks for finding in findings if finding.ranks] == ranks


def test_the_jobs_own_timings_overrule_a_report() -> None:
    rng = np.random.default_rng(1)

    def timings(factor: float) -> Mapping[str, Any]:
        rows = [
            {"evidence_id": "t" * 16, "record": f"L{1 + rank + 8 * step}", "rank": rank, "step": step, "compute_s": took}
            for step in range(20)
            for rank in range(8)
            for took in [float(0.1 * rng.normal(1, 0.01) * (factor if rank == 3 else 1))]
        ]
        return {"steps": TABLES["steps"].rows(rows)}

    rows = report("gpu", near(8, r3=0.5))
    assert accused(asked(rows, **timings(1.0)).findings) == [("apart_unaccused", ())]
    assert accused(asked(rows, **timings(1.9)).findings) == [("reported_slow", (3,))]


def event(
    name: str, *, again: bool | None = None, rank: int | None = 3, step: int = 7, line: int = 1, host: str | None = None
) -> dict[str, Any]:
    return {
        "evidence_id": "e" * 16, "record": f"L{line}", "event": name, "source": "megatron_rerun", "rank": rank, "step": step, "host": host,
        "local_gpu": 1, "is_reproducible": again,
    }  # fmt: skip


def test_what_reruns_tell() -> None:
    seen = event("unexpected_result")
    first, second = event("first_rerun", again=True, line=2, host="host-a"), event("second_rerun", again=False, line=9, host="host-b")
    for rows, sign, ranks, on in (
        ([seen, event("first_rerun", again=False, line=2)], "not_again", (3,), ()),
        ([seen, first], "again_here", (), ()),
        ([seen, first, second], "other_gpu_differs", (3,), ("host-a",)),  # the host of the first runs, not where it ran later
        ([second], "other_gpu_differs", (), ()),
        ([first, event("second_rerun", again=True, line=9)], "other_gpu_agrees", (), ()),
        ([seen], "not_checked", (), ()),
        ([seen, event("possible_transient_error", line=2)], "not_again", (3,), ()),  # the machine's own verdict is enough
        ([first, event("possible_persistent_error", line=9, host="host-b")], "other_gpu_differs", (3,), ("host-a",)),
        ([seen, event("correct_result", line=9)], "other_gpu_agrees", (), ()),
        ([first, event("first_rerun", again=False, line=3)], "not_checked", (), ()),
    ):
        (finding,) = asked(rows, "rerun_checks").findings
        assert (finding.sign, finding.ranks, finding.hosts) == (sign, ranks, on)
        assert finding.cites


def test_other_events_are_no_rerun() -> None:
    outcome = asked([event("fwd_bwd_end"), event("failure_detected", line=2)], "rerun_checks")
    assert outcome.status == "blind"
