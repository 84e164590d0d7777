"""The network between hosts: gone for one host, gone behind a switch, gone for some seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rca.drills._synthetic_world import World
from rca.drills.simulated._calls import fault_at
from rca.drills.simulated._evidence import hang_evidence, waited_call
from rca.drills.simulated._kernel_host import link_down, link_up
from rca.drills.simulated._run import Run
from rca.drills.simulated._scene import Scene
from rca.drills.simulated._symptoms import network_error

__all__ = ["CLASS", "NEEDS", "network_down", "network_down_unseen", "network_flap", "switch_down"]

_S: Final = 1_000_000_000
_MS: Final = 1_000_000
_RETRY_S: Final = (
    22  # until an InfiniBand adapter gives up a message without acknowledgement (NCCL_IB_TIMEOUT 20, 7 retries: tens of seconds)
)
_REMOTE: Final = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
_LOUD: Final = 256  # ranks of a large job whose lines are kept


def _cut_off(scene: Scene, hosts: Sequence[str]) -> list[int]:
    """From the step of the fault on nothing passes between the ranks of these hosts and all others."""
    scene.use_nccl()
    world = scene.world
    ranks = [rank for host in hosts for rank in world.ranks_on(host)]
    by_stage: dict[int, list[int]] = {}
    for rank in ranks:
        by_stage.setdefault(world.coordinates(rank).p, []).append(rank)
    scene.recorder.faults += [fault_at(scene, "cut", mine, "start") for _, mine in sorted(by_stage.items())]
    return ranks


def _peers_complain(scene: Scene, run: Run, ranks: Sequence[int]) -> None:
    """Both sides of the cut get no acknowledgement from the other: who is cut off from all its peers, the others from it alone."""
    world, rng, teller = scene.world, scene.topic("network"), run.teller
    cut = set(ranks)
    inside = sorted({world.host_of(rank) for rank in ranks})
    outside = [host for host in world.host_names() if host not in inside]
    waiting = [rank for rank in range(world.world_size) if scene.play.is_waiting(rank)]
    touched = [rank for rank in waiting if rank in cut or rng.random() < min(1.0, 2 * len(ranks) / world.world_size)]
    for rank in touched if len(touched) <= _LOUD else sorted(rng.sample(touched, _LOUD)):
        at = run.bite_at + _RETRY_S * _S + rng.randrange(2500) * _MS
        peer = rng.choice(outside if rank in cut else inside)
        lines = network_error(
            "retry",
            rng,
            host=world.host_of(rank),
            pid=scene.pid(rank),
            local=world.gpu_of(rank),
            peer=peer,
            port=rng.randrange(32000, 60000),
        )
        run.book.say(rank, at, *lines)
        run.book.say(rank, at + 40 * _MS, *teller.torch.torn_down(rank, waited_call(scene, rank), _REMOTE))
    run.ended_at = run.bite_at + (_RETRY_S + 30) * _S


def network_down(scene: Scene) -> None:
    """The network of one host is gone: its links or its adapter fail, its processes live on."""
    rng = scene.rng
    host = rng.choice(scene.world.host_names())
    ranks = _cut_off(scene, [host])
    run = hang_evidence(scene)
    run.has_kernel = run.has_kernel or rng.random() < 0.5
    if run.has_kernel:
        run.kernel[host] += link_down(run.bite_at - 50 * _MS, rng, why=rng.choice(("", "cable", "unplugged")))
    has_words = bool(run.book.ranks)
    if has_words and (rng.random() < 0.6 or not run.has_kernel):
        scene.stacks.is_there = False
        _peers_complain(scene, run, ranks)
    elif not run.has_kernel:
        return _unseen(scene)
    scene.tell("network_fault", ranks, evict_hosts=[host])
    return None


def switch_down(scene: Scene) -> None:
    """A switch fails: the links of all its hosts go down in the same moment."""
    rng, world = scene.rng, scene.world
    count = rng.randrange(2, max(3, min(5, world.num_hosts // 2 + 1)))
    first = rng.randrange(world.num_hosts - count + 1)
    hosts = world.host_names()[first : first + count]
    ranks = _cut_off(scene, hosts)
    run = hang_evidence(scene)
    run.has_kernel = True
    for host in hosts:
        run.kernel[host] += link_down(run.bite_at - 50 * _MS + rng.randrange(900) * _MS, rng)
    if run.book.ranks:
        scene.stacks.is_there = False
        _peers_complain(scene, run, ranks)
    scene.tell("network_fault", ranks, action=["replace", "human"], evict_hosts=hosts)


def network_flap(scene: Scene) -> None:
    """The link of a host goes down and comes back after seconds; the job has given up by then, the host is sound."""
    rng = scene.rng
    host = rng.choice(scene.world.host_names())
    ranks = _cut_off(scene, [host])
    run = hang_evidence(scene, needs=["recorder"])
    run.has_kernel = True
    down = run.bite_at - 50 * _MS
    state = rng.getstate()
    run.kernel[host] += link_down(down, rng)
    wait_s = _RETRY_S + rng.randrange(2, 20)
    rng.setstate(state)
    run.kernel[host] += link_up(down + wait_s * _S, rng)
    scene.stacks.is_there = False
    _peers_complain(scene, run, ranks)
    scene.tell("network_transient", ranks)


def network_down_unseen(scene: Scene) -> None:
    """The network of one host is gone, and only the recorders are left: who cannot talk to whom is to be seen, not on which side it is."""
    host = scene.rng.choice(scene.world.host_names())
    _cut_off(scene, [host])
    hang_evidence(scene, needs=["recorder"])
    _unseen(scene)


def _unseen(scene: Scene) -> None:
    run: Run = scene.notes["run"]
    run.has_kernel = run.has_timings = run.has_numbers = False
    scene.steps, scene.recorder.is_there = None, True
    scene.tell(["network_fault", "unknown"], [], action=["human", "replace", "retry"], answerable=False)


_SEVERAL: Final[Callable[[World], bool]] = lambda world: world.num_hosts > 1  # noqa: E731
NEEDS: dict[str, Callable[[World], bool]] = {
    "network_down": lambda world: world.num_hosts > 2,
    "network_down_unseen": _SEVERAL,
    "network_flap": lambda world: world.num_hosts > 2,
    "switch_down": lambda world: world.num_hosts > 4,
}
CLASS = {"network_down_unseen": "unanswerable"}
