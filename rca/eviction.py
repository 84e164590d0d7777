"""Which hosts to evict when a parallel group, not a rank, stands apart; the innocents among them, their cost, and the way with fewer. Pure.

A finding that names groups carries `cover` in its numbers: the smallest groups (or hosts) that the outliers fit into, each with `group`, `kind`,
`ranks`, `outliers` and `suspects` (of the outliers those that do not only wait). The plan takes all hosts of the cover out at once, which is
quick and takes innocents along; ByteRobust (SOSP'25, arXiv 2509.16293, section 5) accepts 6 to 7 of 8. The alternative takes out the hosts of
the suspects only, and proves the rest by a dual-phase replay if the fault comes back. Both are priced in GPU-hours. The plan is what is advised, as
in ByteRobust: it needs no replay to succeed before the job runs again. The way with fewer is told beside it, for whoever can let the job wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rca.replay import COMMANDS, chance
from rca.roster import Roster
from rca.types import Finding

__all__ = ["EvictionPlan", "eviction_plan"]

TEST_H: Final = 24.0  # h that an evicted host stays out for tests; ByteRobust's evicted pipeline was stress-tested for days
AGAIN_MIN: Final = 11.0  # min until a fault that came back is seen and the job is up: 10 of a hang's trigger, 46 to 65 s of a warm restart
START_MIN: Final = 2.7  # min to start a phase of the replay: load 1.6 and communicators 1.1, TrainMover's figures at 8,192 GPUs
REPEAT_MIN: Final = 2.0  # min of a few steps of a large job, for each repeat of a phase; ours
NUM_PHASES: Final = 2
REPRODUCTION: Final = (
    0.9  # that a replay shows a fault that stopped the job; a fault that corrupts now and then shows in 2 % (give your own)
)
# That the faulty host is among the suspects'. In the simulated hangs of tests/_group_jobs.py it always is, since waits lead there by design; the rest
# is for what they leave out (a host that fails without showing, two faults in one pipeline).
SUSPECT_HIT: Final = 0.9


@dataclass(frozen=True)
class EvictionPlan:
    """What to take out when only the group is told. Hosts as the tables name them, sorted."""

    group: str | None  # the one group that covers; None where several are needed
    kind: str  # tp, pp, mp, dp, ep, cp, host, ...
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]  # all on these hosts
    # Of the hosts, those that only share the group: nothing odd there, or only waits for others. None where all that stands there waits: then some
    # are sound (`num_innocent`), and the stacks do not tell which.
    innocent_hosts: tuple[str, ...] | None
    num_innocent: int  # hosts that go although they are sound, one fault in each group; which ones the stacks may not tell
    machine_precision: float  # faulty / evicted hosts, one fault in each group
    cost_gpu_h: float  # GPU-hours of the innocent hosts while they are tested
    alternative: Mapping[str, Any] | None  # see `_alternative`; None where it would evict the same hosts
    alternative_costs_less: bool  # in GPU-hours that are expected
    because: str  # one plain sentence

    def as_row(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return asdict(self)


def eviction_plan(
    findings: Sequence[Finding],
    roster: Roster,
    *,
    named: Sequence[int] = (),
    test_h: float = TEST_H,
    reproduction: float = REPRODUCTION,
    repeats: int = 1,
) -> EvictionPlan | None:
    """The plan, or None: no finding covers its outliers with groups, their hosts are not known, or `named` ranks are (then they go, not a group).
    None as well where the hosts hold every rank of the job: nothing would be left to run on, and what stands apart stands beside sound ranks there.

    `test_h` = hours that an evicted host stays out, `reproduction` = probability that one replay shows the fault, `repeats` of the replay.
    """
    told = next((f for f in findings if f.numbers.get("cover")), None)
    if told is None or named:
        return None
    cover: Sequence[Mapping[str, Any]] = told.numbers["cover"]
    hosts = roster.hosts_of(tuple(rank for part in cover for rank in part["ranks"]))
    if not hosts:
        return None
    suspects = roster.hosts_of(tuple(rank for part in cover for rank in part["suspects"]))
    ranks = tuple(sorted(rank for host in hosts for rank in roster.ranks_on(host)))
    if set(ranks) >= set(roster.everyone):
        return None
    gpus_per_host = len(ranks) / len(hosts)
    num_faults = min(len(cover), len(hosts))
    num_innocent = len(hosts) - num_faults
    cost = num_innocent * gpus_per_host * test_h
    other = _alternative(hosts, suspects, roster, num_faults, cost, test_h=test_h, reproduction=reproduction, repeats=repeats)
    kind = str(cover[0]["kind"])
    return EvictionPlan(
        group=str(cover[0]["group"]) if len(cover) == 1 and cover[0]["group"] else None,
        kind=kind,
        hosts=hosts,
        ranks=ranks,
        innocent_hosts=tuple(sorted(set(hosts) - set(suspects))) if suspects else None if num_innocent else (),
        num_innocent=num_innocent,
        machine_precision=round(num_faults / len(hosts), 4),
        cost_gpu_h=round(cost, 1),
        alternative=other,
        alternative_costs_less=other is not None and other["cost_gpu_h"] < cost,
        because=_because(
            kind, cover, hosts, num_innocent, cost, f"{gpus_per_host:g} GPU{'' if gpus_per_host == 1 else 's'} x {test_h:g} h"
        ),
    )


def _alternative(
    hosts: Sequence[str],
    suspects: Sequence[str],
    roster: Roster,
    num_faults: int,
    cost_gpu_h: float,
    *,
    test_h: float,
    reproduction: float,
    repeats: int,
) -> dict[str, Any] | None:
    """Evict fewer first: `hosts`, `ranks`, `probability` that the faulty one is among them (None: none goes first), `replay_probability` that both
    phases of a replay show it if not, `found_probability` of the two together, `expected_minutes` that the job waits longer, `cost_gpu_h` of all
    (where the replay shows nothing either, the whole group goes after all) and its `cost_parts`: of the job that waits, of sound hosts that are
    tested, of the group after all; `commands`.

    Where all hosts of the group look alike nobody is evicted before the replay.
    """
    if len(hosts) <= num_faults:
        return None
    fewer = tuple(suspects) if 0 < len(suspects) < len(hosts) else ()
    probability = SUSPECT_HIT if fewer else 0.0
    shown = chance(reproduction, repeats, NUM_PHASES)
    minutes = (1.0 - probability) * ((AGAIN_MIN if fewer else 0.0) + NUM_PHASES * (START_MIN + REPEAT_MIN * repeats))
    ranks = tuple(sorted(rank for host in fewer for rank in roster.ranks_on(host)))
    innocents = max(0, len(fewer) - num_faults) * len(ranks) / max(1, len(fewer))
    waits, tests, after_all = minutes / 60.0 * len(roster.everyone), innocents * test_h, (1.0 - probability) * (1.0 - shown) * cost_gpu_h
    return {
        "hosts": list(fewer),
        "ranks": list(ranks),
        "probability": probability if fewer else None,
        "then": "dual_phase_replay",
        "replay_hosts": sorted(set(hosts) - set(fewer)),
        "replay_probability": round(shown, 4),
        "found_probability": round(probability + (1.0 - probability) * shown, 4),
        "expected_minutes": round(minutes, 1),
        "cost_gpu_h": round(waits + tests + after_all, 1),
        "cost_parts": {
            "job_waits_gpu_h": round(waits, 1),
            "tests_gpu_h": round(tests, 1),
            "group_after_all_gpu_h": round(after_all, 1),
            "num_gpus": len(roster.everyone),
        },
        "commands": list(COMMANDS),
    }


def _because(kind: str, cover: Sequence[Mapping[str, Any]], hosts: Sequence[str], num_innocent: int, cost: float, each: str) -> str:
    size = "" if kind == "host" else f" of {len({rank for part in cover for rank in part['ranks']})} ranks"
    one = f"one {kind}{'' if kind == 'host' else ' group'}"
    what = (one if len(cover) == 1 else f"{len(cover)} {kind}{'' if kind == 'host' else ' group'}s") + size
    them = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    if not num_innocent:
        return f"what stands apart fits into {what}: {them}, and no other goes along"
    return (
        f"what stands apart fits into {what}: {them} go, of which {num_innocent} "
        f"{'is' if num_innocent == 1 else 'are'} probably sound ({cost:,.0f} GPU-hours of tests: {num_innocent} x {each})"
    )
