"""A line of an earlier launch accuses nobody whose stacks move, whose recorder answers, and of whose end no log tells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

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
