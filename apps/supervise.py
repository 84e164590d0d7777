"""A second process that outlives a reader killed by one file.

Nothing in evidence is executed, but a hostile file can still make C code recurse to death, count for ever or eat all memory, and no handler
in the same process survives that. So the work is done in a forked child that names each file before it opens it. A child that dies by a
signal, or stays with one file for far longer than its size allows, is started again without that file, which is then listed as skipped.

The fork happens before polars or DuckDB are loaded (their threads do not survive one); where they already are, there is no second process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

__all__ = ["entering", "excluded", "supervised"]

PATIENCE_S = (20.0, 20.0)  # with one file: so long, and so much more for every MB
MAX_RESTARTS = 20
FATAL = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGKILL})
STOPS = (signal.SIGTERM, signal.SIGHUP)  # how schedulers, services and closed terminals ask a program to end
_HEAVY = ("polars", "duckdb", "numpy", "torch")

_pipe: int | None = None  # where a child tells which file it is about to read
excluded: dict[str, str] = {}  # path -> why it is not read again; grows from child to child


def entering(path: str, size_bytes: int = 0) -> None:
    """Tell the watching process that this file is read next ("" = no file)."""
    if _pipe is not None:
        os.write(_pipe, json.dumps([size_bytes, path]).encode("ascii") + b"\n")  # a path may hold line breaks


def supervised(work: Callable[[], int]) -> int:
    """Do the work in a child, again without a file that killed it. Returns the exit code."""
    if sys.stdout is not sys.__stdout__ or any(name in sys.modules for name in _HEAVY) or not hasattr(os, "fork"):
        return work()  # called from within a program, which would not see what a child prints
    _stop_as_by_hand()
    for _ in range(MAX_RESTARTS):
        code, path, why = _once(work)
        if not path or path in excluded or not why:
            break
        excluded[path] = why
    return code


def _stop_as_by_hand() -> None:
    """Being asked to end is Ctrl-C, in the child too: what was begun is cleared away. A signal that the caller has ignored (nohup) stays so."""
    for number in STOPS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def _once(work: Callable[[], int]) -> tuple[int, str, str]:
    """Exit code of one child, and, if a file killed it, which and how."""
    global _pipe
    reading, writing = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _pipe = writing
        _run(work)
    os.close(writing)
    path, is_late = _watch(reading, child)
    os.close(reading)
    status = _wait(child)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code, "", ""
    if is_late:
        return 4, path, "reading it took far longer than any file of its size: given up"
    if path and -code in FATAL:
        return 4, path, f"reading it ended the reader ({signal.Signals(-code).name}): not read"
    return 128 - code, "", ""


def _run(work: Callable[[], int]) -> NoReturn:
    """The child: does the work and ends, with a traceback if the work has a fault of its own."""
    os.setpgrp()  # Ctrl-C reaches the parent, which passes it on once
    _die_with_parent()
    code = 1
    try:
        code = work()
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 2
    finally:
        kind, error, trace = sys.exc_info()
        if kind is not None and error is not None:
            sys.excepthook(kind, error, trace)
        os._exit(code)


def _die_with_parent() -> None:
    """A killed parent must not leave a child that goes on writing (Linux)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return  # elsewhere the child ends its work and is gone


def _watch(reading: int, child: int) -> tuple[str, bool]:
    """Follow the child until it closes its end. Returns the file it was at, and whether it had to be ended for staying there."""
    buffer, path, deadline = b"", "", None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            ready, _, _ = select.select([reading], [], [], left)
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)
            continue
        if not ready:
            os.kill(child, signal.SIGKILL)
            return path, True
        data = os.read(reading, 1 << 16)
        if not data:
            return path, False
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        if lines:
            size, path = json.loads(lines[-1])
            deadline = time.monotonic() + PATIENCE_S[0] + PATIENCE_S[1] * size / (1 << 20) if path else None


def _wait(child: int) -> int:
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)
