"""Which ranks does a kernel record concern, and which roots were first?

The rank is the one whose process the record names, or whose GPU has that address; else the one of the host that failed by its log or that others wait
for. A sick host concerns all of its ranks. Where process and address name different ranks, a fault of the device is of the address and one of a
program is of the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rca.analyses._faults import Story
from rca.analyses._kernel_events import Record
from rca.analyses._kernel_links import LINKS
from rca.analyses._kernel_roots import Scene
from rca.analyses._kernel_users import TRAINS, users_of
from rca.analyses._storage_hints import in_storage
from rca.analyses._waits import build_waits
from rca.types import Tables

__all__ = ["WEAK_SIGN", "contradicts", "cut_off", "ranks_of"]

_OF_STORAGE: Final = frozenset({"storage_record", "hung_task_record"})
_OF_PROGRAMS: Final = frozenset({"application_record"})  # a program did it, wherever it ran
WEAK_SIGN: Mapping[str, str] = {"storage_stall": "weak_storage_record", "network_fault": "weak_network_record"}
NO_FAULT: Final = frozenset({*WEAK_SIGN.values(), "weak_gpu_bus_record", "weak_bus_record", "short_stall_record"})  # they name no rank
_ON_DEVICE = frozenset(
    {"gpu_record", "gpu_memory_record", "nvlink_record", "nonfatal_link_record", "application_record", "repeated_record", "pcie_record"}
    | {"doubtful_record"}
)


def ranks_of(case: Tables, told: Story, record: Record, sign: str, seen: Scene) -> tuple[int, ...]:
    """Ranks that a record concerns: by process, by address, by what else points at one of the host's ranks. A sick host concerns all of its
    ranks; of a device or a mount nobody is named where nothing tells which rank uses it."""
    logs = told.logs
    on_host = logs.ranks_on(record.host)
    if sign in NO_FAULT:
        return ()
    if contradicts(case, record) and sign not in _OF_PROGRAMS:
        return case.derive(users_of).uses(record.host, record.gpu)
    if record.line.rank is not None:
        return (record.line.rank,)
    if sign == "host_record" or len(on_host) == 1:
        return on_host
    if sign in _ON_DEVICE and (by_address := case.derive(users_of).uses(record.host, record.gpu)):
        return by_address
    if sign in _OF_STORAGE and _all_hang(seen, record.host, len(on_host)):
        return on_host
    if sign == "storage_record" and (stuck := case.derive(in_storage)) and stuck <= set(on_host):
        return tuple(sorted(stuck))
    failed = {rank for fault in told.first for rank in fault.ranks} & set(on_host)
    if len(failed) == 1:
        return tuple(failed)
    waits = case.derive(build_waits)
    awaited = {rank for rank in on_host if rank in waits.awaited and rank not in waits.first and rank not in waits.held}
    return tuple(awaited) if len(awaited) == 1 else ()


def cut_off(case: Tables, told: Story, roots: Sequence[Record]) -> tuple[int, ...]:
    """All ranks of the hosts whose links are down, where calls that all members joined and nobody ends reach them, and every other such call stays
    inside one host: it needs no network, so it hangs behind others."""
    logs = told.logs
    on = {rank for r in roots for rank in logs.ranks_on(r.host)}
    if any(r.kind not in LINKS for r in roots) or on >= logs.everyone:
        return ()
    waits = case.derive(build_waits)
    stuck = [set(ranks) for node, ranks in waits.waiters.items() if len(ranks) > 1 and not waits.lagging[node]]
    reach = any(ranks & on for ranks in stuck) and all(ranks & on or len(logs.hosts_of(ranks)) < 2 for ranks in stuck)
    return tuple(sorted(on)) if reach else ()


def _all_hang(seen: Scene, host: str, num_ranks: int) -> bool:
    """Whether the kernel says of as many trainers as the host has ranks that they hang."""
    hung = {r.line.pid for r in seen.live if r.host == host and r.kind == "hung_task" and r.process and TRAINS.match(r.process)}
    return num_ranks == len(hung - {None}) > 1


def contradicts(case: Tables, record: Record) -> bool:
    """Whether the process in a record is of one rank, and the address of its GPU of another."""
    by_address = case.derive(users_of).uses(record.host, record.gpu) if record.kind in ("xid", "bus_loss") else ()
    return bool(by_address) and record.line.rank is not None and record.line.rank not in by_address
