"""Which rank raised an exception of its own first, and what does it say?

1. Read the log of every rank. Exceptions that communication raised, time-outs, closed connections and launchers' reports only follow from
   another rank's trouble (`_faults`): never first, however early they are in the files.
2. What is left is a rank's own: a sample that cannot be read, a checkpoint, the device, memory, storage, or plainly the program.
3. The earliest outside the error of the clocks accuses its rank; several ranks that raise the same are accused together only when they name
   the same sample; else nobody is, and the candidates are listed.
4. The same on nearly all ranks at once is no rank's fault: the cause is named, nobody is accused.
5. A traceback that is torn before its last line says who raised, not what; and where other logs were not read to their end, not even who was
   first.
6. An exception that its rank outlived (further steps, another try, a good end) is mentioned and accuses nobody. So is one that nothing dates,
   where the rank was still there when the job stood still, or the job came to its end: it is of another launch, or job (`_elsewhere`).
7. A failed command of several GPUs of one host at once is of what they share, not of one of them. Of an illegal access the kernel's record tells
   whether the device took part: where no log of that kernel was read, it is said less surely. Of a failure that CUDA does not specify only
   that record (an Xid) tells a broken device from a wrong kernel of the program: it accuses its rank, and leaves both causes open.
8. An exception in a log that does not say whose it is (one file of all ranks, without labels) tells the cause, and nobody's rank; beside a fault
   whose rank is known it is mentioned.
9. Exceptions of ranks' own that come after the first fault, or that nothing dates before it, count for nothing and are mentioned in one line:
   whoever searches the logs meets them. Where nearly all ranks raised the same, those that did so later are counted among them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from rca.analyses._elsewhere import left_open
from rca.analyses._faults import DEATHS, Fault, Story, story
from rca.analyses._job_logs import READS, JobLogs, Line, cite_line, step_at_end
from rca.analyses._moments import failed
from rca.analyses._sample_names import sample_names
from rca.analyses._stops import earliest
from rca.analyses._words import quoted, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

NEEDS = ("log_events",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "gpu_memory_error": Sign("device", ("gpu_memory_fault", "gpu_fault")),
    "gpu_error": Sign("device", ("gpu_fault", "nvlink_fault", "user_exception", "unknown")),
    "unspecified_failure": Sign("device", ("gpu_fault", "nvlink_fault", "user_exception", "unknown")),
    "gpus_of_host": Sign("device", ("host_fault", "nvlink_fault", "gpu_fault", "config_drift", "user_exception", "unknown")),
    "illegal_access": Sign("device", ("user_exception", "gpu_fault", "unknown")),
    "illegal_access_alone": Sign("device", ("user_exception", "gpu_fault", "unknown")),
    "gpu_memory_used_up": Sign("exception", ("gpu_out_of_memory",)),
    "host_memory_used_up": Sign("exception", ("host_out_of_memory",)),
    "bad_sample": Sign("exception", ("bad_sample", "user_exception", "unknown")),
    "unreadable_data": Sign("exception", ("bad_sample", "user_exception", "storage_stall", "unknown")),
    "in_data_code": Sign("exception", ("bad_sample", "user_exception", "data_stall", "unknown")),
    "checkpoint_unreadable": Sign("exception", ("checkpoint_corrupt", "storage_stall", "user_exception")),
    "not_finite": Sign("numbers", ("numeric_divergence", "silent_data_corruption", "unknown")),
    "raised": Sign("exception", ("user_exception", "unknown")),
    "storage_error": Sign("exception", ("storage_stall", "unknown")),
    "loader_timed_out": Sign("exception", ("data_stall", "storage_stall", "code_hang", "unknown")),
    "cut_off": Sign(
        "exception",
        (
            *("user_exception", "numeric_divergence", "bad_sample", "gpu_out_of_memory", "host_out_of_memory", "checkpoint_corrupt"),
            *("storage_stall", "unknown"),
        ),
    ),
    "tie": Sign("tie", ("unknown",)),
    "outlived": Sign("mention", ()),
    "followed": Sign("mention", ()),
    "elsewhere": Sign("mention", ()),
    "unplaced": Sign("mention", ()),
}

MAX_CITES = 6
MAX_QUOTED = 3  # exceptions quoted of those that followed
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|\((?:\S*/)?torch/|<frozen ")  # whose frames are no code of the job
MAX_FRAMES = 6  # shown of a traceback
_WHAT = {
    "gpu_memory_error": "its GPU reported an uncorrectable memory error",
    "gpu_error": "its GPU failed a command",
    "unspecified_failure": "a command of its GPU failed, for a reason that CUDA does not tell",
    "illegal_access": "a kernel of its own accessed memory it may not",
    "gpu_memory_used_up": "its GPU memory was used up",
    "host_memory_used_up": "host memory was used up",
    "bad_sample": "a sample could not be processed",
    "unreadable_data": "a sample could not be read",
    "in_data_code": "code that prepares samples raised",
    "checkpoint_unreadable": "a checkpoint could not be read",
    "not_finite": "a value was no longer finite",
    "raised": "its program raised",
    "storage_error": "storage refused a read or write",
    "loader_timed_out": "its data loader delivered nothing in time",
    "cut_off": "it raised, and its log is torn before the line that says what",
}


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the first exception of a rank's own; none when the logs show only consequences, or a death came first."""
    told = case.derive(story)
    if not told.logs.lines:
        raise NotEnoughEvidence("the logs here are of another job or launch")
    own = [fault for fault in told.first if fault.kind not in DEATHS]
    mentioned = [*_outlived([fault for fault in told.outlived if fault.kind not in DEATHS]), *_followed(told)]
    if own:
        found = _tie(told) if len({fault.kind for fault in told.first}) > 1 else _finding(case, told, own)
        return [found, *mentioned, *_beside(told)]
    if told.unplaced and not told.first:
        return [_unplaced(case, told), *mentioned]
    mentioned += _beside(told)
    silent = sorted((told.logs.everyone - {line.rank for line in told.logs.lines}) | told.logs.torn)
    if silent and not told.first and not mentioned:
        raise NotEnoughEvidence(
            f"no rank that was heard raised an exception of its own, but {ranks_text(silent)} left no log that could be read to its end"
        )
    return mentioned


