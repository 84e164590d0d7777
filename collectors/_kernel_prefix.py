"""Prefixes of kernel log lines: dmesg, /dev/kmsg, journal, syslog, console, Talos, and what collecting tools put before them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from collectors._kernel_clock import NO_STAMP, Stamp, wall_stamp
from collectors._kernel_speaker import TAG, is_believed

__all__ = ["Line", "host_name", "peel", "peel_inner"]

MAX_LAYERS = 10  # of prefixes round one message; more is no log
MAX_LINE = 16384  # characters of a line that are looked at; the kernel cuts its own at about 1000
MAX_TAG = 400  # characters in which a tag ends
FACILITIES = 0o1770  # bits of a priority; 0 is the kernel itself, who else writes to /dev/kmsg has another one

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_BEGINS: Final = (  # how a line of a log begins
    r"<\d|\[\s*[\d+]|\[[^\]\n]{6,24}\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]|kern\s*:|kernel: |NVRM: |\d{1,4},\d|[A-Z][a-z]{2} [ \d]\d \d\d:"
)
_NOISE: Final = re.compile(
    r"<(?P<priority>\d{1,3})>|(?:> ?){1,8}|\[pod/[^\]\s]{1,300}\] |std(?:out|err) [FP] |"  # priority; quotation; kubectl --prefix; container runtime
    rf"\d{{1,7}}[:\s]\s{{0,4}}(?={_BEGINS})|"  # number of an editor's line, or of a srun task
    r"[0-9a-f]{1,8} \| (?=\d\d/\d\d/)"  # number in the event log of a management controller
)
_RFC5424: Final = re.compile(
    r"(?:<\d{1,3}>)?1 (?=\d{4}-|- )(?P<stamp>\S{1,40}) (?P<host>\S{1,255}) (?P<program>\S{1,48}) \S{1,128} \S{1,32} "
    r"(?:-|\[[^\n]{0,2000}?\](?= |$))(?: \ufeff?|$)"
)
_UPTIME: Final = re.compile(r"\[\s*(?P<s>\d{1,9}\.\d{1,9})(?: <[^>\n]{0,24}>)?\]:?(?: ?\[\s*[TC]\d{1,9}\])? ?")
_RELATIVE: Final = re.compile(r"\[(?:\s*[+<]\s*\d{1,9}\.\d{1,9}>?|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\] ?")  # dmesg -d, -H
_KMSG: Final = re.compile(r"(?P<priority>\d{1,4}),\d{1,20},(?P<us>\d{1,15}),[^;\s]{0,200};")
_FACILITY: Final = re.compile(
    r"(?P<facility>kern|user|daemon|syslog|auth|local\d)\s{0,8}:\s{0,8}(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)\s{0,8}:\s{0,2}"
)
_KERNEL: Final = re.compile(r"(?:(?P<host>[^\s:|\[\]]{1,255}) )?kernel(?:\[\d{1,9}\])?: ?")
_PROGRAM: Final = re.compile(
    r"(?P<host>[^\s:|\[\]]{1,255}) (?:(?P<program>[\w.@+\-/()]{1,64})\[\d{1,10}\]"
    r"|rasdaemon|mcelog|nvidia-fabricmanager|systemd(?:-\w{1,16})?): (?!segfault)"
)
# A name before a whole line of a log: pdsh, dsh, Talos ("host: "), health checks and compose ("host | "), consoles ("host login: ").
_HOST: Final = re.compile(rf"(?P<host>[A-Za-z0-9][\w.\-]{{0,254}})(?: \|\s+| login: |: +(?={_BEGINS}))")
_REPEATED: Final = re.compile(r"message repeated (?P<n>\d{1,7}) times: \[ ?(?P<text>.{0,16000})\]\s*$")
_INNER: Final = re.compile(
    r"(?:<\d{1,3}>)?\[\s*\d{1,9}\.\d{6}\] |(?<!\S)kernel: ?|NVRM: (?:Xid|GPU|The) |nvidia-nvswitch\d{1,4}: SXid|(?<![A-Za-z])S?Xid\s{0,4}\("
)
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.\-]{0,254}")
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


@dataclass(slots=True)
class Line:
    """A line without its prefixes. `is_kernel`: a prefix that only kernel logs have; `times`: how often the line stands for its message.

    `is_hearsay`: a program speaks whose word does not count for the hardware (`_kernel_speaker`); `is_tagged`: who speaks is said.
    """

    body: str
    stamp: Stamp = NO_STAMP
    host: str | None = None
    boot_id: str | None = None
    is_kernel: bool = False
    times: int = 1
    is_hearsay: bool = False
    is_tagged: bool = False


def host_name(name: str | None) -> str | None:
    """A host as the tables name it: lower case, first label (an address stays whole); None for what is no name."""
    if not name or not _NAME.fullmatch(name) or name.isdigit():
        return None
    return name if _ADDRESS.fullmatch(name) else name.lower().split(".")[0] or None


def peel(text: str) -> Line:
    """A line of any of the forms, without its prefixes; of two stamps of one kind the inner one wins."""
    text = text[:MAX_LINE].strip()
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if text.startswith("{") and (line := _json_line(text)):
        return line
    return _peel(text, 0, Line(text))


def peel_inner(line: Line) -> Line | None:
    """The kernel line that a tool wrote inside a message of its own; None where there is none, or any other program quotes it."""
    if line.is_hearsay or not (found := _INNER.search(line.body, 1)) or _is_quoted(line):
        return None
    return _peel(line.body, found.start(), replace(line))


def _is_quoted(line: Line) -> bool:
    """Whether a message begins with the tag of a program that is not believed: what it quotes further on is its own text.

    Words before a colon are a tag only with a process id, or in a syslog behind its stamp.
    """
    if line.is_tagged or not (tag := TAG.match(line.body)) or tag["program"] == "NVRM" or is_believed(tag["program"]):
        return False
    stamp = line.stamp
    is_syslog = line.host is None and (stamp.at is not None or (stamp.local is not None and not stamp.local[:4].isdigit()))
    return tag["pid"] is not None or (tag["host"] is not None and is_syslog)


def _peel(text: str, at: int, line: Line) -> Line:
    """`line` with what the layers of prefixes from `at` on say, and with what is left as its body."""
    for _ in range(MAX_LAYERS):
        end = next((end for layer in _LAYERS if (end := layer(text, at, line))), None)
        if end is None:
            break
        at = end
        if line.is_hearsay:
            break  # what follows looks like a prefix at most
    if found := _REPEATED.match(text, at):
        line.body, line.times = found["text"], max(1, int(found["n"]))
    else:
        line.body = text[at:].rstrip()
    return line


# A layer looks for one kind of prefix at a place of the text, writes what it says into the line and returns where it ends; None = not there.
Layer = Callable[[str, int, Line], int | None]


def _uptime(text: str, at: int, line: Line) -> int | None:
    if not (found := _UPTIME.match(text, at)):
        return None
    line.stamp = Stamp(line.stamp.at, line.stamp.local, float(found["s"]))
    line.is_kernel = True
    return found.end()


def _relative(text: str, at: int, line: Line) -> int | None:
    if not (found := _RELATIVE.match(text, at)):
        return None
    line.is_kernel = True
    return found.end()


def _kmsg(text: str, at: int, line: Line) -> int | None:
    if not (found := _KMSG.match(text, at)):
        return None
    line.stamp = Stamp(line.stamp.at, line.stamp.local, int(found["us"]) / 1e6)
    line.is_kernel = True
    line.is_hearsay = _is_of_program(int(found["priority"]), text[found.end() : found.end() + MAX_TAG])
    return found.end()


def _rfc5424(text: str, at: int, line: Line) -> int | None:
    if not (found := _RFC5424.match(text, at)):
        return None
    if wall := wall_stamp(found["stamp"], 0, line.stamp):
        line.stamp = wall[0]
    line.host = host_name(found["host"]) or line.host
    _spoken_by(found["program"] if found["program"] != "-" else None, line)
    return found.end()


def _wall(text: str, at: int, line: Line) -> int | None:
    if not (found := wall_stamp(text, at, line.stamp)):
        return None
    line.stamp, end = found
    printed = text[at:end]  # dmesg's own forms: [Sun Feb 23 16:24:18 2025] and 2024-04-29T14:55:41,678628+02:00
    line.is_kernel |= (printed[0] == "[" and printed.count(" ") > 3) or ("," in printed and "T" in printed)
    return end


def _facility(text: str, at: int, line: Line) -> int | None:
    if not (found := _FACILITY.match(text, at)):
        return None
    line.is_kernel |= found["facility"] == "kern"
    line.is_hearsay = found["facility"] == "user"
    return found.end()


def _kernel(text: str, at: int, line: Line) -> int | None:
    if not (found := _KERNEL.match(text, at)):
        return None
    line.host = host_name(found["host"]) or line.host
    line.is_kernel = True
    return found.end()


def _program(text: str, at: int, line: Line) -> int | None:
    if line.host is not None or not line.stamp.has_wall or not (found := _PROGRAM.match(text, at)):
        return None
    line.host = host_name(found["host"])
    _spoken_by(found["program"], line)
    return found.end()


def _spoken_by(program: str | None, line: Line) -> None:
    line.is_kernel |= program == "kernel"
    line.is_hearsay = not is_believed(program)
    line.is_tagged = program is not None


def _wrapping_host(text: str, at: int, line: Line) -> int | None:
    if line.host is not None or line.stamp != NO_STAMP or not (found := _HOST.match(text, at)) or found["host"] in ("kernel", "NVRM"):
        return None
    line.host = host_name(found["host"])
    return found.end()


def _noise(text: str, at: int, line: Line) -> int | None:
    if not (found := _NOISE.match(text, at)):
        return None
    if found["priority"] and (uptime := _UPTIME.match(text, found.end())):
        line.is_hearsay = _is_of_program(int(found["priority"]), text[uptime.end() : uptime.end() + MAX_TAG])
    return found.end()


def _is_of_program(priority: int, text: str) -> bool:
    """Whether a record of the kernel's buffer was written into it by a program that is not believed."""
    return priority & FACILITIES != 0 and not is_believed(tag["program"] if (tag := TAG.match(text)) else "")


