"""Which GPU's metrics changed to an error during the job?

1. A gauge of the last Xid is a level: it stays until the exporter starts anew, tells no time, and cannot show repeats. Alone it is a note.
2. Where it changes between two samples whose instants are known, that Xid came between them. One that by the catalogue may be a root counts, a bit
   weaker than the kernel's own record; one that only follows, or is a program's, is a note. So does a rise of a count of an Xid in a window.
3. Rows of memory that fail to be remapped, more uncorrectable errors, and failed recoveries of a link that rise in the job's time count a little.
   Replays, CRC errors, throttling and a clock below that of the other GPUs of the host are notes: sound jobs have them too.
4. The GPU must be one of the job's. Whose it is maps tell by address, UUID or number; failing that only the host is named. Of changes that lie
   between the same samples the order is not known: then nobody is accused.
5. What came before the job, or after which its ranks made further steps, ended nothing: a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any, Final

from rca.analyses._alive import last_steps
from rca.analyses._faults import Story, story
from rca.analyses._gpu_series import Edge, Gpu, Owners, Sample, cite_sample, edges, owners_of, series_of
from rca.analyses._job_logs import READS
from rca.analyses._words import iso, ranks_text
from rca.catalogues import by_code
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("gpu_samples",)
USES = READS
SIGNS = {
    "gpu_edge": Sign("device", ("gpu_fault", "gpu_memory_fault", "nvlink_fault", "unknown")),
    "memory_edge": Sign("device", ("gpu_memory_fault", "gpu_fault", "unknown")),
    "link_edge": Sign("device", ("nvlink_fault", "gpu_fault", "unknown")),
    "several_edges": Sign("device", ("gpu_fault", "nvlink_fault", "unknown")),
    "memory_rises": Sign("device", ("gpu_memory_fault", "unknown")),
    "link_rises": Sign("device", ("nvlink_fault", "unknown")),
    "level": Sign("mention", (), is_note=True),
    "not_counted": Sign("mention", (), is_note=True),
    "rises": Sign("mention", (), is_note=True),
    "slow_clock": Sign("mention", (), is_note=True),
}

XID: Final = r"^(?:DCGM_FI_DEV_XID_ERRORS|nvidia_smi_xid_errors)$"
XID_COUNT: Final = r"^DCGM_EXP_XID_ERRORS_(?:COUNT|TOTAL)$"
MEMORY: Final = r"^DCGM_FI_DEV_(?:ROW_REMAP_FAILURE|UNCORRECTABLE_REMAPPED_ROWS|ECC_DBE_(?:VOL|AGG)_TOTAL|RETIRED_DBE)$"
LINK: Final = r"^DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_"
NOTED: Final = (
    r"^DCGM_FI_DEV_(?:NVLINK_(?:CRC|REPLAY)\w*|PCIE_REPLAY_COUNTER"
    r"|(?:THERMAL|POWER|HW_THERMAL|SYNC_BOOST|BOARD_LIMIT|RELIABILITY)_VIOLATION)$"
)
CLOCK: Final = r"^DCGM_FI_DEV_SM_CLOCK$"
_SIGN_OF: Final[Mapping[str, str]] = {"gpu_fault": "gpu_edge", "gpu_memory_fault": "memory_edge", "nvlink_fault": "link_edge"}
SLOW_CLOCK_RATIO: Final = 0.8  # of the median clock of its host's GPUs: throttling halves it and more, boost differs by a few per cent
MIN_PEERS: Final = 4  # GPUs of a host that are compared
MIN_CLOCKS: Final = 3  # samples of each
MAX_CITES: Final = 6
MAX_NAMED: Final = 4


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for what may have ended the job, and notes."""
    told = case.derive(story)
    if told.logs.everyone and not told.not_seen_to_end_well:
        return ()
    owners = owners_of(case, told.logs)
    watched = series_of(case, f"{XID}|{XID_COUNT}|{MEMORY}|{LINK}")
    if not watched:
        raise NotEnoughEvidence("no metric of errors of GPUs is among those here")
    counted, aside, levels = _xids(case, told, owners)
    found = [_finding(counted, told, owners)] if counted else []
    if not counted:
        found += _rising(case, told, owners, MEMORY, "memory_rises") or _rising(case, told, owners, LINK, "link_rises")
    found += [*_aside(aside), *_levels(levels), *_noted(case, owners), *_clocks(case, owners)]
    if not found and all(len(series) == 1 for series in watched):
        raise NotEnoughEvidence("one sample of each metric: what changed takes a second one, best the range of the job's time")
    return found