def _own_frame(frames: Sequence[str]) -> str | None:
    """The innermost frame of the program's own code, as the traceback has it; the innermost of all where none is; None without frames."""
    return next((frame for frame in frames if not _LIBRARY.search(frame)), frames[0] if frames else None)


def _finding(case: Tables, told: Story, faults: Sequence[Fault]) -> Finding:
    """One kind of fault: of one rank, of several that name the same sample, of nearly all, or of several nobody can tell apart."""
    logs, fault = told.logs, faults[0]
    everybody = tuple(sorted({rank for f in (*faults, *_likewise(told)) for rank in f.ranks}))
    lines = [line for f in faults for line in f.lines]
    samples = sorted({s for line in lines for s in (line.sample_ids or sample_names(line.exception, line.text, line.frames))})
    same_sample = len(samples) == 1 and not told.is_everywhere
    ranks = everybody if len(faults) == 1 or (fault.kind in ("bad_sample", "unreadable_data") and same_sample) else ()
    if fault.kind == "cut_off" and not logs.everyone - set(everybody) <= logs.read_to_the_end:
        ranks = ()  # it may only follow, and so it would have said
    where = f" on {', '.join(logs.hosts_of(everybody))}" if ranks and logs.hosts_of(everybody) else ""
    says = f"{ranks_text(everybody)}{where}: {_WHAT[fault.kind]}{_quoted(fault.line)}"
    if told.is_everywhere:
        says += "; nearly all ranks raised the same at once, so no rank is to blame"
    elif not ranks:
        says += "; which of them was first is not to be told"
    elif told.victims:
        says += f"; {len(told.victims)} other ranks show only what followed from it"
    sign = _sign(case, told, fault, everybody)
    if sign == "unspecified_failure" and not _is_kernel_read(case, logs.hosts_of(everybody)):
        says += "; an Xid in the kernel log of that host would tell a broken device from a wrong kernel of the program, and none was read"
    step = next((line.step for line in lines if line.step is not None), None)
    numbers = {
        **failed(case, logs, fault.line),
        "exception": fault.line.exception,
        "raised_at": _own_frame(fault.line.frames),
        "step": step if step is not None or not ranks else step_at_end(case, ranks[0]),
        "sample_ids": samples,
        "candidates": [] if ranks or told.is_everywhere else list(everybody),
        "ordered_by": told.ordered_by,
        "zone_s": fault.line.zone_s,
    }
    return Finding(
        "first_exception", sign, says, ranks=ranks, hosts=logs.hosts_of(ranks),
        explains=tuple(sorted(logs.everyone - set(ranks))),
        scope=f"{everybody}", numbers=numbers, cites=tuple(map(cite_line, lines))[:MAX_CITES],
    )  # fmt: skip


