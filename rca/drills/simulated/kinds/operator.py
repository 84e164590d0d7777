"""Ends that somebody or the scheduler wanted: cancelled, out of time, preempted, maintenance. Never the platform's fault, whatever dies of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rca.drills.simulated import _scheduler
from rca.drills.simulated._run import Run, S

if TYPE_CHECKING:
    from rca.drills.simulated._scene import Scene

__all__ = [
    "cancelled_after_stall",
    "cancelled_by_user",
    "drained_for_maintenance",
    "maintenance_window",
    "out_of_time",
    "preempted",
    "preempted_in_cloud",
    "scaled_down",
    "stopped_without_a_word",
]

UNTOLD: Final = ("cancelled_after_stall", "stopped_without_a_word")
CLASS: Final[Mapping[str, str]] = {kind: "unanswerable" if kind in UNTOLD else "planned" for kind in __all__}
MINUTE: Final = 60 * S


def _stops(run: Run, at: int) -> None:
    """Every process is asked to end, and does."""
    run.teller.stopped(at)
    run.no_dumps()
    run.ended_at = at + 40 * S


def _record(run: Run, at: int, state: str, code: str, reason: str = "") -> None:
    """The accounting of the job, where somebody kept it."""
    if run.has_scheduler:
        hosts = run.world.host_names()
        start = int(run.ends_at[0]) - 900 * S
        run.scene.files["slurm/sacct.txt"] = _scheduler.sacct(
            run.teller.job_id, "pretrain", state=state, exit_code=code, start=start, end=at, hosts=hosts, reason=reason
        )


def _started(scene: Scene) -> tuple[Run, int]:
    run = Run.of(scene)
    run.plays()
    return run, run.bite_at


def cancelled_after_stall(scene: Scene) -> None:
    """The job stood still for long, and then somebody cancelled it: the stall was the fault, and nothing at hand tells why it stood."""
    run, bite = _started(scene)
    at = bite + round(run.rng.uniform(60.0, 120.0) * max(scene.step_s, 20.0)) * S
    if run.teller.launcher == "srun":
        run.book.job(at - S, *_scheduler.cancelled(run.teller.job_id, run.host(0)))
    else:
        run.book.agent(run.host(0), at - 2 * S, *_scheduler.notice(run.rng, scene.world.host_names(), what="user"))
    _stops(run, at)
    scene.steps, run.has_numbers = None, False
    causes = ["unknown", "code_hang", "data_stall", "storage_stall", "network_fault", "gpu_fault"]
    untold = run.teller.voice.family == "hf"  # it prints steps without a stamp: that they had stopped coming nothing tells
    actions = ["human", "retry", "fix_code", *(["none"] if untold else [])]
    scene.tell([*causes, *(["planned_stop"] if untold else [])], hosts=[], answerable=False, is_planned=False, action=actions)


def cancelled_by_user(scene: Scene) -> None:
    """Somebody cancels the job that trains well."""
    run, at = _started(scene)
    if run.teller.launcher == "srun":
        run.book.job(at - S, *_scheduler.cancelled(run.teller.job_id, run.host(0)))
        run.has_scheduler = True
    else:
        run.book.agent(run.host(0), at - 2 * S, *_scheduler.notice(run.rng, scene.world.host_names(), what="user"))
    _stops(run, at)
    _record(run, at + 30 * S, "CANCELLED by 1031", "0:15")
    scene.tell("planned_stop", hosts=[])


def out_of_time(scene: Scene) -> None:
    """The job reaches its time limit."""
    run, at = _started(scene)
    if run.teller.launcher == "srun" and run.rng.random() < 0.5:
        run.book.job(at - S, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
    run.book.job(at, *_scheduler.cancelled(run.teller.job_id, run.host(0), "TIME LIMIT"))
    _stops(run, at)
    _record(run, at + 30 * S, "TIMEOUT", "0:0")
    scene.tell("planned_stop", hosts=[])


def preempted(scene: Scene) -> None:
    """The scheduler takes the nodes for a job that is more important."""
    run, at = _started(scene)
    why = run.rng.choice(("PREEMPTION", "PREEMPTION", "JOB REQUEUE"))
    run.book.job(at, *_scheduler.cancelled(run.teller.job_id, run.host(0), why))
    _stops(run, at + S)
    _record(run, at + 30 * S, "PREEMPTED" if why == "PREEMPTION" else "REQUEUED", "0:0", reason="Preempted")
    scene.tell("preemption" if why == "PREEMPTION" else ["preemption", "planned_stop"], hosts=[])


def preempted_in_cloud(scene: Scene) -> None:
    """The cloud takes its instances back, with two minutes' notice."""
    run, at = _started(scene)
    host = run.host(run.pick())
    run.book.agent(host, at - 2 * MINUTE, *_scheduler.notice(run.rng, [host], what="cloud"))
    _stops(run, at)
    scene.tell("preemption", hosts=[])


def drained_for_maintenance(scene: Scene) -> None:
    """A node is drained for new firmware; the agents stop the workload before."""
    run, at = _started(scene)
    host = run.host(run.pick())
    run.book.agent(host, at - 5 * S, *_scheduler.notice(run.rng, [host], what="drain"))
    if run.teller.launcher == "torchrun" and run.rng.random() < 0.5:
        told = [(host, "NodeNotSchedulable", f"Node {host} status is now: NodeNotSchedulable", at - 9 * S)]
        scene.files["cluster/events.json"] = _scheduler.kube_events(told)
    _stops(run, at)
    scene.tell("planned_stop", hosts=[])


def maintenance_window(scene: Scene) -> None:
    """A window of maintenance begins on all hosts, and the job is ended for it."""
    run, at = _started(scene)
    begins = at - run.rng.randrange(5, 90) * S
    scene.files["cluster/reservations.txt"] = _scheduler.reservation(
        "maint-q3", start=begins, end=begins + 4 * 3600 * S, hosts=scene.world.host_names()
    )
    if run.rng.random() < 0.5:
        run.book.agent(run.host(0), begins - 4 * MINUTE, *_scheduler.notice(run.rng, scene.world.host_names(), what="maintenance"))
    if run.teller.launcher == "srun":
        run.book.job(at, *_scheduler.cancelled(run.teller.job_id, run.host(0)))
    _stops(run, at)
    _record(run, at + 30 * S, "CANCELLED by 0", "0:15")
    scene.tell("planned_stop", hosts=[])


def scaled_down(scene: Scene) -> None:
    """A controller takes half of the workers away and starts the job anew without them."""
    run, at = _started(scene)
    run.book.agent(run.host(0), at - 3 * S, *_scheduler.notice(run.rng, scene.world.host_names(), what="scale"))
    _stops(run, at)
    scene.tell("planned_stop", hosts=[])


def stopped_without_a_word(scene: Scene) -> None:
    """All launchers get SIGTERM from outside, and nothing says by whom or why."""
    run, at = _started(scene)
    _stops(run, at)
    run.has_scheduler = False
    scene.tell(
        ["unknown", "planned_stop", "preemption"], hosts=[], answerable=False, is_planned=False,
        layer=["operator", "unknown"], attribution=["planned", "unknown"], action=["human", "none", "retry"],
    )  # fmt: skip
