"""Which host's own metrics stay apart from those of the job's other hosts, and in what words?

1. Take what monitors write of every host (dynolog): each value a metric of its own. What names something, or only grows (counters, clocks), is
   none; metrics that fewer than four hosts have are not compared.
2. A host that stays far from the others for four minutes is odd (rca/analyses/_telemetry.py: Minder's rule with medians), and is told with those
   that are odd alike.
3. A note: a loaded processor or a full network can be the reason for a slow rank, and can be anything else.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import polars as pl

from rca.analyses._layout import hosts
from rca.analyses._telemetry import MIN_PEERS, MIN_SPAN_S, SCHEMA, lasted, odd_units
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("host_samples",)
USES = ("ranks", "steps", "dump_index", "log_events")
SIGNS = {"odd_host": Sign("mention", (), is_note=True)}

NAMES: Final = re.compile(r"(^|_)(id|ids|index|device|uptime|time|timestamp|epoch|port|pid|job|jobid|version|gpu)($|_)", re.I)
MAX_TOLD: Final = 4
MAX_CITES: Final = 6
LOCAL: Final = "%Y-%m-%dT%H:%M:%S%.f"


def analyse(case: Tables) -> Sequence[Finding]:
    """A note for each cluster of odd hosts."""
    at = (
        pl.coalesce(pl.col("logged_at").dt.epoch("us"), pl.col("logged_at_local").str.to_datetime(LOCAL, strict=False).dt.epoch("us")) / 1e6
    )
    samples = case.table("host_samples").filter(pl.col("host").is_not_null() & pl.col("metrics").is_not_null()).with_columns(at_s=at)
    taken = samples.drop_nulls("at_s").sort("host", "at_s", "evidence_id", "record").collect()
    own = set(hosts(case).values())
    taken = taken.filter(pl.col("host").is_in(sorted(own))) if own else taken
    if taken["host"].n_unique() < MIN_PEERS:
        raise NotEnoughEvidence(f"metrics of {taken['host'].n_unique()} hosts of the job with times: {MIN_PEERS} are needed to compare")
    if taken["at_s"].max() - taken["at_s"].min() < MIN_SPAN_S:  # type: ignore[operator]
        raise NotEnoughEvidence(f"metrics of less than {MIN_SPAN_S / 60:.0f} minutes do not show what stays apart")
    found = []
    for odd in odd_units(_gauges(taken)):
        names = ", ".join(odd.units[:MAX_TOLD])
        told = ", ".join(f"{d.metric} {d.own:,.4g} against {d.others:,.4g}" for d in odd.deviations[:MAX_TOLD])
        says = f"{names} stood apart from {len(odd.others)} other hosts for {lasted(odd)}: {told}"
        deviations = [{"metric": d.metric, "own": d.own, "others": d.others, "widths": round(d.widths, 1)} for d in odd.deviations]
        rows = taken.filter((pl.col("host") == odd.units[0]) & (pl.col("at_s") >= odd.since_s))
        middle = rows[len(rows) // 2 : len(rows) // 2 + 1].to_dicts()
        cites = tuple(Cite("host_samples", r["evidence_id"], "", r["record"], f"{r['host']}: {r['metrics'][:200]}") for r in middle)
        found.append(
            Finding(
                "odd_host", "odd_host", says, hosts=odd.units, scope=f"odd {odd.units}", cites=cites[:MAX_CITES],
                numbers={"deviations": deviations, "span_s": odd.span_s, "num_peers": len(odd.others)},
            )
        )  # fmt: skip
    return found


def _gauges(taken: pl.DataFrame) -> pl.DataFrame:
    """The metrics of all samples, one a row, without counters and names."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for host, text, at in taken.select("host", "metrics", "at_s").iter_rows():
        for name, value in json.loads(text).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and not NAMES.search(name):
                series[name, host].append((at, float(value)))
    falls: set[str] = set()
    rises: set[str] = set()
    for (name, _), points in series.items():
        steps = [two[1] - one[1] for one, two in pairwise(points)]
        falls |= {name} if min(steps, default=0.0) < 0 else set()
        rises |= {name} if max(steps, default=0.0) > 0 else set()
    counters = rises - falls
    rows = [(host, name, at, value) for (name, host), points in sorted(series.items()) if name not in counters for at, value in points]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")
