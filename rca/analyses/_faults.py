"""Which rank's own trouble came first in the logs: exceptions and deaths of its own, told apart from mere consequences of another's.

1. Lines that only ever follow another fault (closed connections, time-outs, watchdogs, SIGTERM after a closing signal, aborts, launchers'
   reports of failed children) accuse nobody, however early they are. So does an exception that communication raised.
2. What is left is a fault of the rank's own, of a kind. The kernel's record that it killed a rank's process for memory is one too. An
   exception that the rank outlived (it made further steps, or tried the same again) is none. One that a log tells without its rank is
   nobody's, and not nothing.
3. A fault after the job was told to stop belongs to the stop: the process was still there to be closed, or the fault is later.
4. The first is the one that is earlier than all others outside the error of the clocks; else the one of the highest class (kernel record,
   device, death, own exception, storage); else it is a tie. The same exception on nearly all ranks accuses nobody.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from heapq import nsmallest
from typing import Final

from rca.analyses._alive import ENDS, LOST, TIMED_OUT, is_unharmed, went_on
from rca.analyses._elsewhere import why_elsewhere
from rca.analyses._job_logs import JobLogs, Line, job_logs
from rca.analyses._memory_kills import memory_kills
from rca.analyses._sample_names import IN_DATA, is_unreadable
from rca.analyses._stops import Stop, earliest, stop_of
from rca.types import Tables

__all__ = ["DEATHS", "TIMED_OUT", "Fault", "Story", "complains", "is_consequence", "kind_of", "story"]

DEATHS: Final = ("killed_for_memory", "killed", "bus_error", "crashed", "loader_killed", "host_lost")
# kind -> class: what stands higher explains what stands lower, unless it is later
CLASS: Final[Mapping[str, int]] = {
    "killed_for_memory": 0,
    "host_lost": 0,
    "gpu_memory_error": 1,
    "gpu_error": 1,
    "unspecified_failure": 1,
    "illegal_access": 1,
    "killed": 2,
    "bus_error": 2,
    "crashed": 2,
    "loader_killed": 2,
    "gpu_memory_used_up": 3,
    "host_memory_used_up": 3,
    "bad_sample": 3,
    "unreadable_data": 3,
    "in_data_code": 3,
    "checkpoint_unreadable": 3,
    "not_finite": 3,
    "raised": 3,
    "storage_error": 4,
    "loader_timed_out": 4,
    "cut_off": 5,
}
OUTLIVABLE: Final = 3  # class from which on a program can catch a fault and go on
MAX_COMPARED: Final = 32  # earliest faults that each other one is compared with
KILL_WAIT: Final = timedelta(seconds=60)  # from a scheduler's SIGTERM to the end of a job that ignores it (Slurm: KillWait, 30 s) and some
EVERYWHERE: Final = 0.75  # of the ranks with a log: a fault of one part does not raise the same on all of them at once

BY_SIGNATURE: Final[Mapping[str, str]] = {
    "cuda_ecc": "gpu_memory_error",
    "cuda_contained": "gpu_error",
    "cuda_launch_failure": "unspecified_failure",  # a wrong kernel of the program fails so too: only an Xid tells
    "cuda_unknown_error": "unspecified_failure",
    "gpu_handle_lost": "gpu_error",
    "cuda_illegal_access": "illegal_access",
    "cuda_oom": "gpu_memory_used_up",
    "host_out_of_memory": "host_memory_used_up",
    "shm_full": "storage_error",
    "storage_timeout": "storage_error",
}
BY_SIGNAL: Final[Mapping[str, str]] = {
    "SIGKILL": "killed",
    "SIGBUS": "bus_error",
    "SIGSEGV": "crashed",
    "SIGILL": "crashed",
    "SIGFPE": "crashed",
}  # SIGABRT is what watchdogs and communication libraries do to their own process; SIGTERM and SIGINT ask it to stop
OF_MEMORY: Final = re.compile(r"(?i): out of memory\s*$")
SIGNAL_OF_CODE: Final[Mapping[int, str]] = {
    -9: "SIGKILL",
    137: "SIGKILL",
    -7: "SIGBUS",
    135: "SIGBUS",
    -11: "SIGSEGV",
    139: "SIGSEGV",
    -4: "SIGILL",
    -8: "SIGFPE",
}

NEVER_OWN: Final = re.compile(
    r"ChildFailed|SignalException|KeyboardInterrupt|SystemExit|Rendezvous|Dist(?:Backend|Store|Network|Timeout)?Error$"
)
PROGRAM: Final = re.compile(r"(?:Value|Type|Key|Index|Attribute|Assertion|Name|Import|ModuleNotFound|ZeroDivision|Unicode\w*)Error$")
COMMUNICATION: Final = re.compile(
    r"(?i)connection (?:was )?(?:reset|closed|refused|aborted|lost)|broken pipe|timed out waiting|socket timeout|gloo|nccl|processgroup"
    r"|tcpstore|watchdog|closed by|remote (?:process|worker)|communicator|rendezvous|heartbeat"
)
IN_COMMUNICATION: Final = re.compile(r"distributed_c10d|c10d_logger|torch/distributed/(?!checkpoint|elastic/multiprocessing)")
IN_STORAGE: Final = re.compile(r"(?i)urllib3|requests/|botocore|boto3|s3fs|gcsfs|fsspec|aiohttp|azure|hdfs|smart_open")
NO_STORAGE: Final = re.compile(
    r"(?i)no space left|disk quota|stale file handle|input/output error|read-only file system|errno (?:5|28|30|116|122)\b"
)
IN_LOAD: Final = re.compile(
    r"(?i)load_state|load_checkpoint|checkpoint\w*:load|torch/serialization|safetensors|load_model|_load\b|restore|resume|distributed/checkpoint"
)
UNREADABLE: Final = re.compile(
    r"(?i)unexpected (?:eof|end of)|pytorchstreamreader|central directory|checksum|crc|corrupt|truncat|invalid (?:header|magic|load key)"
    r"|missing key|unexpected key|missing (?:shard|tensor|file)|no such file|incomplete|hash mismatch|deserializ|header too (?:large|small)"
)
LOADER_TIMED_OUT: Final = re.compile(r"(?i)dataloader timed out")


@dataclass(frozen=True)
class Fault:
    """Trouble of its own of one rank (or of several, where one machine carries them)."""

    kind: str
    ranks: tuple[int, ...]
    line: Line  # the line that shows it first
    lines: tuple[Line, ...]  # all that show it
    why: str = ""  # it ended nothing of this launch, where another reason than that its rank went on tells so


@dataclass(frozen=True)
class Story:
    """What the logs tell of the order of faults."""

    logs: JobLogs
    stop: Stop
    first: tuple[Fault, ...]  # one, or several that cannot be told apart
    is_everywhere: bool  # the first stands for nearly all ranks alike
    others: tuple[Fault, ...]  # later ones, and those after the stop
    victims: tuple[int, ...]  # ranks whose logs show consequences, and only these
    outlived: tuple[
        Fault, ...
    ] = ()  # exceptions after which their ranks went on; and ends without an instant that are none of this launch's
    unplaced: tuple[Fault, ...] = ()  # exceptions that a log tells without their rank (`ranks` is empty): the first, or several as early

    @property
    def ordered_by(self) -> str | None:
        """ "clock" where it is the clocks alone that put the first fault before one of no lower class; None: its class did, or its file."""
        if len(self.first) != 1:
            return None
        fault = self.first[0]
        rivals = (other.line for other in self.others if CLASS[other.kind] <= CLASS[fault.kind])
        return "clock" if any(self.logs.is_earlier_by_clock(fault.line, line) for line in rivals) else None

    @property
    def not_seen_to_end_well(self) -> tuple[int, ...]:
        """Ranks that no log says have finished, sorted."""
        well = {line.rank for line in self.logs.lines if line.signature == "worker_finished" or line.exit_code == 0}
        return tuple(sorted(self.logs.everyone - well))


def is_consequence(line: Line) -> bool:
    """Whether an exception can only follow from another rank's trouble: communication raised it, or the process was told to end."""
    name = line.exception or ""
    if NEVER_OWN.search(name):
        return True
    if PROGRAM.search(name):
        return False
    if any(IN_COMMUNICATION.search(frame) for frame in line.frames[:4]):
        return True
    return bool(COMMUNICATION.search(line.text)) and not any(IN_STORAGE.search(frame) for frame in line.frames)


