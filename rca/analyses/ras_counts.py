"""What do NCCL's RAS reports say: which ranks launched fewer calls than their peers and stay so, and whose processes do not answer?

1. Compare the calls that the ranks of a communicator launched. One report alone may differ in any running job: only where two reports of the same
   communicator, taken APART_S or more after each other where they tell their times, show the very same counts does it stand still. Else, and where
   the job is seen to move, it is a note.
2. Who is behind follows from the counts, not from the list: RAS lists the smaller set, and that may be those who are ahead (nccl#1911).
3. A minority behind is accused, unless it waits itself: a rank that is ahead in another communicator that stands still. A majority behind accuses
   nobody: the few ahead may have made one call too many, or the others are held up elsewhere.
4. A process that RAS takes for dead, or that does not answer in the last report of its file, is named where its host and process are a rank's.
5. A job that was asked to stop, or ended well, has processes that end: nobody is accused. Ranks that left the communicator (NOCOMM) are not
   missing, and UNKNOWN (until NCCL 2.25) may be either.
6. RAS may say OK while a watchdog times out (nccl#1730): told as a note, for it counts launches, not ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from rca.analyses._alive import last_steps
from rca.analyses._faults import TIMED_OUT, Story, story
from rca.analyses._job_logs import READS, cite_line
from rca.analyses._nccl_ranks import READS as READS_TOO
from rca.analyses._nccl_ranks import Op, Picture, Ranks, pictures, ranks_of
from rca.analyses._stack_views import main_motion
from rca.analyses._words import ranks_text
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("nccl_ras",)
USES = (*READS, *READS_TOO)
_STOOD: Final = ("code_hang", "data_stall", "storage_stall", "collective_mismatch", "gpu_fault", "host_fault", "unknown")
SIGNS = {
    "behind": Sign("absent", _STOOD),
    "few_ahead": Sign("absent", ("collective_mismatch", "code_hang", "unknown")),
    "dead": Sign("absent", ("process_killed", "host_lost", "user_exception", "unknown")),
    "unresponsive": Sign("absent", ("code_hang", "host_fault", "host_lost", "process_killed", "unknown")),
    "differs_once": Sign("mention", (), is_note=True),
    "moves": Sign("mention", (), is_note=True),
    "async_error": Sign("mention", (), is_note=True),
    "says_ok": Sign("mention", (), is_note=True),
}

APART_S: Final = 5.0  # less may lie within one step of a running job
MAX_CITES: Final = 6
MAX_NAMED: Final = 4


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the calls, one for the processes, and notes."""
    told = case.derive(story)
    if told.logs.everyone and not told.not_seen_to_end_well:
        return ()
    known = ranks_of(case, told.logs)
    return [*_calls(case, told, known), *_processes(case, told, known), *_async(case), *_ok(case, told)]


def _calls(case: Tables, told: Story, known: Ranks) -> list[Finding]:
    """What the counts of all communicators say together."""
    stuck: list[tuple[Picture, str, Op]] = []
    once: list[tuple[Picture, str, Op]] = []
    moving: list[tuple[Picture, str, Op]] = []
    last = _last_reports(case)
    for shots in pictures(case).values():
        twin = next((b for b in shots if b.snapshot == last[b.evidence_id] and any(_stands_still(a, b) for a in shots if a is not b)), None)
        if twin is not None and any(shot.launched > twin.launched for shot in shots):
            twin = None  # it went on after the two
        latest = twin or shots[-1]
        differing = [(latest, name, op) for name, op in sorted(latest.ops.items()) if op.differs]
        (stuck if twin is not None else once if len(shots) == 1 else moving).extend(differing)
    if stuck and not told.stop.is_asked:
        if not _moves(case, told, stuck):
            return _standing(stuck, told, known)
        moving, stuck = [*stuck, *moving], []
    found = []
    told_once = " in one report, as in any running job: a second one with the same counts would tell that it stands still"
    went_on = ", but the counts or the job went on: uneven work, or a moment of a running job"
    for sign, pictured, why in (("differs_once", once or stuck, told_once), ("moves", moving, went_on)):
        if pictured:
            picture, name, op = pictured[0]
            says = f"RAS: ranks of communicator {picture.comm} launched different numbers of {name} calls{why}"
            found.append(Finding("ras_counts", sign, says, scope=sign, cites=tuple(op.cites[:MAX_CITES])))
    return found


def _last_reports(case: Tables) -> dict[str, int]:
    """File -> number of its last report."""
    return dict(case.table("nccl_ras").group_by("evidence_id").agg(pl.col("snapshot").max()).collect().iter_rows())


def _stands_still(a: Picture, b: Picture) -> bool:
    """Whether two reports, not of one moment, show the same counts, which differ among the ranks."""
    is_timed = a.at is not None and b.at is not None and (a.at.tzinfo is None) == (b.at.tzinfo is None)
    if is_timed and a.at is not None and b.at is not None and abs((b.at - a.at).total_seconds()) < APART_S:
        return False
    return a.counts == b.counts and any(op.differs for op in b.ops.values())


