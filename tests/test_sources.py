"""Evidence comes from anywhere: nothing in a folder or archive may block, escape, hide the rest or end the run."""

from __future__ import annotations

import gzip
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from _house import CASES, ROOT, SAMPLE, call, copy_case, finish, start, truth

from rca.errors import UsageError
from rca.sources import Inventory, inventory

CASE = SAMPLE
LIMIT_S = 60.0
DUMP = next((CASES / CASE / "fr").iterdir()).read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good file."""
    made = tmp_path / "evidence"
    made.mkdir()
    (made / "nccl_trace_rank_0").write_bytes(DUMP)
    return made


def look(folder: Path) -> Inventory:
    return inventory(folder, folder.parent / f"spool-{time.monotonic_ns()}")


def paths(found: Inventory) -> list[str]:
    return [s.path for s in found.sources]


def why(found: Inventory) -> dict[str, str]:
    return {u.path: u.why for u in found.unreadable}


def still_answers(folder: Path) -> dict[str, str]:
    """The whole command, in a process of its own that must end soon: exit code 0 or 1, no traceback. Gives what it skipped."""
    done = finish(start("diagnose", folder, "--json", "--case", folder.parent / "still.duckdb"), timeout_s=LIMIT_S)
    assert done.code in (0, 1), done.err
    assert done.err == ""
    return {s["path"]: s["why"] for s in done.doc["skipped"]}


def tar(path: Path, *members: tuple[str | tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if info.isreg():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


# Folders


def test_links_out_of_the_folder_are_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "nccl_trace_rank_1").write_bytes(DUMP)
    (folder / "link_file").symlink_to(secret / "nccl_trace_rank_1")
    (folder / "link_folder").symlink_to(secret)
    (folder / "link_up").symlink_to("../secret/nccl_trace_rank_1")
    (folder / "link_device").symlink_to("/dev/zero")
    (folder / "link_nowhere").symlink_to(tmp_path / "not there")
    (folder / "link_inside").symlink_to(folder / "nccl_trace_rank_0")
    found = look(folder)
    assert paths(found) == ["link_inside", "nccl_trace_rank_0"]
    assert {"link_file", "link_up", "link_device", "link_nowhere"} <= set(why(found))
    assert still_answers(folder).keys() >= {"link_file", "link_up", "link_device", "link_nowhere"}


def test_folders_that_link_in_a_circle_are_walked_once(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "back").symlink_to(folder)
    (folder / "self").symlink_to("self")
    assert paths(look(folder)) == ["nccl_trace_rank_0"]
    still_answers(folder)


def test_pipes_sockets_and_devices_are_listed_and_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe_rank_1")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(os.path.relpath(folder / "socket"))
    try:
        os.mknod(folder / "device", 0o20666, os.makedev(1, 5))
    except PermissionError:
        (folder / "device").symlink_to("/dev/zero")
    try:
        found = look(folder)
        assert paths(found) == ["nccl_trace_rank_0"]
        assert set(why(found)) == {"device", "pipe_rank_1", "socket"}
        assert set(still_answers(folder)) >= {"device", "pipe_rank_1", "socket"}
    finally:
        bound.close()


def test_a_pipe_named_on_the_command_line_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = finish(start("diagnose", tmp_path / "pipe", "--json", "--case", tmp_path / "c.duckdb"), timeout_s=LIMIT_S)
    assert done.code == 3


def test_a_file_that_vanishes_while_it_is_looked_at_is_skipped(folder: Path) -> None:
    from rca.linking import read_all
    from rca.parts import Parts

    (folder / "gone_rank_1").write_bytes(DUMP + b"other")
    found = look(folder)
    (folder / "gone_rank_1").unlink()
    read = read_all(found, Parts(folder.parent / "parts"))
    problems = {r.source.path: r.problem for r in read.readings}
    assert problems["gone_rank_1"]
    assert problems["nccl_trace_rank_0"] is None


def test_files_that_come_and_go_during_the_run_end_nothing(folder: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            path = folder / f"churn-{number % 50}"
            path.unlink(missing_ok=True)
            path.write_bytes(DUMP[: 100 + number % 1000])
            number += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        done = finish(start("diagnose", folder, "--json", "--case", folder.parent / "churn.duckdb"), timeout_s=LIMIT_S)
    finally:
        stop.set()
        thread.join()
    assert done.code in (0, 1)
    assert "Traceback" not in done.err


WEIRD = {
    "newline": b"rank_1\nRank 7 failed",
    "escape": b"\x1b[31mrank_2\x1b[0m",
    "not_utf8": b"rank_3\xff\xfe",
    "bidi": "rank_4\u202egnp".encode(),
    "long": b"rank_5" + b"x" * 240,
    "quote": b"rank_6'\"; rm -rf $(x)",
    "dash": b"--json",
    "space": b" ",
    "dots": b"...",
}


@pytest.mark.parametrize(
    "kinds", [["newline", "escape", "bidi", "long", "quote", "dash", "space", "dots"], ["not_utf8"]], ids=["odd", "not_utf8"]
)
def test_any_name_is_read_and_shown_harmlessly(folder: Path, kinds: list[str]) -> None:
    for number, kind in enumerate(kinds):
        path = os.fsencode(folder) + b"/" + WEIRD[kind]
        Path(os.fsdecode(path)).write_bytes(DUMP[: -100 - number])
    assert len(look(folder).sources) == 1 + len(kinds)
    for verb in (("diagnose",), ("inspect", "--table", "readings")):
        for json in ((), ("--json",)):
            done = call(*verb, folder, *json, "--case", folder.parent / "case.duckdb")
            assert done.code in (0, 1, 3), done.err
            assert not any(ord(c) < 32 and c != "\n" for c in done.out)
            assert "\u202e" not in done.out or json
            assert done.out.encode()


def test_a_deep_folder_is_walked(folder: Path) -> None:
    deep = folder.joinpath(*["d" * 50] * 15)
    deep.mkdir(parents=True)
    (deep / "nccl_trace_rank_1").write_bytes(DUMP[:-1])
    assert len(paths(look(folder))) == 2


def test_answers_and_cases_are_no_evidence(folder: Path) -> None:
    for name in ("truth.json", "case.duckdb"):
        (folder / name).write_bytes(b"{}")
    (folder / ".git").mkdir()
    (folder / ".git" / "nccl_trace_rank_9").write_bytes(DUMP)
    (folder / "renamed.bin").write_bytes(b"\0" * 8 + b"DUCK" + bytes(1000))
    assert paths(look(folder)) == ["nccl_trace_rank_0"]


# Nothing there


@pytest.mark.parametrize("content", [{}, {"notes.txt": b"call the night shift\n", "empty": b"", "a.tar": b""}], ids=["empty", "foreign"])
def test_no_evidence_is_exit_3_and_a_sentence(tmp_path: Path, content: dict[str, bytes]) -> None:
    folder = tmp_path / "nothing"
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    done = call("diagnose", folder)
    assert done.code == 3
    assert (done.out + done.err).strip().endswith((".", ")")) or "no " in done.out + done.err
    assert "Traceback" not in done.err
    assert call("diagnose", folder, "--json").code == 3
    assert call("build", folder).code == 3
    assert call("inspect", folder).code == 3


@pytest.mark.parametrize("verb", [("diagnose",), ("build",), ("inspect",), ("analyse", "job_motion")])
def test_a_missing_path_is_exit_2_and_a_sentence(tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = call(*verb, tmp_path / "not there")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("rca: ")
    assert "not there: no such file or folder." in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "not there").exists()


def test_the_library_says_the_same(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        inventory(tmp_path / "not there", tmp_path / "spool")


# Archives


def test_members_never_land_outside_the_spool(tmp_path: Path) -> None:
    mark = tmp_path / "outside"
    mark.mkdir()
    names = ("../outside/a_rank_0", f"{mark}/b_rank_1", "x/../../outside/c_rank_2", "./d_rank_3", "..", "/", "nul\x00l")
    archive = tar(tmp_path / "bad.tar", *((name, DUMP + bytes([n])) for n, name in enumerate(names)))
    found = inventory(archive, tmp_path / "spool")
    assert list(mark.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.tar", "outside", "spool"]
    assert len(found.sources) >= 4
    assert all(s.file.is_relative_to(tmp_path / "spool") for s in found.sources)
    assert all(s.path.startswith("bad.tar/") for s in found.sources)


def test_links_and_devices_in_an_archive_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(DUMP)
    archive = tar(
        tmp_path / "links.tar",
        special("soft_rank_1", tarfile.SYMTYPE, str(tmp_path / "secret")),
        special("hard_rank_2", tarfile.LNKTYPE, "../secret"),
        special("device", tarfile.CHRTYPE),
        special("pipe", tarfile.FIFOTYPE),
        special("folder", tarfile.DIRTYPE),
        ("folder/nccl_trace_rank_0", DUMP),
    )
    found = inventory(archive, tmp_path / "spool")
    assert paths(found) == ["links.tar/folder/nccl_trace_rank_0"]
    assert all(p.is_file() and not p.is_symlink() for p in (tmp_path / "spool").rglob("*") if not p.is_dir())


def test_two_members_of_one_name_are_both_read(tmp_path: Path) -> None:
    archive = tar(tmp_path / "twice.tar", ("a", DUMP), ("a", DUMP + b"x"))
    assert paths(inventory(archive, tmp_path / "spool")) == ["twice.tar/a", "twice.tar/a"]


def test_two_archives_do_not_overwrite_each_other(folder: Path) -> None:
    tar(folder / "one.tar", ("rank_1", b"first"))
    tar(folder / "two.tar", ("rank_1", b"second"))
    found = look(folder)
    assert {s.path: s.file.read_bytes() for s in found.sources if s.path.endswith("/rank_1")} == {
        "one.tar/rank_1": b"first",
        "two.tar/rank_1": b"second",
    }


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("packed", ["tar", "tar.gz", "tar.zst"])
def test_a_torn_archive_gives_its_whole_members_and_says_so(tmp_path: Path, packed: str, keep: float) -> None:
    members = [(f"nccl_trace_rank_{n}", os.urandom(20_000)) for n in range(10)]
    whole = tar(tmp_path / "whole.tar", *members).read_bytes()
    pack: dict[str, Callable[[bytes], bytes]] = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.compress}
    data = pack[packed](whole)
    torn = tmp_path / f"torn.{packed}"
    torn.write_bytes(data[: int(len(data) * keep)])
    found = inventory(torn, tmp_path / "spool")
    if packed == "tar.zst" and not why(found):  # zstd gives whole blocks only: nothing comes out of a short one
        assert [(s.path, s.head) for s in found.sources] == [(torn.name, b"")]
        return
    assert "breaks off" in why(found)[torn.name]
    good = {s.path.rpartition("/")[2]: s.file.read_bytes() for s in found.sources}
    if packed != "tar.zst":
        assert len(good) >= int(10 * keep) - 1
    assert good == {name: data for name, data in members if name in good}, "a member that is not whole counts as whole"


def test_an_archive_in_an_archive_is_opened(tmp_path: Path) -> None:
    inner = gzip.compress(tar(tmp_path / "inner.tar", ("fr/nccl_trace_rank_4", DUMP)).read_bytes())
    outer = tar(tmp_path / "outer.tar.gz", ("host-a/dumps.tar.gz", inner), ("nccl_trace_rank_5", DUMP + b"y"), mode="w:gz")
    found = inventory(outer, tmp_path / "spool")
    assert paths(found) == ["outer.tar.gz/host-a/dumps.tar.gz/fr/nccl_trace_rank_4", "outer.tar.gz/nccl_trace_rank_5"]
    assert [s.rank_said for s in found.sources] == [4, 5]


def test_archives_nested_without_end_are_given_up(tmp_path: Path) -> None:
    data, name = DUMP, "nccl_trace_rank_0"
    for depth in range(60):
        path = tar(tmp_path / f"{depth}.tar", (name, data))
        data, name = path.read_bytes(), f"{depth}.tar"
        path.unlink()
    bomb = tmp_path / "deep.tar"
    bomb.write_bytes(data)
    assert still_ends(bomb) in (0, 1, 3)


def still_ends(path: Path) -> int:
    done = finish(start("diagnose", path, "--json", "--case", path.parent / "ends.duckdb"), timeout_s=LIMIT_S)
    assert "Traceback" not in done.err
    return done.code


def test_a_bomb_is_not_unpacked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits lowered: 20 MB of zeros in 20 kB, after a good member."""
    monkeypatch.setattr("rca.archives.MAX_UNPACKED", (1 << 20, 10))
    bomb = tmp_path / "bomb.tar.gz"
    tar(tmp_path / "bomb.tar", ("nccl_trace_rank_0", DUMP), ("zeros", bytes(20_000_000)), ("after", DUMP + b"z"))
    bomb.write_bytes(gzip.compress((tmp_path / "bomb.tar").read_bytes()))
    found = inventory(bomb, tmp_path / "spool")
    assert paths(found) == ["bomb.tar.gz/nccl_trace_rank_0"]
    assert any("far more than its size" in reason for reason in why(found).values())
    assert sum(p.stat().st_size for p in (tmp_path / "spool").rglob("*") if p.is_file()) < 2_000_000


