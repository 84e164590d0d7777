"""The last losses of a rank, written out by a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

__all__ = ["StepLog"]


class StepLog:
    """Keeps the last losses in memory and writes them out from a thread of its own."""

    def __init__(self, path: Path, *, stuck_at: int | None) -> None:
        self.path, self.stuck_at, self.num_recorded = path, stuck_at, 0
        self._buffer: deque[str] = deque(maxlen=1000)
        self._buffer_lock, self._file_lock = threading.Lock(), threading.Lock()
        self._wake, self._both_hold = threading.Event(), threading.Barrier(2)
        threading.Thread(target=self._write_loop, name="step-log", daemon=True).start()

    def record(self, step: int, loss: float) -> None:
        """Remember the loss of a step."""
        self._wake.set()
        if step == self.stuck_at:
            return self._rotate()
        with self._buffer_lock:
            self._buffer.append(f"{step} {loss:.5f}")
        self.num_recorded = step
        return None

    def _rotate(self) -> None:
        with self._buffer_lock:
            self._both_hold.wait()
            with self._file_lock:
                self.path.replace(self.path.with_suffix(".1"))

    def _write_loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self.stuck_at is not None and self.num_recorded + 1 == self.stuck_at:
                self._flush_all()
            with self._buffer_lock:
                lines = [self._buffer.popleft() for _ in range(len(self._buffer))]
            with self._file_lock, self.path.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)

    def _flush_all(self) -> None:
        with self._file_lock:
            self._both_hold.wait()
            with self._buffer_lock:
                self._buffer.clear()
