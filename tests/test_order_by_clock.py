"""What put the accused first is told: by clocks only where nothing but clocks did, and they were outside their error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _house import diagnose_in_memory

FAILED = "{at} [INFO] step 6 | loss 2.0\n{at} [ERROR] {error}\n"
QUIET = "{at} [INFO] step 7 | loss 2.0\n"


def verdict(folder: Path, *logs: str) -> dict[str, Any]:
    """Of a job with one rank on each host and these logs."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [{"rank": rank, "host": f"host-{rank}", "local_rank": 0} for rank in range(len(logs))]
    (folder / "map.json").write_text(json.dumps({"ranks": ranks}))
    for rank, text in enumerate(logs):
        (folder / f"rank_{rank}.log").write_text(text)
    found: dict[str, Any] = diagnose_in_memory(folder)["verdict"]["first_failing"]
    return found


def failed(at: str, error: str = "RuntimeError: CUDA error: an illegal memory access was encountered") -> str:
    return FAILED.format(at=at, error=error)


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_two_hosts_whose_clocks_are_far_enough_apart_are_ordered_by_clock(tmp_path: Path) -> None:
    found = verdict(tmp_path / "a", failed("2026-01-02T03:40:00Z", ECC), failed("2026-01-02T03:04:05Z"))
    assert (found["ranks"], found["ordered_by"]) == ([1], "clock")


def test_within_the_error_of_the_clocks_nobody_is_first(tmp_path: Path) -> None:
    found = verdict(tmp_path / "a", failed("2026-01-02T03:04:09Z", ECC), failed("2026-01-02T03:04:05Z"))
    assert (found["ranks"], found["ordered_by"]) == ([], None)


def test_the_only_rank_that_failed_is_named_by_its_log(tmp_path: Path) -> None:
    found = verdict(tmp_path / "a", QUIET.format(at="2026-01-02T03:40:00Z"), failed("2026-01-02T03:04:05Z"))
    assert (found["ranks"], found["ordered_by"]) == ([1], "log")
