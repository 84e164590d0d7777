"""Does a sample that an exception names fail again on another rank or host, or in another launch, or does one host fail with other samples?

1. Exceptions that name samples count, of this launch and of earlier ones (_failures), and what people wrote down of a sample when they put it on the
   quarantine list.
2. The same sample again, at another time and on another rank or host: the sample is bad, and would fail anywhere.
3. Again on the same rank and host: the sample, or that host's copy of the data. Both stay open.
4. Three other samples on one host and none elsewhere: the host, its memory or its copy of the data.
5. A sample on the quarantine list that was read after it was put there: whoever reads the data does not read the list.
6. One time alone says no more than the exception itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from rca.analyses._failures import READS, Failure, by_sample, failures
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("log_events",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "fails_elsewhere": Sign("sample", ("bad_sample", "unknown")),
    "fails_again": Sign("sample", ("bad_sample", "storage_stall", "host_fault", "unknown")),
    "other_samples": Sign("sample", ("host_fault", "storage_stall", "bad_sample", "unknown")),
    "read_again": Sign("mention", (), is_note=True),
}

TIMES: Final = 3  # other samples that fail on one host before it is no chance
MAX_LISTED: Final = 64
MAX_CITES: Final = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """Findings on samples that fail more than once; none where no exception names one, NotEnoughEvidence where each failed once."""
    told = [one for one in case.derive(failures) if one.samples and (one.what == "exception" or one.origin == "told")]
    if not any(one.origin != "told" for one in told):
        return ()  # no exception names a sample
    found = [*_again(told), *_other_samples(told), *_read_again(case, told)]
    if not found:
        raise NotEnoughEvidence("the sample failed once: that it would fail elsewhere too is not on record")
    return found


def _again(told: Sequence[Failure]) -> list[Finding]:
    """Samples that failed at two times at least, those on other ranks or hosts first."""
    twice = {sample: times for sample, times in by_sample(told).items() if any(one.origin != "told" for one in times)}
    found = []
    for sign in ("fails_elsewhere", "fails_again"):
        those = {s: t for s, t in twice.items() if (len({(one.rank, one.host) for one in t}) > 1) == (sign == "fails_elsewhere")}
        if not those:
            continue
        times = next(iter(those.values()))
        where = "; ".join(_where(one) for one in times[:4])
        what = f"sample{'s' if len(those) > 1 else ''} {', '.join(list(those)[:8])} failed {len(times)} times"
        says = (
            f"{what}, on different ranks or hosts ({where}): it is bad wherever it is read"
            if sign == "fails_elsewhere"
            else f"{what}, each time on the same rank and host ({where}): the sample, or this host's copy of the data"
        )
        shards = {one.shard for one in times if one.shard}
        numbers: dict[str, Any] = {"sample_ids": list(those)[:MAX_LISTED], "failures": [one.row() for one in times[:MAX_LISTED]]}
        numbers |= {"is_reproducible": True} | ({"data_shard": next(iter(shards))} if len(shards) == 1 else {})
        found.append(Finding("sample_again", sign, says, scope=sign, numbers=numbers, cites=_cites(times)))
    return found[:1]


def _other_samples(told: Sequence[Failure]) -> list[Finding]:
    """One host on which several other samples failed, and none on another."""
    of: dict[str, list[Failure]] = defaultdict(list)
    for one in told:
        if one.host is not None and one.origin != "told":
            of[one.host].append(one)
    if len(of) != 1:
        return []
    ((host, times),) = of.items()
    apart = {one.samples[0]: one for one in times}
    if len(apart) < TIMES:
        return []
    says = f"{len(apart)} different samples failed on {host} ({', '.join(list(apart)[:6])}) and none on another host"
    says += ": the host, or its copy of the data"
    numbers = {"candidate_hosts": [host], "failures": [one.row() for one in times[:MAX_LISTED]]}
    return [Finding("sample_again", "other_samples", says, scope=host, numbers=numbers, cites=_cites(list(apart.values())))]


def _read_again(case: Tables, told: Sequence[Failure]) -> list[Finding]:
    """Samples on the quarantine list that failed after they were put there."""
    rows = case.table("quarantines").select("sample_id", "decided_at", "decision").unique().sort("decided_at", "decision").collect()
    listed = {sample: at for sample, at, decision in rows.iter_rows() if decision == "add"}
    for sample, at, decision in rows.iter_rows():
        if decision == "release" and sample in listed and at is not None and (listed[sample] is None or at >= listed[sample]):
            del listed[sample]
    late = [
        (sample, one) for one in told for sample in one.samples
        if one.at is not None and (at := listed.get(sample)) is not None and one.at > at
    ]  # fmt: skip
    if not late:
        return []
    sample, one = late[0]
    says = f"sample {sample} is on the quarantine list since {listed[sample]:%Y-%m-%d %H:%M:%S} UTC and was read after it ({_where(one)})"
    return [Finding("sample_again", "read_again", f"{says}: the data loader does not read the list", scope=sample, cites=_cites([one]))]


def _where(one: Failure) -> str:
    parts = [
        f"rank {one.rank}" if one.rank is not None else "",
        f"on {one.host}" if one.host else "",
        f"step {one.step}" if one.step is not None else "",
    ]
    launch = "" if one.origin == "now" else f"attempt {one.attempt}" if one.attempt is not None else "an earlier launch"
    return ", ".join(part for part in [" ".join(filter(None, parts[:2])), parts[2], launch] if part)


def _cites(times: Sequence[Failure]) -> tuple[Any, ...]:
    return tuple(one.cite for one in times if one.cite is not None)[:MAX_CITES]
