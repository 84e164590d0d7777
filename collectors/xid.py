"""Kernel and driver logs: Xid, SXid, GPUs lost from the bus, out of memory, PCIe, network cards, disks, hung tasks and the like.

Reads what dmesg, /dev/kmsg, the journal, syslog, consoles and the tools that collect them write. Rows: one per burst of equal lines
(`kernel_events`), and one per host for the log itself (`host_logs`), so that a log without any event is known to have been read.
Time is what the line gives: an instant only with date, year and zone. What else of clocks stands in the log goes to `clock_anchors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from collectors._documents import is_document
from collectors._kernel_anchors import Anchors
from collectors._kernel_clock import wall_stamp
from collectors._kernel_cover import Cover
from collectors._kernel_entries import entries_of
from collectors._kernel_event import Event, gpu_address
from collectors._kernel_fold import Folder, Plan
from collectors._kernel_gpu import GPU_HEADER, ends_bus_loss, gpu_event, lost_from_bus, rate_limited_gpu
from collectors._kernel_lines import BOOT, BROADCAST, SKIPPED, marked_lines
from collectors._kernel_prefix import Line, host_name, peel, peel_inner
from collectors._kernel_rules import other_event, waits_in
from collectors._kernel_slots import Slots
from collectors._kernel_twins import Twins
from collectors._lines import blocks, garbage, is_text
from rca.host_names import host_in_name
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("kernel_events", "host_logs", "clock_anchors")
IS_GENERIC = True

SNIFF_LINES: Final = 40  # of the head, evenly spread
MOST: Final = 0.5  # of the lines: more than that makes a log one of that kind
MAX_ROWS: Final = 20_000  # held in memory before they are given out; a burst over that border becomes two rows
MAX_TAGGED: Final = 200  # lines of a block that hold the kernel's tag somewhere: the first nearly always is one
MAX_INNER: Final = 8  # places within a tool's line at which the kernel's may begin
NAMELESS: Final = "localhost"  # what every machine calls itself until it is given a name
NEAR_LINES: Final = 4  # within which a message of several lines is told to its end
_CUT_CODE: Final = re.compile(r"Xid[^\n]{0,60}: {0,4}[0-9]{1,5}$")  # the digits that a number had so far
_TAGGED: Final = re.compile(rb"[^\n]{1,400} kernel: [^\n]{0,400}")


def claims(name: str, head: bytes) -> bool:
    """A line of a driver or kernel that tells an event, or mostly lines with the prefixes of a kernel's or a host's log."""
    if head[:1] == b"\x80" or is_document(name) or not is_text(head):
        return False
    if _kind_of_log(head):
        return True
    reader = _Reader(None)
    for number, text in marked_lines(head, 1):
        reader.take(text, number)
    return len(reader.events) > 0


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `kernel_events` and, for a kernel log, of `host_logs` and `clock_anchors`. Lines that tell no event give nothing."""
    events, logs = TABLES["kernel_events"], TABLES["host_logs"]
    host = host_in_name(source.path.rsplit("/", 1)[-1], kind="kernel")
    reader, cover, anchors = _Reader(host), Cover(host), Anchors(host)
    kind, entries = _kind_of_log(source.head), entries_of(source.head)
    num_lines = 0
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        yield from garbage(block)
        lines = marked_lines(block.data, block.first)
        if entries:
            lines = entries.take(block.data, block.first, {number for number, _ in lines})
        is_cut = not block.data.endswith(b"\n")  # in the middle of its last line
        for number, text in lines:
            if is_cut and number == block.last and _CUT_CODE.search(text):
                continue
            line = reader.take(text, number)
            if not line.is_inner or line.stamp.has_wall:  # what a tool quotes tells nothing of the time that its log covers
                cover.see(line)
            anchors.mark(line, number)
        cover.see_edges(block.data)
        anchors.see(block.data, block.first)
        if kind == "host" and _has_kernel_line(block.data):
            kind = "kernel"
        num_lines = block.last
        if len(reader.events) >= MAX_ROWS:
            yield events, events.rows(_at_home(reader.take_rows(), source))
    for number, text in entries.rest() if entries else ():
        cover.see(reader.take(text, number))
    yield events, events.rows(_at_home(reader.take_rows(), source))
    if kind == "kernel":
        yield logs, logs.rows(_at_home(cover.rows(num_lines), source))
        yield TABLES["clock_anchors"], TABLES["clock_anchors"].rows(_at_home(anchors.rows(), source))


def _at_home(rows: list[dict[str, Any]], source: Source) -> list[dict[str, Any]]:
    """The rows; those of a machine that has not been given a name bear the one that the file or its folder states, if one does."""
    if any(row["host"] == NAMELESS for row in rows) and (host := source.host_said or host_in_name(source.path.rsplit("/", 1)[-1])):
        return [{**row, "host": host} if row["host"] == NAMELESS else row for row in rows]
    return rows


