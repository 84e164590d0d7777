"""Did somebody stop the job on purpose, and was it running well until then?

1. Look for announcements (maintenance, drain, time limit, preemption, cancellation) and for launchers that were told to stop (`_stops`).
2. Was there trouble before: a fault of a rank's own, a task that had ended, a time-out of a collective, or no progress for several times the usual
   interval? Then the stop only cleaned up, and explains nothing.
3. Else the stop explains every death, closed connection and traceback after it. Without a trace of progress the announcement counts for
   less, as where one task was killed and no other (`_odd_task`); a bare stop signal that nobody announced counts for little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rca.analyses._faults import Story, story
from rca.analyses._job_logs import READS, Line, cite_line
from rca.analyses._odd_task import OddTask
from rca.analyses._stop_pace import Pace, pace_until
from rca.analyses._stop_trouble import trouble_before
from rca.analyses._stops import Stop
from rca.analyses._words import iso, quoted
from rca.errors import NotEnoughEvidence
from rca.stop_words import stop_kind
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("log_events",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "announced_stop": Sign("stop", ("planned_stop",)),
    "preempted": Sign("stop", ("preemption",)),
    "announced_only": Sign("stop", ("planned_stop", "preemption", "unknown")),
    "preemption_only": Sign("stop", ("preemption", "planned_stop", "unknown")),
    "stall_or_zone": Sign("stop", ("planned_stop", "preemption", "unknown")),
    "bare_stop": Sign("stop", ("planned_stop", "preemption", "unknown")),
    "stop_after_fault": Sign("stop", ()),
}

TIME_LIMIT = frozenset({"time_limit", "slurm_time_limit"})
MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the stop, if there was one."""
    told = case.derive(story)
    stop = told.stop
    asked = stop.announcement or stop.signal
    if not told.logs.lines:
        raise NotEnoughEvidence("the logs here are of another job or launch")
    if asked is None and stop.odd is not None:
        return [_behind(stop.odd)]
    if asked is None:
        return [_by_srun(line) for line in told.logs.lines if line.signature == "slurm_step_failed"][:1]
    if told.logs.everyone and not told.not_seen_to_end_well:
        return ()  # announced, but the job was through before
    began = stop.began or asked
    pace = pace_until(case, told.logs, [line for line in (began, asked, stop.signal) if line is not None])
    trouble = trouble_before(case, told, began, pace)
    if trouble is not None:
        found = _finding(told, "stop_after_fault", began, pace, f"the job was stopped, but {trouble.says}: the stop only cleaned up")
        return [_with_stall(case, found, pace) if trouble.is_stall and pace is not None else found]
    if stop.announcement is None:
        return [_finding(told, "bare_stop", began, pace, _bare(case, stop.signal or began))]
    is_open = pace is not None and not pace.is_told
    if pace is None:
        moving = ", and whether it moved is not recorded"
    elif is_open:
        moving = f", {_hours(pace.idle_s)} after its last step by stamps without zone: it stood still, or they are of two zones"
    else:
        moving = f", while it made progress: the last step ended {_ago(pace)}"
    what = "was preempted" if stop.is_preemption else "ran into its time limit" if _is_limit(stop) else "was stopped on purpose"
    says = f"the job {what} ({quoted(stop.announcement.text)}){moving}"
    says += f"; but {stop.odd.says}: it did not end when told to, or something else had killed it" if stop.odd is not None else ""
    seen, unseen = ("preempted", "preemption_only") if stop.is_preemption else ("announced_stop", "announced_only")
    sign = unseen if pace is None or is_open or stop.began is None or stop.odd is not None else seen
    sign = "stall_or_zone" if is_open and not stop.is_preemption else sign
    return [_finding(told, sign, began, pace, says)]


def _with_stall(case: Tables, found: Finding, pace: Pace) -> Finding:
    """With how long the job had stood still, and the line that tells of its last step."""
    cites = []
    for table in ("progress", "steps"):
        rows = case.table(table).filter((pl.col("evidence_id") == pace.last_in) & (pl.col("step") == pace.last_step)).sort("record").head(1)
        text = pl.format("step {}, the last that ended", "step")
        for id_, record, says in rows.select("evidence_id", "record", text).collect().iter_rows():
            cites.append(Cite(table, id_, "", record, says))
    numbers = {**found.numbers, "stood_still_s": pace.idle_s, "last_step": pace.last_step}
    return replace(found, numbers=numbers, cites=(*cites[:1], *found.cites)[:MAX_CITES])


def _bare(case: Tables, signal: Line) -> str:
    """What was seen of an end that nobody explains, and when: as dated, else behind the last step that was printed."""
    of_tasks = signal.signature == "slurm_task_exit"
    ended = "SIGTERM from outside ended every task of the job" if of_tasks else "a launcher was told to stop and ended its workers"
    step = case.table("progress").select(pl.col("step").max()).collect().item()
    if signal.at is not None:
        when = f" at {signal.at:%Y-%m-%d %H:%M:%S} UTC"
    elif signal.local:
        when = f" at {signal.local[:19].replace('T', ' ')} (zone not told)"
    else:
        when = f" after step {step}" if step is not None else ""
    return f"{ended}{when}; by whom and why is not said"


def _by_srun(line: Line) -> Finding:
    says = "srun ended the step because one of its tasks had ended badly: nobody asked for this stop"
    return Finding("planned_stop", "stop_after_fault", says, scope="stop", numbers={"failed_at": iso(line.at)}, cites=(cite_line(line),))


def _behind(odd: OddTask) -> Finding:
    says = f"the step was cancelled when a task had ended badly ({odd.says}): the cancel only ended the rest"
    cites = (cite_line(odd.line), cite_line(odd.cancel))
    return Finding("planned_stop", "stop_after_fault", says, scope="stop", numbers={"failed_at": iso(odd.line.at)}, cites=cites)


def _is_limit(stop: Stop) -> bool:
    """Whether a limit of time ended it: no person decided that it should end now."""
    return stop.announcement is not None and stop.announcement.signature in TIME_LIMIT


def _hours(seconds: float) -> str:
    return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"


def _ago(pace: Pace) -> str:
    return f"{pace.idle_s:.1f} s before" if pace.idle_s >= 0.05 else "at that moment"


def _finding(told: Story, sign: str, began: Line, pace: Pace | None, says: str) -> Finding:
    stop: Stop = told.stop
    lines = [line for line in (stop.announcement, stop.signal, began) if line is not None]
    lines += [stop.odd.line] if stop.odd is not None else []
    lines += [fault.line for fault in told.first][:2]
    explains = tuple(sorted(told.logs.everyone)) if sign != "stop_after_fault" else ()
    numbers = {
        "failed_at": iso(began.at),
        "last_progress_at": iso(pace.last_at) if pace else None,
        "usual_interval_s": pace.usual_s if pace else None,
        "reason": stop.announcement.text if stop.announcement else None,
        "stop_kind": None
        if (said := stop.announcement) is None
        else stop_kind(said.signature, said.text, is_preemption=stop.is_preemption),
    }
    cites = list(dict.fromkeys(map(cite_line, lines)))[:MAX_CITES]
    return Finding("planned_stop", sign, says, scope="stop", explains=explains, numbers=numbers, cites=tuple(cites))


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
