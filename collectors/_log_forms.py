"""The forms that prefixes of log lines have: clocks, levels, ranks, hosts and the marks of launchers, as a table of patterns.

What a group holds is named beside the pattern, so that one loop (collectors/_log_prefix.py) reads them all. A rank inside a node, a group or a
list of nodes is read past and never named `rank`: `[default3]:` (torchrun), `[PID:7] [RANK:3]` (axolotl's logger prints LOCAL_RANK), `rank=` in
the parentheses of a cluster tool (a node's number).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

__all__ = ["LEVELS", "MONTHS", "peel"]

LEVELS: Final = {
    **dict.fromkeys(("DEBUG", "TRACE", "D", "V"), "debug"),
    **dict.fromkeys(("INFO", "NOTICE", "SUCCESS", "I"), "info"),
    **dict.fromkeys(("WARNING", "WARN", "W"), "warning"),
    **dict.fromkeys(("ERROR", "CRITICAL", "FATAL", "E", "F", "C"), "error"),
}
_MONTH: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
MONTHS: Final = {name: f"{at:02d}" for at, name in enumerate(_MONTH.split("|"), 1)}
_LEVEL: Final = r"DEBUG|TRACE|INFO|NOTICE|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL"
_DAY: Final = r"(?:0[1-9]|1[0-2])[-/](?:0[1-9]|[12][0-9]|3[01])"
_MDAY: Final = r"[12][0-9]|3[01]|0?[1-9]"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-6][0-9]"
_FRACTION: Final = r"(?:[.,]([0-9]{1,9}))?"
_ZONE: Final = r"( ?(?:Z|UTC)\b| ?[+-][0-9][0-9]:?[0-9][0-9](?![0-9]))?"
_PLACES: Final = r"(?: (?:[A-Z]{2,7}[0-9]{1,5} ?){1,5}(?=\]))?"  # in parallel groups, as inference servers print them: TP3
_END: Final = r"[\])\"]?:?(?: -(?= ))?"
_HOST: Final = r"[A-Za-z][\w.-]{0,62}"
_ADDRESS: Final = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_BEGINS: Final = (  # what lines begin with that need no name before them: after a name it is that of their writer
    r"(?=[ \t]{0,3}(?:\[?[0-9]{4}[-/][0-9][0-9]|[0-9][0-9]/[0-9][0-9](?:/[0-9]{4})? [0-9][0-9]:"
    r"|submitit |\[(?:rank ?[0-9]|[DIWEF][0-9]|[DIWEF] |default[0-9]|titan|NeMo)|" + rf"\[?(?:{_LEVEL})\b"
    r"|[DIWEF][0-9]{4} |Traceback \(most|During handling|The above exception|File \"|srun: |slurmstepd|terminate called|NCCL (?:WARN|INFO)"
    r"|iteration {1,12}[0-9]{1,15}/"
    r"|(?:[a-z_]\w{0,60}\.){0,6}[A-Z]\w{0,80}(?:Error|Exception)\b"
    r"|[A-Za-z][\w.-]{0,62}:[0-9]{1,9}:[0-9]{1,9} \[|\[[A-Za-z][\w.-]{0,62}:[0-9]{5,7}\] )"
    r"|[ \t]{3,40}\S)"
)
_NO_HOST: Final = (  # what also stands before a colon and ends in a number
    r"(?!slurmstepd-|(?:(?:local_|global_)?rank|step|epoch|iter|iteration|batch|sample|shard|layer|stage|worker|frame|attempt|error|gpu|cuda|nccl|torch|python"
    r"|libc|lib|fp|bf|tf|int|uint|float|sm|sha|md|utf|base|http|ipv|v)[0-9._-]*:)"
)
_NUMBERED: Final = r"[a-z][\w.]{0,30}-(?=[\w.-]{0,60}[0-9])[\w.-]{1,70}"  # a host's or pod's name with a dash and a number
ALWAYS, FIRST, LOGGED = "always", "first", "logged"  # FIRST: at the beginning of a line; LOGGED: behind a clock or a level


@dataclass(frozen=True, slots=True)
class _Form:
    """One form: the characters it begins with, where it counts, what it looks like and what its groups hold."""

    begins: str  # kinds of characters, see `_kind`
    when: str
    pattern: str
    holds: tuple[str, ...]


def _form(begins: str, when: str, pattern: str, *holds: str) -> _Form:
    return _Form(begins, when, pattern, holds)


# The first that fits counts. Kinds of first characters: d digit, a letter, [ and ( themselves, . anything else.
_FORMS: Final = (
    _form(  # ISO 8601 and its like; journal and rsyslog write host and program behind it
        "d[(a.",
        ALWAYS,
        rf"(?:time|ts)?=?[\[(\"]?([0-9]{{4}}[-/]{_DAY})[T _]({_TIME}){_FRACTION}{_ZONE}{_PLACES}{_END}"
        rf"(?:(?<=[0-9Z]) ({_HOST}) [\w./@-]{{1,60}}\[[0-9]{{1,9}}\]:(?= ))?",
        *("day", "time", "fraction", "zone", "host"),
    ),
    _form(
        "a", ALWAYS, r"([DIWEF])0000 00:00:(1[0-9]{9}\.[0-9]{1,9}) +[0-9]{1,9} [^\s\]]{1,200}:[0-9]{1,7}\]", "level", "epoch"
    ),  # absl before it is set up
    _form(  # glog
        "a[",
        ALWAYS,
        rf"\[?([DIWEFCV])([0-9]{{8}}|[0-9]{{3,4}}) ({_TIME}){_FRACTION}(?: +[0-9]{{1,9}})?(?: +[^\s\]]{{1,200}}:[0-9]+\])?",
        *("level", "digits", "time", "fraction"),
    ),
    _form("[", ALWAYS, rf"\[({_HOST})[:/| ](?i:rank)[ _:=]?([0-9]{{1,7}})\]:?", "host", "rank"),
    _form("[", ALWAYS, rf"\[(?!(?:{_LEVEL}|default|main|train\w*|worker|titan|std\w+)\])({_HOST})\](?= ?\[(?i:rank) ?[0-9])", "host"),
    _form("[", ALWAYS, r"\[RankMonitorServer:([0-9]{1,7})\]", "rank"),
    _form("[", ALWAYS, r"\[(?:PID|pid)[:= ]?([0-9]{1,9})\](?: \[RANK:[0-9]{1,7}\])?", "pid"),
    _form("[(", ALWAYS, r"[\[(](?i:(?:(?:global|world)[_ ])?rank)[ _:=]{0,2}([0-9]{1,7})[\])]:?", "rank"),
    _form("a", ALWAYS, r"RANK ([0-9]{1,7}) -(?= )", "rank"),
    _form(  # process group, perhaps with its name
        "[",
        ALWAYS,
        r"\[PG (?:ID )?([^\s\]]{1,20})(?: PG GUID ?([^\s\]]{0,200})| \(([^\s\])]{0,200})\))? {1,2}Rank ([0-9]{1,7})\]",
        *("group", "group_name", "group_name", "group_rank"),
    ),
    _form(  # Ray, vLLM and cluster tools: which process, and of which node
        "(",
        ALWAYS,
        rf"\((?:[A-Za-z_][\w.:<>-]{{0,80}},? )?(?:rank=[0-9]{{1,7}}, )?pid=([0-9]{{1,9}})(?:, ip=({_ADDRESS}|{_HOST}))?(?:, [^()]{{0,100}})?\)",
        *("pid", "host"),
    ),
    _form("(", ALWAYS, rf"\((?:raylet|autoscaler|gcs_server)(?:, ip=({_ADDRESS}|{_HOST}))?\)", "host"),
    _form("a[", ALWAYS, rf"[\[(]?({_LEVEL})[\])]?(?:\s{{0,9}}[-:|])?(?=\s|$|\[)", "level"),
    _form("a", ALWAYS, rf"({_LEVEL}):[\w.-]{{1,100}}:", "level"),
    _form("[", ALWAYS, r"\[([DIWEF]) [\w./-]{1,100}:[0-9]+\]", "level"),
    _form("[", ALWAYS, rf"\[({_LEVEL})\|[\w./-]{{1,100}}:[0-9]{{1,7}}\]", "level"),
    _form(
        "[",
        ALWAYS,
        rf"\[(?:NeMo )?([DIWEFC]) ([0-9]{{4}}-{_DAY}) ({_TIME}){_FRACTION}(?: [^\]]{{0,100}})?\]",
        "level",
        "day",
        "time",
        "fraction",
    ),
    _form("d[", ALWAYS, rf"\[?({_DAY})(?:/([0-9]{{4}}))? ({_TIME}){_FRACTION}(?: [\w.]+\])?{_END}", "day", "year", "time", "fraction"),
    _form("a", ALWAYS, r"([A-Za-z][\w.-]{0,62}):([0-9]{1,9}):[0-9]{1,9} \[[0-9]{1,4}\]", "host", "pid"),  # NCCL
    _form(  # syslog, with the program that its pid follows
        "a",
        ALWAYS,
        rf"({_MONTH}) {{1,2}}({_MDAY}) ({_TIME}){_FRACTION} ([\w.-]{{1,63}})(?: [\w./@-]{{1,60}}\[[0-9]{{1,9}}\]:)?(?= )",
        *("month", "mday", "time", "fraction", "host"),
    ),
    _form(  # date(1), ctime, mpirun --timestamp-output
        "a[",
        ALWAYS,
        rf"\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ({_MONTH}) {{1,2}}({_MDAY}) "
        rf"({_TIME}){_FRACTION}(?: (UTC|GMT)| [A-Z]{{3,4}})? ([0-9]{{4}})(?![0-9])\]?:?",
        *("month", "mday", "time", "fraction", "zone", "year"),
    ),
    _form(
        "d[",
        ALWAYS,
        rf"\[?({_MDAY})[-/ ]({_MONTH})[-/ ]([0-9]{{4}})[ :T]({_TIME}){_FRACTION}{_ZONE}\]?",
        *("mday", "month", "year", "time", "fraction", "zone"),
    ),
    _form(
        "d[",
        ALWAYS,
        rf"\[?(20[0-9][0-9](?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01]))[ T_-]({_TIME}){_FRACTION}{_ZONE}\]?",
        *("digits", "time", "fraction", "zone"),
    ),
    _form("d[", ALWAYS, rf"\[?({_TIME}){_FRACTION}\]?(?: -(?= ))?", "time", "fraction"),
    _form("d[", FIRST, r"(?:\[(1[0-9]{9}(?:\.[0-9]{1,9})?)\]|(1[0-9]{9}\.[0-9]{1,9}))(?=[ \t])", "epoch", "epoch"),
    _form("a", ALWAYS, r"(?:agent|launcher|torchrun|submitit)(?:\[[0-9]{1,9}\])?:?(?= )"),
    _form("a", LOGGED, r"std(?:out|err) [FP](?= |$)"),  # container engines (CRI)
    _form("a[", FIRST, r"(?:std(?:out|err):|\[std(?:out|err)\]:?)(?= )"),
    _form("[", ALWAYS, rf"\[pod/({_HOST})(?:/[^\]\s]{{1,200}})?\]", "host"),
    _form(
        "[",
        ALWAYS,
        r"\[[a-z_]{1,20}[0-9]{1,6}\]:|\[titan\]|\[[\w./-]{1,100}\.py:[0-9]+(?::\w+)?\]|\[[A-Za-z_][\w./-]{0,100}:[0-9]{1,4}(?::\w+)?\]",
    ),
    _form("[", ALWAYS, rf"\[({_HOST}):([0-9]{{5,7}})\](?= )", "host", "pid"),  # Open MPI
    _form("[", FIRST, r"\[(?:[\w.-]{1,80}@)?[0-9]{1,7},([0-9]{1,7})\](?:<std(?:out|err)>)?:?", "label"),  # mpirun --tag-output: job, rank
    _form("[", FIRST, r"\[([0-9]{1,7})\]<std(?:out|err)>:?", "label"),  # horovodrun, where no mpirun stands below it
    _form("[", FIRST, rf"\[[A-Za-z_][\w.-]{{0,80}}\](?= \[?[0-9]{{4}}[-/]{_DAY}[T _]{_TIME})"),  # a program's name before its clock
    _form("[", FIRST, r"\[[0-9]{1,9}\]:?(?= )"),  # number of an editor; device of NCCL
    _form("d", FIRST, rf"[0-9]{{1,7}}(?: {{0,2}}\||:(?! )|\t| {{1,2}}(?=\[)){_BEGINS}"),  # number of an editor, of `cat -n` or `grep -n`
    _form("d", FIRST, r"([0-9]{1,6}):(?= )", "label"),  # srun --label, mpirun
    _form("d", FIRST, rf"({_ADDRESS}):(?= )", "host"),
    _form("a", FIRST, r"(?i:rank)(?:[ _]?([0-9]{1,7})(?::(?= )| \|(?= ))|=([0-9]{1,7})(?= ))", "rank", "rank"),
    # pdsh, clush, DeepSpeed's launcher: a name with a number, or any name with a dash where a line of its own follows
    _form("a", FIRST, rf"{_NO_HOST}({_NUMBERED}|[a-z_]{{1,20}}[0-9]{{2,6}}(?:\.[\w.-]{{1,40}})?):(?= )", "host"),
    _form("a", FIRST, rf"([a-z][\w.]{{0,30}}-[\w.-]{{1,50}}):(?= ){_BEGINS}", "host"),
    _form("a", FIRST, rf"({_NUMBERED}|[a-z]\w{{0,40}}[-_][0-9]{{1,6}}) {{1,9}}\|(?= |$)", "host"),  # docker compose
    _form("a", FIRST, rf"(?:[a-z][\w-]{{0,60}} \u203a )?({_NUMBERED})(?: \u203a)? [a-z][a-z0-9-]{{0,40}}(?= ){_BEGINS}", "host"),  # stern
    _form(  # where in the program a logger was called: loguru, vLLM, TensorFlow
        "a",
        LOGGED,
        r"[\w./-]{1,100}:[\w.<>-]{1,80}:[0-9]{1,6} [-|](?= )|[\w./-]{1,100}\.\w{1,4}:[0-9]{1,7}\](?= )|([DIWEF]) [\w./+-]{1,200}:[0-9]{1,7}\](?= )",
        "level",
    ),
    # names of loggers
    _form("a.", ALWAYS, rf"(?:- )?[\w.-]{{1,80}} - (?=(?:{_LEVEL}|RANK) ?)"),
    _form("a", LOGGED, rf"(?!(?:{_LEVEL}|NCCL)\b)[\w.-]{{1,80}} (?=[\[(]?(?:{_LEVEL})[\])]?(?:[ :|]|$))"),
    _form("a", LOGGED, r"(?:__main__|root|main|train\w{0,20}|[a-z_]\w{0,60}(?:\.\w{1,60}){1,6}) [-|](?= )"),
    _form("[", LOGGED, rf"\[[A-Za-z_][\w.-]{{0,80}}\](?= ?\[?(?:{_LEVEL})\])"),
    _form(
        "a", ALWAYS, r'(?:(?:caller|logger|source|component)=\S{1,100} ){0,3}(?:level|lvl)="?([A-Za-z]{4,8})"? (?:msg|message)="?', "level"
    ),
    _form("d", FIRST, r"[0-9a-f]{8}(?= \[rank=)"),  # of a container
    _form(".", ALWAYS, r"(?:\|\|?|>{1,3}|-)(?= )"),
)


_Place = tuple[re.Pattern[str], dict[int, tuple[tuple[str, int], ...]]]
_KINDS: Final = {
    chr(code): "d" if chr(code).isdigit() else "a" if chr(code).isalpha() or chr(code) == "_" else chr(code) if chr(code) in "[(" else "."
    for code in range(128)
}


@lru_cache(maxsize=32)
def _at(kind: str, is_first: bool, is_logged: bool) -> _Place:  # noqa: FBT001  called once per prefix of a line
    """All forms that count in such a place as one pattern, and what its groups hold, by the number of the form's own group."""
    counting = {ALWAYS, *([FIRST] if is_first else []), *([LOGGED] if is_logged else [])}
    chosen = [form for form in _FORMS if kind in form.begins and form.when in counting]
    told: dict[int, tuple[tuple[str, int], ...]] = {}
    number = 1
    for form in chosen:
        told[number] = tuple((name, number + at) for at, name in enumerate(form.holds, 1))
        number += 1 + len(form.holds)
    return re.compile("|".join(f"({form.pattern})" for form in chosen)), told


def peel(raw: str, place: int, *, is_first: bool, is_logged: bool) -> tuple[int, list[tuple[str, str]]] | None:
    """Where the form ends that begins at `place`, and what it tells, with names; None where none begins there.

    `is_first`: near the beginning of the line; `is_logged`: behind a clock or a level.
    """
    regex, told = _at(_KINDS.get(raw[place], "."), is_first, is_logged)
    if (found := regex.match(raw, place)) is None:
        return None
    return found.end(), [(name, value) for name, number in told[found.lastindex or 0] if (value := found[number])]
