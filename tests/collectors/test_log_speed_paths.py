"""A trainer's log read by columns gives the same rows in the same order as read line by line, and what cannot be read so is not lost."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors import _lines, _log_shapes, trainer_log
from collectors._log_careful import hear
from collectors._log_shape import learn
from rca.tables import TABLES
from rca.types import Skip, Source

BLOCK = 6000  # bytes: a log of some hundred lines has many blocks
NEVER = 10**9

STEPS = {  # {k} a rank, {s} a step, {t} a time of day, {x} {y} {z} numbers, {i} a count
    "megatron": " [2026-03-01 {t}.123456] iteration {s:8d}/ 9000 | consumed samples: {i:12d} | elapsed time per iteration (ms): {x} | "
    "learning rate: {y} | global batch size:   512 | lm loss: {z} | loss scale: 1.0 | grad norm: {x} | "
    "number of skipped iterations:   {k} | number of nan iterations:   0 |",
    "hf": "{{'loss': {x}, 'grad_norm': {y}, 'learning_rate': {z}, 'epoch': {x}}}",
    "logged": "2026-03-01 {t},{i:03d} - trainer - INFO - {{'loss': {x}, 'grad_norm': {y}, 'epoch': 0.5}}",
    "titan": "[rank{k}]:[titan] 2026-03-01 {t},123 - root - INFO - \x1b[31mstep: {s:2}  \x1b[32mloss: {x:>7}  \x1b[38;2;180;60;0mgrad_norm: {y:>7}  "
    "\x1b[34mmemory: 40.12GiB({z}%)  \x1b[33mtps: {i:,}  \x1b[35mmfu: {y}%\x1b[39m",
    "bar": "\rEpoch {k}:  {k}%|██  | {s}/9999 [00:{k:02d}<01:{k:02d},  1.25s/it, loss={x}]",
    "ranks": "[rank{k}]: 2026-03-01 {t},123 INFO train: step {s} loss {x} grad_norm {y} lr {z} step_time {x}s",
    "srun": "{k}: [2026-03-01 {t}] step={s} loss={x} lr={y} grad_norm={z}",
    "srun ranks": "{k}: [rank{k}]: step {s} loss {x}",
    "metrics": '{{"step": {s}, "time": 17723556{k:02d}.5, "loss": {x}, "lr": {y}, "grad_norm": {z}, "tokens": {i}, "rank_name": "r{k}"}}',
    "metrics iso": '{{"iteration": {s}, "timestamp": "2026-03-01T{t}.{i:06d}+01:00", "loss": {x}}}',
    "metrics ns": '{{"global_step": {s}, "t": 17723556{k:02d}123456789, "loss": {x}}}',
    "message": '{{"asctime": "2026-03-01T{t}+00:00", "level": "INFO", "rank": {k}, "message": "step {s} loss {x}"}}',
    "deepspeed": "[2026-03-01 {t},123] [INFO] [logging.py:96:log_dist] [Rank {k}] step={s}, skipped=0, lr=[{x}, {y}], mom=[(0.9, 0.95)]",
    "iso": "2026-03-01T{t}.123Z INFO epoch {k} step {s}: loss={x} | {z} ms",
    "glog": "I0301 {t}.123456 {i} train.py:42] [host-a][rank{k}] step {s}/1000 loss: {x}",
    "nccl host": "host-a:{i}:{i} [{k}] trainer: step {s} loss {x}",
    "not finite": "[rank{k}]: step {s} loss nan grad_norm {x}",
}
OTHERS = (
    "2026-03-01 {t} INFO data: all 8 workers fetched task {i} of shard {i:012x} for iteration {s}, no error , user config {x}",
    "host-a:{k}:71 [{k}] NCCL INFO comm 0x{i:x} rank {k} nranks 8 - Init COMPLETE, signal {k} admin",
    "host-a:{k}:71 [0] misc/socket.cc:{k} NCCL WARN socketProgress: Connection closed by remote peer host-b<{i}>",
    "host-a:9:71 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.{k}<{i}> with status=12 opcode 1 len {i}",
    "host-a:9:71 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.{k}<{i}> with status=5 opcode 1 len {i}",
    "trainer: caught signal {k}, shutting down the iteration",
    "ERROR loader: could not read sample {i}",
    "RuntimeError: worker {k} of step {s} failed",
    '{{"message": "loss of {x} at step {s}", "level": "WARNING"}}',
    "finished worker {k} with exit code {k}",
    "epoch {k} is done",
    "[ {i}.123456] usb 1-1: loss of signal {k}",
    "",
)
TRACEBACK = 'Traceback (most recent call last):\n  File "/app/train.py", line {i}, in main\n    step(loss)\nValueError: step {s} loss {x}'
NUMBERS = ("{:.4f}", "{:.6E}", "{:.3g}", "{:.17g}", "{:.0f}", "-{:.2f}", "1{:.0f}e-05", "{:.1f}e2")
WRONG = (
    "nan",
    "inf",
    "-inf",
    "NaN",
    "1e400",
    "1e308",
    "123456789012345678901234567890",
    "--",
    "1.2.3",
    "0x1f",
    "1,234.5",
    "0012",
    "٣",
    "1e18",
    "",
)
TIMES = ("00:00:00", "23:59:59", "12:30:45", "24:00:00", "12:60:00", "09:08:61")


def log_of(seed: int, kinds: list[str], *, wildness: int) -> str:
    """A log of a few shapes in turns, one line in `wildness` with something else in it or amid it."""
    chance = random.Random(seed)

    def number() -> str:
        if chance.randrange(wildness * 3) == 0:
            return chance.choice(WRONG)
        return chance.choice(NUMBERS[: 1 + seed % len(NUMBERS)]).format(chance.random() * 10 ** chance.randrange(-3, 5))

    def lines() -> Iterator[str]:
        for step in range(260):
            form = STEPS[kinds[step // 20 % len(kinds)]]
            rare = chance.randrange(wildness) == 0
            if rare:
                form = chance.choice((*OTHERS, TRACEBACK, form + form, form))
            elif seed % 3 == 0 and step % 4:
                form = OTHERS[(seed + step // 40) % len(OTHERS)]
            time = chance.choice(TIMES) if rare else f"10:{step // 60:02d}:{step % 60:02d}"
            count = 10**16 if chance.randrange(wildness * 4) == 0 else chance.randrange(10 ** chance.randrange(1, 7))
            line = form.format(k=chance.randrange(12), s=step * 7, t=time, x=number(), y=number(), z=number(), i=count)
            yield line[: chance.randrange(len(line) + 1)] if rare and chance.randrange(4) == 0 else line

    return "\r\n".join(lines()) if seed % 7 == 0 else "\n".join(lines())


def rows_of(folder: Path, text: str) -> dict[str, list[pl.DataFrame] | list[str]]:
    path = folder / "trainer.log"
    path.write_bytes(text.encode())
    found: dict[str, list] = {}
    for item in trainer_log.read(Source("trainer.log", path, path.stat().st_size)):
        if isinstance(item, Skip):
            found.setdefault("skips", []).append(f"{item}")
        else:
            found.setdefault(item[0].name, []).append(item[1])
    return found


def assert_same_both_ways(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Small limits put a shape to use after a few lines and a block after few bytes; a limit that is never reached leaves only the careful way."""
    with monkeypatch.context() as patch:
        patch.setattr(_lines, "LINE_BYTES", BLOCK)
        patch.setattr(_log_shapes, "MIN_FITTING", NEVER)
        carefully = rows_of(folder, text)
        patch.setattr(_log_shapes, "MIN_FITTING", 2)
        patch.setattr(_log_shapes, "MIN_ALIKE", 6)
        by_columns = rows_of(folder, text)
    assert by_columns.keys() == carefully.keys()
    assert by_columns.get("skips") == carefully.get("skips")
    for table in carefully.keys() - {"skips"}:
        pairs = zip(carefully[table], by_columns[table], strict=True)
        for one, other in pairs:
            assert other.schema == one.schema == TABLES[table].schema
            assert other.to_dicts() == one.to_dicts(), table


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    wildness=st.sampled_from((3, 12, 60)),
)
def test_both_ways_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kinds: list[str], wildness: int) -> None:
    assert_same_both_ways(tmp_path, monkeypatch, log_of(seed, kinds, wildness=wildness))


