"""Python tracebacks in logs: one event per chain, named after the FIRST exception, the one from which the others were raised.

Lines of several writers may be interleaved and may or may not repeat the prefix of the log; a chain grows only by lines of its own stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from collectors._log_prefix import Line
from collectors._log_signatures import Sighting, classify

__all__ = ["Chain", "bare_exception", "begins", "is_frame", "signatures_of"]

MAX_FRAMES = 64
MAX_TEXT = 2000  # characters of an exception's text that are kept
MAX_LINES = 4000  # of a chain
MAX_FURTHER = 30  # lines of text behind the first one of an exception
_HEADER: Final = re.compile(
    r"^(?P<lead>[ \t│╭─|+]*(?:traceback +: )?(?:[A-Z][\w ,'-]{0,80}: )?)(?:Original )?Traceback \(most recent call last\)"
)
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]{1,500})", line (?P<line>[0-9]{1,9})(?:, in (?P<function>.{1,200}))?')
_BOXED: Final = re.compile(r"^\s*│ (?P<file>/\S{1,400}?):(?P<line>[0-9]{1,9}) in (?P<function>[\w<>.]{1,200})")
_BOX: Final = re.compile(r"^\s*[│╰╭]")
_EXCEPTION: Final = re.compile(r"^\s*(?P<type>[A-Za-z_][\w.]{0,200})(?::(?: (?P<text>.*))?)?$", re.DOTALL)
_BARE: Final = re.compile(
    r"^ ?(?P<type>(?:[a-z_]\w{0,80}\.){0,8}(?:[A-Z]\w{0,80}(?:Error|Exception|Interrupt)|Exception(?=: )))(?:: (?P<text>.*))?$", re.DOTALL
)
_JOINED: Final = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
_PASSED_ON: Final = re.compile(r"^\s*-- Process [0-9]{1,6} terminated with the following error:")
_ORIGINAL: Final = re.compile(r"^\s*Original Traceback \(most recent call last\)")
_ENDS: Final = re.compile(r"^\s*(?:terminate called|Fatal Python error|\*\*\* |srun: |slurmstepd: |[=\-*]{8,}$)")
_IN_TORCH: Final = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_TIMED_OUT: Final = re.compile(r"(?i)timed? ?-?out")


def begins(line: Line) -> bool:
    """Whether a traceback begins here."""
    return "Traceback" in line.text and _HEADER.match(line.text) is not None


def is_frame(line: Line) -> bool:
    """Whether the line is one of a traceback's, that says where."""
    return _FRAME.match(line.text) is not None


@dataclass
class Chain:
    """A traceback being read. `feed` it the lines of its stream until it says no, then ask for the first exception."""

    line: Line  # the header, with the clock, rank and host of the chain
    is_ignored: bool = False  # the interpreter said that it goes on
    is_retried: bool = False  # the record that logs it says that the same is tried again
    exception: str | None = None
    text: str = ""
    frames: list[str] = field(default_factory=list)  # outermost first while reading
    _number: int = 0  # of the line that names the exception
    _base: int = 0
    _is_first: bool = True  # still inside the first exception of the chain
    _state: str = "frames"  # frames, after (an exception was read), joined (the next traceback is about to begin)
    _num_lines: int = 0
    _num_further: int = 0

    def __post_init__(self) -> None:
        header = _HEADER.match(self.line.text)
        self._base = _indent(self.line.text, header["lead"]) if header else 0

    def feed(self, line: Line) -> bool:
        """Take the next line of the stream; False = the chain ended before it."""
        self._num_lines += 1
        if self._num_lines > MAX_LINES:
            return False
        if self._state == "frames":
            return self._frame(line)
        return self._after(line)

    def _frame(self, line: Line) -> bool:
        text = line.text
        if found := _FRAME.match(text) or _BOXED.match(text):
            if self._is_first:
                self.frames.append(f"{found['function'] or '?'} ({found['file']}:{found['line']})")
            return True
        if not text.strip() or _BOX.match(text) or _indent(text) > self._base + 1:
            return True  # source text, markers, borders
        if begins(line):
            return False
        found = _EXCEPTION.match(text)
        if not found:
            return False
        if self._is_first:
            self.exception, self.text = found["type"], (found["text"] or "").strip()[:MAX_TEXT]
            self._number = line.number
            if line.is_spoken and self.line.rank is None:  # the only place that says whose traceback it is
                self.line = replace(self.line, rank=line.rank, group_rank=line.group_rank)
        self._state = "after"
        return True

    def _after(self, line: Line) -> bool:
        text = line.text
        if _ORIGINAL.match(text):  # a worker process's exception, raised again here: that one came first
            self.exception, self.text, self.frames, self._is_first = None, "", [], True
            self._state, self._base = "frames", _indent(text)
            return True
        if begins(line):
            if self._state != "joined":
                return False
            if self._is_first:  # what was read only passed this one on
                self.exception, self.text, self.frames = None, "", []
            self._state = "frames"
            return True
        if not text.strip():
            self._num_further = MAX_FURTHER  # nothing behind an empty line is text of the exception
            return True
        if _PASSED_ON.match(text):
            self._state = "joined"
            return True
        if _JOINED.match(text):
            self._is_first, self._state = False, "joined"
            return True
        self._num_further += 1
        if self._state == "joined" or self._num_further > MAX_FURTHER or not self._is_further_text(line):
            return False
        if self._is_first:
            self.text = f"{self.text}\n{text.strip()}"[:MAX_TEXT]
        return True

    def _is_further_text(self, line: Line) -> bool:
        """Whether a further line is text of the exception: it has no prefix (nor had the header), or the very same one."""
        if (self.exception or "").endswith("ChildFailedError") or _ENDS.match(line.text):
            return False
        return line.is_bare or (line.level == self.line.level and (line.local or "")[:19] == (self.line.local or "")[:19])

    @property
    def told(self) -> Line:
        """The header with the number of the line that says what went wrong: there a person looks. Its own where none does."""
        return replace(self.line, number=self._number) if self.exception is not None else self.line

    @property
    def is_new(self) -> bool:
        """Whether nothing but the header was read."""
        return not self._num_lines

    @property
    def is_event(self) -> bool:
        """Whether more than a header was read, and it ended what was being done."""
        return not self.is_ignored and bool(self.exception or self.frames)


def _indent(text: str, lead: str | None = None) -> int:
    """Columns before the text; a field name such as `traceback : ` counts as the two columns that the launcher indents it by."""
    if lead is not None:
        return 2 if "traceback" in lead else len(lead.expandtabs(4)) if not lead.strip() else 0
    return len(text) - len(text.lstrip())


def bare_exception(text: str) -> tuple[str, str] | None:
    """Type and text of an exception printed on a line of its own, without a traceback; None where the line is none."""
    found = _BARE.match(text)
    return (found["type"], (found["text"] or "").strip()[:MAX_TEXT]) if found else None


def signatures_of(exception: str | None, text: str, frames: list[str]) -> list[Sighting]:
    """What kind of line an exception is: the specific kind where its text tells, else `python_traceback`.

    A time-out inside torch.distributed is one more rank that waited, whatever the words.
    """
    said = f"{exception or ''}: {text}"
    if found := classify(said):
        return found
    if _TIMED_OUT.search(said) and any(_IN_TORCH.search(frame) for frame in frames[-3:]):
        return [Sighting("nccl_watchdog_timeout", {})]
    return [Sighting("python_traceback", {})]
