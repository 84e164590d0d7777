"""The first two lines of an answer: who did what first, and in which state the job is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rca.causes import CAUSES, did_first, is_full, is_late
from rca.commands import hostlist
from rca.decision.endings import booked_end, timed_out
from rca.decision.job_size import seen_size
from rca.rank_rows import in_rows, rows_text

if TYPE_CHECKING:
    from rca.decision.job_size import JobSize
    from rca.judge import Judgement
    from rca.roster import Roster
    from rca.types import Verdict

__all__ = ["ENDED_WELL", "cause_words", "condition", "headline", "how_ended", "percent", "ranks_ranges", "ranks_words"]

MAX_RANKS: Final = 6  # named in a line
MAX_RANGES: Final = 6  # in a line, of ranks of which there are many
_ENDS: Final[Mapping[str, str]] = {  # analysis -> how the job ended, as its finding shows; the first that fits is told
    "planned_stop": "stopped",
    "process_death": "a process died",
    "first_exception": "the program raised",
}
ENDED_WELL: Final = "ended well"
_MEMBERS: Final = re.compile(r" \([^()]*\)")
_SIZES: Final = re.compile(r" \[\S*\](?: -> \[\S*\])?")
_MENTIONS: Final = frozenset(
    {"stop_after_fault", "outlived", "followed", "tie", "end_unread", "ended_well"}
)  # signs that say nothing of how the job ended


def percent(probability: float) -> str:
    """A probability as people read it; never a false 100 %."""
    return "> 99 %" if probability > 0.99 else "< 1 %" if probability < 0.01 else f"{probability:.0%}".replace("%", " %")


def cause_words(cause: str) -> str:
    """A cause as people write it."""
    return cause.replace("_", " ")


def ranks_words(ranks: tuple[int, ...], shown: int = MAX_RANKS) -> str:
    """`rank 3`, `ranks 3, 5 and 9 more`."""
    more = f" and {len(ranks) - shown} more" if len(ranks) > shown else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:shown]))}{more}"


def ranks_ranges(ranks: Sequence[int], shown: int = MAX_RANGES) -> str:
    """`rank 3`, `ranks 0-7, 12 and 40 more`, of ranks in order: those that follow each other as one, at most `shown` such."""
    left = sum(map(len, in_rows(ranks)[shown:]))
    return f"rank{'s' if len(ranks) > 1 else ''} {rows_text(ranks, shown)}{f' and {left} more' if left else ''}"


def headline(judgement: Judgement) -> str:
    """rank, host, GPU (where a device may be at fault), what it did first, group, cause, confidence, in one line."""
    verdict, roster = judgement.verdict, judgement.roster
    if not verdict.ranks and verdict.cause == "unknown":
        plan = judgement.advice.eviction
        return _group_told(plan) if plan is not None else _capital(verdict.summary)
    named, sure = cause_words(verdict.cause), f"({percent(verdict.probability)})"
    cause = f"{named} {sure}"
    if not verdict.ranks:
        is_told = verdict.summary.startswith(named)  # once is enough
        return _capital(f"{cause}{verdict.summary.removeprefix(named)}" if is_told else f"{verdict.summary}. Cause: {cause}")
    parts = [_who(verdict, roster)]
    findings = [f for o in judgement.outcomes for f in o.findings]
    has_no_room, comes_late = is_full(f.says for f in findings), is_late(f.sign for f in findings)
    did = did_first(verdict.cause, len(verdict.ranks), has_no_room=has_no_room, comes_late=comes_late)
    parts.append(f"{did} ({percent(verdict.ranks_probability)})")
    if mismatch := _mismatch(judgement):
        return f"{' '.join(parts)}: it {mismatch}; cause: {cause}"
    if verdict.last_collective:
        parts.append(f"at {_call(verdict.last_collective)}")
    proof = ", proven by replay" if verdict.proven else ""
    return f"{' '.join(parts)}; why is open" if verdict.cause == "unknown" else f"{' '.join(parts)}; cause: {cause}{proof}"


def _who(verdict: Verdict, roster: Roster) -> str:
    """The ranks and where they sit. The GPU is told where a device may be at fault: beside an error of the program it would look like one."""
    if not verdict.hosts:
        return f"{_capital(ranks_words(verdict.ranks))} (host not known)"
    size, where = len(verdict.ranks), ", ".join(verdict.hosts)
    if size > 1 and size == sum(len(roster.ranks_on(host)) for host in verdict.hosts):
        return f"{'Both' if size == 2 else f'All {size}'} ranks of {where}"
    is_of_device = CAUSES[verdict.cause].layer == "hardware" or verdict.cause == "silent_data_corruption"
    gpus = dict.fromkeys(roster.gpus[rank] for rank in verdict.ranks if rank in roster.gpus)  # a slot may be that of each host
    return f"{_capital(ranks_words(verdict.ranks))} on {where}" + (f" GPU {', '.join(gpus)}" if is_of_device and gpus else "")


def _group_told(plan: Mapping[str, Any]) -> str:
    """Of a group whose stacks stand apart: its hosts, and of them those that most likely hold the fault."""
    hosts, other = plan["hosts"], plan["alternative"]
    likely = f", most likely {hostlist(other['hosts'])} ({percent(other['probability'])})" if other is not None and other["hosts"] else ""
    of_group = (
        ""
        if plan["kind"] == "host"
        else f", hosts of {'one' if plan['group'] else 'several'} {plan['kind']} group{'' if plan['group'] else 's'}"
    )
    return f"Only a group is told: what stands apart fits into {hostlist(hosts)}{of_group}{likely}; no rank is named, and why is open"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _call(call: Mapping[str, Any]) -> str:
    """The awaited call: operation, number, kind of group (the members stand in the evidence)."""
    kind = str(call["group"]).partition(":")[0].partition("?")[0]
    is_transfer = "->" in str(call["op"]) or "<-" in str(call["op"])
    number = "" if is_transfer else f" #{call['seq']}"
    return f"{call['op']}{number} of its {kind} group"


def _mismatch(judgement: Judgement) -> str | None:
    """Of a rank whose call differs from that of its peers: what either side called. Who they are stands in the evidence."""
    verdict = judgement.verdict
    if verdict.cause != "collective_mismatch" or len(verdict.ranks) != 1:
        return None
    lead = f"rank {verdict.ranks[0]} "
    told = (f for o in judgement.outcomes for f in o.findings if o.analysis == "mismatched_collective" and f.ranks == verdict.ranks)
    return next((_in_short(f.says.removeprefix(lead), f.sign) for f in told if f.says.startswith(lead)), None)


def _in_short(says: str, sign: str) -> str:
    """Without the members of groups; of a call that is too few or too many, which tells itself, without sizes and the place either."""
    says = _MEMBERS.sub("", says)
    return _SIZES.sub("", says.partition(", which ")[0]) if sign in ("skipped_call", "extra_call") else says


def condition(judgement: Judgement) -> str:
    """The second line: how large the job is, in which state, and when the fault first shows."""
    verdict, told = judgement.verdict, _size(judgement)
    size, least = told.num_ranks, "at least " if told.is_least else ""  # of whom nothing was seen, nothing here tells
    parts = [f"Job of {least}{size} rank{'' if size == 1 else 's'}" if size else "Job of unknown size", _state(judgement)]
    when = verdict.failed_at or verdict.failed_after
    if verdict.cause != "healthy" and (when is not None or verdict.step is not None):
        what = "told to stop" if _was_told_to_stop(judgement) else "first failing"
        what += " after" if verdict.failed_at is None and when is not None else " at"
        what = "slow already at" if _is_slow_from_start(judgement) else what
        if verdict.failed_at is not None and (still := _still_since(judgement)) is not None and verdict.failed_at > still:
            what = "the fault first on record, after the stop, at"  # a kernel tells of a read that hangs when it has hung for long
        moment = [f"{_moment(when)}{_zone_told(judgement)}"] if when is not None else []
        parts.append(f"{what} {', '.join([*moment, *([f'step {verdict.step}'] if verdict.step is not None else [])])}")
    return "; ".join(parts) + "."


def _was_told_to_stop(judgement: Judgement) -> bool:
    """Whether the job was stopped from outside: planned, or by nobody knows whom."""
    verdict = judgement.verdict
    is_bare = any(f.sign == "bare_stop" for o in judgement.outcomes for f in o.findings)
    return CAUSES[verdict.cause].attribution == "planned" or (is_bare and verdict.cause == "unknown" and not verdict.ranks)


def _is_slow_from_start(judgement: Judgement) -> bool:
    """Whether the accused were slow already in the first steps on record, so that no onset is known."""
    verdict = judgement.verdict
    told = (f for o in judgement.outcomes for f in o.findings if f.ranks == verdict.ranks and f.numbers.get("is_from_start"))
    return verdict.cause == "slow_rank" and any(told)


def how_ended(judgement: Judgement) -> str | None:
    """How the job ended, in words: stopped, a process died, ...; ENDED_WELL where every rank was seen to; None where nothing tells that it ended."""
    ended = {f.analysis for o in judgement.outcomes for f in o.findings if f.sign not in _MENTIONS}
    found = next((words for analysis, words in _ENDS.items() if analysis in ended), None)
    if found is None and any(f.sign == "stop_after_fault" for o in judgement.outcomes for f in o.findings):
        found = _ENDS["planned_stop"]
    if found is None and any(o.analysis == "process_death" and o.status == "clear" for o in judgement.outcomes):
        return ENDED_WELL
    return found or _ended_by_others(judgement)


def _ended_by_others(judgement: Judgement) -> str | None:
    """That time-outs took ranks down, or that the scheduler's books say it is over: an end of which nothing tells more."""
    findings = [f for o in judgement.outcomes for f in o.findings]
    size = _size(judgement).num_ranks
    if ranks := timed_out(findings):
        return "ended by time-outs" if len(ranks) == size else f"time-outs ended {len(ranks)} of its ranks"
    state = booked_end(findings)
    if state == "COMPLETED":
        return "ended by the scheduler's books"  # as its batch script did, which tells nothing of the step that it started
    return f"ended, {state} by the scheduler's books" if state is not None else None


