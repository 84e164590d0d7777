"""Where a rollback goes: a checkpoint that a log says was saved before the fault, or the word that none was seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from _decision import advised, frames, verdict
from _house import call, copy_case

from rca.checkpoints import last_load, rollback

SAVES = (
    "2026-11-29 21:10:50 [INFO] saved checkpoint at step 3 to /ckpt/run-7/step_3",
    "2026-11-29 21:10:55 [INFO] saved checkpoint at step 6 to /ckpt/run-7/step_6",
    "2026-11-29 21:10:56 [INFO] saving checkpoint at step 8 to /ckpt/run-7/step_8",
    "2026-11-29 21:10:56 [ERROR] checkpoint at step 8 could not be saved to /ckpt/run-7/step_8: No space left on device",
    "2026-11-29 21:10:58 [INFO] saved checkpoint at step 9 to /ckpt/run-7/step_9",
)


def diagnosed(tmp_path: Path, case: str, lines: tuple[str, ...]) -> dict[str, object]:
    folder = copy_case(case, tmp_path / "evidence")
    log = next(iter(sorted((folder / "logs").glob("rank_0*"))))
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    advice: dict[str, object] = call("diagnose", folder, "--json").doc["advice"]
    assert advice["action"] == "rollback"
    return advice


def test_a_rollback_goes_to_the_newest_whole_checkpoint_from_before_the_fault(tmp_path: Path) -> None:
    """The parameters differ after step 9: the save of step 9 may hold them, those of step 8 began or failed."""
    advice = diagnosed(tmp_path, "bit_flip", SAVES)
    assert advice["checkpoint"] == "/ckpt/run-7/step_6"
    assert "from before step 9; the newest that a log names is /ckpt/run-7/step_6, saved at step 6 (logs/rank_0." in str(advice["because"])


@pytest.mark.parametrize(
    ("lines", "where", "what"),
    [
        ((), "list the folder the job saves to", "CHECKPOINT_FOLDER"),
        (SAVES[2:], "list /ckpt/run-7 (`ls -dt /ckpt/run-7/*`)", "/ckpt/run-7"),
    ],
    ids=["nothing is logged", "too late or unfinished: the folder is told all the same"],
)
def test_where_no_checkpoint_is_named_it_says_so(tmp_path: Path, lines: tuple[str, ...], where: str, what: str) -> None:
    advice = diagnosed(tmp_path, "bit_flip", lines)
    assert advice["checkpoint"] is None
    assert f"; no log here names a checkpoint saved before it: {where}, then `rca inspect {what}`" in str(advice["because"])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("checkpoint saved at step 5", "step 5"),
        ("checkpoint saved at step 5, took 1.2 s/shard (5/100)", "step 5"),
        ("successfully saved checkpoint from iteration       5 to s3://bucket/run/iter_0000005", "s3://bucket/run/iter_0000005"),
        ("step 5: wrote checkpoint runs/a/checkpoint-5.", "runs/a/checkpoint-5"),
        ("saved checkpoint model_5.pt at step 5", "model_5.pt"),
    ],
)
def test_a_checkpoint_is_named_as_its_log_names_it(tmp_path: Path, line: str, name: str) -> None:
    assert diagnosed(tmp_path, "bit_flip", (f"2026-11-29 21:10:55 [INFO] {line}",))["checkpoint"] == name


LOADS = (
    ((" loading distributed checkpoint from /ckpt/run7 at iteration 3559",), "/ckpt/run7 at step 3559", 3559, "/ckpt/run7"),
    (("Loading model from /lustre/ckpt/checkpoint-3110.",), "/lustre/ckpt/checkpoint-3110", 3110, "/lustre/ckpt"),
    (("[Torch] Loaded checkpoint from out/global_step12/mp_rank_00_model_states.pt.",), "out/global_step12", 12, "out"),
    (("resuming from checkpoint s3://bucket/run/step-40", "resuming from checkpoint s3://bucket/run/step-30"), "s3://bucket/run/step-30", 30, "s3://bucket/run"),
)  # fmt: skip


@pytest.mark.parametrize(("lines", "name", "step", "folder"), LOADS)
def test_the_checkpoint_that_could_not_be_read_is_named_and_an_older_one_is_sought(
    lines: tuple[str, ...], name: str, step: int, folder: str
) -> None:
    """The last one that the log says was read; a save of the same step is no way back, one of an earlier step is."""
    said = [("checkpoint_load", step if "iteration" in line else None, line) for line in lines]
    said += [("checkpoint_save", step, f"saved checkpoint to {name}"), ("checkpoint_save", step - 5, "saved checkpoint to /old/one")]
    rows = [
        {"evidence_id": "a", "record": f"L{n}", "signature": sign, "step": at, "message": text} for n, (sign, at, text) in enumerate(said)
    ]
    back = rollback(frames(log_events=rows), step=None, at=None, cause="checkpoint_corrupt")
    assert back.unreadable is not None
    assert back.save is not None
    assert (back.unreadable.name, back.unreadable.step, back.folder, back.unreadable.path) == (name, step, folder, "logs/run.log")
    assert (back.save.name, back.save.step) == ("/old/one", step - 5)
    told = advised(verdict("checkpoint_corrupt"), back=back).because
    assert f"do not load {name} again (logs/run.log L{len(lines) - 1}); the newest that a log names is /old/one" in told
    assert rollback(frames(log_events=rows), step=None, at=None, cause="numeric_divergence").unreadable is None


def test_logs_that_name_several_checkpoints_and_no_time_name_none() -> None:
    rows = [
        {"evidence_id": id_, "record": "L1", "signature": "checkpoint_load", "message": f"Loading model from /c/checkpoint-{n}"}
        for n, id_ in enumerate("ab")
    ]
    assert last_load(frames(log_events=rows)) is None


def test_an_error_names_the_checkpoint_where_no_line_says_what_was_loaded() -> None:
    row = {"evidence_id": "a", "record": "L9", "signature": "python_traceback", "message": "[Errno 2] No such file: '/c/step-40/rank_3.pt'"}
    found = last_load(frames(log_events=[row]))
    assert found is not None
    assert (found.name, found.step) == ("/c/step-40", 40)
    assert last_load(frames(log_events=[row | {"message": "No such file: '/data/shard-40.bin'"}])) is None