def _sign(case: Tables, told: Story, fault: Fault, ranks: Sequence[int]) -> str:
    """The kind of the fault. Commands that several GPUs of one host alone fail at once are of what these share; and of an illegal access the kernel
    of its host knows whether the device took part, so without that log it says less."""
    hosts, everywhere = told.logs.hosts_of(ranks), told.logs.hosts_of(told.logs.everyone)
    if fault.kind in ("gpu_error", "unspecified_failure") and len(ranks) > 1 and len(hosts) == 1 < len(everywhere):
        return "gpus_of_host"
    if fault.kind == "illegal_access" and not told.is_everywhere:
        return fault.kind if _is_kernel_read(case, hosts) else "illegal_access_alone"
    return fault.kind


def _is_kernel_read(case: Tables, hosts: Sequence[str]) -> bool:
    """Whether a log of the kernel of each of these hosts, and of one at least, was read."""
    read = set(case.table("host_logs").select(pl.col("host").drop_nulls().unique()).collect()["host"].to_list())
    return bool(hosts) and set(hosts) <= read


def _outlived(over: Sequence[Fault]) -> list[Finding]:
    """Exceptions that ended nothing, for a person to know of."""
    found = []
    for sign, faults in (("outlived", [f for f in over if not f.why]), ("elsewhere", [f for f in over if f.why])):
        if not faults:
            continue
        ranks = tuple(sorted({rank for fault in faults for rank in fault.ranks}))
        line, who = faults[0].line, ranks_text(ranks) if ranks else "a rank"
        how = "tried the same again" if line.is_retried else "went on with further steps"
        says = f"{who} logged an exception and {how}, so it ended nothing{_quoted(line)}"
        if sign == "elsewhere":
            says = (
                f"{who} logged an exception that nothing dates{_quoted(line)}; {faults[0].why}: it is of another launch or job, if of any"
            )
        cites = tuple(cite_line(line) for fault in faults for line in fault.lines)[:MAX_CITES]
        found.append(Finding("first_exception", sign, says, scope=f"{sign} {ranks}", numbers={"logged_by": list(ranks)}, cites=cites))
    return found


def _likewise(told: Story) -> list[Fault]:
    """Faults that were set aside as later and are the very one that nearly all ranks have: with nobody accused, their order is of no matter."""
    alike = {(fault.kind, fault.line.exception) for fault in told.first} if told.is_everywhere else set()
    return [fault for fault in told.others if (fault.kind, fault.line.exception) in alike]


def _followed(told: Story) -> list[Finding]:
    """Exceptions of ranks' own that count for nothing, since they came after the first fault or nothing dates them before it."""
    alike = set(map(id, _likewise(told)))
    others = [fault for fault in told.others if fault.kind not in DEATHS and id(fault) not in alike]
    first = earliest(fault.line for fault in told.first)
    if not others or first is None:
        return []
    by_text: dict[str, list[int]] = {}
    for fault in others:
        by_text.setdefault(quoted(fault.line.said, 120) or "torn before it says what", []).extend(fault.ranks)
    ranks, shown = sorted({rank for fault in others for rank in fault.ranks}), list(by_text.items())[:MAX_QUOTED]
    each = "; ".join(f"{ranks_text(sorted(whose))}: {text}" if len(by_text) > 1 else text for text, whose in shown)
    each += f"; and {len(by_text) - MAX_QUOTED} more" if len(by_text) > MAX_QUOTED else ""
    when = "after" if _are_later(told, others, first) else "and nothing dates it before"
    whose_first = ranks_text(sorted({rank for fault in told.first for rank in fault.ranks}))
    says = f"{ranks_text(ranks)} raised an exception too ({each}), {when} the first fault, that of {whose_first}: "
    says += "taken for a consequence, and not counted"
    cites = tuple(cite_line(fault.line) for fault in others)[:MAX_QUOTED]
    return [Finding("first_exception", "followed", says, scope=f"followed {ranks}", numbers={"logged_by": ranks}, cites=cites)]


