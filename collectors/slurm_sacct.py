"""Slurm accounting: what `sacct` prints with a delimiter, as aligned text or as JSON; one row per job, array task and step.

    sacct -aDP --noconvert -o JobIDRaw,JobName,State,ExitCode,Submit,Start,End,ElapsedRaw,NNodes,NodeList,Reservation,Restarts,Reason

Any delimiter that the header shows, all columns of all versions, and line breaks inside fields are read. Of two ids `JobID` counts: it names the
task of an array. Times are local to the cluster (`*_local`); JSON counts seconds since 1970.
Source: Slurm, manual page of sacct; data parsers v0.0.37 to v0.0.42.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import polars as pl

from collectors import _slurm_tables as tables
from collectors._batches import batches
from collectors._slurm_jobs import is_record, row
from collectors._slurm_json import claims_jobs, jobs
from rca.errors import EvidenceError
from rca.tables import Table
from rca.types import Skip, Source

__all__ = ["EMITS", "claims", "read"]

EMITS = ("job_records",)
IS_ALONE = True

SNIFF_LINES: Final = 40
_IO: Final = tuple(
    f"{kind}{what}{part}"
    for kind in ("max", "ave")
    for what in ("diskread", "diskwrite", "pages", "rss", "vmsize")
    for part in ("", "node", "task")
)
_TRES: Final = tuple(
    f"tresusage{way}{what}{part}" for way in ("in", "out") for what in ("ave", "max", "min", "tot") for part in ("", "node", "task")
)
_OTHERS: Final = """
    account admincomment alloccpus allocgres allocnodes alloctres associd avecpu avecpufreq blockid cluster comment constraints
    consumedenergy consumedenergyraw container cputime cputimeraw dbindex derivedexitcode elapsed elapsedraw eligible end exitcode
    expandedstderr expandedstdin expandedstdout extra failednode flags gid group jobid jobidraw jobname layout licenses mcslabel mincpu
    mincpunode mincputask ncpus nnodes nodelist ntasks planned plannedcpu plannedcpuraw partition priority qos qosraw qosreq reason
    reqcpufreq reqcpufreqgov reqcpufreqmax reqcpufreqmin reqcpus reqgres reqmem reqnodes reqreservation reqtres reservation reservationid
    reserved resvcpu resvcpuraw restarts segmentsize sluid start state stderr stdin stdout steps submit submitline suspended systemcomment
    systemcpu timelimit timelimitraw totalcpu uid user usercpu wckey wckeyid workdir
"""
KNOWN: Final = frozenset((*_IO, *_TRES, *_OTHERS.split()))  # all columns of all versions, lower case
_IS_HEADER: Final = re.compile(r"JobID|jobid")  # all in capitals it is that of squeue
_NEEDED: Final = (frozenset({"jobid", "jobidraw"}), frozenset({"state"}))


def claims(name: str, head: bytes) -> bool:
    """A header of sacct within the first lines, or the JSON of `sacct --json`."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return claims_jobs(head, accounting=True)
    lines = [line.decode("utf-8", "replace").removeprefix("\ufeff") for line in islice(head.splitlines(), SNIFF_LINES)]
    return any(_header(line, under) for line, under in zip(lines, [*lines[1:], ""], strict=False))


def _header(line: str, under: str) -> tables.Header | None:
    if not _IS_HEADER.search(line[:20_000]):
        return None
    return tables.delimited_header(line, KNOWN, _NEEDED) or tables.dashed_header(line, under, KNOWN, _NEEDED)


def _fits(header: tables.Header, fields: Sequence[str]) -> bool:
    return len(fields) == len(header.names) and is_record(dict(zip(reversed(header.names), reversed(fields), strict=True)))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `job_records` in the order of the file; what is no record is skipped. Raises EvidenceError where there is none."""
    num_rows, _ = yield from batches("job_records", _rows(source))
    if not num_rows:
        raise EvidenceError(source.path, None, "no record of a job in it: its header must name JobID and State (not with --noheader)")


def _rows(source: Source) -> Iterator[dict[str, Any] | Skip]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        yield from jobs(source)
        return
    for item in tables.records(tables.text_lines(source), _header, _fits):
        if isinstance(item, Skip):
            yield item
            continue
        number, fields = item
        made, problem = row(f"L{number}", fields)
        if problem:
            yield Skip(f"L{number}", problem)
        yield made
