"""JSON of Slurm's commands (`--json`): jobs of sacct, squeue and scontrol, in the shapes of all data parsers.

Counts stand plain (21.08 to 22.05) or wrapped (`{"set": true, "infinite": false, "number": 5}`), states as a word or a list, ids of steps as
text or in parts, exit codes as an object or as the status that wait(2) gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from collectors._hostlist import HostList, expand
from collectors._json_records import MAX_DOCUMENT_BYTES, host, instant, local, text
from collectors._json_records import whole as count
from collectors._slurm_jobs import checked
from collectors._slurm_values import duration_s, exit_of, gpus, plain, state_of
from rca.errors import EvidenceError
from rca.types import Skip, Source

__all__ = ["claims_jobs", "document", "entries", "flags_of", "jobs", "moment", "unwrapped"]

_LIST: Final = re.compile(rb'"jobs"\s*:\s*\[\s*(?:\{|\])')
_ACCOUNTING: Final = re.compile(rb'"(?:derived_exit_code|association|allocation_nodes|kill_request_user|steps)"\s*:')
_QUEUE: Final = re.compile(rb'"job_state"\s*:')
_STATE: Final = re.compile(rb'"state"\s*:\s*\{\s*"(?:current|reason)"\s*:')


def claims_jobs(head: bytes, *, accounting: bool) -> bool:
    """Whether the head is that of a list of jobs as sacct prints it (`accounting`), or as squeue and scontrol do."""
    if not _LIST.search(head) or b'"job_id"' not in head:
        return False
    is_queue = bool(_QUEUE.search(head))
    return bool(_ACCOUNTING.search(head) and _STATE.search(head) and not is_queue) if accounting else is_queue


def document(source: Source) -> dict[str, Any]:
    """The one object that a file is. Raises EvidenceError where it is none."""
    data, torn = source.read(MAX_DOCUMENT_BYTES + 1)
    if torn or len(data) > MAX_DOCUMENT_BYTES:
        why = f"breaks off: {torn}" if torn else f"more than {MAX_DOCUMENT_BYTES:,} bytes in one JSON document"
        raise EvidenceError(source.path, None, why)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(source.path, None, f"not JSON ({str(error)[:100]}); the end may be torn off") from None
    if not isinstance(found, dict):
        raise EvidenceError(source.path, None, "no JSON object")
    return found


def entries(source: Source, name: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
    """The objects of one list of the document, with their places; E0 for all of them, as the document is one object."""
    listed = document(source).get(name)
    for place, value in enumerate(listed if isinstance(listed, list) else []):
        yield ("E0", value) if isinstance(value, dict) else Skip("E0", f"{name}[{place}] is no object")


def unwrapped(value: Any) -> Any:
    """A count without its wrapper; None where it is not set or infinite."""
    if isinstance(value, dict):
        return value.get("number") if value.get("set", True) is not False and value.get("infinite") is not True else None
    return value


def moment(value: Any) -> tuple[Any, str | None]:
    """The instant of a count of seconds, or the stamp without zone that it is; 0 is none."""
    found = unwrapped(value)
    return instant(found), local(found)


def flags_of(value: Any) -> list[str]:
    """The words of a state or of flags, upper case, whether a list of them, one, or several joined by `+`."""
    words = value if isinstance(value, list) else [value]
    told = [found for word in words if (found := text(word, 200)) is not None]
    return [part.strip().upper() for word in told for part in word.split("+") if part.strip()]


def jobs(source: Source) -> Iterator[dict[str, Any] | Skip]:
    """Rows of `job_records`: each job, then its steps."""
    for item in entries(source, "jobs"):
        if isinstance(item, Skip):
            yield item
            continue
        record, job = item
        made = _job(record, job)
        if made is None:
            yield Skip(record, "a job without an id or a state")
            continue
        row, problem = made
        if problem:
            yield Skip(record, f"job {row['job_id']}: {problem}")
        yield row
        steps = job.get("steps")
        for step in steps if isinstance(steps, list) else ():
            if isinstance(step, dict) and (found := _step(record, step, row)) is not None:
                yield found
            else:
                yield Skip(record, f"a step of job {row['job_id']} without an id or a state")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _job(record: str, job: Mapping[str, Any]) -> tuple[dict[str, Any], str | None] | None:
    job_id, (state, by, is_cut) = _id(job), _state(job)
    if job_id is None or state is None:
        return None
    times = _object(job.get("time"))
    hosts = _hosts(job)
    code, signal = _exit(job.get("exit_code"))
    killer = text(job.get("kill_request_user"), 64)
    reservation, comment = job.get("reservation"), job.get("comment")
    comments = [*_object(comment).values()] if isinstance(comment, dict) else [comment, job.get("admin_comment"), job.get("system_comment")]
    state_told = _object(job.get("state"))
    reason = state_told.get("reason") if state_told else job.get("state_reason")
    told: dict[str, Any] = {
        "job_id": job_id,
        "job_name": text(job.get("name")),
        "user": text(job.get("user")) or text(job.get("user_name")) or text(_object(job.get("association")).get("user")),
        "partition": text(job.get("partition")),
        "qos": text(job.get("qos")),
        "restarts": count(unwrapped(job.get("restart_cnt"))),
        "reason": plain(text(reason)),
        "exit_code": code,
        "exit_signal": signal,
        "elapsed_s": _seconds(times.get("elapsed", job.get("elapsed"))),
        "num_hosts": count(unwrapped(job.get("allocation_nodes", job.get("node_count")))),
        "num_gpus": _gpus(job),
        "reservation": text(reservation.get("name") if isinstance(reservation, dict) else reservation) or text(job.get("resv_name")),
        "comment": "; ".join(filter(None, map(text, comments))) or None,
    }
    for column, here, there in (
        ("submitted", "submission", "submit_time"),
        ("started", "start", "start_time"),
        ("ended", "end", "end_time"),
    ):
        told[f"{column}_at"], told[f"{column}_at_local"] = moment(times.get(here, job.get(there)))
    if state == "PENDING":
        told["started_at"] = told["started_at_local"] = None  # when it may begin
    return checked(record, told, state, by or (killer if state == "CANCELLED" else None), hosts.names, is_cut=is_cut), hosts.problem


def _step(record: str, step: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any] | None:
    named = _object(step.get("step"))
    id_ = named.get("id")
    part = text(id_.get("step_id"), 32) if isinstance(id_, dict) else (text(id_, 64) or "").partition(".")[2]
    state, by, is_cut = _state(step)
    if not part or state is None:
        return None
    nodes = step.get("nodes")
    times = _object(step.get("time"))
    listed = _object(nodes).get("list") if isinstance(nodes, dict) else None
    names = [label for name in listed if (label := host(name))] if isinstance(listed, list) else list(expand(_range(nodes)).names)
    code, signal = _exit(step.get("exit_code"))
    told = {
        **{column: job[column] for column in ("user", "partition", "qos", "restarts", "reservation")},
        "job_id": f"{job['base_job_id']}.{part}",
        "job_name": text(named.get("name")),
        "reason": None,
        "exit_code": code,
        "exit_signal": signal,
        "elapsed_s": _seconds(times.get("elapsed")),
        "num_hosts": count(_object(nodes).get("count")),
        "num_gpus": None,
    }
    for column, here in (("started", "start"), ("ended", "end")):
        told[f"{column}_at"], told[f"{column}_at_local"] = moment(times.get(here))
    killer = text(step.get("kill_request_user"), 64)
    return checked(record, told, state, by or (killer if state == "CANCELLED" else None), tuple(names), is_cut=is_cut)


def _id(job: Mapping[str, Any]) -> str | None:
    """The id as sacct prints it: that of the array with the task, of a heterogeneous job with the offset, else its own."""
    own = text(unwrapped(job.get("job_id")), 64)
    if own is None:
        return None
    array, het = _object(job.get("array")), _object(job.get("het"))
    task = count(unwrapped(array.get("task_id", job.get("array_task_id"))))
    of_array = count(unwrapped(array.get("job_id", job.get("array_job_id"))))
    if of_array and task is not None:
        return f"{of_array}_{task}"
    if of_array and (tasks := text(array.get("task") or job.get("array_task_string"), 200)):
        return f"{of_array}_[{tasks}]"
    offset = count(unwrapped(het.get("job_offset", job.get("het_job_offset"))))
    of_het = count(unwrapped(het.get("job_id", job.get("het_job_id"))))
    return f"{of_het}+{offset}" if of_het and offset is not None else own


def _state(told: Mapping[str, Any]) -> tuple[str | None, str | None, bool]:
    """The first state that Slurm knows, of a word, a list or an object with `current`."""
    value = told.get("job_state", told.get("state"))
    words = value.get("current") if isinstance(value, dict) else value
    for word in words if isinstance(words, list) else [words]:
        found = state_of(word) if isinstance(word, str) else (None, None, False)
        if found[0] is not None:
            return found
    return None, None, False


def _exit(value: Any) -> tuple[int | None, int | None]:
    """Code and signal of an object, of `1:0`, or of the status that wait(2) gives."""
    if isinstance(value, str):
        return exit_of(value)
    if isinstance(value, dict) and "number" not in value:
        signal = _object(value.get("signal"))
        number = count(unwrapped(value.get("signal") if not signal else signal.get("id", signal.get("signal_id"))))
        return count(unwrapped(value.get("return_code"))), number
    status = count(unwrapped(value))
    return (None, None) if status is None or status < 0 else (status >> 8 & 0xFF, status & 0x7F)


def _seconds(value: Any) -> float | None:
    seconds = count(unwrapped(value))
    return duration_s(value) if isinstance(value, str) and seconds is None else float(seconds) if seconds is not None else None


def _range(nodes: Any) -> str | None:
    return text(nodes.get("range") if isinstance(nodes, dict) else nodes, 1 << 20)


def _hosts(job: Mapping[str, Any]) -> HostList:
    return expand(_range(job.get("nodes")) or _range(_object(job.get("job_resources")).get("nodes")))


def _gpus(job: Mapping[str, Any]) -> int | None:
    allocated = _object(job.get("tres")).get("allocated")
    if isinstance(allocated, str):
        return gpus(allocated)
    if isinstance(allocated, list):
        listed = [item for item in allocated if isinstance(item, dict) and item.get("type") == "gres"]
        whole = [count(item.get("count")) for item in listed if item.get("name") == "gpu"]
        kinds = [count(item.get("count")) or 0 for item in listed if str(item.get("name")).startswith("gpu:")]
        return whole[0] if whole else sum(kinds) if kinds else None
    return gpus(text(job.get("tres_alloc_str"), 10_000))
