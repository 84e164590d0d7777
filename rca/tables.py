"""Every table, declared once: grain, columns, units. The polars schema, the DuckDB DDL and docs/tables.md all derive from here.

Instants end in `_at` (UTC), durations in `_s` (seconds), sizes in `_bytes`. Missing is null, never 0 or "". Evidence-derived rows carry
`evidence_id` and `record` (`L<line>`, `E<entry>`, `M<member>/...`), so every row leads back to the very place it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

__all__ = ["DUMP_STATUS", "GROUP_KINDS", "TABLES", "Column", "Table"]

INT, FLOAT, TEXT, BOOL = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean()
INSTANT = pl.Datetime("us", "UTC")
INTS = pl.List(pl.Int64())
TEXTS = pl.List(pl.String())

_SQL: Final[dict[str, str]] = {
    "Int64": "BIGINT",
    "Float64": "DOUBLE",
    "String": "VARCHAR",
    "Boolean": "BOOLEAN",
    "List(Int64)": "BIGINT[]",
    "List(String)": "VARCHAR[]",
    "Datetime(time_unit='us', time_zone='UTC')": "TIMESTAMPTZ",
}

GROUP_KINDS: Final = (
    "world",
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "mp",
    "dp_cp",
    "tp_cp",
    "tp_dp",
    "expert_tp",
    "expert_dp",
    "embedding",
    "other",
    "unknown",
)
DUMP_STATUS: Final = (
    "ok",
    "process_gone",
    "not_python",
    "permission_denied",
    "suspend_failed",
    "unsupported_version",
    "unknown",
)


@dataclass(frozen=True)
class Column:
    """A column: its type and what it holds, with unit."""

    name: str
    dtype: pl.DataType
    doc: str


@dataclass(frozen=True)
class Table:
    """A declared table. `grain` completes "one row per ..."."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    from_evidence: bool = True  # rows begin with evidence_id and record

    @cached_property
    def schema(self) -> pl.Schema:
        """Column name -> polars type, in order."""
        return pl.Schema([(c.name, c.dtype) for c in self.columns])

    def frame(self, data: Mapping[str, Any] | None = None, /, *, height: int | None = None) -> pl.DataFrame:
        """A frame of exactly this schema from columns (sequences, Series or single values); those not given are null.

        `evidence_id` is filled in by the reader that knows the file, so collectors leave it out.
        """
        data = data or {}
        unknown = sorted(set(data) - set(self.schema))
        if unknown:
            raise KeyError(f"table {self.name} has no column {', '.join(unknown)}")
        if height is None:
            heights = [len(v) for v in data.values() if isinstance(v, pl.Series | list | tuple)]
            height = heights[0] if heights else (1 if data else 0)
        series = []
        for column in self.columns:
            value = data.get(column.name)
            if isinstance(value, pl.Series):
                series.append((value if value.dtype == column.dtype else value.cast(column.dtype)).alias(column.name))
            elif isinstance(value, list | tuple):
                series.append(pl.Series(column.name, value, dtype=column.dtype))
            else:
                single = self._nulls[column.name] if value is None else pl.Series(column.name, [value], dtype=column.dtype)
                series.append(single.new_from_index(0, height))
        return pl.DataFrame(series)

    @cached_property
    def _nulls(self) -> dict[str, pl.Series]:
        """One null of every column: most columns of most frames are not given."""
        return {column.name: pl.Series(column.name, [None], dtype=column.dtype) for column in self.columns}

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """A frame of exactly this schema from row dictionaries; keys left out are null."""
        if not rows:
            return self.frame()
        unknown = sorted({key for row in rows for key in row} - set(self.schema))
        if unknown:
            raise KeyError(f"table {self.name} has no column {', '.join(unknown)}")
        return pl.from_dicts([{name: row.get(name) for name in self.schema} for row in rows], schema=self.schema)

    @property
    def ddl(self) -> str:
        """CREATE TABLE with a comment on the table and on every column."""

        def quoted(text: str) -> str:
            return "'" + text.replace("'", "''") + "'"

        columns = ", ".join(f'"{c.name}" {_SQL[str(c.dtype)]}' for c in self.columns)
        lines = [
            f'CREATE TABLE "{self.name}" ({columns})',
            f'COMMENT ON TABLE "{self.name}" IS {quoted("one row per " + self.grain)}',
        ]
        lines += [f'COMMENT ON COLUMN "{self.name}"."{c.name}" IS {quoted(c.doc)}' for c in self.columns]
        return ";\n".join(lines) + ";\n"


