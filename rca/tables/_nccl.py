"""What NCCL's own tools say: the RAS subsystem's snapshots and the Inspector's finished calls."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import BOOL, FLOAT, FROM, INSTANT, INT, OF_RANK, TEXT, Column, Table, table

__all__ = ["DECLARED"]

_SNAPSHOT: Final = (
    Column("snapshot", INT, "1, 2, ...: which status report of the file"),
    Column("taken_at", INSTANT, "when it was taken; null unless the file gives date, year and zone"),
    Column("taken_at_local", TEXT, "what the file gives instead: YYYY-MM-DDThh:mm:ss, MM-DDThh:mm:ss or hh:mm:ss, fraction kept"),
    Column("comm", TEXT, "communicator as printed (hash); null = the row is of a group of them"),
)

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "nccl_calls",
        "finished call of a communicator's rank (a hang leaves a gap)",
        Column("comm", TEXT, "communicator as printed"),
        Column("comm_name", TEXT, "its name, where given"),
        Column("group_rank", INT, "rank in the communicator, not the global one"),
        Column("group_size", INT, "ranks of the communicator"),
        Column("num_hosts", INT, "nodes of the communicator"),
        Column("host", TEXT, "host"),
        Column("pid", INT, "process"),
        Column("collective_seq_id", INT, "number of the collective of that kind in the communicator"),
        Column("op", TEXT, "operation as printed"),
        Column("is_p2p", BOOL, "point-to-point call"),
        Column("peer", INT, "the other rank in the communicator, of a point-to-point call"),
        Column("size_bytes", INT, "message size"),
        Column("exec_s", FLOAT, "time of the call, s"),
        Column("timing_source", TEXT, "kernel_gpu, kernel_cpu, collective_cpu, as printed"),
        Column("bus_gb_s", FLOAT, "bus bandwidth, GB/s"),
        Column("logged_at", INSTANT, "when it was written down"),
        lead=OF_RANK,
    ),
    table(
        "transfers",
        "timed transfer from one rank to another, or of a pair of ranks in a collective",
        Column("src_rank", INT, "sending global rank"),
        Column("dst_rank", INT, "receiving global rank"),
        Column("step", INT, "step that it belongs to, where told"),
        Column("op", TEXT, "operation as written"),
        Column("group_desc", TEXT, "process group as written"),
        Column("seq_id", INT, "number of the call as written"),
        Column("started_at", INSTANT, "when it began; null where the file has no clock that counts from 1970"),
        Column("transfer_s", FLOAT, "how long, s, from the moment that both ends were there"),
        Column("bytes", INT, "bytes moved"),
        lead=OF_RANK,
    ),
    table(
        "nccl_ras",
        "communicator (in text a group of them) in a status report of RAS",
        *_SNAPSHOT,
        Column("version", TEXT, "NCCL version"),
        Column("group", INT, "number of the group of communicators in the text"),
        Column("num_comms", INT, "communicators in the group"),
        Column("num_hosts", INT, "nodes per communicator"),
        Column("num_ranks", INT, "ranks of the group of communicators; of a single one its size"),
        Column("ranks_per_comm", INT, "ranks of each communicator"),
        Column("num_missing", INT, "ranks without data; null = not told"),
        Column("status", TEXT, "RUNNING, INIT, FINALIZE, ABORT, NOCOMM, MIXED, UNKNOWN, ... as printed; of JSON by the same rule"),
        Column("errors", TEXT, "OK, MISMATCH, INCOMPLETE, ERROR, or several with commas, as printed; of JSON by the same rule"),
        Column("num_timeouts", INT, "communication time-outs that RAS met while it gathered the report; null = not told"),
        lead=FROM,
    ),
    table(
        "nccl_ras_ranks",
        "communicator x rank or process that RAS names",
        *_SNAPSHOT,
        Column("group", INT, "number of its group of communicators in the text"),
        Column("group_rank", INT, "rank in the communicator, not the global one"),
        Column("host", TEXT, "node as printed"),
        Column("pid", INT, "process"),
        Column("local_gpu", INT, "CUDA device on its node"),
        Column("status", TEXT, "state of that rank, as printed"),
        Column("is_missing", BOOL, "RAS has no data of it"),
        Column("is_unresponsive", BOOL, "its process does not answer RAS"),
        Column("is_dead", BOOL, "RAS takes its process for dead"),
        Column("has_async_error", BOOL, "the rank reports an asynchronous error"),
        lead=FROM,
    ),
    table(
        "nccl_ras_ops",
        "communicator x operation (x rank where given): how many calls were launched",
        *_SNAPSHOT,
        Column("group", INT, "number of its group of communicators in the text"),
        Column("group_rank", INT, "rank in the communicator; null = over its ranks"),
        Column("op", TEXT, "operation as printed; `collective` = all kinds counted as one (NCCL until 2.25)"),
        Column("num_calls", INT, "calls launched by that rank (or by most ranks; null = no number of calls is the most common)"),
        Column("num_behind", INT, "ranks that launched fewer than those furthest ahead"),
        Column("count_behind", INT, "calls that those launched, at the least"),
        Column("num_ahead", INT, "ranks furthest ahead; where few, these are the ones that RAS lists"),
        Column("count_ahead", INT, "calls that those launched"),
        lead=FROM,
    ),
)
