"""How fast logs are read, beside plain readers of the same file that only look for a word.

Run as a program, it reads one log: `python bench/_readers.py rca|python NAME FILE` and prints what it cost, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _logs import LOGS, Log

__all__ = ["HEAD", "Reading", "measure_log"]

HEAD: Final = ("log", "MB", "CPU s", "MB per CPU-s", "peak MB", "rows", "Python's lines", "grep -c")
MB: Final = 1e6


@dataclass(frozen=True)
class Reading:
    """One log of one size. CPU seconds are user plus system of the reading itself; the peak is that of the whole process."""

    log: str
    size_bytes: int
    cpu_s: float
    peak_bytes: int
    rows: int
    python_cpu_s: float  # line after line in Python, looking for a word
    grep_cpu_s: float | None  # None where there is no grep

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows, as HEAD names it: of the plain readers MB per CPU-second."""
        plain = [f"{self.size_bytes / MB / cpu_s:.0f}" if cpu_s else "-" for cpu_s in (self.python_cpu_s, self.grep_cpu_s)]
        size, per_s = self.size_bytes / MB, self.size_bytes / MB / self.cpu_s
        return (
            LOGS[self.log].about,
            f"{size:.0f}",
            f"{self.cpu_s:.2f}",
            f"{per_s:.0f}",
            f"{self.peak_bytes / MB:.0f}",
            f"{self.rows:,}",
            *plain,
        )


def measure_log(log: Log, size_mb: int, folder: Path, *, repeat: int) -> Reading:
    """Write the log, let every reader read it in processes of their own (the least CPU of `repeat` runs counts), remove it."""
    file = folder / f"{log.name}.log"
    subprocess.run([sys.executable, str(Path(__file__).with_name("_logs.py")), log.name, str(size_mb), str(file)], check=True)
    try:
        ours = [_run([sys.executable, __file__, "rca", log.name, str(file)]) for _ in range(repeat)]
        plain = [_run([sys.executable, __file__, "python", log.name, str(file)]) for _ in range(repeat)]
        grep = [_run(["grep", "-c", log.word, str(file)]) for _ in range(repeat)] if _has_grep() else []
        told = [json.loads(out) for out, _, _ in ours]
        return Reading(
            log.name,
            file.stat().st_size,
            min(one["cpu_s"] for one in told),
            max(peak for _, _, peak in ours),
            told[0]["rows"],
            min(json.loads(out)["cpu_s"] for out, _, _ in plain),
            min(cpu_s for _, cpu_s, _ in grep) if grep else None,
        )
    finally:
        file.unlink()


def _has_grep() -> bool:
    try:
        return subprocess.run(["grep", "--version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _run(command: list[str]) -> tuple[str, float, int]:
    """What a command prints, its CPU seconds and its peak memory in bytes. grep gives 1 where the word is nowhere."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > (command[0] == "grep"):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return out.decode(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _read_by_rca(log: Log, file: Path) -> int:
    """Rows that the collector makes of the log, none of which is kept."""
    from rca.types import Skip, Source

    collector = importlib.import_module(f"collectors.{log.collector}")
    source = Source(file.name, file, file.stat().st_size)
    return sum(item[1].height for item in collector.read(source) if not isinstance(item, Skip))


def _read_by_python(log: Log, file: Path) -> int:
    """Lines that hold the word."""
    word = log.word.encode()
    with file.open("rb") as lines:
        return sum(word in line for line in lines)


def _main(reader: str, name: str, file: str) -> None:
    importlib.import_module(f"collectors.{LOGS[name].collector}")  # what is loaded once is no reading
    read = {"rca": _read_by_rca, "python": _read_by_python}[reader]
    begun = time.process_time()
    rows = read(LOGS[name], Path(file))
    sys.stdout.write(json.dumps({"cpu_s": time.process_time() - begun, "rows": rows}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
