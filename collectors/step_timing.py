"""Step timings and progress that each rank writes for itself: JSON lines with a rank, a step, and times or local numbers.

    {"rank": 3, "step": 7, "t_start_ns": 1700000000000000000, "dur_ms": 171.2, "phases": {"data": 9.1}, "detail": {"fwd_compute": 27.0}}
    {"rank": 3, "step": 7, "loss": 1.21, "grad_norm_local": 0.42, "param_crc": "0a1b2c3d", "samples": [56, 57]}

Rows: `steps` of lines with times, `rank_progress` of lines with numbers of the rank's own; a line may hold both. Names and units vary: the
unit is the suffix of a name (ns, us, ms, s), else that of the object around it, else that of the step's duration in the same record, else
what other records of the same rank or its clock tell (collectors/_step_units.py); else the time is null, and skipped with the reason. `compute_s`
comes from computation alone: forward and backward as a whole include waiting for others. Global metrics (loss without anything local) are
another reader's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from collectors._groups import plain_text
from collectors._lines import LINE_BYTES, blocks
from collectors._stack_dump import host_label, whole_number
from collectors._step_names import (
    DP,
    HOST,
    LOSS,
    MAX_TIME_S,
    NORM,
    PLAIN,
    RANK,
    SQUARED_TOKENS,
    STAGE,
    START,
    STEP,
    STEP_TIME,
    TOKENS,
    columns,
    split,
)
from collectors._step_units import Seen, units
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("steps", "rank_progress")
IS_GENERIC = True

SNIFF_LINES = 8
MAX_LINE_BYTES = LINE_BYTES  # a batch of 100,000 sample ids fits
BATCH_ROWS = 50_000
MAX_SHAPES = 1000  # distinct sets of keys remembered
MAX_UNIT_RECORDS = 20_000  # first records that are looked at for units which names do not state
MAX_SAMPLES = 100_000
_BETWEEN = "\x1f"  # sample ids on their way into a list column
_FIRST_US, _LAST_US = 946_684_800_000_000, 7_258_118_400_000_000  # 2000 and 2200: outside, a clock that does not count from 1970

_BESIDE: Final = frozenset({"forward_s", "backward_s"})  # times that alone are no timing of a step: they may include waiting
_CHECKSUM: Final = re.compile(r"^(param(eter)?s?|weights?|model|state)_(crc(32)?|checksum|hash|digest|sha[0-9]*|md5)$|^checksum$")
_SAMPLES: Final = ("sample_ids", "samples", "sample_id", "sample_indices")
_SHARD: Final = ("data_shard", "shard", "shard_id", "data_file")
_OWN: Final = frozenset({*LOSS[:2], *NORM[:2], *_SAMPLES, *_SHARD})  # numbers that only one rank can write

Place = tuple[str, str | None, int | None]  # key, key inside its object, units per second; None = the record does not state it
Units = Mapping[tuple[int | None, tuple[str, str | None]], int]


@dataclass(frozen=True)
class _Shape:
    """Where the records with one set of keys have what; worked out once."""

    rank: str | None
    step: str | None
    host: str | None
    stage: str | None
    dp: str | None
    tokens: str | None
    squared: str | None
    start: tuple[str, int] | None  # key, units per second
    times: Mapping[str, tuple[Place, ...]]  # column of `steps` -> what it is the sum of
    loss: str | None
    norm: str | None
    checksum: str | None
    samples: str | None
    shard: str | None
    is_local: bool  # holds numbers of the rank's own: a row of `rank_progress`
    is_timed: bool  # holds named parts of a step, or its whole duration without a global loss beside it: a row of `steps`

    @property
    def lacks_unit(self) -> bool:
        """Whether some time of these records has no unit by its name or what stands around it."""
        return any(unit is None for places in self.times.values() for _, _, unit in places)


def _shape(record: Mapping[str, Any]) -> _Shape:
    def first(names: Sequence[str]) -> str | None:
        return next((name for name in names if name in record), None)

    step = first(STEP)
    start: tuple[str, int] | None = None
    found: dict[str, list[tuple[str, str | None, int | None, bool]]] = {}
    whole: int | None = None  # units per second of the step's duration
    for key, value in record.items():
        if isinstance(value, dict):
            _, around = split(key)
            for inner in value:
                name, unit = split(inner)
                for column, exact in columns(name):
                    found.setdefault(column, []).append((key, inner, unit or around, exact))
        elif key != step:
            name, unit = split(key)
            if PLAIN.sub("", name) in STEP_TIME and (unit or PLAIN.search(name) or name.startswith("dur")):
                found.setdefault("step_s", []).append((key, None, unit, True))
                whole = whole or unit
            elif name in START:
                start = start or (key, unit or 1)
            else:
                for column, exact in columns(name):
                    found.setdefault(column, []).append((key, None, unit, exact))
    times = {}
    for column, places in found.items():
        totals = [place for place in places if place[3]][:1]  # a total beside its parts: not both
        times[column] = tuple((key, inner, unit or whole) for key, inner, unit, _ in totals or places)
    checksum, loss = next((key for key in record if _CHECKSUM.match(key)), None), first(LOSS)
    is_local = checksum is not None or not _OWN.isdisjoint(record)
    is_timed = bool(times.keys() - {"step_s", *_BESIDE}) or ("step_s" in times and (is_local or loss is None))
    return _Shape(
        first(RANK), step, first(HOST), first(STAGE), first(DP), first(TOKENS), first(SQUARED_TOKENS),
        start, times, loss, first(NORM), checksum, first(_SAMPLES), first(_SHARD), is_local, is_timed,
    )  # fmt: skip


def claims(name: str, head: bytes) -> bool:
    """JSON lines of which one of the first holds a step, and times of a rank or numbers that only a rank can know of itself."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
        return False
    for line in islice(head.splitlines(), SNIFF_LINES):
        record = _record(line)
        if isinstance(record, dict):
            shape = _shape(record)
            nested = any(inner is not None for places in shape.times.values() for _, inner, _ in places)
            if shape.step is not None and (shape.is_local or (shape.is_timed and (shape.rank is not None or nested))):
                return True
    return False


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of both tables in the order of the lines, in batches; torn and foreign lines are skipped. Raises EvidenceError without any row."""
    shapes: dict[tuple[Any, ...], _Shape] = {}
    timed: list[tuple[Any, ...]] = []
    local: list[tuple[Any, ...]] = []
    num_rows = 0
    told: Units | None = None  # looked up when the first record without units comes
    for place, line in _lines(source):
        record = line if isinstance(line, Skip) else _record(line)
        if isinstance(record, Skip):
            yield Skip(place, record.why)
            continue
        shape = _remembered(record, shapes)
        step = _whole(record.get(shape.step)) if shape.step else None
        if step is None or not (shape.is_timed or shape.is_local):
            yield Skip(place, "no step of a rank: a step with times or numbers of the rank's own is expected")
            continue
        rank = _rank(record, shape, source)
        if shape.is_timed:
            if told is None and shape.lacks_unit:
                told = units(_seen(source, shapes))
            problems: list[str] = []
            timed.append((place, rank, step, *_times(record, shape, rank, told or {}, problems)))
            if problems:
                yield Skip(place, f"left null: {'; '.join(problems)}")
        if shape.is_local:
            local.append((place, rank, step, *_numbers(record, shape)))
        num_rows += 1
        if len(timed) + len(local) >= BATCH_ROWS:
            yield from _frames(timed, local)
            timed, local = [], []
    if not num_rows:
        raise EvidenceError(source.path, None, "no step of a rank in it")
    yield from _frames(timed, local)


def _remembered(record: Mapping[str, Any], shapes: dict[tuple[Any, ...], _Shape]) -> _Shape:
    """The shape of a record, worked out once for each set of keys."""
    keys = (tuple(record), *(tuple(value) for value in record.values() if value.__class__ is dict))
    shape = shapes.get(keys)
    if shape is None:
        shape = _shape(record)
        if len(shapes) < MAX_SHAPES:
            shapes[keys] = shape
    return shape


def _rank(record: Mapping[str, Any], shape: _Shape, source: Source) -> int | None:
    rank = _whole(record.get(shape.rank)) if shape.rank else None
    return source.rank_said if rank is None or rank < 0 else rank


def _seen(source: Source, shapes: dict[tuple[Any, ...], _Shape]) -> Iterator[Seen]:
    """What the first records of the file say of units and of when their steps began."""
    for _, line in islice(_lines(source), MAX_UNIT_RECORDS):
        record = line if isinstance(line, Skip) else _record(line)
        if isinstance(record, Skip):
            continue
        shape = _remembered(record, shapes)
        step = _whole(record.get(shape.step)) if shape.step else None
        if step is None or not shape.is_timed:
            continue
        places = [place for found in shape.times.values() for place in found]
        unstated = [(key, inner) for key, inner, unit in places if unit is None]
        groups: dict[str | None, list[Any]] = {}
        for key, inner in unstated:  # an object is summed up as a whole: together its parts fill a step
            if inner is None:
                groups.setdefault(None, []).append(record[key])
            else:
                groups[key] = list(record[key].values())
        sums = [sum(v for v in values if v.__class__ in (int, float) and 0 <= v < 1e15) for values in groups.values()]
        yield Seen(
            _rank(record, shape, source), step, _instant_us(record[shape.start[0]], shape.start[1]) if shape.start else None,
            {(key, inner): unit for key, inner, unit in places if unit is not None}, frozenset(unstated), max(sums, default=0.0),
        )  # fmt: skip


def _lines(source: Source) -> Iterator[tuple[str | None, bytes | Skip]]:
    """Lines and where they stand, blank ones left out; a Skip for one that is too long, and without a place where the stream breaks off."""
    for block in blocks(source):
        if isinstance(block, Skip):
            yield None, block
            continue
        for number, line in enumerate(block.lines, block.first):
            if line.strip():
                yield f"L{number}", line if len(line) < MAX_LINE_BYTES else Skip(None, f"a line of {MAX_LINE_BYTES} bytes or more")


def _record(line: bytes) -> dict[str, Any] | Skip:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Skip(None, f"not JSON ({str(error)[:100]}); a last line may be torn")
    return record if isinstance(record, dict) else Skip(None, "no JSON object")


_OF_A_STEP: Final = ("record", "rank", "step", "host", "stage", "dp", "num_tokens", "squared_tokens", "started_at")
_TIMES: Final = ("step_s", "compute_s", "comm_s", "data_s", "checkpoint_s", "forward_s", "backward_s")
_STEPS: Final = (*_OF_A_STEP, *_TIMES)
_PROGRESS: Final = ("record", "rank", "step", "loss", "grad_norm", "is_finite", "param_checksum", "sample_ids", "data_shard")


def _frames(timed: Sequence[tuple[Any, ...]], local: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Table, pl.DataFrame]]:
    for table, names, rows in (("steps", _STEPS, timed), ("rank_progress", _PROGRESS, local)):
        if rows:
            filled: dict[str, Any] = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
            if table == "steps":
                filled["started_at"] = pl.Series(filled["started_at"], dtype=pl.Int64)
            else:  # a list column built from Python lists costs more than all the rest
                filled["sample_ids"] = pl.Series(filled["sample_ids"], dtype=pl.String).str.split(_BETWEEN)
            yield TABLES[table], TABLES[table].frame(filled)


def _times(record: Mapping[str, Any], shape: _Shape, rank: int | None, told: Units, problems: MutableSequence[str]) -> tuple[Any, ...]:
    """host to backward_s of a row of `steps`; why a time that was written is left null goes to `problems`."""
    host = host_label(plain_text(record[shape.host])) if shape.host else None
    stage = _whole(record[shape.stage]) if shape.stage else None
    dp, tokens = (_whole(record[key]) if key else None for key in (shape.dp, shape.tokens))
    squared = _finite(_number(record[shape.squared])) if shape.squared else None
    started = _instant_us(record[shape.start[0]], shape.start[1]) if shape.start else None
    sums = [
        _sum(record, shape.times.get(column, ()), rank, told, [] if column in _BESIDE else problems)  # told of those that are compared
        for column in _TIMES
    ]
    return host, stage, dp, tokens, squared, started, *sums


def _sum(record: Mapping[str, Any], places: Sequence[Place], rank: int | None, told: Units, problems: MutableSequence[str]) -> float | None:
    """Seconds in all these places; null unless every one holds a time of a known unit."""
    total = 0.0
    for key, inner, stated in places:
        value = record[key] if inner is None else record[key][inner]
        if value.__class__ not in (int, float) or not 0 <= value < 1e15:
            if value is not None:
                problems.append(f"{inner or key} is {str(value)[:40]}, no time")
            return None
        unit = stated or told.get((rank, (key, inner)))
        if unit is None:
            problems.append(
                f"{inner or key} states no unit, and neither do the rank's other records nor its clock (name it, as in {inner or key}_ms)"
            )
            return None
        total += value / unit
        if total > MAX_TIME_S:
            problems.append(f"{inner or key} is {value:.3g}, which is years")
            return None
    return total if places else None


def _numbers(record: Mapping[str, Any], shape: _Shape) -> tuple[Any, ...]:
    """loss to data_shard of a row of `rank_progress`."""
    loss, norm = (_number(record[key]) if key else None for key in (shape.loss, shape.norm))
    written = [value for value in (loss, norm) if value is not None]
    finite = all(map(math.isfinite, written)) if written else None
    checksum = plain_text(record[shape.checksum]) or None if shape.checksum else None
    samples = record[shape.samples] if shape.samples else None
    listed = samples if isinstance(samples, list) else [samples]
    ids = _BETWEEN.join([text for v in listed[:MAX_SAMPLES] if (text := str(v) if v.__class__ is int else plain_text(v))])
    shard = plain_text(record[shape.shard]) or None if shape.shard else None
    return _finite(loss), _finite(norm), finite, checksum, ids or None, shard


def _number(value: object) -> float | None:
    """A number as a float, NaN and infinity included and also when written as text; None for anything else."""
    if isinstance(value, str) and len(value) < 40:
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 or isinstance(value, float) else None
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _whole(value: object) -> int | None:
    """A whole number, also when written as 3.0 or "3"."""
    if (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value)):
        value = int(value)
    return whole_number(value)


def _instant_us(value: object, per_second: int) -> int | None:
    """Microseconds since 1970: a count in the given unit, or ISO 8601 with a zone; None for other clocks and times without a zone."""
    if isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            return None
        value, per_second = (instant.astimezone(UTC).timestamp(), 1) if instant.tzinfo and 2000 < instant.year < 2200 else (None, 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e20:
        return None
    micros = value * 10**6 // per_second if isinstance(value, int) else round(value * 1e6 / per_second)
    return micros if _FIRST_US <= micros < _LAST_US else None
