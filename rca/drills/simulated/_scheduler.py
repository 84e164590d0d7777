"""What schedulers and clusters write: slurmstepd and srun in the job's file, sacct, scontrol, reservations, Kubernetes events. Text alone."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = [
    "cancelled",
    "folded_hosts",
    "killed_for_memory",
    "kube_events",
    "kube_pod_killed",
    "node_failed",
    "nodes",
    "notice",
    "reservation",
    "sacct",
    "tasks_ended",
]

S: Final = 1_000_000_000


def _local(at: int) -> str:
    return f"{datetime.fromtimestamp(at // S, UTC):%Y-%m-%dT%H:%M:%S}"


def cancelled(job: str, host: str, why: str = "") -> list[str]:
    """slurmstepd ends the step; `why`: "", TIME LIMIT, PREEMPTION, NODE FAILURE, JOB REQUEUE. Stamps are tokens of _logbook.py."""
    tail = f" DUE TO {why}" if why else ""
    return [f"slurmstepd: error: *** STEP {job}.0 ON {host} CANCELLED AT <<local>>{tail} ***"]


def killed_for_memory(job: str) -> list[str]:
    """slurmstepd counted a kill for memory in the step's control group."""
    return [f"slurmstepd: error: Detected 1 oom_kill event in StepId={job}.0. Some of the step tasks have been OOM Killed."]


def tasks_ended(host: str, tasks: Sequence[int], how: str) -> list[str]:
    """srun tells of tasks that ended: `Exited with exit code 1`, `Killed`, `Terminated`, `Aborted (core dumped)`."""
    shown = _ranges(tasks)
    return [f"srun: error: {host}: task{'s' if len(tasks) > 1 else ''} {shown}: {how}"]


def node_failed(job: str, host: str, batch_host: str) -> list[str]:
    """The controller has lost a node: the job ends for it."""
    return [
        f"srun: error: Node failure on {host}",
        f"slurmstepd: error: *** JOB {job} ON {batch_host} CANCELLED AT <<local>> DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """0-3,7 of sorted numbers."""
    parts: list[str] = []
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    for run in runs:
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def folded_hosts(hosts: Sequence[str]) -> str:
    """host-[0001-0004,0007] of hosts whose names end in numbers of one width; else the names with commas."""
    stems = {host.rstrip("0123456789") for host in hosts}
    widths = {len(host) - len(host.rstrip("0123456789")) for host in hosts}
    if len(hosts) < 2 or len(stems) != 1 or len(widths) != 1 or widths == {0}:
        return ",".join(hosts)
    stem, width = stems.pop(), widths.pop()
    told = ",".join(
        "-".join(f"{int(part):0{width}d}" for part in run.split("-")) for run in _ranges([int(host[-width:]) for host in hosts]).split(",")
    )
    return f"{stem}[{told}]"


def sacct(job: str, name: str, *, state: str, exit_code: str, start: int, end: int | None, hosts: Sequence[str], reason: str = "") -> bytes:
    """`sacct -aDP` of the job, its batch step and its step."""
    ended = "Unknown" if end is None else _local(end)
    seconds = 0 if end is None else (end - start) // S
    plain = "CANCELLED" if state.startswith("CANCELLED") else state
    lines = ["JobIDRaw|JobName|State|ExitCode|Submit|Start|End|ElapsedRaw|NNodes|NodeList|Restarts|Reason"]
    place = f"{_local(start)}|{ended}|{seconds}|{len(hosts)}|{folded_hosts(hosts)}|0"
    lines.append(f"{job}|{name}|{state}|{exit_code}|{_local(start - 3600 * S)}|{place}|{reason or 'None'}")
    lines.append(f"{job}.batch|batch|{plain}|{exit_code}|{_local(start)}|{_local(start)}|{ended}|{seconds}|1|{hosts[0]}|0|")
    lines.append(f"{job}.0|python|{plain}|{exit_code}|{_local(start)}|{place}|")
    return ("\n".join(lines) + "\n").encode()


def nodes(states: Mapping[str, tuple[str, str]], at: int) -> bytes:
    """`scontrol show node --oneliner`: host -> (state, reason)."""
    lines = []
    for host, (state, reason) in states.items():
        told = f" Reason={reason} [slurm@{_local(at)}]" if reason else ""
        lines.append(
            f"NodeName={host} Arch=x86_64 CoresPerSocket=48 CPUTot=192 Gres=gpu:8 State={state} BootTime={_local(at - 9 * 86400 * S)}{told}"
        )
    return ("\n".join(lines) + "\n").encode()


def reservation(name: str, *, start: int, end: int, hosts: Sequence[str]) -> bytes:
    """`scontrol show reservation` of a maintenance."""
    head = f"ReservationName={name} StartTime={_local(start)} EndTime={_local(end)} Duration={timedelta(seconds=(end - start) // S)}"
    body = f"   Nodes={folded_hosts(hosts)} NodeCnt={len(hosts)} CoreCnt={len(hosts) * 96} Flags=MAINT,IGNORE_JOBS,SPEC_NODES"
    return f"{head}\n{body}\n   TRES=cpu={len(hosts) * 192}\n   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE\n\n".encode()


def notice(rng: random.Random, hosts: Sequence[str], *, what: str) -> list[str]:
    """An operator's or an agent's word before a stop. `what`: drain, maintenance, user, scale, cloud."""
    host = rng.choice(list(hosts))
    return [
        rng.choice(
            {
                "drain": (
                    f"<<py>> WARNING node-agent: drain requested for {host} (firmware rollout), stopping workload gracefully",
                    f"<<py>> INFO slurm-hook: {host} set to DRAIN, signalling job",
                ),
                "maintenance": (
                    "<<py>> NOTICE ops: cluster maintenance window starts in 5 minutes, jobs will be stopped",
                    "<<py>> INFO maintenance-controller: scheduled maintenance MNT-2217, terminating allocation",
                ),
                "user": (
                    "<<py>> INFO launcher: received stop request from user via web console",
                    "<<py>> INFO job-service: job cancelled by owner",
                    "scancel issued by uid=1031 at <<sec>>",
                ),
                "scale": ("<<py>> INFO operator: scaling down worker group from 8 to 4 replicas, terminating pods",),
                "cloud": ("<<py>> WARNING spot-handler: interruption notice received, instance will be reclaimed in 120 seconds",),
            }[what]
        )
    ]


def _event(kind: str, name: str, reason: str, message: str, at: int, component: str) -> dict[str, object]:
    when = f"{datetime.fromtimestamp(at // S, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{at % 10**12:x}", "namespace": "default"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": component},
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def kube_events(told: Sequence[tuple[str, str, str, int]]) -> bytes:
    """`kubectl get events -o json`: (node, reason, message, ns) each."""
    items = [_event("Node", node, reason, message, at, "node-controller") for node, reason, message, at in told]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1).encode()


def kube_pod_killed(pod: str, node: str, *, reason: str, code: int, start: int, end: int) -> bytes:
    """`kubectl get pod -o json` of a pod whose container ended: OOMKilled, Error, Evicted."""
    times = {
        "startedAt": f"{datetime.fromtimestamp(start // S, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "finishedAt": f"{datetime.fromtimestamp(end // S, UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    state = {"terminated": {"exitCode": code, "reason": reason, **times}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "ready": False, "restartCount": 0, "state": state}]}
    pod_object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "namespace": "default"},
        "spec": {"nodeName": node},
        "status": status,
    }
    return json.dumps(pod_object, indent=1).encode()