def _xids(case: Tables, told: Story, owners: Owners) -> tuple[list[Edge], list[tuple[Edge, str]], list[Sample]]:
    """Edges that count, those that do not and why, and levels without any edge."""
    counted: list[Edge] = []
    aside: list[tuple[Edge, str]] = []
    levels: list[Sample] = []
    for series in series_of(case, XID) + series_of(case, XID_COUNT):
        is_level = "EXP" not in series[0].name  # the others count
        of_series = [e for e in edges(series) if e.after.code is not None and (is_level or e.after.value > e.before.value)]
        for edge in of_series:
            why = _not_counted(case, edge, told, owners)
            if why:
                aside.append((edge, why))
            else:
                counted.append(edge)
        if not of_series and series[-1].code is not None and series[-1].value and owners.is_of_job(series[-1].gpu):
            levels.append(series[-1])
    return counted, aside, levels


def _not_counted(case: Tables, edge: Edge, told: Story, owners: Owners) -> str:
    """Why a change to an Xid accuses nobody; "" where it counts."""
    row = by_code("xid").get(edge.after.code or 0)
    if not owners.is_of_job(edge.after.gpu):
        return "of a GPU that nothing ties to the job"
    if edge.after.at is None:
        return "between two samples without a time"
    if row is None or row["role"] not in ("root", "either") or row["cause"] not in _SIGN_OF:
        return "that by the catalogue follows from another fault, or is of a program"
    return _out_of_time(case, edge, told)


def _out_of_time(case: Tables, edge: Edge, told: Story) -> str:
    """Why a change ended nothing; "" where it may have."""
    at = edge.after.at
    if at is not None and told.logs.span is not None and at < told.logs.span[0]:
        return "before the job"
    if at is not None and any(step > at for step, _ in last_steps(case, told.logs)):
        return "after which the job made further steps"
    return ""


def _finding(counted: Sequence[Edge], told: Story, owners: Owners) -> Finding:
    """The first of the changes; several, where they lie between the same samples."""
    first = min(counted, key=lambda e: (e.after.at or datetime.max, str(e.after.gpu)))
    rivals = [e for e in counted if e.before.at is not None and first.after.at is not None and e.before.at < first.after.at]
    gpus = {e.after.gpu for e in rivals}
    cites = tuple(cite_sample(s) for e in rivals for s in (e.before, e.after))[:MAX_CITES]
    failed = {"failed_at": iso(first.before.at)}
    if len({owners.ranks(gpu) or (gpu.host, gpu.address, gpu.index) for gpu in gpus}) > 1:
        names = "; ".join(f"Xid {e.after.code} on {e.after.gpu.words}" for e in rivals[:MAX_NAMED])
        fitting = sorted({rank for gpu in gpus for rank in owners.ranks(gpu)})
        says = f"metrics of {len(gpus)} GPUs changed between the same two samples ({names}): which was first they do not tell"
        hosts = {gpu.host for gpu in gpus if gpu.host}
        return Finding(
            "gpu_metrics", "several_edges", says, hosts=tuple(sorted(hosts)) if len(hosts) == 1 else (), scope=f"several {names}",
            numbers=failed | {"candidates": fitting}, cites=cites,
        )  # fmt: skip
    code = first.after.code or 0
    row = by_code("xid")[code]
    ranks = owners.ranks(first.after.gpu)
    whose = f" ({ranks_text(ranks)})" if ranks else ""
    before = f"{first.before.at:%H:%M:%S}" if first.before.at else "?"
    says = (
        f"the last-Xid metric of {first.after.gpu.words}{whose} changed to {code} ({row['name']}) between {before} and "
        f"{first.after.at:%H:%M:%S} UTC; it cannot show repeats"
    )
    return Finding(
        "gpu_metrics", _SIGN_OF[row["cause"]], says, ranks=ranks, hosts=(first.after.gpu.host,) if first.after.gpu.host else (),
        scope=f"{code} {first.after.gpu}", explains=tuple(sorted(told.logs.everyone - set(ranks))) if ranks else (),
        numbers=failed | {"code": code}, cites=cites,
    )  # fmt: skip


