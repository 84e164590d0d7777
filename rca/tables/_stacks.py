"""Stacks of threads, and the index of a capture."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import BOOL, DUMP_STATUS, FLOAT, FROM, INSTANT, INT, RANK, TEXT, TEXTS, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "dump_index",
        "stack dump that a capture's index lists",
        RANK,
        Column("host", TEXT, "host it was taken on"),
        Column("pid", INT, "process id on that host"),
        Column("role", TEXT, "as the index names it: main, worker0, ..."),
        Column("sample", INT, "capture round, 0 = first"),
        Column("sampled_at", INSTANT, "when it was taken"),
        Column("format", TEXT, "json or txt"),
        Column("dump_status", TEXT, "ok, or the kind of failure: " + ", ".join(DUMP_STATUS[1:])),
        Column("num_switches", INT, "times its main thread had gone to wait (voluntary context switches) just before; null = not noted"),
        Column("cpu_s", FLOAT, "CPU time of its main thread until then, s; null = not noted"),
    ),
    table(
        "stacks",
        "thread of a process in a sample, or failed dump",
        RANK,
        Column("host", TEXT, "host, where the file or its name says so"),
        Column("pid", INT, "process id"),
        Column("role", TEXT, "trainer, dataloader_worker, agent, compile_worker, other, unknown: by the stack's root"),
        Column("thread_id", INT, "operating-system thread id, else the pthread id"),
        Column("pthread_id", TEXT, "pthread id where the file gives it: ties the dump to a flight-recorder dump"),
        Column("thread_name", TEXT, "MainThread for the main thread, also where the format only implies it"),
        Column("is_active", BOOL, "the dumper called the thread running"),
        Column("owns_gil", BOOL, "the thread held the interpreter lock; null = the format does not say"),
        Column("sample", INT, "capture round, 0 = first; null = nothing orders the dumps"),
        Column("sampled_at", INSTANT, "when it was taken"),
        Column("stack_id", TEXT, "stack (stack_frames); null = no frame at all"),
        Column("lines", TEXT, "leaf line numbers, innermost first, first 8"),
        Column("dump_status", TEXT, " ".join(DUMP_STATUS)),
        Column("format", TEXT, "py_spy_json, py_spy_text, faulthandler, debug_server, ..."),
    ),
    table(
        "stack_frames",
        "distinct stack",
        Column("stack_id", TEXT, "16 hex digits of the canonical frames"),
        Column("frames", TEXTS, "canonical frames module:function, innermost first"),
        Column("leaf", TEXT, "innermost Python frame; null = native frames only"),
        Column("leaf_key", TEXT, "first informative frame, wrappers skipped"),
        Column(
            "shown", TEXTS, "up to three informative frames, innermost first: no wrappers, of standard-library calls in a row the innermost"
        ),
        Column(
            "activity",
            TEXT,
            "what the program is doing: train_step eval checkpoint compile dataloader import init teardown ...",
        ),
        Column("wait_kind", TEXT, "what it waits for: collective p2p store lock queue cuda_sync io sleep none unknown ..."),
        lead=FROM,
    ),
)
