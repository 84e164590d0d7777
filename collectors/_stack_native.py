"""What the C frames above the first Python frame wait for: the only frames in which a lock, a sleep or the store shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["NATIVE_ABORT", "NATIVE_INIT", "any_of", "native_wait"]

NATIVE_NEAR = 8  # native frames between the wait of the C library and the function that tells its reason
NEAR_LEAF = 4  # frames in which an unresolved address of a device library counts


def any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


NATIVE_ABORT: Final = any_of(
    r"ncclComm(Abort|Destroy|Finalize)|NCCLComm::(abort|destroy|finalize)|ProcessGroup\w+::(abort|shutdown)\w*|~ProcessGroup|commReclaim"
)
NATIVE_INIT: Final = any_of(
    r"ncclComm(Init|Split)|NCCLComm::(create|split)|initNCCLComm|bootstrapInit|initTransportsRank|ncclTransport\w+Setup",
    r"[cC]ommInitRank|connectFullMesh|xcclCommInit|HcclCommInit|mcclCommInit|rcclCommInit",
)
_NATIVE_SERVICE: Final = any_of(
    r"ncclProxy(Service|Progress|Get|Main)|ncclIbAsync|ibv_get_async_event|ThreadPool::main_loop|ncclCommWatchdog|[hH]eartbeatMonitor",
    r"workCleanupLoop|ReadyQueue::pop|transport::\w+::Loop::run|TCPStore\w*Daemon|BackgroundThread::run|uv__io_poll|blas_thread_server",
    r"gomp_(thread_start|team_barrier|barrier)|__kmp_\w+|cuda_?EvtHandl|Watchdog::run|runLoop|rdma_get_cm_event",
)
_NATIVE_STRONG: Final = (
    ("store", any_of(r"(TCP|File|Hash|Prefix|Etcd)Store::|TCPClient::|c10d::Store::")),
    (
        "p2p",
        any_of(r"(ProcessGroup\w+|c10d::ops)::(send|recv|Send|Recv)|ncclSend|ncclRecv|(Send|Recv)Work::wait|MPI_(Send|Recv)"),
    ),
    (
        "collective",
        any_of(
            r"c10d::Reducer::finalize_backward",
            r"c10d::Work::wait|c10d::ops::|ProcessGroup\w+::|Work(NCCL|Gloo)::|gloo::(all|broadcast|barrier|reduce|gather|scatter)",
            r"p?nccl(AllReduce|AllGather|Broadcast|ReduceScatter|Reduce|GroupEnd)|P?MPI_(All|Bcast|Barrier|Reduce)",
        ),
    ),
    (
        "cuda_sync",
        any_of(
            r"(cuda|hip|cu|musa|aclrt)(Stream|Device|Event|Ctx|Thread)?_?(Synchronize|synchronize)|(cuda|cu|hip)Memcpy|local_scalar_dense",
            r"stream_synchronize|hsa_signal_wait|(cuda|cu|hip)(Free|Malloc|Launch|EventQuery|HostAlloc)|copy_kernel_cuda|item\(\)",
        ),
    ),
    ("rpc", any_of(r"grpc(_core)?::|grpc_completion_queue|brpc::|tensorpipe::")),
)
_DEVICE_LIBRARY: Final = any_of(r"^lib(cuda|cudart|amdhip64|hsa-runtime64|ascendcl|musa)\b")
_NATIVE_WEAK: Final = (
    (
        "lock",
        any_of(
            r"lll_lock_wait|pthread_mutex_(lock|timedlock)|pthread_rwlock|mutex::lock|PyThread_acquire_lock|take_gil|sem_(timed|clock)?wait",
            r"PyEval_RestoreThread|PyGILState_Ensure|PyMutex_Lock|gthread_mutex_lock",
        ),
    ),
    ("process_join", any_of(r"^(_+\w*?)?(waitpid|wait4|waitid)")),
    ("sleep", any_of(r"nanosleep|usleep|time_sleep|pysleep|^_*sleep")),
    (
        "queue",
        any_of(r"pthread_cond_(timed|clock)?wait|condition_variable|futex_wait_cancelable|futex_abstimed_wait|^_*(GI_+)?p?poll$"),
    ),
    ("queue", any_of(r"epoll_p?wait|^_*(GI_+)?p?select(64)?$|do_futex_wait")),
    (
        "io",
        any_of(
            r"^_*(libc_|GI_+|internal_)*(p?read|p?write|fsync|fdatasync|recv|recvfrom|recvmsg|send|sendto|sendmsg|open|openat|creat|f?stat\w*|"
            r"lstat\w*|getdents|connect|accept4?|copy_file_range|fallocate|ftruncate|lseek|preadv|pwritev|close|rename|unlink)(64)?v?2?"
            r"(_nocancel)?$"
        ),
    ),
)


def native_wait(natives: Sequence[tuple[str, str]]) -> tuple[str | None, bool]:
    """What these (library, function) pairs wait for, and whether that outranks the Python frames below them."""
    text = "\n".join(function for _, function in natives)
    if NATIVE_ABORT.search(text):
        return "comm_abort", True
    if NATIVE_INIT.search(text):
        return "comm_init", True
    if _NATIVE_SERVICE.search(text):
        return "idle", True
    for kind, pattern in _NATIVE_STRONG:
        if pattern.search(text):
            return kind, kind != "cuda_sync"  # a collective may block in a device call; Python says which
    near = natives[:NATIVE_NEAR]
    if any(_DEVICE_LIBRARY.search(module) for module, _ in near[:NEAR_LEAF]):
        return "cuda_sync", False
    for kind, pattern in _NATIVE_WEAK[:2]:
        if any(pattern.search(function) for _, function in near):
            return kind, False
    for _, function in near:
        for kind, pattern in _NATIVE_WEAK:
            if pattern.search(function):
                return kind, False
    return None, False
