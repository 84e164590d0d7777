"""What a job's processes print when something is wrong: watchdogs, closed connections, CUDA errors, launchers' reports. Text alone.

Shapes: torch (ProcessGroupNCCL.cpp, TCPStore.cpp, elastic), NCCL (net_ib, socket, proxy), gloo. `<<...>>` tokens are stamps (_logbook.py).
Which lines a rank prints, and when, is the affair of _aftermath.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Call", "Torch", "cuda_error", "drawn_torch", "network_error", "signals", "traceback", "uncaught"]

Era = Literal["2.1", "2.3", "2.5", "2.8"]
CUDA_TAIL: Final = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)
SIGNAMES: Final = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True)
class Call:
    """A collective as the watchdog names it."""

    group_id: int
    group_desc: str
    group_rank: int
    seq: int
    op: str  # ALLREDUCE, _ALLGATHER_BASE, ...
    numel: int


@dataclass(frozen=True)
class Torch:
    """One version of torch and its settings, in the words of its watchdog."""

    era: Era
    timeout_s: int

    def _where(self, call: Call) -> str:
        if self.era in ("2.5", "2.8"):
            return f"[PG ID {call.group_id} PG GUID {call.group_id}({call.group_desc}) Rank {call.group_rank}]"
        return f"[PG {call.group_id} Rank {call.group_rank}]" if self.era == "2.3" else f"[Rank {call.group_rank}]"

    def _glog(self, rank: int, level: str, line: int) -> str:
        if self.era == "2.1":
            return f"[{level} ProcessGroupNCCL.cpp:{line}] "
        return f"[rank{rank}]:[{level}<<glog>> ProcessGroupNCCL.cpp:{line}] "

    def timed_out(self, rank: int, call: Call, rng: random.Random) -> list[str]:
        """The call ran longer than its time-out: what the watchdog says, at once and after it."""
        where = self._where(call)
        lines = [self._glog(rank, "E", 632) + self.caught(call, rng.randrange(5, 99))]
        if self.era == "2.8":
            state = f"last enqueued work: {call.seq}, last completed work: {call.seq - 1}"
            lines.append(
                self._glog(rank, "E", 2268) + f"{where}  failure detected by watchdog at work sequence id: {call.seq} PG status: {state}"
            )
        elif self.era != "2.1":
            state = f"last enqueued NCCL work: {call.seq}, last completed NCCL work: {call.seq - 1}."
            lines.append(
                self._glog(rank, "E", 1785)
                + f"{where} Exception (either an error or timeout) detected by watchdog at work: {call.seq}, {state}"
            )
        return lines

    def caught(self, call: Call, late_ms: int) -> str:
        """The sentence of a time-out, said again wherever its exception goes."""
        limit = self.timeout_s * 1000
        work = f"WorkNCCL(SeqNum={call.seq}, OpType={call.op}, NumelIn={call.numel}, NumelOut={call.numel}, Timeout(ms)={limit})"
        ran = f"ran for {limit + late_ms} milliseconds before timing out."
        return f"[Rank {call.group_rank}] Watchdog caught collective operation timeout: {work} {ran}"

    def torn_down(self, rank: int, call: Call, why: str) -> list[str]:
        """The watchdog ends the process for it."""
        where = self._where(call)
        consistency = (
            "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations"
        )
        return [
            self._glog(rank, "E", 685) + f"{where if self.era != '2.1' else ''}{consistency} might run on corrupted/incomplete data.",
            self._glog(rank, "E", 699) + "To avoid data inconsistency, we are taking the entire process down.",
            self._glog(rank, "E", 1901) + f"{where} Process group watchdog thread terminated with exception: {why}",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            f"  what():  {where} Process group watchdog thread terminated with exception: {why}",
        ]

    def asked_to_dump(self, rank: int, call: Call, by: int) -> list[str]:
        """The word of a time-out elsewhere has come."""
        who = "this local rank" if by == rank else f" rank {by}"
        state = f"Last enqueued NCCL work: {call.seq}, last completed NCCL work: {call.seq - 1}."
        text = f"Received a dump signal due to a collective timeout from {who} and we will try our best to dump the debug info."
        return [self._glog(rank, "E", 1682) + f"{self._where(call)} {text} {state}"]

    def stuck(self, rank: int, call: Call, seconds: int) -> list[str]:
        """The heartbeat monitor sees that the watchdog itself does not move."""
        text = f"ProcessGroupNCCL's watchdog got stuck for {seconds} seconds without making progress in monitoring enqueued collectives. "
        text += "This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, "
        text += "and could be triggered by another thread holding the GIL inside a CUDA api"
        return [self._glog(rank, "E", 1487) + f"{self._where(call)} {text}"]

    def store_gone(self, rank: int, host: str) -> list[str]:
        """The key-value store's host has gone away."""
        socket = f"SocketImpl(fd=67, addr=[{host}]:36214, remote=[{host}]:29500)"
        where = f"[rank{rank}]:[W<<glog>> ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        why = "(maybe TCPStore server has shut down too early), with error: Broken pipe"
        return [
            f"[rank{rank}]:[W<<glog>> TCPStore.cpp:106] [c10d] sendBytes failed on {socket}: Broken pipe",
            f'{where} Failed to check the "should dump" flag on TCPStore, {why}',
        ]


def drawn_torch(rng: random.Random) -> Torch:
    """Some version with the usual time-outs."""
    return Torch(rng.choice(("2.1", "2.3", "2.5", "2.5", "2.8")), rng.choice((600, 600, 1800, 1200)))


