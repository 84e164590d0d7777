"""Recorded calls of each rank, and what a recorder's header tells."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import BOOL, FLOAT, INSTANT, INT, RANK, TEXT, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "collectives",
        "rank x recorded call (collective or point-to-point)",
        RANK,
        Column("group_id", TEXT, "process group"),
        Column("backend", TEXT, "nccl, gloo, ... as recorded before the colon"),
        Column("record_id", INT, "order of recording in that process, all groups"),
        Column("collective_seq_id", INT, "number of the collective in its group, +1 per call"),
        Column("p2p_seq_id", INT, "number of the point-to-point call in its group"),
        Column("op_id", INT, "number of the logical operation in its group"),
        Column("op", TEXT, "operation as recorded (all_reduce, send 0->1, ...), without the backend"),
        Column("is_p2p", BOOL, "point-to-point call"),
        Column("src", INT, "sending global rank of a point-to-point call"),
        Column("dst", INT, "receiving global rank"),
        Column("state", TEXT, "scheduled, started or completed, as recorded"),
        Column("is_retired", BOOL, "the recorder has put the call away; with gloo the only sign of its end"),
        Column("sizes", TEXT, "input -> output shapes as recorded"),
        Column("dtypes", TEXT, "input -> output types as recorded"),
        Column("created_at", INSTANT, "when the CPU enqueued it"),
        Column("started_at", INSTANT, "when the watchdog saw it start"),
        Column("completed_at", INSTANT, "when the watchdog saw it end"),
        Column("timeout_s", FLOAT, "time-out of the call, s"),
        Column("thread_id", TEXT, "pthread id of the calling thread"),
        Column("stack_id", TEXT, "stack at the moment of enqueueing (stack_frames)"),
        Column("is_tail", BOOL, "not seen to end, or one of the rank's last calls in the group: all that most questions need"),
    ),
    table(
        "group_status",
        "rank x process group, as the dump's header tells",
        RANK,
        Column("group_id", TEXT, "process group; null where the header could not be mapped to one"),
        Column("place", INT, "place in the header by the process-local number, which grows with creation; null = not in it"),
        Column("last_enqueued", INT, "last number enqueued; -1 = none. Counts calls of any kind"),
        Column("last_started", INT, "last number seen started; -1 = none or not recorded"),
        Column("last_completed", INT, "last number seen completed; -1 = none"),
        Column(
            "mapped_by",
            TEXT,
            "how the header was tied to the group: entries, order, peers, absence (a group without status was never used)",
        ),
        Column("counts", TEXT, "what the numbers count: collectives, calls (with point-to-point), unknown"),
    ),
    table(
        "dumps",
        "flight-recorder dump",
        RANK,
        Column("backend", TEXT, "backend of its calls; null = no calls"),
        Column("version", TEXT, "recorder version as written"),
        Column("format", TEXT, "pickle or json"),
        Column("num_entries", INT, "calls read; null = only the header was read"),
        Column(
            "first_record_id",
            INT,
            "record_id of the first call; above 0 the ring has wrapped or only active calls were written",
        ),
        Column("first_at", INSTANT, "first call created"),
        Column("last_at", INSTANT, "last call created"),
        Column("is_torn", BOOL, "true = the file breaks off; what precedes was read"),
        Column("has_only_active", BOOL, "true = no finished call is in it: only pending ones were written"),
        Column("main_thread_id", TEXT, "pthread id of the thread with most calls"),
    ),
)
