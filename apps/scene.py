"""What the pictures of an incident show, as frames: the state of every rank, who waits for whom, what each host showed first."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from rca.tables import TABLES

if TYPE_CHECKING:
    from rca.judge import Judgement
    from rca.types import Tables

__all__ = ["EARLY", "first_events", "rank_states", "stages_so_far", "wait_links"]

EARLY = timedelta(minutes=10)  # before the job's first sign of life: what a node went through then may have to do with its start
FULL_STAMP = "%Y-%m-%dT%H:%M:%S%.f"  # of a printed local time that names its year
EVENTS = pl.Schema(
    [
        ("at", pl.Datetime("us", "UTC")),
        ("is_utc", pl.Boolean),
        ("lane", pl.String),
        ("kind", pl.String),
        ("what", pl.String),
        ("count", pl.Int64),
    ]
)
STATES = pl.Schema([("rank", pl.Int64), ("host", pl.String), ("state", pl.String), ("says", pl.String)])


def first_events(case: Tables, judgement: Judgement) -> tuple[pl.DataFrame, int, int]:
    """The first event of each kind on each host, with how many there are; how many kinds could not be placed in time; how many events are left
    out, since they lie more than `EARLY` before the job was there (and before the fault).

    From kernel and scheduler events, lines of level warning or error, and the last call that a rank's recorder holds. Columns as
    `charts.event_timeline` takes them; a printed time without zone stands as it is with `is_utc` false.
    """
    hosts = judgement.roster.hosts
    kernel = _kernel_rows(case).select(
        _at("logged_at"),
        _is_utc("logged_at"),
        pl.col("host").fill_null("host not named").alias("lane"),
        pl.lit("kernel event").alias("kind"),
        pl.concat_str(pl.col("kind"), pl.col("code").cast(pl.String), separator=" ", ignore_nulls=True).alias("sort"),
        pl.col("message").alias("text"),
        pl.col("num_folded").alias("count"),
    )
    of_rank = pl.col("rank").replace_strict(hosts, default=None, return_dtype=pl.String)
    lane = pl.coalesce("host", of_rank, pl.concat_str(pl.lit("rank "), pl.col("rank").cast(pl.String)), pl.lit("job"))
    logs = (
        case.table("log_events")
        .filter(pl.col("level").is_in(["warning", "error"]))
        .select(
            _at("logged_at"),
            _is_utc("logged_at"),
            lane.alias("lane"),
            pl.concat_str(pl.lit("log "), "level").alias("kind"),
            pl.concat_str(pl.lit("rank "), pl.col("rank").cast(pl.String), pl.lit(": "), "signature")
            .fill_null(pl.col("signature"))
            .alias("sort"),
            pl.col("message").alias("text"),
            pl.col("num_folded").alias("count"),
        )
    )
    scheduler = case.table("scheduler_events").select(
        _at("changed_at"),
        _is_utc("changed_at"),
        pl.col("host").fill_null("job").alias("lane"),
        pl.lit("scheduler event").alias("kind"),
        pl.col("state").alias("sort"),
        pl.col("reason").alias("text"),
        pl.lit(1, pl.Int64).alias("count"),
    )
    calls = (
        case.table("dumps")
        .group_by("rank")
        .agg(pl.col("last_at").max())
        .select(
            pl.col("last_at").alias("at"),
            pl.lit(value=True).alias("is_utc"),
            pl.coalesce(of_rank, pl.concat_str(pl.lit("rank "), pl.col("rank").cast(pl.String)), pl.lit("job")).alias("lane"),
            pl.lit("last recorded call").alias("kind"),
            pl.concat_str(pl.lit("rank "), pl.col("rank").cast(pl.String)).fill_null("a rank not known").alias("sort"),
            pl.lit("last call that its recorder holds").alias("text"),
            pl.lit(1, pl.Int64).alias("count"),
        )
    )
    everything = pl.concat([part.collect() for part in (kernel, logs, scheduler, calls)])
    since = _since(case, judgement)
    is_early = (pl.col("is_utc") & (pl.col("at") < since)).fill_null(value=False) if since is not None else pl.lit(value=False)
    num_early = int(everything.filter(is_early)["count"].sum())
    found = (
        everything.filter(~is_early)
        .sort("at", "is_utc", "sort", "text", nulls_last=True)
        .group_by("lane", "kind", "sort", maintain_order=True)
        .agg(pl.col("at", "is_utc", "text").first(), pl.col("count").sum())
    )
    what = pl.concat_str(pl.col("sort"), pl.col("text"), separator=": ", ignore_nulls=True).alias("what")
    placed = found.filter(pl.col("at").is_not_null()).select("at", "is_utc", "lane", "kind", what, "count")
    return placed.cast(EVENTS).sort("at", "lane", "what"), found["at"].null_count(), num_early


def _kernel_rows(case: Tables) -> pl.LazyFrame:
    """Rows of `kernel_events`, each event once however many files tell it, with the instant that the clocks of its host tell."""
    from rca.kernel_record import kernel_records

    schema = TABLES["kernel_events"].schema
    rows = [{**record.row, "logged_at": record.at} for record in case.derive(kernel_records)]
    return pl.from_dicts(rows, schema=schema).lazy() if rows else pl.LazyFrame(schema=schema)


def _since(case: Tables, judgement: Judgement) -> datetime | None:
    """From when on events are those of the job; None where nothing tells when it was there."""
    from rca.incidents.course import course

    told = course(case, judgement.verdict)
    signs = [at for at in (told.launched_at or told.first_at, judgement.verdict.failed_at) if at is not None]
    return min(signs) - EARLY if signs else None


def _at(column: str) -> pl.Expr:
    local = pl.col(f"{column}_local").str.to_datetime(FULL_STAMP, strict=False, time_unit="us").dt.replace_time_zone("UTC")
    return pl.coalesce(column, local).alias("at")


def _is_utc(column: str) -> pl.Expr:
    return pl.col(column).is_not_null().alias("is_utc")


def rank_states(case: Tables, judgement: Judgement) -> pl.DataFrame:
    """Every rank with its host, its state (one of `charts.RANK_STATES`) and why.

    First failing: the verdict's. Accused by another finding: named, but not by the verdict. Waits: explained by a finding, or its recorder or
    stack shows it inside a call that is not over. Not seen: no evidence of its own. Else nothing speaks against it.
    """
    verdict, who = judgement.verdict, judgement.roster
    findings = [f for o in judgement.outcomes for f in o.findings]
    waits = _waits(case)
    for finding in findings:
        waits |= {rank: waits.get(rank, "waits for the ranks that failed") for rank in finding.explains}
    accused = {rank: finding.says for finding in reversed(findings) for rank in finding.ranks}
    rows: list[dict[str, Any]] = []
    for rank in sorted(who.everyone):
        if rank in verdict.ranks:
            state, says = "first failing", verdict.summary
        elif rank in accused and rank not in waits:
            state, says = "accused by another finding", accused[rank]
        elif rank in waits:
            state, says = "waits", waits[rank]
        elif not any(rank in seen for seen in who.ranks_with.values()):
            state, says = "not seen", "no evidence of its own: only its peers tell of it"
        else:
            state, says = "nothing against it", "left evidence, and nothing in it speaks against this rank"
        rows.append({"rank": rank, "host": who.hosts.get(rank), "state": state, "says": says})
    return pl.DataFrame(rows, schema=STATES)


def _waits(case: Tables) -> dict[int, str]:
    """Ranks inside a call that is not over, and in which."""
    from rca.analyses._stack_views import main_views, seen
    from rca.analyses._waits import build_waits

    graph = case.derive(build_waits)
    found: dict[int, str] = {}
    for rank, views in case.derive(main_views).items():
        kind = seen(views)[-1].wait_kind if seen(views) else None
        if kind in ("collective", "p2p"):
            found[rank] = f"its stack is inside a {'collective' if kind == 'collective' else 'send or receive'}"
    for rank, call in graph.first.items():
        found[rank] = f"waits in {graph.name(call)}" + (f" for rank {_few(graph.ways_out(rank))}" if graph.ways_out(rank) else "")
    return found


def _few(ranks: frozenset[int]) -> str:
    some = sorted(ranks)
    return ", ".join(map(str, some[:6])) + (f" and {len(some) - 6} more" if len(some) > 6 else "")


def wait_links(case: Tables) -> list[tuple[int, int]]:
    """(waiting, awaited) ranks as the recorders tell, sorted."""
    from rca.analyses._waits import build_waits

    graph = case.derive(build_waits)
    return sorted((rank, other) for rank in graph.first for other in graph.ways_out(rank))


def stages_so_far(notes: pl.DataFrame) -> pl.DataFrame:
    """Stages of an incident that is not closed, as its notes tell them; columns of the table `stages` but for the incident and its place."""
    from rca.incidents.incident import stages_of
    from rca.incidents.records import instant

    told = []
    for row in notes.iter_rows(named=True):
        data = json.loads(row["data"] or "{}")
        told.append({"kind": row["kind"], "text": row["text"] or "", "by": row["author"], "data": data if isinstance(data, dict) else {}})
    rows = [
        {
            "stage": stage["stage"],
            "started_at": instant(stage["started_at"]),
            "ended_at": instant(stage["ended_at"]),
            "budget_s": stage["budget_s"],
            "origin": stage["origin"],
        }
        for stage in stages_of(told)
    ]
    return TABLES["stages"].rows(rows)
