"""Does a straggler detector's own report show one rank apart from its peers?

1. Take scores and times that a report gives rank by rank. The smallest and largest over all ranks (round trips, power, min and max of timers)
   compare nobody with anybody: they name no rank, whoever stands beside them.
2. Compare by the logarithm of how slow a rank is. It stands alone when it lies far behind the middle of the ranks, these lie near each other, and
   it is one of very few. A threshold alone is none: of healthy GPUs most may score below 0.75, as only the best is 1.
3. Several reports: it stands alone in the last and in most, or, where it became slow in mid-run, in each of the last few. Each report is compared
   by itself; of one that lists but the worst and best ranks, all others lie between these. A detector's warning that names the rank is its word.
4. Only scores of the GPU (kernels without communication) accuse, and times of computation among ranks of one pipeline stage; other sections hold
   waiting, data or other work, and are shown.
5. Where the job's own timings of computation show the rank as fast as its peers, the report is shown and accuses nobody.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import polars as pl

from rca.analyses._layout import hosts, stages
from rca.analyses._step_times import step_rows, times
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("rank_stats",)
USES = ("steps", "ranks", "groups", "memberships", "dump_index", "log_events", "trainer_events")
SIGNS = {
    "reported_slow": Sign("slowness", ("slow_rank", "gpu_fault", "unknown")),
    "many_below": Sign("mention", (), is_note=True),
    "apart_unaccused": Sign("mention", (), is_note=True),
}

THRESHOLD: Final = 0.75  # score below which detectors call a rank a straggler (NVRx's default)
APART: Final = -math.log(THRESHOLD)  # behind the middle of its peers
NEAR: Final = 0.15  # that the slowest of the others lies behind the middle at most, and that the rank lies behind it at least
MIN_RANKS: Final = 4  # of which a middle can be told
FEW: Final = 8  # one of so many ranks may stand alone, of more one in so many
MOST: Final = 2 / 3  # of the reports
LASTING: Final = 3  # reports in a row, up to the last one, in which a rank that became slow in mid-run stands alone
AS_FAST: Final = 1.1  # own computation over that of the peers up to which timings contradict a report
WARM_UP: Final = 2  # first steps of the job's own timings
MAX_CITES: Final = 4
WARNINGS: Final = ("straggler_gpus_relative", "straggler_gpus_individual")  # events in which a detector names ranks itself
_INDIVIDUAL: Final = "_individual"
_COMPUTE: Final = re.compile(
    r"(?i)^(?:(?:fwd|bwd|forward|backward)(?:[-_ ]?(?:compute|pass))?|compute(?:[-_ ]\w{1,30})?|\w{1,30}[-_ ]compute)$"
)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Report:
    """Rank -> how slow (logarithm) and the row that says so."""

    name: str
    slow: Mapping[int, float]
    rows: Mapping[int, Row]

    @property
    def is_partial(self) -> bool:
        """Whether it lists but the worst and best of its ranks."""
        return any((row.get("num_ranks") or 0) > len(self.rows) for row in self.rows.values())


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the ranks that stand alone in scores or times of computation; notes for what is shown and accuses nobody."""
    reports = _reports(case)
    if not reports:
        raise NotEnoughEvidence("no report compares ranks one by one: the smallest and largest value of all ranks name nobody")
    by_name: dict[str, list[_Report]] = defaultdict(list)
    for report in reports:
        by_name[report.name].append(report)
    if all(len(report.slow) < MIN_RANKS for report in reports):
        raise NotEnoughEvidence(f"reports of fewer than {MIN_RANKS} ranks: too few to tell who stands apart")
    stage = stages(case)
    accused: dict[int, _Report] = {}
    notes: list[Finding] = []
    for name, own in sorted(by_name.items()):
        for rank in _alone(own):
            last = next(report for report in reversed(own) if rank in report.slow)
            if not _may_accuse(name, rank, last, stage):
                notes.append(_apart(last, rank, "which is no measure of its own computation, or not compared within its pipeline stage"))
            elif (ratio := _by_clock(case, rank)) is not None and ratio < AS_FAST:
                notes.append(
                    _apart(last, rank, f"but by the job's own timings it computes {ratio:.2f} times as long as its peers: as fast as they")
                )
            else:
                accused.setdefault(rank, last)
        if not _alone(own) and (note := _many(own)):
            notes.append(note)
    if len(accused) > max(1, max(len(report.slow) for report in reports) // FEW):  # by several sections: together they are no exception
        notes += [_apart(report, rank, "and so are others elsewhere") for rank, report in accused.items()]
        accused = {}
    return ([_finding(accused, by_name, case)] if accused else []) + notes


def _reports(case: Tables) -> list[_Report]:
    """Reports of each name in their order; ranks that report one by one, each for itself, are put together, the first of each first."""
    rows = case.table("rank_stats").filter(
        pl.col("rank").is_not_null() & (pl.col("score_ratio").is_not_null() | pl.col("value_s").is_not_null())
    )
    kept = rows.select(
        "evidence_id", "record", "name", "rank", "host", "score_ratio", "value_s", "report", "num_ranks", "logged_at", "logged_at_local"
    )
    written: dict[tuple[str, str, int], list[dict[int, Row]]] = {}  # name, file and report; cut again where a rank comes a second time
    for row in sorted(
        kept.collect().iter_rows(named=True),
        key=lambda row: (row["evidence_id"], _place(row["record"]), row["record"], row["rank"], str(row["name"])),
    ):
        if row["name"] is None or row["name"].startswith(("min_", "max_")) or _slow(row) is None:
            continue
        parts = written.setdefault((row["name"], row["evidence_id"], -1 if row["report"] is None else row["report"]), [{}])
        if row["rank"] in parts[-1]:
            parts.append({})
        parts[-1][row["rank"]] = row
    files = {file: at for at, file in enumerate(_in_time(written))}
    whole: dict[str, list[dict[int, Row]]] = defaultdict(list)
    single: dict[str, dict[int, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    count: dict[tuple[str, int], int] = defaultdict(int)
    for (name, _, _), parts in sorted(written.items(), key=lambda item: (item[0][0], files[item[0][1]], item[0][2])):
        for part in parts:
            if len(part) > 1:
                whole[name].append(part)
                continue
            (rank,) = part
            single[name][count[name, rank]][rank] = part[rank]
            count[name, rank] += 1
    return [
        _Report(name, {r: s for r, row in part.items() if (s := _slow(row)) is not None}, part)
        for name in sorted({*whole, *single})
        for part in (*whole[name], *single[name].values())
    ]


def _in_time(written: Mapping[tuple[str, str, int], Sequence[Mapping[int, Row]]]) -> list[str]:
    """Files in the order in which their reports begin, where all tell a time."""
    stamps: dict[str, set[str]] = defaultdict(set)
    for (_, file, _), parts in written.items():
        stamps[file] |= {str(at) for part in parts for row in part.values() if (at := row["logged_at"] or row["logged_at_local"])}
    return sorted(stamps, key=lambda file: (min(stamps[file]) if all(stamps.values()) else "", file))


def _place(record: str) -> int:
    return int(digits[0]) if (digits := re.findall(r"[0-9]{1,15}", record)) else 0


def _slow(row: Row) -> float | None:
    score, took = row["score_ratio"], row["value_s"]
    if score is not None:
        return -math.log(score) if score > 0 and math.isfinite(score) else None
    return math.log(took) if took is not None and took > 0 and math.isfinite(took) else None


def _alone(reports: Sequence[_Report]) -> list[int]:
    """Ranks that stand alone in the last report that has them, and in most of these or in each of the last few."""
    ranks = sorted({rank for report in reports for rank in report.slow})
    apart = [set(_apart_from_peers(report)) for report in reports]
    found = []
    for rank in ranks:  # that a list of the worst leaves it out says that it was not apart
        own = [rank in names for names, report in zip(apart, reports, strict=True) if rank in report.slow or report.is_partial]
        if own[-1] and (sum(own) >= MOST * len(own) or (len(own) >= LASTING and all(own[-LASTING:]))):
            found.append(rank)
    return found


def _apart_from_peers(report: _Report) -> list[int]:
    slow = report.slow
    if len(slow) < MIN_RANKS:
        return []
    middle = median(slow.values())
    far = sorted(rank for rank, height in slow.items() if height - middle >= APART)
    others = [height for rank, height in slow.items() if rank not in far]
    if not far or len(far) > max(1, len(slow) // FEW):
        return []
    edge = max(others)
    return far if edge - middle <= NEAR and min(slow[rank] for rank in far) - edge >= NEAR else []


def _may_accuse(name: str, rank: int, report: _Report, stage: Mapping[int, Hashable]) -> bool:
    if name.removesuffix(_INDIVIDUAL) == "gpu":
        return True
    if not _COMPUTE.match(name.removesuffix(_INDIVIDUAL)) or rank not in stage:
        return False
    peers = {other: height for other, height in report.slow.items() if stage.get(other) == stage[rank]}
    return rank in _apart_from_peers(_Report(name, peers, report.rows))


def _by_clock(case: Tables, rank: int) -> float | None:
    """How many times as long as its peers a rank computes by the job's own timings; None where these do not tell."""
    rows = step_rows(case, warm_up=WARM_UP)
    measured = times(rows.filter(pl.col("compute_s") > 0), "compute_s")
    if rank not in measured.ranks or len(measured.ranks) < MIN_RANKS or not measured.steps:
        return None
    last = len(measured.steps) - 1
    own, others = (measured.usual(ranks, 0, last) for ranks in ({rank}, set(measured.ranks) - {rank}))
    return own / others if others > 0 else None


def _finding(accused: Mapping[int, _Report], by_name: Mapping[str, Sequence[_Report]], case: Tables) -> Finding:
    ranks = tuple(sorted(accused))
    where = hosts(case)
    told = {rank: host for rank, report in accused.items() if (host := report.rows[rank]["host"])}
    on = tuple(sorted({host for rank in ranks if (host := where.get(rank) or told.get(rank))}))
    first, report = ranks[0], accused[ranks[0]]
    others = sorted(set(report.slow) - set(ranks))
    ratio = math.exp(report.slow[first] - median(report.slow[other] for other in others))
    number = len(by_name[report.name])
    warned = _warnings(case, ranks)
    who = f"{ranks_text(ranks)}{' on ' + ', '.join(on) if on else ''}"
    says = (
        f"a straggler report shows {who} alone behind {len(others)} others: {report.name} of rank {first} is {ratio:.2f} times as slow as in their "
        f"middle, in {'the one report' if number == 1 else _how_often(by_name[report.name], first)}"
    )
    if report.is_partial:
        says += f"; it lists the worst and best of {max(row['num_ranks'] or 0 for row in report.rows.values())}, the rest lie between these"
    if warned:
        says += f"; the detector's own {'warning names' if len(warned) == 1 else f'{len(warned)} warnings name'} it"
    cites = tuple(_cite(row) for row in [*(accused[rank].rows[rank] for rank in ranks[:MAX_CITES]), report.rows[others[0]]])
    cites += tuple(
        Cite("trainer_events", row["evidence_id"], "", row["record"], f"rank {row['rank']}: {row['message']}") for row in warned[:1]
    )
    return Finding(
        "reported_stragglers",
        "reported_slow",
        says,
        ranks=ranks,
        hosts=on,
        explains=tuple(others),
        numbers={"ratio": round(ratio, 3)},
        cites=cites,
    )


def _how_often(reports: Sequence[_Report], rank: int) -> str:
    own = [rank in _apart_from_peers(report) for report in reports if rank in report.slow or report.is_partial]
    return f"{sum(own)} of {len(own)} reports{'' if sum(own) >= MOST * len(own) else f', each of the last {LASTING}'}"


def _apart(report: _Report, rank: int, why: str) -> Finding:
    says = f"a report shows rank {rank} behind its peers in {report.name}, {why}; nobody is accused by it"
    scope = f"apart {report.name} {rank}"
    return Finding(
        "reported_stragglers", "apart_unaccused", says, scope=scope, numbers={"candidates": [rank]}, cites=(_cite(report.rows[rank]),)
    )


def _many(reports: Sequence[_Report]) -> Finding | None:
    """Ranks below the usual threshold in the last report, none of which stands alone there and in those before."""
    report = reports[-1]
    below = sorted(rank for rank, row in report.rows.items() if row["score_ratio"] is not None and row["score_ratio"] < THRESHOLD)
    if not below:
        return None
    if len(below) > 1:
        why = f"{len(below)} of {len(report.slow)} ranks score below {THRESHOLD} in {report.name}, and none stands alone behind the others"
        says = f"{why}: a threshold that so many miss names no slow rank"
    else:
        if below[0] in _apart_from_peers(report):
            why = f"not in most of the {len(reports)} reports, nor in the last {LASTING} in a row"
        elif len(report.slow) < MIN_RANKS:
            why = f"the report has fewer than {MIN_RANKS} ranks: too few to tell who stands apart"
        else:
            why = "the others do not lie near each other, or it lies not far behind them"
        says = f"rank {below[0]} scores below {THRESHOLD} in {report.name}, but {why}: nobody is accused by it"
    cites = tuple(_cite(report.rows[rank]) for rank in below[:MAX_CITES])
    return Finding("reported_stragglers", "many_below", says, scope=f"below {report.name}", numbers={"candidates": below}, cites=cites)


def _warnings(case: Tables, ranks: Sequence[int]) -> list[Row]:
    """Lines in which a detector itself warns of one of the ranks, the last first."""
    events = case.table("trainer_events").filter(pl.col("event").is_in(WARNINGS) & pl.col("rank").is_in(ranks))
    rows = events.select("evidence_id", "record", "rank", "message").collect().rows(named=True)
    return sorted(rows, key=lambda row: (row["evidence_id"], _place(row["record"])), reverse=True)


def _cite(row: Row) -> Cite:
    value = f"score {row['score_ratio']:.3g}" if row["score_ratio"] is not None else f"{row['value_s']:.4g} s"
    return Cite("rank_stats", row["evidence_id"], "", row["record"], f"rank {row['rank']}: {row['name']} {value}")
