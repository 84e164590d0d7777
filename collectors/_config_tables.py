"""Components of many hosts in one table: JSON of several shapes, CSV wide, long or with a column per host, lists of Kubernetes objects."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from collectors._config_values import FAMILIES, is_secret, known, package, plain_value, scalar, setting
from collectors._kernel_prefix import host_name
from collectors._own_records import instant

__all__ = ["Fact", "csv_facts", "csv_form", "entry_facts", "json_facts"]

HOST_KEYS: Final = ("host", "hostname", "host_name", "node", "node_name", "nodename", "instance", "server")
LISTS: Final = ("hosts", "nodes", "configs", "servers", "inventory")
_TIMES: Final = ("observed_at", "collected_at", "captured_at", "timestamp", "time", "updated_at")
_COMPONENT: Final = ("component", "package", "parameter", "setting", "item", "name", "key")
_VALUE: Final = ("value", "version", "hash", "digest")
_PACKAGES: Final = frozenset({"packages", "pip", "pip_packages", "python_packages"})
_ENVIRONMENT: Final = frozenset({"env", "environment", "environ"})
_PLAIN: Final = frozenset(
    {"versions", "components", "config", "configs", "configuration", "settings", "software", "facts"}
)  # say nothing by themselves
_NODE_INFO: Final = {
    "kernelVersion": "kernel",
    "osImage": "os",
    "containerRuntimeVersion": "container_runtime",
    "kubeletVersion": "kubelet",
}
_IMAGE_SCHEME: Final = re.compile(r"^[a-z-]{1,30}://")
MAX_NAME: Final = 120  # characters of a component's name


class Fact(NamedTuple):
    """A component of a host: where it stands, whose it is, what it is."""

    record: str
    host: str | None
    component: str
    value: str
    source: str
    observed_at: datetime | None = None
    rank: int | None = None


def json_facts(document: Any) -> Iterator[Fact]:
    """All facts of a document, whichever of the shapes it has: a list of hosts, an object by host, one host, a list of Kubernetes."""
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        yield from _kubernetes(document["items"])
        return
    if isinstance(document, dict) and "kind" in document and ("spec" in document or "status" in document):
        yield from _kubernetes([document], "E")
        return
    if isinstance(document, dict) and (inner := next((key for key in LISTS if isinstance(document.get(key), list | dict)), None)):
        yield from _entries(document[inner], f"{inner}/E")
        return
    yield from _entries(document, "E")


def _entries(document: Any, lead: str) -> Iterator[Fact]:
    if isinstance(document, list):
        for place, entry in enumerate(document):
            if isinstance(entry, dict):
                yield from entry_facts(entry, f"{lead}{place}")
    elif isinstance(document, dict) and _host(document) is not None:
        yield from entry_facts(document, f"{lead}0")
    elif isinstance(document, dict):
        for place, (name, facts) in enumerate(document.items()):
            if isinstance(facts, dict) and isinstance(name, str):
                yield from entry_facts({"host": name, **facts}, f"{lead}{place}")


_host_name = lru_cache(maxsize=4096)(host_name)


def _host(entry: Mapping[Any, Any]) -> str | None:
    said = next((value for key in HOST_KEYS if isinstance(value := entry.get(key), str)), None)
    return _host_name(said)


def entry_facts(entry: Mapping[Any, Any], record: str, source: str = "table") -> Iterator[Fact]:
    """The facts of one host's entry, or the one fact of an entry that names its component. None without a host."""
    entry = {str(key).strip(): value for key, value in entry.items() if isinstance(key, str)}
    lowered = {key.lower(): value for key, value in entry.items()}
    host = _host(lowered)
    if host is None:
        return
    at = next((moment for key in _TIMES if key in lowered and (moment := instant(lowered[key]))), None)
    named = next((lowered[key] for key in _COMPONENT if isinstance(lowered.get(key), str)), None)
    said = next((key for key in _VALUE if key in lowered), None)
    for name, value in [(named, lowered[said])] if named and said else _pairs(entry):
        if (fact := _fact(record, host, name, value, source, at)) is not None:
            yield fact


def _fact(record: str, host: str, name: str, value: Any, source: str, at: datetime | None = None) -> Fact | None:
    """One fact; None where the value is none, or the name that of a host or a time."""
    component = _component(name)
    text = _text(component, value) if isinstance(value, str) else scalar(value)
    return Fact(record, host, component, text, source, at) if component and text is not None else None


