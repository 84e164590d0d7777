"""One JSON object of RAS as rows: a report with its communicators, or an event of the monitor. Pure.

The JSON is the raw data, without the words of the text: `status` and `errors` of a communicator are made of its ranks by the rule that RAS itself
has for the text. A rank is in the state of the first flag that is set: abort, finalize or destroy, else whether its initialisation is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from collectors import _json_records as json_of
from rca.types import Skip

__all__ = ["NOTHING", "is_report", "rows", "with_commas"]

Row = tuple[str, dict[str, Any]]

NOTHING: Final = "a report without communicators: RAS had no data of any"

_STATES: Final = ("NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT")  # of several, the text prints the last
_FINE: Final = (0, 7)  # ncclSuccess, ncclInProgress
_NO_PROCESS: Final = -1  # RAS does not know the process
_NO_COMMA: Final = re.compile(r'("nvml_dev"\s{0,8}:\s{0,8}-?[0-9]{1,9})(?=\s{1,80}"status")')


def is_report(document: Mapping[str, Any]) -> bool:
    """Whether the object is a status report."""
    return isinstance(document.get("communicators"), list)


def with_commas(text: str) -> str:
    """The text of a report with the comma that NCCL 2.28 leaves out of each missing rank."""
    return _NO_COMMA.sub(r"\1,", text)


def rows(document: Mapping[str, Any], snapshot: int, place: str, *, is_alone: bool) -> Iterator[Row | Skip]:
    """Rows of a report or an event that begins at `place`; `is_alone`: it is the whole file, so a communicator's entry is the place."""
    if is_report(document):
        stamp = {
            "snapshot": snapshot,
            "taken_at": json_of.instant(document.get("timestamp")),
            "taken_at_local": json_of.local(document.get("timestamp")),
        }
        asked = document.get("ras")
        once = {
            "version": json_of.text(document.get("nccl_version"), 60),
            "num_timeouts": json_of.whole(asked.get("timeouts_count")) if isinstance(asked, dict) else None,
        }
        if not document["communicators"]:
            yield Skip(place, NOTHING)
        for number, comm in enumerate(document["communicators"]):
            record = f"communicators/E{number}" if is_alone else f"{place}/communicators/{number}"
            if isinstance(comm, dict):
                yield from _communicator(comm, stamp | {"record": record}, once)
            else:
                yield Skip(record, "a communicator that is no object")
    elif (event := json_of.text(document.get("event"), 200)) is not None:
        yield "trainer_events", _event(event, document, place)
    else:
        yield Skip(place, "neither a report (communicators) nor an event of the monitor")


def _communicator(comm: Mapping[str, Any], stamp: dict[str, Any], once: dict[str, Any]) -> Iterator[Row | Skip]:
    """The communicator, then its ranks, then their calls."""
    name = json_of.text(comm.get("hash"), 80)
    there, missing = (_objects(comm.get(key)) for key in ("ranks", "missing_ranks"))
    states = [_state(rank) for rank in there]
    gone = [_flags(rank) for rank in missing]
    if name is None and not there and not missing:
        yield Skip(stamp["record"], "a communicator without hash and ranks")
        return
    size = json_of.whole(comm.get("size"))
    told = json_of.whole(comm.get("missing_ranks_count"))
    yield "nccl_ras", stamp | once | {
        "comm": name,
        "num_comms": 1,
        "num_hosts": len({host for rank in (*there, *missing) if (host := _host(rank)) is not None}) or None,
        "num_ranks": size,
        "ranks_per_comm": size,
        "num_missing": told if told is not None else len(missing),
        "status": max((*states, *("NOCOMM" for unresponsive, _ in gone if not unresponsive)), key=_STATES.index, default=None),
        "errors": _errors(there, states, gone),
    }  # fmt: skip
    base = stamp | {"comm": name}
    for rank, state in zip(there, states, strict=True):
        yield "nccl_ras_ranks", base | _process(rank) | {
            "status": state, "is_missing": False, "is_unresponsive": False, "is_dead": False,
            "has_async_error": _number(rank, "async_error") not in (None, *_FINE),
        }  # fmt: skip
    for rank, (unresponsive, dead) in zip(missing, gone, strict=True):
        yield "nccl_ras_ranks", base | _process(rank) | {
            "status": "NOCOMM" if unresponsive is False else None, "is_missing": True, "is_unresponsive": unresponsive, "is_dead": dead,
        }  # fmt: skip
    for rank in there:
        counts = rank.get("collective_counts")
        for op, count in counts.items() if isinstance(counts, dict) else ():
            if (calls := json_of.whole(count)) is not None:
                yield "nccl_ras_ops", base | {"group_rank": json_of.whole(rank.get("rank")), "op": json_of.text(op, 80), "num_calls": calls}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _process(rank: Mapping[str, Any]) -> dict[str, Any]:
    pid = json_of.whole(rank.get("pid"))
    return {
        "group_rank": json_of.whole(rank.get("rank")),
        "host": _host(rank),
        "pid": pid if pid != _NO_PROCESS else None,
        "local_gpu": json_of.whole(rank.get("cuda_dev")),
    }


