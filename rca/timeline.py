"""A case as a timeline that Perfetto and chrome://tracing open: a process for each rank and each host, a mark where the first failure is. Pure.

Format: Chrome's trace events (JSON object form). Spans are complete events (`X`), moments instant ones (`i`); times are microseconds after the first
instant of the case. Spans that overlap lie on tracks of their own, since a track may only nest. What has no instant is left out, and counted.
A call whose end is known and its instant not (gloo's recorder writes none) is drawn to where its rank went on, and says `end: at the latest`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import polars as pl

from rca.causes import CAUSES
from rca.types import Tables, Verdict

__all__ = ["MAX_ROWS", "timeline"]

MAX_ROWS: Final = 100_000  # of a table: the last ones, which are those before the end
HOSTS, JOB = 10_000_000, 20_000_000  # first numbers of processes that are no rank
LANES: Final = 1000  # tracks of one kind
SPANS: Final = (  # table, track, what it is called, begin, end or None, length or None
    ("steps", "steps", "step", ("started_at",), None, "step_s"),
    ("spans", "spans", "span", ("started_at",), None, "span_s"),
    ("ops", "ops", "op", ("started_at",), None, "op_s"),
    ("collectives", "calls", "op", ("started_at", "created_at"), "completed_at", None),
)
PHASES: Final = ("data_s", "compute_s", "comm_s", "checkpoint_s")
MOMENTS: Final = (
    ("log_events", "log", "signature", "logged_at"),
    ("kernel_events", "kernel", "kind", "logged_at"),
    ("node_events", "node", "reason", "logged_at"),
    ("scheduler_events", "scheduler", "state", "changed_at"),
    ("trainer_events", "trainer", "event", "logged_at"),
)
ARGS: Final = (
    "step",
    "stage",
    "group_id",
    "collective_seq_id",
    "state",
    "code",
    "gpu",
    "severity",
    "exception",
    "exit_code",
    "path",
    "record",
)
LANE: Final = ("evidence_id", "rank", "group_id", "is_p2p", "src", "dst")  # calls of one lane end in the order in which they were made
AT_THE_LATEST: Final = "at the latest: the recorder has no instant of it; a rank that did not wait for it may have gone on before"
MAX_TEXT: Final = 300
SCHEMA: Final = "rca.timeline/1"


class _Tracks:
    """Numbers of tracks, and what they are called."""

    def __init__(self, zero: int) -> None:
        self.zero = zero
        self.events: list[dict[str, Any]] = []
        self._tracks: dict[tuple[int, str], int] = {}
        self._free: dict[tuple[int, str], list[int]] = defaultdict(list)  # when each lane is free
        self._hosts: dict[str, int] = {}

    def process(self, rank: int | None, host: str | None) -> int:
        """That of the rank, else of the host, else of the job."""
        if rank is not None and 0 <= rank < HOSTS:
            return rank
        return JOB if host is None else HOSTS + self._hosts.setdefault(host, len(self._hosts))

    def _track(self, pid: int, name: str) -> int:
        return self._tracks.setdefault((pid, name), len(self._tracks) + 1)

    def span(self, pid: int, track: str, name: str, begin: int, length: int, args: Mapping[str, Any]) -> None:
        ends = self._free[pid, track]
        lane = next((n for n, end in enumerate(ends) if end <= begin), len(ends))
        if lane == len(ends) and lane < LANES:
            ends.append(0)
        lane = min(lane, LANES - 1)
        ends[lane] = begin + length
        tid = self._track(pid, track if lane == 0 else f"{track} {lane + 1}")
        self.events.append(
            {"ph": "X", "name": name, "cat": track, "ts": begin - self.zero, "dur": length, "pid": pid, "tid": tid, "args": dict(args)}
        )

    def moment(self, pid: int, track: str, name: str, at: int, args: Mapping[str, Any], *, scope: str = "t") -> None:
        tid = self._track(pid, track)
        self.events.append(
            {"ph": "i", "name": name, "cat": track, "ts": at - self.zero, "s": scope, "pid": pid, "tid": tid, "args": dict(args)}
        )

    def names(self) -> Iterator[dict[str, Any]]:
        """The events that name processes and tracks."""
        hosts = {HOSTS + number: f"host {host}" for host, number in self._hosts.items()}
        for pid in sorted({pid for pid, _ in self._tracks}):
            title = hosts.get(pid, "job" if pid == JOB else f"rank {pid}")
            place = 0 if pid == JOB else pid + 1
            yield {"ph": "M", "name": "process_name", "ts": 0, "pid": pid, "tid": 0, "args": {"name": title}}
            yield {"ph": "M", "name": "process_sort_index", "ts": 0, "pid": pid, "tid": 0, "args": {"sort_index": place}}
        for (pid, name), tid in self._tracks.items():
            yield {"ph": "M", "name": "thread_name", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def timeline(case: Tables, verdict: Verdict) -> dict[str, Any]:
    """The document. `otherData` says when it begins, what the verdict is, and what was left out of each table and why."""
    frames, left_out = {}, {}
    for table, times in {**{t: begin for t, _, _, begin, _, _ in SPANS}, **{t: (at,) for t, _, _, at in MOMENTS}}.items():
        frames[table], left_out[table] = _last(case, table, times)
    frames["collectives"] = _with_bounds(frames["collectives"])
    begins = [int(frame["_at"][0]) for frame in frames.values() if frame.height]
    zero, last = min(begins, default=0), max((int(frame["_at"][-1]) for frame in frames.values() if frame.height), default=0)
    failed = _microseconds(verdict.failed_at)
    if failed is not None and not begins:
        zero = last = failed
    tracks = _Tracks(zero)
    for table, track, name, _, end, length in SPANS:
        for row in frames[table].iter_rows(named=True):
            _add_span(tracks, row, track, name, end, length, last)
    for table, track, name, _ in MOMENTS:
        for row in frames[table].iter_rows(named=True):
            text = {"message": row["message"][:MAX_TEXT]} if row.get("message") else {}
            tracks.moment(
                tracks.process(row.get("rank"), row.get("host")), track, str(row.get(name) or table), row["_at"], _args(row) | text
            )
    if failed is not None:
        mark = _mark(verdict)
        told = {"summary": verdict.summary, "cause": verdict.cause, "probability": verdict.probability}
        for pid, scope in ((JOB, "g"), *((rank, "p") for rank in verdict.ranks)):
            tracks.moment(pid, "verdict", mark, failed, told, scope=scope)
    begin = datetime.fromtimestamp(tracks.zero / 1e6, UTC).isoformat() if begins or failed is not None else None
    why = f"of each table the last {MAX_ROWS:,} rows that have an instant"
    other: dict[str, Any] = {
        "schema_version": SCHEMA,
        "begins_at": begin,
        "verdict": verdict.summary,
        "has_moment_of_failure": failed is not None,
    }
    other["left_out"] = {table: dict(counts) for table, counts in left_out.items() if any(counts.values())}
    events = sorted(tracks.events, key=lambda e: (e["ts"], -e.get("dur", 0)))
    return {
        "otherData": {**other, "shows": why},
        "displayTimeUnit": "ms",
        "traceEvents": [*tracks.names(), *events],
    }  # told by its first bytes


def _last(case: Tables, table: str, times: tuple[str, ...]) -> tuple[pl.DataFrame, dict[str, int]]:
    """The last rows of a table with their microseconds since 1970 as `_at`, in order, and how many are missing for which reason."""
    at = pl.coalesce([pl.col(name) for name in times]).dt.epoch("us").alias("_at")
    rows = case.table(table).drop("frames", strict=False)
    (counts,) = rows.select(pl.len().alias("all"), at.is_not_null().sum().alias("dated")).collect().iter_rows(named=True)
    frame = rows.with_columns(at).filter(pl.col("_at").is_not_null()).sort("_at", maintain_order=True).tail(MAX_ROWS).collect()
    return frame, {"without_an_instant": counts["all"] - counts["dated"], "earlier": counts["dated"] - frame.height}


def _with_bounds(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls with `_ended` (known to have ended) and `_bound`, us: when they had at the latest, where the recorder has no instant of the end.

    Ended has what is completed, what gloo retired, and what lies before such a call in its lane. Who uses gloo waits for a call before the next one
    of the group, or of any group; NCCL's calls are queued, and run one after another: there the next one's start tells.
    """
    is_gloo = (pl.col("backend") == "gloo").fill_null(value=False)
    done = ((pl.col("state") == "completed") | pl.col("completed_at").is_not_null() | (is_gloo & pl.col("is_retired"))).fill_null(
        value=False
    )
    seen = pl.when(is_gloo).then(pl.col("created_at")).otherwise(pl.coalesce("started_at", "completed_at")).dt.epoch("us")
    rows = calls.sort("record_id", "_at", maintain_order=True).with_columns(done.cast(pl.Int8).alias("_done"), seen.alias("_seen"))
    rows = rows.with_columns(
        (pl.col("_done").cum_max(reverse=True).over(LANE) == 1).alias("_ended"),
        pl.col("_seen").shift(-1).over(LANE).alias("_next"),
        pl.when(is_gloo).then(pl.col("_seen").shift(-1).over("evidence_id", "rank")).alias("_next_of_any"),
    )
    bound = pl.coalesce("_next", "_next_of_any")
    return rows.with_columns(pl.when("_ended").then(bound).alias("_bound")).sort("_at", maintain_order=True)


