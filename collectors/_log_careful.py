"""The careful reading of a trainer's log: one line at a time, with what is open (tracebacks, lists of failures) of every writer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from collectors import _log_launcher as launcher
from collectors import _log_progress as progress
from collectors import _log_scheduler as scheduler
from collectors._lines import Block
from collectors._log_json import event_of, message_of, object_of
from collectors._log_prefix import Line, parse, pieces
from collectors._log_retries import tries_again
from collectors._log_rows import Rows
from collectors._log_shape import BESIDES, STEP
from collectors._log_signatures import Sighting, classify
from collectors._log_traceback import MAX_FRAMES, Chain, bare_exception, begins, is_frame, signatures_of
from rca.tables import TABLES

__all__ = ["KERNEL", "Log", "hear"]

RETRIABLE: Final = frozenset({"storage_timeout", "shm_full"})  # kinds of lines, no exception of Python, that a second try may undo
MAX_STREAMS = 4096  # tracebacks and blocks open at a time
MAX_WAIT = 500  # lines of other streams after which an open traceback counts as ended
EXPIRE_EVERY = 50  # lines
MAX_ANNOUNCED = 10_000  # different announcements that are kept
KERNEL: Final = re.compile(
    r"^\W{0,4}(?:<[0-9]+>)?\[ *[0-9]+\.[0-9]{4,6}\]|\bkernel: |NVRM: Xid|^[0-9]+,[0-9]+,[0-9]+,-"
)  # lines of another log
_WHAT: Final = re.compile(r"^\s*(?:what\(\): +){1,9}")  # ranks that abort at once share a line
_IGNORED: Final = re.compile(r"Exception ignored in")  # Python goes on: no event
_TERMINATE: Final = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']{1,200})'")


@dataclass
class Log:
    """What was read of one log so far."""

    rows: Rows = field(default_factory=Rows)
    steps: list[dict[str, Any]] = field(default_factory=list)
    said: launcher.Launcher = field(default_factory=launcher.Launcher)
    has_batches: bool = False  # steps are told by blocks of lines
    tasks_are_nodes: bool = False  # the numbers that srun puts in front of lines are not ranks
    _announced: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    _open: dict[tuple[Any, ...], Chain | launcher.Block] = field(default_factory=dict)
    _fed_at: dict[tuple[Any, ...], int] = field(default_factory=dict)  # number of the line that an open one took last
    _batch: int | None = None  # step of the block that is open
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
        return bool(self.rows or self.steps or self._announced or self._open) or self.has_batches

    def take(self, raw: str, number: int, before: str) -> None:
        """Read one physical line; `before` is the one above it."""
        if KERNEL.search(raw):
            return
        for piece in pieces(raw.rstrip()) if raw.strip() else ("",):
            line = parse(piece, number)
            if (entry := object_of(line.text)) is None:
                self._line(line, before)
            elif row := progress.of_json(entry):
                if row["ended_at"] is None and row["ended_at_local"] is None:  # a logger's prefix may tell it
                    row |= {"ended_at": line.at, "ended_at_local": line.local}
                self._step(line, row)
            elif event := event_of(entry):
                self._event(line, event)
            else:
                for wrapped in message_of(entry, number):
                    self._line(wrapped, "")
        self.passes(number)

    def passes(self, number: int) -> None:
        """A line that belongs to no open traceback was read, here or by columns: those that have waited too long end."""
        if self._open and number % EXPIRE_EVERY == 0:
            self._expire(number)

    def is_open(self, stream: tuple[Any, ...]) -> bool:
        """Whether a traceback or a block of this writer is open."""
        return stream in self._open

    def close(self) -> None:
        """The end of the file: what is open ends with it."""
        for stream in list(self._open):
            self._end(stream)
        if self.tasks_are_nodes:
            self.rows.forget_tasks()

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

    def take_steps(self) -> list[dict[str, Any]]:
        """Rows of `progress` not given out yet, in the order of their lines."""
        steps, self.steps = self.steps, []
        return steps

    def _of_task(self, line: Line) -> Line:
        """A task of srun is a rank, unless it is seen to be a launcher or to speak for other ranks."""
        if line.rank is not None and line.rank != line.label:
            self.tasks_are_nodes = True
        return line if line.rank is not None or self.tasks_are_nodes else replace(line, rank=line.label, is_of_task=True)

    def _line(self, line: Line, before: str) -> None:
        stream = line.stream
        line = line if line.label is None else self._of_task(line)
        if line.is_bare and stream not in self._open:
            self._go_on_bare(line, stream)
        if (current := self._open.get(stream)) is not None:
            if isinstance(current, launcher.Block) and (current.ends_entry(line) or begins(line)):
                who = self._failure(current)
                line = replace(line, **who) if begins(line) else line  # the traceback that the worker left behind
            if current.feed(line):
                self._fed_at[stream] = line.number
                return
            self._end(stream, below=line)
        if not line.text.strip():
            return
        if begins(line):
            self._start(stream, self._chain(line, before))
        elif block := launcher.begins_block(line):
            self._start(stream, block)
        else:
            self._message(line, before)

    def _go_on_bare(self, line: Line, stream: tuple[Any, ...]) -> None:
        """A logger that is given a formatted traceback writes its prefix once: the header has it, the frames below have none."""
        above = next(reversed(self._open), None)
        if above is None or self._fed_at[above] != line.number - 1 or not is_frame(line):
            return
        chain = self._open[above]
        if isinstance(chain, Chain) and chain.is_new:
            self._open[stream], self._fed_at[stream] = self._open.pop(above), self._fed_at.pop(above)

    def _start(self, stream: tuple[Any, ...], opened: Chain | launcher.Block) -> None:
        if len(self._open) >= MAX_STREAMS:
            self._end(next(iter(self._open)))
        self._open[stream] = opened
        self._fed_at[stream] = opened.line.number
        if self._loose and self._loose[0] == opened.line.number - 1:
            self.rows.drop(self._loose[1])

    def _chain(self, line: Line, before: str) -> Chain:
        """A traceback that begins here. A bare one belongs to the record that logs it: an error or warning right above it."""
        above = parse(before, line.number - 1) if before.strip() else line
        is_its_own = line.is_bare or above.stream == line.stream
        is_retried = is_its_own and not above.is_bare and tries_again(above.text)
        return Chain(self._in_context(line, above), is_ignored=_IGNORED.search(before) is not None, is_retried=is_retried)

    def _in_context(self, line: Line, above: Line) -> Line:
        if not line.is_bare or above.is_bare or above.level not in ("error", "warning"):
            return line
        return replace(line, at=above.at, local=above.local, level=above.level, rank=above.rank, host=above.host, pid=above.pid)

    def _expire(self, number: int) -> None:
        for stream in [stream for stream, at in self._fed_at.items() if number - at > MAX_WAIT]:
            self._end(stream)

    def _end(self, stream: tuple[Any, ...], *, below: Line | None = None) -> None:
        ended = self._open.pop(stream)
        del self._fed_at[stream]
        if isinstance(ended, launcher.Block):
            self._failure(ended)
        elif ended.is_event:
            frames = ended.frames[::-1][:MAX_FRAMES]
            is_retried = ended.is_retried or (below is not None and not below.is_bare and tries_again(below.text))
            self._exception(ended.told, ended.exception, ended.text, frames, is_retried=is_retried)

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

    def _exception(self, line: Line, exception: str | None, text: str, frames: list[str] | None, *, is_retried: bool = False) -> None:
        for sighting in signatures_of(exception, text, frames or []):
            fields = {"message": text, "is_retried": is_retried or None} | sighting.fields
            self.rows.add(line, Sighting(sighting.signature, fields), exception=exception, frames=frames or None)

    def _message(self, line: Line, before: str) -> None:
        if line.level != "error" and (row := progress.of_text(line)) is not None:
            self._step(line, row)
            return
        if self._of_batch(line):
            return
        if what := _WHAT.match(line.text):
            thrown = _TERMINATE.search(before)
            self._exception(line, thrown["type"] if thrown else None, line.text[what.end() :], None)
            return
        sightings = self.said.sees(line)
        if line.label is not None and launcher.speaks_of_workers(line.text, sightings):
            self.tasks_are_nodes, line = True, replace(line, rank=None)  # a launcher speaks, of its workers
        sightings = sightings or classify(line.text, line.level)
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
            self._exception(line, *thrown_bare, None, is_retried=tries_again(line.text))
            return
        for sighting in sightings:
            again = {"is_retried": True} if sighting.signature in RETRIABLE and tries_again(line.text) else {}
            self.rows.add(line, replace(sighting, fields=sighting.fields | again), exception=thrown_bare[0] if thrown_bare else None)
        if not sightings and told is None and line.level == "error":
            self._loose = line.number, self.rows.add(line, Sighting("unknown", {}))

    def _of_batch(self, line: Line) -> bool:
        """Whether the line is one of a block that tells a step."""
        if (step := progress.batch_of(line.text)) is not None:
            self.has_batches, self._batch = True, step
            return True
        if (loss := progress.loss_of_batch(line.text)) is None:
            return False
        self.has_batches = True
        if self._batch is not None:
            self._step(line, progress.of_batch(line, self._batch, loss))
            self._batch = None
        return True

    def _step(self, line: Line, row: dict[str, Any]) -> None:
        self.steps.append(row | {"record": f"L{line.number}", "rank": line.rank, "host": line.host})
        if line.local is None:
            line = replace(line, at=row["ended_at"], local=row["ended_at_local"])
        self.rows.count_step(line, row["step"])
        if row["is_finite"] is False:
            self.rows.add(line, Sighting("loss_nan", {"step": row["step"]}))


class _Ear(Log):
    """Hears a single line: the steps that it tells, with what the line itself says of rank and task, and from where they came."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.heard: list[tuple[Line, dict[str, Any]]] = []

    def _of_task(self, line: Line) -> Line:
        return line

    def _line(self, line: Line, before: str) -> None:
        self.lines.append(line)
        super()._line(line, before)

    def _step(self, line: Line, row: dict[str, Any]) -> None:
        self.heard.append((line, row))

    @property
    def has_learnt(self) -> bool:
        """Whether lines to come are read in another way than they were."""
        return (
            bool(self._open or self._announced or self._loose)
            or self.tasks_are_nodes
            or self.has_batches
            or self.said != launcher.Launcher()
        )


def hear(raw: str) -> dict[str, Any] | None:
    """All that a line tells, whatever was read before, as `_log_shape.Hear` describes it; None where that is more, or another thing."""
    ear = _Ear()
    ear.take(raw, 1, "")
    if KERNEL.search(raw) or len(ear.lines) > 1 or len(ear.heard) > 1 or ear.has_learnt:
        return None
    line, row = ear.heard[0] if ear.heard else (ear.lines[0] if ear.lines else Line(1, ""), {})
    said = {name: getattr(line, name) for name in ("rank", "label", "host", "pid", "group_rank", "level", "is_bare")}
    kinds = ear.rows.kinds
    if kinds and (ear.heard or len(kinds) > 1 or line.label is not None or launcher.Launcher().sees(line)):
        return None
    tells = STEP if ear.heard else ""
    if kinds:
        tells, said["rank"], said["host"], said["pid"] = kinds[0]
    return dict.fromkeys((*TABLES["progress"].schema, *BESIDES)) | row | said | {"has_stream": bool(ear.lines), "tells": tells}
