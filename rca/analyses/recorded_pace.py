"""Did the job become slower by the recorded calls alone, when, and which rank keeps the others waiting?

1. The order of calls repeats every iteration: that gives the iterations and their times without any log (rca/analyses/_call_period.py). NCCL's
   Inspector dates its calls by batches (_inspected_pace.py): where no recorder's dump is there, these tell the pace, and `waited_for` who is late.
2. A lasting rise of these times (rca/analyses/_change_points.py) is dated by the call with which it begins. Ranks wait for each other, so all
   show it, and it accuses nobody.
3. Whoever owns more time between its calls than its peers keeps them waiting (rca/analyses/_own_time.py, _call_peers.py): own time is measured on
   the rank's own clock. It has to last. All ranks of one host and no other: the host. Many ranks at once: nobody.
4. "Late" needs no slow-down: a rank may have been slow from the first recorded call on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from rca.analyses._call_pace import Pace, paces
from rca.analyses._call_peers import Compared, compare
from rca.analyses._change_points import change_points
from rca.analyses._inspected_pace import Batches, inspected_paces
from rca.analyses._layout import hosts
from rca.analyses._own_time import call_times
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("evidence",)  # calls of recorders or of NCCL's Inspector will do
USES = ("collectives", "nccl_calls", "groups", "memberships", "ranks", "steps", "dump_index", "log_events")
SIGNS = {
    "pace_dropped": Sign("pace", ("slow_rank", "data_stall", "network_fault", "unknown")),
    "owns_longer": Sign("slowness", ("slow_rank", "gpu_fault", "data_stall", "unknown")),
    "host_owns_longer": Sign("slowness", ("slow_rank", "host_fault", "unknown")),
}

SLOWER: Final = 1.1  # times the first pace: what GREYHOUND verifies
WARM_UP: Final = 1  # first iterations: allocation, compilation
MIN_AFTER: Final = 8  # iterations behind the rise: the last ones before a death or a hang take longer as well
MIN_BATCHES_AFTER: Final = 4  # of the Inspector, which are means already
SHORTEST_S: Final = 0.005  # an iteration; what repeats faster is a loop over layers, and its times are those of enqueueing calls
AGREE: Final = 0.5  # of the ranks looked at that must show the rise
MAX_CITES: Final = 4


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for a lasting rise of the iteration time, one for the ranks that keep others waiting; nothing when all were compared."""
    told = case.derive(paces)
    if not told and (written := inspected_paces(case)):
        return _written(written)
    found = _dropped(told)
    compared = compare(case, case.derive(call_times))
    if compared.rises and compared.iteration_s >= SHORTEST_S:
        found.append(_late(case, compared))
    if found:
        return found
    if not told:
        raise NotEnoughEvidence(
            "no recorded calls (of dumps or NCCL's Inspector) that repeat often enough to tell an iteration: a larger TORCH_FR_BUFFER_SIZE keeps more"
        )
    if compared.rises:
        raise NotEnoughEvidence(
            f"the calls repeat every {compared.iteration_s:.2g} s: too short for a step, so who owns more of it tells of no rank"
        )
    if compared.blind:
        raise NotEnoughEvidence(f"the pace is steady; {compared.blind}")
    return ()


def _dropped(told: Sequence[Pace]) -> list[Finding]:
    """The slow-down of the job, as most of the ranks looked at recorded it."""
    rising = [(pace, *rise) for pace in told for rise in _rise(pace.seconds, MIN_AFTER)]
    if not rising or len(rising) < AGREE * len(told):
        return []
    pace, place, before, after = rising[0]
    at = pace.began(place)
    says = (
        f"from {at[11:26]} UTC on an iteration of {pace.of.length} recorded calls takes {after:.3g} s instead of {before:.3g} s "
        f"({after / before:.2f} times as long), and stays so"
    )
    numbers = {"before_s": before, "after_s": after, "calls": pace.of.length, "failed_at": at}
    cites = tuple(one.cite(at_) for one, at_, *_ in rising[:MAX_CITES])
    return [Finding("recorded_pace", "pace_dropped", says, scope="pace", numbers=numbers, cites=cites)]


def _rise(seconds: Sequence[float] | NDArray[np.float64], least: int) -> list[tuple[int, float, float]]:
    """The first verified rise (place, s before, s at the end) with `least` values behind it, if the end is still SLOWER times the first pace."""
    changes = change_points(seconds[WARM_UP:])
    up = next((one for one in changes if one.ratio > 1), None)
    if up is None or len(seconds) - up.index - WARM_UP < least or changes[-1].after < SLOWER * up.before:
        return []
    return [(up.index + WARM_UP, up.before, changes[-1].after)]


