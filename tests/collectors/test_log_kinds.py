"""Kinds of lines: every pattern has lines that only it tells, what looks alike is none, and what several lines say together."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _sources import rows_of, source_of

from collectors import trainer_log
from collectors._log_prefix import parse, pieces
from collectors._log_signatures import classify, first_fit, patterns

KINDS = Path(__file__).with_name("log_kinds.tsv")  # what a line is, a tab, the line; "-" = a line that says nothing


def told() -> list[tuple[str, str]]:
    """Signature and line of the table."""
    return [(kind, line) for kind, _, line in (row.partition("\t") for row in KINDS.read_text("utf-8").splitlines())]


def tables(folder: Path, text: str) -> dict[str, list[dict[str, Any]]]:
    return rows_of(trainer_log, source_of(folder, text.encode(), "x.log"))[0]


def events(folder: Path, text: str) -> list[dict[str, Any]]:
    return tables(folder, text)["log_events"]


def test_every_pattern_tells_lines_that_no_other_tells_first() -> None:
    used = set()
    for kind, raw in told():
        (line,) = (parse(piece, 1) for piece in pieces(raw))
        fit = first_fit(line.text, line.level)
        assert fit is not None, raw
        assert (fit[0].signature or "-") == kind, raw
        used.add(fit[0].regex.pattern)
    assert [pattern.regex.pattern for pattern in patterns() if pattern.regex.pattern not in used] == []


def test_every_kind_has_lines_of_several_writers() -> None:
    few = {
        "slurm_task_exit",
        "cuda_unknown_error",
        "cuda_ecc",
        "nccl_net_flush_error",
        "elastic_sigterm_victim",
        "elastic_child_failed",
        "-",
    }
    counts = Counter(kind for kind, _ in told())
    assert {kind for kind, count in counts.items() if count < 4} <= few
    assert sum(counts.values()) > 400


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in told()} - {"-", "elastic_child_failed", "elastic_sigterm_victim"}))
def test_the_reader_finds_in_a_file_what_the_table_says(kind: str, tmp_path: Path) -> None:
    mine = [raw for other, raw in told() if other == kind]
    found = events(tmp_path, "".join(f"{raw}\n\n" for raw in mine))
    assert kind in {row["signature"] for row in found}
    assert sum(row["num_folded"] for row in found if row["signature"] == kind) == len(mine)


QUIET = """
  check_for_nan_in_loss_and_grad .................. True
  exit_signal_handler ............................. False
timeout=1800, backend=nccl
nan_check: false
TORCH_NCCL_NAN_CHECK: 0, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480, TORCH_NCCL_DESYNC_DEBUG: 1
INFO check_for_nan_in_grad=True, check_for_large_grads=False
INFO finished with 0 errors
0 errors, 0 warnings
INFO sample: "he was killed by a signal from the tower"
INFO text: the process was killed and the checkpoint lost
prompt: my python script says MemoryError what to do
INFO storage read timeout is 30 s
WARNING gradient clipping: nan gradients will be replaced by zero
INFO grad scaler: nan/inf checks enabled
INFO step 12: no nan in gradients
INFO grad norm is not nan
INFO nan count in loss: 0
checking for nan in loss: ok
INFO loss is finite
  warnings.warn("NaN check is disabled")
FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. GradScaler skips steps with inf/nan gradients
host-a:11:22 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:192.0.2.1<0>
host-a:11:22 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
host-a:11:22 [0] NCCL INFO NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR
host-a:11:22 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.
host-a:11:22 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
host-a:11:22 [0] NCCL INFO [Service thread] Connection closed by localRank 0
host-a:11:22 [0] NCCL INFO Call to connect returned Connection refused, retrying
INFO saving checkpoints every 500 steps
INFO checkpoint saving interval 500
INFO load_checkpoint: will not save checkpoint
ERROR-free: 0 uncorrectable ECC errors
INFO gpu 3 uncorrectable ECC error count 0
volatile uncorrectable ECC error count is 0 on 8 devices
uncorrectable ECC errors (aggregate) are zero
uncorrectable ECC errors (volatile): 0
eval: answer="The process was killed by signal 9, CUDA error: unspecified launch failure" score=0.7
{'prompt': 'why does NCCL WARN socketProgress: Connection closed by remote peer 192.0.2.5<1> come up', 'reward': 0.2}
INFO node health check passed, 0 uncorrectable ECC errors
INFO Set expandable_segments to avoid CUDA out of memory
|    CUDA OOMs: 0            |        cudaMalloc retries: 0         |
INFO OOMKilled pods: 0
INFO Ignoring errors: connection reset, broken pipe
INFO will retry on connection refused up to 5 times
INFO Connection closed by peer-review client
INFO got async event from queue
INFO dump signal handlers installed for faulthandler
INFO checking stale file handles... ok
INFO graceful shutdown on SIGTERM is enabled
KeyboardInterrupt handler installed
INFO killed 0 stale processes
INFO no node failures in 24 h
INFO time limit of the job: 24:00:00
INFO preemption checkpointing enabled
INFO evicted 12 blocks from the KV cache
INFO pods evicted: 0
#SBATCH --requeue
INFO sampler shuffle seed 137, exit code 0
Exited with exit code 0
df: /dev/shm 64G 1G 63G 2% /dev/shm
srun: job 123 queued and waiting for resources
slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused
[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).
"""


def test_settings_counts_of_zero_and_samples_are_no_events() -> None:
    for raw in QUIET.strip("\n").split("\n"):
        line = parse(raw, 1)
        assert [sighting.signature for sighting in classify(line.text, line.level)] == [], raw


def test_a_word_that_denies_takes_nothing_from_a_line_that_does_not() -> None:
    for text, kind in (
        ("gpu 0 uncorrectable ECC error encountered", "cuda_ecc"),
        ("uncorrectable ECC error on GPU 0", "cuda_ecc"),
        ("volatile uncorrectable ECC error count is 3", "cuda_ecc"),
        ("prompt='a' failed: CUDA error: unspecified launch failure", "cuda_launch_failure"),
        ("bad answer: RuntimeError: CUDA error: unspecified launch failure", "cuda_launch_failure"),
        ("StepId=123.0 exceeded memory limit (65 > 64), being killed", "host_out_of_memory"),
        ("OSError: [Errno 116] Stale file handle: '/mnt/x'", "storage_timeout"),
        ("The total norm of order 2.0 for gradients is non-finite", "loss_nan"),
        ("loss is nan, stopping training", "loss_nan"),
        ("loss is not finite: inf", "loss_nan"),
    ):
        assert [sighting.signature for sighting in classify(text)] == [kind], text
    assert classify("Connection reset by peer", "info") == []
    assert classify("Connection reset by peer", "warning") != []


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Got completion from peer gpu-32.example<41234> with status=12 opcode=0 len=0", {"peer": "gpu-32.example"}),
        ("Got completion from peer 192.0.2.5<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)", {"peer": "192.0.2.5"}),
        ("socketProgress: Connection closed by remote peer gpu-32.example<55693>", {"peer": "gpu-32.example"}),
        ("Net : Call to recv from 192.0.2.5<41234> failed : Connection reset by peer", {"peer": "192.0.2.5"}),
        ("[x/pair.cc:598] Connection closed by peer [fe80::1%eth0]:41234", {"peer": "fe80::1%eth0"}),
        ("connect [192.0.2.7]:41: Connection refused", {"peer": "192.0.2.7"}),
        ("libfabric:1:2::efa:cq:f():7<warn> err: 5, message: Invalid address My host id: i-1 Peer host id: i-2 (7)", {"peer": "i-2"}),
        (
            "mpirun noticed that process rank 3 with PID 7 on node host-a exited on signal 9",
            {"rank": 3, "host": "host-a", "pid": 7, "signal": "SIGKILL"},
        ),
        ("*** SIGSEGV (@0x0) received by PID 412 (TID 0x7f) from PID 0", {"pid": 412, "signal": "SIGSEGV"}),
        ("run.sh: line 3: 12 Bus error  (core dumped) torchrun x.py", {"signal": "SIGBUS"}),
        ("Process exited with exit code -9", {"exit_code": -9, "signal": "SIGKILL"}),
        ("=   KILLED BY SIGNAL: 9 (Killed)", {"signal": "SIGKILL"}),
        ("Worker exited due to SIGBUS", {"signal": "SIGBUS"}),
        ("srun: error: host-[a-b]: tasks 0-15: Exited with exit code 7", {"exit_code": 7}),
        ("srun: error: host-a: task 0: Killed", {"exit_code": -9, "host": "host-a"}),
        ("salloc: error: Node failure on host-[a-b]", {}),
        ("salloc: error: Node failure on host-a", {"host": "host-a"}),
        ("The node 'host-a.example_17_0' has failed to send a keep-alive heartbeat to the rendezvous", {"host": "host-a"}),
        ("AssertionError: Rank 5: found Inf in local forward loss calculation", {"rank": 5}),
        ("  Process name: [[5443,1],3]", {"rank": 3}),
        ("Process 3 exit with status code 7.", {"rank": 3, "exit_code": 7}),
        ("ncclOsSocketPollConnect: connect to 192.0.2.5<37857> returned Connection refused", {"peer": "192.0.2.5"}),
    ],
)
def test_what_a_line_names_is_kept(text: str, fields: dict[str, Any]) -> None:
    (sighting, *_) = classify(text)
    assert {name: value for name, value in sighting.fields.items() if value is not None} == fields


def test_slurm_s_memory_limit_is_told_of_the_task_and_of_the_host(tmp_path: Path) -> None:
    found = events(tmp_path, "srun: error: host-a: task 3: Out Of Memory\n")
    assert {(row["signature"], row["host"], row["rank"]) for row in found} == {
        ("slurm_task_exit", "host-a", None),
        ("host_out_of_memory", "host-a", None),
    }


STORIES = {  # what lines say together: kinds, ranks
    "a group's rank beside the global one": (
        "[rank218]:[E304 05:06:07.1 ProcessGroupNCCL.cpp:607] [Rank 13] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580)\n"
        "[rank218]:[E304 05:06:07.1 ProcessGroupNCCL.cpp:1664] [PG 23 Rank 13] Exception (either an error or timeout) "
        "detected by watchdog at work: 1580\n",
        {"nccl_watchdog_timeout", "nccl_watchdog_detected"},
        {218},
    ),
    "a failure with the signal's name behind the pid": (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-04_05:06:07\n  host      : host-a.example\n"
        "  rank      : 11 (local_rank: 3)\n"
        "  exitcode  : -9 (pid: 412) (SIGKILL)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 412\n============\n",
        {"elastic_root_cause", "process_signal"},
        {11},
    ),
    "an error file inside of a log line": (
        '[ERROR] 2026-03-04 05:06:07,678 error_handler: {"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": '
        '"Traceback (most recent call last):\\n  File \\"/job/a.py\\", line 3, in f\\n    g()\\nMemoryError\\n", "timestamp": "1"}}}\n',
        {"host_out_of_memory"},
        set(),
    ),
    "a hang behind the end": (
        "2026-03-04 05:06:07,123 INFO Training completed successfully\n[rank0]:[E304 05:16:07.1 ProcessGroupNCCL.cpp:1487] "
        "[PG ID 0 PG GUID 0(default_pg) Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n",
        {"worker_finished", "nccl_heartbeat_timeout"},
        {0},
    ),
    "Ray's table of processes gives the rank of a later line": (
        "(TorchTrainer pid=9, ip=10.0.0.1) - (node_id=abc, ip=10.0.0.1, pid=123) world_rank=3, local_rank=1, node_rank=0\n"
        "(RayTrainWorker pid=123, ip=10.0.0.1) RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        {"worker_started", "cuda_oom"},
        {3},
    ),
    "Lightning's own line does too": (
        "(RayExecutor pid=7, ip=10.0.0.2) Initializing distributed: GLOBAL_RANK: 5, MEMBER: 6/8\n(RayExecutor pid=7, ip=10.0.0.2) std::bad_alloc\n",
        {"worker_started", "host_out_of_memory"},
        {5},
    ),
    "workers stopped because one died": (
        "W0304 05:06:07.1 140 torch/distributed/elastic/multiprocessing/api.py:851] Sending process 812 closing signal SIGTERM\n"
        "W0304 05:06:37.1 140 torch/distributed/elastic/multiprocessing/api.py:918] Unable to shutdown process 812 via Signals.SIGTERM, forcefully "
        "exiting via Signals.SIGKILL\n"
        "E0304 05:06:38.1 140 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -11) local_rank: 2 (pid: 813) of binary: x\n",
        {"elastic_sigterm_victim", "elastic_child_failed", "process_signal"},
        set(),
    ),
    "a header behind the words that announce it": (
        "[2026-03-04 05:06:07 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/app/s.py", line 7, in run\n    f()\nKeyError: 7\n',
        {"python_traceback"},
        set(),
    ),
    "a monitor names the rank that it watches": (
        "[WARNING] [RankMonitorServer:34] Did not get subsequent heartbeat. Waited 171.92 seconds.\n",
        {"nccl_heartbeat_timeout"},
        {34},
    ),
    "who tells of a child's end is not the child": (
        "[rank: 0] Child process with PID 412 terminated with code -11. Forcefully terminating all other processes to avoid zombies\n",
        {"elastic_child_failed", "process_signal"},
        set(),
    ),
    "what only may be the cause": (
        "(raylet, ip=10.0.0.1) A worker died or was killed while executing a task by an unexpected system error. There are some potential root "
        "causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.\n",
        {"unknown"},
        set(),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_lines_say_together(story: str, tmp_path: Path) -> None:
    text, kinds, ranks = STORIES[story]
    found = events(tmp_path, text)
    assert {row["signature"] for row in found} == kinds
    assert {row["rank"] for row in found} - {None} == ranks


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """How many lines of each kind, speaker and message. Not by host: what other lines of a file tell of a rank's host is filled in."""
    count: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        count[tuple(row[name] for name in ("signature", "rank", "group_rank", "peer", "exit_code", "message"))] += row["num_folded"]
    return count


def test_the_order_of_lines_and_files_changes_no_event(tmp_path: Path) -> None:
    kinds = ("nccl_", "cuda_", "tcpstore_", "shm_", "heap_", "storage_", "k8s_", "loss_")
    seen: Counter[str] = Counter()
    lines = []
    for at, (kind, raw) in enumerate(told()):
        seen[kind] += 1
        if kind.startswith(kinds) and seen[kind] <= 3 and parse(raw, 1).rank is None:  # few of a kind: more would be folded by place
            lines.append(f"[rank{at % 8}]: {raw}")
    whole = counted(events(tmp_path, "\n".join(lines) + "\n"))
    assert sum(whole.values()) >= len(lines)
    shuffled = lines[:]
    random.Random(5).shuffle(shuffled)
    assert counted(events(tmp_path, "\n".join(shuffled) + "\n")) == whole
    half = len(lines) // 2
    parts = [counted(events(tmp_path, "\n".join(part) + "\n")) for part in (shuffled[:half], shuffled[half:])]
    assert parts[0] + parts[1] == whole
    assert counted(events(tmp_path, "\n".join(lines + shuffled) + "\n")) == whole + whole
