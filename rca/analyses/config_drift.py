"""Does a host run other versions or settings than its peers?

1. Compare every component that the evidence tells of several hosts (`_config_hosts`): driver, libraries, images, firmware, hashes, variables.
   The odd ones are told against a clear majority, with values and numbers; of two hosts that differ neither is odd.
2. A difference alone accuses nobody: hosts differ in sound jobs too. It is shown.
3. Where the one rank or host that failed without any other explanation (a crash in native code, a failed device command, a rank that fell
   silent, and no record of its kernel) is the odd one in something that ranks must share, that is the best explanation there is.
4. Where a log complains of versions that do not fit, and one host is odd, that host's ranks are what it is about. A driver whose two halves
   differ on one host counts as such a difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from rca.analyses._config_hosts import Compared, Held, Values, compared, hosts_of_ranks, is_load_bearing, values_of_hosts
from rca.analyses._faults import Story, story
from rca.analyses._job_hosts import READS as HOST_READS
from rca.analyses._job_hosts import JobHosts, job_hosts
from rca.analyses._job_logs import READS, Line, cite_line
from rca.analyses._kernel_roots import scene
from rca.analyses._stack_views import main_motion
from rca.analyses._waits import build_waits
from rca.analyses._words import iso, quoted, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

NEEDS = ("configs",)
USES = tuple(dict.fromkeys((*READS, *HOST_READS, "group_status", "memberships")))
SIGNS = {
    "drift": Sign("mention", ()),
    "differ": Sign("mention", ()),
    "failed_there": Sign("config", ("config_drift", "unknown")),
    "complained": Sign("exception", ("config_drift", "unknown")),  # it reads the very exception that first_exception reads
}

MAX_CITES: Final = 6
MAX_SAID: Final = 5  # components told one by one
UNEXPLAINED: Final = frozenset({"crashed", "gpu_error", "unspecified_failure"})  # kinds of faults that say that it broke, not what broke it
QUIET: Final = frozenset({"train_progress", "worker_started", "worker_finished", "checkpoint_save", "checkpoint_load"})  # no complaints
MODULE, CLIENT = "nvidia_driver", "nvidia_driver_client"
_COMPLAINT: Final = re.compile(
    r"(?i)mismatched nccl version|nccl version mismatch|driver/library version mismatch|driver version is insufficient for cuda runtime"
    r"|nvidia driver on your system is too old|api mismatch|forward compatibility was attempted on non supported|undefined symbol"
    r"|symbol lookup error|version `[^'\n]{1,60}' not found|compiled (?:against|with) .{1,80} but|versions? .{0,40}(?:do(?:es)? not match|mismatch)"
)


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for each set of hosts that differ; with what failed there, one more that names ranks."""
    told = case.derive(story)
    job = job_hosts(case)
    values = values_of_hosts(case, told.logs, job)
    if not any(len(held) > 1 for held in values.values()):
        raise NotEnoughEvidence("versions of one host only are known, or of none: there is nothing to compare")
    differing = [*compared(values), *_torn_drivers(values)]
    return [*_mentions(differing), *_accusation(case, told, job, [d for d in differing if _may_explain(d)])]


def _may_explain(one: Compared) -> bool:
    """Whether a difference can make an odd host fail, and all of the odd ones were looked at when the others were."""
    return bool(one.odd) and is_load_bearing(one.component) and not any(one.apart(host) for host in one.odd)


def _torn_drivers(values: Values) -> list[Compared]:
    """Hosts whose driver and what speaks with it are of two versions, as their kernels say."""
    found = []
    for host, client in sorted(values.get(CLIENT, {}).items()):
        module = values.get(MODULE, {}).get(host)
        if module is not None and module.values != client.values:
            held = {host: Held(client.values, client.cite)}
            found.append(Compared(CLIENT, held, f"but the kernel module is {module.text}", (host,)))
    return found


def _mentions(differing: Sequence[Compared]) -> list[Finding]:
    """One for every set of odd hosts; one for all that differ without an odd one."""
    by_hosts: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for one in differing:
        by_hosts[one.odd].append(one)
    found = []
    for odd, group in sorted(by_hosts.items()):
        group = sorted(group, key=lambda one: (not is_load_bearing(one.component), one.component))
        sign = "drift" if odd else "differ"
        cites = [one.held[host].cite for one in group for host in (odd[:1] or sorted(one.held)[:2])]
        cites += [held.cite for one in group if odd for host, held in sorted(one.held.items()) if host not in odd][:1]
        numbers = {"components": {one.component: {host: held.text for host, held in sorted(one.held.items())} for one in group[:50]}}
        says = _says(group) + ("; a difference alone makes nobody fail" if odd else "; which of them is the odd one is not told")
        found.append(
            Finding(
                "config_drift",
                sign,
                says,
                scope=f"{sign} {odd}",
                numbers={**numbers, "odd_hosts": list(odd)},
                cites=tuple(cites)[:MAX_CITES],
            )
        )
    return found


