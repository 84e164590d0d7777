"""Jobs as Slurm's controller shows them: `scontrol show job` (one line or several a job, or JSON) and the tables of `squeue` (or its JSON).

The controller forgets a job minutes after its end, and knows only its last launch: `Restarts` says how many there were before. Times are local to the
cluster; JSON counts from 1970. When a job that waits may begin, and when the time limit of one that runs is up, is left null: neither has been.
Source: Slurm, manual pages of scontrol and squeue; data parsers v0.0.37 to v0.0.42.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import polars as pl

from collectors._batches import batches
from collectors._slurm_blocks import Shown, begins, shown
from collectors._slurm_jobs import is_record, row
from collectors._slurm_json import claims_jobs, jobs
from collectors._slurm_tables import text_lines
from rca.errors import EvidenceError
from rca.tables import Table
from rca.types import Skip, Source

__all__ = ["EMITS", "claims", "read"]

EMITS = ("job_records",)
IS_ALONE = True

SNIFF_LINES: Final = 40
_SHOWN: Final = {  # field of scontrol -> name of sacct
    "JobName": "jobname", "JobState": "state", "Reason": "reason", "Restarts": "restarts", "ExitCode": "exitcode", "RunTime": "elapsed",
    "SubmitTime": "submit", "StartTime": "start", "EndTime": "end", "Partition": "partition", "QOS": "qos", "NodeList": "nodelist",
    "NumNodes": "nnodes", "TRES": "alloctres", "AllocTRES": "alloctres", "Reservation": "reservation", "Comment": "comment",
    "AdminComment": "admincomment", "SystemComment": "systemcomment",
}  # fmt: skip
_QUEUED: Final = {  # column of squeue -> name of sacct; "" = not kept
    "JOBID": "jobid", "PARTITION": "partition", "NAME": "jobname", "USER": "user", "ST": "state", "STATE": "state", "TIME": "elapsed",
    "NODES": "nnodes", "NODELIST(REASON)": "nodelist", "NODELIST": "nodelist", "REASON": "reason", "QOS": "qos", "START_TIME": "start",
    "SUBMIT_TIME": "submit", "END_TIME": "end", "TIME_LIMIT": "", "TIME_LIMI": "", "TIME_LEFT": "", "CPUS": "", "ACCOUNT": "", "PRIORITY": "",
    "MIN_MEMORY": "", "FEATURES": "", "TRES_PER_NODE": "", "GRES": "", "COMMENT": "comment", "DEPENDENCY": "", "GROUP": "",
    "RESERVATION": "reservation",
    "EXEC_HOST": "", "ARRAY_JOB_ID": "", "ARRAY_TASK_ID": "", "UID": "", "WORK_DIR": "", "COMMAND": "", "TASKS": "", "LICENSES": "", "SCHEDNODES": "",
    "RESTARTCOUNT": "restarts", "ELAPSED": "elapsed", "EXIT_CODE": "",
}  # fmt: skip
_STATE_COLUMNS: Final = frozenset({"ST", "STATE"})
_USER: Final = re.compile(r"([^()\s]{1,64})\([0-9]{1,10}\)")
_WAITS: Final = re.compile(r"\(([^()]{0,200})\)$")


def claims(name: str, head: bytes) -> bool:
    """Jobs of scontrol with a state, the header of squeue, or JSON of either."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return claims_jobs(head, accounting=False)
    if any(True for _ in begins(head, "JobId")) and b"JobState=" in head:
        return True
    return any(_header(line.decode("utf-8", "replace")) for line in islice(head.splitlines(), SNIFF_LINES))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `job_records` in the order of the file. Raises EvidenceError where there is none."""
    num_rows, _ = yield from batches("job_records", _rows(source))
    if not num_rows:
        raise EvidenceError(source.path, None, "no job with a state in it")


def _rows(source: Source) -> Iterator[dict[str, Any] | Skip]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        yield from jobs(source)
        return
    is_shown = any(True for _ in begins(source.head, "JobId"))
    for item in _shown(source) if is_shown else _queued(source):
        if isinstance(item, Skip):
            yield item
            continue
        number, fields = item
        if not is_record(fields):
            yield Skip(f"L{number}", "no job with an id and a state")
            continue
        made, problem = row(f"L{number}", fields)
        if problem:
            yield Skip(f"L{number}", problem)
        if made["state"] == "PENDING":
            made["started_at"] = made["started_at_local"] = None  # when it may begin
        yield made


def _shown(source: Source) -> Iterator[tuple[int, dict[str, str]] | Skip]:
    for item in shown(source, "JobId"):
        yield item if isinstance(item, Skip) else (item.number, _fields(item))


def _fields(job: Shown) -> dict[str, str]:
    """The fields of a job under sacct's names."""
    told = job.fields
    fields: dict[str, str] = {}
    for name, column in _SHOWN.items():
        if name in told:
            fields.setdefault(column, told[name])
    own, array, task, het = (told.get(name, "").split(" ")[0] for name in ("JobId", "ArrayJobId", "ArrayTaskId", "HetJobId"))
    offset = told.get("HetJobOffset", "")
    tasks = task if task.isdigit() else f"[{task}]"
    fields["jobid"] = f"{array}_{tasks}" if array and task else f"{het}+{offset}" if het and offset else own
    fields["nnodes"] = fields.get("nnodes", "").split("-")[0]
    user = _USER.match(told.get("UserId", ""))
    if user:
        fields["user"] = user[1]
    return fields


