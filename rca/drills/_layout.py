"""Where each rank of a drill sits, and what an injected fault is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any

from rca.errors import UsageError

__all__ = ["GROUP_DESCS", "RANKS_PER_HOST", "Injection", "Layout", "Scene", "pick", "shared_kind"]

RANKS_PER_HOST = 2
MAX_RANKS = 64  # processes of 0.3 GB each on one machine
GROUP_DESCS = {  # Megatron's names, as a real recorder shows them
    "world": "default_pg",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "mp": "MODEL_PARALLEL_GROUP",
}


@dataclass(frozen=True)
class Injection:
    """Who is hit, at which step, and what the job script is told: {rank: {fault: settings}}, and settings of the whole job."""

    ranks: tuple[int, ...] = ()
    step: int | None = None
    faults: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    shows_after: int = 0  # steps: how long a job that goes on is watched after `step`
    place: Mapping[str, Any] = field(default_factory=dict)  # where the drill's own deeds and made-up lines go: hosts, ranks, amounts


@dataclass(frozen=True)
class Layout:
    """tp x dp x pp ranks, tp fastest, then dp, then pp; two ranks a host."""

    tp: int
    pp: int
    dp: int

    def __post_init__(self) -> None:
        if min(self.tp, self.pp, self.dp) < 1 or self.world_size > MAX_RANKS:
            raise UsageError(f"tp {self.tp} x pp {self.pp} x dp {self.dp}: each at least 1, {MAX_RANKS} ranks at most")

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def hosts(self) -> tuple[str, ...]:
        """host-a, host-b, ...: made-up, one for every two ranks."""
        count = -(-self.world_size // RANKS_PER_HOST)
        letters = [first + second for first in ("", *ascii_lowercase) for second in ascii_lowercase]
        return tuple(f"host-{name}" for name in letters[:count])

    def host(self, rank: int) -> str:
        return self.hosts[rank // RANKS_PER_HOST]

    def size(self, kind: str) -> int:
        return {"tp": self.tp, "pp": self.pp, "dp": self.dp, "mp": self.tp * self.pp, "world": self.world_size}[kind]

    def ranks(self) -> list[dict[str, Any]]:
        """One row per rank: host, gpu, local_rank and coordinates."""
        rows = []
        for rank in range(self.world_size):
            local = rank % RANKS_PER_HOST
            place = {"rank": rank, "host": self.host(rank), "gpu": local, "local_rank": local}
            rest = rank // self.tp
            rows.append({**place, "tp": rank % self.tp, "dp": rest % self.dp, "pp": rest // self.dp})
        return rows

    def groups(self) -> list[dict[str, Any]]:
        """One row per process group, in the order in which every rank makes them: a group's name is its number."""
        rows = self.ranks()
        found: list[tuple[str, list[int]]] = [("world", [row["rank"] for row in rows])]
        for kind, shared in (("tp", ("dp", "pp")), ("pp", ("tp", "dp")), ("dp", ("tp", "pp")), ("mp", ("dp",))):
            members: dict[tuple[int, ...], list[int]] = {}
            for row in rows:
                members.setdefault(tuple(row[axis] for axis in shared), []).append(row["rank"])
            found += [(kind, ranks) for ranks in sorted(members.values())]
        return [
            {"name": str(number), "kind": kind, "desc": GROUP_DESCS[kind], "ranks": ranks} for number, (kind, ranks) in enumerate(found)
        ]

    def topology(self) -> dict[str, Any]:
        """The document a scheduler or a launcher would leave: topology.json."""
        parallel = {"tp": self.tp, "pp": self.pp, "dp": self.dp}
        return {
            "world_size": self.world_size,
            "parallel": parallel,
            "order": "tp-dp-pp (tp fastest)",
            "ranks": self.ranks(),
            "groups": self.groups(),
        }


@dataclass(frozen=True)
class Scene:
    """What is known once the fault has bitten; made-up lines and edits are fitted to it."""

    layout: Layout
    injection: Injection
    seed: int
    pids: Mapping[int, int]  # of the trainers, by rank
    began_ns: int  # every rank trained by then
    bite_ns: int  # the fault showed: of the deed, else when the hit rank began its last step
    now_ns: int  # of the capture's end

    def rng(self, topic: str) -> random.Random:
        """A generator of its own for each topic: the same seed makes the same choices."""
        return random.Random(f"{topic}:{self.seed}")


def pick(fault: str, layout: Layout, *, seed: int, ranks: Sequence[int] = ()) -> tuple[int, int, random.Random]:
    """The rank (among `ranks`, else of all) and the step that a fault hits, and the generator for what else it has to choose."""
    rng = random.Random(f"{fault}:{seed}")
    rank = rng.choice(ranks) if ranks else rng.randrange(layout.world_size)
    return rank, rng.randrange(8, 14), rng


def shared_kind(layout: Layout, kinds: tuple[str, ...], rng: random.Random) -> str:
    """A kind of group with more than one member, among `kinds`."""
    shared = [kind for kind in kinds if layout.size(kind) > 1]
    if not shared:
        raise UsageError(f"this fault needs a group of two: make one of {', '.join(kinds)} larger than 1")
    return rng.choice(shared)