def found_of(lines: list[str]) -> tuple[list[_log_shapes.Alike], list[int], _log_shapes.Shapes]:
    shapes = _log_shapes.Shapes(hear)
    found, quiet = shapes.find(_log_shapes.Lines(lines, 1, has_returns=False), range(len(lines)), tasks_are_ranks=True)
    return found, quiet, shapes


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_format_is_read_by_columns(name: str) -> None:
    """The point of it: of a regular log nothing is left to the careful way but what makes rows."""
    form = STEPS[name].removeprefix("\r").replace("{k}: [rank{k}]", "7: [rank7]")
    lines = [form.format(k=at % 8, s=at, t=f"10:{at // 60:02d}:{at % 60:02d}", x=at / 7, y=at / 9, z=at / 8, i=at) for at in range(300)]
    found, quiet, _ = found_of(lines)
    assert quiet == []
    assert sum(alike.rows.height for alike in found) > 280


def test_a_number_that_a_pattern_names_is_not_taken_for_any_other() -> None:
    """Floods of two kinds that differ in one digit, and lines that tell nothing but for one digit, stay apart."""
    cases = (
        ("host-a:9:71 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<{}> with status={} opcode 1", 12, 5),
        ("trainer: caught signal {1}, shutting down iteration {0}", 12, 15),
        ("copy of iteration {0} failed: [Errno {1}] '/data'", 104, 110),
        ("host-a: iteration {0}: exit code {1}", 3, 137),
    )
    for form, common, special in cases:
        lines = [form.format(at, special if at == 200 else common) for at in range(400)]
        found, quiet, _ = found_of(lines)
        taken = {*quiet, *(place for alike in found for place in alike.rows["place"])}
        told = [said and said["tells"] for said in (hear(lines[199]), hear(lines[200]))]
        assert told[0] != told[1], form
        assert 200 not in taken, form