def complains(line: Line) -> bool:
    """Whether a line says that its rank waited for another one in vain."""
    return line.signature in TIMED_OUT | LOST or (line.signature == "python_traceback" and is_consequence(line))


def kind_of(line: Line) -> str | None:
    """The kind of a fault of its own that a line shows; None where it shows none."""
    if line.signature in BY_SIGNATURE:
        return BY_SIGNATURE[line.signature]
    if line.signature == "dataloader_worker_killed":
        return "bus_error" if line.signal == "SIGBUS" else "loader_killed"
    if line.signature == "slurm_task_exit" and line.rank is not None and OF_MEMORY.search(line.text):
        return "killed_for_memory"  # by the limit of its step's cgroup, srun says
    if line.signature in ENDS:
        return BY_SIGNAL.get(line.signal or SIGNAL_OF_CODE.get(line.exit_code or 0, ""))
    if line.signature == "loss_nan":
        return "not_finite" if line.exception else None
    if line.signature == "python_traceback" and not is_consequence(line):
        return _kind_of_exception(line)
    if line.signature in ("nccl_socket_closed", "nccl_connect_refused") and any(IN_STORAGE.search(frame) for frame in line.frames):
        return "storage_error"  # the other end of the connection was an object store
    return None


def _kind_of_exception(line: Line) -> str:
    if line.exception is None and not line.text.strip():
        return "cut_off"  # a traceback without its last line
    where, text = " ".join(line.frames), f"{line.exception or ''} {line.text}"
    if line.exception == "MemoryError":
        return "host_memory_used_up"
    if LOADER_TIMED_OUT.search(text):
        return "loader_timed_out"
    if NO_STORAGE.search(text) or IN_STORAGE.search(where):
        return "storage_error"
    if IN_LOAD.search(where) and UNREADABLE.search(text):
        return "checkpoint_unreadable"
    if line.sample_ids:
        return "bad_sample"
    if is_unreadable(line.exception, line.text, line.frames):
        return "unreadable_data"
    if line.exception == "FloatingPointError":
        return "not_finite"
    return "in_data_code" if any(IN_DATA.search(frame) for frame in line.frames[:6]) else "raised"


