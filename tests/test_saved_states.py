"""Checkpoints joined with the files that are there: which are whole, which are torn, which nobody looked at, and where a rollback goes."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rca.case import MemoryCase
from rca.checkpoints import rollback
from rca.judge import judge
from rca.linking import frames_of, read_all
from rca.parts import Parts
from rca.questions import ask
from rca.reading import ENDS_ABOVE
from rca.saved_states import SavedState, saved_states
from rca.sources import inventory
from rca.tables import TABLES
from rca.types import END_BYTES, HEAD_BYTES

EVERYTHING = ("model", "optimizer", "scheduler", "rng", "sampler")
LOAD_FAILED = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 40, in load_checkpoint\n'
    '  File "/venv/torch/serialization.py", line 1300, in load\n'
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
)


def case_of(folder: Path) -> MemoryCase:
    """A folder of evidence as the tool reads it, in memory."""
    spool = folder.parent / f"{folder.name}-spool"
    parts = Parts(spool / "parts")
    return MemoryCase(frames_of(parts, read_all(inventory(folder, spool), parts).frames))


def manifest(folder: Path, step: int, *, parts: tuple[str, ...] = EVERYTHING, **more: Any) -> Path:
    """A checkpoint of two shards with its manifest."""
    place = folder / f"step_{step}"
    place.mkdir(parents=True)
    shards = []
    for number in range(2):
        data = bytes([number]) * 100 + str(step).encode()
        (place / f"shard_{number}.bin").write_bytes(data)
        shards.append({"file": f"shard_{number}.bin", "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    told = {"schema_version": "rca.checkpoint/1", "step": step, "complete": True, "parts": list(parts), "shards": shards, **more}
    (place / "manifest.json").write_text(json.dumps(told))
    return place


def states_of(folder: Path) -> dict[str, SavedState]:
    return {state.name: state for state in saved_states(case_of(folder))}


def test_each_way_in_which_a_checkpoint_is_not_whole(tmp_path: Path) -> None:
    for step, harm in enumerate(HARMS):
        HARMS[harm](manifest(tmp_path / "e", step))
    states = states_of(tmp_path / "e")
    assert {name: states[f"step_{step}"].status for step, name in enumerate(HARMS)} == {
        "nothing": "whole",
        "cut": "torn",
        "changed": "torn",
        "one removed": "incomplete",
        "only the manifest": "not_looked",
        "not finished": "unmarked",
    }
    assert "has 50 bytes where 101 are said" in states["step_1"].why
    assert "SHA-256 is not the one" in states["step_2"].why
    assert "shard_1.bin: is not among its files here" in states["step_3"].why


def _unfinished(place: Path) -> None:
    told = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**told, "complete": False}))


HARMS: Mapping[str, Callable[[Path], object]] = {
    "nothing": lambda place: None,
    "cut": lambda place: (place / "shard_0.bin").write_bytes(b"x" * 50),
    "changed": lambda place: (place / "shard_0.bin").write_bytes(b"x" * 101),
    "one removed": lambda place: (place / "shard_1.bin").unlink(),
    "only the manifest": lambda place: [(place / f"shard_{n}.bin").unlink() for n in range(2)],
    "not finished": _unfinished,
}


def test_torch_s_own_checkpoint_whole_cut_and_without_its_description(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    for step in (10, 20, 30):
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"model": {"w": torch.ones(8)}, "optimizer": {"lr": 0.1}}, checkpoint_id=tmp_path / "e" / f"step-{step}")
    shard = tmp_path / "e" / "step-20" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-60])
    (tmp_path / "e" / "step-30" / ".metadata").unlink()
    states = states_of(tmp_path / "e")
    assert [(name, states[name].status) for name in sorted(states)] == [("step-10", "whole"), ("step-20", "torn"), ("step-30", "unmarked")]
    assert states["step-10"].lacks == ("scheduler", "rng", "sampler")


def test_equal_descriptions_of_two_checkpoints_are_two(tmp_path: Path) -> None:
    """Megatron's metadata.json is the same in each, and so may shards be."""
    for step in (1, 2):
        place = tmp_path / "e" / f"iter_000000{step}"
        place.mkdir(parents=True)
        (place / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    case = case_of(tmp_path / "e")
    assert sorted(case.frames["checkpoints"]["step"].to_list()) == [1, 2]
    assert case.frames["checkpoints"]["evidence_id"].n_unique() == 2


def test_a_save_newer_than_deepspeed_s_tag_is_not_finished(tmp_path: Path) -> None:
    import torch

    for step in (10, 20):
        place = tmp_path / "e" / f"global_step{step}"
        place.mkdir(parents=True)
        torch.save(
            {"module": {"w": torch.ones(1)}, "optimizer": {"a": [1]}, "global_steps": step, "ds_version": "0.16"},
            place / "mp_rank_00_model_states.pt",
        )
    (tmp_path / "e" / "latest").write_text("global_step10")
    states = states_of(tmp_path / "e")
    assert {name: state.status for name, state in states.items()} == {"global_step10": "whole", "global_step20": "unmarked"}


def test_a_shard_of_gigabytes_is_read_at_its_ends_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sparse files of 2 GB, one with its table of contents, one that ends in zeros: all that is read of them is counted."""
    import torch

    folder = tmp_path / "e"
    folder.mkdir()
    torch.save({"weight": torch.ones(4)}, tmp_path / "small.pt")
    small = (tmp_path / "small.pt").read_bytes()
    for name, tail in (("whole.pt", small), ("torn.pt", b"")):
        with (folder / name).open("wb") as file:
            file.write(small)
            file.truncate((2 << 30) - len(tail))
            file.seek(0, 2)
            file.write(tail)
    num_read = 0

    class Counted(io.FileIO):
        def readinto(self, buffer: Any) -> Any:
            nonlocal num_read
            num_read += (got := super().readinto(buffer) or 0)
            return got

        def readall(self) -> bytes:
            nonlocal num_read
            num_read += len(data := super().readall())
            return data

    real = Path.open

    def opened(path: Path, mode: str = "r", buffering: int = -1, *others: Any, **more: Any) -> Any:
        if path.parent == folder and mode == "rb":
            return io.BufferedReader(Counted(path, "rb"), buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        return real(path, mode, buffering, *others, **more)

    monkeypatch.setattr(Path, "open", opened)
    case = case_of(folder)
    rows = {row["file"]: row for row in case.frames["checkpoint_files"].iter_rows(named=True)}
    assert rows["whole.pt"]["problem"] is None
    assert "it ends in zeros" in rows["torn.pt"]["problem"]
    assert rows["whole.pt"]["parts"] == ["model"]
    assert case.frames["evidence"]["sha256"].to_list() == [None, None]
    assert case.frames["evidence"]["evidence_id"].n_unique() == 2
    assert 2 * HEAD_BYTES < num_read < 2 * 8 * END_BYTES  # 4,096 MiB lie there
    assert ENDS_ABOVE < 2 << 30


def asked(folder: Path) -> list[tuple[str, str]]:
    outcome = ask(case_of(folder), "checkpoint_state")
    assert outcome.status in ("found", "clear"), outcome.why
    return [(finding.sign, finding.says) for finding in outcome.findings]


def test_a_damaged_checkpoint_is_a_cause_only_where_the_job_failed_to_read_it(tmp_path: Path) -> None:
    whole, newest = manifest(tmp_path / "e", 100), manifest(tmp_path / "e", 200)
    HARMS["cut"](newest)
    assert [sign for sign, _ in asked(tmp_path / "e")] == ["damaged", "whole"]
    log = tmp_path / "e" / "rank_0.log"
    log.write_text("2026-11-29 21:10:50 [INFO] loading checkpoint\n" + LOAD_FAILED)
    found = dict(asked(tmp_path / "e"))
    assert sorted(found) == ["torn_when_read", "whole"]
    assert "step_200 of step 200 is torn (shard_0.bin: has 50 bytes where 103 are said)" in found["torn_when_read"]
    assert found["torn_when_read"].endswith("the newest whole one here is step_100 of step 100")
    HARMS["cut"](whole)  # an older one that was not read is still no cause
    assert sorted(sign for sign, _ in asked(tmp_path / "e")) == ["damaged", "torn_when_read"]


def test_advice_names_the_newest_whole_one_beside_a_damaged_one(tmp_path: Path) -> None:
    manifest(tmp_path / "e", 100)
    HARMS["cut"](manifest(tmp_path / "e", 200, path="/ckpt/step_200"))
    assert judge(case_of(tmp_path / "e")).advice.because.endswith("a checkpoint here is damaged: the newest whole one is step_100")
    HARMS["cut"](tmp_path / "e" / "step_100")
    assert judge(case_of(tmp_path / "e")).advice.because.endswith("none here is whole")


def test_what_still_has_the_name_of_its_staging_is_not_finished(tmp_path: Path) -> None:
    """Savers write beside, and rename when all is done."""
    names = ("tmp-checkpoint-5", "step_5.tmp", "5.orbax-checkpoint-tmp-1", "iter_0000005-unfinished")
    for name in (*names, "tmpfs_step_5"):
        manifest(tmp_path / "e", 5).rename(tmp_path / "e" / name)
    states = states_of(tmp_path / "e")
    assert {name: states[name].status for name in names} == dict.fromkeys(names, "unmarked")
    assert states["tmpfs_step_5"].status == "whole"


def test_what_is_only_told(tmp_path: Path) -> None:
    manifest(tmp_path / "a", 1, parts=("model",))
    manifest(tmp_path / "b", 1, parts=EVERYTHING[:4])
    HARMS["only the manifest"](manifest(tmp_path / "c", 1))
    HARMS["not finished"](manifest(tmp_path / "d", 1))
    for name, sign in (("a", "weights_only"), ("b", "no_cursor"), ("c", "not_looked"), ("d", "unfinished")):
        assert sign in [found for found, _ in asked(tmp_path / name)], name


AT = datetime(2026, 11, 29, 21, tzinfo=UTC)


def test_a_rollback_goes_to_the_newest_whole_one_before_the_fault_and_says_what_it_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    for step in (10, 20, 30, 40, 50):
        manifest(folder, step, path=f"/ckpt/step_{step}")
    HARMS["cut"](folder / "step_30")
    HARMS["not finished"](folder / "step_40")
    case = case_of(folder)
    back = rollback(case, step=45, at=None)
    assert back.save is not None
    assert (back.save.name, back.save.step, back.save.is_whole, back.save.path) == ("/ckpt/step_20", 20, True, "step_20/manifest.json")
    assert [why.partition(" (")[0] for why in back.passed] == [
        "/ckpt/step_50: saved at step 50, not before step 45",
        "/ckpt/step_40: its save is not marked as finished",
        "/ckpt/step_30: torn",
    ]
    free = rollback(case, step=None, at=AT, cause="checkpoint_corrupt").save
    assert free is not None
    assert free.step == 50
    untold = rollback(case, step=None, at=AT)  # none of them tells when it was saved
    assert untold.save is None
    assert "that it was saved before the fault is not told" in untold.passed[0]


def test_all_that_speaks_against_a_checkpoint_is_told_with_places_of_one_kind(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "e"
    for step in (10, 20, 40):
        manifest(folder, step, path=f"/ckpt/step_{step}")
    HARMS["cut"](folder / "step_40")
    (folder / "step_30").mkdir()
    torch.save(torch.ones(4), folder / "step_30" / "__0_0.distcp")  # nothing describes it
    back = rollback(case_of(folder), step=35, at=None)
    assert back.save is not None
    assert back.save.name == "/ckpt/step_20"
    assert [why.partition(":")[0] for why in back.passed] == ["/ckpt/step_40", "/ckpt/step_30"]
    assert "torn" in back.passed[0]
    assert "and saved at step 40, not before step 35" in back.passed[0]  # mended it would still be late
    manifest(folder, 32, path="/elsewhere/step_32")  # no longer one place of all: the folders here
    HARMS["not finished"](folder / "step_32")
    back = rollback(case_of(folder), step=35, at=None)
    assert back.save is not None
    assert back.save.name == "step_20"
    assert [why.partition(":")[0] for why in back.passed] == ["step_40", "step_32", "step_30"]


def test_of_very_many_that_were_passed_over_the_number_is_told(tmp_path: Path) -> None:
    for step in range(1, 13):
        manifest(tmp_path / "e", step)
    back = rollback(case_of(tmp_path / "e"), step=2, at=None)
    assert back.save is not None
    assert (back.save.step, len(back.passed), back.passed[-1]) == (1, 9, "3 more")


def test_what_a_log_names_counts_where_no_file_speaks_against_it(tmp_path: Path) -> None:
    manifest(tmp_path / "e", 10)
    HARMS["cut"](manifest(tmp_path / "e", 30))
    lines = {20: "saved checkpoint at step 20 to /ckpt/step_20", 30: "saved checkpoint at step 30 to /ckpt/step_30"}
    case = case_of(tmp_path / "e")
    case.frames["log_events"] = TABLES["log_events"].rows(
        [
            {"evidence_id": "log", "record": f"L{step}", "signature": "checkpoint_save", "step": step, "message": text}
            for step, text in lines.items()
        ]
    )
    back = rollback(case, step=35, at=None)
    assert back.save is not None
    assert back.save.step == 10
    assert "/ckpt/step_20: a log names it, and its files are not among the evidence" in back.passed
    case = MemoryCase({**case.frames, "checkpoint_files": case.frames["checkpoint_files"].filter(pl.col("checkpoint") == "step_30")})
    case.frames["checkpoints"] = case.frames["checkpoints"].filter(pl.col("checkpoint") == "step_30")
    back = rollback(case, step=35, at=None)
    assert back.save is not None
    assert (back.save.name, back.save.is_whole) == ("/ckpt/step_20", False)
