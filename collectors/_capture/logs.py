"""Logs: the regular files that the processes' standard output and error go to, and text that trainers write beside; their last megabytes.

Files are opened at the start and read at the end: so the last words of a job that ended meanwhile are in them. A pipe or terminal is never read:
what is read there is lost for its reader.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors._capture.files import Folder, open_regular, reason
from collectors._capture.find import Member
from collectors._capture.proc import sees_files_of

__all__ = ["Logs"]

MAX_BYTES = 16 << 20
STREAMS = {1: "stdout", 2: "stderr"}
WRITTEN = "written"  # text that a trainer holds open to write to: step timings, metrics, a log of its own
MAX_WRITTEN = 16  # of one process; a trainer that holds more keeps a data set or a cache open
TEXT_HEAD_BYTES = 4096
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torchrun: where a rank that fails leaves its exception
_UNPLAIN = re.compile(r"[^A-Za-z0-9._-]")
_ATTEMPT = re.compile(r"^(?P<attempt>.*/attempt_[0-9]+)/(?P<local>[0-9]+)/[^/]+$")


@dataclass
class _Open:
    """An open log: who writes to it, and which of their streams goes there."""

    descriptor: int
    path: str
    writers: list[Member] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)


class Logs:
    """The logs of one job, held open."""

    def __init__(self, folder: Folder, members: Sequence[Member]) -> None:
        self._folder = folder
        self._open: dict[tuple[int, int], _Open] = {}
        for member in members:
            for number, stream in STREAMS.items():
                self._hold(member, Path(f"/proc/{member.process.pid}/fd/{number}"), stream, follow=True)
        for member in members:
            self._hold_others(member)
            self._hold_written(member)

    def _hold(self, member: Member, path: Path, stream: str, *, follow: bool) -> None:
        about = {"pid": member.process.pid, "rank": member.rank, "stream": stream}
        try:
            descriptor = open_regular(path, owner=None if follow else member.process.uid, follow=follow)
        except FileNotFoundError:
            return
        except OSError as error:
            why = "a pipe, terminal or device: not read, its reader has it" if str(error).endswith("no regular file") else reason(error)
            self._folder.note("log", "skipped", why, **about)
            return
        found = os.fstat(descriptor)
        key = (found.st_dev, found.st_ino)
        if key in self._open:
            os.close(descriptor)
        else:
            with contextlib.suppress(OSError):
                path = path.readlink() if follow else path
            self._open[key] = _Open(descriptor, str(path))
        self._open[key].writers.append(member)
        self._open[key].streams.add(stream)

    def _hold_others(self, member: Member) -> None:
        """What torchrun keeps beside: the exception of the rank, and the logs of ranks of this attempt that have ended."""
        if not member.is_trainer or member.rank is None:
            return
        told = (member.process.environ or {}).get(ERROR_FILE)
        if told:
            self._hold(member, sees_files_of(member.process.pid, told), "error", follow=False)
        living = [log for log in self._open.values() if member in log.writers and (found := _ATTEMPT.match(log.path))]
        for log in living:
            found = _ATTEMPT.match(log.path)
            if not found or member.local_rank is None or int(found["local"]) != member.local_rank:
                continue
            for stream in STREAMS.values():
                for path in sorted(sees_files_of(member.process.pid, found["attempt"]).glob(f"[0-9]*/{stream}.log")):
                    rank = member.rank - member.local_rank + int(path.parent.name)
                    self._hold_neighbour(member, path, rank, stream)

    def _hold_written(self, member: Member) -> None:
        """Regular files that a trainer writes to by itself, where they begin as text."""
        if not member.is_trainer:
            return
        folder = Path(f"/proc/{member.process.pid}/fd")
        held = set(self._open)
        with contextlib.suppress(OSError):
            for number in sorted(int(entry.name) for entry in folder.iterdir() if int(entry.name) not in STREAMS):
                if _is_written(folder, number):
                    self._hold(member, folder / str(number), WRITTEN, follow=True)
        mine = [key for key, log in self._open.items() if key not in held and WRITTEN in log.streams]
        for count, key in enumerate(mine):
            if count >= MAX_WRITTEN or not _is_text(self._open[key].descriptor):
                os.close(self._open.pop(key).descriptor)

    def _hold_neighbour(self, member: Member, path: Path, rank: int, stream: str) -> None:
        try:
            found = path.lstat()
        except OSError:
            return
        if (found.st_dev, found.st_ino) not in self._open:
            ended = Member(member.process, "main", rank, None, member.world_size)
            self._hold(ended, path, stream, follow=False)

    def copy(self) -> int:
        """Copy the last bytes of each; how many were copied."""
        taken: dict[str, int] = {}
        num_copied = 0
        for log in sorted(self._open.values(), key=lambda log: log.path):
            base, suffix = (self._written_name(log), "") if log.streams == {WRITTEN} else (f"logs/{self._name(log)}", ".log")
            taken[base] = taken.get(base, 0) + 1
            name = f"{base}{'' if taken[base] == 1 else '-' + 'bcdefghijklmnopqrstuvwxyz'[min(taken[base], 26) - 2]}{suffix}"
            with self._folder.doing("log", path=log.path):
                size = os.fstat(log.descriptor).st_size
                data = _tail(log.descriptor, size)
                if data:
                    self._folder.write(name, data)
                    num_copied += 1
                why = None if size <= MAX_BYTES else f"only the last {len(data):,} of {size:,} bytes"
                self._folder.note("log", "ok" if data else "skipped", why if data else "empty", path=log.path, file=name if data else None)
            os.close(log.descriptor)
        self._open.clear()
        return num_copied

    def _written_name(self, log: _Open) -> str:
        """Its own name, behind the rank where one alone writes to it."""
        ranks = {m.rank for m in log.writers}
        rank = next(iter(ranks)) if len(ranks) == 1 else None
        return f"written/{'' if rank is None else f'rank_{rank}.'}{_UNPLAIN.sub('_', Path(log.path).name)}"

    def _name(self, log: _Open) -> str:
        """After the rank where one alone writes to it."""
        ranks = {m.rank for m in log.writers}
        if len(ranks) > 1:
            return "shared"
        stream = f".{next(iter(log.streams))}" if len(log.streams) == 1 else ""
        rank = next(iter(ranks))
        if rank is not None:
            return f"rank_{rank}{stream}"
        role = "agent" if all(m.role in ("agent", "launcher") for m in log.writers) else "unranked"
        return f"{self._folder.host}.{role}{stream}"


def _is_written(folder: Path, number: int) -> bool:
    """Opened for writing, and a file with a name: not one that is unlinked, nor memory."""
    try:
        info = (folder.parent / "fdinfo" / str(number)).read_text("ascii", "replace")
        target = str((folder / str(number)).readlink())
        num_names = (folder / str(number)).stat().st_nlink
    except OSError:
        return False
    flags = re.search(r"^flags:\s*([0-7]+)", info, re.M)
    is_file = num_names > 0 and target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/"))
    return is_file and bool(flags and int(flags[1], 8) & os.O_ACCMODE)


def _is_text(descriptor: int) -> bool:
    """Begins as UTF-8 without a control character but white space and escape."""
    try:
        head = os.pread(descriptor, TEXT_HEAD_BYTES, 0)
        text = head.decode("utf-8") if len(head) < TEXT_HEAD_BYTES else head.decode("utf-8", "ignore")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(head) and len(text) > len(head) // 5 and all(c.isprintable() or c in "\t\n\r\x1b" for c in text)


def _tail(descriptor: int, size: int) -> bytes:
    """The last bytes up to `size`, from the begin of a line on."""
    start = max(0, size - MAX_BYTES)
    parts, place = [], start
    while place < size and (part := os.pread(descriptor, min(1 << 20, size - place), place)):
        parts.append(part)
        place += len(part)
    data = b"".join(parts)
    return data if not start else data.partition(b"\n")[2] or data
