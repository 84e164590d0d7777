"""Whom do all others wait for, by the times that NCCL's Inspector wrote down for each rank of a call?

1. A call takes as long on each rank as that rank was in it. The rank that comes last is in it only as long as the transfer takes: the shortest time
   of a call is its transfer, what the others spend more is their wait. No clocks are compared.
2. Of the later half of the calls of each communicator: a rank is waited for that comes last in MOST of them, while the others lose at least LOSS of
   the time that these calls span to waiting.
3. A late rank makes its neighbours late for their other groups, where they come last in turn. It alone waits for nobody: so it has to be
   waited for in every communicator in which anybody waits.
4. Ranks of one and the same place in many communicators have a task of their own (reading data for their group): nobody is accused.

After C4D (HPCA'25): receiver-driven waits; the rank that everybody waits for has the smallest wait of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rca.analyses._job_logs import READS as LOG_READS
from rca.analyses._job_logs import job_logs
from rca.analyses._nccl_ranks import ranks_of
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("nccl_calls",)
USES = tuple(sorted({*LOG_READS, "host_addresses"}))
SIGNS = {"waited_for": Sign("slowness", ("slow_rank", "gpu_fault", "data_stall", "unknown"))}

MOST: Final = 0.8  # of the calls in which it comes last
LOSS: Final = 0.05  # of the time that the calls span, that the others wait
NOBODY: Final = 0.01  # of the time: a communicator in which less is waited tells of nobody
SHARE: Final = 0.5  # of the time inside calls, where the batches that they were written in tell no span
MIN_CALLS: Final = 20  # of a communicator, in the later half
MANY: Final = 1 / 3  # of the ranks waited for at once is no longer an exception
MAX_CITES: Final = 4
_CALL: Final = ("comm", "op", "size_bytes", "collective_seq_id")


@dataclass(frozen=True)
class _Comm:
    """Waits in a communicator: of each of its ranks the share of calls in which it comes last; of the others the usual share of time they wait."""

    name: str
    size: int
    last: dict[int, float]
    loss: float
    share: float  # of the time inside the calls
    is_spanned: bool

    @property
    def counts(self) -> bool:
        """Whether anybody waits in it to speak of."""
        return self.loss >= NOBODY if self.is_spanned else self.share >= SHARE

    def waited_for(self) -> int | None:
        """The rank of the communicator that the others wait for."""
        if not (self.loss >= LOSS if self.is_spanned else self.share >= SHARE):
            return None
        return next((of for of, share in sorted(self.last.items()) if share >= MOST), None)


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per rank that is waited for; nothing where nobody waits for one and the same rank."""
    told = case.table("nccl_calls").filter(
        ~pl.col("is_p2p") & pl.all_horizontal(pl.col("comm", "group_rank", "group_size", "collective_seq_id", "exec_s").is_not_null())
    )
    rows = told.select(*_CALL, "group_rank", "group_size", "exec_s", "logged_at", "host", "pid").collect()
    comms = _comms(rows)
    if not comms:
        raise NotEnoughEvidence(f"no communicator has {2 * MIN_CALLS} calls that all of its ranks wrote down")
    who = {
        (comm, of): (host, pid, size)
        for comm, of, host, pid, size in rows.select("comm", "group_rank", "host", "pid", "group_size").unique().sort(pl.all()).iter_rows()
    }
    by_process: dict[tuple[Any, Any], list[tuple[_Comm, int]]] = defaultdict(list)
    for comm in comms:
        for of in comm.last:
            host, pid, _ = who[comm.name, of]
            by_process[host, pid if pid is not None else f"{comm.name}/{of}"].append((comm, of))
    suspects = {}
    for process, places in sorted(by_process.items(), key=lambda item: str(item[0])):
        counting = [(comm, of) for comm, of in places if comm.counts]
        if counting and any(comm.waited_for() == of for comm, of in counting) and all(comm.last[of] >= MOST for comm, of in counting):
            suspects[process] = [(comm, of) for comm, of in counting if comm.waited_for() == of]
    roles = Counter((comm.size, of) for places in suspects.values() for comm, of in places)
    sizes = Counter(comm.size for comm in comms)
    suspects = {
        process: places for process, places in suspects.items() if not any(2 <= roles[c.size, of] >= sizes[c.size] / 2 for c, of in places)
    }
    if len(suspects) > max(1, MANY * len(by_process)):
        raise NotEnoughEvidence(f"{len(suspects)} of {len(by_process)} processes are waited for: too many to be the exception")
    known = ranks_of(case, case.derive(job_logs)) if suspects else None
    found = []
    for places in suspects.values():
        comm, of = max(places, key=lambda place: (place[0].loss, place[0].name))
        host, pid, size = who[comm.name, of]
        rank = known.rank(host, pid, of, size) if known is not None else None
        found.append(_finding(told, comm, of, rank, known.host(host) if known is not None else None, pid))
    return found


