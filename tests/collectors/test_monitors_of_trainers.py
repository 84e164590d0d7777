"""Megatron's monitors, the HF Trainer's state and dynolog's samples, in the forms in which launchers and versions print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import dynolog, hf_trainer_state, megatron_stats, trainer_log
from rca.errors import EvidenceError

RERUN = "ERROR:megatron.core.rerun_state_machine:"


def stats(folder: Path, text: str) -> list[dict[str, Any]]:
    return rows_of(megatron_stats, source_of(folder, text.encode(), "a.log"))[0]["rank_stats"]


def events(folder: Path, text: str) -> list[dict[str, Any]]:
    return rows_of(megatron_stats, source_of(folder, text.encode(), "a.log"))[0]["trainer_events"]


@pytest.mark.parametrize("lead", ["", "0: ", " 7: ", "node-14: ", "host-a: ", "[default7]:", "2026-02-03T04:05:06.123Z ", "[1,0]<stdout>:"])
def test_timers_are_read_behind_whatever_a_launcher_puts_before_lines(lead: str, tmp_path: Path) -> None:
    lines = [
        "(min, max) time across ranks (ms):",
        "    forward-backward ...............................: (0.10, 3453.08)",
        "    a-name-that-fills-all-of-the-columns-of-the-table : (1.00, 2.00)",
        " iteration        3/       5 | consumed samples: 6 | elapsed time per iteration (ms): 9.0 | lm loss: 1.0 |",
        "max time across ranks (ms):",
        "    optimizer ......................................: 40.10",
        "times across ranks (ms):",
        "  forward-compute:",
        "     rank  0: 301.25",
        "     rank 128: 377.50",
        "  optimizer:",
        "     rank  7: 1.00",
        "saving checkpoint at iteration       3 to /data/run",
    ]
    rows = stats(tmp_path, "\n".join(lead + line for line in lines))
    assert [(row["record"], row["name"], row["rank"], row["value_s"], row["min_s"], row["max_s"], row["step"]) for row in rows] == [
        ("L2", "forward-backward", None, None, 0.0001, pytest.approx(3.45308), None),
        ("L3", "a-name-that-fills-all-of-the-columns-of-the-table", None, None, 0.001, 0.002, None),
        ("L6", "optimizer", None, None, None, pytest.approx(0.0401), 3),
        ("L9", "forward-compute", 0, pytest.approx(0.30125), None, None, 3),
        ("L10", "forward-compute", 128, pytest.approx(0.3775), None, None, 3),
        ("L12", "optimizer", 7, 0.001, None, None, 3),
    ]
    assert {row["host"] for row in rows if row["rank"] is not None} == {None}  # who prints it is not where the rank runs
    if lead[:4] in ("node", "host"):
        assert rows[0]["host"] == lead.strip(": ")


def test_a_block_of_timers_goes_on_behind_lines_of_others_and_over_the_bounds_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors._lines.LINE_BYTES", 4096)  # limits alone are lowered: a few lines are then blocks
    monkeypatch.setattr(megatron_stats, "BATCH_ROWS", 50)
    lines = ["0: times across ranks (ms):", "0:   forward-backward:"]
    for rank in range(300):
        lines += [f"1: loader {rank} of 300", f"0:      rank {rank:2d}: {rank + 0.5:.2f}"]
    rows = stats(tmp_path, "\n".join(lines))
    assert [(row["rank"], row["value_s"]) for row in rows] == [(rank, pytest.approx((rank + 0.5) / 1000)) for rank in range(300)]


def test_timers_of_one_rank_on_a_line(tmp_path: Path) -> None:
    old = " iteration       20/ 100 | elapsed time per iteration (ms): 140.6 | lm loss: 1.0 |\ntime (ms) | forward-compute: 58.16 | optimizer: 5.25\n"
    rows = stats(tmp_path, old)
    assert [(row["record"], row["name"], row["rank"], row["value_s"], row["step"]) for row in rows] == [
        ("L2", "forward-compute", None, pytest.approx(0.05816), 20),
        ("L2", "optimizer", None, 0.00525, 20),
    ]
    rows = stats(
        tmp_path,
        "host-7: [2023-06-21 07:39:09,443] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward: 27.41 | step: 72.82",
    )
    assert [(row["name"], row["rank"], row["host"], row["logged_at_local"], row["source"]) for row in rows] == [
        ("forward", 0, "host-7", "2023-06-21T07:39:09.443", "deepspeed_timers"),
        ("step", 0, "host-7", "2023-06-21T07:39:09.443", "deepspeed_timers"),
    ]


def test_what_only_looks_like_a_timer_is_none(tmp_path: Path) -> None:
    for text in (
        "    forward-backward ....: (0.10, 3453.08)\n     rank  3: 5722.40",  # no header
        "(min, max) time across ranks (ms):\n" + "other\n" * 200 + "    late ....: (0.10, 3.08)",
        "times across ranks (ms):\n     rank  3: 5722.40",  # of which timer?
        "max time across ranks (ms):\n    both ....: (0.10, 3.08)",
    ):
        assert stats(tmp_path, text) == []


def test_the_straggler_report_names_ranks_and_its_power_is_in_milliwatts(tmp_path: Path) -> None:
    report = (
        "| MnRtt/Rnk: 1446.49ms/13 | MxRtt/Rnk: 1570.32ms/30 | MnPwr/Rnk: {low}W/0 | MxPwr/Rnk: 669787.00W/20 | MnTmp/Rnk: 50.00C/0 "
        "| MxUtl/Rnk: 100.00%/3 | MnClk/Rnk: 1920.00MHz/14 | MxDRtt/Rnk: 130.33ms/23 | MnEtpt/Rnk: 560.82TF/30 | MnNew/Rnk: 3.5X/4"
    )
    lists = "^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 560.82/30, 561.17/2,"
    for stamp in ("0: INFO:megatron.core.utils:[2024-10-23 01:29:30] ", "2024-10-23 01:29:30] [INFO] ", "[2024-10-23 01:29:30] "):
        rows = stats(tmp_path, f"{stamp}{report.format(low='617923.00')}\n{stamp.partition('[')[0] if stamp[0] == '0' else ''}{lists}\n")
        assert {row["logged_at_local"] for row in rows} == {"2024-10-23T01:29:30"}
        assert {row["host"] for row in rows} == {None}
        told = {row["name"]: (row["rank"], row["value_s"] or row["value_w"] or row["value"]) for row in rows}
        assert told == {
            "min_round_trip": (13, pytest.approx(1.44649)),
            "max_round_trip": (30, pytest.approx(1.57032)),
            "min_power": (0, pytest.approx(617.923)),
            "max_power": (20, pytest.approx(669.787)),
            "min_temperature_c": (0, 50.0),
            "max_utilization_percent": (3, 100.0),
            "min_clock_mhz": (14, 1920.0),
            "max_get_batch": (23, pytest.approx(0.13033)),
            "min_throughput_tflops": (30, 560.82),
            "min_new": (4, 3.5),
            "throughput_tflops": (2, 561.17),
        }
    assert stats(tmp_path, report.format(low="617.9"))[2]["value_w"] == 617.9  # a version that prints what it says


def test_a_rerun_tells_what_it_showed_and_of_which_gpu(tmp_path: Path) -> None:
    first = "Rank 3, node host-a.cluster, device 5, iteration #13: First rerun: unexpected result is "
    said = [  # line, event, rank, host, GPU, step, is_reproducible
        (f"3: {RERUN}Unexpected result nan on rank 3 at iteration #13 invocation #2 (message='found NaN in loss')",
         "unexpected_result", 3, None, None, 13, None),
        (f"{RERUN}Unexpected result tensor(nan, device='cuda:3') on rank 3 at iteration #13 invocation #1 (message='a, b')",
         "unexpected_result", 3, None, None, 13, None),
        ("[rank12]: RuntimeError: Rank 12, node host-b, device 4, iteration 500: Unexpected result inf (message='found Inf')",
         "unexpected_result", 12, "host-b", 4, 500, None),
        (f"{first}reproducible within the tolerance (nan = nan). Need to rerun on a different GPU to verify correctness.!",
         "first_rerun", 3, "host-a", 5, 13, True),
        (f"3: WARNING:x:{first}not reproducible within the tolerance (1.5 != nan)!", "first_rerun", 3, "host-a", 5, 13, False),
        ("Rank 3, node host-a, device 5, iteration #13: Possible transient error!!", "possible_transient_error", 3, "host-a", 5, 13, None),
        ("Got rescheduled on the same GPU. Need to resume again from the same checkpoint (node: host-a, gpu: 5)",
         "rescheduled_on_same_gpu", None, "host-a", 5, None, None),
        ("ts=2026-02-03 04:05:06.123456 node=host-b device=4 jobID=77 rank=12 iteration=500 "
         "status=RerunValidationStatus.SECOND_RERUN_NOT_REPRODUCIBLE result=1.5 message='spiky loss'",
         "second_rerun", 12, "host-b", 4, 500, False),
        ("ts=2026-02-03 04:05:06.123456 node=host-b device=4 jobID=N/A rank=12 iteration=500 status=initial_run result=nan message='x'",
         "unexpected_result", 12, "host-b", 4, 500, None),
        (f"3: {RERUN}Unexpected result nan at /opt/megatron/training.py line 812, invokation #1 at iteration #150 (message='loss is NaN')",
         "unexpected_result", None, None, None, 150, None),  # versions before 2025: the place, not the rank
        (f"{RERUN}First rerun: unexpected result is not reproducible within the tolerance (2.1 != nan)",
         "first_rerun", None, None, None, None, False),
        (f"{RERUN}First rerun: unexpected result is reproducible within the tolerance (nan = nan). Need to rerun on a different GPU",
         "first_rerun", None, None, None, None, True),
        ("Rank 3, node host-a, device 5: Possible transient error!!", "possible_transient_error", 3, "host-a", 5, None, None),
        (f"0: {RERUN}Need to rerun step to check reproducibility of initial result", None, None, None, None, None, None),
        ("WARNING: an unexpected result is reproducible here", None, None, None, None, None, None),
    ]  # fmt: skip
    for line, *told in said:
        rows = events(tmp_path, line)
        found = [[row[name] for name in ("event", "rank", "host", "local_gpu", "step", "is_reproducible")] for row in rows]
        assert found == ([told] if told[0] else []), line
    assert events(tmp_path, said[7][0])[0]["logged_at_local"] == "2026-02-03T04:05:06.123456"
    assert events(tmp_path, said[7][0])[0]["value"] == 1.5


def test_a_second_rerun_is_of_the_rank_that_gives_its_verdict_behind_it(tmp_path: Path) -> None:
    for word, verdict, is_reproducible in (
        ("not reproducible on a different GPU, therefore was likely incorrect (1.5 != nan)", "Possible persistent error!", False),
        (
            "reproducible on a different GPU, therefore it was likely correct (1.5 = 1.5)",
            "Correct result (but possible Application error) (x)",
            True,
        ),
    ):
        lines = [
            f"WARNING:x:Second rerun: unexpected result is {word}",
            f"WARNING:x:Second rerun: unexpected result is {word}",
            f"ERROR:x:Rank 3, node host-b, device 0, iteration #13: {verdict}!",
            f"ERROR:x:Rank 9, node host-c, device 1, iteration #13: {verdict}!",
            f"WARNING:x:Second rerun: unexpected result is {word}",  # the log ends before its verdict
        ]
        rows = [row for row in events(tmp_path, "\n".join(lines)) if row["event"] == "second_rerun"]
        assert [(row["rank"], row["host"], row["local_gpu"], row["step"], row["is_reproducible"]) for row in rows] == [
            (3, "host-b", 0, 13, is_reproducible),
            (9, "host-c", 1, 13, is_reproducible),
            (None, None, None, None, is_reproducible),
        ]


def test_a_first_rerun_of_an_old_version_is_of_the_rank_that_gives_its_verdict_behind_it(tmp_path: Path) -> None:
    lines = [
        "WARNING:x:First rerun: unexpected result is reproducible within the tolerance (nan = nan). Need to rerun on a different GPU",
        "WARNING:x:First rerun: unexpected result is not reproducible within the tolerance (2.1 != nan)",
        "ERROR:x:Rank 3, node host-b, device 0: Possible transient error!!",
    ]
    rows = [row for row in events(tmp_path, "\n".join(lines)) if row["event"] == "first_rerun"]
    assert [(row["is_reproducible"], row["rank"], row["host"], row["local_gpu"]) for row in rows] == [
        (True, None, None, None),
        (False, 3, "host-b", 0),
    ]


def test_what_the_rerun_machine_asks_for_is_no_planned_stop(tmp_path: Path) -> None:
    """It asks a person to resume the job: nobody has announced anything."""
    for line in (
        f"{RERUN}Got rescheduled on the same GPU. Need to resume again from the same checkpoint (node: host-1, gpu: 3)",
        "Saving a checkpoint and exiting now. Please resume the job from the checkpoint to rerun the last iteration and establish a diagnostic",
    ):
        assert rows_of(trainer_log, source_of(tmp_path, line.encode(), "a.log"))[0]["scheduler_events"] == []


def test_megatron_logs_are_claimed_and_others_are_not() -> None:
    assert megatron_stats.claims("x", b"building\n------------------------ arguments ------------------------\n  lr .... 1\n")
    assert megatron_stats.claims(
        "x", b"ts=2026-02-03 04:05:06.1 node=h-1 device=4 jobID=7 rank=1 iteration=5 status=initial_run result=nan message='x'\n"
    )
    for head in (
        b'{"message": "elapsed time per iteration (ms): 5"}',
        b'[\n {"a": "elapsed time per iteration (ms): 5"}]',
        b"# Timers\n\n    (min, max) time across ranks (ms):\n\n# More\n",
        b"step 5 loss 1.0\nan unexpected result of the search\n",
        b"\x80\x04megatron/core RerunStateMachine",
    ):
        assert not megatron_stats.claims("x", head), head


def test_a_sample_of_dynolog_is_one_row_and_tells_its_time_by_the_prefix(tmp_path: Path) -> None:
    tables, skips = rows_of(dynolog, source_of(tmp_path, (FIXTURES / "dynolog_daemon.log").read_bytes(), "a.log"))
    rows = tables["host_samples"]
    assert [(row["record"], row["logged_at"], row["logged_at_local"], row["host"]) for row in rows] == [
        ("L3", None, "2026-02-03T04:05:07.100300", None),
        ("L4", None, "2026-02-03T04:06:07.100300", "host-a"),
    ]
    assert json.loads(rows[0]["metrics"]) == {"cpu_util": 12.5, "mips": 691.497}
    assert "error" not in json.loads(rows[1]["metrics"])  # NaN
    assert not skips
    several = (
        "I20220721 23:42:34.141083 11 Logger.cpp:37] Logging : 12 values\n"
        "I20221208 15:28:34.730316 12 Logger.cpp:56] time = 1969-12-31T16:00:00.000Z data = {\"mips\":\"1.5\"}\n"
        "I20221208 15:28:35.730316 12 Logger.cpp:56] time = 1969-12-31T16:00:00.000Z data = {torn}\n"
        "I20221208 15:28:36.000001 12 Logger.cpp:55] Logging : 2 values\n"
        "I20221208 15:29:36.000001 12 Logger.cpp:56] time = 1969-12-31T16:00:00.000Z data = {\"mips\":\"2.5\"}\n"
    )  # fmt: skip
    tables, skips = rows_of(dynolog, source_of(tmp_path, several.encode(), "a.log"))
    assert [row["record"] for row in tables["host_samples"]] == ["L1", "L2", "L4", "L5"]  # a minute later is another sample
    assert [skip.record for skip in skips] == ["L3"]
    assert not dynolog.claims("x", b"I20220721 23:42:34.141083 11 train.cpp:37] Logging : 12 values\n")


def test_the_state_of_the_hf_trainer_gives_what_was_trained(tmp_path: Path) -> None:
    tables, skips = rows_of(hf_trainer_state, source_of(tmp_path, (FIXTURES / "hf_trainer_state.json").read_bytes(), "a.json"))
    assert not skips
    assert [(row["step"], row["epoch"], row["loss"], row["is_finite"]) for row in tables["progress"]] == [
        (10, 0.01, 1.75, True),
        (20, 0.015, None, False),
        (30, 0.02, 1.5, True),
    ]
    odd = {
        "global_step": 2,
        "log_history": [{"loss": "0.5", "step": 1.0}, 5, {"loss": None, "step": "x"}, {"train_loss": 1.0, "train_runtime": 3}],
    }
    tables, skips = rows_of(hf_trainer_state, source_of(tmp_path, json.dumps(odd).encode(), "a.json"))
    assert [(row["record"], row["step"], row["loss"], row["is_finite"]) for row in tables["progress"]] == [
        ("log_history/E0", 1, 0.5, True),
        ("log_history/E2", None, None, None),
    ]
    assert [skip.record for skip in skips] == ["log_history/E1"]
    for data in (b'{"log_history": [{"loss": 1', b'{"log_history": 5, "epoch": 1}', b"[]"):
        with pytest.raises(EvidenceError):
            rows_of(hf_trainer_state, source_of(tmp_path, data, "a.json"))
    assert not hf_trainer_state.claims("x", b'{"log_history": 5}')
