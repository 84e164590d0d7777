"""What Megatron-LM's monitors print among the other lines of a training log: timers, the straggler report, and reruns of steps that look wrong.

Timers come in blocks, in ms: with `(min, max) time across ranks` and `max time across ranks` no rank is named (rows of rank null), with `times across
ranks` each has its own line; older versions, and DeepSpeed, print those of one rank on a line (`time (ms) | forward: 27.41 | ...`).

Rows: `rank_stats` of timers and the straggler report, `trainer_events` of the rerun machine (collectors/_megatron_lines.py says which). Whatever else
the log holds is passed over, by whole blocks where none of it is of interest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from collectors._lines import Block, blocks, is_text
from collectors._log_lines import holding, texts
from collectors._log_prefix import Line, parse, pieces
from collectors._megatron_lines import RERUN_MARKS, STRAGGLER_MARKS, Reruns, stamp_of, straggler
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("rank_stats", "trainer_events")

BATCH_ROWS: Final = 50_000
MAX_EVENTS: Final = 200_000
MAX_WAIT: Final = 100  # lines of others after which a block of timers counts as ended
MAX_OPEN: Final = 16  # blocks of timers at a time
MAX_LINE: Final = 1000  # characters of a line of a block
NUM_ABOVE: Final = 6  # lines above a block of timers among which the line of its iteration is
_TIMERS: Final = "across ranks (ms):"
_ON_A_LINE: Final = "time (ms) |"
_MARKS: Final = (_TIMERS, _ON_A_LINE, *STRAGGLER_MARKS, *RERUN_MARKS)
_IN_BYTES: Final = tuple(  # of which one is in every such line, as printed
    mark.encode()
    for mark in (_TIMERS, _ON_A_LINE, "/Rnk: ", "^^^^ ", "esult is ", "nexpected result", " error", "on the same GPU", "status=")
)
_HEADER: Final = re.compile(r"(?P<kind>\(min, max\) time|max time|times) across ranks \(ms\):$")
_MS: Final = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_LEAD: Final = r"(?P<lead>.{0,200}?)"
# A line of a block, with whatever a launcher puts in front of all lines: a name filled up with dots and one number or two; a rank's; a name alone.
_EXTREMES: Final = re.compile(
    rf"{_LEAD}\s{{1,12}}(?P<name>[A-Za-z_](?:\S|\s(?=\S)){{0,200}}?) ?\.{{0,60}}: (?:\((?P<least>{_MS}), (?P<most>{_MS})\)|(?P<max>{_MS}))$"
)
_OF_RANK: Final = re.compile(rf"{_LEAD}\s{{0,12}}\brank {{1,7}}(?P<rank>[0-9]{{1,7}}): {{1,12}}(?P<value>{_MS})$")
_NAME: Final = re.compile(rf"{_LEAD}\s{{0,12}}(?P<name>[A-Za-z_]\S{{0,120}}):$")
_LISTED: Final = re.compile(r"(?:\brank=(?P<rank>[0-9]{1,7}) )?\btime \(ms\) \|(?P<list>.{0,16000})")
_TIMER: Final = re.compile(rf"(?P<name>[A-Za-z_][\w/.-]{{0,120}}): (?P<value>{_MS})(?![\w.])")
_TIME: Final = re.compile(
    r"\[?[0-9]{4}-[0-9][0-9]-[0-9][0-9][ T][0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
    r"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9][0-9]:?[0-9][0-9])?\]?"
)
_ITERATION: Final = re.compile(r"\biteration {1,12}(?P<step>[0-9]{1,15})/")
_OF_MEGATRON: Final = re.compile(  # a log of it whose monitors may speak later
    r"elapsed time per iteration \(ms\):|-{8} arguments -{8}|RerunStateMachine|Result validation enabled|\bmegatron[./]core\b"
)

_JSON: Final = re.compile(rb"\s*(?:\{\"|\{\s*\n|\[\s*[\[{\"\n])")
_HEADING: Final = re.compile(r"#{1,6} \w")

Writer = tuple[str | None, int | None, int | None]


def claims(name: str, head: bytes) -> bool:
    """A line of one of the monitors in the head, or plain signs that Megatron-LM wrote the log. A page that tells of them is none."""
    if head[:1] == b"\x80" or _JSON.match(head) or not is_text(head):
        return False
    text = head.decode("utf-8", "replace")
    lines = text.split("\n")
    if sum(_HEADING.match(line) is not None for line in lines) > 1:
        return False
    if _OF_MEGATRON.search(text):
        return True
    found = _Reading()
    for place in holding(lines, _MARKS):
        if any(mark in lines[place] for mark in ("/Rnk: ", _TIMERS)):
            return True
        found.take(lines[place], place + 1, ())
    return bool(found.reruns.rows or found.stats)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of both tables, in the order of the lines. Raises OSError where the file cannot be opened."""
    reading = _Reading()
    stats, events = TABLES["rank_stats"], TABLES["trainer_events"]
    above: list[str] = []
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        above = reading.block(block, above)
        if len(reading.stats) >= BATCH_ROWS:
            yield stats, stats.rows(reading.stats)
            reading.stats = []
    yield stats, stats.rows(reading.stats)
    rows = reading.reruns.rows
    if len(rows) > MAX_EVENTS:
        yield Skip(None, f"{len(rows) - MAX_EVENTS} lines of the rerun machine left out: too many")
    yield events, events.rows(rows[:MAX_EVENTS])


