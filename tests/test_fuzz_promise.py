"""What `make fuzz` holds a collector to: its own judge must see what is broken, and what it once found stays mended. (The fuzzer is no part.)"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from _house import ROOT

from rca import plugins
from rca.drills._synthetic import Fault, Job, Recorder, write
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source


@cache
def dump() -> dict[str, Any]:
    """A recorder dump of one call."""
    with tempfile.TemporaryDirectory() as folder:
        write(Job(tp=2, dp=1, steps=1), Fault("stop", (1,)), Path(folder), recorder=Recorder(format="json", buffer=1, name="{rank}"))
        return dict(json.loads((Path(folder) / "0").read_text()))


def call_of(**fields: Any) -> bytes:
    (entry,) = dump()["entries"]
    return json.dumps(dump() | {"entries": [entry | fields]}).encode()


def groups_of(name: str) -> bytes:
    """A recorder dump in JSON form with one group of that name and number."""
    group = {"name": name, "desc": "default_pg", "ranks": "[0, 1]"}
    status = {"last_enqueued_collective": "--5"}
    return json.dumps({"version": "2.10", "pg_config": {name: group}, "pg_status": {name: status}, "entries": []}).encode()


FOUND = [
    *(("flight_recorder", call_of(**field)) for field in ({"input_dtypes": ["\ud800"]}, {"state": "\ud800"}, {"thread_id": "\ud800"})),
    *(("flight_recorder", call_of(**field)) for field in ({"process_group": ["0", "\ud800"]}, {"profiling_name": "\ud800"})),
    *(("flight_recorder", call_of(frames=[frame])) for frame in ({"name": "\ud800"}, {"name": "f", "filename": "\ud800"})),
    ("flight_recorder", groups_of("\u00b2")),
    ("flight_recorder", groups_of("0")),
    *(("trainer_log", json.dumps({"step": step, "loss": 2.5}).encode()) for step in (10**30, 1e308)),
    ("trainer_log", json.dumps({"step": 1, "loss": 2.5, "t_ns": "0001-01-01T00:00:00+14:00"}).encode()),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in FOUND}))
def test_what_was_found_stays_mended(promise: ModuleType, name: str) -> None:
    for _, data in (found for found in FOUND if found[0] == name):
        promise.keep(plugins.load("collectors", name), data)


@pytest.fixture(scope="module")
def promise() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "fuzz"))
        import _promise  # type: ignore[import-not-found]

        yield _promise


def reader(give: Callable[[Source], Any], claims: Any = True) -> ModuleType:
    """A collector of dumps that gives what it is told to."""
    made = ModuleType("made_up")
    made.EMITS = ("dumps",)  # type: ignore[attr-defined]
    made.claims = lambda _name, _head: claims  # type: ignore[attr-defined]
    made.read = give  # type: ignore[attr-defined]
    return made


def refuse(_source: Source) -> Any:
    raise EvidenceError("x", None, "no dump")


def fail(_source: Source) -> Any:
    return [int("x")]


def dawdle(_source: Source) -> Any:
    end = time.process_time() + 0.01
    while time.process_time() < end:
        pass
    return []


def test_who_keeps_the_promise_passes(promise: ModuleType) -> None:
    rows = [(TABLES["dumps"], TABLES["dumps"].frame()), Skip("L1", "torn")]
    for good in (reader(lambda source: rows), reader(refuse), reader(lambda source: [])):
        assert promise.keep(good, b"x") >= 0
    fixtures = Path(__file__).parent / "collectors" / "fixtures"
    assert promise.keep(plugins.load("collectors", "py_spy"), (fixtures / "stack_gone.txt").read_bytes()) >= 0


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (reader(fail), "ValueError"),
        (reader(lambda source: [Skip("L1", "")]), "Broken"),
        (reader(lambda source: [(TABLES["steps"], TABLES["steps"].frame())]), "Broken"),
        (reader(lambda source: [(TABLES["dumps"], TABLES["dumps"].frame().drop("rank"))]), "Broken"),
        (reader(lambda source: [(TABLES["dumps"], TABLES["dumps"].frame().cast({"rank": pl.String}))]), "Broken"),
        (reader(lambda source: [], claims="perhaps"), "Broken"),
    ],
)
def test_who_breaks_it_is_found_out(promise: ModuleType, bad: ModuleType, error: str) -> None:
    with pytest.raises(Exception) as seen:  # noqa: PT011 - which one is what the table says
        promise.keep(bad, b"x")
    assert type(seen.value).__name__ == error


def test_who_takes_too_long_for_the_size_is_found_out(promise: ModuleType) -> None:
    assert promise.allowed_s(100) == 2.0
    assert promise.allowed_s(5_000_000) == 10.0
    with pytest.raises(promise.Slow, match="s of CPU for 1 bytes"):
        promise.keep(reader(dawdle), b"x", patience=0.001)
