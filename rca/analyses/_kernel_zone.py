"""Whether any time zone brings the record of a lost device near the end of a trainer's log whose stamps tell none.

What a job dies or hangs of lies between its last step and the next. Zones are multiples of a quarter of an hour, so an instant that lies elsewhere
between two of them is of another time, whatever the zone. Only for logs that complain of nothing and print their steps often enough to tell.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Final

import polars as pl

from rca.local_time import QUARTER_S, filled
from rca.types import Tables

__all__ = ["may_be_at_the_end"]

MIN_STEPS: Final = 10  # with stamps, to know their usual distance
PATIENCE: Final = 5.0  # usual distances: how long after the last printed step a device that stops the job may be reported
PATIENCE_S: Final = 60.0  # at least: drivers report late
MOST_S: Final = 300.0  # of patience: a third of a quarter of an hour; beyond it any instant fits some zone too easily


def may_be_at_the_end(case: Tables, at: datetime) -> bool:
    """True unless the last printed step, in every zone, lies elsewhere."""
    printed = case.table("progress").filter(pl.col("ended_at").is_null()).select(pl.col("ended_at_local").drop_nulls()).unique().collect()
    naive = at.astimezone(UTC).replace(tzinfo=None)
    stamps = sorted(stamp for (text,) in printed.iter_rows() if (stamp := filled(text, naive)) is not None)
    if len(stamps) < MIN_STEPS:
        return True
    usual_s = median((b - a).total_seconds() for a, b in pairwise(stamps))
    patience_s = max(PATIENCE * usual_s, PATIENCE_S)
    behind_s = (naive - stamps[-1]) % timedelta(seconds=QUARTER_S) / timedelta(seconds=1)
    return patience_s > MOST_S or behind_s <= patience_s or behind_s >= QUARTER_S - max(usual_s, 1.0)
