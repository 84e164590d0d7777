"""Flight recorders: dump files that are there, and dumps asked for.

Asking (`--trigger`) does one of two things, where the job was set up for it. The pipe of torch's NCCL backend takes a byte, and the trainer's
monitor thread writes its dump file. The worker server of torch's debug server is asked over HTTP for its recorder (`debug_server`).
No signal is sent.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from collectors._capture.debug_server import fetch, find_server
from collectors._capture.files import Folder, open_regular, reason
from collectors._capture.find import Member
from collectors._capture.kernel import boot_ns
from collectors._capture.proc import TICKS, sees_files_of

__all__ = ["ask_for_dumps", "copy_dumps"]

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
MAX_BYTES = 256 << 20  # 2,000 calls with stacks take 0.5 MB
TRIES = 3
QUIET_S = 0.5  # a file that did not change for so long is written to its end
DUMP_WAIT_S = 20.0  # a dump with stacks takes 3-6 s


def _places(member: Member) -> list[str]:
    """Where torch writes the dump of a rank: as told, else in its cache; older versions in the temporary folder."""
    environ = member.process.environ or {}
    told = [environ[name] for name in PREFIXES if environ.get(name)]
    cache = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    default = [f"{cache}/torch/comm_lib_trace_rank_"] if cache else []
    return [f"{prefix}{member.rank}" for prefix in dict.fromkeys([*told, *default, "/tmp/nccl_trace_rank_"])]


def copy_dumps(folder: Folder, trainers: Sequence[Member], into: str) -> dict[int, tuple[str, int]]:
    """Copy what dump files there are; {rank: (path, time of change in ns)} of the copied ones."""
    found = {}
    for member in trainers:
        if member.rank is None:
            continue
        for place in _places(member):
            with folder.doing("recorder_file", rank=member.rank, path=place):
                if (changed := _copy(folder, member, place, f"{into}/nccl_trace_rank_{member.rank}")) is not None:
                    found[member.rank] = (place, changed)
                    break
    return found


def _copy(folder: Folder, member: Member, place: str, name: str) -> int | None:
    """Copy one file whole and unchanged; when it was changed, None where there is none."""
    path, about = sees_files_of(member.process.pid, place), {"rank": member.rank, "path": place}
    try:
        file = os.fdopen(open_regular(path, owner=member.process.uid), "rb")
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    with file:
        for _ in range(TRIES):
            before = os.fstat(file.fileno())
            if before.st_size > MAX_BYTES:
                folder.note("recorder_file", "failed", f"{before.st_size:,} bytes: no dump is so large", **about)
                return None
            if before.st_mtime_ns < _started_ns(member.process.started):
                folder.note("recorder_file", "skipped", "older than its process: of an earlier launch", **about)
                return None
            file.seek(0)
            data = file.read()
            after = os.fstat(file.fileno())
            if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and len(data) == before.st_size:
                folder.write(name, data)
                folder.note("recorder_file", "ok", None, **about, file=name)
                return before.st_mtime_ns
            time.sleep(QUIET_S)
    folder.note("recorder_file", "failed", "it changed while it was read", **about)
    return None


def _started_ns(ticks: int) -> int:
    """When a process started, ns since 1970."""
    return boot_ns() + ticks * 10**9 // TICKS


def ask_for_dumps(folder: Folder, trainers: Sequence[Member]) -> None:
    """Ask every trainer that was set up for it, then copy what came."""
    ranked = [m for m in trainers if m.rank is not None]
    before = {m.process.pid: _changes(m) for m in ranked}
    asked = [member for member in ranked if _poke(folder, member)]
    end = time.monotonic() + DUMP_WAIT_S
    waiting = list(asked)
    while waiting and time.monotonic() < end:
        time.sleep(QUIET_S)
        waiting = [m for m in waiting if _changes(m) == before[m.process.pid] or _is_fresh(m)]
    for member in waiting:
        folder.note("recorder_pipe", "failed", f"asked; no dump was written in {DUMP_WAIT_S:.0f} s", rank=member.rank)
    copy_dumps(folder, [m for m in asked if m not in waiting], "fr/asked")
    for member in ranked:
        _ask_server(folder, member)


def _changes(member: Member) -> dict[str, int]:
    """Time of change of every file that may be a dump of this rank."""
    found = {}
    for place in _places(member):
        with contextlib.suppress(OSError):
            found[place] = os.lstat(sees_files_of(member.process.pid, place)).st_mtime_ns
    return found


def _is_fresh(member: Member) -> bool:
    return any(time.time_ns() - changed < QUIET_S * 1e9 for changed in _changes(member).values())


def _poke(folder: Folder, member: Member) -> bool:
    """Write a byte into the dump pipe of a trainer, if there is one and somebody reads it."""
    told = (member.process.environ or {}).get(PIPE)
    if not told:
        return False
    place = f"{told}{member.rank}.pipe"
    about = {"rank": member.rank, "path": place}
    path = sees_files_of(member.process.pid, place)
    try:
        _write_to_pipe(path, member.process.uid)
    except OSError as error:
        folder.note("recorder_pipe", "failed", reason(error), **about)
        return False
    folder.note("recorder_pipe", "ok", "asked with one byte", **about)
    return True


def _write_to_pipe(path: Path, owner: int) -> None:
    """One byte, without waiting: ENXIO where nobody reads. Raises OSError."""
    held = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(held)
        if not stat.S_ISFIFO(found.st_mode) or found.st_uid != owner:
            raise OSError("no pipe of that trainer")
        os.write(held, b"1")
    finally:
        os.close(held)


def _ask_server(folder: Folder, member: Member) -> None:
    port = find_server(member.process.pid, (member.process.environ or {}).get("MASTER_PORT"))
    if port is None:
        return
    if isinstance(port, str):
        folder.note("debug_server", "skipped", port, rank=member.rank)
        return
    for handler, data, why in fetch(port):
        about = {"rank": member.rank, "handler": handler, "port": port}
        if data is None:
            folder.note("debug_server", "failed", why, **about)
            continue
        with folder.doing("debug_server", **about):
            if b'"entries"' not in data:
                folder.note("debug_server", "skipped", "it has recorded no call", **about)
                continue
            name = f"fr/debug_server/rank_{member.rank}.{handler}.json"
            folder.write(name, data)
            folder.note("debug_server", "ok", None, **about, file=name)
