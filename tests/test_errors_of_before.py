"""A line of an earlier launch accuses nobody whose stacks move, whose recorder answers, and of whose end no log tells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from _house import memory_case

from rca.analyses._alive import is_unharmed
from rca.analyses._job_logs import Line, job_logs
from rca.case import MemoryCase
from rca.tables import TABLES

NONE = Path(__file__).parents[1] / "data" / "cases" / "none"
ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_an_error_before_a_job_that_moves(tmp_path: Path) -> None:
    """Without a zone no clock orders it: the stacks and dumps of the rank, and the silence of the others, do."""
    case = tmp_path / "case"
    shutil.copytree(NONE, case)
    stamp = "2026-11-29 20:00:00,000 [host-c][rank5]"
    lines = f"{stamp} INFO step 5 | loss 2.1 | grad norm 2.0 | 800 ms\n{stamp} ERROR {ERROR}\n"
    (case / "logs" / "attempt_0.log").write_text(lines, encoding="utf-8")
    done = subprocess.run(
        [Path(sys.executable).with_name("rca"), "diagnose", str(case), "--json"], check=False, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    assert told["verdict"]["cause"] == "healthy", done.stdout[:500]
    assert told["advice"]["evict"]["hosts"] == []
    assert "outlived" in done.stdout, "the line was read, and told"


RANK = 5
LINE = Line("log_events", "f" * 16, "L9", RANK, None, "host-c", None, None, "device_error", None, None, None, (), None, (), ERROR)
HOUR = timedelta(hours=1)


def with_words(*rows: dict[str, object]) -> MemoryCase:
    """The healthy job with further lines of the rank."""
    known = memory_case("none").frames
    told = TABLES["log_events"].rows([{"rank": RANK, "signature": "unknown", **row} for row in rows])
    return MemoryCase({**known, "log_events": pl.concat([known["log_events"].select(told.columns), told])})


@pytest.mark.parametrize(
    ("after", "local", "is_over"),
    [
        (-HOUR, None, True),
        (HOUR, None, False),
        (None, "2026-11-29T20:00:00.000000", True),
        (None, "2026-11-29T23:00:00.000000", False),
        (None, None, True),
    ],
    ids=[
        "it calls on after it",
        "its last call is before it",
        "its log goes on after it",
        "its log ends before it",
        "in another file, and nothing dates it",
    ],
)
def test_a_rank_that_was_seen_moving_before_its_error_is_not_unharmed(after: timedelta | None, local: str | None, *, is_over: bool) -> None:
    case = with_words({"evidence_id": "e" * 16, "record": "L1", "logged_at_local": "2026-11-29T21:00:00.000000"})
    last = case.table("dumps").filter(pl.col("rank") == RANK).select(pl.col("last_at").max()).collect().item()
    at = None if after is None else last + after
    assert is_unharmed(case, case.derive(job_logs), replace(LINE, at=at, local=local)) is is_over


def test_an_error_behind_the_steps_of_the_one_file_of_its_rank_may_be_its_end() -> None:
    """Undated and in the rank's only log: behind its last step it may be the end, between steps it is over."""
    case = memory_case("none")
    row = case.table("progress").filter(pl.col("rank") == RANK).collect().row(0, named=True)
    own = replace(LINE, evidence_id=row["evidence_id"], record="L999999")
    case = with_words({"evidence_id": own.evidence_id, "record": own.record})
    alone = MemoryCase(
        {
            name: frame.filter((pl.col("rank") != RANK) | (pl.col("evidence_id") == row["evidence_id"]))
            if name in ("log_events", "progress")
            else frame
            for name, frame in case.frames.items()
        }
    )
    logs = alone.derive(job_logs)
    assert not is_unharmed(alone, logs, own)
    assert is_unharmed(alone, logs, replace(own, record="L1"))
    assert not is_unharmed(alone, logs, replace(own, rank=99)), "nobody saw that rank"
