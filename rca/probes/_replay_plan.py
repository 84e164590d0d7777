"""Which hosts replay together: the arithmetic of dual-phase replay, and of the double run where hosts are too few for it. Pure.

After ByteRobust (SOSP'25, arXiv 2509.16293, algorithm 1). N hosts numbered 0 .. N-1 in pipeline order, a host being a tensor-parallel unit; a
group is m = k * pp hosts, k whole pipelines; n = N / m groups in each phase.

    horizontal  H_a = {x : x // m == a}      vertical  V_b = {x : x % n == b}

The suspects are the hosts of the one differing group of each phase: m consecutive hosts of which every n-th is also in V_b, so at most ceil(m / n).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rca.errors import UsageError
from rca.replay import chance

__all__ = ["MODES", "PLAN_VERSION", "chance", "double_run", "dual_phase", "max_suspects", "plan_document", "repeats_needed"]

PLAN_VERSION: Final = "rca.replay_plan/1"
MODES: Final = ("auto", "dual_phase", "double_run")
WANTED_CHANCE: Final = 0.9
MAX_HOSTS: Final = 1_000_000
MIN_VOTES: Final = 3  # groups of a phase: of two that differ nothing tells which one is right
Phases = list[dict[str, Any]]


def max_suspects(m: int, n: int) -> int:
    """The largest number of hosts that a group of each phase share, for groups of `m` hosts and `n` groups."""
    return math.ceil(m / n)


def dual_phase(m: int, n: int) -> Phases:
    """The groups of both phases, `n` of `m` hosts each."""
    hosts = range(m * n)
    return [
        {"name": "horizontal", "groups": [list(hosts[a * m : (a + 1) * m]) for a in range(n)]},
        {"name": "vertical", "groups": [list(hosts[b::n]) for b in range(n)]},
    ]


def double_run(num_hosts: int) -> Phases:
    """Every host on its own."""
    return [{"name": "double_run", "groups": [[host] for host in range(num_hosts)]}]


def repeats_needed(q: float, num_phases: int = 2, wanted: float = WANTED_CHANCE) -> int:
    """The fewest repeats for which `chance` reaches `wanted`."""
    if q >= 1.0:
        return 1
    enough = math.ceil(math.log(1.0 - wanted ** (1.0 / num_phases)) / math.log1p(-q))
    return next(r for r in (enough - 1, enough, enough + 1) if r >= 1 and chance(q, r, num_phases) >= wanted)


def plan_document(
    num_hosts: int,
    pp: int,
    *,
    k: int | None = None,
    mode: str = "auto",
    prefers_double_run: bool = False,
    hosts: Sequence[str] | None = None,
    suspects: Sequence[str] = (),
    repeats: int | None = None,
    reproduction: float | None = None,
) -> dict[str, Any]:
    """The plan as `rca.replay_plan/1`.

    `pp` = hosts of one pipeline, `k` = pipelines of a group (1 unless told). Where `k` and `mode` are left open, hosts too few for two phases run
    twice on their own; with `prefers_double_run` also those for which two phases tell less than that: groups of one host, or fewer than three
    of them. `hosts` = names in pipeline order, `suspects` = of them those whose groups go first, `reproduction` = probability that one replay
    shows the fault. Raises UsageError for sizes that do not fit, and says which do.
    """
    _check(num_hosts, pp, k, mode, repeats, reproduction, hosts)
    m, notes = (k or 1) * pp, []
    is_open = mode == "auto" and k is None
    falls_back = mode == "double_run" or (is_open and num_hosts < (MIN_VOTES if prefers_double_run else 2) * pp)
    falls_back |= is_open and prefers_double_run and pp == 1
    if falls_back:
        if mode == "auto":
            few = "one host is a whole pipeline" if pp == 1 else f"{num_hosts} hosts in pipelines of {pp} are too few for two phases"
            notes.append(f"{few}: each host runs the same steps on its own, twice, and the majority of bits is right")
        phases, m, n = double_run(num_hosts), 1, num_hosts
        largest, repeats = 1, max(2, repeats or 2)
    else:
        _check_division(num_hosts, pp, m)
        n = num_hosts // m
        phases, largest, repeats = dual_phase(m, n), max_suspects(m, n), repeats or 1
    if n < MIN_VOTES:
        notes.append(
            f"{n} groups have no majority when they differ: what both phases compute is compared as one, and a tie stays undecided"
        )
    if largest > 1:
        notes.append(f"up to {largest} hosts are left as suspects, since a group has more hosts (m = {m}) than there are groups (n = {n})")
    _put_suspects_first(phases, hosts, suspects)
    return {
        "schema_version": PLAN_VERSION,
        "mode": phases[0]["name"] if len(phases) == 1 else "dual_phase",
        "num_hosts": num_hosts,
        "pp": pp,
        "k": None if falls_back else k or 1,
        "m": m,
        "n": n,
        "hosts": list(hosts) if hosts is not None else None,
        "suspects": [host for host in hosts or () if host in set(suspects)],
        "phases": phases,
        "max_suspects": largest,
        "repeats": repeats,
        "detection": _detection(repeats, reproduction, len(phases)),
        "notes": notes,
    }


def _detection(repeats: int, q: float | None, num_phases: int) -> Mapping[str, Any]:
    """What the plan can find of a fault that does not always show; null where it is not told how often it does."""
    return {
        "reproduction": q,
        "repeats": repeats,
        "chance": None if q is None else chance(q, repeats, num_phases),
        "wanted": WANTED_CHANCE,
        "repeats_needed": None if q is None else repeats_needed(q, num_phases),
    }


def _put_suspects_first(phases: Phases, hosts: Sequence[str] | None, suspects: Sequence[str]) -> None:
    """`order`: the numbers of the groups in the order to run them, those with a suspect before the others."""
    accused = {number for number, host in enumerate(hosts or ()) if host in set(suspects)}
    for phase in phases:
        phase["order"] = sorted(range(len(phase["groups"])), key=lambda g: (accused.isdisjoint(phase["groups"][g]), g))


def _check(
    num_hosts: int, pp: int, k: int | None, mode: str, repeats: int | None, reproduction: float | None, hosts: Sequence[str] | None
) -> None:
    for name, number in (("hosts", num_hosts), ("pp", pp), ("k", k), ("repeats", repeats)):
        if number is not None and not 1 <= number <= MAX_HOSTS:
            raise UsageError(f"--{name} {number}: give a whole number from 1 to {MAX_HOSTS:,}")
    if reproduction is not None and not 0.0 < reproduction <= 1.0:
        raise UsageError(f"--reproduction {reproduction:g}: the probability that one replay shows the fault lies above 0 and at most at 1")
    if mode not in MODES:
        raise UsageError(f"--mode {mode}: choose one of {', '.join(MODES)}")
    if num_hosts == 1 and mode != "double_run":  # asked for by name, it still shows a host that differs from itself
        raise UsageError(
            "one host: there is no second one to compare its bits with, and a chip that is always wrong agrees with itself. Name more hosts "
            "(evidence of all of them, or --hosts N); --mode double_run on one host finds only what is wrong now and then"
        )
    if hosts is not None and (len(hosts) != num_hosts or len(set(hosts)) != num_hosts):
        raise UsageError(f"{len(set(hosts))} different names for {num_hosts} hosts: each host needs one name of its own")


def _check_division(num_hosts: int, pp: int, m: int) -> None:
    """N = m * n with at least two groups, or the error that says what would fit."""
    if num_hosts % m == 0 and num_hosts // m >= 2:
        return
    fitting = [k for k in range(1, num_hosts // (2 * pp) + 1) if num_hosts % (k * pp) == 0]
    nearest = sorted({max(2, num_hosts // m) * m, max(2, -(-num_hosts // m)) * m})
    alone = "one group is all of them, and there is nothing to compare it with"
    why = alone if num_hosts % m == 0 else f"they do not divide into groups of {m}"
    with_k = f"--k {' or '.join(map(str, fitting[:6]))} fits {num_hosts} hosts" if fitting else f"no --k fits {num_hosts} hosts"
    with_n = f"--hosts {' or '.join(map(str, nearest))} fits groups of {m}"
    raise UsageError(
        f"{num_hosts} hosts, groups of m = k * pp = {m}: {why}. {with_k}; {with_n}; --mode double_run runs each host on its own"
    )
