"""The promise: the right rank and cause on whole evidence; on any part of it, in any layout, never a wrong accusation."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _house import (
    CASES,
    DUMPED,
    FAULTY,
    FOLDERS,
    HEALTHY,
    LOGGED,
    RCA,
    ROOT,
    SAMPLE,
    accuses_wrongly,
    assert_probabilities,
    call,
    copy_case,
    diagnose_in_memory,
    slow_but,
    truth,
)

SHARED = ROOT.parent / "shared" / "cases"
shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="../shared/cases is not there: its incidents and NCCL dumps are no part of this tree"
)
ARCHIVES = tuple(sorted(path.name for path in CASES.glob("*.tar.gz")))
ESCAPE = "\x1b[31m\x1b]0;pwned\x07\x1b[2J"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def rank_of(path: Path) -> int | None:
    found = re.search(r"rank_(\d+)", path.name)
    return int(found[1]) if found else None


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def scrambled(folder: Path, rng: random.Random) -> Path:
    """One folder, names that say nothing but a trailing rank; without the index that names the files."""
    out = folder.with_name(f"{folder.name}-flat")
    out.mkdir()
    files = [p for p in files_of(folder) if p.name != "index.json"]
    rng.shuffle(files)
    for number, path in enumerate(files):
        rank = rank_of(path)
        tail = f"-{rank}" if rank is not None else ""
        shutil.copy2(path, out / f"{rng.choice(('obj', 'upload', 'x', 'tmp'))}{number:04d}{tail}")
    return out


def lose_ranks(folder: Path, rng: random.Random) -> Path:
    """40 % of the ranks lose everything they left."""
    ranks = sorted({r for p in files_of(folder) if (r := rank_of(p)) is not None})
    gone = set(rng.sample(ranks, round(len(ranks) * 0.4)))
    for path in files_of(folder):
        if rank_of(path) in gone:
            path.unlink()
    return folder


def lose_files(folder: Path, rng: random.Random) -> Path:
    """A third of the files is lost, whatever they are."""
    for path in files_of(folder):
        if rng.random() < 1 / 3:
            path.unlink()
    return folder


def clutter(folder: Path, rng: random.Random) -> Path:
    """What lies beside evidence in real life, another job's logs among it."""
    old = folder / "old" / "logs-of-another-job"
    shutil.copytree(CASES / rng.choice(FOLDERS) / "logs", old)
    (folder / "README").write_text("collected by hand, ask the night shift about rank 3\n")
    (folder / "old" / ".train.py.swp").write_bytes(rng.randbytes(2048))
    (folder / "train.py").write_text("def main():\n    rank = 0\n")
    (folder / "loss.csv").write_text("step,rank,loss\n1,0,2.5\n2,0,nan\n")
    (folder / "nvidia-smi.txt").write_text("| 0  NVIDIA H100  On | 00000000:1B:00.0 Off | 0 |\n" * 8)
    (folder / "weights.pkl").write_bytes(pickle.dumps({"state": [1.0, 2.0], "version": 3}))
    (folder / "shot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + rng.randbytes(500))
    (folder / "broken.json").write_text('{"rank": 2, "host": "host-z"')
    return folder


def cut_dumps(folder: Path, rng: random.Random) -> Path:
    """The disk filled up while the recorder dumps were written."""
    for path in files_of(folder / "fr") if (folder / "fr").is_dir() else ():
        if rng.random() < 0.5:
            path.write_bytes(path.read_bytes()[: int(path.stat().st_size * rng.uniform(0.1, 0.99))])
    return folder


def without(*names: str) -> Callable[[Path, random.Random], Path]:
    def lose(folder: Path, _rng: random.Random) -> Path:
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).unlink(missing_ok=True)
        return folder

    return lose


# Beside the views of `rca drill`, which test_views.py tries on every case.
LAYOUTS: dict[str, Callable[[Path, random.Random], Path]] = {
    "clutter": clutter,
    "lost_ranks": lose_ranks,
    "lost_files": lose_files,
    "cut_dumps": cut_dumps,
    "no_logs": without("logs", "kernel"),
    "only_dumps": without("stacks", "logs", "kernel", "timings", "topology.json"),
    "only_stacks": without("fr", "logs", "kernel", "timings", "topology.json"),
    "only_timings": without("fr", "logs", "kernel", "stacks"),
    "only_map": without("fr", "logs", "kernel", "timings", "stacks"),
}
COMPLETE = {"clutter"}  # nothing that counts is lost: the verdict stays


# Whole


