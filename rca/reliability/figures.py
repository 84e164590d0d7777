"""What faults cost in a stretch of time, whose they are, whether they come back: every figure with unit, numerator, denominator and what was
left out. docs/reliability.md gives the definitions.

1. An incident is counted once, in the window in which it began; times are cut at the window's edges. So the windows of two weeks add up.
2. A failure is an interruption that nobody planned: of the platform, of the workload, or not attributed. What was planned is never counted
   against the platform, and neither is an alarm that turned out to be nothing.
3. A job that still runs is observed up to the window's end and adds no failure (censored).
4. What was not recorded is left out and counted in `left_out`. A sum of which parts are unknown is a lower bound; one of which all is unknown
   is None, and so is every figure of a stretch of which nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import polars as pl

from rca.causes import WHOLE_BUDGET_S
from rca.reliability import formulas
from rca.reliability.breakdowns import KINDS, began_in, with_lost
from rca.reliability.effective import effective, is_seen, stretches
from rca.reliability.ledger import FAILURE, Ledger, length_s
from rca.reliability.window import Figure, Window

__all__ = ["figures"]

HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0


def figures(ledger: Ledger, window: Window) -> dict[str, Figure]:
    """Every figure of the window, by name."""
    began = began_in(ledger, window)
    failures, planned = began.filter(pl.col("kind") == "failure"), began.filter(pl.col("kind") == "planned")
    interruptions = began.filter(pl.col("kind") != "none")
    found = [*_counts(ledger, window, began), *_rates(ledger, window, interruptions), *_repair(ledger, failures)]
    found += [*effective(ledger, window), *_lost(ledger, window)]
    for name, says, frame in (("", "", failures), ("_planned", " by planned stops", planned)):
        seen = is_seen(ledger, window) or bool(began.height)
        found += [
            _sum(f"recomputed_steps{name}", f"steps done a second time{says}", "steps", frame["recomputed_steps"], seen),
            _sum(f"recomputed_tokens{name}", f"tokens seen a second time{says}", "tokens", frame["recomputed_tokens"], seen),
        ]
    found += [
        _share("recurrence_share", "failures that repeat an earlier one", failures, pl.col("repeats").is_not_null()),
        _share("overruled_share", "incidents whose verdict a person changed", began, pl.col("is_overruled")),
        _share("unknown_share", "interruptions of unknown cause", interruptions, pl.col("cause") == "unknown"),
        _share("unattributed_share", "interruptions that nobody is known to answer for", interruptions, pl.col("attribution") == "unknown"),
    ]
    return {figure.name: figure for figure in found}


def _counts(ledger: Ledger, window: Window, began: pl.DataFrame) -> Iterable[Figure]:
    """How many interruptions, of each kind."""
    is_known = is_seen(ledger, window) or bool(began.height)

    def count(name: str, says: str, rows: pl.DataFrame) -> Figure:
        why = None if is_known else "no job and no incident is recorded of this time"
        return Figure(name, says, float(rows.height) if is_known else None, "incidents", n=began.height, why=why)

    yield count("interruptions", "stops, planned or not", began.filter(pl.col("kind") != "none"))
    yield count("failures", "unplanned interruptions", began.filter(pl.col("kind") == "failure"))
    for name in KINDS:
        says = {"unknown": "failures that nobody is known to answer for", "planned": "planned interruptions"}
        word = says.get(name, f"failures of the {name}")
        yield count(f"{name}_interruptions", word, began.filter(pl.col("attribution") == name))
    yield count("false_alarms", "incidents that turned out to be nothing", began.filter(pl.col("kind") == "none"))


def _rates(ledger: Ledger, window: Window, interruptions: pl.DataFrame) -> Iterable[Figure]:
    """Job hours, node-days, time between failures. Failures of a job whose time, or number of hosts then, is not recorded are left out of both
    sides."""
    parts = stretches(ledger, window)
    hours = length_s(part for _, part in parts) / HOUR_S
    jobs = len({spell.job_id for spell, _ in parts})
    sized = [(spell.num_hosts, length_s([part])) for spell, part in parts if spell.num_hosts is not None]
    node_days = sum(hosts * seconds for hosts, seconds in sized) / DAY_S
    unsized = len(parts) - len(sized)
    none = None if parts else "no launch of a job is recorded of this time"
    yield Figure("job_hours", "time that jobs were under way, downtime included", hours if parts else None, "h", n=jobs, why=none)
    yield Figure(
        "node_days", "the same, times hosts", node_days if sized else None, "node-days", n=len(sized), left_out=unsized,
        why="of no launch the number of hosts is recorded" if parts and not sized else none,
    )  # fmt: skip
    timed = interruptions.filter(pl.col("job_id").is_in(list(ledger.jobs)))
    groups: list[tuple[str, str, pl.Expr]] = [
        ("mtbf", "job hours between failures", pl.col("kind") == "failure"),
        ("mtbf_platform", "job hours between failures of the platform", pl.col("attribution") == "platform"),
        ("mtbf_workload", "job hours between failures of the workload", pl.col("attribution") == "workload"),
        ("mtbi", "job hours between interruptions, planned ones included", pl.lit(value=True)),
    ]
    for name, says, rule in groups:
        count = timed.filter(rule).height
        yield _between(name, says, count, hours, left_out=interruptions.filter(rule).height - count)
    unplanned = interruptions.filter(pl.col("kind") == "failure")
    failures = sum(_on_known_hosts(ledger, job, at) for job, at in unplanned.select("job_id", "at").iter_rows())
    bounds = [formulas.per_1000(1, node_days * 24.0 / b) if b and node_days else 0.0 for b in formulas.poisson_interval(failures)]
    yield Figure(
        "failures_per_1000_node_days", "failures per 1,000 node-days", formulas.per_1000(failures, node_days * 24.0), "1/1000 node-days",
        float(failures), node_days / 1000.0 if sized else None, n=failures, left_out=unplanned.height - failures,
        low=bounds[0] if node_days else None, high=bounds[1] if node_days else None, why=None if node_days else "no node-days are recorded",
    )  # fmt: skip


def _on_known_hosts(ledger: Ledger, job: str | None, at: datetime) -> bool:
    """Whether the launch of the job that was under way then tells its number of hosts; before the first one, the first."""
    launches = ledger.launches.get(job or "", ())
    under_way = [spell for spell in launches if spell.started_at <= at] or list(launches[:1])
    return bool(under_way) and under_way[-1].num_hosts is not None


def _between(name: str, says: str, count: int, hours: float, *, left_out: int) -> Figure:
    """A mean time between events, with the bounds that the exact interval of their number gives."""
    if hours <= 0:
        return Figure(name, says, None, "h", float(count), None, n=count, left_out=left_out, why="no job hours are recorded")
    few, many = formulas.poisson_interval(count)
    low, high = hours / many, hours / few if few else None
    why = f"0 in {_short(hours)} h: at least {_short(low)} h, at 95 %" if not count else None
    return Figure(
        name, says, formulas.mean_time(count, hours), "h", hours, float(count), n=count, left_out=left_out, low=low, high=high, why=why
    )


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.3g}"


def _repair(ledger: Ledger, failures: pl.DataFrame) -> Iterable[Figure]:
    """Time to recover of failures that are over, and how many kept to the budget of the whole."""
    lengths = failures["length_s"].drop_nulls()
    left = failures.height - len(lengths)
    why = None if len(lengths) else "no failure" if not failures.height else "of no failure the end of its resume stage is recorded"
    quantiles: list[tuple[str, str, Callable[[], Any]]] = [
        ("mttr_mean", "mean time to recover", lengths.mean),
        ("mttr_median", "median time to recover", lengths.median),
        ("mttr_p90", "time to recover of the ninth in ten", lambda: lengths.quantile(0.9, "linear")),
    ]
    for name, says, value in quantiles:
        total = float(lengths.sum()) if name == "mttr_mean" and len(lengths) else None
        under = float(len(lengths)) if total is not None else None
        yield Figure(name, says, value(), "s", total, under, n=len(lengths), left_out=left, why=why)
    over = int((lengths > WHOLE_BUDGET_S).sum())
    says = f"failures that took longer than {WHOLE_BUDGET_S:.0f} s"
    yield Figure(
        "over_budget_share",
        says,
        formulas.share(over, len(lengths)),
        "",
        float(over),
        float(len(lengths)),
        n=len(lengths),
        left_out=left,
        why=why,
    )


def _lost(ledger: Ledger, window: Window) -> Iterable[Figure]:
    """GPU hours from fault to resumed training, by whose they are. Two incidents of one job at once count twice here, once in the ratio."""
    rows = with_lost(ledger, window)
    seen = is_seen(ledger, window) or bool(rows.height)
    groups = [("lost_gpu_h", "GPU hours lost to failures", FAILURE), *((f"lost_gpu_h_{k}", f"of them: {k}", (k,)) for k in KINDS)]
    for name, says, words in groups:
        word = "GPU hours of planned stops" if name.endswith("planned") else says
        own = rows.filter(pl.col("attribution").is_in(words))
        no_end = own.filter(pl.col("lost_s").is_not_null() & pl.col("recovered_at").is_null()).height
        yield _sum(name, word, "GPU h", own["lost_s"] / HOUR_S, seen, cut_short=no_end)


def _sum(name: str, says: str, unit: str, values: pl.Series, seen: bool, *, cut_short: int = 0) -> Figure:  # noqa: FBT001
    """A sum over what is known: null when nothing is, a lower bound when something is missing (or `cut_short`: known in part), 0 only when
    there was nothing to sum."""
    known = values.drop_nulls()
    left = len(values) - len(known) + cut_short
    value = float(known.sum()) if (len(known) or not left) and seen else None
    why = None if value is not None and not left else f"at least: {left} not recorded to the end" if value is not None else "not recorded"
    return Figure(name, says, value, unit, n=len(known), left_out=left, why=why)


def _share(name: str, says: str, rows: pl.DataFrame, rule: pl.Expr) -> Figure:
    told = rows.select(rule.alias("is_so"))["is_so"]
    known = told.drop_nulls()
    part = int(known.sum())
    why = None if len(known) else "nothing to count"
    return Figure(
        name,
        says,
        formulas.share(part, len(known)),
        "",
        float(part),
        float(len(known)),
        n=len(known),
        left_out=len(told) - len(known),
        why=why,
    )
