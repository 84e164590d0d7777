"""The compiled reader of recorder dumps says what the plain one says, or nothing: of every dump there is, and of dumps with any byte changed."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _house import CASES, ROOT
from polars.testing import assert_frame_equal

from collectors import flight_recorder
from rca.errors import EvidenceError
from rca.sources import inventory
from rca.types import Skip, Source

SHARED = ROOT.parent / "shared" / "cases"
DUMP = CASES / "skipped_collective" / "fr" / "nccl_trace_rank_0"
CHANGES = 1500  # of single dumps: a second


def source(path: Path) -> Source:
    return Source(path.name, path, path.stat().st_size)


def plain(dump: Source) -> tuple[dict[str, pl.DataFrame], list[Skip]] | None:
    """Tables with rows and skips; None where the file is refused."""
    tables, skips = {}, []
    try:
        for item in flight_recorder.read(dump):
            if isinstance(item, Skip):
                skips.append(item)
            elif item[1].height:
                tables[item[0].name] = item[1].with_columns(evidence_id=pl.lit(dump.evidence_id))
    except EvidenceError:
        return None
    return tables, skips


def compiled(dump: Source) -> tuple[dict[str, pl.DataFrame], list[Skip]] | None:
    """The same; None where it leaves the file to the plain one."""
    batch = flight_recorder.batch()
    if not batch.add(dump):
        return None
    tables, skips = {}, []
    for of, item in batch.items():
        if of is None:
            assert isinstance(item, tuple)
            tables[item[0].name] = item[1]
        elif isinstance(item, Skip):
            skips.append(item)
    return {name: frame for name, frame in tables.items() if frame.height}, skips


def assert_same(dump: Source) -> bool:
    """Whether the compiled reader took it."""
    took = compiled(dump)
    if took is None:
        return False
    told = plain(dump)
    assert told is not None, "read, and the plain reader refuses it"
    assert took[1] == told[1]
    assert took[0].keys() == told[0].keys()
    for name, frame in told[0].items():
        assert_frame_equal(took[0][name], frame)
    return True


def dumps_of(folder: Path, spool: Path) -> list[Source]:
    return [one for one in inventory(folder, spool).sources if one.head and flight_recorder.claims(one.path, one.head)]


def test_is_there() -> None:
    """It is an extra, and the tests have it."""
    assert flight_recorder.is_compiled()


def test_every_shipped_dump(tmp_path: Path) -> None:
    dumps = dumps_of(CASES, tmp_path)
    took = [assert_same(dump) for dump in dumps]
    assert sum(took) > 50
    pickles = [dump for dump in dumps if dump.head[:1] == b"\x80"]
    assert [dump.path for dump, is_taken in zip(dumps, took, strict=True) if not is_taken and dump in pickles] == []


def test_every_handed_dump(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip("the handed cases lie outside this repository and are not there: their dumps were not compared")
    pickles = [dump for dump in dumps_of(SHARED, tmp_path) if dump.head[:1] == b"\x80"]
    took = [assert_same(dump) for dump in pickles]
    assert sum(took) > 0.9 * len(took) > 50


def test_dumps_read_together_are_read_as_alone() -> None:
    paths = sorted(DUMP.parent.iterdir())
    batch = flight_recorder.batch()
    sources = [source(path) for path in paths]
    assert all(batch.add(one) for one in sources)
    assert batch.height == sum(len(pickle.loads(path.read_bytes())["entries"]) for path in paths)  # noqa: S301 - dumps of this repository
    tables = {item[0].name: item[1] for _, item in batch.items() if isinstance(item, tuple)}
    assert (batch.height, list(batch.items())) == (0, [])
    for one in sources:
        told = plain(one)
        assert told is not None
        for name, frame in told[0].items():
            if name != "stack_frames":  # told once
                assert_frame_equal(tables[name].filter(evidence_id=one.evidence_id), frame)
    every = pl.concat([frames[0]["stack_frames"] for one in sources if (frames := plain(one))])
    assert tables["stack_frames"]["stack_id"].to_list() == every.unique("stack_id", keep="first", maintain_order=True)["stack_id"].to_list()


def _changed(data: bytes, chance: random.Random) -> bytes:
    """A byte or a stretch changed, left out, doubled or moved; the file cut."""
    at, length = chance.randrange(len(data)), chance.choice((1, 1, 1, 2, 5, 40))
    kind = chance.randrange(6)
    if kind == 0:
        return data[:at] + bytes(chance.randrange(256) for _ in range(length)) + data[at + length :]
    if kind == 1:
        return data[:at] + data[at + length :]
    if kind == 2:
        return data[:at] + data[at : at + length] * 2 + data[at + length :]
    if kind == 3:
        return (
            data[:at]
            + bytes(chance.choice(b"()]}.aeusNRK\x85\x86\x88\x89hjqr\x94M\x8aJX\x8c") for _ in range(length))
            + data[at + length :]
        )
    if kind == 4:
        other = chance.randrange(len(data))
        return data[:at] + data[other : other + length] + data[at + length :]
    return data[:at]


@pytest.mark.parametrize("protocol", [2, 4])
def test_of_a_changed_dump_it_says_what_the_plain_reader_says_or_nothing(protocol: int, tmp_path: Path) -> None:
    document = pickle.loads(DUMP.read_bytes())  # noqa: S301 - a dump of this repository
    document["entries"] = document["entries"][-12:]
    data, chance, took = pickle.dumps(document, protocol), random.Random(protocol), 0
    for number in range(CHANGES):
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(_changed(data, chance))
        took += assert_same(source(path))
        path.unlink()
    assert 0.02 * CHANGES < took < 0.9 * CHANGES  # both ways were gone


WRONG: list[tuple[str, Any]] = [
    ("frames", None), ("frames", []), ("frames", [{"name": "f"}]), ("frames", [{"name": "f", "filename": "g", "line": 1}] * 2000),
    ("profiling_name", None), ("profiling_name", "nccl:é"), ("process_group", ("0",)), ("process_group", ["0", "default_pg"]),
    ("input_sizes", [[1, 2.5]]), ("input_sizes", [[[1]]]), ("input_sizes", []), ("input_dtypes", ["Float", None]), ("state", 3), ("state", None),
    ("retired", None), ("retired", 1), ("is_p2p", None), ("time_created_ns", None), ("time_created_ns", 1 << 63), ("time_created_ns", -(1 << 62)),
    ("time_created_ns", 1.5), ("record_id", True), ("collective_seq_id", "7"), ("timeout_ms", None), ("thread_id", "140"), ("pg_id", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG)
@pytest.mark.parametrize("where", ["one", "all", "gone"])
def test_fields_of_another_kind(field: str, value: Any, where: str, tmp_path: Path) -> None:
    document = pickle.loads(DUMP.read_bytes())  # noqa: S301 - a dump of this repository
    document["entries"] = [dict(entry) for entry in document["entries"][-6:]]
    for entry in document["entries"] if where == "all" else document["entries"][2:3]:
        if where == "gone":
            entry.pop(field, None)
        else:
            entry[field] = value
    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps(document, 2))
    assert_same(source(path))


@pytest.mark.parametrize(("key", "is_taken"), [(b"]", False), (b"}", False), (b"X\x01\x00\x00\x00a", True)])  # a list, a dict, a text
def test_a_key_that_no_dict_can_have(key: bytes, is_taken: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    path = tmp_path / "dump.pkl"
    path.write_bytes(DUMP.read_bytes()[:-1] + b"(" + key + b"K\x01u.")
    assert assert_same(source(path)) is is_taken
    assert (plain(source(path)) is not None) is is_taken