def assert_right(doc: dict[str, Any], answer: dict[str, Any]) -> None:
    verdict, first = doc["verdict"], doc["verdict"]["first_failing"]
    assert first["ranks"] == answer["first_failing_ranks"]
    assert first["hosts"] == answer["hosts"]
    assert verdict["cause"] in answer["cause"]
    assert verdict["layer"] in answer["layer"]
    assert verdict["attribution"] in answer["attribution"]
    assert doc["advice"]["action"] in answer["action"]
    assert set(doc["advice"]["evict"]["hosts"]) <= set(answer["hosts"])


@pytest.mark.parametrize("name", [*FOLDERS, *ARCHIVES])
def test_shipped_case_has_its_true_verdict_and_says_so_in_the_first_line(name: str, tmp_path: Path) -> None:
    evidence = CASES / name if name in ARCHIVES else copy_case(name, tmp_path / name)
    done = call("diagnose", evidence, "--json", "--case", tmp_path / "case.duckdb")
    assert done.code == 0
    assert done.err == ""
    assert_right(done.doc, truth(name))
    first, *rest = call("diagnose", evidence, "--case", tmp_path / "case.duckdb").out.splitlines()
    answer = truth(name)
    if answer["first_failing_ranks"]:
        ranks, host = answer["first_failing_ranks"], answer["hosts"][0]
        shown = ", ".join(map(str, ranks))
        whole = "Both" if len(ranks) == 2 else f"All {len(ranks)}"
        assert first.startswith((f"Rank {shown} on {host} ", f"Ranks {shown} on {host} ", f"{whole} ranks of {host} "))
    assert answer["cause"][0].replace("_", " ") in first.lower()
    assert any(line.endswith(answer["action"][0].replace("_", " ")) for line in rest if line.startswith("What to do"))


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_case_accuses_and_evicts_nobody(name: str, tmp_path: Path) -> None:
    doc = diagnose_in_memory(copy_case(name, tmp_path / name))
    assert doc["findings"] == []
    assert doc["advice"]["evict"] == {"hosts": [], "ranks": [], "group": None, "innocent_hosts": []}
    assert doc["advice"]["commands"] == []


@pytest.mark.parametrize("name", ["lock_hang", "worker_oom_killed"])
def test_two_runs_give_the_same_document(name: str, tmp_path: Path) -> None:
    """Built twice, in two places, in two orders of listing: only `timing` may differ."""
    one, two = copy_case(name, tmp_path / "one"), tmp_path / "two"
    for path in sorted(files_of(one), reverse=True):
        (two / path.relative_to(one)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, two / path.relative_to(one))
    first, second = (json.dumps({**call("diagnose", folder, "--json").doc, "timing": None}) for folder in (one, two))
    assert first == second


def test_an_honest_unknown_is_among_its_own_hypotheses(tmp_path: Path) -> None:
    doc = diagnose_in_memory(LAYOUTS["only_map"](copy_case(SAMPLE, tmp_path / "case"), random.Random(0)))
    assert doc["verdict"]["cause"] == "unknown"
    assert ("unknown", []) in [(h["cause"], h["ranks"]) for h in doc["hypotheses"]]


# In any layout, and in part


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", slow_but("lock_hang", "mismatched_size", "slow_rank", "worker_oom_killed"))
def test_part_of_a_case_in_any_layout_is_never_wrong(name: str, layout: str, tmp_path: Path) -> None:
    folder = LAYOUTS[layout](copy_case(name, tmp_path / name), random.Random(f"{name}/{layout}/0"))
    doc = diagnose_in_memory(folder)
    assert accuses_wrongly(doc, truth(name)) is None
    assert [o["why"] for o in doc["outcomes"] if o["status"] == "failed"] == []
    assert_probabilities(doc)
    if layout in COMPLETE:
        assert doc["verdict"]["cause"] in truth(name)["cause"]
        assert doc["verdict"]["first_failing"]["ranks"] == truth(name)["first_failing_ranks"]