def test_a_gzip_bomb_that_is_no_archive_costs_little_memory(folder: Path) -> None:
    (folder / "zeros.gz").write_bytes(gzip.compress(bytes(200_000_000), 1))
    script = (
        "import resource, sys; from apps.cli import main; code = main(sys.argv[1:]);"
        "sys.stderr.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"  # its own still counts what the test process held
    )
    words = ["diagnose", str(folder), "--json", "--case", str(folder.parent / "b.duckdb")]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=True)
    assert int(done.stderr) < 700_000, "kB"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_compression_is_told_by_content_not_by_name(folder: Path, compress: Callable[[bytes], bytes]) -> None:
    (folder / "nccl_trace_rank_1").write_bytes(compress(DUMP))
    source = next(s for s in look(folder).sources if s.path.endswith("_1"))
    with source.open() as file:
        assert file.read() == DUMP
    assert source.head == DUMP[:65536]
    assert source.size_bytes < len(DUMP)


def test_zstd_frames_in_a_row_are_all_read(folder: Path) -> None:
    (folder / "two.zst").write_bytes(zstandard.compress(DUMP[:5000]) + zstandard.compress(DUMP[5000:]))
    (folder / "two.gz").write_bytes(gzip.compress(DUMP[:5000]) + gzip.compress(DUMP[5000:]))
    for source in look(folder).sources:
        with source.open() as file:
            assert file.read() == DUMP, source.path