def _moves(case: Tables, told: Story, stuck: Sequence[tuple[Picture, str, Op]]) -> bool:
    """Whether stacks show the job moving, or a step is later than the last of these reports."""
    if case.derive(main_motion)[1].job_moves:
        return True
    taken = [picture.at for picture, _, _ in stuck if picture.at is not None and picture.at.tzinfo is not None]
    return bool(taken) and any(at > max(taken) for at, _ in last_steps(case, told.logs))


def _standing(stuck: Sequence[tuple[Picture, str, Op]], told: Story, known: Ranks) -> list[Finding]:
    """Who is behind and waits for nobody; nobody, where that is not told or is the greater part."""
    late: dict[Any, tuple[Picture, str, Op, int]] = {}
    waiting: set[Any] = set()
    for picture, name, op in stuck:
        behind, ahead = op.sides(picture.size)
        waiting |= {_who(known, picture, rank) for rank in ahead or () if rank not in (behind or ())}
        size = picture.size or len(op.calls)
        if behind is not None and 0 < 2 * len(behind) < size:
            for rank in sorted(behind):
                late.setdefault(_who(known, picture, rank), (picture, name, op, rank))
    cites = tuple(op.cites[0] for _, _, op in stuck if op.cites)[:MAX_CITES]
    guilty = {who: what for who, what in late.items() if who not in waiting}
    if not guilty:
        return [Finding("ras_counts", "few_ahead", _open(*stuck[0]), scope="few_ahead", cites=cites)]
    ranks = sorted(number for who in guilty if (number := _global(who)) is not None)
    all_known = len(ranks) == len(guilty)
    named = ranks_text(ranks) if all_known else _named(known, guilty.values())
    shot, kind, calls, _ = next(iter(guilty.values()))
    least = calls.count_behind if calls.count_behind is not None else min(calls.calls.values())
    most = calls.count_ahead if calls.count_ahead is not None else max(calls.calls.values())
    says = f"RAS, in two reports: {named} launched {least} {kind} calls in communicator {shot.comm} where others launched {most}, and stayed there"
    hosts = told.logs.hosts_of(ranks)
    if not all_known:
        hosts = tuple(sorted({host for p, _, _, rank in guilty.values() if (host := _host(known, p, rank)) is not None}))
    return [
        Finding(
            "ras_counts", "behind", says, ranks=tuple(ranks) if all_known else (), hosts=hosts, scope=f"behind {named}",
            explains=tuple(sorted(told.logs.everyone - set(ranks))) if all_known else (), numbers={"candidates": [] if all_known else ranks},
            cites=tuple(c for _, _, o, r in guilty.values() for c in _of_rank(o, r))[:MAX_CITES] or cites,
        )
    ]  # fmt: skip


def _open(picture: Picture, name: str, op: Op) -> str:
    """Words for a communicator that stands still where nobody is accused."""
    behind, ahead = op.sides(picture.size)
    if ahead is not None and behind is not None and len(ahead) < len(behind):
        return (
            f"RAS: {len(ahead)} of {picture.size or len(op.calls)} ranks of communicator {picture.comm} launched {name} calls that the others have "
            "not, and nothing moves: the few it lists are ahead, the others are held up elsewhere or never make that call"
        )
    return f"RAS: communicator {picture.comm} stands still with different numbers of {name} calls, and who is behind for its own part is not told"


def _of_rank(op: Op, rank: int) -> Iterable[Cite]:
    """The row of that rank, else that of all."""
    return [cite for cite in op.cites if f"rank {rank} of" in cite.text][:1] or op.cites[:1]


def _who(known: Ranks, picture: Picture, rank: int) -> Any:
    """One identity across communicators: the global rank, else the process, else the place in this communicator."""
    process = picture.processes.get(rank)
    found = known.rank(process.host if process else None, process.pid if process else None, rank, picture.size)
    if found is not None:
        return ("rank", found)
    return (
        ("process", process.host, process.pid, process.local_gpu) if process and process.pid is not None else ("place", picture.comm, rank)
    )


def _global(who: Any) -> int | None:
    return int(who[1]) if who[0] == "rank" else None


def _host(known: Ranks, picture: Picture, rank: int) -> str | None:
    process = picture.processes.get(rank)
    return known.host(process.host) if process else None


def _named(known: Ranks, guilty: Iterable[tuple[Picture, str, Op, int]]) -> str:
    """Ranks of communicators in words that nobody takes for global ones."""
    words = []
    for picture, _, _, rank in guilty:
        process = picture.processes.get(rank)
        of = f" (process {process.pid} on {known.host(process.host)})" if process and process.pid is not None else ""
        words.append(f"place {rank} of {picture.comm}{of}")
    return ", ".join(words[:MAX_NAMED]) + (f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else "")


