"""Stack dumps of a simulated job: who stands where at each sample, as py-spy writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rca.drills.simulated._frameworks import Frames

__all__ = ["ProcessStack", "StackEvidence", "Thread", "json_of", "text_of"]


@dataclass(frozen=True)
class Thread:
    """A thread as a dump shows it."""

    frames: Frames
    name: str = "MainThread"
    is_active: bool = False
    has_gil: bool = False


@dataclass(frozen=True)
class ProcessStack:
    """A process as a dump shows it; `failed` = what the dumper said instead."""

    threads: tuple[Thread, ...] = ()
    role: str = "main"  # or worker0, worker1, ... of the data loader
    failed: str = ""
    command: str = ""


Processes = tuple[ProcessStack, ...]


@dataclass
class StackEvidence:
    """Which dumps there are. `instead` = what a rank's processes show in each sample; the others show what the play implies."""

    samples: int = 3
    gap_s: float = 10.0
    format: Literal["text", "json"] = "text"
    has_index: bool = False
    is_there: bool = True
    instead: dict[int, Callable[[int], Processes]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)  # ranks without any dump

    def show(self, rank: int, *processes: ProcessStack) -> None:
        """A rank shows the same in every sample."""
        self.instead[rank] = lambda _sample: processes

    def turns(self, rank: int, *samples: Processes) -> None:
        """A rank shows these one after the other, over and over."""
        self.instead[rank] = lambda sample: samples[sample % len(samples)]


def text_of(process: ProcessStack, pid: int, python: str) -> str:
    """The dump as `py-spy dump` prints it."""
    if process.failed:
        return process.failed + "\n"
    lines = [f"Process {pid}: {process.command}", f"Python v{python}.9 (/usr/bin/python{python})", ""]
    for place, thread in enumerate(process.threads):
        state = "active+gil" if thread.has_gil else "active" if thread.is_active else "idle"
        lines.append(f'Thread {pid + 40 * place} ({state}): "{thread.name}"')
        lines += [f"    {name} ({file}:{line})" for name, file, line in thread.frames]
    return "\n".join(lines) + "\n"


def json_of(process: ProcessStack, pid: int) -> str:
    """The dump as `py-spy dump --json` prints it."""
    return json.dumps([_thread(thread, pid, pid + 40 * place) for place, thread in enumerate(process.threads)], indent=1)


def _thread(thread: Thread, pid: int, number: int) -> Mapping[str, Any]:
    return {
        "pid": pid,
        "thread_id": 139_000_000_000_000 + number,
        "thread_name": thread.name,
        "os_thread_id": number,
        "active": thread.is_active,
        "owns_gil": thread.has_gil,
        "frames": [
            {
                "name": name,
                "filename": f"/usr/lib/python3/dist-packages/{file}",
                "module": None,
                "short_filename": file,
                "line": line,
                "locals": None,
            }
            for name, file, line in thread.frames
        ],
        "process_info": None,
    }
