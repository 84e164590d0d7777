"""Of which Slurm job a log is, and whether it tells of a training launch: a later number alone may be of an evaluation or a preparation. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container
from typing import Final

import polars as pl

from rca.types import Tables

__all__ = ["numbers", "programs", "with_ranks"]

JOB_FILE: Final = re.compile(r"(?:^|/)slurm-([0-9]{1,10})\.\w+$")  # sbatch's own name of the output
JOB_SAID: Final = re.compile(r"\b(?:STEP |JOB |StepId=|JobId=)([0-9]{1,10})\b")
TASKS: Final = re.compile(r"\btasks? [0-9,-]*[1-9]")  # srun names tasks of which one is not the first: a step of several processes
SCRIPT: Final = re.compile(r"^<module> \((.+):[0-9]+\)$")
INSTALLED: Final = re.compile(r"(?:^|/)bin/[^/]+$|^<")  # a launcher's own script, as torchrun's: it starts whatever program


def numbers(case: Tables, logs: Container[str]) -> dict[str, int]:
    """evidence_id -> number of its Slurm job: the highest that a line names, else that of the file's name. Without those that tell none."""
    found: dict[str, int] = {}
    for id_, path in case.table("readings").select("evidence_id", "path").unique().collect().iter_rows():
        if id_ in logs and (name := JOB_FILE.search(path)):
            found[id_] = int(name[1])
    said: dict[str, int] = {}
    lines = case.table("log_events").filter(pl.col("signature").str.starts_with("slurm_")).select("evidence_id", "message")
    for id_, message in lines.unique().collect().iter_rows():
        if id_ in logs and (name := JOB_SAID.search(message or "")):
            said[id_] = max(said.get(id_, 0), int(name[1]))
    return found | said


def programs(case: Tables) -> dict[str, set[str]]:
    """evidence_id -> scripts in which its tracebacks begin."""
    found: dict[str, set[str]] = defaultdict(set)
    told = case.table("log_events").filter(pl.col("signature") == "python_traceback").select("evidence_id", "frames").drop_nulls()
    for id_, frames in told.unique().collect().iter_rows():
        scripts = [said[1] for frame in reversed(frames) if (said := SCRIPT.match(frame or ""))]
        if scripts and not INSTALLED.search(scripts[0]):
            found[id_].add(scripts[0])
    return dict(found)


def with_ranks(case: Tables) -> set[str]:
    """Logs that name ranks, or tasks of a step of several."""
    events = case.table("log_events")
    named = events.filter(pl.col("rank").is_not_null()).select("evidence_id").unique().collect()["evidence_id"]
    tasks = events.filter(pl.col("signature") == "slurm_task_exit").select("evidence_id", "message").unique().collect()
    return {*named, *(id_ for id_, message in tasks.iter_rows() if TASKS.search(message or ""))}
