"""Did the job come to its regular end, and who says so?

1. Every rank's own end was seen, and was good.
2. Or the scheduler's books: this launch is COMPLETED with exit code 0 and no signal, as is every step of it, minutes after the last word of the job.
   The state of a job is that of its batch script, which may end well whatever became of the step that it started, or of a job that had stood still.
3. Or the launchers: each whose log is here says that its workers finished as often as it started some: a log may go on with a later launch. There
   must be one for each host; where hosts are not told, the program itself must say too that it was done.
4. The words of 2 and 3 are about all ranks at once, so they count only where no rank's own words speak against them: no fault, no order to stop, no
   bad end, nobody who waited for others in vain, no ranks seen standing still.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._faults import Story, complains, story
from rca.analyses._job_logs import Line, cite_line
from rca.analyses._scheduler_records import AFTER, Record
from rca.analyses._stack_views import main_motion
from rca.types import Cite, Tables

__all__ = ["Ending", "ended_well"]

DONE: Final = "COMPLETED"
_OF_WORKERS: Final = re.compile(r"(?i)\bworkers?\b")  # words of who started them; a program says of itself that training is done
MAX_CITES: Final = 3


@dataclass(frozen=True)
class Ending:
    """That the job came to its end, in words and by whom."""

    says: str
    cites: tuple[Cite, ...]


def ended_well(case: Tables) -> Ending | None:
    """Who says that the job came to its regular end; None where nobody does, or something speaks against it."""
    told = case.derive(story)
    if told.logs.everyone and not told.not_seen_to_end_well:
        return Ending("every rank was seen to end well", _cites(_finished(told)))
    if not told.logs.lines or _is_disputed(case, told):
        return None
    return _by_books(case, told) or _by_launchers(case, told)


def _finished(told: Story) -> list[Line]:
    return [line for line in told.logs.lines if line.signature == "worker_finished" or line.exit_code == 0]


def _cites(lines: Sequence[Line]) -> tuple[Cite, ...]:
    return tuple(map(cite_line, lines[:MAX_CITES]))


def _is_disputed(case: Tables, told: Story) -> bool:
    if told.first or told.unplaced or told.stop.is_asked:
        return True
    if any(line.exit_code or line.signal or complains(line) for line in told.logs.lines):
        return True
    _, motion = case.derive(main_motion)
    return motion.is_known and not motion.job_moves


def _by_books(case: Tables, told: Story) -> Ending | None:
    launch = told.logs.book.launch
    if launch is None or not _is_done(launch.row["state"], launch.row["exit_code"], launch.row["exit_signal"]):
        return None
    span = told.logs.span
    if launch.ended is not None and span is not None and launch.ended > span[1] + AFTER:
        return None
    steps = case.table("job_records").filter(pl.col("is_step") & (pl.col("base_job_id") == launch.row["base_job_id"]))
    if not all(_is_done(*row) for row in steps.select("state", "exit_code", "exit_signal").collect().iter_rows()):
        return None
    return Ending("accounting says so, with exit code 0", (_cite(launch),))


def _is_done(state: str | None, code: int | None, signal: int | None) -> bool:
    return state == DONE and code == 0 and not signal


def _cite(launch: Record) -> Cite:
    row = launch.row
    return Cite("job_records", row["evidence_id"], "", row["record"], launch.says[:300])


def _by_launchers(case: Tables, told: Story) -> Ending | None:
    logs = told.logs
    launchers = {line.evidence_id for line in logs.lines if _is_of_launcher(line)}
    going_on = _going_on(case)
    finished = [
        line for line in _finished(told) if line.rank is None and _OF_WORKERS.search(line.text) and line.evidence_id not in going_on
    ]
    if not finished or launchers - {line.evidence_id for line in finished}:
        return None
    hosts = len(set(logs.hosts.values()))
    is_program_done = any(not _OF_WORKERS.search(line.text) for line in _finished(told))
    if len(finished) < hosts or not (hosts or is_program_done):
        return None
    return Ending(f"{'every launcher' if len(finished) > 1 else 'its launcher'} says that the workers finished", _cites(finished))


def _going_on(case: Tables) -> set[str]:
    """Logs of launchers that started workers more often than any finished. A start may be told by several lines: the one told most often counts."""
    lines = case.table("log_events").filter(pl.col("rank").is_null() & pl.col("signature").is_in(["worker_started", "worker_finished"]))
    times = lines.group_by("evidence_id", "signature", "message").agg(pl.col("num_folded").fill_null(1).sum())
    most = times.group_by("evidence_id", "signature").agg(pl.col("num_folded").max()).collect()
    counts = {(id_, signature): number for id_, signature, number in most.iter_rows()}
    return {id_ for id_, _ in counts if counts.get((id_, "worker_started"), 0) > counts.get((id_, "worker_finished"), 0)}


def _is_of_launcher(line: Line) -> bool:
    if line.signature.startswith("elastic_"):
        return True
    return line.signature in ("worker_started", "worker_finished") and line.rank is None and bool(_OF_WORKERS.search(line.text))
