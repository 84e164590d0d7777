"""Values as Slurm prints them of jobs: states and their codes, exits, durations, stamps, GPUs; and whose fault a row says its end was.

Source: Slurm, manual pages of sacct, squeue and scontrol (job state codes, job reason codes, time formats).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from collectors._json_records import instant

__all__ = [
    "ENDED",
    "JOB_ID",
    "STATES",
    "attribution",
    "base_job",
    "duration_s",
    "exit_of",
    "gpus",
    "is_nothing",
    "is_step",
    "moment",
    "plain",
    "stamp",
    "state_of",
    "whole",
]

# code of squeue and `sacct -s` -> state
STATES: Final = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE", "F": "FAILED",
    "LF": "LAUNCH_FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RC": "RECONFIG_FAIL", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING", "SO": "STAGE_OUT", "ST": "STOPPED", "TO": "TIMEOUT",
    "OO": "OUT_OF_MEMORY",
}  # fmt: skip
# Launches that are over; CANCELLED by nobody, REVOKED and the rest of them too.
ENDED: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"RECONFIG_FAIL", "REQUEUED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"}
)
_WORDS: Final = frozenset(STATES.values()) | {"REQUEUE", "POWER_UP_NODE", "EXPEDITING", "UPDATE_DB"}
_STATE: Final = re.compile(r"([A-Z][A-Z_]{0,19})(\+)?(?: by ([A-Za-z0-9_.@\\\-]{1,64}))?", re.I)
JOB_ID: Final = re.compile(
    r"(?P<job>[0-9]{1,19}(?:_(?:[0-9]{1,10}|\[[0-9,\-:%. ]{1,2000}\]?))?(?:\+[0-9]{1,6})?)(?P<step>\.[A-Za-z0-9_+.]{1,32})?\+?"
)
_EXIT: Final = re.compile(r"([0-9]{1,10})(?::([0-9]{1,4}))?")
_DURATION: Final = re.compile(r"(?:([0-9]{1,7})-)?(?:([0-9]{1,7}):)?([0-9]{1,7}):([0-9]{1,2}(?:\.[0-9]{1,9})?)")
_STAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?")
_COUNT: Final = re.compile(r"[0-9]{1,18}")
_GPUS: Final = re.compile(r"gres/gpu(:[^=,]{1,64})?=([0-9]{1,9})")
NOTHING: Final = frozenset({"", "none", "(null)", "null", "unknown", "n/a", "invalid", "unlimited", "-"})
OUT_OF_MEMORY_SIGNAL: Final = 125  # what slurmstepd writes as the signal of a step that memory ran out on
_MAINTENANCE: Final = re.compile(r"(?i)(?:^|[^a-z])(?:maint(?:enance)?|downtime|outage|upgrade)(?![a-z])")
# reasons of a job that are the cluster's: a node, the controller or a prolog failed
_PLATFORM_REASONS: Final = re.compile(
    r"(?i)^(?:NodeDown|NodeFail\w*|SystemFailure|JobLaunchFailure|Prolog|launch_failed_requeued_held|FailedNode)"
)
_BY_STATE: Final = {
    "NODE_FAIL": "platform",
    "BOOT_FAIL": "platform",
    "LAUNCH_FAILED": "platform",
    "RECONFIG_FAIL": "platform",
    "PREEMPTED": "planned",
    "TIMEOUT": "planned",
    "DEADLINE": "planned",
    "OUT_OF_MEMORY": "workload",
    "COMPLETED": "none",
    "REVOKED": "none",  # of several clusters another one runs it
}


def is_nothing(text: str) -> bool:
    """Whether a field holds what Slurm writes where there is nothing."""
    return text.strip().lower() in NOTHING


def plain(text: str | None, most: int = 1000) -> str | None:
    """A field without what Slurm writes where there is nothing (`None`, `(null)`, `Unknown`, `N/A`)."""
    found = (text or "").strip()[:most]
    return None if found.lower() in NOTHING else found


def state_of(text: str | None) -> tuple[str | None, str | None, bool]:
    """State, who cancelled it, and whether the field was cut (`CANCELLED+`, `OUT_OF_ME+`). Codes (`CA`) are written out.

    (None, None, False) where it is no state.
    """
    found = _STATE.fullmatch((text or "").strip())
    if found is None:
        return None, None, False
    word = STATES.get(found[1].upper(), found[1].upper())
    if word not in _WORDS:
        fitting = [state for state in sorted(_WORDS) if state.startswith(word)] if found[2] and len(word) > 2 else []
        if len(fitting) != 1:
            return None, None, False
        word = fitting[0]
    return word, found[3], found[2] is not None


def base_job(job_id: str) -> str:
    """The job of a step: `39125549` of `39125549.batch`."""
    return job_id.partition(".")[0]


def is_step(job_id: str) -> bool:
    """Whether an id is that of a step."""
    return "." in job_id


def exit_of(text: str | None) -> tuple[int | None, int | None]:
    """Exit code and signal of `137:0`."""
    found = _EXIT.fullmatch((text or "").strip())
    return (int(found[1]), int(found[2]) if found[2] else None) if found else (None, None)


def duration_s(text: str | None) -> float | None:
    """Seconds of `[days-][hours:]minutes:seconds`."""
    found = _DURATION.fullmatch((text or "").strip())
    if found is None:
        return None
    return (int(found[1] or 0) * 24 + int(found[2] or 0)) * 3600.0 + int(found[3]) * 60 + float(found[4])


def stamp(text: str | None) -> str | None:
    """A stamp without zone as the tables hold it; None for `Unknown`, `None` and digits that are no date."""
    found = (text or "").strip()
    if not _STAMP.fullmatch(found):
        return None
    try:
        at = datetime.fromisoformat(found)
    except ValueError:
        return None
    return at.isoformat() if at.year > 1980 else None


def moment(text: str | None) -> tuple[datetime | None, str | None]:
    """The instant of a count of seconds since 1970 (SLURM_TIME_FORMAT=%s), and the stamp without zone; at most one of them."""
    local = stamp(text)
    return (None, local) if local else (instant(whole(text)), None)


def whole(text: str | None) -> int | None:
    """A count; None for anything else."""
    found = (text or "").strip()
    return int(found) if _COUNT.fullmatch(found) else None


def gpus(tres: str | None) -> int | None:
    """GPUs of a list of trackable resources (`cpu=8,gres/gpu=4,gres/gpu:h100=4`)."""
    found = _GPUS.findall(tres or "")
    totals = [int(count) for kind, count in found if not kind]
    return totals[0] if totals else sum(int(count) for _, count in found) if found else None


def attribution(
    state: str | None, *, by: str | None, is_cut: bool, exit_signal: int | None, reason: str | None, reservation: str | None
) -> str | None:
    """Whose an end is by what the row alone says; None for a job that has not ended.

    A reservation for maintenance makes every end planned. A cancellation is a person's where somebody is named, or where the field is cut behind
    the state: only ` by ...` can follow it. Who requeued a job, or what failed in it, is not told.
    """
    if state not in ENDED:
        return None
    if reservation and _MAINTENANCE.search(reservation):
        return "planned"
    if state in _BY_STATE:
        return _BY_STATE[state]
    if state == "CANCELLED":
        return "planned" if by or is_cut else "unknown"
    if exit_signal == OUT_OF_MEMORY_SIGNAL:
        return "workload"
    return "platform" if reason and _PLATFORM_REASONS.match(reason) else "unknown"
