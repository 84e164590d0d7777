"""What fuzzing starts from: real files that a collector claims, cut to a size at which thousands can be tried, and the words it looks for."""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rca.drills._synthetic import Fault, Job, Recorder, write
from rca.types import HEAD_BYTES

__all__ = ["MAX_BYTES", "NASTY", "seeds", "words"]

ROOT = Path(__file__).resolve().parents[1]
PLACES = (ROOT / "tests" / "collectors" / "fixtures", ROOT / "data" / "cases")
MAX_BYTES = 16_384  # of a seed
MAX_SEEDS = 60  # of a collector
MAX_WORDS = 1500
# What readers trip over: numbers that do not fit, moments that no zone can move, digits that are none, halves of characters.
NASTY = (
    *(b"-1", b"1e999", b"NaN", b"Infinity", b"9223372036854775808", b"9" * 60, b"0x" + b"f" * 40, b"\xc2\xb2", b'"\\ud800"', b"\xff\xfe"),
    *(b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-14:00", b"2026-02-30T25:61:61", b"-62135596800", b"253402300800"),
    *(b"null", b"true", b"[]", b"{}", b'""', b"[[[[[[[[", b'{"a":{"a":', b"\x1b[2J", b"\xe2\x80\xa8", b"\r\n"),
)
_TOKEN = re.compile(rb"[A-Za-z_][\w.:-]{2,40}")


def seeds(collector: ModuleType) -> list[bytes]:
    """Distinct inputs that the collector claims, small ones first. A long text is cut; a long document would be no document any more."""
    found: dict[bytes, None] = {}
    for data in (*_small_dumps(), *_files()):
        cut = data if len(data) <= MAX_BYTES else data[: data.rfind(b"\n", 0, MAX_BYTES) + 1]
        if cut and collector.claims("x", cut[:HEAD_BYTES]):
            found.setdefault(cut)
    ordered = sorted(found, key=lambda data: (len(data), data))
    return ordered[:: max(1, len(ordered) // MAX_SEEDS)][:MAX_SEEDS]


def _files() -> Iterator[bytes]:
    for place in PLACES:
        for path in sorted(p for p in place.rglob("*") if p.is_file() and p.suffix not in (".duckdb", ".gz")):
            yield path.read_bytes()


def _small_dumps() -> Iterator[bytes]:
    """Recorder dumps of a few calls: real ones are hundreds of times as long."""
    for version in ("1.9", "2.4", "2.10"):
        for form in ("pickle", "json"):
            with tempfile.TemporaryDirectory() as folder:
                recorder = Recorder(version=version, format=form, buffer=3)  # type: ignore[arg-type]
                write(Job(tp=2, dp=1, steps=2), Fault("stop", (1,)), Path(folder), recorder=recorder)
                yield from (path.read_bytes() for path in sorted(Path(folder).iterdir()))


def words(collector: ModuleType, inputs: list[bytes]) -> list[bytes]:
    """A dictionary: short texts in the collector's own source and in the catalogues, and tokens of the seeds."""
    found: dict[bytes, None] = dict.fromkeys(NASTY)
    for path in sorted(Path(str(collector.__file__)).parent.glob("*.py")):
        if path.name.startswith("_") or path.stem == collector.__name__.rpartition(".")[2]:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and 2 <= len(node.value) <= 40:
                    text = node.value.encode() if isinstance(node.value, str) else node.value
                    found.setdefault(text)
    for data in inputs:
        for token in _TOKEN.findall(data):
            found.setdefault(token)
    return list(found)[:MAX_WORDS]
