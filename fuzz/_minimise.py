"""Makes an input that breaks a promise as small as it gets: parts are left out as long as the same thing breaks in the same place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from _promise import keep

from rca import plugins

__all__ = ["minimised", "place_of", "what_breaks"]

BUDGET_S = 60.0  # wall time for one input: smaller is nicer, not needed
WAIT_S = 120  # for one reading: one that never ends is a finding too
HERE = Path(__file__).resolve().parent


def what_breaks(name: str, data: bytes) -> str | None:
    """Type of the exception and the innermost line of ours it comes from, or the signal that ended the process; None: the promise is kept."""
    command = [sys.executable, str(HERE / "_minimise.py"), name]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    try:
        done = subprocess.run(command, input=data, capture_output=True, env=environment, timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end in {WAIT_S} s"
    if done.returncode < 0:
        return f"ended by {signal.Signals(-done.returncode).name}"
    return done.stdout.decode() or None


def minimised(name: str, data: bytes, why: str) -> bytes:
    """The smallest input found within the budget that breaks the same."""
    end, size = time.monotonic() + BUDGET_S, max(1, len(data) // 2)
    while size and time.monotonic() < end:
        start = 0
        while start < len(data) and time.monotonic() < end:
            fewer = data[:start] + data[start + size :]
            if what_breaks(name, fewer) == why:
                data = fewer
            else:
                start += size
        size //= 2
    return data


def place_of(error: BaseException) -> str:
    """Type of an exception and the innermost line of ours that it comes from."""
    places = [
        f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(HERE.parent)) and "/.venv/" not in f.filename
    ]
    last = places[-1]
    return f"{type(error).__name__} at {Path(last.filename).relative_to(HERE.parent)}:{last.lineno}"


if __name__ == "__main__":
    try:
        keep(plugins.load("collectors", sys.argv[1]), sys.stdin.buffer.read())
    except Exception as broken:  # noqa: BLE001 - whatever it is, it is the finding
        sys.stdout.write(place_of(broken))
