"""Single lines of Megatron-LM's monitors: the straggler report and the machine that reruns a step whose result looks wrong.

Straggler report (`--log-straggler`): smallest and largest value over the ranks and the rank that has it, times in ms, throughput in TFLOP/s; power is
in mW whatever the unit printed says (the counter that it takes it from is). Rerun machine: a rank that computed NaN, Inf or a spike runs the step
again on the same GPU, then, after a restart, on another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from collectors._log_prefix import Line, local_stamp
from collectors._stack_dump import host_label

__all__ = ["RERUN_MARKS", "STRAGGLER_MARKS", "Reruns", "power_w", "straggler"]

STRAGGLER_MARKS: Final = ("/rnk: ", "^^^^ ")  # lower case; a line of the report holds one
RERUN_MARKS: Final = (  # lower case; a line of the rerun machine holds one
    *(
        "unexpected result",
        "possible transient error",
        "possible persistent error",
        "correct result (but possible",
        "on the same gpu. need",
    ),
    "status=rerunvalidationstatus",
    *("status=rerun_disabled", "status=initial_run", "status=first_rerun", "status=second_rerun"),
)
MOST_W: Final = 5000.0  # no GPU draws more: a larger number counts mW
MAX_HELD: Final = 1000  # reruns whose rank is not told yet
MAX_TEXT: Final = 1000

_NUMBER: Final = r"-?[0-9]{1,15}(?:\.[0-9]{1,12})?"
_EXTREME: Final = re.compile(
    rf"\b(?P<end>M[nx])(?P<what>[A-Za-z]{{1,16}})/Rnk: {{0,4}}(?P<value>{_NUMBER}) ?[A-Za-z%/]{{0,12}}/(?P<rank>[0-9]{{1,7}})(?![0-9])"
)
_LISTED: Final = re.compile(r"\^\^\^\^ (?:Bottom|Top) {1,6}[0-9]{1,7} Ranks with \w{1,10} {1,4}Etpt\(TF\):(?P<list>.{0,16000})")
_ENTRY: Final = re.compile(rf"(?P<value>{_NUMBER})/(?P<rank>[0-9]{{1,7}})(?![0-9])")
_EXTREMES: Final = {"Mn": "min", "Mx": "max"}
_THROUGHPUT: Final = "throughput_tflops"
_KNOWN: Final = {  # short name in the report -> name and column
    "Rtt": ("round_trip", "value_s"),
    "DRtt": ("get_batch", "value_s"),
    "Pwr": ("power", "value_w"),
    "Tmp": ("temperature_c", "value"),
    "Utl": ("utilization_percent", "value"),
    "Clk": ("clock_mhz", "value"),
    "Etpt": (_THROUGHPUT, "value"),
}
_STAMP: Final = re.compile(
    r"(?P<day>[0-9]{4}-[0-9][0-9]-[0-9][0-9])[ T](?P<time>[0-9][0-9]:[0-9][0-9]:[0-9][0-9])(?:[.,](?P<fraction>[0-9]{1,9}))?"
)

_RESULT: Final = re.compile(
    r"[Uu]nexpected result (?P<result>.{1,300}?) on rank (?P<rank>[0-9]{1,7}) at iteration #?(?P<step>[0-9]{1,15})\b(?P<rest>.{0,600})"
)
_AT_LINE: Final = re.compile(  # before 2025: the rank is not told
    r"[Uu]nexpected result (?P<result>.{1,300}?) at \S{1,1000} line [0-9]{1,9}, invo[ck]ation #?[0-9]{1,15} "
    r"at iteration #?(?P<step>[0-9]{1,15})\b(?P<rest>.{0,600})"
)
_OF_RANK: Final = re.compile(
    r"Rank (?P<rank>[0-9]{1,7}), node (?P<node>[\w.:-]{1,255}), device "
    r"(?P<device>[0-9]{1,5})(?:, iteration #?(?P<step>[0-9]{1,15}))?: (?P<said>.{1,2000})"
)
_FIRST: Final = re.compile(r"First rerun: unexpected result is (?P<not>not )?reproducible within the tolerance.{0,1000}")
_SECOND: Final = re.compile(r"Second rerun: unexpected result is (?P<not>not )?reproducible on a different GPU.{0,1000}")
_SAME: Final = re.compile(r"Got rescheduled on the same GPU\..{0,100}?\(node: (?P<node>[\w.:-]{1,255}), gpu: (?P<device>[0-9]{1,5})\)")
_TRACKED: Final = re.compile(
    r"ts=(?P<at>\S{10} \S{5,20}) node=(?P<node>[\w.:-]{1,255}) device=(?P<device>[0-9]{1,5}) jobID=\S{1,80} rank=(?P<rank>[0-9]{1,7}) "
    r"iteration=(?P<step>[0-9]{1,15}) status=(?P<status>[\w.]{1,80}) result=(?P<result>.{1,300}?) message=(?P<rest>.{0,600})"
)
_SAID: Final = (  # how what a rank says begins, the event, and what its rerun showed
    ("First rerun: unexpected result is not reproducible", "first_rerun", False),
    ("First rerun: unexpected result is reproducible", "first_rerun", True),
    ("Second rerun: unexpected result is not reproducible", "second_rerun", False),
    ("Second rerun: unexpected result is reproducible", "second_rerun", True),
    ("Unexpected result ", "unexpected_result", None),
    ("Possible transient error", "possible_transient_error", None),
    ("Possible persistent error", "possible_persistent_error", None),
    ("Correct result (but possible", "correct_result", None),
)
_ENDS: Final = {  # the verdict behind a rerun, with its rank: of which rerun, and what that showed
    "possible_transient_error": ("first_rerun", False),
    "possible_persistent_error": ("second_rerun", False),
    "correct_result": ("second_rerun", True),
}
_STATUS: Final = {
    "rerun_disabled": ("unexpected_result", None),
    "initial_run": ("unexpected_result", None),
    "first_rerun_not_reproducible": ("first_rerun", False),
    "first_rerun_reproducible": ("first_rerun", True),
    "second_rerun_not_reproducible": ("second_rerun", False),
    "second_rerun_reproducible": ("second_rerun", True),
}
_FLOAT: Final = re.compile(r"(?:tensor\()?(?P<value>[-+]?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,3})?)\b")


def power_w(printed: float) -> float:
    """What a straggler report prints as power, in W."""
    return printed / 1000 if abs(printed) > MOST_W else printed


def stamp_of(text: str) -> str | None:
    """The first full date and time of a text, as the tables hold a local one; None without any."""
    found = _STAMP.search(text)
    return local_stamp(found["day"], found["time"], found["fraction"]) if found else None


def straggler(text: str) -> Iterator[dict[str, Any]]:
    """Rows of `rank_stats` of a line of the straggler report: name, rank and value_s, value_w or value; none of another line."""
    for found in _EXTREME.finditer(text):
        name, column = _KNOWN.get(found["what"], (found["what"].lower(), "value"))
        value = float(found["value"])
        value = value / 1000 if column == "value_s" else power_w(value) if column == "value_w" else value
        yield {"name": f"{_EXTREMES[found['end']]}_{name}", "rank": int(found["rank"]), column: value}
    if listed := _LISTED.search(text):
        for found in _ENTRY.finditer(listed["list"]):
            yield {"name": _THROUGHPUT, "rank": int(found["rank"]), "value": float(found["value"])}


class Reruns:
    """Rows of `trainer_events` of the rerun machine's lines, of one file.

    Events: unexpected_result (a rank computed it), first_rerun (same GPU: not reproducible = it was transient), second_rerun (another GPU:
    reproducible = the program's own doing; not = the first GPU is broken), rescheduled_on_same_gpu, and the machine's own verdicts
    possible_transient_error, possible_persistent_error and correct_result.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._held: list[tuple[tuple[Any, ...], dict[str, Any]]] = []  # reruns that do not say whose, and their writer

    def take(self, line: Line, raw: str, writer: tuple[Any, ...]) -> None:
        """Read one line; `raw` is the line with its prefix, `writer` what tells writers apart."""
        told = self._told(raw)
        if told is None:
            return
        row = {
            "record": f"L{line.number}",
            "source": "megatron_rerun",
            "logged_at": line.at,
            "logged_at_local": line.local,
            "rank": line.rank,
            "host": line.host,
            **told,
        }
        self.rows.append(row)
        if row["event"] in ("first_rerun", "second_rerun") and "step" not in told and len(self._held) < MAX_HELD:
            self._held.append((writer, row))
        elif (shown := _ENDS.get(row["event"])) is not None:
            self._complete(writer, row, shown)

    def _complete(self, writer: tuple[Any, ...], verdict: dict[str, Any], shown: tuple[str, bool]) -> None:
        """The rank says its verdict right behind its rerun: whose that was. Several of one kind differ in nothing else."""
        for place, (held, row) in enumerate(self._held):
            if held == writer and (row["event"], row["is_reproducible"]) == shown:
                row |= {name: verdict[name] for name in ("rank", "host", "local_gpu", "step")}
                del self._held[place]
                return

    @staticmethod
    def _told(raw: str) -> dict[str, Any] | None:
        if found := _TRACKED.search(raw):
            known = _STATUS.get(found["status"].rpartition(".")[2].lower())
            if known is None:
                return None
            at = stamp_of(found["at"])
            return {"event": known[0], "is_reproducible": known[1], **_place(found), **({"logged_at_local": at} if at else {})} | _result(
                found
            )
        if found := _OF_RANK.search(raw):
            said = found["said"]
            for begins, event, is_reproducible in _SAID:
                if said.startswith(begins):
                    return {"event": event, "is_reproducible": is_reproducible, "message": said[:MAX_TEXT].rstrip(), **_place(found)}
            return None
        if found := _RESULT.search(raw):
            return {
                "event": "unexpected_result",
                "is_reproducible": None,
                "rank": int(found["rank"]),
                "step": int(found["step"]),
            } | _result(found)
        if found := _AT_LINE.search(raw):
            return {"event": "unexpected_result", "is_reproducible": None, "step": int(found["step"])} | _result(found)
        for event, pattern in (("first_rerun", _FIRST), ("second_rerun", _SECOND)):
            if found := pattern.search(raw):
                return {"event": event, "is_reproducible": found["not"] is None, "message": found[0][:MAX_TEXT]}
        if found := _SAME.search(raw):
            said = {"host": host_label(found["node"]), "local_gpu": int(found["device"])}
            return {"event": "rescheduled_on_same_gpu", "is_reproducible": None, "message": found[0][:MAX_TEXT], **said}
        return None


def _place(found: re.Match[str]) -> dict[str, Any]:
    step = int(found["step"]) if found["step"] else None
    return {"rank": int(found["rank"]), "host": host_label(found["node"]), "local_gpu": int(found["device"]), "step": step}


def _result(found: re.Match[str]) -> dict[str, Any]:
    number = _FLOAT.match(found["result"])
    value = float(number["value"]) if number else math.nan
    return {"value": value if math.isfinite(value) else None, "message": found[0][:MAX_TEXT]}
