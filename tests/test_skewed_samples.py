"""A host whose clock is off, samples and steps alike, does not make a hang look like a job that goes on."""

from __future__ import annotations

import json
from pathlib import Path

from _house import SAMPLE, call, copy_case

EARLY_S = 400


def test_steps_are_held_against_the_samples_of_their_own_host(tmp_path: Path) -> None:
    folder = copy_case(SAMPLE, tmp_path / "case")
    index = folder / "stacks" / "index.json"
    rows = json.loads(index.read_text())
    late = {row["rank"] for row in rows if row["host"] == "host-a"}
    for row in rows:
        row["t_ns"] -= EARLY_S * 10**9 if row["rank"] in late else 0
    index.write_text(json.dumps(rows))
    for rank in late:
        path = folder / "timings" / f"rank_{rank}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {"t_start_ns": line["t_start_ns"] - EARLY_S * 10**9}) + "\n" for line in lines))
    done = call("diagnose", folder, "--json")
    assert (done.doc["verdict"]["cause"], done.doc["verdict"]["first_failing"]["ranks"]) == ("code_hang", [3])
    assert "job_motion/job_runs" not in " ".join(f["id"] for f in done.doc["findings"])
    assert any(f["id"].startswith("job_motion/job_hangs/") for f in done.doc["findings"])
