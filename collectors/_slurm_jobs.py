"""A row of `job_records` from named fields, whichever of Slurm's commands printed them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from collectors import _slurm_values as values
from collectors._hostlist import expand
from collectors._stack_dump import whole_number

__all__ = ["checked", "is_record", "row"]

_STAMPS = ("start", "end", "submit", "eligible")


def is_record(fields: Mapping[str, str]) -> bool:
    """Whether fields under sacct's names can be a record: an id and a state, and dates, durations and exits where they must be."""
    ids = [fields[name] for name in ("jobid", "jobidraw") if name in fields]
    if not ids or not all(values.JOB_ID.fullmatch(id_.strip()) for id_ in ids) or values.state_of(fields.get("state"))[0] is None:
        return False
    for name in _STAMPS:
        text = fields.get(name)
        if text is not None and not values.is_nothing(text) and values.stamp(text) is None and not text.strip().isdigit():
            return False
    checks = (("elapsed", values.duration_s), ("exitcode", lambda text: values.exit_of(text)[0]))
    return all(values.is_nothing(fields.get(name, "")) or check(fields[name]) is not None for name, check in checks)


def row(record: str, fields: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    """The row of a record under sacct's names in lower case, and what of its hosts could not be read."""
    job_id = (fields.get("jobid") or fields["jobidraw"]).strip().rstrip("+")
    state, by, is_cut = values.state_of(fields.get("state"))
    hosts = expand(fields.get("nodelist"))
    code, signal = values.exit_of(fields.get("exitcode") or fields.get("derivedexitcode"))
    elapsed = values.whole(fields.get("elapsedraw"))
    told: dict[str, Any] = {
        "job_id": job_id,
        "job_name": values.plain(fields.get("jobname")),
        "user": values.plain(fields.get("user")),
        "partition": values.plain(fields.get("partition")),
        "qos": values.plain(fields.get("qos")),
        "restarts": values.whole(fields.get("restarts")),
        "reason": values.plain(fields.get("reason")),
        "exit_code": code,
        "exit_signal": signal,
        "elapsed_s": float(elapsed) if elapsed is not None else values.duration_s(fields.get("elapsed")),
        "num_hosts": next((count for name in ("nnodes", "allocnodes") if (count := values.whole(fields.get(name))) is not None), None),
        "num_gpus": values.gpus(fields.get("alloctres")),
        "reservation": values.plain(fields.get("reservation")),
        "comment": "; ".join(filter(None, (values.plain(fields.get(name)) for name in ("comment", "admincomment", "systemcomment"))))
        or None,
    }
    for name, column in (("submit", "submitted"), ("start", "started"), ("end", "ended")):
        told[f"{column}_at"], told[f"{column}_at_local"] = values.moment(fields.get(name))
    return checked(record, told, state, by, hosts.names, is_cut=is_cut), hosts.problem


def checked(
    record: str, told: Mapping[str, Any], state: str | None, by: str | None, hosts: tuple[str, ...], *, is_cut: bool
) -> dict[str, Any]:
    """A row with what follows from the other columns: the job of a step, how long it ran, how many hosts, whose end it was."""
    made = {
        **told,
        "record": record,
        "base_job_id": values.base_job(told["job_id"]),
        "is_step": values.is_step(told["job_id"]),
        "state": state,
        "cancelled_by": by,
        "hosts": list(hosts) or None,
    }
    if state is not None and state not in values.ENDED:
        made["ended_at"] = made["ended_at_local"] = None  # of a job that runs, when its time limit is up
    if made["elapsed_s"] is None:
        made["elapsed_s"] = _between(made)
    if made["num_hosts"] is None and hosts:
        made["num_hosts"] = len(hosts)
    for column in ("exit_code", "exit_signal", "restarts", "num_hosts", "num_gpus"):
        made[column] = whole_number(made[column])
    made["attribution"] = values.attribution(
        state, by=by, is_cut=is_cut, exit_signal=made["exit_signal"], reason=made["reason"], reservation=made["reservation"]
    )
    return made


def _between(made: Mapping[str, Any]) -> float | None:
    start, end = made["started_at"], made["ended_at"]
    if (start is None or end is None) and made["started_at_local"] and made["ended_at_local"]:
        start, end = datetime.fromisoformat(made["started_at_local"]), datetime.fromisoformat(made["ended_at_local"])
    seconds = (end - start).total_seconds() if start is not None and end is not None else -1.0
    return seconds if seconds >= 0 else None