EVIDENCE_ID = Column("evidence_id", TEXT, "file the row comes from (evidence.evidence_id)")
RECORD = Column("record", TEXT, "place in that file: L<line>, E<entry>, T<thread>, M<member>/...")
JOB = Column("job_id", TEXT, "job; job-0 where nothing names it")
ATTEMPT = Column("attempt", INT, "launch of the job, 0 where nothing tells them apart")
RANK = Column("rank", INT, "global rank; null where nothing names it")
_FROM = (EVIDENCE_ID, RECORD)
_OF_RANK = (EVIDENCE_ID, RECORD, JOB, ATTEMPT)


def _table(name: str, grain: str, *columns: Column, lead: tuple[Column, ...] = _OF_RANK) -> Table:
    return Table(name, grain, (*lead, *columns), from_evidence=bool(lead))


_ALL: Final = (
    _table(
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
    _table(
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
    _table(
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
    _table(
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
    _table(
        "groups",
        "process group and file that describes it",
        Column("group_id", TEXT, "<kind>:<8 hex digits of its sorted global ranks>; ? where the members are unknown"),
        Column("group_name", TEXT, "name in that process or map"),
        Column("group_desc", TEXT, "description given at creation"),
        Column("kind", TEXT, "world dp tp pp cp ep mp dp_cp ... other unknown"),
        Column("size", INT, "number of members, null = unknown"),
    ),
    _table(
        "memberships",
        "rank in a process group, per file that says so",
        Column("group_id", TEXT, "group"),
        RANK,
        Column("group_rank", INT, "rank inside the group, null = unknown"),
        Column("is_inferred", BOOL, "true = not listed anywhere, concluded from the rank using the group"),
    ),
    _table(
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
    _table(
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
    _table(
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
    _table(
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
    _table(
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
        lead=_FROM,
    ),
    _table(
        "steps",
        "rank x step",
        RANK,
        Column("host", TEXT, "host, where the file says so"),
        Column("step", INT, "step as the trainer counts"),
        Column("stage", INT, "pipeline stage, where the file says so"),
        Column("started_at", INSTANT, "start of the step"),
        Column("step_s", FLOAT, "whole step, s; null = the end is unknown"),
        Column("compute_s", FLOAT, "own computation of forward and backward, s, without waiting for others"),
        Column("comm_s", FLOAT, "inside communication calls, waiting for peers included, s"),
        Column("data_s", FLOAT, "waiting for the next batch, s"),
        Column("checkpoint_s", FLOAT, "saving or loading state, s"),
    ),
    _table(
        "rank_progress",
        "rank x step",
        RANK,
        Column("step", INT, "step as the trainer counts"),
        Column("loss", FLOAT, "loss on this rank; null also where it is not finite"),
        Column("grad_norm", FLOAT, "norm of this rank's own gradients before they are reduced; null also where not finite"),
        Column("is_finite", BOOL, "false = loss, gradient norm or parameters held NaN or Inf; null = none of them was written"),
        Column("param_checksum", TEXT, "bitwise checksum of the parameters after the step; equal on replicas of a sound job"),
        Column("sample_ids", TEXTS, "samples that this rank's batch was made of"),
        Column("data_shard", TEXT, "file or shard they came from"),
    ),
    _table(
        "progress",
        "step (or epoch) that a trainer prints",
        RANK,
        Column("step", INT, "step as the trainer counts"),
        Column("epoch", FLOAT, "epoch, where the trainer counts those"),
        Column("ended_at", INSTANT, "end of the step; null where the file gives no date, year or zone"),
        Column("ended_at_local", TEXT, "what the file gives instead, as written but for the form"),
        Column("loss", FLOAT, "global loss; null also where it is not finite"),
        Column("grad_norm", FLOAT, "global gradient norm; null also where it is not finite"),
        Column("learning_rate", FLOAT, "learning rate"),
        Column("is_finite", BOOL, "false = loss or gradient norm was NaN or Inf"),
        Column("tokens_total", INT, "tokens (or samples) consumed so far"),
        Column("tokens_per_s_per_gpu", FLOAT, "throughput as printed"),
        Column("mfu_ratio", FLOAT, "model FLOP utilisation as printed, 0..1"),
        Column("is_skipped", BOOL, "the trainer skipped the update"),
        Column("logged_step_s", FLOAT, "time of a step as the trainer says, s; often a mean over the log interval"),
    ),
    _table(
        "kernel_events",
        "event of the kernel, a driver or a controller (bursts folded)",
        Column("host", TEXT, "host that logged it, where the line or the file's name says so"),
        Column("boot_id", TEXT, "boot of that host, where given"),
        Column("logged_at", INSTANT, "when; null unless the file gives date, year and zone"),
        Column("logged_at_local", TEXT, "what the file gives instead: YYYY-MM-DDThh:mm:ss, MM-DDThh:mm:ss or hh:mm:ss"),
        Column("uptime_s", FLOAT, "since boot, s, where printed"),
        Column(
            "kind", TEXT, "xid sxid bus_loss aer nic ib oom mce edac panic hung_task lockup segfault storage_nvme thermal power other ..."
        ),
        Column("code", INT, "Xid or SXid number"),
        Column("gpu", TEXT, "PCI address dddd:bb:dd of the GPU (for sxid: of the switch); a slot, not a device"),
        Column("device", TEXT, "netdev, disk, mount, CPU, library, PCI address ... of other kinds"),
        Column("pid", INT, "process concerned (for oom: the one killed)"),
        Column("process", TEXT, "name of that process, cut as the kernel cuts it"),
        Column("severity", TEXT, "corrected, uncorrected, fatal, nonfatal (as NVLink and NVSwitch lines say); null = not said"),
        Column("unit", TEXT, "unit of the chip named in the line; several = the folded lines name more than one; for oom: memcg or host"),
        Column("link", INT, "NVLink number, -1 = the whole device"),
        Column("caused_by", INT, "Xid that the line itself names as its cause"),
        Column("recovery", TEXT, "what the line says is needed: reset, reboot, drain, drain_reset, imex, none"),
        Column("sub_code", INT, "sub-code of an NVLink line (Xid 144-150): bits 20-25 of its first word"),
        Column(
            "remote_effect",
            TEXT,
            "what the GPU at the link's other end will show, by the vendor's sheet: none, packet_loss ...; null = not known",
        ),
        Column("driver_version", TEXT, "version of the NVIDIA driver that the same file names for that host and boot"),
        Column("gpu_uuid", TEXT, "UUID that the driver gave for that slot in that boot: a slot is no device"),
        Column("gpu_serial", TEXT, "board serial number, likewise"),
        Column("num_folded", INT, "raw lines folded into this row, 1 = not folded"),
        Column("is_rate_limited", BOOL, "true = the kernel dropped lines: num_folded is a lower bound"),
        Column("message", TEXT, "the first line without its prefix"),
        lead=_FROM,
    ),
    _table(
        "host_logs",
        "kernel log x host that it names, also one without any event: says what was looked at",
        Column("host", TEXT, "host, where the line or the file's name says so; null = the file does not say"),
        Column("boot_id", TEXT, "boot of that host, where given"),
        Column("first_at", INSTANT, "earliest line; null unless the file gives date, year and zone"),
        Column("last_at", INSTANT, "latest line"),
        Column("first_at_local", TEXT, "what the file gives instead, as in kernel_events"),
        Column("last_at_local", TEXT, "the latest such stamp"),
        Column("first_uptime_s", FLOAT, "smallest stamp since boot, s, where printed"),
        Column("last_uptime_s", FLOAT, "largest stamp since boot, s"),
        Column("num_lines", INT, "lines of the whole file"),
        lead=_FROM,
    ),
    _table(
        "log_events",
        "recognised line of a trainer, launcher or scheduler (repeats folded)",
        RANK,
        Column("group_rank", INT, "rank inside a process group, as printed; never a global one"),
        Column("host", TEXT, "host that prints it, where the line or the file's name says so"),
        Column("pid", INT, "process concerned"),
        Column("logged_at", INSTANT, "when; null unless the file gives date, year and zone"),
        Column("logged_at_local", TEXT, "what the file gives instead: YYYY-MM-DDThh:mm:ss, MM-DDThh:mm:ss or hh:mm:ss, fraction kept"),
        Column("level", TEXT, "debug info warning error; null = not said"),
        Column("signature", TEXT, "name of the kind of line (catalogue/signatures.csv)"),
        Column("signal", TEXT, "SIGKILL, SIGTERM, ... that ended the process"),
        Column("exit_code", INT, "exit code, negative = signal number"),
        Column("exception", TEXT, "type of the first exception of the chain: the one the others were raised from"),
        Column("frames", TEXTS, "traceback of that exception, function (file:line), innermost first"),
        Column("peer", TEXT, "other host or address that the line names"),
        Column("step", INT, "step that the line names"),
        Column("sample_ids", TEXTS, "samples that the line names"),
        Column("num_folded", INT, "raw lines folded into this row, 1 = not folded"),
        Column("message", TEXT, "the line without its prefix; of a traceback the text of its first exception"),
    ),
    _table(
        "scheduler_events",
        "announced change of a job or a node",
        Column("host", TEXT, "node concerned; null = the whole job"),
        Column("state", TEXT, "what happens to it: draining, stopping, preempted, time_limit, cancelled, requeued, node_failure, resumed"),
        Column("reason", TEXT, "reason as written"),
        Column("is_planned", BOOL, "true = announced or on purpose; false = a failure; null = not told"),
        Column("by", TEXT, "operator, scheduler, user, autoscaler, ...; null = not told"),
        Column("changed_at", INSTANT, "when; null unless the file gives date, year and zone"),
        Column("changed_at_local", TEXT, "what the file gives instead"),
    ),
    _table(
        "hosts",
        "host, per file that describes it",
        Column("host", TEXT, "host, lower-case first label"),
        Column("boot_at", INSTANT, "when it booted: places kernel lines that count from there"),
        Column("zone_offset_s", FLOAT, "local time minus UTC, s, where given"),
        lead=_FROM,
    ),
    _table(
        "clock_anchors",
        "place in a kernel log where a second clock stands beside the first, or where a host boots",
        Column("host", TEXT, "host, where the line or the file's name says so"),
        Column("boot_id", TEXT, "boot of that host, where given"),
        Column(
            "kind",
            TEXT,
            "epoch: the line holds seconds since 1970 beside its stamp; pair: wall clock and time since boot in one line; boot: a kernel starts; "
            "set: the wall clock was set; month: the first line seen of another month, or the last line, where stamps lack the year",
        ),
        Column("told_at", INSTANT, "the instant that the line tells; null where it tells none"),
        Column("told_at_local", TEXT, "its stamp without zone, as in kernel_events"),
        Column("uptime_s", FLOAT, "since boot, s, where printed"),
        lead=_FROM,
    ),
    _table(
        "host_addresses",
        "network address of a host, per place that says so",
        Column("host", TEXT, "host, lower-case first label; null where only the rank is told"),
        RANK,
        Column("address", TEXT, "IP address as written, without port and interface; or another name that a transport gives the host"),
        Column("interface", TEXT, "interface that it belongs to, where told"),
        lead=_FROM,
    ),
    _table(
        "configs",
        "component of a host (or of a rank's process) and its version, setting or hash",
        Column("host", TEXT, "host, lower-case first label; null where only the rank is told"),
        RANK,
        Column(
            "component", TEXT, "nvidia_driver, kernel, nccl, torch, vbios, image:NAME, env:NAME, pip:NAME, firmware:DEVICE, hash:FILE, ..."
        ),
        Column("value", TEXT, "version, setting or hash, as the source writes it"),
        Column(
            "source",
            TEXT,
            "capture, kernel_log, nccl_log, nccl_mismatch (it refused two ranks), torch_log, nvidia_smi, pip, env, collect_env, kubernetes, table",
        ),
        Column("observed_at", INSTANT, "when it was so; null where the source gives no date, year and zone"),
        lead=_FROM,
    ),
    _table(
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
        lead=(*_FROM, JOB, ATTEMPT),
    ),
    _table(
        "incidents",
        "interruption dealt with, newest revision of its record",
        Column("incident_id", TEXT, "incident"),
        JOB,
        ATTEMPT,
        Column("revision", INT, "how often the record was closed, 1 = once"),
        Column("began_at", INSTANT, "when the fault first showed"),
        Column("opened_at", INSTANT, "when somebody began to deal with it"),
        Column("detected_at", INSTANT, "when it was noticed"),
        Column("closed_at", INSTANT, "when it was closed"),
        Column("attribution", TEXT, "platform, workload, planned, none, unknown: as stated"),
        Column("layer", TEXT, "layer of the stated cause"),
        Column("cause", TEXT, "cause as stated: the verdict, unless a person overruled it"),
        Column("proven_cause", TEXT, "cause that a replay or probe proved; null = none did"),
        Column("is_overruled", BOOL, "a person changed what the verdict said"),
        Column("because", TEXT, "reason of the attribution"),
        Column("action", TEXT, "what was done first"),
        Column("ranks", INTS, "ranks that failed first"),
        Column("hosts", TEXTS, "hosts that failed first"),
        Column("gpus", TEXTS, "GPUs that failed first"),
        Column("evicted", TEXTS, "hosts taken out"),
        Column("code_version", TEXT, "of the training code"),
        Column("world_size", INT, "ranks of the job"),
        Column("num_gpus", INT, "GPUs that stood idle"),
        Column("lost_gpu_s", FLOAT, "GPU seconds from the fault to the step that made up for it; recomputation not counted"),
        Column("recomputed_steps", INT, "steps done a second time"),
        Column("recomputed_s", FLOAT, "how long these took, s"),
        Column("recomputed_tokens", INT, "tokens seen a second time"),
        Column("recurs_incident_id", TEXT, "earlier incident that this one repeats"),
        Column("summary", TEXT, "one sentence"),
        lead=_FROM,
    ),
    _table(
        "stages",
        "incident x stage",
        Column("incident_id", TEXT, "incident"),
        Column("stage", TEXT, "detect, localize, queue, replace, load, rebuild, warmup, validate, resume"),
        Column("started_at", INSTANT, "when it began"),
        Column("ended_at", INSTANT, "when it ended; null = not told"),
        Column("budget_s", FLOAT, "allowed, s; null = no budget"),
        Column("origin", TEXT, "evidence or hand"),
        lead=_FROM,
    ),
    _table(
        "notes",
        "note on an incident: what a person (or the tool for one) wrote down",
        Column("incident_id", TEXT, "incident"),
        Column("noted_at", INSTANT, "when it was written"),
        Column("kind", TEXT, "open, note, stage, overrule, close"),
        Column("author", TEXT, "who wrote it; null = not told"),
        Column("text", TEXT, "in words"),
        Column("data", TEXT, "what it states beside the words, as JSON"),
        lead=_FROM,
    ),
    _table(
        "replays",
        "host and run of a replay group",
        Column("replay_id", TEXT, "replay"),
        Column("phase", TEXT, "horizontal, vertical or double_run"),
        Column("group_number", INT, "number of the group in its phase"),
        Column("repeat", INT, "how often the same was run before"),
        Column("host", TEXT, "host, lower-case first label"),
        Column("place", INT, "place in its group: what is computed there must be the same in every group"),
        Column("step", INT, "step that the fingerprint is of"),
        Column("fingerprint", TEXT, "of the bits that the host computed"),
        Column("expected", TEXT, "of the bits that it should have; null = no reference"),
        Column("outcome", TEXT, "equal, differs, missing"),
        Column("ran_at", INSTANT, "when it ended"),
        lead=_FROM,
    ),
    _table(
        "outcomes",
        "analysis that was asked",
        Column("analysis", TEXT, "question"),
        Column("status", TEXT, "found, clear, blind (did not or could not look), failed"),
        Column("why", TEXT, "reason in words"),
        lead=(),
    ),
    _table(
        "findings",
        "thing that an analysis saw",
        Column("finding_id", TEXT, "analysis/sign/8 hex digits of its scope"),
        Column("analysis", TEXT, "question"),
        Column("sign", TEXT, "kind of observation"),
        Column("ranks", INTS, "accused ranks; empty = the sign accuses nobody"),
        Column("hosts", TEXTS, "hosts of the accused"),
        Column("groups", TEXTS, "process groups concerned"),
        Column("explains", INTS, "ranks that only wait because of this"),
        Column("says", TEXT, "the observation in words"),
        Column("numbers", TEXT, "its figures, as JSON"),
        lead=(),
    ),
    _table(
        "cites",
        "row that a finding rests on",
        Column("finding_id", TEXT, "finding"),
        Column("table", TEXT, "table of the row"),
        EVIDENCE_ID,
        Column("path", TEXT, "file"),
        RECORD,
        Column("text", TEXT, "what stands there"),
        lead=(),
    ),
    _table(
        "hypotheses",
        "cause with the ranks it accuses",
        Column("cause", TEXT, "cause"),
        Column("layer", TEXT, "layer of the cause"),
        Column("ranks", INTS, "accused ranks"),
        Column("hosts", TEXTS, "their hosts"),
        Column("probability", FLOAT, "posterior, 0..1; all rows sum to 1"),
        Column("supports", TEXTS, "findings that speak for it"),
        Column("against", TEXTS, "findings that speak against it"),
        lead=(),
    ),
)

TABLES: Final[Mapping[str, Table]] = {table.name: table for table in _ALL}
