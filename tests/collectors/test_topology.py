"""Rank maps: what a rank has once, what stands for nothing, and what contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _sources import rows_of, source_of

from collectors import topology
from rca.types import Skip


def read(folder: Path, document: object) -> tuple[list[dict[str, Any]], list[Skip]]:
    source = source_of(folder, (document if isinstance(document, str) else json.dumps(document)).encode(), "map.json")
    assert topology.claims("map.json", source.head)
    tables, skips = rows_of(topology, source)
    return tables["ranks"], skips


@pytest.mark.parametrize("rank", [3, "3", 3.0])
@pytest.mark.parametrize("gpu", [1, "1", 1.0])
def test_numbers_however_they_are_written(tmp_path: Path, rank: object, gpu: object) -> None:
    ((row,), skips) = read(tmp_path, [{"rank": rank, "host": "Host-B.example", "gpu": gpu, "tp": "1"}])
    assert (row["rank"], row["host"], row["gpu"], row["tp"], skips) == (3, "host-b", "1", 1, [])


@pytest.mark.parametrize(
    "document",
    [[{"rank": 3, "host": "host-b", "gpu": -1, "local_rank": -1, "pp": "-1"}], "rank,host,gpu,local_rank,pp\n3,host-b,-1,-1,-1\n"],
)
def test_minus_one_stands_for_none(tmp_path: Path, document: object) -> None:
    ((row,), _) = read(tmp_path, document)
    assert [row[name] for name in ("rank", "host", "gpu", "local_rank", "pp")] == [3, "host-b", None, None, None]


def test_a_rank_that_stands_twice_is_believed_in_what_both_say(tmp_path: Path) -> None:
    one = {"rank": 3, "host": "host-b", "gpu": 1, "tp": 1, "dp": 0}
    rows, (skip,) = read(tmp_path, {"ranks": [one, one | {"rank": 4}, one, one | {"host": "host-c", "gpu": 2}]})
    assert [(row["rank"], row["host"], row["gpu"], row["tp"]) for row in rows] == [
        (3, "host-b", None, 1), (4, "host-b", "1", 1), (3, "host-b", None, 1), (3, "host-c", None, 1),
    ]  # fmt: skip
    assert (skip.record, "host, gpu" in skip.why) == ("E3", True)
