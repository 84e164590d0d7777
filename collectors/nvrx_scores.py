"""Scores of NVRx's straggler detector: how fast each rank was against the best (relative) or against its own best (individual), 1 = as fast.

Three forms: a report's dictionaries (`Relative GPU performance scores:` and `{0: 0.70, 1: 0.98}`, sections around them; also as
`gpu_relative_perf_scores={...}` of a printed report or of its JSON); lists of the Lightning callback (`GPU relative performance:`, then
`Rank=76 Node=host-a Score=0.94`, often only the worst and best few of all ranks); its warnings with the ranks below the threshold.

Rows: `rank_stats`, one per section (`gpu` = the whole GPU) and rank, individual scores with `_individual` behind the name; `trainer_events`, one per
rank that a warning names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from collectors._lines import blocks
from collectors._log_prefix import parse, pieces
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("rank_stats", "trainer_events")

BATCH_ROWS: Final = 50_000
MAX_PREFIX: Final = 1_000  # characters that hold what a logger puts before its message
MAX_DEPTH: Final = 3  # of the braces of a report
LIST_LINES: Final = 40_000  # of one list of the callback
_NUMBER: Final = r"[-+]?(?:[0-9]{1,6}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:e[-+]?[0-9]{1,3})?|nan|inf"
_HEADING: Final = (
    r"(?P<mode>relative|individual) (?P<what>section|gpu)s? perf(?:ormance)? scores?\b"
    r"|(?P<what2>gpu|section)s?[_ ](?P<mode2>relative|individual)[_ ]perf(?:ormance)?[_ ]scores?\b"
    r"|(?P<what3>gpu) (?P<mode3>relative|individual) perf(?:ormance)?:"
)
_OF: Final = re.compile(r"(?i)\b(?:worst|best) performing [0-9]{1,7}/(?P<of>[0-9]{1,7}) ranks:")
_SCORE: Final = rf"Rank ?= ?(?P<of>[0-9]{{1,7}}) Node ?= ?(?P<node>\S{{1,255}}) Score ?= ?(?P<listed>{_NUMBER})\b"
_TOKEN: Final = re.compile(
    rf"(?i){_HEADING}|{_SCORE}|(?P<nodes>\brank_to_node\b)"
    rf"|['\"](?!\w{{1,20}}_perf_scores|rank_to_node)(?P<section>[^'\"\n]{{1,200}})['\"] ?: ?\{{|(?P<open>\{{)|(?P<close>\}})"
    rf"|(?P<rank>\b[0-9]{{1,7}})['\"]? ?: ?(?:[a-z][\w.]{{0,40}}\()?(?P<score>{_NUMBER})(?![\w.])"
)
_CLAIM: Final = re.compile(
    rb"(?i)(?:(?:relative|individual) (?:section|gpu)s? perf(?:ormance)? scores?"
    rb"|(?:gpu|section)s?[_ ](?:relative|individual)[_ ]perf(?:ormance)?[_ ]scores?)\b"
    rb"[^\n{]{0,40}\s{0,8}\{|\bRank ?= ?\d{1,7} Node ?= ?\S{1,255} Score ?= ?\d|STRAGGLER DETECTION WARNING: "
)
_WORDS: Final = (b"erf", b"core", b"{", b"}", b"Affected")
_WARNING: Final = re.compile(r"(?i)straggler detection warning: (?P<says>[^\n]{0,200}?)\.? Affected ranks: (?P<who>[^\n]{1,100000})")
_WHO: Final = re.compile(
    r"rank ?= ?(?P<rank>[0-9]{1,7})(?:, ?node ?= ?['\"](?P<node>[^'\"]{1,255})['\"])?|(?<![\w=.'\"-])(?P<bare>[0-9]{1,7})(?![\w.'\"-])"
)
_CALLBACK: Final = b"StragglerDetectionCallback"


def claims(name: str, head: bytes) -> bool:
    """A heading of scores with what follows it, a line of the callback, or its logger's name: the first report comes minutes after the start."""
    return (b"erf" in head and _CLAIM.search(head) is not None) or _CALLBACK in head or b"STRAGGLER DETECTION" in head


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of both tables, in the order of the lines; other lines are passed over. None at all where no report was due yet."""
    reader = _Reader()
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        if not reader.is_within and not any(word in block.data for word in _WORDS[:2]) and _WORDS[-1] not in block.data:
            continue
        for number, line in enumerate(block.lines, block.first):
            if reader.is_within or any(word in line for word in _WORDS):
                for piece in pieces(line.decode("utf-8", "replace")):
                    reader.add(piece, number)
        if len(reader.stats) + len(reader.events) >= BATCH_ROWS:
            yield from reader.taken()
    yield from reader.taken()


class _Reader:
    """What of a report has been read so far."""

    def __init__(self) -> None:
        self.stats: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._name: str | None = None  # `gpu`, or "" for sections; None outside of scores
        self._suffix = ""
        self._section: str | None = None
        self._depth = 0
        self._is_list = False  # of the callback: lines with ranks, no braces
        self._began = 0
        self._until = 0  # line up to which a list of the callback may go on
        self._at: tuple[datetime | None, str | None] = (None, None)
        self._num_ranks: int | None = None  # that a list of the callback says to be of

    @property
    def is_within(self) -> bool:
        """Whether a heading waits for its scores."""
        return self._name is not None

    def taken(self) -> Iterator[tuple[Table, pl.DataFrame]]:
        """The rows so far, which are forgotten."""
        for table, rows in (("rank_stats", self.stats), ("trainer_events", self.events)):
            if rows:
                yield TABLES[table], TABLES[table].rows(rows)
        self.stats, self.events = [], []

    def add(self, text: str, number: int) -> None:
        """One more line."""
        if "ffected ranks" in text and (warning := _WARNING.search(text)):
            self._warn(warning, text, number)
            return
        if self._until and number > self._until:
            self._leave()
        if self._is_list and (of := _OF.search(text)):
            self._num_ranks = int(of["of"])
        for found in _TOKEN.finditer(text):
            if mode := found["mode"] or found["mode2"] or found["mode3"]:
                self._enter((found["what"] or found["what2"] or found["what3"]).lower(), mode.lower(), text, number)
                self._is_list = found["mode3"] is not None
            elif self._name is None:
                continue
            elif self._is_list or found["listed"]:
                if self._is_list and found["listed"]:
                    self._score(int(found["of"]), found["listed"], number, json_of.host(found["node"]))
            elif found["nodes"]:
                self._leave()
            elif found["section"] or found["open"]:
                self._depth += 1
                self._section = found["section"] or self._section
                if self._depth >= MAX_DEPTH:
                    self._leave()
            elif found["close"]:
                self._depth -= 1
                if self._depth <= 0:
                    self._leave()
                else:
                    self._section = None
            elif self._depth > 0 and (self._name or self._section):
                self._score(int(found["rank"]), found["score"], number, None)
        if self._name is not None and not self._is_list and not self._depth and number > self._began and text.strip():
            self._leave()  # a heading in prose: what follows it opens no brace

    def _enter(self, what: str, mode: str, text: str, number: int) -> None:
        self._leave()
        self._name, self._suffix, self._until = (
            "gpu" if what == "gpu" else "",
            "_individual" if mode == "individual" else "",
            number + LIST_LINES,
        )
        if self._began != number:  # once a line
            said = parse(text[:MAX_PREFIX], number)
            self._began, self._at = number, (said.at, said.local)

    def _leave(self) -> None:
        self._name, self._section, self._depth, self._until, self._num_ranks = None, None, 0, 0, None

    def _score(self, rank: int, value: str, number: int, host: str | None) -> None:
        at, local = self._at
        self.stats.append(
            {
                "record": f"L{number}", "rank": rank, "host": host, "name": (self._name or self._section or "") + self._suffix, "source": "nvrx",
                "report": self._began, "num_ranks": self._num_ranks, "score_ratio": json_of.number(value), "logged_at": at,
                "logged_at_local": local if at is None else None,
            }
        )  # fmt: skip

    def _warn(self, warning: re.Match[str], text: str, number: int) -> None:
        said = parse(text[:MAX_PREFIX], number)
        kind = "individual" if "dropped" in warning["says"].lower() else "relative"
        for who in _WHO.finditer(warning["who"]):
            self.events.append(
                {
                    "record": f"L{number}", "event": f"straggler_gpus_{kind}", "source": "nvrx", "rank": int(who["rank"] or who["bare"]),
                    "host": json_of.host(who["node"]), "logged_at": said.at, "logged_at_local": said.local if said.at is None else None,
                    "message": warning["says"],
                }
            )  # fmt: skip
