"""Metrics of GPUs, links and collectives as a query of Prometheus answers them, in JSON: its API, promtool, exports, Grafana.

Shapes: `data.result[]` with `metric` and `value` or `values` of [seconds, "number"]; the bare list of it (promtool); one object a line with `metric`,
`values` and `timestamps` in milliseconds (VictoriaMetrics); Grafana's `results.*.frames[]`. Each sample is a row with its instant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from collectors._json_stream import stream
from collectors._prometheus import FAMILY, HANG, Scrapes, hang_row, row
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
MAX_NAMED: Final = 5
_CLAIM: Final = re.compile(rf'"(?:__name__|name|displayNameFromDS|displayName)"\s*:\s*"{FAMILY}["{{]'.encode())
_SHAPE: Final = re.compile(rb'"(?:metric|labels)"\s*:\s*\{')

Series = tuple[str, dict[str, str], list[tuple[Any, Any]], str]  # where it stands, labels with __name__, samples, unit of their instants


def claims(name: str, head: bytes) -> bool:
    """A series with labels whose name is of one of the families that are read."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and _SHAPE.search(head) is not None and _CLAIM.search(head) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """A row per sample, series by series. Raises EvidenceError without any."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in EMITS}
    others: Counter[str] = Counter()
    scrapes, num_read = Scrapes(are_whole=False), 0
    for place, document in stream(source):
        if isinstance(document, str):
            continue  # what a shell printed around it
        if isinstance(document, Skip):
            yield Skip(place, document.why)
            continue
        for where, labels, samples, unit in _series(document):
            name = labels.pop("__name__", "")
            for number, (at, said) in enumerate(samples):
                value, moment = _value(said), json_of.instant(_plain(at), unit)
                if name == HANG:
                    found, table = hang_row(labels, value, moment), "rank_states"
                else:
                    found, table = row(name, labels, value, moment, scrapes.number(name, labels)), "gpu_samples"
                if found is None:
                    others[name.partition("_")[0] or "without a name"] += 1
                    continue
                rows[table].append({"record": f"{place}{where}/{number}"} | found)
                num_read += 1
                if len(rows[table]) >= BATCH_ROWS:
                    yield TABLES[table], TABLES[table].rows(rows[table])
                    rows[table] = []
    if not num_read:
        raise EvidenceError(source.path, None, "no series of a GPU, a link or a collective in it")
    if others:
        named = ", ".join(prefix for prefix, _ in others.most_common(MAX_NAMED))
        yield Skip(None, f"{others.total()} samples of other metrics ({named}): not stored. A query that computes gives its result no name")
    for name in EMITS:
        yield TABLES[name], TABLES[name].rows(rows[name])


def _series(document: Mapping[str, Any]) -> Iterator[Series]:
    """The series of an answer, whatever asked for it."""
    data, results = document.get("data"), document.get("results")
    if isinstance(document.get("metric"), dict):
        yield from _one("", document)
    elif isinstance(results, dict):
        for place, answer in enumerate(results.values()):
            frames = answer.get("frames") if isinstance(answer, dict) else None
            for number, frame in enumerate(frames if isinstance(frames, list) else ()):
                yield from _frame(f"/results/{place}/{number}", frame)
    else:
        result = data.get("result") if isinstance(data, dict) else document.get("result")
        for number, entry in enumerate(result if isinstance(result, list) else ()):
            if isinstance(entry, dict):
                yield from _one(f"/result/{number}", entry)


def _one(where: str, entry: Mapping[str, Any]) -> Iterator[Series]:
    """A series of Prometheus: one sample, many, or values beside their instants."""
    labels = _labels(entry.get("metric"))
    values, stamps, single = entry.get("values"), entry.get("timestamps"), entry.get("value")
    if isinstance(values, list) and isinstance(stamps, list):
        yield where, labels, list(zip(stamps, values, strict=False)), "ms"
    elif isinstance(values, list):
        yield where, labels, [(pair[0], pair[1]) for pair in values if isinstance(pair, list) and len(pair) == 2], "s"
    elif isinstance(single, list) and len(single) == 2:
        yield where, labels, [(single[0], single[1])], "s"


def _frame(where: str, frame: Any) -> Iterator[Series]:
    """The series of a frame of Grafana: a field of times, and a field of values for each series."""
    schema, data = (frame.get(key) if isinstance(frame, dict) else None for key in ("schema", "data"))
    fields = schema.get("fields") if isinstance(schema, dict) else None
    columns = data.get("values") if isinstance(data, dict) else None
    if not isinstance(fields, list) or not isinstance(columns, list):
        return
    pairs = [(f, column) for f, column in zip(fields, columns, strict=False) if isinstance(f, dict) and isinstance(column, list)]
    times = next((column for f, column in pairs if f.get("type") == "time" or str(f.get("name"))[:20] == "Time"), None)
    for number, (about, column) in enumerate(pairs):
        if times is None or column is times:
            continue
        labels, shown = _labels(about.get("labels")), about.get("config")
        says = (about.get("name"), shown.get("displayNameFromDS") if isinstance(shown, dict) else None)
        names = (match[0] for text in says if isinstance(text, str) and (match := _NAME.match(text)))
        if "__name__" not in labels and (name := next(names, None)) is not None:
            labels["__name__"] = name
        yield f"{where}/{number}", labels, list(zip(times, column, strict=False)), "ms"


_NAME: Final = re.compile(FAMILY)


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {
        key[:250].encode("utf-8", "replace").decode(): said for key, inner in value.items() if (said := json_of.text(inner)) is not None
    }


def _plain(value: Any) -> Any:
    """An instant as a number also where it is written as text."""
    return json_of.number(value) if isinstance(value, str) else value


def _value(value: Any) -> float | None:
    """A number, also as text; None for NaN and infinity, which a row cannot hold."""
    return json_of.number(value)
