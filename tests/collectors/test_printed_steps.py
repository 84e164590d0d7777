"""Steps as trainers print them, each as its rows of `progress`, and those of `steps` where a line states the time of an iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _sources import rows_of, source_of

from collectors import trainer_log

MEGATRON = (
    "iteration {at} | consumed samples: {samples} | elapsed time per iteration (ms): {ms} | learning rate: 1.0E-05 | lm loss: {loss} |"
)
TITAN = "[titan] 2026-02-03 04:05:06,789 - root - INFO - "
OLD_TITAN = "[rank0]:2024-09-26 10:00:00,123 - root - INFO - "
BAR = (
    "Epoch {epoch}: :  47%|####7     | {at} [06:19<07:13, {pace}v_num=0, reduced_train_loss=1.5, global_step={step}, "
    "consumed_samples=12288.0{more}]"
)


def bar(at: str, step: str, *, epoch: int = 0, pace: str = "", more: str = "") -> str:
    return BAR.format(at=at, step=step, epoch=epoch, pace=pace, more=more)


# A line, what its one row of `progress` tells ("-" in front = nothing at all), and the time of an iteration that it states.
LINES: tuple[tuple[str, dict[str, Any] | None, float | None], ...] = (
    (
        " [2026-02-03 04:05:06.123456] iteration       10/     100 | consumed samples:         1280 | skipped samples:            0 | "
        "elapsed time per iteration (ms): 1234.5 | energy per GPU (J/iter/GPU): 123.45 | power per GPU (W/GPU): 456.7 | "
        "throughput per GPU (TFLOP/s/GPU): 300.1 | learning rate: 1.0E-05 | global batch size:   128 | mtp_1 loss: 9.1E+00 | "
        "load_balancing_loss: 1.1E+00 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.300 | params norm: 12.3 | num zeros: 7 | "
        "number of skipped iterations:   1 | number of nan iterations:   0 |",
        {
            "step": 10,
            "ended_at_local": "2026-02-03T04:05:06.123456",
            "loss": 2.5,
            "grad_norm": 1.3,
            "learning_rate": 1e-05,
            "tokens_total": 1280,
            "is_skipped": True,
            "is_finite": True,
            "logged_step_s": 1.2345,
        },
        1.2345,
    ),
    (" " + MEGATRON.format(at="      5/  10", samples="40", ms="356.2", loss="nan"), {"step": 5, "loss": None, "is_finite": False}, 0.3562),
    ("3:  " + MEGATRON.format(at="5/ 10", samples="40", ms="356.2", loss="1.0"), {"step": 5, "rank": 3, "loss": 1.0}, 0.3562),
    (" 0:  [2024-04-06 03:02:12] " + MEGATRON.format(at="71/ 100", samples="9", ms="5.5", loss="1"), {"step": 71, "rank": 0}, 0.0055),
    ("[default7]: " + MEGATRON.format(at="5/ 10", samples="40", ms="9.0", loss="1.0").replace("(ms)", "(s)"), {"step": 5}, 9.0),
    (
        "node-14:  iteration 2/ 5 | elapsed time per iteration (ms): 75254.0 | consumed tokens: 8388608 | consumed samples: 4096 | lm loss: 11.0 |",
        {"step": 2, "tokens_total": 8388608},
        75.254,
    ),
    ("[2026-02-03 04:05:06,789] [INFO] [logging.py:96:log_dist] [Rank 0] step=7, skipped=0, lr=[1.2e-07, 3e-7], mom=[(0.9, 0.95)]",
     {"step": 7, "rank": 0, "learning_rate": 1.2e-07, "ended_at_local": "2026-02-03T04:05:06.789", "logged_step_s": None}, None),
    ("[2026-02-03 04:05:06,789] [INFO] [timer.py:260:stop] epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec=291.6, MemAllocated=1GB",
     None, None),
    (TITAN + "step:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%",
     {"step": 4, "loss": 7.62585, "grad_norm": 26.625, "tokens_per_s_per_gpu": 10050.0, "mfu_ratio": 0.1399}, None),
    (TITAN + "\x1b[31mstep: 10  \x1b[32mloss:  4.2000  \x1b[38;2;180;60;0mgrad_norm:  1.5000  \x1b[34mtps: 7,712  \x1b[35mmfu: N/A\x1b[39m",
     {"step": 10, "loss": 4.2, "grad_norm": 1.5, "tokens_per_s_per_gpu": 7712.0, "mfu_ratio": None}, None),
    (OLD_TITAN + "\x1b[36mstep: 10  \x1b[32mloss:  7.8  \x1b[33mmemory:  1.00GiB(1.05%)  \x1b[34mwps: 4,376  \x1b[35mmfu: 25.62%\x1b[39m",
     {"step": 10, "loss": 7.8, "tokens_per_s_per_gpu": 4376.0, "mfu_ratio": 0.2562, "rank": 0}, None),
    (TITAN + "validate step: 10  loss:  7.8  memory:  1.00GiB(1.05%)  tps: 7,712", None, None),
    (bar("7/15", "5.000", more=", train_step_timing in s=49.50"), {"step": 5, "loss": 1.5, "epoch": 0.0, "logged_step_s": 49.5}, 49.5),
    (bar("32040/500150", "3.2e+4", pace=" 1.37it/s, loss=nan, "), {"step": 32040, "loss": 1.5, "is_finite": True}, None),
    (bar("2000/2000", "2e+3"), {"step": 2000}, None),
    (bar("12400/99999", "1.23e+4"), {"step": None, "loss": 1.5}, None),  # of a loop that runs ahead of the updates
    (bar("300/4000", "1.23e+4", epoch=3), {"step": 12300, "epoch": 3.0}, None),  # three epochs of 4000 before
    (bar("300/4000", "5.55e+4", epoch=3), {"step": None, "loss": 1.5}, None),
    (bar("565/20101", "564.0", pace=" 14.05s/it, loss=nan, ", more=", gradient_norm=1.010"), {"step": 564, "grad_norm": 1.01}, None),
    ("[NeMo I 2026-02-03 04:05:06 nemo_logging:393] Training epoch 1, iteration 9/99 | lr: 2.6e-06 | global_batch_size: 4 | global_step: 109 | "
     "reduced_train_loss: 11.03 | train_step_timing in s: 5.123 | consumed_samples: 440 | val_loss: 4.1",
     {"step": 109, "epoch": 1.0, "loss": 11.03, "tokens_total": 440, "ended_at_local": "2026-02-03T04:05:06"}, 5.123),
    ("{'loss': 0.6914, 'grad_norm': 3.36, 'learning_rate': 8.9e-06, 'epoch': 0.01}", {"step": None, "loss": 0.6914, "epoch": 0.01}, None),
    ("{'loss': '0.6914', 'grad_norm': '3.36', 'learning_rate': '8.9e-06', 'epoch': '0.01'}", {"loss": 0.6914, "grad_norm": 3.36}, None),
    ("{'loss': nan, 'grad_norm': inf, 'learning_rate': 8.9e-06, 'epoch': 0.01}", {"loss": None, "grad_norm": None, "is_finite": False}, None),
    ("{'loss': 1.5e+300, 'grad_norm': 2e+18, 'epoch': 0.01}", {"loss": 1.5e300, "grad_norm": 2e18, "is_finite": True}, None),
    ("step: 5 loss: 2.5 consumed tokens: 2e+18", {"step": 5, "loss": 2.5, "tokens_total": None}, None),
    ("Training epoch 0, iteration 7/9 | global_step: 7 | reduced_train_loss: 3.06 | tokens_per_sec_per_gpu: 6.706e+03 | consumed_samples: 16",
     {"step": 7, "tokens_per_s_per_gpu": 6706.0}, None),
    (MEGATRON.format(at="5/ 10", samples="40", ms="356.2", loss="1.0") + " samples per second: 53.7 | tokens per gpu per second (tgs): 1234.5 |",
     {"step": 5, "tokens_per_s_per_gpu": 1234.5}, 0.3562),
    ("{'loss': 'nan', 'grad_norm': 'inf', 'learning_rate': '0', 'epoch': '0.01'}", {"loss": None, "is_finite": False, "epoch": 0.01}, None),
    ("{'loss': 2.0, 'grad_norm': 1.1, 'epoch': 0.0, 'global_step/max_steps': '5/1000', 'elapsed_time': '12s'}", {"step": 5, "loss": 2.0}, None),
    ("{'loss': 1.5, 'epoch': 0.5, 'num_input_tokens_seen': 4096}", {"loss": 1.5, "tokens_total": 4096}, None),
    ("Epoch 0:  10%|#   | 10/100 [00:10<01:30,  1.01it/s, v_num=1, train_loss_step=2.3, train_loss_epoch=2.5]", {"step": 10, "loss": 2.3}, None),
    ("Epoch 0/9  \u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501 10/100 0:00:10 \u2022 0:01:30 1.01it/s v_num: 1.000 train_loss: 2.30",
     {"step": 10, "loss": 2.3}, None),
    ("host-a:  " + MEGATRON.format(at="5/ 10", samples="40", ms="356.2", loss="1.0"), {"step": 5, "rank": None}, 0.3562),
    ("Validation DataLoader 0:  50%|##  | 3/6 [00:01<00:01,  2.5it/s, val_loss=2.5]", None, None),
    ("{'eval_loss': 0.48, 'eval_runtime': 1.2, 'epoch': 1.0}", None, None),
    ("{'train_runtime': 288.25, 'train_steps_per_second': 0.4, 'train_loss': 0.5031, 'epoch': 2.0}", None, None),
    ('{"current_steps": 10, "total_steps": 100, "loss": 0.69, "lr": 5e-05, "elapsed_time": "0:00:10"}', {"step": 10, "loss": 0.69}, None),
    ("2026-02-03 04:05:06 | INFO | train_inner | epoch 001:     10 / 1000 loss=12.3, nll_loss=11.9, wps=1000, num_updates=110, lr=1e-05, gnorm=2.1",
     {"step": 110, "loss": 12.3, "grad_norm": 2.1, "tokens_per_s_per_gpu": None}, None),
    ('2026-02-03 04:05:06 | INFO | train_inner | {"epoch": 1, "loss": "12.3", "num_updates": "100", "lr": "1e-05", "gnorm": "2.0"}',
     {"step": 100, "loss": 12.3, "grad_norm": 2.0, "ended_at_local": "2026-02-03T04:05:06"}, None),
    ("2026-02-03 04:05:06 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 10.1 | num_updates 1000", None, None),
    ("train          Epoch   0:   50%|####      | 12/24 [00:01<00:01,  8.55ba/s, loss/train/total=2.3]", {"step": 12, "loss": 2.3}, None),
    ("2026-02-03 04:05:06 INFO step=10, loss=2.3, step_time=0.5s", {"step": 10, "logged_step_s": 0.5}, 0.5),
    ("2026-02-03 04:05:06 INFO step 10 loss 2.3 elapsed 3600.0", {"step": 10, "logged_step_s": 3600.0}, None),  # may be since the start
)  # fmt: skip


@pytest.mark.parametrize(("line", "told", "iteration_s"), LINES)
def test_a_line_is_read_as_its_trainer_means_it(line: str, told: dict[str, Any] | None, iteration_s: float | None, tmp_path: Path) -> None:
    tables, skips = rows_of(trainer_log, source_of(tmp_path, line.encode(), "a.log"))
    assert not skips
    assert len(tables["progress"]) == (told is not None)
    if told is not None:
        row = tables["progress"][0]
        assert {name: row[name] for name in told} == pytest.approx(told)
    steps = tables["steps"]
    assert len(steps) == (iteration_s is not None)
    if iteration_s is not None:
        assert steps[0]["step_s"] == pytest.approx(iteration_s)
        assert (steps[0]["record"], steps[0]["step"]) == (tables["progress"][0]["record"], tables["progress"][0]["step"])
        assert steps[0]["rank"] is None  # the loop is the whole job's, whoever prints it


def test_iterations_read_by_columns_and_line_by_line_are_the_same_steps(tmp_path: Path) -> None:
    """Dense logs go another way than short ones; errors and news between the lines send some the careful way."""
    lines, wanted = [], []
    for step in range(1, 1500):
        ms = 400 + step % 50 / 10
        lines.append(
            f"node-3:  iteration {step:8d}/ 9000 | consumed samples: {step * 8:12d} | elapsed time per iteration (ms): {ms} | lm loss: 1.5 |"
        )
        wanted.append((step, "node-3", pytest.approx(ms / 1000)))
        if step % 400 == 0:
            lines.append(
                "node-5: [2026-02-03 04:05:06,789] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0], mom=[(0.9, 0.95)]"
            )
            lines.append("node-3: RuntimeError: CUDA error: an illegal memory access was encountered")
    tables, _ = rows_of(trainer_log, source_of(tmp_path, "\n".join(lines).encode(), "a.log"))
    assert [(row["step"], row["host"], row["step_s"]) for row in tables["steps"]] == wanted
    assert len(tables["progress"]) == len(wanted) + 3  # step=0 of the other format is no iteration


def test_blocks_of_composer_are_steps_however_many_there_are(tmp_path: Path) -> None:
    block = "[epoch=1][batch={at}/900]:\n\t Train time: 0\n\t Train loss/train/total: {loss}\n\t Train metrics/train/LanguagePerplexity: 114.5\n"
    for count in (3, 800):
        text = "".join(block.format(at=at, loss="nan" if at == 2 else at + 0.5) for at in range(1, count + 1))
        tables, _ = rows_of(trainer_log, source_of(tmp_path, text.encode(), "a.log"))
        assert [(row["step"], row["loss"]) for row in tables["progress"]] == [
            (at, None if at == 2 else at + 0.5) for at in range(1, count + 1)
        ]
        assert tables["progress"][1]["is_finite"] is False
        assert trainer_log.claims("a.log", text.encode()[:65536])
    tables, _ = rows_of(trainer_log, source_of(tmp_path, b"\t Train loss/train/total: 1.5\n", "a.log"))
    assert tables["progress"] == []  # of which step?


@pytest.mark.parametrize("glue", ["\r", "\x1b[A", ""])
def test_several_bars_of_one_physical_line_and_an_error_behind_the_last(glue: str, tmp_path: Path) -> None:
    bars = glue.join(bar(f"{at}/100", f"{at}.000", pace=" 1.5it/s, ", more=f", train_step_timing in s=0.{at}") for at in (1, 2, 3))
    watchdog = (
        "[E ProcessGroupNCCL.cpp:458] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, "
        "Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out."
    )
    text = f"\r{bars}{watchdog}\n"
    tables, _ = rows_of(trainer_log, source_of(tmp_path, text.encode(), "a.log"))
    assert [(row["step"], row["record"]) for row in tables["progress"]] == [(1, "L1"), (2, "L1"), (3, "L1")]
    assert [row["step_s"] for row in tables["steps"]] == [0.1, 0.2, 0.3]
    assert [row["rank"] for row in tables["log_events"] if row["signature"] == "nccl_watchdog_timeout"] == [5]