def _header(line: str) -> tuple[list[str], str | None] | None:
    """Columns of a header of squeue and its delimiter (None = blanks); None for any other line."""
    if len(line) > 2000 or "JOBID" not in line or "ST" not in line:
        return None
    delimiter = next((letter for letter in "|,;\t" if letter in line), None)
    names = [name.strip() for name in line.split(delimiter)]
    is_one = len(names) > 2 and set(names) <= _QUEUED.keys() and "JOBID" in names and bool(_STATE_COLUMNS & set(names))
    return (names, delimiter) if is_one else None


def _queued(source: Source) -> Iterator[tuple[int, dict[str, str]] | Skip]:
    header: tuple[list[str], str | None] | None = None
    for item in text_lines(source):
        if isinstance(item, Skip):
            yield item
            continue
        number, line = item
        found = _header(line)
        if found is not None:
            header = found
        elif header is not None and line.strip():
            cells = _cells(line.strip(), *header)
            if cells is None:
                yield Skip(f"L{number}", "no line of the table above it")
            else:
                yield number, cells


def _cells(line: str, names: list[str], delimiter: str | None) -> dict[str, str] | None:
    """The cells of a line under sacct's names. Of columns parted by blanks only a name and the reason at the end hold some."""
    if delimiter:
        words = [word.strip() for word in line.split(delimiter)]
    else:
        words = line.split()
        waits = _WAITS.search(line) if names[-1] == "NODELIST(REASON)" else None
        if waits:
            words = [*line[: waits.start()].split(), waits[0]]
        elif len(words) == len(names) - 1 and names[-1].startswith("NODELIST"):
            words.append("")
        more = len(words) - len(names)
        if more > 0 and "NAME" in names:
            place = names.index("NAME")
            words[place : place + more + 1] = [" ".join(words[place : place + more + 1])]
    return _named(dict(zip(names, words, strict=True))) if len(words) == len(names) else None


def _named(cells: Mapping[str, str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in cells.items():
        if _QUEUED[name]:
            fields.setdefault(_QUEUED[name], value)
    waits = _WAITS.fullmatch(fields.get("nodelist", ""))
    if waits:
        fields["nodelist"], fields["reason"] = "", waits[1]
    if fields.get("start") in ("N/A", ""):
        fields.pop("start")
    return fields
