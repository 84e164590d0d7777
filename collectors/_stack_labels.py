"""The two labels of a stack: what the program does, and what it waits for. Both lists are closed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from collectors._stack_activity import Frame, activity_of, is_wrapper
from collectors._stack_native import native_wait
from collectors._stack_wait import blocking_wait, communication_wait, is_idle_leaf, python_wait

__all__ = ["ACTIVITIES", "WAIT_KINDS", "labels", "named_as_service"]

ACTIVITIES: Final = (
    "train_step",
    "eval",
    "checkpoint",
    "compile",
    "dataloader",
    "import",
    "init",
    "teardown",
    "inference",
    "profiler",
    "agent",
    "side_thread",
    "unknown",
)
WAIT_KINDS: Final = (
    "collective",
    "p2p",
    "comm_init",
    "comm_abort",
    "store",
    "lock",
    "queue",
    "cuda_sync",
    "process_join",
    "rpc",
    "io",
    "sleep",
    "idle",
    "none",
    "unknown",
)


def labels(frames: Sequence[Frame]) -> tuple[str, str]:
    """(activity, wait_kind) of a stack whose frames are canonical and innermost first."""
    first = next((i for i, frame in enumerate(frames) if not frame.native), len(frames))
    natives, informative = frames[:first], [frame for frame in frames[first:] if not is_wrapper(frame)]
    names = "\n".join(frame.function for frame in natives)
    side = any(frame.key.startswith("threading:_bootstrap") for frame in frames)
    pythons = [frame for frame in informative if not frame.native]
    activity = activity_of([*natives, *informative], names)
    native, outranks = native_wait([(frame.module, frame.function) for frame in natives])
    wait = native if native and outranks else None
    wait = wait or communication_wait(pythons) or (native if native == "cuda_sync" else None)
    wait = wait or blocking_wait(pythons, side=side) or native
    wait = wait or (python_wait(pythons, activity) if pythons else "unknown")
    if pythons and wait == "sleep" and is_idle_leaf(pythons[0]):
        wait = "idle"
    return _settle(activity, wait, side=side, service=native == "idle" or wait == "idle", pythons=pythons)


_TELLS: Final = frozenset(("collective", "p2p", "comm_init", "comm_abort", "store", "cuda_sync", "rpc"))


def _settle(activity: str, wait: str, *, side: bool, service: bool, pythons: Sequence[Frame]) -> tuple[str, str]:
    """A thread beside the main one without an activity of its own is a side thread, and idle when it only waits for work."""
    if activity == "agent":
        return activity, wait if wait in ("store", "collective", "process_join", "rpc") else "idle"
    if activity == "unknown" and wait not in _TELLS and (side or (service and not _in_event_loop(pythons))):
        return "side_thread", "idle" if wait in ("queue", "idle") and not any(f.function == "put" for f in pythons[:3]) else wait
    return activity, wait


def _in_event_loop(pythons: Sequence[Frame]) -> bool:
    """A main thread may itself run the event loop; then nothing says that it is a side thread."""
    return any(frame.module.startswith("asyncio/") for frame in pythons)


_SERVICE_NAME: Final = re.compile(
    r"^(pt_(nccl|gloo|autograd|tcpstore|workerserver|dist_engine|data_pin)|gloo_|nccl|NCCL|cuda-?[eE]vt|cuda[0-9]|tqdm|wandb|QueueFeeder|"
    r"asyncio_|grpc|jemalloc|iou-|dispatcher|openblas|OpenMP|omp)"
)


def named_as_service(thread_name: str | None) -> bool:
    """A library gave the thread this name, and such threads serve it."""
    return thread_name is not None and _SERVICE_NAME.match(thread_name) is not None
