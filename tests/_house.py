"""Helpers of the house tests: the shipped cases, the command in this process or its own, a case in memory."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from rca.case import MemoryCase
from rca.linking import frames_of, read_all
from rca.parts import Parts
from rca.sources import inventory

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "data" / "cases"
RCA = (sys.executable, "-m", "apps.cli")  # of this tree, wherever it is checked out
SAMPLE = "lock_hang"  # the case of tests that need any one: all its ranks left a dump, and the dumps alone give its verdict
FOLDERS = tuple(sorted(path.name for path in CASES.iterdir() if path.is_dir()))
_TRUTHS = {name: json.loads((CASES / name / "truth.json").read_text()) for name in FOLDERS}
HEALTHY = tuple(name for name in FOLDERS if _TRUTHS[name]["cause"] == ["healthy"])
FAULTY = tuple(name for name in FOLDERS if _TRUTHS[name]["first_failing_ranks"])  # not a job that was stopped on purpose
DUMPED = ("lock_hang", "mismatched_size", "rank_killed", "skipped_collective")  # told by recorder dumps and stacks
LOGGED = ("bit_flip", "none", "planned_stop", "slow_rank", "worker_oom_killed")  # told by timings, kernel and trainer logs


def slow_but(*few: str, of: tuple[str, ...] = FOLDERS) -> list[Any]:
    """Cases for a test that takes long: a few that differ in what they rest on, and all others as slow tests."""
    return [pytest.param(name, marks=() if name in few else pytest.mark.slow) for name in of]


class Done(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def doc(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


def call(*argv: str | Path) -> Done:
    """The command in this process."""
    from apps.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in argv])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


def start(*argv: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT} | options
    return subprocess.Popen([*RCA, *map(str, argv)], env={**os.environ, **(env or {})}, **pipes)


def finish(process: subprocess.Popen[bytes], *, timeout_s: float = 120.0) -> Done:
    """Wait for it."""
    out, err = process.communicate(timeout=timeout_s)
    return Done(process.returncode, (out or b"").decode(), (err or b"").decode())


def copy_case(name: str, into: Path) -> Path:
    """A shipped case as a fresh folder: evidence only, no answer, no case file that somebody built there."""
    return Path(
        shutil.copytree(
            CASES / name, into, ignore=shutil.ignore_patterns("truth.json", "case.duckdb", "*.duckdb.tmp-*"), dirs_exist_ok=True
        )
    )


def copy_built(name: str, into: Path) -> Path:
    """A shipped case as a fresh folder, with its case file: for tests of what comes after. Built once in this process."""
    return Path(shutil.copytree(_built(name), into))  # the stamps of the files stay, so the case file is up to date


@cache
def _built(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="firstfault-tests-"))
    atexit.register(shutil.rmtree, folder)
    assert call("build", copy_case(name, folder / name)).code == 0
    return folder / name


def copy_dumps(name: str, into: Path) -> Path:
    """A shipped case with fewer stacks and no logs: quicker to build, and the verdict stays."""
    copy_case(name, into)
    for path in [p for p in into.rglob("*") if p.is_file() and p.parent.name != "fr" and p.name != "topology.json"]:
        if not path.name.startswith("rank_0.main") and not (path.parent.name == "round_2" and path.name.endswith(".main.json")):
            path.unlink()
    (into / "note.txt").write_text("not evidence\n")
    return into


def truth(name: str) -> dict[str, Any]:
    """What truly happened in a shipped case."""
    path = CASES / f"{name.removesuffix('.tar.gz')}.truth.json" if name.endswith(".tar.gz") else CASES / name / "truth.json"
    return dict(json.loads(path.read_text()))


@contextlib.contextmanager
def read_folder(folder: Path) -> Iterator[dict[str, pl.DataFrame]]:
    """All tables of a folder in memory."""
    with tempfile.TemporaryDirectory() as spool:
        parts = Parts(Path(spool) / "parts")
        read = read_all(inventory(folder, Path(spool) / "archives"), parts)
        yield frames_of(parts, read.frames)


@cache
def frames(name: str) -> dict[str, pl.DataFrame]:
    """All tables of a shipped case, read once."""
    with tempfile.TemporaryDirectory() as spool, read_folder(copy_case(name, Path(spool) / name)) as found:
        return found


def memory_case(name: str) -> MemoryCase:
    """A shipped case in memory, nothing derived yet."""
    return MemoryCase(frames(name))


def tables_of(case_file: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of a case file, by table."""
    from rca.case import Case
    from rca.tables import TABLES

    case = Case.open(case_file)
    try:
        return {name: case.table(name, with_stale=True).collect().rows() for name in TABLES}
    finally:
        case.close()


def accuses_wrongly(doc: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Why a verdict is wrong: it names a rank that is not at fault, or another cause. None when it is right or an honest unknown."""
    verdict, evicted = doc["verdict"], doc["advice"]["evict"]
    ranks, accepted = set(verdict["first_failing"]["ranks"]), {*answer["cause"], "unknown", "process_killed"}
    if answer["cause"] == ["healthy"]:
        accepted -= {"process_killed"}
    if ranks - set(answer["first_failing_ranks"]):
        return f"accuses {sorted(ranks)}, at fault are {answer['first_failing_ranks']}"
    if set(evicted["hosts"]) - set(answer["hosts"]):
        return f"evicts {evicted['hosts']}, at fault are {answer['hosts']}"
    if verdict["cause"] not in accepted:
        return f"says {verdict['cause']}, true are {answer['cause']}"
    return None


def assert_probabilities(doc: Mapping[str, Any]) -> None:
    """Of all hypotheses together: sorted, shares of one, resting on findings that are there."""
    shares = [h["probability"] for h in doc["hypotheses"]]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= p <= 1 for p in shares)
    assert sum(shares) <= 1 + 1e-5
    ids = {f["id"] for f in doc["findings"]}
    assert all(set(h["supports"]) | set(h["against"]) <= ids for h in doc["hypotheses"])


def diagnose_in_memory(folder: Path) -> dict[str, Any]:
    """The document that `rca diagnose --json` prints, without a case file on the way."""
    from apps.document import diagnosis_document
    from rca.judge import judge

    with read_folder(folder) as found:
        return dict(json.loads(to_text(diagnosis_document(judge(MemoryCase(found)), [], {}))))


def to_text(document: Mapping[str, Any]) -> str:
    """As the command writes it."""
    from apps.document import to_json

    return to_json(document)
