"""What a launcher (torchelastic's agent, DeepSpeed's) says of its workers: ends with their exit codes, stops, starts, and failure blocks.

A worker that ends by SIGTERM after the launcher has sent it that signal, or after another worker of the launcher has failed, is a
victim: it was stopped. Exit codes are kept as Python gives them: negative = signal number.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from collectors._log_lines import holds
from collectors._log_prefix import Line, local_stamp, plain_host
from collectors._log_signatures import Sighting, signal_name, signal_of_exit

__all__ = ["WORDS", "Block", "Launcher", "begins_block", "processes", "speaks_of_workers"]

WORDS: Final = (
    *(
        "(exitcode:",
        "closing signal",
        "via signal",
        "unable to shutdown process",
        "killing subprocess",
        "return code =",
        "finished",
        "workers done",
        "completed",
        "is done",
    ),
    *("exits success", "exit success", "exiting program", "worker start", "workers", "starting worker", " pid", "(pid"),
    *("world_rank", "initializing distributed", "start of training step", "running training", "training starts"),
)

_FAILED: Final = re.compile(r"failed \(exitcode: (?P<code>-?[0-9]{1,6})\)")
_SENDING: Final = re.compile(
    r"(?:Sending|Closing) process (?P<pid>[0-9]{1,9}) (?:closing signal|via signal) (?:Signals\.)?SIG\w+"
    r"|Unable to shutdown process (?P<stuck>[0-9]{1,9}) via "  # it has got SIGTERM and did not end
)
_KILLING: Final = re.compile(r"Killing subprocess (?P<pid>[0-9]{1,9})")  # DeepSpeed's launcher, after one of them failed
_RETURNED: Final = re.compile(r"exits with return code = (?P<code>-?[0-9]{1,6})")
_DIED: Final = re.compile(r"(?i)\bprocess with PID (?P<pid>[0-9]{1,9}) terminated with code (?P<code>-?[0-9]{1,6})")  # Lightning's
_FINISHED: Final = re.compile(
    r"(?i)\bworkers?\b.{0,80}\b(?:finished|succeeded|exited (?:normally|cleanly))\s*(?:$|[.!;,(]|successfully)"
    r"|^\s*all workers done|\bworker group successfully finished|^\s*(?:training|run|job) (?:has )?(?:finished|completed|is done|done)\b"
    r"|^\s*\[?(?:after training is done|exiting program (?:at|after))|\bexits? successfully"
)
_STARTED: Final = re.compile(
    r"(?i)\b(?:started|starting|launching|launched|spawned) (?:[0-9]{1,7} )?workers?\b|\bstarting worker group|^\s*worker start(?:s|ed)?\b"
    r"|\brank\W{0,3}[0-9]{1,7} of [0-9]{1,7}\b|\b(?:start|init|launch|spawn|boot)\w*\b.{0,200}\bpid\W{1,3}[0-9]"
    r"|\bpid\W{1,3}[0-9].{0,200}\b(?:start|init|launch|spawn)|\bpid=[0-9]{1,9}\) world_rank=[0-9]|^\s*initializing distributed: global_rank: [0-9]"
    r"|^\s*\[before the start of training step\]"
    r"|^\s*\*{5} Running training \*{5}|\btraining starts at step [0-9]"  # Megatron, Hugging Face, torchtitan
)
_OWN: Final = re.compile(  # what a trainer prints of itself, on whichever rank prints: it tells nothing of who else speaks through the same task
    r"(?i)^\s*(?:\[before the start of training step\]|\*{5} running training \*{5}|\[?after training is done|\[?exiting program (?:at|after)"
    r"|(?:training|run|job) (?:has )?(?:finished|completed|is done|done)\b)|\btraining starts at step [0-9]"
)
_BEGAN: Final = re.compile(
    r"^\s*\[before the start of training step\] datetime: "
    r"(?P<stamp>[0-9]{4}-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9])\b"
)
_RANK: Final = re.compile(r"(?i)(?<![a-z_])(?:(?:global|world)[_ ])?rank\W{1,3}(?P<rank>[0-9]{1,7})\b")
_PID: Final = re.compile(r"(?i)\bpid\W{1,3}(?P<pid>[0-9]{1,9})\b")
_HOST: Final = re.compile(r"(?i)(?:(?:\bhost(?:name)?|\bon node)\s?[:=]?\s?(?P<host>[a-z][\w.-]{0,62})|\bip=(?P<ip>[\w.-]{1,62}))")
_BLOCK: Final = re.compile(r"^\s*(?P<kind>Failures:|Root Cause \(first observed failure\):)")
_FIELD: Final = re.compile(r"^\s*(?P<name>time|host|rank|exitcode|error_file|traceback) *: (?!Traceback )(?P<value>.*)$")
_ENTRY: Final = re.compile(r"^\s*\[[0-9]{1,7}\]:\s*$|^\s*<NO_OTHER_FAILURES>")
_STAMP: Final = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]_[0-9][0-9]:[0-9][0-9]:[0-9][0-9]")
_RULE: Final = re.compile(r"^\s*[-=]{8,}\s*$")
_TERMINATED: Final = signal.SIGTERM.name


def begins_block(line: Line) -> Block | None:
    """The list of failures that begins here, if one does."""
    found = _BLOCK.match(line.text)
    return Block(line, found["kind"].startswith("Root")) if found else None


@dataclass
class Block:
    """A list of failures being read; each is given out when the next one, or the end of the list, is seen."""

    line: Line
    is_root: bool
    _entry: dict[str, str] = field(default_factory=dict)
    _at: Line | None = None

    def feed(self, line: Line) -> bool:
        """Take the next line of the stream; False = the list ended before it."""
        if _ENTRY.match(line.text) or (found := _FIELD.match(line.text)) is None:
            return bool(_ENTRY.match(line.text))
        self._at = self._at or line
        self._entry.setdefault(found["name"], found["value"].strip())
        return True

    def ends_entry(self, line: Line) -> bool:
        """Whether a failure is complete before this line."""
        return bool(self._entry) and (_ENTRY.match(line.text) is not None or _RULE.match(line.text) is not None)

    def take(self) -> tuple[Line, dict[str, Any]] | None:
        """The failure read so far, as its first line and the columns it fills; None where there is none."""
        entry, at = self._entry, self._at
        self._entry, self._at = {}, None
        if not entry or at is None:
            return None
        numbers = {name: re.match(r"-?[0-9]{1,9}", entry.get(name, "")) for name in ("rank", "exitcode")}
        pid = _PID.search(entry.get("exitcode", ""))
        date, _, time = entry.get("time", "").partition("_")
        stamp = local_stamp(date, time) if _STAMP.fullmatch(entry.get("time", "")) else None
        host = re.match(r"[A-Za-z][\w.-]{0,62}$", entry.get("host", ""))
        return replace(at, local=stamp or at.local), {
            "rank": int(numbers["rank"][0]) if numbers["rank"] else None,
            "exit_code": int(numbers["exitcode"][0]) if numbers["exitcode"] else None,
            "pid": int(pid["pid"]) if pid else None,
            "host": plain_host(host[0]) if host else None,
            "message": "; ".join(f"{name} {value}" for name, value in entry.items()),
        }


def speaks_of_workers(text: str, sightings: Sequence[Sighting]) -> bool:
    """Whether a line that `Launcher.sees` knows is one of who starts and stops workers: the task it stands beside is then a node, not a rank."""
    if any(sighting.signature.startswith("elastic_") for sighting in sightings):
        return True
    return any(not sighting.fields for sighting in sightings) and _OWN.search(text) is None


@dataclass
class Launcher:
    """What the launchers of one log have said so far."""

    signalled: set[int] = field(default_factory=set)  # pids that a launcher has asked to stop
    has_failed: bool = False  # a worker has failed, or the launcher was told to stop

    def sees(self, line: Line) -> list[Sighting]:
        """What one line of a launcher, or of a worker at its start or end, says; [] where it says nothing of the kind."""
        text = line.text
        if not holds(text, WORDS):
            return []
        if found := _FAILED.search(text) or _RETURNED.search(text) or _DIED.search(text):
            return list(self.failure(self._who(text) | {"exit_code": int(found["code"])}))
        if found := _SENDING.search(text) or _KILLING.search(text):
            pid = int(next(number for number in found.groups() if number))
            self.signalled.add(pid)
            return [Sighting("elastic_sigterm_victim", {"pid": pid})]
        if line.level in ("warning", "error"):
            return []
        if _FINISHED.search(text):  # a worker's own end counts always, that of all of them only where none has failed before
            return [Sighting("worker_finished", self._who(text))] if not self.has_failed or _RANK.search(text) else []
        if _STARTED.search(text):
            began = _BEGAN.match(text)
            return [Sighting("worker_started", self._who(text) | ({"logged_at_local": began["stamp"].replace(" ", "T")} if began else {}))]
        return []

    def failure(self, fields: dict[str, Any], *, is_root: bool = False) -> Iterator[Sighting]:
        """The sightings of one worker's end. `fields` holds exit_code and what else is known of the worker."""
        code = fields.get("exit_code")
        name = signal_of_exit(code) if code is not None else None
        was_stopped = name == _TERMINATED and (fields.get("pid") in self.signalled or (self.has_failed and not is_root))
        if was_stopped:
            yield Sighting("elastic_sigterm_victim", fields)
            return
        self.has_failed = True
        yield Sighting("elastic_root_cause" if is_root else "elastic_child_failed", fields)
        if name:
            yield Sighting("process_signal", fields | {"signal": signal_name(name)})

    def _who(self, text: str) -> dict[str, Any]:
        """The worker that a line names: global rank, pid and host, as far as they are given."""
        fields: dict[str, Any] = {}
        if found := _RANK.search(text):
            fields["rank"] = int(found["rank"])
        if found := _PID.search(text):
            fields["pid"] = int(found["pid"])
        if found := _HOST.search(text):
            fields["host"] = plain_host(found["host"] or found["ip"])
        return fields


def processes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `ranks`: every trainer process whose rank and pid a launcher, or the process itself at its start, states together."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["rank"], row["host"], row["pid"])
        if row["rank"] is not None and row["pid"] is not None and row["signature"].startswith(("elastic_", "worker_", "process_signal")):
            found.setdefault(key, dict(zip(("rank", "host", "pid"), key, strict=True)) | {"record": row["record"], "role": "trainer"})
    return list(found.values())
