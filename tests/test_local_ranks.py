"""Numbers before lines that count the ranks of a host: told by hosts that have the same ones at once, and never taken for ranks of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rca.local_ranks import globally
from rca.tables import TABLES

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MAP = tuple({"evidence_id": "map.json", "rank": n, "host": f"host-{n // 4}", "local_rank": n % 4} for n in range(12))
ONE_HOST = tuple(row for row in MAP if row["host"] == "host-0")


def logged(host: int, rank: int, second: float | None = 0.0, path: str = "", **values: Any) -> dict[str, Any]:
    at = NOON + timedelta(seconds=second) if second is not None else None
    return {"evidence_id": path or f"logs/host-{host}.log", "rank": rank, "logged_at": at, "signature": "python_traceback", **values}


def told(rows: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]] = (), **tables: Sequence[Mapping[str, Any]]) -> list[Any]:
    """(rank, host) of the lines as they are told in the end, the ranks alone of other tables."""
    of = {"log_events": rows, "ranks": known, **dict.fromkeys(("progress", "dump_index", "dumps", "stacks"), ()), **tables}
    frames = {name: TABLES[name].rows([{"record": f"L{n + 1}", **row} for n, row in enumerate(found)]) for name, found in of.items()}
    ids = sorted({row["evidence_id"] for found in of.values() for row in found})
    frames["readings"] = TABLES["readings"].rows([{"evidence_id": id_, "path": id_} for id_ in ids])
    lines = (frames | globally(frames))["log_events"]
    return list(lines.select("rank", "host").iter_rows())


EVERYWHERE = [logged(host, rank) for host in range(3) for rank in range(4)]


def test_a_line_is_of_the_rank_that_the_map_has_at_that_place_of_its_host() -> None:
    assert told(EVERYWHERE, MAP) == [(n, f"host-{n // 4}") for n in range(12)]
    without = [{name: value for name, value in row.items() if name != "local_rank"} for row in MAP]
    assert told(EVERYWHERE, without) == told(EVERYWHERE, MAP), "the ranks of a host in their order"


def test_without_a_map_it_is_of_a_rank_of_its_host_that_nobody_knows() -> None:
    assert told(EVERYWHERE) == [(None, f"host-{n // 4}") for n in range(12)]
    assert told([logged(host, 3, None) for host in range(2)], MAP) == [(3, "host-0"), (7, "host-1")], (
        "no stamps, but a job of several hosts"
    )


def test_what_a_launcher_says_is_of_the_job() -> None:
    launcher = [logged(1, 5, signature=kind, record="L99") for kind in ("elastic_child_failed", "process_signal")]
    assert told([*EVERYWHERE, *launcher])[-2:] == [(5, None)] * 2
    beyond = logged(1, 27, signature="worker_started")
    assert told([*EVERYWHERE, beyond])[-1] == (27, None), "no host has so many"


@pytest.mark.parametrize(
    ("rows", "known"),
    [
        ([logged(0, 3), logged(1, 3, 3600)], ()),
        ([logged(0, 3, None), logged(1, 3, None)], ()),
        ([logged(0, 3), logged(1, 3)], ONE_HOST),
        ([logged(0, 3), logged(1, 3), logged(2, 4)], MAP),
        ([logged(0, 3), logged(1, 3), logged(2, 6)], ()),
        ([logged(0, 3), logged(1, 4)], ()),
        ([logged(0, 3, path="host-0/rank_3.log"), logged(1, 3, path="host-1/rank_3.log")], ()),
    ],
    ids=[
        "another time",
        "no time",
        "a job of one host",
        "more than a host has",
        "a host with others alone",
        "no number twice",
        "files of ranks",
    ],
)
def test_other_numbers_stay_ranks_of_the_job(rows: list[dict[str, Any]], known: Sequence[dict[str, Any]]) -> None:
    assert told(rows, known) == [(row["rank"], None) for row in rows]
