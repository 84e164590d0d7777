"""Slow sides and connections by a matrix of transfers: from tables, recorders, the Inspector and timed operations; healthy matrices show none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _house import ROOT, read_folder
from _paced import noise, paced

from rca.case import MemoryCase
from rca.drills._synthetic_job import Job
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome

STRAGGLERS = ROOT.parent / "shared" / "figures" / "straggler"
Cost = Callable[[int, int], float]
EVIDENCE = TABLES["evidence"].rows([{"evidence_id": "t", "path": "transfers.csv"}])


def inside(s: int, d: int) -> bool:
    return s // 4 == d // 4


def hosts(num: int) -> pl.DataFrame:
    return TABLES["ranks"].rows(
        [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": f"n{r // 4}", "pid": 100 + r} for r in range(num)]
    )


def asked(tables: dict[str, pl.DataFrame]) -> Outcome:
    outcome = ask(MemoryCase({"evidence": EVIDENCE, **tables}), "delay_matrix")
    assert outcome.status != "failed", outcome.why
    return outcome


def matrix(cost: Cost, *, num: int = 8, with_hosts: bool = True, reps: int = 4) -> dict[str, pl.DataFrame]:
    rows = [
        {"evidence_id": "t", "src_rank": s, "dst_rank": d, "bytes": 4096, "transfer_s": 0.01 * cost(s, d) * (1 + 0.1 * noise(s, d, k))}
        for s in range(num)
        for d in range(num)
        for k in range(reps)
        if s != d
    ]
    rows = [{**row, "record": f"L{n}"} for n, row in enumerate(rows, 2)]
    return {"transfers": TABLES["transfers"].rows(rows)} | ({"ranks": hosts(num)} if with_hosts else {})


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (lambda s, d: 1.0, []),
        (lambda s, d: 1.0 if inside(s, d) else 8.0, []),  # links inside a host are faster
        (lambda s, d: 3.0 if (s, d) == (1, 6) else 1.0, [("hot_connection", (), ())]),
        (lambda s, d: 3.0 if {s, d} == {1, 2} else 1.0, [("hot_link_inside", (), ())]),
        (lambda s, d: 3.0 if s == 2 else 1.0, [("hot_source", (2,), ("n0",))]),
        (lambda s, d: 2.0 if d == 5 else 1.0, [("hot_destination", (5,), ("n1",))]),
        (lambda s, d: (1.0 if inside(s, d) else 8.0) * (2.0 if s == 5 else 1.0), [("hot_source", (5,), ("n1",))]),
        (lambda s, d: 3.0 if s < 3 else 1.0, [("hot_everywhere", (), ())]),
    ],
    ids=["even", "two kinds", "cell", "cell inside", "row", "column", "row over two kinds", "much of it"],
)
def test_hot_cells_rows_and_columns(cost: Cost, expected: list[tuple[Any, ...]]) -> None:
    found = asked(matrix(cost)).findings
    assert [(f.sign, f.ranks, f.hosts) for f in found] == expected
    for finding in found:
        assert finding.cites
        if finding.sign in ("hot_connection", "hot_link_inside"):
            assert finding.numbers["candidates"] in ([1, 6], [1, 2])


def test_ranks_of_one_host_are_one_finding_and_a_map_is_not_needed() -> None:
    (one,) = asked(matrix(lambda s, d: 3.0 if 4 <= s < 8 else 1.0, num=16)).findings
    assert (one.sign, one.ranks, one.hosts) == ("hot_source", (4, 5, 6, 7), ("n1",))
    (bare,) = asked(matrix(lambda s, d: 3.0 if s == 2 else 1.0, with_hosts=False, reps=1)).findings
    assert (bare.sign, bare.ranks, bare.hosts) == ("hot_source", (2,), ())


def test_transfers_of_many_sizes_are_compared_by_bytes_per_second() -> None:
    for slow in (None, 2):
        tables = matrix(lambda s, d, slow=slow: 3.0 if s == slow else 1.0)  # type: ignore[misc]
        size = (4096 * (1 + pl.int_range(pl.len()) % 97)).cast(pl.Int64)
        tables["transfers"] = tables["transfers"].with_columns(pl.col("transfer_s") * size / 4096, bytes=size)
        assert [(f.sign, f.ranks) for f in asked(tables).findings] == [("hot_source", (2,)) if slow else ("too_few", ())]


def test_pairs_without_others_of_their_kind_were_not_looked_at() -> None:
    ring = matrix(lambda s, d: 3.0 if s == 3 else 1.0)
    ring["transfers"] = ring["transfers"].filter(pl.col("dst_rank") == (pl.col("src_rank") + 1) % 8)
    (told,) = asked(ring).findings
    assert (told.sign, told.ranks) == ("too_few", ())
    assert "32 transfers between 8 ranks were read, but 2 of 8 pairs of ranks have no three others of their kind" in told.says
    assert asked({"ranks": hosts(8)}).status == "blind"
    pair = ring["transfers"].filter(pl.col("src_rank") < 2)
    judgement = judge(MemoryCase({"evidence": EVIDENCE, "transfers": pair}))
    assert (judgement.is_blind, judgement.verdict.cause) == (False, "unknown"), "it was read: too few is no lack of evidence"


@pytest.mark.parametrize("late", [None, 8])
def test_transfers_of_a_recorder_are_told_from_waiting(late: int | None) -> None:
    """Whoever waits for a rank that computes longer spends the time inside its own call: no clock is shared, and no connection is slow."""
    job = Job(tp=2, pp=4, dp=4, steps=4)

    def recorded(link: Cost) -> Outcome:
        return asked(paced(job, link=link, work=lambda r, s: 1.6 if r == late else 1.0, skew_s=lambda r: 0.3 * (r // 8)))

    assert recorded(lambda s, d: 1.0).status == "clear"
    (link,) = recorded(lambda s, d: 4.0 if (s, d) == (8, 16) else 1.0).findings
    assert (link.sign, link.ranks, link.numbers["candidates"]) == ("hot_connection", (), [8, 16])
    (source,) = recorded(lambda s, d: 4.0 if s == 8 else 1.0).findings
    assert (source.sign, source.ranks, source.hosts) == ("hot_source", (8,), ("n1",))


def test_calls_of_the_inspector_count_in_the_ranks_of_their_communicator() -> None:
    """The communicator numbers its ranks backwards; processes tell who they are."""
    rows = []
    for me in range(8):
        for peer in range(8):
            for op in ("Send", "Recv") if me != peer else ():
                receiver = 7 - peer if op == "Send" else 7 - me
                took = 0.001 * (3.0 if receiver == 6 else 1.0) + (0.004 if op == "Recv" else 0.0)  # receivers come first
                rows += [
                    {"evidence_id": "i", "record": f"L{len(rows) + k}", "comm": "0xa", "group_rank": me, "group_size": 8, "peer": peer,
                     "host": f"n{(7 - me) // 4}", "pid": 107 - me, "op": op, "is_p2p": True, "size_bytes": 4096, "exec_s": took}
                    for k in range(3)
                ]  # fmt: skip
    (finding,) = asked({"nccl_calls": TABLES["nccl_calls"].rows(rows), "ranks": hosts(8)}).findings
    assert (finding.sign, finding.ranks, finding.hosts) == ("hot_destination", (6,), ("n1",))


def test_a_csv_of_transfers_is_evidence(tmp_path: Path) -> None:
    lines = [f"{s};{d};{3.5 if s == 2 else 1.25};1048576" for s in range(6) for d in range(6) if s != d]
    (tmp_path / "delays.csv").write_text("source_rank;dest_rank;latency_ms;bytes\n" + "\n".join(lines) + "\n")
    with read_folder(tmp_path) as tables:
        assert tables["transfers"].select("src_rank", "dst_rank", "transfer_s", "bytes").row(10) == (2, 0, 0.0035, 1048576)
        (finding,) = ask(MemoryCase(tables), "delay_matrix").findings
    assert (finding.sign, finding.ranks) == ("hot_source", (2,))
    assert finding.cites[0].record == "L12"


@pytest.mark.skipif(not STRAGGLERS.is_dir(), reason="the published traces (../shared/figures/straggler) are not here")
@pytest.mark.parametrize(("trace", "expected"), [("AR", [("hot_connection", [0, 16])]), ("ST", [])])
def test_published_traces(tmp_path: Path, trace: str, expected: list[tuple[str, list[int]]]) -> None:
    """The slow worker of AR exchanges slowly with the next stage as well; a long last stage (ST) makes no connection slow."""
    shutil.copy(STRAGGLERS / f"trace-{trace}.parquet", tmp_path)
    with read_folder(tmp_path) as tables:
        found = ask(MemoryCase(tables), "delay_matrix").findings
    assert [(f.sign, f.numbers["candidates"]) for f in found] == expected
