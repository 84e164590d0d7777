"""A case file is a build product: a kill, a full disk or a second reader at any moment costs nothing but time."""

from __future__ import annotations

import gzip
import json
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from _house import SAMPLE, call, copy_dumps, finish, start, tables_of

from rca.case import KEPT_ROWS, Case, MemoryCase, is_current
from rca.sources import inventory
from rca.tables import TABLES

CASE = SAMPLE
NUM_KILLS = 5


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return copy_dumps(CASE, tmp_path / "evidence")


def case_files(folder: Path) -> list[str]:
    """Everything in a folder that a build could have left."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if "duckdb" in p.as_posix().removeprefix(folder.as_posix()))


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def ranks_in(folder: Path) -> list[int]:
    doc = call("diagnose", folder, "--json").doc
    return list(doc["verdict"]["first_failing"]["ranks"])


def skips(folder: Path) -> dict[str, str]:
    return {s["path"]: s["why"] for s in call("diagnose", folder, "--json").doc["skipped"]}


def rewrite_stamps(path: Path, seconds: int) -> bytes:
    """A JSON dump of another moment: every time in it moved."""
    document = json.loads(path.read_bytes())
    for entry in document["entries"]:
        for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
            if entry.get(key):
                entry[key] += seconds * 10**9
    return json.dumps(document).encode()


# Where it lies


def test_case_lies_beside_the_evidence_and_nothing_else_is_left_there(evidence: Path, cache: Path) -> None:
    before = names(evidence)
    assert call("build", evidence).code == 0
    assert names(evidence) == sorted([*before, "case.duckdb"])
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_case_of_a_read_only_folder_goes_to_the_cache(evidence: Path, cache: Path) -> None:
    before = names(evidence)
    evidence.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert call("diagnose", evidence, "--json").code == 0
    finally:
        evidence.chmod(stat.S_IRWXU)
    assert names(evidence) == before
    found = list(cache.glob("firstfault/*/case.duckdb"))
    assert len(found) == 1
    assert tables_of(found[0])["evidence"]


def test_case_of_an_archive_goes_to_the_cache(evidence: Path, cache: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "gztar", evidence))
    assert call("diagnose", archive, "--json").code == 0
    assert len(list(cache.glob("firstfault/*/case.duckdb"))) == 1
    assert [p.name for p in cache.rglob("spool-*")] == []


def test_case_goes_where_it_is_told(evidence: Path, tmp_path: Path) -> None:
    before = names(evidence)
    target = tmp_path / "new folder" / "my.duckdb"
    assert call("build", evidence, "--case", target).code == 0
    assert names(evidence) == before
    assert names(target.parent) == ["my.duckdb"]


def test_case_inside_the_evidence_under_another_name_is_no_evidence(evidence: Path) -> None:
    target = evidence / "mine.duckdb"
    call("build", evidence, "--case", target)
    assert "already up to date" in call("build", evidence, "--case", target).out
    assert "mine.duckdb" not in {row[1] for row in tables_of(target)["evidence"]}


# Whether it is built


def test_unchanged_evidence_is_not_read_again(evidence: Path) -> None:
    assert "built in" in call("build", evidence).out
    before = (evidence / "case.duckdb").stat()
    assert "already up to date" in call("build", evidence).out
    first, second = (call("diagnose", evidence, "--json").doc for _ in range(2))
    assert (evidence / "case.duckdb").stat() == before or (evidence / "case.duckdb").stat().st_mtime_ns == before.st_mtime_ns
    assert first["timing"]["build_s"] == second["timing"]["build_s"] == 0
    assert {**first, "timing": 0} == {**second, "timing": 0}


def test_changed_evidence_is_read_again(evidence: Path) -> None:
    call("build", evidence)
    dump = evidence / "fr" / "nccl_trace_rank_0"
    data, note = dump.read_bytes(), evidence / "new.txt"

    def current() -> bool:
        return is_current(evidence / "case.duckdb", inventory(evidence, evidence.parent / "spool"))

    assert current()
    note.write_text("added\n")
    assert not current()
    note.unlink()
    assert current()
    dump.rename(evidence / "fr" / "_dump_0")
    assert not current()
    (evidence / "fr" / "_dump_0").rename(dump)
    assert current()
    dump.write_bytes(data[:100] + b"x" + data[101:])
    assert not current(), "rewritten in the same length"
    dump.unlink()
    assert not current()
    assert "built in" in call("build", evidence).out
    assert "already up to date" in call("build", evidence).out


def test_a_case_that_is_none_is_built_again(evidence: Path) -> None:
    target = evidence / "case.duckdb"
    for rubbish in (b"no case at all", b"\0" * 8 + b"DUCK" + bytes(5000)):
        target.write_bytes(rubbish)
        assert call("diagnose", evidence, "--json").code == 0
        assert tables_of(target)["evidence"]
    with target.open("r+b") as file:
        file.truncate(target.stat().st_size // 2)
    assert call("diagnose", evidence, "--json").code == 0


def test_a_truncated_case_opened_directly_says_what_to_do(evidence: Path) -> None:
    from rca.errors import CaseError

    call("build", evidence)
    target = evidence / "case.duckdb"
    target.write_bytes(target.read_bytes()[:3000])
    with pytest.raises(CaseError, match=r"case\.duckdb: no case file .* build again"):
        Case.open(target)


# Kills, full disks, readers


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_no_case_or_a_good_one(evidence: Path, cache: Path) -> None:
    """kill -9 of `rca build` at random moments; the next build, without any cleaning, equals an undisturbed one."""
    target = evidence / "case.duckdb"
    began = time.monotonic()
    assert finish(start("build", evidence)).code == 0
    whole_s = time.monotonic() - began
    expected = tables_of(target)
    rng = random.Random(7)
    for number in range(NUM_KILLS):
        target.unlink(missing_ok=True)
        process = start("build", evidence)
        time.sleep(whole_s * (number + rng.random()) / NUM_KILLS)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if target.exists():
            assert tables_of(target) == expected
    target.unlink(missing_ok=True)
    assert call("build", evidence).code == 0
    assert tables_of(target) == expected
    assert "already up to date" in call("build", evidence).out


def stray_workspace(evidence: Path) -> Path:
    """What a build leaves that was killed at its work."""
    for _ in range(20):
        process = start("build", evidence)
        while process.poll() is None and not (found := [p for p in evidence.glob("case.duckdb*") if p.is_dir()]):
            time.sleep(0.005)
        process.kill()
        process.communicate()
        if found and found[0].is_dir():
            return found[0]
    raise AssertionError("no build could be killed in time")


def test_the_workspace_of_a_killed_build_is_no_evidence(evidence: Path, tmp_path: Path) -> None:
    before = skips(evidence)
    (evidence / "case.duckdb").unlink()
    stray = stray_workspace(evidence)
    (stray / "parts").mkdir(exist_ok=True)
    shutil.copy(evidence / "fr" / "nccl_trace_rank_0", stray / "parts" / "nccl_trace_rank_9")
    pl.DataFrame({"a": [1]}).write_parquet(stray / "parts" / "collectives-00000.parquet")
    assert not [s for s in inventory(evidence, tmp_path / "spool").sources if "case.duckdb" in s.path]
    assert skips(evidence) == before
    assert "already up to date" in call("build", evidence).out
    assert "case.duckdb" not in " ".join(row[1] for row in tables_of(evidence / "case.duckdb")["evidence"])


def test_an_interrupt_leaves_no_half_case(evidence: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = start("build", evidence)
        while process.poll() is None and not list(evidence.glob("case.duckdb?case-tmp*")):
            time.sleep(0.005)
        process.send_signal(number)
        done = finish(process)
        assert done.code == 130 if "stopped" in done.err else done.code == 0
        assert not list(evidence.glob("case.duckdb?case-tmp*"))
        if (evidence / "case.duckdb").exists():
            assert tables_of(evidence / "case.duckdb")["evidence"]
        (evidence / "case.duckdb").unlink(missing_ok=True)
    assert call("build", evidence).code == 0


def test_two_builds_at_once_both_end_well(evidence: Path) -> None:
    call("build", evidence, "--case", evidence.parent / "alone.duckdb")
    processes = [start("build", evidence) for _ in range(2)]
    assert [finish(p).code for p in processes] == [0, 0]
    assert tables_of(evidence / "case.duckdb") == tables_of(evidence.parent / "alone.duckdb")
    assert case_files(evidence) == ["case.duckdb"]


def test_a_file_size_limit_is_told_and_leaves_nothing_half_written(evidence: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    done = finish(start("build", evidence, preexec_fn=limit))
    assert done.code == 2
    assert "cannot be written" in done.err
    assert "--case" in done.err
    assert "Traceback" not in done.err
    assert case_files(evidence) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system with no room for a case."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    return disk


def test_a_full_disk_is_told_and_leaves_the_old_case(evidence: Path, small_disk: Path) -> None:
    try:
        done = call("build", evidence, "--case", small_disk / "case.duckdb")
        assert (done.code, list(small_disk.iterdir())) == (2, [])
        assert f"{small_disk}/case.duckdb: the case cannot be written" in done.err
        assert "Free some space" in done.err
        assert done.out == ""
        assert call("diagnose", evidence, "--json").code == 0, "the evidence folder itself has room"
    finally:
        subprocess.run(["umount", str(small_disk)], check=True)


def test_an_open_reader_keeps_its_snapshot(evidence: Path) -> None:
    target = evidence / "case.duckdb"
    call("build", evidence)
    reader = Case.open(target)
    try:
        before = reader.table("evidence").collect()
        (evidence / "fr" / "nccl_trace_rank_0").unlink()
        assert finish(start("build", evidence)).code == 0
        assert reader.table("evidence").collect().equals(before)
        assert reader.table("collectives").select(pl.col("rank").unique().sort()).collect()["rank"].to_list() == list(range(8))
    finally:
        reader.close()
    assert len(tables_of(target)["evidence"]) == before.height - 1


def test_a_reader_in_another_process_locks_nobody_out(evidence: Path) -> None:
    call("build", evidence)
    code = (
        "import sys, pathlib; from rca.case import Case; case = Case.open(pathlib.Path(sys.argv[1]));"
        "count = lambda: print(case.table('dumps').collect().height, flush=True); count(); sys.stdin.read(); count()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(evidence / "case.duckdb")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "8\n"
    (evidence / "fr" / "nccl_trace_rank_0").unlink()
    assert call("build", evidence).code == 0
    assert reader.communicate("", timeout=60)[0] == "8\n"
    assert reader.returncode == 0


# What it holds


def test_every_row_leads_to_a_file(evidence: Path) -> None:
    call("build", evidence)
    rows = tables_of(evidence / "case.duckdb")
    known = {row[0] for row in rows["evidence"]}
    for name, table in TABLES.items():
        if table.from_evidence:
            assert {row[0] for row in rows[name]} <= known, name
    for row in rows["evidence"]:
        assert (evidence / row[1]).is_file()


def test_a_copied_dump_adds_a_path_and_no_row(evidence: Path) -> None:
    call("build", evidence)
    before = tables_of(evidence / "case.duckdb")
    (evidence / "backup").mkdir()
    shutil.copy(evidence / "fr" / "nccl_trace_rank_2", evidence / "backup" / "saved.bin")
    call("build", evidence)
    after = tables_of(evidence / "case.duckdb")
    new = set(after["readings"]) - set(before["readings"])
    at = TABLES["readings"].schema.names()
    copies = [row for row in new if row[at.index("copy_of")]]
    assert {tuple(row[at.index(c)] for c in ("path", "copy_of")) for row in copies} in (
        {("backup/saved.bin", "fr/nccl_trace_rank_2")},
        {("fr/nccl_trace_rank_2", "backup/saved.bin")},
    )
    for name in ("dumps", "collectives", "group_status", "memberships", "stacks", "groups"):
        assert len(after[name]) == len(before[name]), name
    assert len(after["evidence"]) == len(before["evidence"])


def test_equal_bytes_in_two_rounds_are_two_observations(evidence: Path) -> None:
    stacks = evidence / "stacks"
    file = next(p for p in sorted((stacks / "round_0").iterdir()) if "main" in p.name)
    for round_ in ("round_1", "round_2"):
        for old in (stacks / round_).glob(f"{file.stem}.*"):
            old.unlink()
        shutil.copy(file, stacks / round_ / file.name)
    call("build", evidence)
    case = Case.open(evidence / "case.duckdb")
    try:
        ids = case.table("evidence").filter(pl.col("path").str.ends_with(f"/{file.name}")).select("evidence_id", "path").collect()
        samples = case.table("stacks").filter(pl.col("evidence_id").is_in(ids["evidence_id"].implode())).collect()
    finally:
        case.close()
    assert ids["path"].to_list() == [f"stacks/round_{n}/{file.name}" for n in range(3)]
    assert ids["evidence_id"].n_unique() == 3
    assert sorted(set(samples["sample"].to_list())) == [0, 1, 2]


def test_a_dump_compressed_by_hand_gives_the_same_rows(evidence: Path) -> None:
    call("build", evidence)
    columns = [c for c in TABLES["collectives"].schema.names() if c != "evidence_id"]
    plain = _calls(evidence, columns)
    dump = evidence / "fr" / "nccl_trace_rank_1"
    (evidence / "fr" / "nccl_trace_rank_1.gz").write_bytes(gzip.compress(dump.read_bytes()))
    dump.unlink()
    call("build", evidence)
    assert _calls(evidence, columns) == plain


def _calls(evidence: Path, columns: list[str]) -> list[tuple[object, ...]]:
    case = Case.open(evidence / "case.duckdb")
    try:
        return sorted(case.table("collectives").select(columns).collect().rows(), key=repr)
    finally:
        case.close()


@pytest.mark.parametrize("where", ["old", "fr/previous", "zz"])
def test_dumps_of_an_earlier_launch_are_left_out_and_listed(evidence: Path, tmp_path: Path, where: str) -> None:
    """Last week's dumps of the same job lie beside: also of a rank that left none this time."""
    from rca.drills._synthetic import Fault, Job, Recorder, write

    before, now = tmp_path / "before", tmp_path / "now"
    job = Job(tp=4, dp=2)
    write(job, Fault("stop", (1,)), before, recorder=Recorder(format="json", name="nccl_trace_rank_{rank}.json"))
    write(job, Fault("stop", (5,)), now / "fr", recorder=Recorder(format="json", name="nccl_trace_rank_{rank}.json"))
    (now / where).mkdir(parents=True)
    for path in sorted(before.iterdir()):
        (now / where / path.name).write_bytes(rewrite_stamps(path, -7 * 86400))
    (now / "fr" / "nccl_trace_rank_6.json").unlink()
    assert ranks_in(now) == [5]
    listed = skips(now)
    old = sorted(path for path in listed if path.startswith(f"{where}/"))
    assert old == [f"{where}/nccl_trace_rank_{rank}.json" for rank in range(8)]
    assert all("earlier launch" in listed[path] for path in old)


