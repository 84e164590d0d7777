"""Where the ranks of a simulated job sit: parallel coordinates in any order, groups along every axis, hosts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from rca.errors import UsageError

__all__ = ["AXES", "Place", "World"]

AXES = ("tp", "cp", "dp", "pp")  # of a rank's place; experts are spread over data parallelism
MAX_RANKS = 131_072


class Place(NamedTuple):
    """Coordinates of a rank along tensor, data, pipeline and context parallelism."""

    t: int
    d: int
    p: int
    c: int = 0


@dataclass(frozen=True)
class World:
    """tp x cp x dp x pp ranks. `order` lists the axes, the fastest first; an axis of size 1 may be left out. `ep` divides `dp`.

    Ranks fill hosts one after the other, `gpus_per_host` each; the last host may have fewer. `hosts` is a pattern of their names.
    """

    tp: int = 2
    pp: int = 1
    dp: int = 2
    cp: int = 1
    ep: int = 1
    order: str = "tp-cp-dp-pp"
    gpus_per_host: int = 8
    hosts: str = "host-{:04d}"

    def __post_init__(self) -> None:
        sizes = {axis: self.size(axis) for axis in AXES}
        named = self.order.split("-")
        if min(*sizes.values(), self.ep, self.gpus_per_host) < 1 or self.world_size > MAX_RANKS:
            raise UsageError(f"{sizes}: every axis needs at least 1, all together {MAX_RANKS:,} ranks at most")
        if len(set(named)) < len(named) or set(named) - set(AXES) or {a for a, n in sizes.items() if n > 1} - set(named):
            raise UsageError(f"order {self.order!r}: name each of {', '.join(AXES)} once (those of size 1 may be left out)")
        if self.dp % self.ep:
            raise UsageError(f"ep {self.ep} does not divide dp {self.dp}")

    @property
    def spec(self) -> str:
        """The layout in one line: "tp8 cp2 dp64 pp16 tp-cp-pp-dp"."""
        axes = [f"{axis}{self.size(axis)}" for axis in (*AXES, "ep") if self.size(axis) > 1 or axis in ("tp", "dp")]
        return " ".join([*axes, self.order])

    def size(self, axis: str) -> int:
        """Number of ranks along an axis."""
        return {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp, "ep": self.ep, "world": self.world_size}[axis]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @cached_property
    def grid(self) -> np.ndarray:
        """The rank at [t, c, d, p]."""
        order = [axis for axis in self.order.split("-") if self.size(axis) > 1]
        order += [axis for axis in AXES if axis not in order]
        ranks = np.arange(self.world_size).reshape([self.size(axis) for axis in reversed(order)])
        return ranks.transpose([len(order) - 1 - order.index(axis) for axis in AXES])

    @cached_property
    def places(self) -> np.ndarray:
        """Row of each rank: t, c, d, p."""
        where = np.empty((self.world_size, len(AXES)), dtype=np.int64)
        where[self.grid.reshape(-1)] = np.indices(self.grid.shape).reshape(len(AXES), -1).T
        return where

    def rank(self, t: int, d: int, p: int, c: int = 0) -> int:
        """Global rank at these coordinates."""
        return int(self.grid[t, c, d, p])

    def coordinates(self, rank: int) -> Place:
        """Coordinates of a global rank."""
        t, c, d, p = (int(value) for value in self.places[rank])
        return Place(t, d, p, c)

    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """kind -> members of each group of that kind, in the order of creation; kinds with one member a group are left out, tp and dp stay.

        dp spans context parallelism too, as the groups do over which gradients are reduced. mp is one replica of the model.
        """
        grid = self.grid
        tp, cp, dp, pp = grid.shape
        found = {"world": np.arange(self.world_size).reshape(1, -1), "tp": grid.transpose(3, 2, 1, 0).reshape(-1, tp)}
        if cp > 1:
            found["cp"] = grid.transpose(3, 2, 0, 1).reshape(-1, cp)
        found["dp"] = grid.transpose(3, 0, 2, 1).reshape(-1, dp * cp)
        if pp > 1:
            found["pp"] = grid.transpose(2, 1, 0, 3).reshape(-1, pp)
        if self.ep > 1:
            found["ep"] = grid.transpose(3, 0, 1, 2).reshape(-1, self.ep)
        if tp * pp > 1 and dp * cp > 1:
            found["mp"] = grid.transpose(2, 1, 3, 0).reshape(-1, tp * pp)
        return {kind: [tuple(sorted(row)) if kind != "pp" else tuple(row) for row in rows.tolist()] for kind, rows in found.items()}

    def group_of(self, kind: str, rank: int) -> tuple[int, ...]:
        """The group of that kind that a rank is in."""
        return next(members for members in self.groups()[kind] if rank in members)

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return -(-self.world_size // self.gpus_per_host)

    def host_of(self, rank: int) -> str:
        """Name of the host of a rank."""
        return self.hosts.format(rank // self.gpus_per_host)

    def gpu_of(self, rank: int) -> int:
        """Number of a rank's GPU on its host."""
        return rank % self.gpus_per_host

    def host_names(self) -> list[str]:
        """All hosts, in order."""
        return [self.hosts.format(n) for n in range(self.num_hosts)]

    def ranks_on(self, host: str) -> list[int]:
        """The ranks of a host."""
        first = self.host_names().index(host) * self.gpus_per_host
        return list(range(first, min(first + self.gpus_per_host, self.world_size)))

    def map(self) -> pl.DataFrame:
        """One row per rank: rank, host, gpu, local_rank and the coordinates along axes that are used."""
        ranks = np.arange(self.world_size)
        names = np.array(self.host_names(), dtype=object)
        columns: dict[str, Any] = {"rank": ranks, "host": names[ranks // self.gpus_per_host].tolist(), "gpu": ranks % self.gpus_per_host}
        columns["local_rank"] = columns["gpu"]
        columns |= {axis: self.places[:, n] for n, axis in enumerate(AXES) if self.size(axis) > 1 or axis in ("tp", "dp", "pp")}
        if self.ep > 1:
            columns["ep"] = self.places[:, AXES.index("dp")] % self.ep
        return pl.DataFrame(columns)
