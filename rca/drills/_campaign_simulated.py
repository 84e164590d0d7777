"""Plays the incidents of a campaign in processes of its own, and keeps every row as soon as it is there: a campaign that was cut short goes on."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from typing import Any

from rca.drills._campaign_answer import Row, row
from rca.drills._campaign_plan import Wanted

__all__ = ["JOBS", "answers", "gathered", "made_with", "rules_version"]

JOBS = 2  # processes
ROOT = Path(__file__).resolve().parents[2]


def answers(wanted: Sequence[Wanted], out: Path, *, jobs: int = JOBS, say: Callable[[str], object] = print) -> Iterator[Row]:
    """One row per incident as soon as it is answered, those that `out`/rows.jsonl holds first. What fails gives a row with `error` alone.

    Rows made by other rules or another simulator are worth nothing beside new ones: then all are made anew. Of each kind torchfrtrace is asked
    about the first incident that is written out.
    """
    out.mkdir(parents=True, exist_ok=True)
    asked = {w.kind: w for w in reversed(wanted) if w.way == "files"}
    kept = out / "rows.jsonl"
    done = _kept(kept, say)
    yield from (done[w.key] for w in wanted if w.key in done)
    missing = [w for w in wanted if w.key not in done]
    with kept.open("a" if done else "w", encoding="utf-8") as file:
        if done:
            file.write("\n")  # a last line may have been cut short
        else:
            file.write(json.dumps({"rules": rules_version()}) + "\n")
        for one, made in _each([partial(row, w, is_beside=asked.get(w.kind) == w) for w in missing], jobs):
            error = made.exception()
            name = missing[one]
            found: Row = made.result() if error is None else _blank(name) | {"error": f"{type(error).__name__}: {error}"}
            if error is None:
                file.write(json.dumps({"key": name.key, **found}, sort_keys=True) + "\n")
                file.flush()
            yield found


def gathered(calls: Sequence[Callable[[], Any]], jobs: int) -> list[tuple[Any, BaseException | None]]:
    """(what it returned, or why it did not) of each call, in order."""
    found = {number: (None, error) if (error := made.exception()) else (made.result(), None) for number, made in _each(calls, jobs)}
    return [found[number] for number in range(len(calls))]


def _each(calls: Sequence[Callable[[], Any]], jobs: int) -> Iterator[tuple[int, Future[Any]]]:
    """(place, outcome) of each call as it ends. Each process works with one thread: they share the machine by themselves."""
    if not calls:
        return
    before = os.environ.get("POLARS_MAX_THREADS")
    os.environ["POLARS_MAX_THREADS"] = "1"  # read when a process loads polars
    try:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            places = {pool.submit(call): number for number, call in enumerate(calls)}
            for future in as_completed(places):
                yield places.pop(future), future
    finally:
        os.environ.pop("POLARS_MAX_THREADS") if before is None else os.environ.update(POLARS_MAX_THREADS=before)


def made_with() -> dict[str, Any]:
    """Of this machine, and the rules that answered."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "rules": rules_version()}


@cache
def rules_version() -> str:
    """16 hex digits that change with any file that an answer or an incident comes from; as they were when this process began to ask."""
    digest = hashlib.sha256()
    for folder in ("rca", "collectors"):
        for path in sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".csv", ".yaml", ".txt")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _kept(file: Path, say: Callable[[str], object]) -> dict[str, Row]:
    """key -> row of an earlier run by the same rules; a last line that was cut short is left out."""
    if not file.exists():
        return {}
    first, *lines = file.read_text("utf-8").split("\n")
    if not first.startswith("{") or json.loads(first).get("rules") != rules_version():
        say(f"{file}: made by other rules, so all is answered anew")
        return {}
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {found.pop("key"): found for found in rows}


def _blank(wanted: Wanted) -> Row:
    return {"kind": wanted.kind, "ranks": wanted.ranks, "seed": wanted.seed, "way": wanted.way, "is_thinned": wanted.is_thinned}