@lru_cache(maxsize=4096)
def _text(component: str, value: str) -> str | None:
    text = setting(component, value)
    return plain_value(component, text) if text is not None else None


def _pairs(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values, one level of nesting laid flat."""
    for key, value in entry.items():
        if not isinstance(value, dict):
            yield key, value
            continue
        for name, inner in value.items():
            if not isinstance(name, str):
                continue
            if key.lower() in _PACKAGES:
                yield package(name), inner
            elif key.lower() in _ENVIRONMENT:
                if FAMILIES.fullmatch(name):
                    yield name, inner
            else:
                yield name if key.lower() in _PLAIN else f"{key}.{name}", inner


@lru_cache(maxsize=4096)
def _component(name: str) -> str:
    """The component that a name means; "" for the name of a host, a time or a secret."""
    name = name.strip()[:MAX_NAME].encode("utf-8", "replace").decode()
    if name.lower() in (*HOST_KEYS, *_TIMES) or is_secret(name):
        return ""
    return f"env:{name}" if FAMILIES.fullmatch(name) else known(name) or name.lower()


def _kubernetes(items: Sequence[Any], lead: str = "items/E") -> Iterator[Fact]:
    """Images that the containers of pods run, and what nodes say of themselves."""
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        status, spec, about = (part if isinstance(part := item.get(key), dict) else {} for key in ("status", "spec", "metadata"))
        if isinstance(info := status.get("nodeInfo"), dict) and (host := host_name(_word(about.get("name")))):
            for key, component in _NODE_INFO.items():
                if (value := scalar(info.get(key))) is not None:
                    yield Fact(f"{lead}{place}", host, component, value, "kubernetes")
        host = host_name(_word(spec.get("nodeName")))
        containers = status.get("containerStatuses")
        for container in containers if isinstance(containers, list) and host else ():
            name, image = (container.get(key) for key in ("name", "imageID")) if isinstance(container, dict) else (None, None)
            if isinstance(name, str) and isinstance(image, str) and (value := scalar(_IMAGE_SCHEME.sub("", image))):
                yield Fact(f"{lead}{place}", host, f"image:{name[:MAX_NAME]}", value, "kubernetes")


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def csv_form(line: str) -> tuple[str, str, list[str]] | None:
    """Form (wide, long, matrix), delimiter and column names of a header of such a table; None for any other line."""
    if len(line) > 4000 or "\0" in line:
        return None
    delimiter = max(",;\t", key=line.count)
    names = [cell.strip().strip('"').strip() for cell in line.rstrip("\r\n").split(delimiter)]
    lowered = [name.lower() for name in names]
    if len(names) < 2 or {"rank", "step", "loss", "iteration"} & set(lowered):
        return None
    if any(name in HOST_KEYS for name in lowered):
        if any(name in _COMPONENT for name in lowered) and any(name in _VALUE for name in lowered):
            return "long", delimiter, names
        return ("wide", delimiter, names) if any(known(name) for name in names) else None
    is_matrix = (
        lowered[0] in _COMPONENT[:-2] and len(names) > 2 and all(host_name(name) and re.search(r"[0-9]|-", name) for name in names[1:])
    )
    return ("matrix", delimiter, names) if is_matrix else None


def csv_facts(text: str) -> Iterator[Fact]:
    """Facts of a table whose first line is such a header. Raises csv.Error where it is none after all."""
    form, delimiter, names = csv_form(text.split("\n", 1)[0]) or ("", ",", [])
    lowered = [name.lower() for name in names]
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    next(rows, None)
    if form == "matrix":
        hosts = [host_name(name) for name in names]
        for cells in rows:
            for host, cell in zip(hosts[1:], cells[1:], strict=False):
                if host is not None and (fact := _fact(f"L{rows.line_num}", host, cells[0], cell, "table")) is not None:
                    yield fact
        return
    of_host, of_component, of_value, of_time = (
        next((lowered.index(key) for key in keys if key in lowered), -1) for keys in (HOST_KEYS, _COMPONENT, _VALUE, _TIMES)
    )
    for cells in rows:
        if len(cells) != len(names) or (host := _host_name(cells[of_host])) is None:
            continue
        at = instant(cells[of_time]) if of_time >= 0 else None
        pairs = [(cells[of_component], cells[of_value])] if form == "long" else zip(names, cells, strict=True)
        for name, cell in pairs:
            if (fact := _fact(f"L{rows.line_num}", host, name, cell, "table", at)) is not None:
                yield fact
