"""Logs of trainers, launchers and schedulers: what went wrong, who was stopped on purpose, and which steps were finished.

Text in any of the usual layouts (one file per rank or all ranks interleaved, with or without clocks) and JSON lines, of messages or of
metrics. Every recognised line is a row of `log_events` with a signature of rca/catalogue/signatures.csv; a symptom is never taken for a
cause, and only a global rank for a rank. A log in which nothing happened gives its steps and starts, so that it counts as looked at.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from collectors import _log_launcher as launcher
from collectors import _log_progress as progress
from collectors import _log_scheduler as scheduler
from collectors._lines import Block, blocks, garbage, is_text
from collectors._log_json import event_of, message_of, object_of
from collectors._log_lines import holding, texts, unwrapped
from collectors._log_prefix import Line, parse, pieces
from collectors._log_rows import Rows
from collectors._log_signatures import Sighting, classify, words
from collectors._log_traceback import MAX_FRAMES, Chain, bare_exception, begins, signatures_of
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("log_events", "scheduler_events", "progress", "ranks")

BATCH_ROWS = 50_000  # rows of `progress` held before they are given out
MAX_STREAMS = 4096  # tracebacks and blocks open at a time
MAX_WAIT = 500  # lines of other streams after which an open traceback counts as ended
EXPIRE_EVERY = 50  # lines
SNIFF_LINES = 4000
MAX_ANNOUNCED = 10_000  # different announcements that are kept
_STRUCTURE: Final = (
    *("traceback (most", "error: ", "exception: ", "failures:", "root cause (first", " error ", "[error]", "critical", "what():"),
    "torchelastic.",
)
_KERNEL: Final = re.compile(r"^\W{0,4}(?:<\d+>)?\[ *\d+\.\d{4,6}\]|\bkernel: |NVRM: Xid|^\d+,\d+,\d+,-")
_WHAT: Final = re.compile(r"^\s*what\(\): +")
_IGNORED: Final = re.compile(r"Exception ignored in")  # Python goes on: no event
_TERMINATE: Final = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']{1,200})'")
_MARKS: Final = re.compile(  # of the log of a training job in which no line is noteworthy
    r"(?i)torch/distributed/[\w/]+\.py:\d+\]|(?:INFO|WARNING|ERROR):torch\.|\bNCCL (?:INFO|WARN|version)\b|^(?:slurmstepd|srun|salloc): "
    r"|\[rank ?\d{1,7}\]|\bworld[_ ]size\b.{0,3}\d",
    re.MULTILINE,
)
_HEADING: Final = re.compile(r"#{1,6} \w")
_WORDS: Final = (*words(), *progress.WORDS, *scheduler.WORDS, *launcher.WORDS, *_STRUCTURE)


def claims(name: str, head: bytes) -> bool:
    """Whether a line of the head is one that this reader knows, or the head is plainly of such a log. Kernel lines and dumps are not."""
    if head[:1] == b"\x80" or not is_text(head):
        return False
    lines = unwrapped(head.decode("utf-8-sig", "replace").split("\n")[:SNIFF_LINES])
    text = next((line.lstrip() for line in lines if line.strip()), "")
    is_json = (text.startswith("[") and text[1:].lstrip()[:1] in ("{", "")) or (text.startswith("{") and not text.startswith("{'"))
    if is_json and object_of(text) is None:  # one document over many lines
        return False
    is_document = sum(_HEADING.match(line) is not None for line in lines) > 1  # a page about such logs quotes their lines
    for place in holding(lines, _WORDS):
        if is_document and not any(parse(piece, 0).is_logged for piece in pieces(lines[place])):
            continue
        sniffed = _Log()
        sniffed.take(lines[place], place + 1, lines[place - 1] if place else "")
        if sniffed.has_seen_something:
            return True
    return not (is_json or is_document) and _MARKS.search("\n".join(line for line in lines if not _KERNEL.search(line))) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of one file: steps in batches as they come, the other tables at its end. Raises OSError where it cannot be opened."""
    log = _Log()
    before = ""
    last: Block | None = None
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            log.breaks_off(last)
            continue
        yield from garbage(block)
        last = block
        lines, at = texts(block), 0
        held = holding(lines, _WORDS)
        while at < len(lines):
            if not log.is_inside:  # nothing open: on to the next line that holds a word
                next_held = bisect_left(held, at)
                if next_held == len(held):
                    break
                at = held[next_held]
            log.take(lines[at], block.first + at, lines[at - 1] if at else before)
            at += 1
        before = lines[-1]
        if len(log.steps) >= BATCH_ROWS:
            yield TABLES["progress"], log.take_steps(source.rank_said)
    log.close()
    rows = log.rows.finish(source.rank_said)
    if log.rows.num_dropped:
        yield Skip(None, f"{log.rows.num_dropped} recognised lines left out: too many different ones")
    yield TABLES["progress"], log.take_steps(source.rank_said)
    yield TABLES["log_events"], TABLES["log_events"].rows(rows)
    yield TABLES["scheduler_events"], TABLES["scheduler_events"].rows(log.announced)
    yield TABLES["ranks"], TABLES["ranks"].rows(launcher.processes(rows))