def _comms(rows: pl.DataFrame) -> list[_Comm]:
    """Communicators of which enough calls are whole, by the later half of these."""
    whole = rows.with_columns(pl.col("group_rank").n_unique().over(*_CALL).alias("n")).filter(pl.col("n") == pl.col("group_size"))
    whole = whole.filter(pl.col("group_size") >= 2).with_columns(wait=pl.col("exec_s") - pl.col("exec_s").min().over(*_CALL))
    found = []
    for (name,), frame in sorted(whole.group_by("comm"), key=lambda item: str(item[0])):
        calls = frame.select(*_CALL, "logged_at").group_by(_CALL).agg(pl.col("logged_at").min())
        calls = calls.sort("logged_at", "collective_seq_id", "op", "size_bytes", nulls_last=True)
        later = frame.join(calls[calls.height // 2 :].select(_CALL), on=_CALL, how="semi", nulls_equal=True)
        num = calls.height - calls.height // 2
        if num < MIN_CALLS:
            continue
        by_rank = later.group_by("group_rank").agg(
            (pl.col("wait") <= 0).mean().alias("last"), pl.col("wait").sum(), pl.col("exec_s").sum()
        )  # fmt: skip
        last = dict(by_rank.sort("group_rank").select("group_rank", "last").iter_rows())
        top = max(last, key=lambda of: (last[of], -of))
        others = by_rank.filter(pl.col("group_rank") != top)
        wait, inside = (float(others[column].median() or 0.0) for column in ("wait", "exec_s"))  # type: ignore[arg-type]
        first, end = later["logged_at"].min(), later["logged_at"].max()
        span = (end - first).total_seconds() if first is not None and end is not None else 0.0  # type: ignore[operator, union-attr]
        found.append(
            _Comm(str(name), int(frame["group_size"][0]), last, wait / span if span else 0.0, wait / inside if inside else 0.0, span > 0)
        )
    return found


def _finding(told: pl.LazyFrame, comm: _Comm, of: int, rank: int | None, host: str | None, pid: int | None) -> Finding:
    process = f"process {pid}{' on ' + host if host else ''}" if pid is not None else f"rank {of} of communicator {comm.name}"
    who = f"rank {rank}{' on ' + host if host else ''}" if rank is not None else process
    much = f"{comm.loss:.0%} of the time" if comm.is_spanned else f"{comm.share:.0%} of their time inside the calls"
    says = (
        f"{who} comes last in {comm.last[of]:.0%} of the later calls of communicator {comm.name} ({comm.size} ranks), whose other ranks lose {much} "
        "waiting for it; it waits for nobody itself"
    )
    rows = told.filter((pl.col("comm") == comm.name) & (pl.col("group_rank") == of)).select(
        "op", "collective_seq_id", "exec_s", "evidence_id", "record"
    )
    last = rows.collect().sort("collective_seq_id", "evidence_id", "record").tail(MAX_CITES)
    cites = tuple(
        Cite(
            "nccl_calls",
            row["evidence_id"],
            "",
            row["record"],
            f"{row['op']} {row['collective_seq_id']}: {row['exec_s']:.3g} s on that rank",
        )
        for row in last.iter_rows(named=True)
    )
    ranks = (rank,) if rank is not None else ()
    numbers = {"last_ratio": round(comm.last[of], 3), "loss_ratio": round(comm.loss, 4)}
    return Finding(
        "waited_for",
        "waited_for",
        says,
        ranks=ranks,
        hosts=(host,) if host else (),
        scope=f"{comm.name} {of}",
        numbers=numbers,
        cites=cites,
    )