def test_only_a_line_that_tells_one_thing_has_a_shape() -> None:
    for line in (
        "step 5 loss 2.5 \r step 6 loss 2.4",
        "Traceback (most recent call last):",
        "slurmstepd: error: *** JOB 12 ON host-a CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***",
        "ERROR loader: could not read sample 12",
        "[1234.123456] NVRM: Xid (PCI:0000:18:00): 79, step 5 loss 2",
        "step 5 loss 2.5 " + "x" * 3000,
    ):
        assert learn(line, hear) is None, line


def test_what_is_kept_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log in which every line has a text of its own is given up soon, and one of many formats keeps the last ones only."""
    chance = random.Random(1)
    monkeypatch.setattr(_log_shapes, "MAX_SHAPES", 5)  # the limit alone is lowered: more formats than it are then a few lines
    asked: list[str] = []

    def counted(line: str) -> Mapping[str, Any] | None:
        asked.append(line)
        return hear(line)

    lines = [f"{''.join(chance.choices('abcdefgh', k=9))} step {at} loss 2.5" for at in range(1000)]
    shapes = _log_shapes.Shapes(counted, _tries_left=8)
    for _ in range(4):
        shapes.find(_log_shapes.Lines(lines, 1, has_returns=False), range(len(lines)), tasks_are_ranks=True)
    assert len(shapes._shapes) == _log_shapes.MAX_SHAPES
    assert 8 < len(asked) < 100 * 8
    shapes = _log_shapes.Shapes(hear)
    for kind in range(_log_shapes.MAX_SHAPES + 20):
        letters = "".join(chance.choices("abcdefgh", k=9))
        some = [f"{letters} step {at} loss 2.5" for at in range(_log_shapes.MIN_ALIKE + 1)]
        assert sum(
            a.rows.height for a in shapes.find(_log_shapes.Lines(some, 1, has_returns=False), range(len(some)), tasks_are_ranks=True)[0]
        ) == len(some), kind
    assert len(shapes._shapes) == _log_shapes.MAX_SHAPES
