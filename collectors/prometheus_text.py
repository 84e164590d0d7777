"""Metrics of GPUs, links and collectives as Prometheus scrapes them (text, OpenMetrics): DCGM exporter, NCCL Inspector, xpu_timer, others.

A file may be one scrape, or many one behind the other: the n-th sample of a series has scrape n. A text has no time of its own; one behind the
value, or a line between scrapes that tells the time with its zone, gives `sampled_at`. Rows: `gpu_samples`; `rank_states` of xpu_timer's hang gauge.
Other metrics in the same text (of hosts, containers, programs) are counted, not stored. Own parsing: rows need the line of each sample.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from collectors._json_records import instant
from collectors._lines import blocks
from collectors._prometheus import FAMILY, HANG, Scrapes, hang_row, is_family, row
from collectors._stamp_lines import stamp_of
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("gpu_samples", "rank_states")
IS_ALONE = True

BATCH_ROWS: Final = 20_000
MAX_LINE: Final = 20_000  # characters: labels of an exporter are far shorter
MAX_NAMED: Final = 5
_NAME: Final = r"[A-Za-z_:][A-Za-z0-9_:]{0,250}"
_VALUE: Final = r"[+-]?(?:[0-9][0-9_.]{0,40}(?:[eE][+-]?[0-9]{1,5})?|\.[0-9]{1,40}|[Ii]nf(?:inity)?|[Nn]a[Nn])"
_CLAIM: Final = re.compile(rf"(?m)^[ \t]*(?:{FAMILY})(?:\{{[^\n]*\}})?[ \t]+{_VALUE}(?:[ \t]|\r?$)".encode())
_HEAD: Final = re.compile(rf"({_NAME})\s*")
_LABEL: Final = re.compile(r'\s*(?:([A-Za-z_][A-Za-z0-9_.:]{0,250})|"((?:[^"\\]|\\.){0,250})")\s*=\s*"((?:[^"\\]|\\.)*+)"\s*,?\s*')
_REST: Final = re.compile(rf"\s*({_VALUE})(?:[ \t]+(-?[0-9]{{1,20}}(?:\.[0-9]{{1,12}})?))?[ \t]*(?:#.*)?")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n", "\\": "\\", '"': '"'}


def claims(name: str, head: bytes) -> bool:
    """A sample of one of the families that are read."""
    return _CLAIM.search(head.lstrip(b"\xef\xbb\xbf")) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """A row per sample of the families that are read, in the order of the file. Raises EvidenceError without any."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in EMITS}
    others: Counter[str] = Counter()
    scrapes, at, num_read = Scrapes(are_whole=True), None, 0
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for place, raw in enumerate(block.lines, block.first):
            line = raw[:MAX_LINE].decode("utf-8", "replace").strip()
            if not line or line[0] == "#" or not (sample := _sample(line.removeprefix("\ufeff"))):
                if line and (told := stamp_of(line)) is not None:
                    at = told[0]
                elif line and line[0] != "#" and is_family(line):
                    yield Skip(f"L{place}", "a sample that is cut or damaged")
                continue
            name, labels, value, own = sample
            if not is_family(name):
                others[name.partition("_")[0]] += 1
                continue
            if name == HANG:
                found, table = hang_row(labels, value, own or at), "rank_states"
            else:
                found, table = row(name, labels, value, own or at, scrapes.number(name, labels)), "gpu_samples"
            if found is None:
                yield Skip(f"L{place}", "a hang gauge without a rank")
                continue
            rows[table].append({"record": f"L{place}"} | found)
            num_read += 1
            if len(rows[table]) >= BATCH_ROWS:
                yield TABLES[table], TABLES[table].rows(rows[table])
                rows[table] = []
    if not num_read:
        raise EvidenceError(source.path, None, "no sample of a GPU, a link or a collective in it")
    if others:
        named = ", ".join(f"{prefix}_*" for prefix, _ in others.most_common(MAX_NAMED))
        yield Skip(None, f"{others.total()} samples of other metrics ({named}): of hosts and programs, not stored")
    for name in EMITS:
        yield TABLES[name], TABLES[name].rows(rows[name])


def _sample(line: str) -> tuple[str, dict[str, str], float, datetime | None] | None:
    """Name, labels, value and instant of a line; None where it is no whole sample."""
    head = _HEAD.match(line)
    if head is None:
        return None
    at, labels = head.end(), dict[str, str]()
    if line[at : at + 1] == "{":
        at += 1
        while found := _LABEL.match(line, at):
            at = found.end()
            labels[found[1] or found[2]] = _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[0]), found[3]) if "\\" in found[3] else found[3]
        while line[at : at + 1] in (" ", "\t"):
            at += 1
        if line[at : at + 1] != "}":
            return None
        at += 1
    rest = _REST.fullmatch(line, at)
    if rest is None:
        return None
    try:
        value = float(rest[1])
    except ValueError:
        return None
    return head[1], labels, value, _instant(rest[2])


def _instant(text: str | None) -> datetime | None:
    """Milliseconds since 1970 in a text exposition, seconds in OpenMetrics: only one of the two is of our time."""
    if text is None:
        return None
    number = float(text) if "." in text else int(text)
    return instant(number, "ms") or instant(number, "s")
