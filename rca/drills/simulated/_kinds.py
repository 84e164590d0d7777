"""The kinds of incidents, found by listing the folder `kinds`, and the worlds in which each can happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rca import plugins
from rca.drills._synthetic_world import World
from rca.drills.simulated._scene import Class, Scene

__all__ = ["KINDS", "Class", "Kind", "class_of", "layouts"]

_PACKAGE: Final = "rca.drills.simulated.kinds"


@dataclass(frozen=True)
class Kind:
    """A kind of incident."""

    name: str
    make: Callable[[Scene], None]  # changes a scene in which all is well, and tells the truth
    fits: Callable[[World], bool]
    of_class: Class  # unanswerable: what tells was taken away, and the right answer accuses nobody
    about: str
    module: str  # that it stands in: the layer


def _all() -> Iterator[Kind]:
    """A module of the folder lists its kinds in __all__; it may say by name in NEEDS which worlds they need, and in CLASS what is no fault."""
    for module in plugins.names(_PACKAGE):
        loaded = plugins.load(_PACKAGE, module)
        needs: Mapping[str, Callable[[World], bool]] = getattr(loaded, "NEEDS", {})
        classes: Mapping[str, Class] = getattr(loaded, "CLASS", {})
        for name in loaded.__all__:
            if name not in ("NEEDS", "CLASS"):
                make = getattr(loaded, name)
                about = (make.__doc__ or "").strip().partition("\n")[0]
                yield Kind(name, make, needs.get(name, lambda _world: True), classes.get(name, "fault"), about, module)


KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in _all()}

_LAYOUTS: Final = (
    World(tp=2, pp=2, dp=2),
    World(tp=2, pp=1, dp=4),
    World(tp=1, pp=1, dp=8),
    World(tp=4, pp=1, dp=2, gpus_per_host=4),
    World(tp=2, pp=4, dp=2, order="tp-pp-dp"),
    World(tp=2, pp=2, dp=4, order="tp-dp-pp", gpus_per_host=4),
    World(tp=2, pp=2, dp=2, cp=2),
    World(tp=1, pp=4, dp=8, ep=2, order="dp-pp", gpus_per_host=4),
    World(tp=4, pp=2, dp=4, order="tp-pp-dp"),
    World(tp=1, pp=1, dp=32),
    World(tp=4, pp=3, dp=5, order="pp-tp-dp"),
    World(tp=8, pp=1, dp=8),
    World(tp=2, pp=8, dp=4, order="tp-pp-dp"),
    World(tp=4, pp=4, dp=4, cp=2, order="tp-cp-pp-dp"),
    World(tp=8, pp=2, dp=8),
    World(tp=1, pp=1, dp=256),
    World(tp=8, pp=4, dp=8, ep=4),
    World(tp=4, pp=8, dp=8, order="tp-dp-pp", gpus_per_host=4),
    World(tp=8, pp=4, dp=16, order="tp-pp-dp"),
    World(tp=8, pp=4, dp=32, order="dp-tp-pp"),
    World(tp=8, pp=8, dp=16, order="tp-pp-dp"),
    World(tp=1, pp=1, dp=1024),
    World(tp=8, pp=8, dp=32, cp=2, ep=8),
    World(tp=8, pp=16, dp=32, order="tp-pp-dp"),
    World(tp=8, pp=16, dp=128, order="tp-dp-pp"),
    World(tp=8, pp=16, dp=64, cp=2, order="tp-cp-pp-dp"),
)  # 8 to 16,384 ranks


def layouts(kind: str) -> list[World]:
    """Worlds of 8 to 16,384 ranks in which a kind can happen, the smallest first."""
    return [world for world in _LAYOUTS if KINDS[kind].fits(world)]


def class_of(kind: str) -> Class:
    """What the right answer to a kind is about: a fault, health, a plan, or that nothing can be told."""
    return KINDS[kind].of_class