def _written(told: Sequence[Batches]) -> list[Finding]:
    """The slow-down by the Inspector's batches; NotEnoughEvidence where there is none, as they compare no ranks."""
    rising = [(pace, *rise) for pace in told for rise in _rise(pace.seconds, MIN_BATCHES_AFTER)]
    if not rising or len(rising) < AGREE * len(told):
        raise NotEnoughEvidence("the pace is steady by the Inspector's batches; who is late they do not show")
    pace, place, before, after = rising[0]
    at = pace.rows["logged_at"][place].isoformat()
    says = (
        f"from about {at[11:19]} UTC on an iteration of {pace.length} calls takes {after:.3g} s instead of {before:.3g} s ({after / before:.2f} "
        "times as long), and stays so"
    )
    numbers = {"before_s": before, "after_s": after, "calls": pace.length, "failed_at": at}
    cites = tuple(one.cite(number) for one, number, *_ in rising[:MAX_CITES])
    return [Finding("recorded_pace", "pace_dropped", says, scope="pace", numbers=numbers, cites=cites)]


def _late(case: Tables, compared: Compared) -> Finding:
    """The ranks of these rises, with figures of the slowest."""
    own, worst = compared.own, max(compared.rises, key=lambda rise: rise.height)
    ranks = tuple(own.ranks[rise.row] for rise in compared.rises)
    others = tuple(rank for rank in own.ranks if rank not in ranks)
    where = hosts(case)
    on = tuple(sorted({where[rank] for rank in ranks if rank in where}))
    whole = len(ranks) > 1 and len(on) == 1 and not any(where.get(rank, on[0]) == on[0] for rank in others)
    own_s, others_s = (compared.per_iteration * own.usual(of, worst.first, worst.last) for of in ({own.ranks[worst.row]}, set(others)))
    places = [(own.ranks[worst.row], worst.first), (own.ranks[worst.row], worst.last), (others[0], worst.first)]
    cites, began = _calls(case, compared, [(rank, own.steps[column]) for rank, column in places])
    who = f"{ranks_text(ranks)}{' on ' + ', '.join(on) if on else ''}"
    says = (
        f"{who}: {own_s:.3g} s of an iteration of {compared.iteration_s:.3g} s lie between its recorded calls (others {others_s:.3g} s), "
        f"{worst.height:.0%} more than with its peers, which wait for it inside the calls"
    )
    numbers: dict[str, Any] = {"own_s": round(own_s, 6), "others_s": round(others_s, 6), "iteration_s": round(compared.iteration_s, 6)}
    if worst.first > 0 and began:
        numbers["failed_at"] = began
        says += f", from {began[11:26]} UTC on"
    sign = "host_owns_longer" if whole else "owns_longer"
    return Finding("recorded_pace", sign, says, ranks=ranks, hosts=on, explains=others, numbers=numbers, cites=cites)


def _calls(case: Tables, compared: Compared, places: Sequence[tuple[int, int]]) -> tuple[tuple[Cite, ...], str]:
    """The calls that begin these iterations of ranks, and when the first of them did, ISO 8601 in UTC ("" = not known)."""
    wanted = pl.DataFrame(places, schema={"rank": pl.Int64, "iteration": pl.Int64}, orient="row").with_row_index("place")
    wanted = wanted.join(compared.began, on=["rank", "iteration"]).select("place", "rank", pl.col("began_at").alias("created_at"))
    calls = case.table("collectives").filter(pl.col("rank").is_in([rank for rank, _ in places]) & pl.col("created_at").is_not_null())
    calls = calls.select("rank", "op", "group_id", "collective_seq_id", "created_at", "evidence_id", "record")
    rows = calls.collect().join(wanted, on=["rank", "created_at"]).sort("place", "evidence_id", "record").unique("place", keep="first")
    rows = rows.sort("place")
    cites = tuple(
        Cite("collectives", row["evidence_id"], "", row["record"],
             f"rank {row['rank']}: {row['op']} #{row['collective_seq_id']} of {row['group_id']} at {row['created_at']:%H:%M:%S.%f} UTC")
        for row in rows.iter_rows(named=True)
    )  # fmt: skip
    return cites, rows["created_at"][0].isoformat() if rows.height and rows["place"][0] == 0 else ""
