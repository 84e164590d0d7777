"""Hangs in a rank's own process: everything else only waits for it."""

from __future__ import annotations

from rca.drills._synthetic_job import Fault
from rca.drills.simulated._frameworks import Frames
from rca.drills.simulated._scene import Scene
from rca.drills.simulated._stacks import ProcessStack, Thread

__all__ = ["lock_hang"]

_THREAD: Frames = (("run", "threading.py", 982), ("_bootstrap_inner", "threading.py", 1045), ("_bootstrap", "threading.py", 1002))


def lock_hang(scene: Scene) -> None:
    """The main thread of a rank waits for a lock that another thread of its process holds, which waits for one of the main thread's."""
    rank = scene.rng.randrange(scene.world.world_size)
    scene.recorder.faults.append(Fault("stop", (rank,), "tp", -scene.rng.randrange(1, 5)))
    framework = scene.style.framework
    inner = scene.rng.choice(
        (
            (("emit", "logging/__init__.py", 1113), ("handle", "logging/__init__.py", 978), ("info", "logging/__init__.py", 1489)),
            (("observe", "metrics_buffer.py", 58), ("log_step", "metrics_buffer.py", 91)),
            (("acquire", "resource_pool.py", 44), ("borrow", "resource_pool.py", 71)),
        )
    )
    other: Frames = (
        *scene.rng.choice(((("flush", "metrics_buffer.py", 77),), (("rotate", "log_rotation.py", 39), ("_loop", "log_rotation.py", 63)))),
        *_THREAD,
    )
    scene.stacks.show(rank, ProcessStack((Thread(inner + framework.base), Thread(other, name="flusher"))))
    scene.tell("code_hang", [rank], action=["fix_code", "human"])
