"""What a report of a scheduler, cluster or health service tells of, and whose it is: rca/catalogue/health_reports.csv, the first that fits.

A hardware word comes before a planned one: a node that is drained because its GPU failed has not been drained on purpose.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from rca.catalogues import by_code, cached, rows

__all__ = ["NOTHING", "Told", "of_words", "of_xid"]

MAX_CHARS: Final = 2000  # of a report that are looked at


class Told(NamedTuple):
    """Kind of a report (`kind` of the catalogue, `xid`, `none`, `unknown`) and its attribution."""

    kind: str
    attribution: str


NOTHING: Final = Told("none", "none")  # a report that tells of no trouble
_UNKNOWN: Final = Told("unknown", "unknown")
_OF_PROGRAMS: Final = frozenset({"user_exception", "gpu_out_of_memory"})


@cached
def _patterns() -> tuple[tuple[re.Pattern[str], Told], ...]:
    return tuple((re.compile(row["pattern"], re.IGNORECASE), Told(row["kind"], row["attribution"])) for row in rows("health_reports"))


@lru_cache(maxsize=4096)
def of_words(*words: str | None) -> Told:
    """What words such as reason, code and message together tell of; `unknown` where no pattern fits."""
    text = " ".join(word for word in words if word)[:MAX_CHARS]
    return next((told for pattern, told in _patterns() if pattern.search(text)), _UNKNOWN)


def of_xid(code: int) -> Told:
    """Of a report of an Xid: as the catalogue of Xids says whose fault it usually is."""
    row = by_code("xid").get(code)
    cause = row["cause"] if row else ""
    return Told("xid", "unknown" if cause in ("", "unknown") else "workload" if cause in _OF_PROGRAMS else "platform")
