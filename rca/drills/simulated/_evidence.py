"""Which evidence of a hang there is: found while it hung, or after the watchdogs had ended the job; and what its logs say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from rca.drills.simulated._run import Run
from rca.drills.simulated._scene import Scene
from rca.drills.simulated._symptoms import Call

__all__ = ["hang_evidence", "waited_call"]

LOGS, RECORDER, STACKS = 0.8, 0.85, 0.85  # how often each kind of evidence is kept: ours
FOUND_ALIVE = 0.65  # of hangs that somebody (or a monitor) looked at before the watchdogs did
WATCHDOG = {
    "ALLREDUCE": "all_reduce",
    "_ALLGATHER_BASE": "_all_gather_base",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "BROADCAST": "broadcast",
}
_WORD = {op: word for word, op in WATCHDOG.items()}


def hang_evidence(scene: Scene, silent: Collection[int] = (), *, needs: Sequence[str] = ()) -> Run:
    """Draw what there is of a hang in which the ranks `silent` make no call and answer no watchdog; `needs` (stacks, recorder) is always there.

    Gives the run, for lines of the kind's own. Found alive: stacks and dumps, no word of a time-out. Found dead: the watchdogs told of
    their calls, had the recorders written, and ended the processes, so there are no stacks.
    """
    rng = scene.topic("evidence")
    run = Run.of(scene)
    alive = scene.style.backend == "gloo" or "stacks" in needs or rng.random() < FOUND_ALIVE
    timeout_s = run.teller.torch.timeout_s
    scene.looked_after_s = rng.uniform(70.0, 0.9 * timeout_s) if alive else timeout_s + rng.uniform(60.0, 4000.0)
    has_stacks = alive and ("stacks" in needs or rng.random() < STACKS)
    has_recorder = "recorder" in needs or not has_stacks or rng.random() < RECORDER
    scene.stacks.is_there, scene.recorder.is_there = has_stacks, has_recorder
    scene.recorder.settings = replace(scene.recorder.settings, timed_out=not alive)
    if rng.random() < LOGS:
        run.plays()
        if not alive:
            waiting = [rank for rank in range(scene.world.world_size) if scene.play.is_waiting(rank)]
            run.teller.time_outs(run.bite_at, waiting, lambda rank: waited_call(scene, rank), told=sorted(silent))
            run.ended_at = run.bite_at + round((timeout_s + 30) * 1e9)
    else:
        run.plays(silent=True)
        run.has_timings = run.has_numbers = False
        scene.steps = None
    return run


def waited_call(scene: Scene, rank: int) -> Call:
    """The call that a rank's GPU stands in, as its watchdog names it."""
    play = scene.play
    plan, place = play.plan(rank), play.finished(rank)
    op, (collective, p2p, _) = plan.program.ops[place], plan.program.seq[place]
    group = plan.groups[op.axis]
    name = op.name.split(" ")[0]
    word = "COALESCED" if name == "coalesced" else _WORD.get(name, name.upper().replace("ALL_TO_ALL", "ALLTOALL_BASE"))
    return Call(group.number, group.desc, group.members.index(rank), p2p if op.transfers else collective, word, 8192 * 4096)
