"""Closed vocabularies: layers, causes, attributions, actions, stages. Each cause with its layer, whose it is, the first action, and how common it is.

`prior` is the share of interruptions with that cause before any evidence: a mean of published counts (Llama 3, table 5: 466 interruptions of
54 days on 16,384 GPUs; ByteRobust, table 1: 55,365 incidents of 3 months), split by hand where a source lumps causes. They sum to 1. They
matter little once a sign speaks, and they only order causes that no sign tells apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "ACTIONS",
    "ATTRIBUTIONS",
    "CAUSES",
    "LAYERS",
    "STAGES",
    "WHOLE_BUDGET_S",
    "Cause",
    "did_first",
    "is_full",
    "is_late",
    "is_stale",
    "means",
]

LAYERS: Final = ("communication", "hardware", "storage_data", "numeric", "software", "operator", "none", "unknown")
ATTRIBUTIONS: Final = ("platform", "workload", "planned", "none", "unknown")
ACTIONS: Final = ("retry", "replace", "rollback", "degrade", "shrink", "quarantine_data", "fix_code", "human", "none")
STAGES: Final[Mapping[str, float | None]] = {  # of an interruption, in order, each with its budget in s; None = no budget
    "detect": 60.0,
    "localize": 300.0,
    "queue": None,
    "replace": 120.0,
    "load": 120.0,
    "rebuild": 60.0,
    "warmup": None,
    "validate": None,
    "resume": None,
}
WHOLE_BUDGET_S: Final = 600.0  # of the whole; the parts are the sources' own figures and sum to 660


@dataclass(frozen=True)
class Cause:
    """A cause and what follows from it unless evidence says otherwise."""

    name: str
    layer: str
    attribution: str
    action: str
    prior: float
    means: str


_ALL: Final = (
    Cause("gpu_fault", "hardware", "platform", "replace", 0.13, "a GPU stopped working or fell off the bus"),
    Cause("gpu_memory_fault", "hardware", "platform", "replace", 0.08, "GPU memory errors"),
    Cause("host_fault", "hardware", "platform", "replace", 0.05, "the host misbehaves (board, CPU, memory, kernel)"),
    Cause("host_lost", "hardware", "platform", "replace", 0.03, "the whole host is gone"),
    Cause("nvlink_fault", "hardware", "platform", "replace", 0.03, "a link between GPUs of a host or rack failed"),
    Cause("slow_rank", "hardware", "platform", "replace", 0.03, "a rank computes slower than its peers"),
    Cause("network_fault", "communication", "platform", "replace", 0.06, "a network path is down or broken"),
    Cause("network_transient", "communication", "platform", "retry", 0.03, "the network failed for a moment"),
    Cause("storage_stall", "storage_data", "platform", "retry", 0.05, "reading or writing shared storage hangs"),
    Cause("data_stall", "storage_data", "platform", "retry", 0.05, "the data loader delivers no batch"),
    Cause("bad_sample", "storage_data", "workload", "quarantine_data", 0.01, "a sample that cannot be processed"),
    Cause("checkpoint_corrupt", "storage_data", "platform", "rollback", 0.01, "a checkpoint is incomplete or damaged"),
    Cause("numeric_divergence", "numeric", "workload", "rollback", 0.02, "loss or gradients are not finite, or jumped and stay high"),
    Cause(
        "silent_data_corruption",
        "numeric",
        "platform",
        "rollback",
        0.01,
        "a chip computes wrong results without an error",
    ),
    Cause("collective_mismatch", "software", "workload", "fix_code", 0.03, "ranks called different collectives"),
    Cause("user_exception", "software", "workload", "fix_code", 0.08, "an exception in the training code"),
    Cause("code_hang", "software", "workload", "fix_code", 0.10, "a rank hangs in its own code (lock, loop, wait)"),
    Cause("gpu_out_of_memory", "software", "workload", "fix_code", 0.03, "GPU memory is used up"),
    Cause("stage_imbalance", "software", "workload", "fix_code", 0.01, "a pipeline stage has more work than the others"),
    Cause("data_imbalance", "software", "workload", "fix_code", 0.01, "some ranks get longer samples"),
    Cause(
        "host_out_of_memory",
        "software",
        "workload",
        "retry",
        0.04,
        "host memory is used up and the kernel killed a process",
    ),
    Cause("process_killed", "unknown", "unknown", "retry", 0.03, "a process died; by whom is not known"),
    Cause("config_drift", "software", "platform", "human", 0.01, "a host runs other versions than its peers"),
    Cause("planned_stop", "operator", "planned", "none", 0.02, "stopped on purpose"),
    Cause("preemption", "operator", "planned", "none", 0.01, "the scheduler took the nodes"),
    Cause("healthy", "none", "none", "none", 0.02, "nothing is wrong in what was looked at"),
    Cause("unknown", "unknown", "unknown", "human", 0.02, "the evidence does not tell"),
)

CAUSES: Final[Mapping[str, Cause]] = {cause.name: cause for cause in _ALL}

_FIRST: Final[Mapping[str, str]] = {  # cause -> what its rank did before all others; where nothing better can be said it failed
    **dict.fromkeys(("code_hang", "data_stall", "storage_stall"), "stalled first"),
    **dict.fromkeys(("slow_rank", "stage_imbalance", "data_imbalance"), "slowed the job"),
    **dict.fromkeys(("user_exception", "bad_sample", "gpu_out_of_memory"), "raised first"),
    **dict.fromkeys(("process_killed", "host_out_of_memory"), "died first"),
    "host_lost": "was lost first",
    "numeric_divergence": "diverged first",
    "silent_data_corruption": "computed wrong first",
    "collective_mismatch": "made another call than its peers",
}
_NUMBERS: Final[Mapping[str, str]] = {  # end of a sign's name -> what numeric divergence is where a finding shows just that
    "not_finite": "loss or gradients are no longer finite",
    "nonfinite": "loss or gradients are no longer finite",
    "jumped": "the loss or the gradients jumped and stayed high",
    "spike": "the loss or the gradients jumped and stayed high",
}
_LOST_TOGETHER: Final = "were lost first"
_LATE: Final = frozenset({"slow_data", "data_grew", "loader_always_awaited"})  # signs by which batches come, step after step, but late
_STANDS: Final = frozenset({"job_hangs", "never_joined", "loader_timed_out"})  # signs by which the last one did not come at all
_REFUSES: Final = "shared storage refuses reads or writes"  # ranks raised of it, and hang nowhere
_COMES_LATE: Final = "the data loader delivers its batches late"


_FULL: Final = re.compile(r"(?i)no space left on|disk quota exceeded|\berrno (?:28|122)\b|\bENOSPC\b|\bEDQUOT\b")


def is_full(texts: Iterable[str]) -> bool:
    """Whether storage has no room left, by what was said of it."""
    return any(_FULL.search(text) for text in texts)


_STALE: Final = re.compile(r"(?i)\bstale (?:nfs )?file handle|\berrno 116\b|\bESTALE\b")


def is_stale(texts: Iterable[str]) -> bool:
    """Whether handles of files are stale, by what was said: what the server forgot stays so when it answers again."""
    return any(_STALE.search(text) for text in texts)


def is_late(signs: Iterable[str]) -> bool:
    """Whether batches come late, by the signs (names) of the findings; a loader that delivers none is not late."""
    shown = frozenset(signs)
    return bool(shown & _LATE) and not shown & _STANDS


def means(cause: str, signs: Sequence[str]) -> str:
    """What a cause means, as far as the signs (names) of the findings show which of its forms it is."""
    if cause == "data_stall" and is_late(signs):
        return _COMES_LATE
    if cause == "storage_stall" and "storage_error" in signs:
        return _REFUSES
    shown = [sign.removesuffix("_local").removesuffix("_global") for sign in signs] if cause == "numeric_divergence" else []
    return next((words for end, words in _NUMBERS.items() if any(sign.endswith(end) for sign in shown)), CAUSES[cause].means)


def did_first(cause: str, count: int, *, has_no_room: bool = False, comes_late: bool = False) -> str:
    """What ranks (or hosts), `count` of them, did before all others, in words that fit the cause: "stalled first". `has_no_room` = storage full,
    `comes_late` = the batches do."""
    if cause == "data_stall" and comes_late:
        return _FIRST["slow_rank"]
    if cause == "storage_stall" and has_no_room:
        return "ran out of storage first"
    return _LOST_TOGETHER if cause == "host_lost" and count > 1 else _FIRST.get(cause, "failed first")