def story(case: Tables) -> Story:
    """The order of faults as the logs and the kernel's memory records tell it."""
    logs = case.derive(job_logs)
    stop = stop_of(logs)
    own, outlived = _by_rank(case, logs)
    unplaced, over = _without_rank(case, logs)
    early = [fault for fault in unplaced if not _belongs_to_stop(fault, stop, logs)]
    faults = [*own, *_killed_for_memory(case, logs), *_lost_hosts(logs)]
    before = [fault for fault in faults if not _belongs_to_stop(fault, stop, logs)]
    merged = _one_per_rank(before, logs)
    first, everywhere = _first(merged, logs)
    shown = {rank for fault in first for rank in fault.ranks}
    others = tuple(fault for fault in faults if not set(fault.ranks) <= shown)
    hurt = {line.rank for line in logs.lines if line.rank is not None and (line.exit_code or line.signal or complains(line))}
    return Story(logs, stop, first, everywhere, others, tuple(sorted(hurt - shown)), (*outlived, *over), _first(early, logs)[0])


def _by_rank(case: Tables, logs: JobLogs) -> tuple[list[Fault], list[Fault]]:
    """Faults that log lines show, and those that their ranks outlived: of each rank and kind one."""
    found: dict[tuple[str, int], list[Line]] = defaultdict(list)
    outlived: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in logs.lines:
        kind = kind_of(line) if line.rank is not None else None
        if kind is not None and line.rank is not None:
            (outlived if _is_over(case, logs, line, kind) else found)[kind, line.rank].append(line)
    faults = [_fault(kind, (rank,), lines) for (kind, rank), lines in sorted(found.items())]
    return faults, [_over(case, logs, kind, (rank,), lines) for (kind, rank), lines in sorted(outlived.items())]


def _without_rank(case: Tables, logs: JobLogs) -> tuple[list[Fault], list[Fault]]:
    """Exceptions of lines that tell no rank, as in one file of all ranks without labels, and those that the job outlived: of each file and kind
    one. How processes end is left to lines that say which."""
    found: dict[tuple[str, str], list[Line]] = defaultdict(list)
    over: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in logs.lines:
        kind = kind_of(line) if line.rank is None and line.table == "log_events" else None
        if kind is not None and kind not in DEATHS:
            (over if _is_over(case, logs, line, kind) else found)[kind, line.evidence_id].append(line)
    faults = [_fault(kind, (), lines) for (kind, _), lines in sorted(found.items())]
    return faults, [_over(case, logs, kind, (), lines) for (kind, _), lines in sorted(over.items())]


def _is_over(case: Tables, logs: JobLogs, line: Line, kind: str) -> bool:
    """Whether a fault ended nothing: the rank went on, or what a program can catch was tried again (a last try says so).

    A device's error stays with its process, where every further call fails. Steps that are printed do not disprove it, only a rank that computes
    on in a job that moves and complains of nothing: the error was of a process before it. So was an end that nothing dates where what was seen of the
    job leaves no place for it (`_elsewhere`).
    """
    if (kind not in DEATHS or line.signature in ENDS) and why_elsewhere(case, logs, line) is not None:
        return True
    if CLASS[kind] >= OUTLIVABLE:
        return line.is_retried or went_on(case, logs, line)
    return kind not in DEATHS and is_unharmed(case, logs, line)


