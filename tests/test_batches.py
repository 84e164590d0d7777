"""Reading in batches gives the case that reading one file after the other does; killed, it is gone on with; only new files are read again."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from _house import ROOT, copy_case
from polars.testing import assert_frame_equal

from rca.batches import Means
from rca.building import build
from rca.case import Case
from rca.errors import CaseError
from rca.sources import PARTS, Inventory, inventory
from rca.store import Store, parts_folder
from rca.tables import TABLES

ALWAYS = Means(many_bytes=0, compile_bytes=1 << 60)  # limits lowered: real ones would take gigabytes
SMALL = replace(ALWAYS, memory_bytes=1)  # batches of one megabyte
COMPILED = replace(ALWAYS, compile_bytes=0)


def found(folder: Path) -> Inventory:
    return inventory(folder, folder.parent / "archives")


KEYS = ("stack_id", "evidence_id", "path", "rank", "group_id", "record")  # that tell the rows of a table apart, where it has them


def tables(path: Path) -> dict[str, pl.DataFrame]:
    """All rows of a case."""
    case = Case.open(path)
    try:
        return {name: case.table(name, with_stale=True).collect() for name in TABLES}
    finally:
        case.close()


def assert_same(one: Mapping[str, pl.DataFrame], other: Mapping[str, pl.DataFrame]) -> None:
    """The same rows; calls in the same order too."""
    for name in TABLES:
        by = [column for column in KEYS if column in one[name].columns and name != "collectives"]
        frames = [frame.sort(by, maintain_order=True) if by else frame for frame in (one[name], other[name])]
        assert_frame_equal(*frames)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps, stacks and logs, with a copy, a torn dump, a compressed one and files that nobody reads."""
    folder = copy_case("lock_hang", tmp_path_factory.mktemp("evidence") / "job")
    dumps = sorted(path for path in folder.rglob("*") if path.parent.name == "fr")
    shutil.copy(dumps[0], folder / "copy_of_a_dump")
    (folder / "empty").touch()
    (folder / "note.txt").write_text("not evidence\n")
    whole = pickle.loads(dumps[1].read_bytes())  # noqa: S301 - a dump of this repository
    (folder / "torn.pkl").write_bytes(pickle.dumps(whole | {"version": "2.9"}, 2)[:-400])
    return folder


