"""Which host is the odd one: values and denominators, what never counts, and when a difference becomes the explanation of a failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from collectors import host_configs, version_lines
from rca.analyses._config_hosts import Held, compared, is_load_bearing
from rca.analyses.config_drift import _may_explain as may_explain
from rca.case import MemoryCase
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Cite, Finding, Skip, Source

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
USUAL = {"driver": "580.82.07", "nccl": "2.21.5", "kernel": "5.15.0-105-generic", "serial": "1", "uptime": 7}
Table = Mapping[str, Mapping[str, Any]]


def hosts(count: int, **odd: Mapping[str, Any]) -> Table:
    """`count` hosts of two ranks each, alike but for what is given of some of them (host_2={...}); serial numbers differ."""
    return {f"host-{n}": {**USUAL, "serial": str(n), **odd.get(f"host_{n}", {})} for n in range(count)}


def scene(folder: Path, table: Table, *lines: Mapping[str, Any], kernel: str = "", silent: int | None = None) -> MemoryCase:
    """A job on these hosts, what a table says of them, lines of its logs, a kernel log, and dumps that await one rank."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    ranks = range(2 * len(table))
    for rank in ranks:
        place = {
            "evidence_id": "map",
            "record": f"L{rank}",
            "rank": rank,
            "host": list(table)[rank // 2],
            "local_rank": rank % 2,
            "pid": 100 + rank,
        }
        rows["ranks"].append(place)
        rows["memberships"].append(
            {"evidence_id": "map", "record": "E0", "group_id": "world:1", "rank": rank, "group_rank": rank, "is_inferred": False}
        )
        if silent is not None:
            rows["dumps"].append(
                {
                    "evidence_id": f"fr-{rank}",
                    "record": "E0",
                    "rank": rank,
                    "backend": "nccl",
                    "num_entries": 1,
                    "first_record_id": 0,
                    "has_only_active": False,
                    "is_torn": False,
                }
            )
            call = {
                "evidence_id": f"fr-{rank}",
                "rank": rank,
                "group_id": "world:1",
                "backend": "nccl",
                "op": "all_reduce",
                "is_tail": True,
                "is_p2p": False,
                "created_at": NOON,
            }
            rows["collectives"].append(
                {**call, "record": "E0", "record_id": 0, "collective_seq_id": 1, "state": "completed", "completed_at": NOON}
            )
            if rank != silent:
                rows["collectives"].append({**call, "record": "E1", "record_id": 1, "collective_seq_id": 2, "state": "started"})
    rows["groups"].append({"evidence_id": "map", "record": "E0", "group_id": "world:1", "kind": "world", "size": len(ranks)})
    for number, line in enumerate(lines, 1):
        rows["log_events"].append(
            {"evidence_id": f"log-{line['rank']}", "record": f"L{number}", "host": list(table)[line["rank"] // 2], "num_folded": 1, **line}
        )
    frames = {name: [TABLES[name].rows(found)] for name, found in rows.items()}
    for collector, text in ((host_configs, json.dumps(table)), (version_lines, kernel)):
        file = folder / collector.__name__
        file.write_text(text)
        source = Source("x.txt", file, len(text))
        if collector.claims("x", source.head):
            for item in collector.read(source):
                assert not isinstance(item, Skip)
                frames[item[0].name].append(item[1].with_columns(pl.lit(collector.__name__).alias("evidence_id")))
    return MemoryCase({name: pl.concat(found) for name, found in frames.items()})


def drift(case: MemoryCase) -> dict[str, Finding]:
    outcome = ask(case, "config_drift")
    assert outcome.status in ("found", "clear"), outcome.why
    assert all(finding.cites for finding in outcome.findings)
    return {finding.sign: finding for finding in outcome.findings}


OLD = {"driver": "570.86.15"}


def test_the_odd_host_is_told_with_values_and_numbers_and_accuses_nobody(tmp_path: Path) -> None:
    case = scene(tmp_path, hosts(16, host_2=OLD))
    found = drift(case)
    assert set(found) == {"drift"}
    assert "nvidia_driver 570.86.15 on host-2, 580.82.07 on the 15 others" in found["drift"].says
    assert (found["drift"].ranks, found["drift"].numbers["odd_hosts"]) == ((), ["host-2"])
    done = judge(case)
    assert (done.verdict.cause, done.verdict.ranks, done.advice.evict_hosts) == ("unknown", (), ())


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (hosts(2, host_1=OLD), "nvidia_driver 580.82.07 on host-0, 570.86.15 on host-1"),
        (hosts(4, host_0=OLD, host_1=OLD), "nvidia_driver 570.86.15 on host-0, host-1, 580.82.07 on host-2, host-3"),
    ],
)
def test_without_a_clear_majority_both_values_are_shown_and_no_host_is_odd(table: Table, says: str, tmp_path: Path) -> None:
    (finding,) = drift(scene(tmp_path, table)).values()
    assert (finding.sign, finding.hosts, finding.ranks, finding.numbers["odd_hosts"]) == ("differ", (), (), [])
    assert says in finding.says


def test_what_must_differ_never_counts(tmp_path: Path) -> None:
    own = {
        "host_1": {"uptime": 8, "gpu_uuid": "GPU-0000", "ip": "192.0.2.7", "boot_time": "x", "node_id": "4", "CUDA_VISIBLE_DEVICES": "1"}
    }
    assert drift(scene(tmp_path, hosts(4, **own))) == {}


def test_a_rank_or_device_that_differs_makes_its_host_the_odd_one(tmp_path: Path) -> None:
    case = scene(tmp_path, hosts(4))
    more = [
        {"evidence_id": "log", "record": f"L{rank}", "rank": rank, "component": "torch", "value": "2.4.0" if rank == 5 else "2.5.1"}
        for rank in range(8)
    ]
    case = MemoryCase({**case.frames, "configs": pl.concat([case.frames["configs"], TABLES["configs"].rows(more)])})
    assert "torch 2.4.0 and 2.5.1 on host-2, 2.5.1 on the 3 others" in drift(case)["drift"].says


def test_of_dated_observations_the_latest_counts(tmp_path: Path) -> None:
    table = {name: {**facts, "collected_at": "2026-03-02T08:00:00Z"} for name, facts in hosts(4, host_2=OLD).items()}
    kernel = "2026-03-02T09:00:00+00:00 host-2 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.82.07  Thu Jul 24\n"
    assert drift(scene(tmp_path, table, kernel=kernel)) == {}


def crashed(rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "signature": "process_signal",
        "signal": "SIGSEGV",
        "exit_code": -11,
        "logged_at": NOON,
        "message": "exitcode -11",
        "pid": 100 + rank,
    }


def test_an_unexplained_failure_on_the_odd_host_is_explained_by_it(tmp_path: Path) -> None:
    for more in ({"silent": 5}, {"lines": (crashed(5),)}):
        case = scene(tmp_path, hosts(8, host_2=OLD), *more.get("lines", ()), silent=more.get("silent"))  # type: ignore[arg-type, misc]
        found = drift(case)
        assert (found["failed_there"].ranks, found["failed_there"].hosts) == ((5,), ("host-2",))
        done = judge(case)
        assert (done.verdict.cause, done.verdict.ranks, done.advice.action, done.advice.evict_hosts) == ("config_drift", (5,), "human", ())


def test_a_failure_elsewhere_or_of_a_known_kind_is_not(tmp_path: Path) -> None:
    raised = {
        "rank": 5,
        "signature": "python_traceback",
        "exception": "KeyError",
        "message": "'a'",
        "frames": ["f (train.py:7)"],
        "logged_at": NOON,
    }
    for case in (
        scene(tmp_path, hosts(8, host_2=OLD), silent=2),
        scene(tmp_path, hosts(8, host_2=OLD), crashed(1)),
        scene(tmp_path, hosts(8, host_2=OLD), raised),
        scene(tmp_path, hosts(8, host_2={"kubelet": "v1.2"}, host_1={"kubelet": "v1.2"}), silent=5),  # nothing that ranks share
    ):
        assert "failed_there" not in drift(case)
        assert judge(case).verdict.cause != "config_drift"


def test_what_only_steers_logging_explains_no_failure() -> None:
    spoken = ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_CPP_LOG_LEVEL", "UCX_LOG_LEVEL"]
    spoken += [
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "FI_LOG_LEVEL",
        "NCCL_PROFILER_PLUGIN",
    ]
    spoken += [
        "TORCH_SHOW_CPP_STACKTRACES",
        "TORCH_SHOW_DISPATCH_TRACE",
        "UCX_STATS_DEST",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "GLOO_LOG_LEVEL",
    ]
    steering = [
        "NCCL_SOCKET_IFNAME",
        "NCCL_ALGO",
        "NCCL_IB_TIMEOUT",
        "NCCL_NVLS_ENABLE",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "PYTORCH_CUDA_ALLOC_CONF",
    ]
    steering += ["CUDA_LAUNCH_BLOCKING", "TORCH_CUDNN_V8_API_ENABLED", "NCCL_TOPO_FILE", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_IB_DISABLE"]
    assert [name for name in spoken if is_load_bearing(f"env:{name}")] == []
    assert [name for name in steering if not is_load_bearing(f"env:{name}")] == []


@pytest.mark.parametrize(
    "text",
    [
        "NCCL WARN Mismatched NCCL version detected : rank 4 version 21805 rank 0 version 22105",
        "CUDA driver version is insufficient for CUDA runtime version",
        "/lib/libx.so: undefined symbol: ncclCommSplit",
    ],
)
def test_a_complaint_about_versions_names_the_odd_host(text: str, tmp_path: Path) -> None:
    line = {
        "rank": 4,
        "signature": "python_traceback",
        "exception": "ImportError",
        "message": text,
        "frames": ["f (train.py:7)"],
        "logged_at": NOON,
    }
    case = scene(tmp_path, hosts(4, host_2={"nccl": "2.18.5"}), line)
    assert drift(case)["complained"].ranks == (4,)
    assert judge(case).verdict.cause == "config_drift"
    case = scene(tmp_path, hosts(4), line)  # nobody is odd: the program is wrong everywhere
    assert drift(case) == {}


def test_nccl_itself_names_the_ranks_whose_version_differs(tmp_path: Path) -> None:
    """No host is told but by the line itself, and no table of versions is there."""
    lines = [
        f"node-{rank // 2}:{100 + rank}:1 [0] init.cc:871 NCCL WARN Mismatched NCCL version detected : rank {0 if rank in (4, 5) else 4} version "
        f"{22105 if rank in (4, 5) else 21805} rank {rank} version {21805 if rank in (4, 5) else 22105}"
        for rank in range(8)
    ]
    case = scene(tmp_path, {}, kernel="\n".join(lines))
    assert (drift(case)["complained"].ranks, drift(case)["complained"].hosts) == ((4, 5), ("node-2",))
    assert judge(case).verdict.cause == "config_drift"


def test_a_driver_whose_halves_differ_is_told_by_its_kernel(tmp_path: Path) -> None:
    kernel = (
        "2026-03-02T09:00:00+00:00 host-1 kernel: NVRM: API mismatch: the client has the version 550.54.15, but\n"
        "2026-03-02T09:00:00+00:00 host-1 kernel: NVRM: this kernel module has the version 580.82.07.  Please\n"
    )
    case = scene(tmp_path, hosts(4), crashed(3), kernel=kernel)
    found = drift(case)
    assert "host-1 has programs with driver 550.54.15, but the kernel module is 580.82.07" in found["drift"].says
    assert found["failed_there"].ranks == (3,)


def test_one_host_alone_cannot_be_compared(tmp_path: Path) -> None:
    assert ask(scene(tmp_path, hosts(1)), "config_drift").status == "blind"


def test_values_seen_more_than_a_day_apart_explain_nothing_and_their_dates_are_said() -> None:
    cite = Cite("configs", "e", "", "E0", "")
    for days, apart in ((0, False), (0.9, False), (60, True), (-60, True)):
        odd = NOON + timedelta(days=days)
        held = {f"host-{n}": Held(frozenset({"570" if n == 3 else "580"}), cite, odd if n == 3 else NOON) for n in range(4)}
        (found,) = compared({"nvidia_driver": held})
        assert found.odd == ("host-3",)
        assert (found.apart("host-3") is not None) is apart
        assert may_explain(found) is not apart
        assert (f"host-3 as of {odd:%Y-%m-%d}, the others as of 2026-03-02" in found.says) is apart
    undated = {host: Held(one.values, one.cite) for host, one in held.items()}
    assert may_explain(compared({"nvidia_driver": undated})[0])