@pytest.mark.parametrize("name", slow_but(*DUMPED, *LOGGED, of=FAULTY))
def test_scrambled_names_with_a_trailing_rank_still_give_the_rank(name: str, tmp_path: Path) -> None:
    folder = scrambled(copy_case(name, tmp_path / name), random.Random(name))
    doc = diagnose_in_memory(folder)
    assert doc["verdict"]["first_failing"]["ranks"] == truth(name)["first_failing_ranks"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_case_packed_as_archive_gives_the_same_verdict(name: str, tmp_path: Path) -> None:
    folder = copy_case(name, tmp_path / name)
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(folder, "some/where/else")
    assert_right(call("diagnose", tmp_path / "packed.tar.gz", "--json").doc, truth(name))


@pytest.mark.parametrize("name", slow_but(*DUMPED, *LOGGED))
def test_evidence_of_one_rank_accuses_nobody_else(name: str, tmp_path: Path) -> None:
    for rank in (0, 5):
        folder = copy_case(name, tmp_path / f"{name}-{rank}")
        for path in files_of(folder):
            if rank_of(path) not in (rank, None) or path.name == "topology.json":
                path.unlink()
        assert accuses_wrongly(diagnose_in_memory(folder), truth(name)) is None, rank


# Hostile words


def test_terminal_escapes_in_evidence_never_reach_the_terminal(tmp_path: Path) -> None:
    """In the names of groups, files, frames, threads and hosts."""
    folder = copy_case(SAMPLE, tmp_path / "case")
    for path in files_of(folder / "fr"):
        dump = safe_load(path.read_bytes())
        for entry in dump["entries"]:
            entry["process_group"] = (entry["process_group"][0], f"{ESCAPE}{entry['process_group'][1]}")
            entry["profiling_name"] = f"{entry['profiling_name']}{ESCAPE}"
            for frame in entry.get("frames") or ():
                frame["name"] = f"{ESCAPE}{frame['name']}"
        path.write_bytes(pickle.dumps(dump, 2))
    for path in files_of(folder / "stacks"):
        text = path.read_text()
        if path.suffix == ".json":
            for word in ("train", "MainThread", "host-b"):
                text = text.replace(f'"{word}', f'"{json.dumps(ESCAPE)[1:-1]}{word}')
        else:
            text = text.replace("(", f"{ESCAPE}(")
        path.write_text(text)
    path = folder / "topology.json"
    path.write_text(path.read_text().replace('"host-', f'"{json.dumps(ESCAPE)[1:-1]}host-'))
    (folder / f"rank_1{ESCAPE}.log".replace("/", "")).write_text(f"{ESCAPE}\n")
    words = [("diagnose", folder), ("diagnose", folder, "--json"), ("inspect", folder, "--table", "groups", "--table", "stack_frames")]
    for verb in (*words, ("inspect", folder, "--json", "--table", "groups"), ("analyse", "first_silent_rank", folder)):
        done = call(*verb)
        assert done.code in (0, 1), done.err
        bad = {c for c in done.out + done.err if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0}
        assert bad == set(), verb
    assert "pwned" in call("diagnose", folder).out, "the names were shown, made harmless"


def safe_load(data: bytes) -> Any:
    from collectors._unpickle import load

    return load(io.BytesIO(data), len(data))


# Cases that are no part of this tree


def faulty_ranks(folder: Path) -> list[int]:
    """What the injector wrote; the analyser must never read it."""
    found = re.search(r"Fault ranks: \[([\d, ]+)\]", (folder / "fault_injection.log").read_text())
    assert found
    return [int(rank) for rank in found[1].split(",")]


@shared
@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
def test_real_nccl_dumps_accuse_no_innocent_rank(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(SHARED / "flight_recorder" / "nvrx" / name, folder, ignore=shutil.ignore_patterns("fault_injection.log"))
    doc = diagnose_in_memory(folder)
    assert set(doc["verdict"]["first_failing"]["ranks"]) <= set(faulty_ranks(SHARED / "flight_recorder" / "nvrx" / name))
    assert doc["coverage"]["world_size"] == 16
    assert doc["advice"]["evict"]["hosts"] == []


@shared
@pytest.mark.parametrize(
    ("name", "incident"),
    [
        ("json_form_of_lock_hang_s0", "lock_hang_s0"),
        ("nccl_style_of_lock_hang_s0", "lock_hang_s0"),
        ("nccl_style_of_size_mismatch_s0", "size_mismatch_s0"),
    ],
)
def test_other_forms_of_a_dump_give_the_rank(name: str, incident: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(SHARED / "flight_recorder" / name, folder)
    answer = json.loads((SHARED / "incidents" / incident / "truth.json").read_text())
    doc = diagnose_in_memory(folder)
    assert accuses_wrongly(doc, answer) is None
    assert doc["verdict"]["first_failing"]["ranks"] in ([], answer["first_failing_ranks"])


@shared
@pytest.mark.slow
def test_incidents_are_never_judged_wrongly_by_dumps_and_stacks_alone(tmp_path: Path) -> None:
    """The scorer's own judgement, on the evidence that this version reads, whole, in part and in disorder."""
    views = ["only:fr,stacks", "only:fr", "only:stacks"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    words = [sys.executable, str(SHARED / "score_incidents.py"), " ".join(RCA), "--view", *views]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600, check=False)
    scores = re.findall(r"^(only\S+): right (\d+), open (\d+), wrong (\d+), crash (\d+) of (\d+)$", done.stdout, re.MULTILINE)
    assert [score[0] for score in scores] == views, done.stdout + done.stderr
    assert [(wrong, crash) for _, _, _, wrong, crash, _ in scores] == [("0", "0")] * len(views), done.stdout
