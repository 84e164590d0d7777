"""Versions, settings and hashes of hosts as teams keep them: tables of hosts, or what the tools of one host print.

Of many hosts: JSON (an object by host, a list of hosts, `host`, `component`, `value`; pods and nodes as `kubectl get -o json` prints them), JSON
lines, CSV (a column per component, one row per host and component, or a column per host). Of one host: `pip freeze` or `pip list`, `env`,
`python -m torch.utils.collect_env`, `nvidia-smi`, `nvidia-smi -q` and `--query-gpu=... --format=csv`. Their host is the one that the file's, else the
folder's name states: what is left when endings, dates and the words for the content (pip, freeze, env, nvidia-smi, gpu-info, ...) are taken off its
two ends, whether `.`, `_` or `-` parts them: gpu-a01.pip-freeze.txt, env-gpu-a01.txt and gpu-a01/pip.txt are of gpu-a01. It has a digit, or begins
with a word for a machine (node-a). Of variables only those of NCCL, torch, CUDA and their transports are kept, and no value that may be a secret.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from collectors._config_tables import Fact, csv_facts, csv_form, entry_facts, json_facts
from collectors._config_texts import form_of
from collectors._config_values import host_of_path
from collectors._lines import is_text
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("configs",)

MAX_BYTES: Final = 1 << 26
MAX_ROWS: Final = 100_000
SNIFF_LINES: Final = 400
_VERSIONS: Final = re.compile(
    rb'"(?:nvidia[_-]?|gpu[_-]?)?(?:driver|nccl|cuda|cudnn|(?:py)?torch|kernel|vbios|ofed|mofed|firmware|fw|python|os)(?:[_-]?(?:version|release|ver))?"\s*:'
    rb'|"(?:os[_-]?image|container[_-]?image|image|image[_-]?(?:id|digest))"\s*:|"component"\s*:|"(?:packages|versions)"\s*:\s*\{',
    re.I,
)
_OF_HOSTS: Final = re.compile(rb'"(?:host|host_?name|node|node_?name|server|instance)"\s*:\s*"|^\s*\{\s*"[\w.\-]{1,80}"\s*:\s*\{', re.I)
_KUBERNETES: Final = re.compile(rb'"(?:containerStatuses|nodeInfo)"\s*:')
_OTHERS: Final = re.compile(
    rb'"(?:schema_version|rank|global_rank|step|loss|frames|entries|message|msg|log|MESSAGE|t_ns|round|dur_ms|event|traceEvents|pid)"\s*:'
)


def claims(name: str, head: bytes) -> bool:
    """JSON with components of hosts and nothing of a log or measurement in it, a table with such a header, or the output of such a tool."""
    start = head.lstrip()[:1]
    if start in (b"{", b"["):
        if _KUBERNETES.search(head) and b'"kind"' in head:
            return True
        return bool(_VERSIONS.search(head) and _OF_HOSTS.search(head) and not _OTHERS.search(head))
    if not is_text(head) or head[:1] == b"\x80":
        return False
    lines = _lines(head.decode("utf-8-sig", "replace"))[:SNIFF_LINES]
    return csv_form(lines[0]) is not None or form_of(lines) is not None


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `configs`, in the order of the file."""
    data, torn = source.read(MAX_BYTES + 1)
    if torn:
        yield Skip(None, f"breaks off: {torn}")
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes: no list of versions")
    rows: list[dict[str, object]] = []
    for fact in _facts(source, data.decode("utf-8-sig", "replace")):
        if len(rows) == MAX_ROWS:
            yield Skip(fact.record, f"more than {MAX_ROWS:,} components: the rest is left out")
            break
        rows.append(fact._asdict())
    if not rows:
        yield Skip(None, "names no component of a host")
    yield TABLES["configs"], TABLES["configs"].rows(rows)


def _facts(source: Source, text: str) -> Iterator[Fact]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except RecursionError:
            raise EvidenceError(source.path, None, "no valid JSON (nested too deeply)") from None
        except ValueError as error:
            if text.lstrip()[:1] != "{" or "\n" not in text.strip():
                raise EvidenceError(source.path, None, f"no valid JSON ({error})") from None
            yield from _of_lines(source, text)
        else:
            yield from json_facts(document)
        return
    lines = _lines(text)
    if csv_form(lines[0]) is not None:
        try:
            yield from csv_facts(text)
        except csv.Error as error:
            raise EvidenceError(source.path, None, f"no valid CSV ({error})") from None
    elif (reader := form_of(lines[:SNIFF_LINES])) is not None:
        yield from reader(lines, host_of_path(source.path))


def _of_lines(source: Source, text: str) -> Iterator[Fact]:
    """One object a line; lines that are none are passed over."""
    num_good = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            num_good += 1
            yield from entry_facts(entry, f"L{number}")
    if not num_good:
        raise EvidenceError(source.path, None, "neither JSON nor lines of JSON")
