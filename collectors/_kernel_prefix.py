"""Prefixes of kernel log lines: dmesg, /dev/kmsg, journal, syslog, console, Talos, and what collecting tools put before them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from collectors._kernel_clock import NO_STAMP, Stamp, wall_stamp
from collectors._kernel_json import entry_of
from collectors._kernel_speaker import TAG, is_believed

__all__ = ["Line", "host_name", "peel", "peel_inner"]

MAX_LAYERS = 10  # of prefixes round one message; more is no log
MAX_LINE = 16384  # characters of a line that are looked at; the kernel cuts its own at about 1000
MAX_TAG = 400  # characters in which a tag ends
MAX_LEAD = 120  # characters before a quoted line that say what it is
MAX_NESTED = 3  # entries in JSON within each other
FACILITIES = 0o1770  # bits of a priority; 0 is the kernel itself, who else writes to /dev/kmsg has another one

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_BEGINS: Final = (  # how a line of a log begins
    r"<[0-9]|\[\s*[0-9+]|\[[^\]\n]{6,24}[0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
    r"|[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ]|kern\s*:|kernel: |NVRM: |[0-9]{1,4},[0-9]|"
    r"[A-Z][a-z]{2} [ 0-9][0-9] [0-9][0-9]:|Unable to determine "
)
_NOISE: Final = re.compile(
    r"<(?P<priority>[0-9]{1,3})>|(?:> ?){1,8}"
    r"|\[pod/[^\]\s]{1,300}\] |std(?:out|err) [FP] |"  # priority; quotation; kubectl --prefix; container runtime
    r"\[rank[0-9]{1,7}\]:\s?|\[[EWNIXAD]\] |(?:FATAL|CRIT(?:ICAL)?|ERR(?:OR)?|WARN(?:ING)?|NOTICE|INFO) (?=\S)|"  # torch; levels
    rf"[0-9]{{1,7}}[:\s\-]\s{{0,4}}(?={_BEGINS})|"  # number of an editor's line, or of a srun task
    rf"(?=[^\s:]{{0,200}}(?:/|\.(?:log|txt|out)))[^\s:]{{1,200}}?[:\-](?:[0-9]{{1,9}}[:\-])?(?={_BEGINS})|"  # grep: path, number of the line
    r"[0-9a-f]{1,8} {1,4}\| (?=[0-9][0-9]/[0-9][0-9]/|[A-Z][a-z]{2}-[0-9][0-9]-[0-9]{4})|"  # number in the event log of a management controller
    r"[0-9a-f]{1,8} {1,4}\| {1,4}(?:Pre-?|Post)Init[^|\n]{0,24}\|(?:[0-9\s]{0,16}\|| PostInit[^|\n]{0,8}\|)? "  # there, before its clock was set
)
_RFC5424: Final = re.compile(
    r"(?:<[0-9]{1,3}>)?1 (?=[0-9]{4}-|- )(?P<stamp>\S{1,40}) (?P<host>\S{1,255}) (?P<program>\S{1,48}) \S{1,128} \S{1,32} "
    r"(?:-|\[[^\n]{0,2000}?\](?= |$))(?: \ufeff?|$)"
)
_UPTIME: Final = re.compile(r"\[\s*(?P<s>[0-9]{1,9}\.[0-9]{1,9})(?: <[^>\n]{0,24}>)?\]:?(?: ?\[\s*[TC][0-9]{1,9}\])? ?")
_RELATIVE: Final = re.compile(
    r"\[(?:\s*[+<]\s*[0-9]{1,9}\.[0-9]{1,9}>?|[A-Z][a-z]{2} ?[0-9]{1,2} [0-9][0-9]:[0-9][0-9])\] ?"
)  # dmesg -d, -H
_KMSG: Final = re.compile(r"(?P<priority>[0-9]{1,4}),[0-9]{1,20},(?P<us>[0-9]{1,15}),[^;\s]{0,200};")
_FACILITY: Final = re.compile(
    r"(?P<facility>kern|user|daemon|syslog|auth|local[0-9])\s{0,8}:\s{0,8}(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)\s{0,8}:\s{0,2}"
)
_SOURCE: Final = r"(?:kern|user|daemon|syslog|auth|local[0-9])\.[a-z]{3,7} "  # BusyBox: before the tag, also where no host is named
_KERNEL: Final = re.compile(rf"(?:(?![0-9]{{10}}\.|{_SOURCE})(?P<host>[^\s:|\[\]]{{1,255}}) )?(?:{_SOURCE})?kernel(?:\[[0-9]{{1,9}}\])?: ?")
_PROGRAM: Final = re.compile(
    r"(?P<host>[^\s:|\[\]]{1,255}) (?:(?P<program>[\w.@+\-/()]{1,64})\[[0-9]{1,10}\]"
    r"|klogd|vmkernel|rasdaemon|mcelog|smartd|mdadm|multipathd|ipmievd|thermald|mmfs\w{0,8}|systemd(?:-\w{1,16})?"
    r"|nvidia-(?!nvswitch|peermem|modeset|uvm|nvlink)[\w\-]{1,24}|nv-[\w\-]{1,24}): (?!segfault)"
)
_DRIVER_OF: Final = re.compile(  # a journal without the kernel's tag, a console's log with hosts
    r"(?!(?i:error|warn|warning|info|crit|critical|fatal|alert|notice|debug) )(?P<host>[^\s:|\[\]]{1,255}) {1,2}"
    r"(?=(?:NVRM|nvidia-nvswitch[0-9]{1,4}): |\[\s*[0-9]{1,9}\.[0-9]{6}\])"
)
# A name before a whole line of a log: pdsh, dsh, Talos ("host: "), health checks and compose ("host | "), consoles ("host login: ").
_HOST: Final = re.compile(rf"(?P<host>[A-Za-z0-9][\w.\-]{{0,254}})(?: \|\s+| login: |:(?: +|(?=\[|kern\s*:|<[0-9]))(?={_BEGINS}))")
_AGE: Final = r"(?:[0-9]{1,5}[smhd]){1,3}(?: \(x[0-9]{1,7} over (?:[0-9]{1,5}[smhd]){1,3}\))?"
_LISTED: Final = re.compile(  # what node-problem-detector read in a kernel's log, in a table of kubectl: get events, describe node
    rf"(?:[a-z0-9\-]{{1,63}} {{1,40}})?{_AGE} {{1,40}}(?:Warning|Normal) {{1,40}}\w{{1,60}} {{1,40}}[Nn]ode/(?P<host>\S{{1,253}}) {{1,40}}"
    rf"|(?:Warning|Normal) {{1,40}}\w{{1,60}} {{1,40}}{_AGE} {{1,40}}kernel-monitor {{1,40}}"
)
_NO_HOST: Final = re.compile(r"kernel|NVRM|dmesg|kmsg|messages|syslog|kern|journal|level|time|ts", re.I)
_REPEATED: Final = re.compile(r"message repeated (?P<n>[0-9]{1,7}) times: \[ ?(?P<text>.{0,16000})\]\s*$")
# Where a line of the kernel may begin within a line of a tool: at its stamp, at its tag, or at the driver's own words.
_INNER: Final = re.compile(
    r"(?P<stamped>(?:<[0-9]{1,3}>)?\[\s*[0-9]{1,9}\.[0-9]{1,9}\] |(?<!\S)kernel: ?|"
    r"(?<![\w\-])(?:[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ][0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
    r"|[A-Z][a-z]{2} [ 0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9][0-9]:))|"
    r"NVRM: (?:Xid|GPU|The) |nvidia-nvswitch[0-9]{1,4}: SXid|(?<![A-Za-z])S?Xid\s{0,4}\("
)
_LEADS_IN: Final = re.compile(
    r"(?:^|[:|>\])}=,;\-\"'`“]|\b(?:FATAL|CRIT(?:ICAL)?|ERR(?:OR)?|WARN(?:ING)?|ALERT|NOTICE|INFO))\s{0,4}$"
)  # what a tool puts right before the line that it passes on
_CITES: Final = re.compile(  # what stands right before a line that is only an example, a pattern or a program's text
    r"(?i)(?:\b(?:example|sample|e\.g\.|pattern|regexp?|description|doc|help|expect(?:ed)?|want)s?"
    r"[\"'`]?\s{0,4}[:=]{1,2}\s{0,4}[rfb]{0,2}[\"'`]{0,3}|\w\([rfb]{0,2}[\"'`]|\b(?:e?grep|rg|awk|sed|echo|printf|logger|print)\b[^|\n]{0,80})$"
)
_PAST: Final = re.compile(  # what a tool says of a line that it did not see happen now
    r"(?i)\b(?:old(?:er)?|previous(?:ly)?|earlier|prior|stale|historic\w{0,4}|history|last boot|found (?:\S{1,24} ){0,4}in)\b"
)
_QUOTES: Final = {'"': '"', "'": "'", "`": "`", "“": "”"}
_BLANKS: Final = re.compile(r"[ \t]+")
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.\-]{0,254}")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


@dataclass(slots=True)
class Line:
    """A line without its prefixes. `is_kernel`: a prefix that only kernel logs have; `times`: how often the line stands for its message.

    `is_hearsay`: a program speaks whose word does not count for the hardware (`_kernel_speaker`); `is_tagged`: who speaks is said;
    `is_inner`: a tool's message holds the line.
    """

    body: str
    stamp: Stamp = NO_STAMP
    host: str | None = None
    boot_id: str | None = None
    is_kernel: bool = False
    times: int = 1
    is_hearsay: bool = False
    is_tagged: bool = False
    is_inner: bool = False


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
    text = text.removeprefix("data: ").lstrip("\x1e")  # the journal's JSON for browsers and in sequences
    if text.startswith("{") and (line := _of_json(text)):
        return line
    return _peel(text, 0, Line(text))


def peel_inner(line: Line) -> Line | None:
    """The kernel line that a tool wrote inside a message of its own; None where there is none, or it is only quoted.

    Of two clocks the inner one is the record's: where the line keeps its own time since boot, the tool's clock only says when the tool looked, which
    may be weeks later. A line that the tool itself calls an old one has no time that counts. Where that line tells nothing, another call looks
    further on.
    """
    if line.is_hearsay or not (found := _INNER.search(line.body, 1)) or _is_quoted(line) or _is_cited(line, found):
        return None
    outer = Stamp(line.stamp.at, line.stamp.local)
    inner = _peel(line.body, found.start(), replace(line, is_inner=True, stamp=outer))
    has_own_wall = (inner.stamp.at, inner.stamp.local) != (outer.at, outer.local)
    if not has_own_wall and _PAST.search(line.body, max(0, found.start() - MAX_LEAD), found.start()):
        inner.stamp = NO_STAMP
    elif inner.stamp.uptime_s is None:
        inner.stamp = replace(inner.stamp, uptime_s=line.stamp.uptime_s)
    elif not has_own_wall:
        inner.stamp = Stamp(uptime_s=inner.stamp.uptime_s)
    return None if inner.is_hearsay else inner


def _is_cited(line: Line, found: re.Match[str]) -> bool:
    """Whether words of prose, of a program or of a setting lead to the driver's words: an example, not a report."""
    if line.is_kernel or line.is_tagged:
        return False
    before, after = line.body[: found.start()], line.body[found.start() :]
    if _CITES.search(before[-MAX_LEAD:]) or not (found["stamped"] or _LEADS_IN.search(before[-MAX_LEAD:])):
        return True
    opened = before[-1:]
    if opened not in _QUOTES or before[:-1].rstrip()[-1:] in (":", "="):  # the value of a key in JSON is no quotation
        return False
    closed = after.find(_QUOTES[opened])
    return closed > 0 and any(character.isalpha() for character in after[closed + 1 :])


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
        if blanks := _BLANKS.match(text, at):
            at = blanks.end()
        end = next((end for layer in _LAYERS if (end := layer(text, at, line))), None)
        if end is None:
            break
        at = end
        if line.is_hearsay:
            break  # what follows looks like a prefix at most
    if found := _REPEATED.match(text, at):
        line.body, line.times = found["text"], max(1, int(found["n"]))
    else:
        line.body = text[at:].strip()
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
    if line.host is not None or not line.stamp.has_wall:
        return None
    if found := _DRIVER_OF.match(text, at):
        line.host = host_name(found["host"])
        return found.end()
    if not (found := _PROGRAM.match(text, at)):
        return None
    line.host = host_name(found["host"])
    _spoken_by(found["program"], line)
    return found.end()


