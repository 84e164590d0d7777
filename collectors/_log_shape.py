"""Shapes of lines: learnt from one line by asking the careful reader, then fit to any number of lines at once.

A program prints its steps, its news and its complaints by a few formats, so that a million lines differ only in their numbers. What these
mean is not known here: the careful reader is asked about a line and about variants of it, one number changed at a time and then all of them.
A number that it takes in a way that is not foreseen stays as it is printed, and a line whose variants it reads differently has no shape.
A shape is an anchored pattern of printed text and numbers: a line that differs in anything else does not fit, and goes the careful way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from collectors._log_progress import instant_of
from collectors._log_signatures import numbers_of
from rca.tables import TABLES

if TYPE_CHECKING:
    import polars as pl

__all__ = ["BESIDES", "Hear", "Shape", "learn"]

PROGRESS: Final = TABLES["progress"]
ENGINE: Final = "in-memory"  # of polars: a block is small, and its rows keep their order and their one chunk
STEP: Final = "step"
BESIDES: Final = ("host", "is_iteration")  # what a step tells beside the columns of `progress`: for `steps`
# All that the careful reader takes of a line: `tells` ("" = nothing, STEP, or the signature of one row of `log_events`), the columns of
# `progress`, is_iteration (see `_log_progress.of_text`), rank, host and pid as that row has them, and of the line label, group_rank, level,
# is_bare and has_stream (whether it would count to an open traceback of its writer). None where the line tells more than one thing, or changes
# how others are read.
Hear = Callable[[str], Mapping[str, Any] | None]

MAX_LINE = 2000  # characters of a line that can have a shape
MAX_PAD = 12  # blanks before a number, which grow fewer as it grows
MAX_PARTS = 64  # of a line that may differ
NUM_JOINT = 8  # variants in which everything is changed at once
MAX_WHOLE = 10**15  # counts below are exact as floating-point numbers
TIME_WIDTH = 8  # of HH:MM:SS
_PART: Final = re.compile(
    r"(?P<printed>\x1b\[[0-9;?]*[A-Za-z]|(?<![0-9])[0-9]{4}[-/][0-9][0-9][-/][0-9][0-9](?![0-9]))"  # colours and dates, kept as they are
    r"|(?P<time>(?<![0-9:.])(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.,][0-9]{1,9})?(?![0-9:]))"
    r"|(?P<hex>0x[0-9a-fA-F]{1,16}(?![0-9A-Za-z])|(?<![0-9A-Za-z])(?=[a-f-]{0,36}[0-9])(?=[0-9-]{0,36}[a-f])"
    r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{8,64})(?![0-9A-Za-z]))"
    r"|(?<=%\|)(?P<bar>[^|\x1b]{0,400})(?=\|)"
    r"|(?P<pad> +)(?=[-+]?[0-9])"
    r"|(?P<number>(?:(?<![\w.)\]-])[-+])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?)"
)
_SPECIAL: Final = re.compile(r"([\\.+*?()|\[\]{}^$])")
_PER_UNIT: Final = {"plain": 1.0, "thousandth": 1000.0, "hundredth": 100.0}
_COUNTS: Final = ("step", "tokens_total", "num_skipped", "num_nan", "rank", "label", "pid", "group_rank")


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a line: as printed, or anything that a pattern allows. `samples` are what the careful reader was asked about."""

    text: str
    kind: str = ""  # what it may be; "" = only what is printed
    pattern: str = ""  # of Rust's kind; "" = as printed
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Taking:
    """How a field is made of the text of a number or of a time of day: once for one text, once for a column of them."""

    kind: str
    lead: str = ""  # what a stamp begins with: its date
    offset: timedelta = timedelta()  # of the local clock from UTC
    has_commas: bool = False  # between thousands
    has_fraction: bool = False  # of a second

    def value(self, text: str) -> Any:
        plain = text.replace(",", "")
        if self.kind in _PER_UNIT:
            number = float(plain)
            return number / _PER_UNIT[self.kind] if math.isfinite(number) else None
        if self.kind == "whole":
            return int(float(plain)) if abs(float(plain)) < MAX_WHOLE else None
        if self.kind == "is_not_0":
            return text != "0"
        if self.kind == "since_1970":
            return instant_of(int(plain) if plain.isdigit() else float(plain))
        micros = text[TIME_WIDTH + 1 :][:6]
        if self.kind.startswith("iso"):
            micros = micros.ljust(6, "0").replace("000000", "")
        stamp = f"{self.lead}{text[:TIME_WIDTH]}{'.' if micros else ''}{micros}"
        return datetime.fromisoformat(stamp).replace(tzinfo=UTC) - self.offset if self.kind.endswith("instant") else stamp

    def column(self, text: pl.Expr) -> pl.Expr:
        """The same of a column; null where only the careful way knows."""
        import polars as pl

        plain = text.str.replace_all(",", "", literal=True) if self.has_commas else text
        number = plain.cast(pl.Float64, strict=False)
        if self.kind in _PER_UNIT:
            sound = pl.when(number.is_finite()).then(number)
            # Divided by a column: by one number, polars multiplies with the inverse, which rounds otherwise than Python does.
            return sound / (sound - sound + _PER_UNIT[self.kind]) if self.kind != "plain" else sound
        if self.kind == "whole":
            return pl.when(number.abs() < MAX_WHOLE).then(number).cast(pl.Int64, strict=False)
        if self.kind == "is_not_0":
            return text != "0"
        if self.kind == "since_1970":
            return _since_1970(number, plain.cast(pl.Int64, strict=False))
        parts = [pl.lit(self.lead), text.str.slice(0, TIME_WIDTH)]
        if self.has_fraction:
            micros = text.str.slice(TIME_WIDTH + 1, 6)
            if self.kind.startswith("iso"):
                micros = micros.str.pad_end(6, "0").str.replace("000000", "", literal=True)
                parts += [pl.when(micros != "").then(pl.lit(".")).otherwise(pl.lit("")), micros]
            else:
                parts += [pl.lit("."), micros]
        stamp = pl.concat_str(parts)
        if not self.kind.endswith("instant"):
            return stamp
        return (stamp.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False) - self.offset).dt.replace_time_zone("UTC")


