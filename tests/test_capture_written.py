"""`rca capture` takes the text that a trainer writes beside its logs, and nothing else that it holds open."""

from __future__ import annotations

from pathlib import Path

import pytest
from _capture_jobs import capture, environment, free_port, processes

pytestmark = pytest.mark.live
WRITES = """
import os, time
folder = {folder!r}
text = open(folder + "/steps of mine.jsonl", "a", buffering=1)
text.write('{{"step": 1, "dur_ms": 12.5}}\\n')
binary = open(folder + "/weights.bin", "wb", buffering=0)
binary.write(bytes(range(256)))
unlinked = open(folder + "/gone.txt", "w", buffering=1)
unlinked.write("words\\n")
os.unlink(folder + "/gone.txt")
empty = open(folder + "/empty.txt", "w")
only_read = open(folder + "/config.yaml")
print("ready", flush=True)
time.sleep(600)
"""


def test_text_that_a_trainer_writes_is_taken_under_its_rank(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("secret: hunter2\n")
    port, program = free_port(), WRITES.format(folder=str(tmp_path))
    with processes([(program, environment(3, 8, port))], tmp_path):
        done = capture("--out", tmp_path / "out", "--rounds", 1, "--gap", 0, "--host", "host-a", "--job", port)
        assert done.returncode == 0, done.stderr
        without = capture("--out", tmp_path / "bare", "--rounds", 1, "--gap", 0, "--host", "host-a", "--job", port, "--no-logs")
        assert without.returncode == 0, without.stderr
    folder = tmp_path / "out" / "host-a" / "written"
    assert [path.name for path in folder.iterdir()] == ["rank_3.steps_of_mine.jsonl"]
    assert (folder / "rank_3.steps_of_mine.jsonl").read_text() == '{"step": 1, "dur_ms": 12.5}\n'
    assert not (tmp_path / "bare" / "host-a" / "written").exists()