def _spoken_by(program: str | None, line: Line) -> None:
    line.is_kernel |= program == "kernel"
    line.is_hearsay = not is_believed(program)
    line.is_tagged = program is not None


def _wrapping_host(text: str, at: int, line: Line) -> int | None:
    if line.host is not None or line.stamp != NO_STAMP or not (found := _HOST.match(text, at)) or _NO_HOST.fullmatch(found["host"]):
        return None
    line.host = host_name(found["host"])
    return found.end()


def _listed(text: str, at: int, line: Line) -> int | None:
    if line.host is not None or line.stamp != NO_STAMP or not (found := _LISTED.match(text, at)):
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


_LAYERS: Final[tuple[Layer, ...]] = (
    *(_uptime, _relative, _kernel, _wall, _rfc5424, _kmsg, _facility, _program, _listed, _noise, _wrapping_host),
)


def _of_json(text: str, depth: int = 0) -> Line | None:
    """An entry of a log in JSON, which may hold another one as its message; None for any other text."""
    if (entry := entry_of(text)) is None:
        return None
    line = Line(entry.message, entry.stamp, host_name(entry.host), entry.boot_id)
    _spoken_by(entry.program, line)
    if line.is_hearsay:
        return line
    if depth < MAX_NESTED and entry.message.startswith("{") and (inner := _of_json(entry.message[:MAX_LINE], depth + 1)):
        return inner if inner.stamp != NO_STAMP else replace(inner, stamp=line.stamp, host=inner.host or line.host)
    return _peel(entry.message[:MAX_LINE].rstrip("\r\n"), 0, line)