@dataclass
class _Timers:
    """A block of timers of one writer that goes on."""

    lead: str  # what stands before its lines, without a clock
    kind: str
    fixed: dict[str, Any]  # what all its rows tell; a rank's is not on the host that prints
    fed_at: int
    name: str | None = None


@dataclass
class _Reading:
    """What was read of one file so far."""

    stats: list[dict[str, Any]] = field(default_factory=list)
    reruns: Reruns = field(default_factory=Reruns)
    _open: list[_Timers] = field(default_factory=list)  # the last one begun first
    _stamps: dict[Writer, str | None] = field(default_factory=dict)  # of the last straggler report of a writer: its lists have none

    def block(self, block: Block, above: Sequence[str]) -> list[str]:
        """Read a block of lines; `above` are the last ones before it. Gives its own last ones."""
        if not self._open and not any(mark in block.data for mark in _IN_BYTES):
            tail = block.data[-4096:].decode("utf-8", "replace")
            return tail.removesuffix("\n").split("\n")[-NUM_ABOVE:]
        lines = texts(block)
        held = holding(lines, _MARKS)
        at = 0
        for place in [*held, len(lines)]:
            while self._open and at < place:
                self._follow(lines[at], block.first + at)
                at += 1
            if place < len(lines):
                before = lines[max(place - NUM_ABOVE, 0) : place]
                self.take(lines[place], block.first + place, before if place >= NUM_ABOVE else [*above, *before][-NUM_ABOVE:])
                at = place + 1
        return lines[-NUM_ABOVE:]

    def take(self, raw: str, number: int, above: Sequence[str]) -> None:
        """Read a line that holds a mark; `above` are those before it."""
        for piece in pieces(raw.rstrip()):
            if header := _HEADER.search(piece):
                lead = piece[: header.start()].rstrip()
                line = parse(f"{lead} INFO .", number)
                said = {"host": line.host, "step": _step(above), "report": number, "logged_at": line.at, "logged_at_local": line.local}
                begun = _Timers(_lead(lead), header["kind"], {"source": "megatron_timers", **said}, number)
                others = [timers for timers in self._open if not (timers.lead.startswith(begun.lead) or begun.lead.startswith(timers.lead))]
                self._open = [begun, *others]
                del self._open[MAX_OPEN:]
                continue
            if _ON_A_LINE in piece:
                self._on_a_line(piece, number, above)
                continue
            lowered = piece.lower()
            if any(mark in lowered for mark in STRAGGLER_MARKS):
                self._straggler(piece, number)
            elif any(mark in lowered for mark in RERUN_MARKS):
                line = parse(piece, number)
                self.reruns.take(line, piece, _writer(line))

    def _on_a_line(self, raw: str, number: int, above: Sequence[str]) -> None:
        """Timers as one rank reads them: of Megatron until 2022, which does not say whose, and of DeepSpeed, which does."""
        if (found := _LISTED.search(raw)) is None:
            return
        line = parse(raw[: found.start()] + " INFO .", number)
        rank = int(found["rank"]) if found["rank"] else line.rank
        fixed = {
            "record": f"L{number}",
            "source": "deepspeed_timers" if found["rank"] else "megatron_timers",
            "rank": rank,
            "host": line.host,
            "step": None if found["rank"] else _step(above),
            "report": number,
            "logged_at": line.at,
            "logged_at_local": line.local,
        }
        self.stats += [
            {**fixed, "name": timer["name"], "value_s": float(timer["value"]) / 1000} for timer in _TIMER.finditer(found["list"])
        ]

    def _straggler(self, raw: str, number: int) -> None:
        rows = list(straggler(raw))
        if not rows:
            return
        line = parse(raw, number)
        if "/Rnk: " in raw:
            self._stamps[_writer(line)] = local = line.local or stamp_of(raw[: raw.index("/Rnk: ")])
        else:
            local = line.local or self._stamps.get(_writer(line))
        fixed = {"record": f"L{number}", "source": "megatron_straggler", "logged_at": line.at, "logged_at_local": local}
        self.stats += [fixed | row for row in rows]

    def _follow(self, raw: str, number: int) -> None:
        """Read a line as one of a block of timers that is open, if it is."""
        if len(raw) > MAX_LINE:
            return
        raw = raw.rstrip()
        if raw[-1:] == ":":
            if (name := _NAME.match(raw)) and (timers := self._timers(name["lead"], "times")):
                timers.name, timers.fed_at = name["name"], number
        elif raw[-1:] == ")" or raw[-1:].isdigit():
            if of_rank := _OF_RANK.match(raw):
                timers = self._timers(of_rank["lead"], "times")
                if timers and timers.name:
                    self._add(
                        timers,
                        number,
                        {"name": timers.name, "rank": int(of_rank["rank"]), "host": None, "value_s": float(of_rank["value"]) / 1000},
                    )
            elif found := _EXTREMES.match(raw):
                kind, names = ("max time", {"max_s": "max"}) if found["max"] else ("(min, max) time", {"min_s": "least", "max_s": "most"})
                if timers := self._timers(found["lead"], kind):
                    self._add(
                        timers, number, {"name": found["name"], **{column: float(found[name]) / 1000 for column, name in names.items()}}
                    )
        elif _ITERATION.search(raw):  # the next step: its writer's block has ended
            before = _lead(raw.partition("iteration")[0])
            self._open = [timers for timers in self._open if timers.lead != before]
        self._open = [timers for timers in self._open if number - timers.fed_at <= MAX_WAIT]

    def _timers(self, lead: str, kind: str) -> _Timers | None:
        """The block that goes on with a line that begins so. A logger's own prefix stands before its first line only."""
        lead = _lead(lead)
        fitting = [timers for timers in self._open if timers.kind == kind and timers.lead.startswith(lead)]
        return next((timers for timers in fitting if timers.lead == lead), fitting[0] if fitting else None)

    def _add(self, timers: _Timers, number: int, row: dict[str, Any]) -> None:
        timers.fed_at = number
        self.stats.append({"record": f"L{number}", **timers.fixed, **row})


def _lead(text: str) -> str:
    """What a launcher puts before the lines of a writer, without the clock."""
    return _TIME.sub("", text).strip()


def _step(above: Sequence[str]) -> int | None:
    """The iteration whose line stands right above."""
    found = next((found for line in reversed(above) if (found := _ITERATION.search(line))), None)
    return int(found["step"]) if found else None


def _writer(line: Line) -> Writer:
    """What tells the writers of interleaved lines apart. A logger's own prefix is not repeated in the lines of a block."""
    return line.host, line.label, None if line.is_spoken else line.rank