def _processes(case: Tables, told: Story, known: Ranks) -> list[Finding]:
    """Processes that are dead or do not answer in the last report of their file."""
    if told.stop.is_asked:
        return []
    table = case.table("nccl_ras_ranks")
    last = case.table("nccl_ras").group_by("evidence_id").agg(pl.col("snapshot").max())
    rows = table.join(last, on=["evidence_id", "snapshot"], how="inner").filter(
        (pl.col("is_dead") | pl.col("is_unresponsive") | pl.col("is_missing")).fill_null(False)
        & (pl.col("status").is_null() | (pl.col("status") != "NOCOMM"))
    )
    gone: dict[str, dict[Any, Mapping[str, Any]]] = defaultdict(dict)
    sizes = {(p.comm, p.evidence_id, p.snapshot): p.size for shots in pictures(case).values() for p in shots}
    processes = rows.sort("evidence_id", "record", "group_rank", nulls_last=True).collect().rows(named=True)
    for row in sorted(
        processes, key=lambda r: r["pid"] is None
    ):  # those that name their process first: a list of ranks adds only what they do not
        size = sizes.get(((row["comm"] or "").lower().removeprefix("0x").lstrip("0"), row["evidence_id"], row["snapshot"]))
        rank = known.rank(row["host"], row["pid"], row["group_rank"], size)
        if row["pid"] is None and rank is None and any(gone.values()):
            continue
        who = (
            ("rank", rank)
            if rank is not None
            else ("process", row["host"], row["pid"])
            if row["pid"] is not None
            else ("place", row["comm"], row["group_rank"])
        )
        sign = "dead" if row["is_dead"] else "unresponsive"
        if who not in gone["dead"]:
            gone[sign].setdefault(who, row)
            if sign == "dead":
                gone["unresponsive"].pop(who, None)
    found = []
    for sign in ("dead", "unresponsive"):
        if members := gone[sign]:
            ranks = sorted(who[1] for who in members if who[0] == "rank")
            all_known = len(ranks) == len(members)
            names = ranks_text(ranks) if all_known else _listed(known, members.values())
            hosts = sorted({h for row in members.values() if (h := known.host(row["host"])) is not None} | set(told.logs.hosts_of(ranks)))
            says = f"RAS takes {names} for dead" if sign == "dead" else f"RAS has no data of {names}: no answer when it asked"
            cites = tuple(
                Cite("nccl_ras_ranks", r["evidence_id"], "", r["record"], f"process {r['pid']} on {r['host']}") for r in members.values()
            )
            few = 2 * len(members) < len(told.logs.everyone)  # most of them gone: the job ended, and who began is not told
            found.append(
                Finding(
                    "ras_counts", sign, says, ranks=tuple(ranks) if all_known and few else (), hosts=tuple(hosts), scope=f"{sign} {names}",
                    explains=tuple(sorted(told.logs.everyone - set(ranks))) if all_known and few else (),
                    numbers={"candidates": [] if all_known and few else ranks}, cites=cites[:MAX_CITES],
                )
            )  # fmt: skip
    return found


def _listed(known: Ranks, rows: Iterable[Mapping[str, Any]]) -> str:
    words = [
        f"process {row['pid']} on {known.host(row['host'])}" if row["pid"] is not None else f"place {row['group_rank']} of {row['comm']}"
        for row in rows
    ]
    return ", ".join(words[:MAX_NAMED]) + (f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else "")


def _async(case: Tables) -> list[Finding]:
    """Asynchronous errors: mostly what another's end does to its peers."""
    rows = (
        case.table("nccl_ras_ranks")
        .filter(pl.col("has_async_error"))
        .sort("evidence_id", "record", "group_rank")
        .collect()
        .rows(named=True)
    )
    if not rows:
        return []
    says = f"RAS: {len(rows)} ranks of communicators report an asynchronous error: what the end of another process does to its peers"
    cites = tuple(Cite("nccl_ras_ranks", row["evidence_id"], "", row["record"], row["status"] or "asynchronous error") for row in rows)
    return [Finding("ras_counts", "async_error", says, scope="async", cites=cites[:MAX_CITES])]


def _ok(case: Tables, told: Story) -> list[Finding]:
    """RAS finds nothing wrong, the watchdog does."""
    rows = case.table("nccl_ras").sort("evidence_id", "record").collect().rows(named=True)
    late = [line for line in told.logs.lines if line.signature in TIMED_OUT]
    if not late or any(row["errors"] not in ("OK", None) for row in rows):
        return []
    says = (
        "RAS says OK, a watchdog timed out: one of the two was taken at another moment, or every rank launched the call and it does not end. "
        "RAS counts what was launched, not what ended"
    )
    cites = (
        Cite("nccl_ras", rows[0]["evidence_id"], "", rows[0]["record"], f"{rows[0]['status']} {rows[0]['errors']}"),
        cite_line(late[0]),
    )
    return [Finding("ras_counts", "says_ok", says, scope="ok", cites=cites)]
