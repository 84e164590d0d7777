"""Saved state: which checkpoints there are, whether they are whole, and what they are made of."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import BOOL, FROM, INSTANT, INT, JOB, TEXT, TEXTS, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "checkpoints",
        "checkpoint, per file that describes it",
        Column("checkpoint", TEXT, "folder of the checkpoint below the evidence root, else its name as written; . = the root itself"),
        Column("format", TEXT, "torch_dcp, megatron_dist, safetensors, deepspeed, manifest, ..."),
        JOB,
        Column("saved_to", TEXT, "path that its saver gave it, as written: where it lay when it was saved"),
        Column("step", INT, "step that it was saved after, as the file, else the name of the folder says; null = not told"),
        Column("saved_at", INSTANT, "when it was finished; null unless the file gives date, year and zone"),
        Column("is_marked", BOOL, "the file says that the save was finished; false = it says that it was not; null = it says neither"),
        Column("world_size", INT, "ranks that saved it"),
        Column("num_files", INT, "files that it says it is made of"),
        Column("size_bytes", INT, "bytes that it says it has"),
        Column("state_version", TEXT, "version of the state or of its format, as written"),
        Column("parts", TEXTS, "what is in it: model, optimizer, scheduler, rng, sampler, other; null = not told"),
        Column("lacks", TEXTS, "what a whole recoverable state needs and the description does not list; null = the format does not tell"),
        lead=FROM,
    ),
    table(
        "checkpoint_files",
        "file that a checkpoint's description names, or shard that names itself",
        Column("checkpoint", TEXT, "as in checkpoints"),
        Column("file", TEXT, "path below the evidence root"),
        Column("format", TEXT, "as in checkpoints; of a shard that names itself torch_zip, torch_pickle or safetensors"),
        Column("least_bytes", INT, "bytes that it must have at least to hold what the description says"),
        Column("exact_bytes", INT, "bytes that it must have; null = only a least size is known"),
        Column("checksum", TEXT, "as the description has it"),
        Column("checksum_kind", TEXT, "sha256, md5, crc32, ...; null = no checksum"),
        Column("state_rank", INT, "rank whose state it holds, where the name or content says so"),
        Column("parts", TEXTS, "as in checkpoints, of this file alone; null = not told"),
        Column("problem", TEXT, "what is wrong with the file by its own content (torn, header beyond its end, ...); null = nothing seen"),
        lead=FROM,
    ),
)
