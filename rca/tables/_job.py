"""What is known of the files, the ranks and the launches of a job."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import ATTEMPT, BOOL, EVIDENCE_ID, FLOAT, FROM, INSTANT, INT, JOB, RANK, TEXT, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "evidence",
        "raw file",
        EVIDENCE_ID,
        Column("path", TEXT, "path below the evidence root; a copy adds no row"),
        Column("kind", TEXT, "collector that read it; null = nothing recognised it"),
        Column("host", TEXT, "host it was taken on, where the file or its name says so"),
        RANK,
        Column("size_bytes", INT, "size as stored"),
        Column("sha256", TEXT, "SHA-256 of the stored bytes, hex"),
        Column("captured_at", INSTANT, "when it was taken; null where the file does not say"),
        Column("is_stale", BOOL, "true = an older view of the same rank or another launch: listed, not diagnosed"),
        Column("stale_because", TEXT, "why it is left out"),
        lead=(),
    ),
    table(
        "readings",
        "file x collector",
        EVIDENCE_ID,
        Column("path", TEXT, "path below the evidence root"),
        Column("collector", TEXT, "collector; null = nothing recognised the file"),
        Column("num_rows", INT, "rows read, all tables"),
        Column("num_skipped", INT, "records that could not be read"),
        Column("first_skip_record", TEXT, "place of the first of them"),
        Column("first_skip", TEXT, "why the first of them could not be read"),
        Column("problem", TEXT, "why the file as a whole could not be read"),
        Column("copy_of", TEXT, "path of the file with the same bytes that was read instead"),
        Column("guess", TEXT, "nearest known format of a file that nothing recognised"),
        lead=(),
    ),
    table(
        "ranks",
        "rank of an attempt and source that names it",
        RANK,
        Column("host", TEXT, "host, lower-case first label"),
        Column("local_rank", INT, "rank on its host"),
        Column("gpu", TEXT, "GPU as the source names it (index, UUID or PCI address)"),
        Column("pid", INT, "process id of the trainer on its host"),
        Column("role", TEXT, "trainer, dataloader_worker, agent, other; null = not said"),
        Column("dp", INT, "data-parallel coordinate, null = axis unused or unknown"),
        Column("tp", INT, "tensor-parallel coordinate"),
        Column("pp", INT, "pipeline stage"),
        Column("cp", INT, "context-parallel coordinate"),
        Column("ep", INT, "expert-parallel coordinate"),
        Column("host_name", TEXT, "host as the source spells it, as its scheduler knows it; null = not told"),
        Column("started_at", INSTANT, "when that process began; null = not told"),
    ),
    table(
        "groups",
        "process group and file that describes it",
        Column("group_id", TEXT, "<kind>:<8 hex digits of its sorted global ranks>; ? where the members are unknown"),
        Column("group_name", TEXT, "name in that process or map"),
        Column("group_desc", TEXT, "description given at creation"),
        Column("kind", TEXT, "world dp tp pp cp ep mp dp_cp ... other unknown"),
        Column("size", INT, "number of members, null = unknown"),
    ),
    table(
        "memberships",
        "rank in a process group, per file that says so",
        Column("group_id", TEXT, "group"),
        RANK,
        Column("group_rank", INT, "rank inside the group, null = unknown"),
        Column("is_inferred", BOOL, "true = not listed anywhere, concluded from the rank using the group"),
    ),
    table(
        "attempts",
        "launch of a job, as recorded",
        Column("started_at", INSTANT, "when it was launched"),
        Column("ended_at", INSTANT, "when it ended; null = still running when recorded (censored)"),
        Column("end_kind", TEXT, "completed, failed, stopped; null = not told"),
        Column("world_size", INT, "ranks"),
        Column("num_hosts", INT, "hosts"),
        Column("num_gpus", INT, "GPUs"),
        Column("resumed_from_step", INT, "step of the checkpoint it began from; null = from nothing, or not told"),
        Column("last_step", INT, "last step that it finished"),
        Column("tokens_per_step", INT, "tokens of one step"),
        Column("step_s", FLOAT, "usual length of a step, s"),
        Column("exit_code", INT, "of the launcher"),
        lead=(*FROM, JOB, ATTEMPT),
    ),
)