def _host(rank: Mapping[str, Any]) -> str | None:
    name = json_of.host(rank.get("host"))
    return name if name != "unknown" else None


def _status(rank: Mapping[str, Any], key: str) -> Any:
    status = rank.get("status")
    return status.get(key) if isinstance(status, dict) else None


def _number(rank: Mapping[str, Any], key: str) -> int | None:
    return json_of.whole(_status(rank, key))


def _state(rank: Mapping[str, Any]) -> str:
    if _status(rank, "abort_flag") is True:
        return "ABORT"
    if _status(rank, "finalize_called") is True or _status(rank, "destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING" if _number(rank, "init_state") in (0, None) else "INIT"


def _flags(rank: Mapping[str, Any]) -> tuple[bool | None, bool | None]:
    """Whether a missing rank's process does not answer, and whether RAS takes it for dead; None where not told."""
    told = [_status(rank, key) for key in ("unresponsive", "considered_dead")]
    unresponsive, dead = (value if isinstance(value, bool) else None for value in told)
    return unresponsive, dead


def _errors(there: list[dict[str, Any]], states: list[str], gone: list[tuple[bool | None, bool | None]]) -> str:
    """The words of the text for what is wrong, in its order."""
    counts = [counts for rank in there if isinstance(counts := rank.get("collective_counts"), dict)]
    found = []
    if any(unresponsive is not False for unresponsive, _ in gone):
        found.append("INCOMPLETE")
    if any(_number(rank, key) not in (None, *_FINE) for rank in there for key in ("init_state", "async_error")):
        found.append("ERROR")
    if len(set(states)) > 1 or any(unresponsive is False for unresponsive, _ in gone) or any(other != counts[0] for other in counts[1:]):
        found.append("MISMATCH")
    return ",".join(found) or "OK"


def _event(event: str, document: Mapping[str, Any], place: str) -> dict[str, Any]:
    peer = document.get("peer")
    peer = peer if isinstance(peer, dict) else {}
    devices = peer.get("cuda_devs")
    address = json_of.text(peer.get("addr"), 255)  # 10.0.0.1<28028>
    said = (json_of.text(document.get("details")), None if address is None or peer.get("host") else f"peer {address}")
    pid = json_of.whole(peer.get("pid"))
    return {
        "record": place,
        "event": event,
        "source": "nccl_ras",
        "host": _host(peer) or json_of.host((address or "").split("<")[0]),
        "pid": pid if pid != _NO_PROCESS else None,
        "local_gpu": json_of.whole(devices[0]) if isinstance(devices, list) and len(devices) == 1 else None,
        "logged_at": json_of.instant(document.get("timestamp")),
        "logged_at_local": json_of.local(document.get("timestamp")),
        "message": " | ".join(part for part in said if part) or None,
    }