def _since_1970(number: pl.Expr, count: pl.Expr) -> pl.Expr:
    """As `instant_of`; null also where a count of milliseconds or less is broken: its rounding is Python's own."""
    import polars as pl

    micros = (
        pl.when(number.is_between(1e8, 4e9, closed="none"))
        .then((number * 1e6).floor().cast(pl.Int64, strict=False))
        .when(number.is_between(4e9, 4e12, closed="left"))
        .then(count * 1000)
        .when(number.is_between(4e12, 4e15, closed="left"))
        .then(count)
        .when(number.is_between(4e15, 4e18, closed="left"))
        .then(count // 1000)
    )
    return micros.cast(pl.Datetime("us", "UTC"))


@dataclass(frozen=True)
class Shape:
    """A pattern of lines, which fields are taken of its groups (from 1), and those that are the same for all lines that fit."""

    regex: str  # of Rust's kind, as polars takes it; of a whole line, its anchors left out
    taken: tuple[tuple[str, int, _Taking], ...]
    fixed: Mapping[str, Any]

    @property
    def tells_nothing(self) -> bool:
        """Whether nothing at all is to be taken of a line that fits."""
        return not self.fixed["tells"] and not self.taken

    def read(self, items: pl.DataFrame, first: int, *, tasks_are_ranks: bool) -> pl.DataFrame:
        """The item and the place of each of the items, whether it `fits` (the fields of those that do not mean nothing), and of its line:
        `said` (the rank that it names), `task` (the number before it), `pid` and the columns of `progress`. `first` is the number of place 0.
        """
        import polars as pl

        names = [name for name, _, _ in self.taken]
        field = {
            name: pl.col(name) if name in names else pl.lit(self.fixed.get(name), dtype)
            for name, dtype in (*PROGRESS.schema.items(), ("label", pl.Int64()), ("pid", pl.Int64()))
        }
        rows = {
            **{name: field[name] for name in (*PROGRESS.schema, "pid")},
            "record": pl.format("L{}", pl.col("place") + first),
            "host": pl.lit(self.fixed["host"], pl.String),
            "is_iteration": pl.lit(self.fixed["is_iteration"], pl.Boolean),
            "said": field["rank"],
            "task": field["label"] if self.fixed["has_stream"] else pl.lit(None, pl.Int64),
        }
        if tasks_are_ranks:
            rows["rank"] = pl.coalesce(rows["said"], rows["task"])
        found = items.rechunk().lazy()  # polars 2.1.0 fails on texts in several chunks, as filters leave them
        if names:
            found = found.select("item", "place", pl.col("text").str.extract_groups(f"^{self.regex}$").alias("groups")).unnest("groups")
            found = found.select("item", "place", *(taking.column(pl.col(str(group))).alias(name) for name, group, taking in self.taken))
            rows["fits"] = pl.all_horizontal(pl.col(names).is_not_null())
        else:
            rows["fits"] = pl.col("text").str.contains(f"^{self.regex}$")
        return found.select("item", "place", *(of.alias(name) for name, of in rows.items())).collect(engine=ENGINE)


def learn(line: str, hear: Hear) -> Shape | None:
    """The shape of a line; None where it has none. `hear` is asked about up to some hundreds of variants."""
    said = hear(line) if len(line) <= MAX_LINE else None
    parts = list(_parts(line)) if said is not None else []
    if said is None or len(parts) > MAX_PARTS:
        return None
    numbers = tuple(sorted(numbers_of(line))) if said["tells"] != STEP else ()
    takings: dict[str, tuple[int, _Taking]] = {}
    for place, part in enumerate(parts):
        outright = numbers if part.kind == "number" else ()
        for pattern, samples in _patterns(part):
            if not re.fullmatch(pattern, part.text):
                continue
            answers = ((sample, hear(_joined(parts, {place: sample}))) for sample in (*samples, *outright))
            found = _takings(part, said, answers)
            if found is not None and not found.keys() & takings.keys():
                takings |= {name: (place, taking) for name, taking in found.items()}
                parts[place] = replace(part, pattern=pattern, samples=(*samples, part.text))
                break
        else:
            parts[place] = _Part(part.text)
    for count in range(NUM_JOINT):
        changed = {at: part.samples[(count * 5 + at * 3) % len(part.samples)] for at, part in enumerate(parts) if part.samples}
        if hear(_joined(parts, changed)) != {**said, **{name: taking.value(changed[at]) for name, (at, taking) in takings.items()}}:
            return None
    names = _wanted(said)
    wanted = {name: of for name, of in takings.items() if name in names}
    group_of = {at: group for group, at in enumerate(sorted({at for at, _ in wanted.values()}), 1)}
    regex = "".join(
        _SPECIAL.sub(r"\\\1", part.text) if not part.samples else f"({part.pattern})" if at in group_of else f"(?:{part.pattern})"
        for at, part in enumerate(parts)
    )
    taken = tuple((name, group_of[at], replace(taking, has_commas="(?:," in parts[at].pattern)) for name, (at, taking) in wanted.items())
    return Shape(f"{regex}[ \\t\\r]*", taken, {name: value for name, value in said.items() if name not in takings})


def _wanted(said: Mapping[str, Any]) -> set[str]:
    """The fields that matter of a line that tells such a thing."""
    if said["tells"] == STEP:
        return {*PROGRESS.schema, "label"} | ({"pid"} if said["is_finite"] is False else set())
    if said["tells"]:
        return {"rank", "pid"}
    return {"rank", "label"} if said["label"] is not None and said["rank"] is not None else set()  # the rank may not be the task


def _joined(parts: Sequence[_Part], changed: Mapping[int, str]) -> str:
    return "".join(changed.get(at, part.text) for at, part in enumerate(parts))


def _parts(line: str) -> Iterator[_Part]:
    """The line in pieces; those that may differ have a pattern, to be found yet."""
    end = 0
    for found in _PART.finditer(line):
        if found.start() > end:
            yield _Part(line[end : found.start()])
        yield _Part(found[0], (found.lastgroup or "").removesuffix("printed"))
        end = found.end()
    if end < len(line):
        yield _Part(line[end:])


def _patterns(part: _Part) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Patterns for a part that may differ, widest first, each with samples of what it allows."""
    if part.kind == "pad" and len(part.text) <= MAX_PAD:
        yield f" {{1,{MAX_PAD}}}", (" ", " " * MAX_PAD)
    elif part.kind == "bar":
        yield r"[^|\x1b\r]{0,120}", ("", "     ", "##   ", "█████▌", "=>..", "9" * 10)
    elif part.kind == "hex":
        yield from _hexes(part.text)
    elif part.kind == "time":
        yield from _times(part.text)
    elif part.kind == "number" and "," in part.text:
        many = ("1", "12,345", "999,999,999", "0.5", "1,000.25")
        yield r"[0-9]{1,3}(?:,[0-9]{3}){0,4}(?:\.[0-9]{1,9})?", many
        yield r"[0-9]{1,3}(?:,[0-9]{3}){1,4}", ("1,000", "12,345", "999,999,999")
    elif part.kind == "number":
        yield from _counts(part.text) if part.text.isdigit() else _numbers(part.text)


def _hexes(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if text.startswith("0x"):
        yield "0x[0-9a-fA-F]{1,16}", ("0x0", "0xdeadbeef", "0xFF", "0x1234567890abcdef")
    elif "-" in text:
        yield "[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", tuple(re.sub("[0-9a-f]", digit, text) for digit in "05af")
    else:
        for size in ("8,64", str(len(text))):
            fits = tuple(
                sample[: len(text)] if size[-1:] == size else sample for sample in ("0" * 64, "deadbeef" * 8, "0123456789abcdef" * 4)
            )
            yield f"[0-9a-f]{{{size}}}", (*fits, *(("f" * 9, "1" * 8) if "," in size else ("f" * len(text),)))


def _times(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    places = len(text) - TIME_WIDTH - 1
    mark = text[TIME_WIDTH : TIME_WIDTH + 1]
    tails = ("",) if not mark else tuple(mark + digits[:places] for digits in ("000000000", "120000000", "987654321", "000000001"))
    pattern = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]" + (f"\\{mark}[0-9]{{{places}}}" if mark else "")
    yield (
        pattern,
        tuple(time + tails[at % len(tails)] for at, time in enumerate(("00:00:00", "23:59:59", "12:34:56", "09:08:07", "19:20:05"))),
    )


def _counts(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    size = len(text)
    yield "[0-9]{1,15}", ("0", "1", "007", "23", "456", "7890", "123456", "9999999", "12345678", "9876543210", "123456789012", "9" * 15)
    yield "(?:0|[1-9][0-9]{0,14})", ("0", "1", "23", "456", "7890", "123456", "9999999", "12345678", "9876543210", "123456789012", "9" * 15)
    yield "[0-9]{1,7}", ("0", "1", "007", "23", "456", "7890", "123456", "9999999")
    yield "(?:0|[1-9][0-9]{0,6})", ("0", "1", "23", "456", "7890", "123456", "9999999")
    yield "[0-9]{1,3}", ("0", "00", "000", "1", "59", "100", "999")
    yield f"[0-9]{{{size}}}", ("0" * size, "9" * size, "123456789"[:size].rjust(size, "4"), "60" * (size // 2) + "1" * (size % 2))
    if text[0] != "0":
        nudged = tuple(text[:-1] + digit for digit in "0159")
        yield f"[1-9][0-9]{{{size - 1}}}", (*nudged, text[0] + text[:0:-1], text[0] + "9" * (size - 1))


def _numbers(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    exponent = r"[eE][-+]?[0-9]{1,3}"
    small = ("0.0", "0.5", "1.25", "12.5", "345.678", "6789.0123456789", "0.00001")
    powers = ("1.5e-05", "2.5E+08", "3.0E+00", "9.87654e10", "1.0e-300")
    yield (
        rf"[-+]?[0-9]{{1,17}}(?:\.[0-9]{{1,20}})?(?:{exponent})?",
        (*small, *powers, "7", "-1", "-0.5", "+2.5", "1e-05", "12345678901234567"),
    )
    yield (
        rf"-?(?:0|[1-9][0-9]{{0,16}})(?:\.[0-9]{{1,20}})?(?:{exponent})?",
        (*small, *powers, "7", "-1", "-0.5", "1e-05", "12345678901234567"),
    )
    yield rf"[0-9]{{1,15}}\.[0-9]{{1,20}}(?:{exponent})?", (*small, *powers)
    yield rf"[0-9]{{1,15}}\.[0-9]{{1,20}}{exponent}", powers
    yield r"[0-9]{1,15}\.[0-9]{1,20}", small
    yield r"[0-9]{1,9}\.[0-9]{1,6}", ("0.0", "0.5", "12.25", "345.678", "123456789.123456", "0.00001")
    yield r"[0-9]{1,15}\.0", ("0.0", "1.0", "23.0", "4567.0", "123456789.0")
    yield r"[0-9]{1,4}\.[0-9]{1,3}", ("0.0", "1.25", "12.345", "9999.999")


def _takings(part: _Part, said: Mapping[str, Any], answers: Iterable[tuple[str, Mapping[str, Any] | None]]) -> dict[str, _Taking] | None:
    """How the fields that change with a part are made of it; None where that is not foreseen, or a variant tells something else."""
    known: list[tuple[str, Mapping[str, Any]]] = [(part.text, said)]
    found: dict[str, _Taking] = {}
    for sample, answer in answers:
        if answer is None:
            return None
        known.append((sample, answer))
        for name in found.keys() | {name for name in said if answer[name] != said[name]}:
            if name in found and found[name].value(sample) == answer[name]:
                continue
            fits = (taking for taking in _candidates(part, name, said) if all(taking.value(text) == other[name] for text, other in known))
            if (taking := next(fits, None)) is None:
                return None
            found[name] = taking
    return found


def _candidates(part: _Part, name: str, said: Mapping[str, Any]) -> Iterator[_Taking]:
    value, local = said[name], said["ended_at_local"]
    if part.kind == "time":
        has_fraction = len(part.text) > TIME_WIDTH
        for kind in ("stamp", "iso"):
            tail = _Taking(kind).value(part.text)
            if not isinstance(local, str) or not local.endswith(tail):
                continue
            lead = local.removesuffix(tail)
            if name == "ended_at_local":
                yield _Taking(kind, lead, has_fraction=has_fraction)
            elif name == "ended_at" and isinstance(value, datetime) and len(lead) == len("2026-03-01T"):
                offset = datetime.fromisoformat(local).replace(tzinfo=UTC) - value
                yield _Taking(f"{kind}_instant", lead, offset, has_fraction=has_fraction)
    elif part.kind != "number":
        return
    elif name in _COUNTS:
        yield _Taking("whole")
    elif name == "is_skipped":
        yield _Taking("is_not_0")
    elif name == "ended_at":
        yield _Taking("since_1970")
    elif isinstance(value, float):
        yield from (_Taking(kind) for kind in _PER_UNIT)
