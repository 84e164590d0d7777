"""How often this job was started again already, and whether the same exception came each time, as evidence tells. Pure.

1. Told outright: records of launches (`attempts`), the accounting's count of requeues, announced requeues, the restart cycle of NVRx, starts that a
   trainer logs. 2. Launches in one log: a start of workers behind the end of one begins a new launch, whatever the clock says.
3. Each source may know only a part, so the largest count is a lower bound. No source at all is None, never 0.
4. The same exception, with the same innermost frame, in several launches of one log is the same deterministic fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from rca.types import Tables

__all__ = ["NO_LAUNCHES", "Launches", "launches"]

ENDS: Final = ("elastic_child_failed", "elastic_root_cause", "elastic_sigterm_victim", "process_signal", "slurm_task_exit")
FAILED: Final = ("elastic_child_failed", "elastic_root_cause")  # a launcher says which rank did
START: Final = "worker_started"
RAISED: Final = "python_traceback"
JOB_STARTS: Final = ("job_start", "worker_start_started")  # events of trainers and launchers, one at each launch
MAX_CITES: Final = 4


@dataclass(frozen=True)
class Launches:
    """Restarts of the job before this end."""

    restarts: int | None = None  # at least so many; None = nothing tells
    told_by: tuple[str, ...] = ()  # who says so, with the place in the file
    same_exception: int = 0  # restarts after which the same exception came again
    code_line: str | None = None  # where it came from, function (file:line)
    raised_at: tuple[str, ...] = ()  # places of it
    frames: Mapping[tuple[str, str], str] = field(
        default_factory=dict, compare=False
    )  # evidence_id, record of a traceback -> its innermost frame


NO_LAUNCHES: Final = Launches()


def launches(case: Tables) -> Launches:
    """The restarts that evidence tells."""
    paths = dict(case.table("evidence").select("evidence_id", "path").collect().iter_rows())
    by_file = _lines(case)
    rows = (*_outright(case), *_in_logs(by_file))
    told = [(count, f"{says} ({paths.get(id_, 'evidence')} {record})") for count, says, id_, record in rows]
    told.sort(key=lambda one: (-one[0], one[1]))
    again, line, places = _raised(by_file)
    return Launches(
        told[0][0] if told else None,
        tuple(says for count, says in told if count)[:MAX_CITES] or tuple(says for _, says in told[:1]),
        again,
        line,
        tuple(f"{paths.get(id_, 'evidence')} {record}" for id_, record in places)[:MAX_CITES],
        {
            (id_, line["record"]): line["frames"][0]
            for id_, lines in by_file.items()
            for line in lines
            if line["signature"] == RAISED and line["frames"]
        },
    )


Told = tuple[int, str, str, str]  # restarts, in words, evidence_id, record


def _outright(case: Tables) -> Iterator[Told]:
    attempts = case.table("attempts").select("job_id", "attempt", "evidence_id", "record").unique().sort("attempt").collect()
    for (job,), rows in attempts.group_by("job_id", maintain_order=True):
        yield rows["attempt"].n_unique() - 1, f"{rows['attempt'].n_unique()} recorded launches of {job}", *rows.row(-1)[2:]
    booked = case.table("job_records").filter(pl.col("restarts").is_not_null() & ~pl.col("is_step").fill_null(value=False))
    rows = booked.select("base_job_id", "restarts", "evidence_id", "record").sort("restarts").collect()
    if rows.height and rows["base_job_id"].n_unique() == 1:  # of several jobs it is open which one this is
        job, count, *place = rows.row(-1)
        yield count, f"the accounting counts {count} requeues of job {job}", *place
    asked = case.table("scheduler_events").filter((pl.col("state") == "requeued") & pl.col("host").is_null())
    requeued = asked.select("evidence_id", "record").unique().sort("evidence_id", "record").collect()
    if requeued.height:
        yield requeued.height, f"{requeued.height} announced requeues", *requeued.row(-1)
    events = case.table("trainer_events").select("event", "cycle", "rank", "evidence_id", "record")
    cycles = events.filter(pl.col("cycle").is_not_null()).sort("cycle", "evidence_id", "record").collect()
    if cycles.height:
        last = cycles.row(-1, named=True)
        yield last["cycle"], f"restart cycle {last['cycle']}", last["evidence_id"], last["record"]
    starts = events.filter(pl.col("event").is_in(JOB_STARTS)).unique(["evidence_id", "record"]).sort("evidence_id", "record").collect()
    for (id_, _), rows in starts.group_by("evidence_id", "rank", maintain_order=True):
        if rows.height > 1:
            yield rows.height - 1, f"{rows.height} logged starts", str(id_), rows["record"][-1]


def _lines(case: Tables) -> dict[str, list[dict[str, Any]]]:
    """Lines of starts, ends and exceptions by file, in the order of the file."""
    rows = (
        case.table("log_events")
        .filter(pl.col("signature").is_in([START, RAISED, *ENDS]))
        .select("evidence_id", "record", "signature", "rank", "exception", "frames", "num_folded")
        .collect()
    )
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows.iter_rows(named=True):
        found[row["evidence_id"]].append(row)
    return {id_: sorted(lines, key=lambda line: _place(line["record"])) for id_, lines in sorted(found.items())}


def _place(record: str) -> tuple[int, ...]:
    """The numbers in `L12` or `M3/L12`."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in record.split("/"))


def _numbered(lines: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every line with the number of the launch in which it stands, 0 = the first."""
    number, has_begun, has_ended = 0, False, False
    for line in lines:
        if line["signature"] == START:
            number += has_begun and has_ended
            has_begun, has_ended = True, False
        else:
            has_ended = True
        yield number, line


def _in_logs(by_file: Mapping[str, list[dict[str, Any]]]) -> Iterator[Told]:
    for id_, lines in by_file.items():
        starts = [(number, line["record"]) for number, line in _numbered(lines) if line["signature"] == START]
        if starts and starts[-1][0]:  # one launch in a log says nothing of those before, whose logs are elsewhere
            number, record = starts[-1]
            yield number, f"{number + 1} launches in one log", id_, record


def _raised(by_file: Mapping[str, list[dict[str, Any]]]) -> tuple[int, str | None, list[tuple[str, str]]]:
    """In how many launches beside the first the same exception came, its innermost frame, and where it stands.

    Equal tracebacks of a log are folded into the first: so many launches had it as the folded ones, if its rank failed in that many.
    """
    best: tuple[int, str | None, list[tuple[str, str]]] = (0, None, [])
    for id_, lines in by_file.items():
        numbered = list(_numbered(lines))
        failed: dict[int | None, dict[int, str]] = defaultdict(dict)  # rank -> launch -> where it is said that the rank failed
        for number, line in numbered:
            if line["signature"] in FAILED and line["rank"] is not None:
                failed[line["rank"]].setdefault(number, line["record"])
        by_fault: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        for number, line in numbered:
            if line["signature"] == RAISED and line["exception"] and line["frames"]:
                places = by_fault[line["exception"], line["frames"][0]]
                places.setdefault(number, line["record"])
                for later, record in list(failed[line["rank"]].items())[: line["num_folded"] or 1]:
                    places.setdefault(later, record)
        for (_, frame), places in sorted(by_fault.items()):
            if len(places) - 1 > best[0]:
                best = (len(places) - 1, frame, [(id_, record) for _, record in sorted(places.items())])
    return best