def test_a_case_packed_as_zstd_archive_gives_the_verdict(tmp_path: Path) -> None:
    copy_case(CASE, tmp_path / CASE)
    with tarfile.open(tmp_path / "case.tar", "w") as archive:
        archive.add(tmp_path / CASE, CASE)
    packed = tmp_path / "case.tar.zst"
    packed.write_bytes(zstandard.compress((tmp_path / "case.tar").read_bytes()))
    done = call("diagnose", packed, "--json")
    assert done.doc["verdict"]["first_failing"]["ranks"] == truth(CASE)["first_failing_ranks"]


def test_a_single_file_is_evidence_too(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_3").write_bytes(DUMP)
    assert paths(inventory(tmp_path / "nccl_trace_rank_3", tmp_path / "spool")) == ["nccl_trace_rank_3"]
    assert call("diagnose", tmp_path / "nccl_trace_rank_3", "--json", "--case", tmp_path / "c.duckdb").code in (0, 1)


# What names say


@pytest.mark.parametrize(
    ("path", "said", "hint", "sample"),
    [
        ("fr/nccl_trace_rank_3", 3, 3, None),
        ("_dump_12", None, 12, None),
        ("stacks/round_2/rank_7.main.json", 7, 7, 2),
        ("rank-0005/stack.txt", 5, 5, None),
        ("host-a/py-spy.4711.txt.gz", None, 4711, None),
        ("upload0001-6", None, 6, None),
        ("abc123", None, None, None),
        ("rank_99999999", None, None, None),
        ("frank_3/x", None, None, None),
        ("sample_1/rank_0/x.json", 0, 0, 1),
    ],
)
def test_a_name_is_read_with_care(tmp_path: Path, path: str, said: int | None, hint: int | None, sample: int | None) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    source = look_one(tmp_path)
    assert (source.rank_said, source.rank_hint, source.sample_hint) == (said, hint, sample)


def look_one(folder: Path):  # type: ignore[no-untyped-def]
    (source,) = inventory(folder, folder.parent / f"{folder.name}-spool").sources
    return source
