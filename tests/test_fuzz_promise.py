"""What `make fuzz` holds a collector to: its own judge must see what is broken. (The fuzzer itself is no part of the tests.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from _house import ROOT

from rca import plugins
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source


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