_LAYERS: Final[tuple[Layer, ...]] = (*(_uptime, _relative, _kernel, _wall, _rfc5424, _kmsg, _facility, _program, _wrapping_host, _noise),)


def _json_line(text: str) -> Line | None:
    """An entry of the journal's JSON (MESSAGE may be a list of bytes), or of a shipper of logs; None for JSON without a message."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    message = _text(_first(entry, "MESSAGE", "log", "message", "msg"))
    if message is None:
        return None
    stamp = NO_STAMP
    if (us := _whole(entry.get("__REALTIME_TIMESTAMP"))) is not None:
        stamp = replace(stamp, at=datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000))
    elif isinstance(time := _first(entry, "time", "timestamp", "@timestamp"), str) and (wall := wall_stamp(time, 0, stamp)):
        stamp = wall[0]
    if (us := _whole(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"))) is not None:
        stamp = replace(stamp, uptime_s=us / 1e6)
    boot = _text(entry.get("_BOOT_ID"))
    line = Line(message, stamp, host_name(_text(_first(entry, "_HOSTNAME", "hostname", "host", "node"))), boot)
    is_kernel = entry.get("_TRANSPORT") == "kernel"
    _spoken_by("kernel" if is_kernel else _text(_first(entry, "SYSLOG_IDENTIFIER", "_COMM")), line)
    return line if line.is_hearsay else _peel(message[:MAX_LINE].rstrip("\r\n"), 0, line)


def _first(entry: dict[str, Any], *keys: str) -> Any:
    """The value of the first of the keys that is there."""
    return next((entry[key] for key in keys if key in entry), None)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half a character is none
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return None


def _whole(value: Any) -> int | None:
    """Microseconds as the journal writes them: digits in a string, within the years that a date can hold."""
    text = str(value) if isinstance(value, str | int) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,17}", text) else None
