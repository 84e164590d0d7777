"""Work that touches files of the job gets a time: they may lie on the very file system that hangs, and a read there may never return."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["bounded"]

T = TypeVar("T")


def bounded(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns, or its OSError; TimeoutError (an OSError) when it is not done in time. It is then left behind in a thread of its own."""
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((work(), None))
        except OSError as error:
            answers.put((None, error))
        finally:
            answers.put((None, RuntimeError("it ended with an error of its own, shown above")))

    threading.Thread(target=run, name="bounded", daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"not done in {seconds:.0f} s: does its file system hang?") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