def _size(judgement: Judgement) -> JobSize:
    """As told, else by the ranks that were seen."""
    return judgement.size if judgement.size.num_ranks is not None else seen_size(judgement.roster)


def _state(judgement: Judgement) -> str:
    """How it ended, whether it stands still (since the last call that any rank made) or moves; or that nothing tells."""
    status = {o.analysis: o.status for o in judgement.outcomes}
    how = how_ended(judgement)
    states = [how] if how is not None and how != ENDED_WELL else []
    if _hangs(judgement):
        last = _still_since(judgement)
        states.append(
            f"standing still since {_moment(last)} (last call of any rank)" if last is not None else "standing still when captured"
        )
    if states:
        return ", ".join(states)
    if how is not None:
        return how
    if status.get("job_motion") in ("clear", "found"):
        return "running when captured"
    return "whether it still runs is not told"


def _hangs(judgement: Judgement) -> bool:
    return any(f.sign == "job_hangs" for o in judgement.outcomes for f in o.findings)


def _still_since(judgement: Judgement) -> datetime | None:
    """The last call of any rank, of a job that stands still."""
    return max(judgement.roster.last_call_at.values(), default=None) if _hangs(judgement) else None


def _zone_told(judgement: Judgement) -> str:
    """The zone in which the line that tells of the fault is stamped, where it is known and another than that of the answer."""
    supports = {i for h in judgement.verdict.hypotheses[:1] for i in h.supports}
    told = (f.numbers.get("zone_s") for o in judgement.outcomes for f in o.findings if f.id in supports)
    zone_s = next((zone_s for zone_s in told if zone_s), None)
    if zone_s is None:
        return ""
    hours, minutes = divmod(abs(zone_s) // 60, 60)
    return f" (logs there are in UTC{'+' if zone_s > 0 else '-'}{hours:.0f}{f':{minutes:02.0f}' if minutes else ''})"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