def test_an_older_view_of_a_rank_is_left_out_and_listed(tmp_path: Path) -> None:
    """Two rounds of dumps of one hang: the newer counts."""
    from rca.drills._synthetic import Fault, Job, Recorder, write

    folder = tmp_path / "job"
    write(Job(tp=4, dp=2), Fault("stop", (5,)), folder / "second", recorder=Recorder(format="json", name="nccl_trace_rank_{rank}.json"))
    (folder / "first").mkdir(parents=True)
    for path in sorted((folder / "second").iterdir()):
        document = json.loads(path.read_bytes())
        document["entries"] = document["entries"][:-4]
        (folder / "first" / path.name).write_text(json.dumps(document))
    assert ranks_in(folder) == [5]
    listed = skips(folder)
    assert [path for path in sorted(listed) if "older view of rank" in listed[path]] == [
        f"first/nccl_trace_rank_{r}.json" for r in range(8)
    ]
    assert_read_alike(folder / "case.duckdb")


def assert_read_alike(case_file: Path) -> None:
    """A small table, which is kept, and a large one, which is read again each time, are filtered by the same rows."""
    kept, chunked = Case.open(case_file), Case.open(case_file)
    chunked._height = lambda name: KEPT_ROWS + 1  # type: ignore[method-assign]
    heights = set()
    try:
        for where in (None, "is_retired"):
            for with_stale in (False, True, False):
                frames = [case.table("collectives", where=where, with_stale=with_stale).collect() for case in (kept, chunked)]
                assert frames[0].equals(frames[1])
                heights.add((where, with_stale, frames[0].height))
    finally:
        kept.close()
        chunked.close()
    assert len({height for _, _, height in heights}) == len(heights) == 4