@pytest.fixture(scope="module")
def plain(evidence: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    target = tmp_path_factory.mktemp("plain") / "case.duckdb"
    build(found(evidence), target, means=Means(many_bytes=1 << 60))
    assert not parts_folder(target).exists()
    return tables(target)


@pytest.mark.parametrize(
    "means", [ALWAYS, SMALL, COMPILED, replace(COMPILED, memory_bytes=1)], ids=["one", "small", "compiled", "small_compiled"]
)
def test_a_case_made_of_batches_has_the_same_rows(means: Means, evidence: Path, plain: Mapping[str, pl.DataFrame], tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    read = build(found(evidence), tmp_path / "case.duckdb", lambda *now: told.append(now), means=means)
    assert_same(tables(tmp_path / "case.duckdb"), plain)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][0] == told[-1][1] == sum(source.size_bytes for source in read.inventory.sources)


def test_several_processes_read_the_same_rows(evidence: Path, plain: Mapping[str, pl.DataFrame], tmp_path: Path) -> None:
    build(found(evidence), tmp_path / "case.duckdb", means=replace(SMALL, workers=2, pool_bytes=0, memory_bytes=1 << 30))
    assert_same(tables(tmp_path / "case.duckdb"), plain)


def test_of_files_that_were_added_changed_or_lost_only_these_are_read_again(evidence: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(evidence, tmp_path / "job"))
    target = tmp_path / "case.duckdb"

    def built() -> list[str]:
        read = list[str]()
        build(found(folder), target, lambda done, total, path: read.append(path), means=ALWAYS)
        return [path for path in read if path]

    assert len(built()) > 20
    assert built() == []
    (folder / "new.log").write_text("RuntimeError: here\n")
    assert built() == ["new.log"]
    (folder / "new.log").write_text("RuntimeError: here, and changed\n")
    assert built() == ["new.log"]
    assert len(Store(parts_folder(target)).finished()) == 2  # what was read of the first form of it is gone
    build(found(folder), tmp_path / "fresh.duckdb", means=Means(many_bytes=1 << 60))
    assert_same(tables(target), tables(tmp_path / "fresh.duckdb"))
    (folder / "new.log").unlink()
    assert built() == []
    assert len(Store(parts_folder(target)).finished()) == 1
    gone = next(path for path in folder.rglob("*") if path.parent.name == "fr")
    gone.unlink()
    assert len(built()) > 20  # of its batch: the others of it are told without it


@pytest.mark.parametrize("harm", ["manifest", "cut", "version"])
def test_parts_that_cannot_be_used_are_made_again(harm: str, evidence: Path, plain: Mapping[str, pl.DataFrame], tmp_path: Path) -> None:
    target = tmp_path / "case.duckdb"
    build(found(evidence), target, means=ALWAYS)
    (part,) = (one.folder for one in Store(parts_folder(target)).finished())
    manifest = part / "files.json"
    if harm == "cut":
        calls = next(part.glob("collectives-*"))
        calls.write_bytes(calls.read_bytes()[:-9])
    else:
        text = manifest.read_text()
        manifest.write_text(text[:-9] if harm == "manifest" else text.replace('"version": "', '"version": "0'))
    assert Store(parts_folder(target)).finished() == []
    build(found(evidence), target, means=ALWAYS)
    assert_same(tables(target), plain)


def test_case_and_parts_move_together(evidence: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    build(found(evidence), tmp_path / "one" / "case.duckdb", means=ALWAYS)
    before = tables(tmp_path / "one" / "case.duckdb")
    (tmp_path / "one").rename(tmp_path / "two")
    assert_same(tables(tmp_path / "two" / "case.duckdb"), before)
    case = Case.open(tmp_path / "two" / "case.duckdb")
    assert sum(frame.height for frame in case.chunks("collectives")) == before["collectives"].height
    assert case.write_parquet("collectives", tmp_path / "calls.parquet") == before["collectives"].height
    assert_frame_equal(pl.read_parquet(tmp_path / "calls.parquet"), before["collectives"])
    tail = case.table("collectives", where="is_tail").collect()
    assert 0 < tail.height <= before["collectives"].height
    assert tail["is_tail"].all()
    case.close()
    shutil.rmtree(tmp_path / "two" / f"case.duckdb{PARTS}")
    with pytest.raises(CaseError, match="is gone"):
        Case.open(tmp_path / "two" / "case.duckdb")


def test_parts_beside_the_evidence_are_no_evidence(evidence: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(evidence, tmp_path / "job"))
    before = found(folder)
    build(before, folder / "case.duckdb", means=ALWAYS)
    assert [source.path for source in found(folder).sources] == [source.path for source in before.sources]


KILLED = """
import sys
from dataclasses import replace
from pathlib import Path
from rca.batches import Means
from rca.building import build
from rca.sources import inventory

if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:3])
    means = Means(workers=int(sys.argv[3]), many_bytes=0, pool_bytes=0, compile_bytes=1 << 60, memory_bytes=1 << 30)
    build(inventory(folder, target.parent / "archives"), target, means=means)
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough dumps for a dozen batches of a megabyte."""
    from rca.drills._synthetic import Fault, Job, write

    folder = tmp_path_factory.mktemp("many") / "job"
    write(Job(tp=2, dp=12, steps=8, microbatches=4, tp_ops=8, dp_ops=4, world_ops=2), Fault("stop", (5,), "tp", -10), folder)
    return folder


def test_a_build_killed_at_any_moment_is_gone_on_with(many: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    call = [sys.executable, str(program), str(many), str(tmp_path / "case.duckdb"), "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*call[:3], str(tmp_path / "whole.duckdb"), call[4]], check=True, env=env)
    chance = random.Random(2)
    for _ in range(2):
        child = subprocess.Popen(call, env=env, start_new_session=True)
        time.sleep(chance.uniform(0.3, 2.0))
        child.kill()
        child.wait()
    subprocess.run(call, check=True, env=env)
    assert_same(tables(tmp_path / "case.duckdb"), tables(tmp_path / "whole.duckdb"))
    left, whole = ([one.folder.name for one in Store(parts_folder(tmp_path / name)).finished()] for name in ("case.duckdb", "whole.duckdb"))
    assert left == whole


def test_a_file_that_ends_a_reading_process_ends_the_one_that_watches_can_name(many: Path, tmp_path: Path) -> None:
    """The batches of the others are kept: whoever starts again without the file goes on from there."""
    folder = Path(shutil.copytree(many, tmp_path / "job"))
    (folder / "zz_killer.pkl").write_bytes(b"\x80\x02}X\x07\x00\x00\x00entries(" + b"(" * (1 << 20))
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    target = tmp_path / "case.duckdb"
    done = subprocess.run(
        [sys.executable, str(program), str(folder), str(target), "2"], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    kept = Store(parts_folder(target)).finished()
    assert done.returncode in (0, -signal.SIGSEGV)
    assert len(kept) >= 1