def traceback(error: str, frames: Sequence[tuple[str, str, int]], *, prefix: str = "") -> list[str]:
    """An uncaught exception; `frames`: (file, function, line), outermost first. torch prefixes each line with the rank since 2.4."""
    lines = ["Traceback (most recent call last):"]
    for file, function, line in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {_statement(function)}"]
    return [prefix + line for line in [*lines, *error.split("\n")]]


def _statement(function: str) -> str:
    return {"<module>": "main()", "main": "trainer.train()", "train": "loss = self.train_step(batch)"}.get(
        function, "return fn(*args, **kwargs)"
    )


def uncaught(rank: int, era: Era) -> str:
    """Prefix of an uncaught exception's lines."""
    return f"[rank{rank}]: " if era in ("2.5", "2.8") else ""


def cuda_error(what: str) -> str:
    """The text of a CUDA error as torch raises it."""
    return "\n".join((f"RuntimeError: CUDA error: {what}", *CUDA_TAIL))


def network_error(kind: str, rng: random.Random, *, host: str, pid: int, local: int, peer: str, port: int) -> list[str]:
    """NCCL's own lines. retry: no acknowledgement from a peer; flush: what follows; closed: the other end is gone; async: the port."""
    head = f"{host}:{pid}:{pid + 410} [{local}]"
    if kind == "retry":
        status = f"status=12 opcode={rng.choice((0, 32616))} len=0 vendor err 129 ({rng.choice(('Send', 'Recv'))})"
        return [
            f"{head} transport/net_ib.cc:2208 NCCL WARN NET/IB: Got completion from peer {peer}<{port}> with {status}",
            f"{head} NCCL INFO transport/net.cc:1302 -> 6",
            f"{head} NCCL INFO proxy.cc:698 -> 6",
        ]
    if kind == "flush":
        status = "status=5 opcode=0 len=0 vendor err 249 (Recv)"
        return [f"{head} transport/net_ib.cc:2208 NCCL WARN NET/IB: Got completion from peer {peer}<{port}> with {status}"]
    if kind == "async":
        return [f"{head} transport/net_ib.cc:99 NCCL WARN NET/IB : mlx5_{local}:1 Got async event : port error"]
    if kind == "back":
        return [f"{head} transport/net_ib.cc:99 NCCL WARN NET/IB : mlx5_{local}:1 Got async event : port active"]
    return [
        f"{head} misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer {peer}<{port}>",
        f"{head} NCCL INFO misc/socket.cc:80 -> 6",
    ]


def signals(code: int) -> str:
    """SIGKILL of -9."""
    return SIGNAMES[-code]


def siblings_stopped(pids: Sequence[int], agent_pid: int, *, is_new: bool) -> list[str]:
    """A launcher stops its other workers."""
    if is_new:
        head = f"W<<slash>> {agent_pid} torch/distributed/elastic/multiprocessing/api.py:900]"
        return [f"{head} Sending process {pid} closing signal SIGTERM" for pid in pids]
    return [f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {pid} closing signal SIGTERM" for pid in pids]


def child_failed(agent_pid: int, *, code: int, local: int, pid: int, is_new: bool) -> list[str]:
    """A launcher says that a worker ended."""
    text = f"failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: /usr/bin/python3"
    head = (
        f"E<<slash>> {agent_pid} torch/distributed/elastic/multiprocessing/api.py:874] "
        if is_new
        else "ERROR:torch.distributed.elastic.multiprocessing.api:"
    )
    return [head + text]


def failure_report(program: str, failures: Sequence[Mapping[str, object]]) -> list[str]:
    """A launcher's last report; the first of `failures` (rank, local, host, code, pid) is the one it saw first."""
    lines = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, f"{program} FAILED", "-" * 60, "Failures:"]
    if len(failures) == 1:
        lines.append("  <NO_OTHER_FAILURES>")
    for number, told in enumerate(failures[1:], 1):
        lines += _one(number, told)
    return [*lines, "-" * 60, "Root Cause (first observed failure):", *_one(0, failures[0]), "=" * 60]


def _one(number: int, told: Mapping[str, object]) -> list[str]:
    code = told["code"]
    assert isinstance(code, int)
    said = (
        f"Signal {-code} ({SIGNAMES[-code]}) received by PID {told['pid']}"
        if code < 0
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    return [
        f"[{number}]:",
        "  time      : <<under>>",
        f"  host      : {told['host']}",
        f"  rank      : {told['rank']} (local_rank: {told['local']})",
        f"  exitcode  : {code} (pid: {told['pid']})",
        "  error_file: <N/A>",
        f"  traceback : {said}",
    ]


def agent_stopped(agent_pid: int, *, is_new: bool, number: int = 15) -> list[str]:
    """A launcher is asked to stop from outside."""
    text = f"Received {number} death signal, shutting down workers"
    return [
        f"W<<slash>> {agent_pid} torch/distributed/elastic/agent/server/api.py:723] {text}"
        if is_new
        else f"WARNING:torch.distributed.elastic.agent.server.api:{text}"
    ]


def agent_done(agent_pid: int, *, is_new: bool) -> list[str]:
    """All workers of a launcher came to their end."""
    head = (
        f"I<<slash>> {agent_pid} torch/distributed/elastic/agent/server/api.py:879] "
        if is_new
        else "INFO:torch.distributed.elastic.agent.server.api:"
    )
    return [f"{head}[default] worker group successfully finished. Waiting 300 seconds for other agents to finish."]


def agent_starts(agent_pid: int, *, is_new: bool) -> list[str]:
    """A launcher starts its workers."""
    where = "torch/distributed/elastic/agent/server/api.py:845]"
    head = f"I<<slash>> {agent_pid} {where} " if is_new else "INFO:torch.distributed.elastic.agent.server.api:"
    return [f"{head}[default] starting workers for entrypoint: python"]
