"""The documents of a capture that state facts: the map of ranks, the host and its GPUs, the processes with their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collectors._capture.files import Folder, instant
from collectors._capture.find import Job, Member
from collectors._capture.gpu import gpus
from collectors._capture.host import versions
from collectors._capture.kernel import boot_ns, zone_s
from collectors._capture.network import adapters, addresses
from collectors._capture.proc import TICKS
from collectors._capture.state import cgroup_of, safe_command, safe_environment

__all__ = ["owners", "rank_rows", "write_host", "write_processes", "write_topology"]

FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel: only there are NVML's process ids ours


def rank_rows(job: Job) -> list[dict[str, Any]]:
    """Rank, place on the host and process of every trainer whose rank is known."""
    return [{"rank": m.rank, "local_rank": m.local_rank, "pid": m.process.pid} for m in job.trainers if m.rank is not None]


def write_topology(folder: Folder, job: Job, gpu_of: Mapping[int, str]) -> None:
    """The map of ranks. `gpu_of`: process -> UUID of the GPU that it runs on, as far as known."""
    rows = [{**row, "host": folder.host, "role": "trainer", "gpu": gpu_of.get(row["pid"])} for row in rank_rows(job)]
    if rows:
        folder.write_json("topology.json", {"ranks": rows})


def write_host(folder: Folder, job: Job) -> None:
    """`host.json`: versions and GPUs; then the map of ranks once more, when NVML says who runs where."""
    found, why = gpus()
    folder.note("gpus", "skipped" if found is None else "ok", why)
    facts = {
        "schema_version": "rca.host/1",
        "started_at": instant(folder.began_ns),
        "host": folder.host,
        "zone_offset_s": zone_s(),
        "versions": versions(job.trainers),
        "addresses": addresses(),
        "adapters": adapters(),
        "gpus": found,
    }
    folder.write_json("host.json", facts)
    folder.note("host", "ok")
    if found and not _shares_pids_with_driver():
        folder.note("gpu_of_rank", "skipped", "in a container NVML counts processes otherwise: which rank runs on which GPU is not told")
    elif known := owners(found or ()):
        write_topology(folder, job, known)


def _shares_pids_with_driver() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == FIRST_PID_NAMESPACE
    except OSError:
        return False


def owners(found: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Process -> UUID of its GPU. One that holds memory on several runs where it holds most: a stray context takes little. A tie is not told."""
    held: dict[int, list[tuple[int, str]]] = {}
    for gpu in found:
        for process in gpu.get("processes") or ():
            if gpu.get("uuid"):
                held.setdefault(process["pid"], []).append((process["memory_bytes"] or 0, gpu["uuid"]))
    best = {pid: sorted(places, reverse=True) for pid, places in held.items()}
    return {pid: places[0][1] for pid, places in sorted(best.items()) if len(places) == 1 or places[0][0] > places[1][0]}


def write_processes(folder: Folder, members: Sequence[Member], samples: Mapping[int, list[dict[str, Any]]]) -> None:
    """`proc/processes.json`: who was there, and its states in each round."""
    rows = [
        {
            "pid": member.process.pid,
            "role": member.role,
            "rank": member.rank,
            "parent": member.process.ppid,
            "started_at": instant(boot_ns() + member.process.started * 10**9 // TICKS),
            "comm": member.process.comm,
            "command": safe_command(member.process.command),
            "environment": safe_environment(member.process.environ) if member.is_trainer or member.role == "agent" else None,
            "cgroup_memory": cgroup_of(member.process.pid) if member.is_trainer else None,
            "samples": samples.get(member.process.pid, []),
        }
        for member in members
    ]
    about = {"schema_version": "rca.processes/1", "started_at": instant(folder.began_ns), "host": folder.host}
    folder.write_json("proc/processes.json", {**about, "processes": rows})
    folder.note("processes", "ok")