def _mark(verdict: Verdict) -> str:
    """What the mark at the verdict's moment says, in the verdict's own sense: a job that was told to stop has no first failure."""
    cause = verdict.cause.replace("_", " ")
    if CAUSES[verdict.cause].attribution == "planned" and not verdict.ranks:
        return f"told to stop: {cause}, nothing failed"
    if verdict.cause == "healthy":
        return "no fault"
    who = f"rank {', '.join(map(str, verdict.ranks))}" if verdict.ranks else ", ".join(verdict.hosts) or "nobody named"
    return f"first failure: {who}, {cause}"


def _add_span(tracks: _Tracks, row: Mapping[str, Any], track: str, name: str, end: str | None, length: str | None, last: int) -> None:
    begin, args = row["_at"], _args(row)
    if end is not None:
        ended = _microseconds(row[end])
        args |= {"ended": ended is not None or row["_ended"]}
        if ended is None and row["_ended"]:
            args |= {"end": AT_THE_LATEST}
            ended = row["_bound"]
        took = max((last if ended is None else ended) - begin, 0)
    else:
        took = max(int((row[str(length)] or 0.0) * 1e6), 0)
    pid = tracks.process(row.get("rank"), row.get("host"))
    title = f"step {row['step']}" if track == "steps" else str(row.get(name) or track)
    where = f"{track} {row['group_id']}" if row.get("group_id") else track
    tracks.span(pid, where, title, begin, took, args)
    if track == "steps":
        for phase in PHASES:
            if row.get(phase):
                told = {"place": "only its length is told: drawn from the beginning of its step"}
                tracks.span(pid, phase.removesuffix("_s"), phase.removesuffix("_s"), begin, int(row[phase] * 1e6), told)


def _args(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ARGS if row.get(name) is not None}


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1e6)
