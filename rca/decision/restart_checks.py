"""Before a restart: is the old world gone, and can the new one talk and read? Each trouble is seen, not seen, or not looked for. Pure.

What was not looked for is never fine: each item says what to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from rca.checkpoints import Rollback
from rca.commands import host_list
from rca.decision.broken_hosts import broken_words
from rca.decision.job_size import ranks_per_host
from rca.roster import Roster
from rca.types import Finding, Outcome
from rca.weighing import sign_of

__all__ = ["BROKEN", "NOT_LOOKED", "NOT_SEEN", "SEEN", "restart_checks"]

SEEN, NOT_SEEN, NOT_LOOKED = "seen", "not_seen", "not_looked"
GPUS_PER_HOST: Final = 8  # where the ranks do not tell: HGX and DGX boards carry eight
NETWORK: Final = ("network_fault", "network_transient")  # causes for which a sign speaks first
STORAGE: Final = ("storage_stall", "data_stall")
VOTES: Final = "network_votes"
CONFIG: Final = "config_drift"
CHECKPOINT: Final = "checkpoint_state"
BROKEN: Final = "broken hosts beside"
NONE_BROKEN: Final[Mapping[str, str]] = MappingProxyType({})


def restart_checks(
    outcomes: Sequence[Outcome],
    who: Roster,
    back: Rollback | None,
    *,
    captured: frozenset[int],
    has_ended: bool | None,
    pending: Sequence[str],
    broken: Mapping[str, str] = NONE_BROKEN,
) -> list[dict[str, Any]]:
    """The checklist: `check`, `status` (seen, not_seen, not_looked), `says`, `run`. `captured` = ranks whose process was looked at,
    `has_ended` = whether the job is seen to have ended (None = not told), `pending` = changes that wait for a restart, `broken` = hosts that are not
    evicted and whose own record shows broken hardware, with it."""
    hosts = tuple(sorted({who.spelled(host) for host in who.hosts.values()}))
    checks = [
        _old_world(captured, who, hosts, has_ended=has_ended),
        _network(outcomes, hosts, ranks_per_host(who) or GPUS_PER_HOST),
        _data(outcomes, hosts),
        _checkpoint(outcomes, back),
        _alike(outcomes),
    ]
    if broken:
        checks.append(_broken(broken, who))
    if pending:
        says = f"noted for the next restart: {'; '.join(pending)}"
        checks.append({"check": "pending changes", "status": SEEN, "says": says, "run": []})
    return checks


def _item(check: str, status: str, says: str, run: Sequence[str] = ()) -> dict[str, Any]:
    return {"check": check, "status": status, "says": says, "run": list(run)}


def _old_world(captured: frozenset[int], who: Roster, hosts: Sequence[str], *, has_ended: bool | None) -> dict[str, Any]:
    """Ranks of this launch that may still hold GPUs, ports and locks."""
    where = host_list(hosts, len(hosts))  # all: a rank left on the one not asked holds the port as well
    run = ["squeue --me -t all -o '%i %T %N'   # is the old launch still there, or completing?"]
    if where:
        run.append(
            f"pdsh -w {where} 'pgrep -af torchrun; nvidia-smi --query-compute-apps=pid,used_memory --format=csv'   # nothing may be left"
        )
    alive = sorted(captured)
    if alive and has_ended is False:
        says = f"{len(alive)} of {len(who.everyone)} ranks were alive when captured: stop them and see that they are gone"
        return _item("leftover ranks", SEEN, says, run)
    if has_ended and not alive:
        return _item("leftover ranks", NOT_LOOKED, "the job ended; whether a process of it is left, nothing here looked", run)
    if alive:
        then = ", and the job has ended" if has_ended else "; whether the job still ran then is not told"
        says = f"processes of {len(alive)} ranks were looked at{then}: see that they are gone now"
        return _item("leftover ranks", SEEN, says, run)
    return _item("leftover ranks", NOT_LOOKED, "no process list or stack was taken, so nothing tells who is left", run)


def _broken(broken: Mapping[str, str], who: Roster) -> dict[str, Any]:
    """Hosts that did not begin it, and that a restart must not meet."""
    where = host_list([who.spelled(host) for host in broken], len(broken))
    run = [f"pdsh -w {where} 'sudo dcgmi diag -r 3; sudo dmesg -T | grep -iE xid'   # before they are used again"] if where else []
    return {**_item(BROKEN, SEEN, broken_words(broken, who), run), "hosts": list(broken)}


def _network(outcomes: Sequence[Outcome], hosts: Sequence[str], gpus_per_host: int) -> dict[str, Any]:
    run = ["ibstat | grep -E 'State|Rate'   # on each host: Active, LinkUp, the full rate"]
    if len(hosts) > 1:
        pair, more = host_list(hosts[:2], 2), "both hosts" if len(hosts) == 2 else "then every other pair of neighbours"
        run.append(f"srun -w {pair} -N2 --ntasks-per-node={gpus_per_host} all_gather_perf -b 1G -e 8G -f 2 -g 1   # {more}")
    told = _of_cause(outcomes, NETWORK) or [f for o in outcomes if o.analysis == VOTES for f in o.findings]  # whatever a vote comes to
    if told:
        return _item("network trouble", SEEN, told[0].says, run)
    if any(o.analysis == VOTES and o.status == "clear" for o in outcomes):
        return _item("network trouble", NOT_SEEN, "no failed connection is reported but what follows from another end or fault", run)
    return _item("network trouble", NOT_LOOKED, "no output of ranks at work was read, where their transport writes", run)


def _data(outcomes: Sequence[Outcome], hosts: Sequence[str]) -> dict[str, Any]:
    run = ["timeout 60 dd if=DATA_FILE of=/dev/null bs=1M count=256   # a shard of the data, on each host; df -h /dev/shm"]
    told = _of_cause(outcomes, STORAGE)
    if told:
        return _item("data not readable", SEEN, told[0].says, run)
    return _item("data not readable", NOT_LOOKED, "nothing here read the data after the fault", run)


def _of_cause(outcomes: Sequence[Outcome], causes: Sequence[str]) -> list[Finding]:
    """Findings whose sign speaks first for one of these causes."""
    return [f for o in outcomes for f in o.findings if (sign := sign_of(f)).causes[:1] and sign.causes[0] in causes and not sign.is_against]


def _checkpoint(outcomes: Sequence[Outcome], back: Rollback | None) -> dict[str, Any]:
    run = ["rca inspect CHECKPOINT_FOLDER   # every shard there, with its size and mark"]
    save = back.save if back is not None else None
    bad = back.unreadable if back is not None else None
    if back is not None and (back.passed or bad is not None):
        again = [f"{bad.name} could not be read: not to be loaded again ({bad.path} {bad.record})"] if bad is not None else []
        return _item("damaged or late checkpoint", SEEN, "; ".join([*again, *back.passed]), run)
    if save is not None and save.is_whole:
        return _item("damaged or late checkpoint", NOT_SEEN, f"{save.name} is whole ({save.path} {save.record})", run)
    if any(o.analysis == CHECKPOINT and o.status == "clear" for o in outcomes):
        return _item("damaged or late checkpoint", NOT_SEEN, "the checkpoints here are whole", run)
    named = f"a log names {save.name}; its files are not among the evidence" if save is not None else "no checkpoint is among the evidence"
    return _item("damaged or late checkpoint", NOT_LOOKED, named, run)


def _alike(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    run = ["rca capture --out DIR   # on each host: versions and settings; then rca analyse config_drift DIR"]
    mine = next((o for o in outcomes if o.analysis == CONFIG), None)
    if mine is not None and mine.findings:
        return _item("hosts that differ", SEEN, mine.findings[0].says, run)
    if mine is not None and mine.status == "clear":
        return _item("hosts that differ", NOT_SEEN, "the versions and settings that were read agree", run)
    return _item("hosts that differ", NOT_LOOKED, "no versions of two hosts were read", run)
