"""Who took part: hosts and GPUs of ranks, and which ranks left which kind of evidence."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from rca.types import Tables

__all__ = ["Roster", "roster"]

COVERED = ("dumps", "collectives", "stacks", "steps", "log_events")  # tables whose absence for a rank hides something
# Tables that measure ranks without being a trace of each: (table, column).
MEASURING = (
    *(("transfers", column) for column in ("src_rank", "dst_rank")),
    *((table, "rank") for table in ("ops", "spans", "rank_stats", "rank_states", "rank_progress", "trainer_events", "gpu_samples")),
)
_IN_A_MAP = pl.col("local_rank").is_not_null() | pl.col("tp").is_not_null() | pl.col("gpu").is_not_null()
LOGS = "trainer_log"  # the collector that reads what ranks print
NAMING = ("ranks", "stacks", "dump_index", "log_events", "steps")  # tables that name the host of a rank
AGAINST_A_MAP = 2  # sources of other kinds, from which on a map is not believed


@dataclass(frozen=True)
class Roster:
    """The ranks of the job as far as known."""

    world_size: int | None
    hosts: Mapping[int, str]
    gpus: Mapping[int, str]
    pids: Mapping[int, int]  # of the trainers, where one source names one
    last_call_at: Mapping[int, datetime]
    ranks_with: Mapping[str, frozenset[int]]
    logged_hosts: frozenset[str]  # whose kernel log was read
    job_id: str
    attempt: int
    spellings: Mapping[str, str]  # host -> its name as a rank map spells it, where that differs
    disputed: frozenset[int] = frozenset()  # ranks that sources put on several hosts, so that none is known
    is_measured: bool = False  # some measurement names ranks, if no trace of any
    started: frozenset[int] = frozenset()  # ranks whose log tells of their start, whatever else it tells

    @property
    def everyone(self) -> frozenset[int]:
        """All ranks of the job: by its world size, else all that were seen."""
        if self.world_size is not None:
            return frozenset(range(self.world_size))
        return frozenset().union(*self.ranks_with.values()) | frozenset(self.hosts)

    def missing(self, table: str) -> list[int]:
        """Ranks of the job without a row in a table, sorted."""
        return sorted(self.everyone - self.ranks_with.get(table, frozenset()))

    def hosts_of(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """Their hosts, each once, sorted; () for those not known."""
        return tuple(sorted({self.hosts[rank] for rank in ranks if rank in self.hosts}))

    def spelled(self, host: str) -> str:
        """A host as its scheduler knows it: the name that a map gives, else the one that the tables use."""
        return self.spellings.get(host, host)

    def ranks_on(self, host: str) -> list[int]:
        """Ranks known to run on a host."""
        return sorted(rank for rank, name in self.hosts.items() if name == host)


def roster(case: Tables) -> Roster:
    """The roster of a case: a map says where a rank ran, unless two sources of other kinds contradict it; without one the sources do that name its
    host, if they agree.
    """
    ranks = case.table("ranks").filter(pl.col("rank").is_not_null()).collect()
    named = _where(case, ranks)
    hosts = {rank: next(iter(names)) for rank, names in sorted(named.items()) if len(names) == 1}
    disputed = frozenset(rank for rank, names in named.items() if len(names) > 1)
    trainers = ranks.filter(pl.col("pid").is_not_null() & (pl.col("role").fill_null("trainer") == "trainer")).select("rank", "pid").unique()
    pids = dict(trainers.unique("rank", keep="none").sort("rank").iter_rows())
    last = (
        case.table("dumps")
        .filter(pl.col("rank").is_not_null() & pl.col("last_at").is_not_null())
        .group_by("rank")
        .agg(pl.col("last_at").max())
        .collect()
    )
    with_rows = {
        table: frozenset(case.table(table).select(pl.col("rank").drop_nulls().unique()).collect()["rank"].to_list()) for table in COVERED
    }
    is_measured = any(case.table(table).filter(pl.col(column).is_not_null()).head(1).collect().height for table, column in MEASURING)
    named_logs = case.table("host_logs").select(pl.col("host").unique()).collect()["host"]
    names = frozenset(named_logs.fill_null("a host that its log does not name").to_list())
    logged = frozenset(hosts.values()) or names if named_logs.null_count() else names  # whose one is, nothing may tell
    moments = dict(last.sort("rank").iter_rows())
    return Roster(
        _world_size(case, ranks),
        hosts,
        _gpus(ranks),
        pids,
        moments,
        with_rows,
        logged,
        "job-0",
        0,
        _spellings(ranks),
        disputed,
        is_measured,
        _started(case, ranks),
    )


def _started(case: Tables, ranks: pl.DataFrame) -> frozenset[int]:
    """Ranks that say in a log where they run: so much was read of them, even where no event was."""
    logs = case.table("readings").filter(pl.col("collector") == LOGS).select(pl.col("evidence_id").unique()).collect()["evidence_id"]
    return frozenset(ranks.filter(pl.col("evidence_id").is_in(logs.implode()))["rank"].to_list())


def _where(case: Tables, ranks: pl.DataFrame) -> dict[int, set[str]]:
    """rank -> the host that is believed, or all that stand against each other.

    1. A map is believed against one source of another kind: stacks of a pod may name the pod, and logs the machine.
    2. Two kinds (index of a capture, stacks, logs, timings, the list of machines) that all name another host are no slip: the map is of another
       run or torn. Not so where machines bear the map's names and none the others': then the others only name the machines differently.
    """
    mapped = _hosts(ranks.lazy().filter(_IN_A_MAP))
    kinds = {table: _hosts(case.table(table)) for table in ("stacks", "dump_index", "steps")}
    kinds["logs"] = _hosts(ranks.lazy().filter(~_IN_A_MAP), case.table("log_events"))
    machines = frozenset().union(
        *(case.table(t).select(pl.col("host").drop_nulls().unique()).collect()["host"] for t in ("hosts", "host_logs"))
    )
    found = _hosts(*(case.table(table) for table in NAMING)) | mapped
    for rank, names in mapped.items():
        others = [named[rank] for named in kinds.values() if rank in named and not named[rank] & names]
        strange = frozenset().union(*others)
        has_map, has_others = bool(names & machines), bool(strange & machines)
        if len(others) + (has_others and not has_map) >= AGAINST_A_MAP and not (has_map and not has_others):
            found[rank] = names | strange
    return found


_FORMS: tuple[str, ...] = (
    r"^(?:GPU|MIG)-",
    r"[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.|$)",
    r"^[0-9]+$",
)  # of a GPU's name, the most telling first


def _gpus(ranks: pl.DataFrame) -> dict[int, str]:
    """rank -> its GPU by the most telling of the names that are given; none where two of one form differ."""
    named: dict[int, set[str]] = defaultdict(set)
    for rank, gpu in ranks.select("rank", "gpu").drop_nulls().unique().iter_rows():
        named[rank].add(gpu)
    found = {}
    for rank, names in sorted(named.items()):
        forms: dict[int, list[str]] = defaultdict(list)
        for name in sorted(names):
            forms[next((n for n, form in enumerate(_FORMS) if re.search(form, name)), len(_FORMS))].append(name)
        if all(len(same) == 1 for same in forms.values()):
            found[rank] = forms[min(forms)][0]
    return found


def _spellings(ranks: pl.DataFrame) -> dict[str, str]:
    """host -> the one spelling that maps give of it; none where they differ."""
    pairs = ranks.select("host", "host_name").drop_nulls().unique().unique("host", keep="none")
    return {host: name for host, name in sorted(pairs.iter_rows()) if host != name}


def _hosts(*tables: pl.LazyFrame) -> dict[int, set[str]]:
    """rank -> every host that is named for it."""
    named: dict[int, set[str]] = defaultdict(set)
    for table in tables:
        for rank, host in table.select("rank", "host").drop_nulls().unique().collect().iter_rows():
            named[rank].add(host)
    return named


def _world_size(case: Tables, ranks: pl.DataFrame) -> int | None:
    """Members of the default group, else of a full map, else None."""
    sizes = case.table("groups").filter(pl.col("kind") == "world").select(pl.col("size").max()).collect().item()
    mapped = ranks.filter(_IN_A_MAP)["rank"]
    found = [int(n) for n in (sizes, mapped.n_unique() if mapped.len() else None) if n is not None]
    return max(found) if found else None