def _says(group: Sequence[Compared]) -> str:
    more = f"; and {len(group) - MAX_SAID} more components" if len(group) > MAX_SAID else ""
    return "; ".join(_one(one) for one in group[:MAX_SAID]) + more


def _one(one: Compared) -> str:
    if one.component == CLIENT:
        (host,) = one.odd
        return f"{host} has programs with driver {one.held[host].text}, {one.usual}"
    return one.says


def _accusation(case: Tables, told: Story, job: JobHosts, odd: Sequence[Compared]) -> list[Finding]:
    """The ranks of the one odd host: that versions do not fit is complained of, or they failed and nothing else explains it."""
    hosts = {host for one in odd for host in one.odd}
    if not hosts:
        return []
    places = hosts_of_ranks(case, told.logs, job)
    spoken = (line for line in told.logs.lines if line.signature not in QUIET)
    complaints = [line for line in spoken if _COMPLAINT.search(f"{line.exception or ''} {line.text}")]
    refused = [one for one in odd if one.component == "nccl"] if _has_refused(case) else []
    if len(found := {host for one in refused for host in one.odd} or (hosts if complaints else set())) == 1:
        return [_complained(told, places, refused or odd, next(iter(found)), () if refused else complaints)]
    suspects = _unexplained(case, told)
    on = {places.get(rank) for rank in suspects}
    if len(on) != 1 or not on <= hosts:
        return []
    (host,) = on
    fitting = [one for one in odd if host in one.odd]
    says = f"{ranks_text(suspects)} failed on {host}, and nothing else explains it: {_says(fitting)}"
    return [_finding("failed_there", told, suspects, says, fitting, str(host), ())]


def _has_refused(case: Tables) -> bool:
    """Whether NCCL itself refused to connect ranks because their versions differ."""
    return bool(case.table("configs").filter(pl.col("source") == "nccl_mismatch").head(1).collect().height)


def _complained(told: Story, places: Mapping[int, str], odd: Sequence[Compared], host: str, complaints: Sequence[Line]) -> Finding:
    on_host = tuple(sorted(rank for rank, name in places.items() if name == host))
    own = tuple(sorted({line.rank for line in complaints if line.rank is not None and line.rank in on_host}))
    what = (
        f"a log complains of versions that do not fit ({quoted(complaints[0].text)})"
        if complaints
        else "NCCL refused ranks of two versions"
    )
    return _finding("complained", told, own or on_host, f"{what}, and {host} is the odd one: {_says(odd)}", odd, host, complaints)


def _finding(
    sign: str, told: Story, ranks: tuple[int, ...], says: str, odd: Sequence[Compared], host: str, lines: Sequence[Line]
) -> Finding:
    at = min((line.at for line in lines if line.at is not None), default=None)
    cites = [*map(cite_line, lines[:2]), *(one.held[host].cite for one in odd)]
    numbers = {"failed_at": iso(at), "components": [one.component for one in odd], "odd_hosts": [host]}
    return Finding(
        "config_drift", sign, says, ranks=ranks, hosts=(host,), scope=f"{sign} {host}",
        explains=tuple(sorted(told.logs.everyone - set(ranks))) if ranks else (), numbers=numbers, cites=tuple(cites)[:MAX_CITES],
    )  # fmt: skip


def _unexplained(case: Tables, told: Story) -> tuple[int, ...]:
    """Ranks that failed first and nobody knows why: by a fault that names no reason, else as those whom all others wait for."""
    if told.stop.is_asked or scene(case, told).roots:
        return ()
    if told.first:
        names_no_reason = not told.is_everywhere and all(fault.kind in UNEXPLAINED for fault in told.first)
        return tuple(sorted({rank for fault in told.first for rank in fault.ranks})) if names_no_reason else ()
    if told.unplaced:
        return ()  # an exception of a rank that the log does not name
    waits = case.derive(build_waits)
    if case.derive(main_motion)[1].job_moves:
        return ()
    return tuple(sorted(rank for rank in waits.awaited if rank not in waits.first and rank not in waits.held))


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