def _fault(kind: str, ranks: tuple[int, ...], lines: Sequence[Line]) -> Fault:
    first = earliest(lines)
    assert first is not None
    return Fault(kind, ranks, first, tuple(lines))


def _over(case: Tables, logs: JobLogs, kind: str, ranks: tuple[int, ...], lines: Sequence[Line]) -> Fault:
    fault = _fault(kind, ranks, lines)
    return replace(fault, why=why_elsewhere(case, logs, fault.line) or "")


def _killed_for_memory(case: Tables, logs: JobLogs) -> list[Fault]:
    """Ranks whose very process, or loader worker, the kernel says it killed for memory (`_memory_kills`)."""
    return [_fault("killed_for_memory", (line.rank,), [line]) for line in memory_kills(case, logs) if line.rank is not None]


def _lost_hosts(logs: JobLogs) -> list[Fault]:
    """Hosts that the scheduler says have failed, with all their ranks."""
    found: dict[tuple[int, ...], list[Line]] = defaultdict(list)
    for line in logs.lines:
        if line.signature in ("node_failure", "slurm_node_failure") and (ranks := logs.ranks_on(line.host)):
            found[ranks].append(line)
    return [_fault("host_lost", ranks, lines) for ranks, lines in sorted(found.items())]


def _belongs_to_stop(fault: Fault, stop: Stop, logs: JobLogs) -> bool:
    """Whether a fault only came with the end of the job: the launcher still had the process to close, or the fault is later.

    A launcher also closes the workers beside one that failed, so a fault of a closed worker counts only when it is clearly earlier.
    """
    if stop.began is None:
        return False
    told = logs.order(fault.line, stop.began)
    if fault.kind == "killed" and stop.began.table == "job_records" and fault.line.at is not None and stop.began.at is not None:
        return fault.line.at >= stop.began.at - KILL_WAIT  # accounting tells when all was over, not when the scheduler began to kill
    pids = {pid for rank in fault.ranks for pid in logs.pids.get(rank, ())} | {line.pid for line in fault.lines if line.pid is not None}
    if not pids & stop.closed_pids:
        return told == 1 and not stop.closed_pids
    if fault.kind in DEATHS and fault.kind != "loader_killed":
        return True
    if told is not None:
        return told >= 0
    return fault.line.at is None or stop.began.at is None or fault.line.at >= stop.began.at


def _one_per_rank(faults: Iterable[Fault], logs: JobLogs) -> list[Fault]:
    """Of several faults of one rank that of the highest class, with the lines of all: an exception and the death it led to are one."""
    by_ranks: dict[tuple[int, ...], list[Fault]] = defaultdict(list)
    for fault in faults:
        by_ranks[fault.ranks].append(fault)
    found = []
    for ranks, all_faults in sorted(by_ranks.items()):
        best = min(all_faults, key=lambda f: (CLASS[f.kind], f.kind == "raised", f.kind))
        lines = [*best.lines, *(line for fault in all_faults if fault is not best for line in fault.lines)]
        found.append(Fault(best.kind, ranks, best.line, tuple(lines)))
    lost = {rank for fault in found if fault.kind == "host_lost" for rank in fault.ranks}
    return [fault for fault in found if fault.kind == "host_lost" or not set(fault.ranks) <= lost]


def _first(faults: Sequence[Fault], logs: JobLogs) -> tuple[tuple[Fault, ...], bool]:
    """The first fault, or those that cannot be told apart; and whether they are one and the same on nearly all ranks."""
    alike: dict[tuple[str, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        alike[fault.kind, fault.line.exception or fault.line.signature].append(fault)
    heard = {line.rank for line in logs.lines if line.rank is not None}
    for group in alike.values():
        if len(group) >= max(2, EVERYWHERE * len(heard)) and 2 * len(heard) >= len(logs.everyone):
            return tuple(group), True
    dated = nsmallest(MAX_COMPARED, (fault for fault in faults if fault.line.at is not None), key=lambda fault: fault.line.at)  # type: ignore[arg-type, return-value]
    candidates = [f for f in faults if not any(logs.order(other.line, f.line) == -1 for other in dated if other is not f)] or list(faults)
    highest = min((CLASS[fault.kind] for fault in candidates), default=0)
    return tuple(fault for fault in candidates if CLASS[fault.kind] == highest), False
