"""Whose end it is that srun tells: of a rank, of a launcher, or of a task of another job.

1. A task is of another job, or of another step than the ranks', where it ran on a host that carries none of them, or its number is that of no rank
   and no launcher. Only where a map or the default group tells all ranks, and every one is placed.
2. The number of a task is that of a rank where srun started the ranks itself, else that of a launcher. Where a launcher of torch is heard, numbers
   are launchers'. Else a number is a rank's where a source puts the rank of that number on the very host that srun names: the launcher of that number
   would sit on another one. Only the first launcher and rank 0 share their host: task 0 is rank 0 where some line names a task beyond the number of
   hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from rca.analyses._job_hosts import READS, job_hosts
from rca.types import Tables

__all__ = ["READS", "TASKS", "of_others", "task_numbers", "with_ranks"]

OF_TASKS: Final = ("slurm_task_exit", "host_out_of_memory")  # one line of srun may tell both
MAX_TASKS: Final = 1_000_000  # of one step
_RANGE: Final = r"[0-9]{1,7}(?:-[0-9]{1,7})?"
TASKS: Final = rf"tasks? (?P<numbers>{_RANGE}(?:,\s?{_RANGE}){{0,400}})"  # of `tasks 0-3,7`
_END: Final = re.compile(rf"srun: error: [\w.,\[\]-]{{1,400}}: {TASKS}: ")
_IN_A_MAP: Final = pl.any_horizontal(pl.col("local_rank", "tp", "gpu").is_not_null())


def with_ranks(rows: Sequence[Mapping[str, Any]], hosts: Mapping[int, str]) -> list[Mapping[str, Any]]:
    """Rows of `log_events`, the ends of single tasks of srun with their rank where it is certain; `hosts`: rank -> host."""
    ends = {n: told for n, row in enumerate(rows) if (told := _tasks(row))}
    if not ends or any((row["signature"] or "").startswith("elastic_") for row in rows):
        return list(rows)
    is_beyond = max(numbers[-1] for numbers in ends.values()) >= len(set(hosts.values()))
    sure = {
        n: numbers[0]
        for n, numbers in ends.items()
        if len(numbers) == 1 and rows[n]["host"] is not None and hosts.get(numbers[0]) == rows[n]["host"] and (numbers[0] or is_beyond)
    }
    return [{**row, "rank": sure[n]} if n in sure and row["rank"] is None else row for n, row in enumerate(rows)]


def of_others(case: Tables, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Place in `rows` -> why the task whose end the row tells is none of this job."""
    ends = {n: told for n, row in enumerate(rows) if (told := _tasks(row))}
    if not ends:
        return {}
    known = case.derive(job_hosts)
    size = case.table("groups").filter(pl.col("kind") == "world").select(pl.col("size").max()).collect().item()
    size = size or case.table("ranks").filter(_IN_A_MAP).select(pl.col("rank").n_unique()).collect().item()
    if not known.is_whole or not size or len(known.of_ranks) != size:
        return {}
    found = {}
    for n, numbers in ends.items():
        if _is_named(rows[n]["host"]) and rows[n]["host"] not in known.named and any(map(_is_named, known.named)):
            found[n] = f"{rows[n]['host']} carries no rank of it"
        elif numbers[-1] >= size:
            found[n] = f"it has {size} rank{'' if size == 1 else 's'}"
    return found


def _is_named(host: str | None) -> bool:
    """Whether a host is told by name: a map of addresses says nothing of names."""
    return host is not None and not host.replace(".", "").isdigit()


def task_numbers(text: str) -> Iterator[int]:
    """Of `0-3,7` every number."""
    for first, last in re.findall(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", text):
        yield from range(int(first), min(int(last or first), int(first) + MAX_TASKS) + 1)


def _tasks(row: Mapping[str, Any]) -> list[int]:
    """The tasks whose end a row tells, sorted."""
    found = _END.search(row["message"] or "") if row["signature"] in OF_TASKS else None
    return sorted(set(task_numbers(found["numbers"]))) if found else []
