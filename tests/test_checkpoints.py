"""Where a rollback goes: a checkpoint that a log says was saved before the fault, or the word that none was seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from _house import call, copy_case

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


@pytest.mark.parametrize("lines", [(), SAVES[2:]], ids=["nothing is logged", "too late or unfinished"])
def test_where_no_checkpoint_is_named_it_says_so(tmp_path: Path, lines: tuple[str, ...]) -> None:
    advice = diagnosed(tmp_path, "bit_flip", lines)
    assert advice["checkpoint"] is None
    assert "; no log here names a checkpoint saved before it: list the folder" in str(advice["because"])
    assert "`rca inspect CHECKPOINT_FOLDER`" in str(advice["because"])


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
