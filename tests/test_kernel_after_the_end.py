"""A GPU that is lost after the scheduler had ended the job did not end it: the note says how long after, and a restart would meet it all the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from _kernel_case import kernel_case

from rca.analyses import fatal_xid

LOST = "2026-03-01T10:{minute},000000+00:00 NVRM: Xid (PCI:0000:db:00): 79, GPU has fallen off the bus.\n"
RANKS = [{"evidence_id": "map", "rank": n, "host": f"host-{'ab'[n // 2]}"} for n in range(4)]
ENDED = {"evidence_id": "slurm", "signature": "slurm_cancelled", "logged_at": datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slurmstepd: error: *** STEP 7.0 ON host-a CANCELLED AT 2026-03-01T10:00:00 ***", "9 minutes after its end at 10:00:00"),
        ("scancel: Signal 10 to batch job 7", "(the job had failed or was stopped by then)"),  # a signal is no end of a step
    ],
)
def test_how_long_after_the_end_of_the_job(tmp_path: Path, text: str, why: str) -> None:
    raised = {"evidence_id": "log", "rank": 3, "signature": "python_traceback", "exception": "KeyError", "message": "'mask'"}
    case = kernel_case(
        tmp_path, {"a.log": LOST.format(minute="09:00")}, {"a.log": "host-a"}, ranks=RANKS, log_events=[raised, {**ENDED, "message": text}]
    )
    (found,) = fatal_xid.analyse(case)
    assert why in found.says
    assert [row["host"] for row in found.numbers["broken_beside"]] == ["host-a"]
