"""Logs of trainers, launchers and schedulers: what went wrong, who was stopped on purpose, and which steps were finished.

Text in any of the usual layouts (one file per rank or all ranks interleaved, with or without clocks) and JSON lines, of messages or of
metrics. Every recognised line is a row of `log_events` with a signature of rca/catalogue/signatures.csv; a symptom is never taken for a
cause, and only a global rank for a rank. A log in which nothing happened gives its steps and starts, so that it counts as looked at. Where a
line states the time of an iteration, that is a row of `steps` too, of no rank: the loop is the whole job's.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from collectors import _log_launcher as launcher
from collectors import _log_progress as progress
from collectors import _log_scheduler as scheduler
from collectors._documents import is_document, is_quoted
from collectors._lines import Block, blocks, garbage, is_text
from collectors._log_careful import KERNEL, Log, hear
from collectors._log_dense import Dense, StepRows
from collectors._log_devices import MARKS, Devices
from collectors._log_json import object_of
from collectors._log_lines import holding, texts
from collectors._log_prefix import parse, pieces
from collectors._log_shapes import Lines, Shapes
from collectors._log_signatures import words
from collectors._log_wrapped import unwrapped
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("log_events", "scheduler_events", "progress", "steps", "ranks")
IS_GENERIC = True

BATCH_ROWS = 50_000  # rows of `progress` held before they are given out
SNIFF_LINES = 4000
_STRUCTURE: Final = (
    *("traceback (most", "error: ", "exception: ", "failures:", "root cause (first", " error ", "[error]", "critical", "what():"),
    "torchelastic.",
)
_MARKS: Final = re.compile(  # of the log of a training job in which no line is noteworthy
    r"(?i)torch/distributed/[\w/]+\.py:[0-9]+\]|(?:INFO|WARNING|ERROR):torch\.|\bNCCL (?:INFO|WARN|version)\b|^(?:slurmstepd|srun|salloc): "
    r"|\[rank ?[0-9]{1,7}\]|\bworld[_ ]size\b.{0,3}[0-9]",
    re.MULTILINE,
)
_LISTED: Final = re.compile(  # first lines of what a scheduler prints, of calendars and of tables of windows
    r"(?:NODELIST|PARTITION|REASON|JOBID|HOSTNAMES)\b.{0,200}\b(?:STATE|ST|NODELIST|REASON|PARTITION)\b|(?:NodeName|JobId|ReservationName)=\S"
    r"|(?:JobID|JobIDRaw|Account)\b.{0,4000}\bState\b|BEGIN:VCALENDAR|[a-z_]{0,30}(?:start|begin)[a-z_]{0,30}[,;|\t]"
)
_HEADING: Final = re.compile(r"#{1,6} \w")
_WORDS: Final = (*words(), *progress.WORDS, *scheduler.WORDS, *launcher.WORDS, *_STRUCTURE)


def claims(name: str, head: bytes) -> bool:
    """Whether a line of the head is one that this reader knows, or the head is plainly of such a log. Kernel lines and dumps are not,
    nor is what people wrote about logs."""
    if head[:1] == b"\x80" or is_document(name) or not is_text(head):
        return False
    lines = unwrapped(head.decode("utf-8-sig", "replace").split("\n")[:SNIFF_LINES])
    text = next((line.lstrip() for line in lines if line.strip()), "")
    is_json = (text.startswith("[") and text[1:].lstrip()[:1] in ("{", "")) or (text.startswith("{") and not text.startswith("{'"))
    if is_json and object_of(text) is None:  # one document over many lines
        return False
    if _LISTED.match(text) and not any(parse(piece, 0).is_logged for line in lines if line.strip() for piece in pieces(line)):
        return False  # a table of nodes, jobs or windows: what it says of a drain or of maintenance is no line of a log
    is_page = sum(_HEADING.match(line) is not None for line in lines) > 1  # a page about such logs quotes their lines
    held = holding(lines, _WORDS)
    if held and is_quoted(lines[place] for place in held):
        return False
    for place in held:
        if is_page and not any(parse(piece, 0).is_logged for piece in pieces(lines[place])):
            continue
        sniffed = Log()
        sniffed.take(lines[place], place + 1, lines[place - 1] if place else "")
        if sniffed.has_seen_something:
            return True
    return not (is_json or is_page) and _MARKS.search("\n".join(line for line in lines if not KERNEL.search(line))) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of one file: steps in batches as they come, the other tables at its end. Raises OSError where it cannot be opened."""
    log, shapes, steps, devices = Log(), Shapes(hear), StepRows(source.rank_said), Devices(source.rank_said)
    before = ""
    last: Block | None = None
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            log.breaks_off(last)
            continue
        yield from garbage(block)
        last = block
        lines = Lines(texts(block), block.first, has_returns=block.data.count(b"\r") > block.data.count(b"\r\n"))
        held = holding(lines.texts, _WORDS)
        dense = Dense(*shapes.find(lines, held, tasks_are_ranks=not log.tasks_are_nodes), log)
        _read(lines, before, held, dense, log)
        if any(mark.encode() in block.data for mark in MARKS):
            devices.hear(lines.texts, lines.first)
        steps.add(list(dense.count_up()), log.take_steps(), block.first)
        before = lines.texts[-1]
        if steps.num_waiting >= BATCH_ROWS:
            yield from steps.take()
    log.close()
    rows = log.rows.finish(source.rank_said)
    if log.rows.num_dropped:
        yield Skip(None, f"{log.rows.num_dropped} recognised lines left out: too many different ones")
    yield from steps.take()
    yield TABLES["log_events"], TABLES["log_events"].rows(rows)
    yield TABLES["scheduler_events"], TABLES["scheduler_events"].rows(log.announced)
    yield TABLES["ranks"], TABLES["ranks"].rows([*launcher.processes(rows), *devices.rows(tasks_are_nodes=log.tasks_are_nodes)])


def _read(lines: Lines, before: str, held: Sequence[int], dense: Dense, log: Log) -> None:
    """Read carefully what needs it: the lines that hold a word and are not read by columns, and all while a traceback is open."""
    at, careful = 0, dense.without(held)
    while at < len(lines.texts):
        if not log.is_inside:
            next_careful = bisect_left(careful, at)
            if next_careful == len(careful):
                return
            at = careful[next_careful]
        elif dense.passes(at):
            log.passes(lines.first + at)
            at += 1
            continue
        else:
            dense.leave(at)
        were_nodes = log.tasks_are_nodes
        log.take(lines.texts[at], lines.first + at, lines.texts[at - 1] if at else before)
        for place in dense.was_taken(at):
            insort(careful, place)
        at += 1
        if log.tasks_are_nodes != were_nodes:  # a number before a line was a rank until here
            dense.leave_tasks(at)
            careful = dense.without(held)
