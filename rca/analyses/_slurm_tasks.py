"""Whose end it is that srun tells. The number of a task is that of a rank where srun started the ranks itself, else that of a launcher.

Where a launcher of torch is heard, numbers are launchers'. Else a number is a rank's where a source puts the rank of that number on the very host
that srun names: the launcher of that number would sit on another one. Only the first launcher and rank 0 share their host: task 0 is rank 0 where
some line names a task beyond the number of hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["with_ranks"]

OF_TASKS: Final = ("slurm_task_exit", "host_out_of_memory")  # one line of srun may tell both
_TASKS: Final = re.compile(r"srun: error: [\w.,\[\]-]{1,400}: tasks? (?P<numbers>[\d,\s-]{1,400}): ")


def with_ranks(rows: Sequence[Mapping[str, Any]], hosts: Mapping[int, str]) -> list[Mapping[str, Any]]:
    """Rows of `log_events`, the ends of single tasks of srun with their rank where it is certain; `hosts`: rank -> host."""
    ends = {n: [int(number) for number in re.findall(r"\d{1,7}", found["numbers"])] for n, row in enumerate(rows) if (found := _end(row))}
    if not ends or any((row["signature"] or "").startswith("elastic_") for row in rows):
        return list(rows)
    is_beyond = max(max(numbers) for numbers in ends.values()) >= len(set(hosts.values()))
    told = {
        n: numbers[0]
        for n, numbers in ends.items()
        if len(numbers) == 1 and rows[n]["host"] is not None and hosts.get(numbers[0]) == rows[n]["host"] and (numbers[0] or is_beyond)
    }
    return [{**row, "rank": told[n]} if n in told and row["rank"] is None else row for n, row in enumerate(rows)]


def _end(row: Mapping[str, Any]) -> re.Match[str] | None:
    return _TASKS.search(row["message"] or "") if row["signature"] in OF_TASKS else None