def _are_later(told: Story, faults: Sequence[Fault], first: Line) -> bool:
    """Whether all of these came after the first fault, by their stamps or by those of lines above them in their file."""
    wanted, passed = {id(fault.line) for fault in faults}, set[str]()  # files in which the first fault is past
    for line in told.logs.lines:  # by file and place
        if line.at is not None and told.logs.order(line, first) == 1:
            passed.add(line.evidence_id)
        if line.evidence_id in passed:
            wanted.discard(id(line))
    return not wanted


def _unplaced(case: Tables, told: Story) -> Finding:
    """An exception that no line ties to a rank: what failed is told, who is not."""
    logs, fault = told.logs, told.unplaced[0]
    kinds = sorted({other.kind for other in told.unplaced})
    line, lines = fault.line, [line for other in told.unplaced for line in other.lines]
    hosts = {line.host for line in lines}
    host = hosts.pop() if len(hosts) == 1 else None
    each = "; ".join(f"{_WHAT[other.kind]}{_quoted(other.line)}" for other in told.unplaced[:4])
    says = f"a rank{f' on {host}' if host else ''}: {each}; the log does not say which rank"
    says += "" if len(kinds) == 1 else ", nor which of these was first"
    numbers = {
        **failed(case, logs, line),
        "exception": line.exception,
        "frames": list(line.frames[:MAX_FRAMES]),
        "step": next((line.step for line in lines if line.step is not None), None),
        "candidates": _left_open(case, logs, lines, host),
    }
    return Finding(
        "first_exception", fault.kind if len(kinds) == 1 else "tie", says, hosts=(host,) if host else (), scope="no rank", numbers=numbers,
        cites=tuple(map(cite_line, lines))[:MAX_CITES],
    )  # fmt: skip


def _left_open(case: Tables, logs: JobLogs, lines: Sequence[Line], host: str | None) -> list[int]:
    """Ranks that it can be of: those of the host, less whom undated lines cannot be of; [] where nothing leaves anybody out."""
    ranks = set(logs.ranks_on(host)) if host else set(logs.everyone)
    if all(line.at is None for line in lines):
        ranks &= {rank for line in lines for rank in left_open(case, logs, line)}
    return sorted(ranks) if host or ranks < logs.everyone else []


def _beside(told: Story) -> list[Finding]:
    """Exceptions without a rank beside a fault whose rank is known; one that the log of a rank tells too is the same."""
    known = {(line.exception, line.text.strip()) for line in told.logs.lines if line.rank is not None}
    others = [fault for fault in told.unplaced if (fault.line.exception, fault.line.text.strip()) not in known]
    if not others or not told.first:
        return []
    says = f"a log that does not say of which rank tells of an exception too{_quoted(others[0].line)}"
    cites = tuple(cite_line(line) for fault in others for line in fault.lines)[:MAX_CITES]
    return [Finding("first_exception", "unplaced", says, scope="no rank beside", cites=cites)]


def _quoted(line: Line) -> str:
    return f" ({quoted(line.said, 200)})" if line.said else ""


def _tie(told: Story) -> Finding:
    """Different faults that no clock orders."""
    ranks = sorted({rank for fault in told.first for rank in fault.ranks})
    each = "; ".join(f"{ranks_text(fault.ranks)}: {fault.kind.replace('_', ' ')}" for fault in told.first[:4])
    says = f"{len(told.first)} ranks have trouble of their own, and the clocks do not tell which was first ({each})"
    cites = tuple(cite_line(fault.line) for fault in told.first)[:MAX_CITES]
    return Finding("first_exception", "tie", says, scope=f"tie {ranks}", numbers={"candidates": ranks}, cites=cites)


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