def _kind_of_log(head: bytes) -> Literal["kernel", "host", ""]:
    """`kernel`: most lines have its prefix or tell an event, or some its tag in a syslog. `host`: a syslog, so far without such a line."""
    if (entries := entries_of(head)) and entries.is_kernel:
        return "kernel"
    texts = [text for text in head.split(b"\n") if text.strip()]
    lines = [peel(text.decode("utf-8", "replace")) for text in texts[:: max(1, len(texts) // SNIFF_LINES)]]
    kernel = [line for line in lines if line.is_kernel or gpu_event(line.body) or other_event(line.body)]
    tagged = [line for line in lines if line.host and line.stamp.has_wall]
    if len(kernel) > MOST * len(lines) or any(line.is_kernel for line in tagged):
        return "kernel"
    return "host" if len(tagged) > MOST * len(lines) else ""


def _has_kernel_line(block: bytes) -> bool:
    """Whether a line of a syslog has the kernel's tag; a program may well write the word."""
    return any(peel(found[0].decode("utf-8", "replace")).is_kernel for found in islice(_TAGGED.finditer(block), MAX_TAGGED))


class _Reader:
    """Lines in their order, with what one line says about the next: boots, broadcasts, messages of several lines."""

    def __init__(self, host: str | None) -> None:
        self.events = Folder()
        self._twins = Twins()
        self._slots = Slots()
        self._host = host  # of lines that name none
        self._boot_id: str | None = None
        self._header: tuple[int, str | None, Line] | None = None  # place, GPU and line that begins "The NVIDIA GPU ..."
        self._sender: tuple[int, Line] | None = None  # place and line of "Message from syslogd@host at ..."

    def take(self, text: str, number: int) -> Line:
        """Folds what a line tells into `events`; gives back the line without its prefixes, to be looked at before the next one is taken."""
        if self._sender is None or number - self._sender[0] > NEAR_LINES:
            if twin := self._twins.find(text):
                if twin.plan is not None:
                    self.events.fold(twin.plan, twin.line, number)
                return twin.line
            line, plan, is_alone = self._read(self._twins.peeled(text) or peel(text), number)
            if is_alone:
                self._twins.learn(text, line, plan)
        else:
            line, plan, _ = self._read(peel(text), number)
        if plan is not None:
            self.events.fold(plan, line, number)
        if line.is_inner:
            self._take_further(line, number)
        return line

    def _take_further(self, told: Line, number: int) -> None:
        """Folds what else the GPU drivers say in a tool's line, as in the conditions of a node: each once."""
        first = gpu_event(told.body)
        seen = {(first.code, first.gpu)} if first else set()
        for _ in range(MAX_INNER):
            if not (inner := peel_inner(told)):
                return
            told, event = inner, gpu_event(inner.body)
            if event and (event.code, event.gpu) not in seen:
                seen.add((event.code, event.gpu))
                self.events.fold(self.events.plan(event, told.host), told, number)

    def take_rows(self) -> list[dict[str, Any]]:
        """The rows so far, which no longer grow, with what the driver said of their GPUs."""
        rows = self.events.take_rows()
        self._slots.fill(rows)
        return rows

    def _read(self, line: Line, number: int) -> tuple[Line, Plan | None, bool]:
        """A line without its prefixes, how its event folds, and whether it says that by itself, whatever lines stand around it."""
        is_alone = self._put_in_context(line, number)
        if line.is_hearsay:
            return line, None, is_alone
        if self._slots.learn(line):
            return line, None, False
        (event, is_whole), told = self._event(line, number), line
        for _ in range(MAX_INNER):
            if event is not None or not (inner := peel_inner(told)):
                break
            (event, is_whole), told = self._event(inner, number), inner
        is_alone = is_alone and is_whole and told is line
        if event is None:
            return line, None, is_alone
        return told, self.events.plan(event, told.host), is_alone

    def _put_in_context(self, line: Line, number: int) -> bool:
        """Gives the line the host, boot and time that the file's name or a line before it says where it says none itself.

        False for a line that says such a thing, or to which one before it did.
        """
        is_alone = True
        if found := BOOT.match(line.body):
            self._boot_id, is_alone = found["boot"], False
            self._twins.forget()
        elif found := BROADCAST.match(line.body):
            line.host = host_name(found["host"])
            if wall := wall_stamp(found["stamp"], 0, line.stamp):
                line.stamp = wall[0]
            self._sender, is_alone = (number, line), False
        elif self._sender and number - self._sender[0] <= NEAR_LINES and line.host is None and not line.stamp.has_wall:
            sent = self._sender[1]
            line.host = sent.host
            line.stamp = replace(sent.stamp, uptime_s=line.stamp.uptime_s)
            is_alone = False
        line.host = line.host or self._host
        line.boot_id = line.boot_id or self._boot_id
        return is_alone

    def _event(self, line: Line, number: int) -> tuple[Event | None, bool]:
        """What a line tells, and whether it does so by itself; False where it is a part of something, or speaks of other lines."""
        body = line.body
        if event := gpu_event(body):
            return event, True
        if found := GPU_HEADER.match(body):
            self._header = number, gpu_address(found["pci"]), line
            return None, False
        if ends_bus_loss(body):
            return self._lost(line, number), False
        if gpu := rate_limited_gpu(body):
            self.events.rate_limited(gpu, line.host)
            return None, False
        if module := waits_in(body):
            self.events.waits_in(module, line)
            return None, False
        if SKIPPED.match(body):
            self.events.skipped("storage_lustre", line.host)
            return None, False
        return other_event(body), True

    def _lost(self, line: Line, number: int) -> Event | None:
        """The end of "The NVIDIA GPU ... fallen off the bus": GPU, host and time stand in its first line, the other two may lack a prefix."""
        header, self._header = self._header, None
        if header is None or number - header[0] > NEAR_LINES:
            return lost_from_bus(None, line.body)
        first, gpu, begun = header
        if gpu is not None:
            self.events.add(lost_from_bus(gpu, begun.body), begun, first)
        return None