def test_equal_bytes_of_two_hosts_or_ranks_are_no_copy(tmp_path: Path) -> None:
    pip, error = "nvidia-nccl-cu12==2.21.5\ntorch==2.5.1\nnumpy==1.26.4\n", "Traceback (most recent call last):\nValueError: bad batch\n"
    for name in ("gpu-a01.pip-freeze.txt", "gpu-a02/pip.txt", "node-b.pip.txt", "backup/node-b.pip.txt", "saved/pip.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(pip)
    for name in ("rank_0.log", "rank_1.log"):
        (tmp_path / name).write_text(error)
    call("build", tmp_path)
    rows = tables_of(tmp_path / "case.duckdb")
    at, host = TABLES["readings"].schema.names().index("copy_of"), TABLES["configs"].schema.names().index("host")
    copies = {(row[1], row[at]) for row in rows["readings"] if row[at]}
    assert copies == {("node-b.pip.txt", "backup/node-b.pip.txt"), ("saved/pip.txt", "backup/node-b.pip.txt")}
    assert sorted({row[host] for row in rows["configs"]}) == ["gpu-a01", "gpu-a02", "node-b"]
    assert len(rows["configs"]) == 9
    assert {row[TABLES["log_events"].schema.names().index("rank")] for row in rows["log_events"]} == {0, 1}
    assert "copy of backup/node-b.pip.txt" in call("inspect", tmp_path).out


def test_columns_that_are_cut_into_pieces_at_other_places_are_put_in_one() -> None:
    """polars 2.1 panics where texts of such columns are joined; the frame that showed it held five printed steps and one empty piece."""
    table = TABLES["progress"]
    parts = [table.rows([{"record": f"L{n}", "step": n} for n in numbers]) for numbers in (range(2), range(2, 5))]
    cut = pl.concat(parts, rechunk=False).with_columns(pl.Series("evidence_id", ["ed211ac556d17041"] * 5))
    assert len(set(cut.n_chunks("all"))) == 2
    (kept,) = MemoryCase({"progress": cut}).frames.values()
    assert set(kept.n_chunks("all")) == {1}
    assert kept.equals(cut)