def _rising(case: Tables, told: Story, owners: Owners, names: str, sign: str) -> list[Finding]:
    """Counters of errors that rose on the GPUs of one rank or host."""
    risen = [edge for series in series_of(case, names) for edge in edges(series) if edge.after.value > edge.before.value]
    risen = [e for e in risen if e.after.at is not None and owners.is_of_job(e.after.gpu) and not _out_of_time(case, e, told)]
    gpus = sorted({e.after.gpu for e in risen}, key=str)
    if not gpus:
        return []
    ranks = owners.ranks(gpus[0]) if len(gpus) == 1 else ()
    hosts = sorted({gpu.host for gpu in gpus if gpu.host})
    what = ", ".join(sorted({e.after.name for e in risen}))
    says = f"{what} rose during the job on {', '.join(gpu.words for gpu in gpus[:MAX_NAMED])}" + (
        f" ({ranks_text(ranks)})" if ranks else ""
    )
    cites = tuple(cite_sample(s) for e in risen for s in (e.before, e.after))[:MAX_CITES]
    at = min((e.before.at for e in risen if e.before.at is not None), default=None)
    return [
        Finding(
            "gpu_metrics", sign, says, ranks=ranks, hosts=tuple(hosts) if len(hosts) == 1 else (), scope=f"{sign} {gpus}",
            explains=tuple(sorted(told.logs.everyone - set(ranks))) if ranks else (), numbers={"failed_at": iso(at)}, cites=cites,
        )
    ]  # fmt: skip


def _aside(aside: Sequence[tuple[Edge, str]]) -> list[Finding]:
    if not aside:
        return []
    edge, why = aside[0]
    more = f", and {len(aside) - 1} more changes" if len(aside) > 1 else ""
    says = f"a metric of {edge.after.gpu.words} changed to Xid {edge.after.code}, {why}{more}"
    cites = tuple(cite_sample(e.after) for e, _ in aside)[:MAX_CITES]
    return [Finding("gpu_metrics", "not_counted", says, scope="not_counted", cites=cites)]


def _levels(levels: Sequence[Sample]) -> list[Finding]:
    """Gauges that hold an Xid all the time."""
    if not levels:
        return []
    names = ", ".join(f"Xid {s.code} on {s.gpu.words}" for s in levels[:MAX_NAMED])
    says = (
        f"metrics hold {names}: the last one since the exporter started, and when that was they do not tell; the gauge cannot show repeats. "
        "Bring the range of the job's time, or the kernel's log"
    )
    return [Finding("gpu_metrics", "level", says, scope="level", cites=tuple(map(cite_sample, levels))[:MAX_CITES])]


def _noted(case: Tables, owners: Owners) -> list[Finding]:
    """Counters that rise in sound jobs too."""
    risen = [
        e for series in series_of(case, NOTED) for e in edges(series) if e.after.value > e.before.value and owners.is_of_job(e.after.gpu)
    ]
    if not risen:
        return []
    by_name: dict[str, set[str]] = defaultdict(set)
    for edge in risen:
        by_name[edge.after.name].add(edge.after.gpu.words)
    parts = [f"{name} on {len(gpus)} GPUs ({sorted(gpus)[0]})" for name, gpus in sorted(by_name.items())]
    says = f"counters rose: {'; '.join(parts[:MAX_NAMED])}. Sound jobs have such rises too: they accuse nobody"
    return [Finding("gpu_metrics", "rises", says, scope="rises", cites=tuple(cite_sample(e.after) for e in risen)[:MAX_CITES])]


def _clocks(case: Tables, owners: Owners) -> list[Finding]:
    """GPUs whose clock lay below that of the others of their host."""
    by_host: dict[str, list[tuple[float, Gpu, Sample]]] = defaultdict(list)
    for series in series_of(case, CLOCK):
        if len(series) >= MIN_CLOCKS and series[0].gpu.host is not None:
            by_host[series[0].gpu.host].append((median(s.value for s in series), series[0].gpu, min(series, key=lambda s: s.value)))
    slow = []
    for _, clocks in sorted(by_host.items()):
        usual = median(value for value, _, _ in clocks)
        slow += [told for told in clocks if len(clocks) >= MIN_PEERS and told[0] < SLOW_CLOCK_RATIO * usual]
    if not slow:
        return []
    names = ", ".join(f"{gpu.words} ({value:g} MHz)" for value, gpu, _ in slow[:MAX_NAMED])
    ranks: list[Any] = sorted({rank for _, gpu, _ in slow for rank in owners.ranks(gpu)})
    says = f"the clock of {names} lay below that of the other GPUs of its host: a reason for a slow rank, if the timings show one"
    numbers = {"candidates": ranks}
    cites = tuple(cite_sample(sample) for _, _, sample in slow)[:MAX_CITES]
    return [Finding("gpu_metrics", "slow_clock", says, scope="slow_clock", numbers=numbers, cites=cites)]