@dataclass
class _Log:
    """What was read of one log so far."""

    rows: Rows = field(default_factory=Rows)
    steps: list[dict[str, Any]] = field(default_factory=list)
    said: launcher.Launcher = field(default_factory=launcher.Launcher)
    _announced: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    _open: dict[tuple[Any, ...], Chain | launcher.Block] = field(default_factory=dict)
    _fed_at: dict[tuple[Any, ...], int] = field(default_factory=dict)  # number of the line that an open one took last
    _tasks_are_nodes: bool = False  # the numbers that srun puts in front of lines are not ranks
    _loose: tuple[int, Mapping[str, Any]] | None = None  # an error line that may only introduce a traceback

    @property
    def is_inside(self) -> bool:
        """Whether a traceback or a block is open, so that the next line counts whatever it holds."""
        return bool(self._open)

    @property
    def announced(self) -> list[dict[str, Any]]:
        """Rows of `scheduler_events`: each announcement once, where it was first made."""
        return list(self._announced.values())

    @property
    def has_seen_something(self) -> bool:
        """Whether any line was recognised."""
        return bool(self.rows or self.steps or self._announced or self._open)

    def take(self, raw: str, number: int, before: str) -> None:
        """Read one physical line; `before` is the one above it."""
        if _KERNEL.search(raw):
            return
        for piece in pieces(raw.rstrip()) if raw.strip() else ("",):
            line = parse(piece, number)
            if (entry := object_of(line.text)) is None:
                self._line(line, before)
            elif row := progress.of_json(entry):
                self._step(line, row)
            elif event := event_of(entry):
                self._event(line, event)
            else:
                for wrapped in message_of(entry, number):
                    self._line(wrapped, "")
        if self._open and number % EXPIRE_EVERY == 0:
            self._expire(number)

    def close(self) -> None:
        """The end of the file: what is open ends with it."""
        for stream in list(self._open):
            self._end(stream)

    def breaks_off(self, last: Block | None) -> None:
        """The stream broke off behind this block: what is open may lack its end, and a line cut in two tells no exception."""
        number = last.last if last else 1
        if last and not last.data.endswith(b"\n"):
            for stream, opened in self._open.items():
                if isinstance(opened, Chain) and self._fed_at[stream] == number:
                    opened.exception, opened.text = None, ""
        self.close()
        if last:
            self.rows.add(Line(number, "the log breaks off here: its end was not read"), Sighting("log_breaks_off", {}))

    def take_steps(self, rank_said: int | None) -> pl.DataFrame:
        """`progress` of the steps not yet given out; those that name no rank are of the rank that the file's name states."""
        steps, self.steps = self.steps, []
        names = sorted({name for row in steps for name in row})
        columns: dict[str, Any] = {name: [row.get(name) for row in steps] for name in names}
        if rank_said is not None and steps:
            columns["rank"] = [rank if rank is not None else rank_said for rank in columns["rank"]]
        return TABLES["progress"].frame(columns)

    def _of_task(self, line: Line) -> Line:
        """A task of srun is a rank, unless it is seen to be a launcher or to speak for other ranks."""
        if line.rank is not None and line.rank != line.label:
            self._tasks_are_nodes = True
        return line if line.rank is not None or self._tasks_are_nodes else replace(line, rank=line.label)

    def _line(self, line: Line, before: str) -> None:
        stream = line.stream
        line = line if line.label is None else self._of_task(line)
        if (current := self._open.get(stream)) is not None:
            if isinstance(current, launcher.Block) and (current.ends_entry(line) or begins(line)):
                who = self._failure(current)
                line = replace(line, **who) if begins(line) else line  # the traceback that the worker left behind
            if current.feed(line):
                self._fed_at[stream] = line.number
                return
            self._end(stream)
        if not line.text.strip():
            return
        if begins(line):
            self._start(stream, Chain(self._in_context(line, before), is_ignored=_IGNORED.search(before) is not None))
        elif block := launcher.begins_block(line):
            self._start(stream, block)
        else:
            self._message(line, before)

    def _start(self, stream: tuple[Any, ...], opened: Chain | launcher.Block) -> None:
        if len(self._open) >= MAX_STREAMS:
            self._end(next(iter(self._open)))
        self._open[stream] = opened
        self._fed_at[stream] = opened.line.number
        if self._loose and self._loose[0] == opened.line.number - 1:
            self.rows.drop(self._loose[1])

    def _in_context(self, line: Line, before: str) -> Line:
        """A bare traceback belongs to the record that logs it: an error or warning right above it."""
        above = parse(before, line.number - 1) if line.is_bare and before.strip() else line
        if above.is_bare or above.level not in ("error", "warning"):
            return line
        return replace(line, at=above.at, local=above.local, level=above.level, rank=above.rank, host=above.host, pid=above.pid)

    def _expire(self, number: int) -> None:
        for stream in [stream for stream, at in self._fed_at.items() if number - at > MAX_WAIT]:
            self._end(stream)

    def _end(self, stream: tuple[Any, ...]) -> None:
        ended = self._open.pop(stream)
        del self._fed_at[stream]
        if isinstance(ended, launcher.Block):
            self._failure(ended)
        elif ended.is_event:
            frames = ended.frames[::-1][:MAX_FRAMES]
            self._exception(ended.line, ended.exception, ended.text, frames)

    def _failure(self, block: launcher.Block) -> dict[str, Any]:
        """Add the failure that was read of a block. Gives whose it is."""
        if (entry := block.take()) is None:
            return {}
        line, fields = entry
        for sighting in self.said.failure(fields, is_root=block.is_root):
            self.rows.add(line, sighting)
        return {name: fields[name] for name in ("rank", "host", "pid")}

    def _event(self, line: Line, event: dict[str, Any]) -> None:
        """The end of a worker as torchelastic's own event tells it, and the error that the worker left behind."""
        state, error = event.pop("state"), event.pop("error")
        line = replace(line, rank=event["rank"], host=event["host"], text=f"worker {state.lower()}", is_bare=False)
        if state == "FAILED":
            for sighting in self.said.failure(event):
                self.rows.add(line, sighting)
            for wrapped in message_of(error or {}, line.number):
                self._line(replace(line, text=wrapped.text), "")
        elif state == "SUCCEEDED":
            self.rows.add(line, Sighting("worker_finished", event))

    def _exception(self, line: Line, exception: str | None, text: str, frames: list[str] | None) -> None:
        for sighting in signatures_of(exception, text, frames or []):
            fields = {"message": text} | sighting.fields
            self.rows.add(line, Sighting(sighting.signature, fields), exception=exception, frames=frames or None)

    def _message(self, line: Line, before: str) -> None:
        if line.level != "error" and (row := progress.of_text(line)) is not None:
            self._step(line, row)
            return
        if what := _WHAT.match(line.text):
            thrown = _TERMINATE.search(before)
            self._exception(line, thrown["type"] if thrown else None, line.text[what.end() :], None)
            return
        sightings = self.said.sees(line)
        if line.label is not None and any(s.signature.startswith("elastic_") or not s.fields for s in sightings):
            self._tasks_are_nodes, line = True, replace(line, rank=None)  # a launcher speaks, of its workers
        sightings = sightings or classify(line.text)
        for sighting in sightings:
            if sighting.signature == "elastic_agent_signal":
                self.said.has_failed = True  # what ends from now on was stopped
        signature = sightings[0].signature if sightings else None
        if (told := scheduler.announcement(line.text, signature)) is not None:
            stamp = next((s.fields["logged_at_local"] for s in sightings if "logged_at_local" in s.fields), line.local)
            row = told | {"record": f"L{line.number}", "changed_at": line.at, "changed_at_local": stamp}
            if len(self._announced) < MAX_ANNOUNCED:
                self._announced.setdefault(tuple(told.values()), row)
        thrown_bare = bare_exception(line.text)
        if not sightings and thrown_bare:
            self._exception(line, *thrown_bare, None)
            return
        for sighting in sightings:
            self.rows.add(line, sighting, exception=thrown_bare[0] if thrown_bare else None)
        if not sightings and told is None and line.level == "error":
            self._loose = line.number, self.rows.add(line, Sighting("unknown", {}))

    def _step(self, line: Line, row: dict[str, Any]) -> None:
        self.steps.append(row | {"record": f"L{line.number}", "rank": line.rank})
        if line.local is None:
            line = replace(line, at=row["ended_at"], local=row["ended_at_local"])
        self.rows.count_step(line, row["step"])
        if row["is_finite"] is False:
            self.rows.add(line, Sighting("loss_nan", {"step": row["step"]}))
