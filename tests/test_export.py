"""A case written out: the same rows come back, a timeline keeps its format's rules, and under neutral names nothing tells who it was."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _house import FOLDERS, SAMPLE, call, copy_built, frames, tables_of

from rca.anonymise import Renaming, gather
from rca.anonymous_names import Names, is_plain_word
from rca.case import MemoryCase
from rca.causes import CAUSES
from rca.judge import Judgement, judge
from rca.tables import TABLES
from rca.timeline import timeline


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    return copy_built(SAMPLE, tmp_path_factory.mktemp("built") / "case")


def chunks_of(found: dict[str, pl.DataFrame]) -> Any:
    return lambda name: [found.get(name, TABLES[name].frame())]


def renamed(found: dict[str, pl.DataFrame]) -> tuple[Renaming, dict[str, pl.DataFrame]]:
    renaming = Renaming(*gather(chunks_of(found)))
    return renaming, {name: renaming.frame(name, frame) for name, frame in found.items()}


# Tables


def test_parquet_and_case_come_back_as_the_same_rows(built: Path, tmp_path: Path) -> None:
    wanted = tables_of(built / "case.duckdb")
    answer = call("diagnose", built, "--json").doc
    assert call("export", built, "--to", tmp_path / "out").code == 0
    assert call("export", built, "--to", tmp_path / "x.duckdb", "--format", "case").code == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {name: t["rows"] for name, t in manifest["tables"].items()} == {name: len(rows) for name, rows in wanted.items()}
    for name in ("dumps", "stack_frames", "collectives", "evidence"):
        assert pl.read_parquet(tmp_path / "out" / f"{name}.parquet").rows() == wanted[name], name
    assert call("build", tmp_path / "out", "--case", tmp_path / "back.duckdb").code == 0
    for place in (tmp_path / "x.duckdb", tmp_path / "back.duckdb"):
        assert tables_of(place) == wanted
    for place in (tmp_path / "x.duckdb", tmp_path / "out"):
        for key in ("verdict", "advice", "hypotheses", "findings"):
            assert call("diagnose", place, "--json").doc[key] == answer[key]
        assert call("inspect", place).code == 0
        assert call("analyse", "stack_clusters", place).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back.duckdb", "out", "x.duckdb"]


def test_csv_and_jsonl_hold_every_row(built: Path, tmp_path: Path) -> None:
    wanted = tables_of(built / "case.duckdb")
    names = ("dumps", "stack_frames", "evidence")
    for kind in ("csv", "jsonl"):
        asked = [word for name in names for word in ("--table", name)]
        assert call("export", built, "--to", tmp_path / kind, "--format", kind, *asked).code == 0
    assert sorted(p.stem for p in (tmp_path / "csv").glob("*.csv")) == sorted(names)
    for name in names:
        with (tmp_path / "csv" / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        lines = [json.loads(line) for line in (tmp_path / "jsonl" / f"{name}.jsonl").read_text().splitlines()]
        assert len(rows) == len(lines) == len(wanted[name])
        assert list(rows[0]) == list(lines[0]) == TABLES[name].schema.names()
    frame_rows = [dict(zip(TABLES["stack_frames"].schema.names(), row, strict=True)) for row in wanted["stack_frames"]]
    with (tmp_path / "csv" / "stack_frames.csv").open(newline="") as file:
        assert [json.loads(row["frames"]) for row in csv.DictReader(file)] == [row["frames"] for row in frame_rows]
    with (tmp_path / "csv" / "dumps.csv").open(newline="") as file:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", next(csv.DictReader(file))["first_at"])


def test_no_text_of_the_evidence_runs_in_a_spreadsheet_or_turns_a_line_around(tmp_path: Path) -> None:
    """CSV: an apostrophe before what would be a formula, marks of direction spelled out; numbers as they are. JSONL: the same values, escaped."""
    from apps.exports import write_tables

    odd = ["=cmd|'/c calc'!A1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "x\u202egol.\x9b", "one\ntwo", "node-1", None]
    frame = TABLES["ranks"].rows([{"rank": n, "host": host, "local_rank": -1} for n, host in enumerate(odd)])
    case: Any = type("Rows", (), {"chunks": lambda self, name: [frame], "meta": lambda self: {}})()
    for kind in ("csv", "jsonl"):
        write_tables(case, tmp_path, kind, ["ranks"], is_anonymised=False)
        assert "\u202e" not in (tmp_path / f"ranks.{kind}").read_text()
    with (tmp_path / "ranks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = ["'=cmd|'/c calc'!A1", "'+1", "'-1", "'@SUM(A1)", "' =1", "'\\r=1", "x\\u202egol.\\x9b", "one\\ntwo", "node-1", ""]
    assert [row["host"] for row in rows] == told
    assert {row["local_rank"] for row in rows} == {"-1"}
    assert [json.loads(line)["host"] for line in (tmp_path / "ranks.jsonl").read_text().splitlines()] == odd


def test_nothing_is_overwritten_but_an_export_and_only_when_asked(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("export", built, "--table", "dumps", "--to", out)
    assert call(*asked).code == 0
    before = (out / "dumps.parquet").read_bytes()
    refused = call(*asked)
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert (out / "dumps.parquet").read_bytes() == before
    assert call(*asked, "--format", "csv", "--force").code == 0
    assert sorted(p.name for p in out.iterdir()) == ["dumps.csv", "manifest.json"]
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.tex").write_text("mine")
    assert call("export", built, "--to", own, "--force").code == 2
    assert [p.name for p in own.iterdir()] == ["thesis.tex"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "own"]


def test_a_place_that_takes_nothing_is_a_sentence_and_leaves_nothing(built: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    file = tmp_path / "file"
    mine = (("--timeline", file), ("--format", "case", "--to", file), ("--anonymise", "--to", tmp_path / "o", "--key", file))
    done = call("export", built, "--to", tmp_path / "file" / "out")
    assert (done.code, done.err.count("\n")) == (2, 1)
    for words in (
        ("--table", "nothing", "--to", tmp_path / "o"),
        (),
        ("--key", tmp_path / "k", "--to", tmp_path / "o"),
        ("--format", "case", "--table", "dumps", "--to", tmp_path / "o"),
        ("--anonymise", "--key", tmp_path / "o" / "key", "--to", tmp_path / "o"),
        ("--timeline", tmp_path / "file"),
        *(("--force", *words) for words in mine),
    ):
        assert call("export", built, *words).code == 2, words
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "x")]


def test_exports_that_cannot_be_read_back_say_why(built: Path, tmp_path: Path) -> None:
    assert call("export", built, "--to", tmp_path / "csv", "--format", "csv").code == 0
    assert "export with --format parquet" in call("diagnose", tmp_path / "csv").err
    assert call("export", built, "--to", tmp_path / "some", "--table", "dumps").code == 0
    assert "export all tables" in call("diagnose", tmp_path / "some").err
    assert call("export", built, "--to", tmp_path / "torn").code == 0
    (tmp_path / "torn" / "dumps.parquet").write_bytes(b"PAR1")
    done = call("diagnose", tmp_path / "torn")
    assert (done.code, "dumps.parquet" in done.err) == (2, True)
    assert "already" in call("diagnose", built / "case.duckdb", "--case", tmp_path / "c").err


# Timeline


def assert_trace(document: dict[str, Any]) -> None:
    """The rules of Chrome's trace format that viewers rely on."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert {"ph", "ts", "pid", "tid", "name"} <= set(event), event
        assert event["ph"] in ("X", "i", "M")
        assert all(isinstance(event[key], int) for key in ("ts", "pid", "tid"))
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
    for spans in tracks.values():
        spans.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans)), "spans of one track overlap"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_timeline_keeps_the_rules_and_marks_the_first_failure(name: str) -> None:
    case = MemoryCase(frames(name))
    verdict = judge(case).verdict
    document = json.loads(json.dumps(timeline(case, verdict)))
    assert_trace(document)
    events = document["traceEvents"]
    titles = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {f"rank {rank}" for rank in verdict.ranks} <= titles or verdict.failed_at is None
    marks = [e["name"] for e in events if e.get("cat") == "verdict"]
    assert bool(marks) == (verdict.failed_at is not None)
    planned = CAUSES[verdict.cause].attribution == "planned"
    assert all(mark.startswith("told to stop" if planned else "first failure") for mark in marks)
    steps = case.table("steps").filter(pl.col("rank").is_not_null() & pl.col("started_at").is_not_null()).collect().height
    assert sum(e.get("cat") == "steps" for e in events) == steps
    dated = case.table("kernel_events").filter(pl.col("logged_at").is_not_null()).collect().height
    assert sum(e.get("cat") == "kernel" for e in events) == dated


def test_a_call_without_an_instant_of_its_end_is_drawn_to_where_its_rank_went_on() -> None:
    """gloo: what was retired ended before the next call; NCCL: queued calls that have not ended stay open, whatever follows them."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    at = [begin + timedelta(seconds=second) for second in range(20)]
    common = {"evidence_id": "e", "is_p2p": False, "op": "all_reduce"}

    def rows(rank: int, group: str, backend: str, *told: dict[str, Any]) -> list[dict[str, Any]]:
        return [common | {"rank": rank, "group_id": group, "backend": backend} | row for row in told]

    gloo = [{"record_id": n, "state": "scheduled", "is_retired": n < 3, "created_at": at[n]} for n in range(4)]
    other = {"record_id": 4, "state": "scheduled", "is_retired": True, "created_at": at[4]}
    queued = [{"record_id": n, "state": "scheduled", "is_retired": False, "created_at": at[n]} for n in range(3)]
    seen = [
        {"record_id": 0, "state": "completed", "is_retired": True, "created_at": at[0], "started_at": at[1], "completed_at": at[2]},
        {"record_id": 1, "state": "completed", "is_retired": False, "created_at": at[0], "started_at": at[3]},
        {"record_id": 2, "state": "started", "is_retired": False, "created_at": at[0], "started_at": at[6]},
    ]
    told = [
        *rows(0, "dp", "gloo", *gloo),
        *rows(0, "tp", "gloo", other),
        *rows(0, "dp", "gloo", {"record_id": 5, "state": "scheduled", "is_retired": None, "created_at": at[10]}),
        *rows(1, "dp", "nccl", *queued),
        *rows(2, "dp", "nccl", *seen),
    ]
    verdict = judge(MemoryCase(frames(SAMPLE))).verdict
    frame = pl.DataFrame(told, schema_overrides=TABLES["collectives"].schema, strict=False, infer_schema_length=None)
    document = timeline(MemoryCase({"collectives": TABLES["collectives"].frame(frame.to_dict(), height=frame.height)}), verdict)
    assert_trace(document)
    calls = [e for e in document["traceEvents"] if e["ph"] == "X"]
    found = sorted((e["pid"], e["ts"] // 10**6, e["dur"] // 10**6, e["args"]["ended"], "end" in e["args"]) for e in calls)
    assert found == [
        *((0, 0, 1, True, True), (0, 1, 1, True, True), (0, 2, 1, True, True), (0, 3, 7, False, False)),
        *((0, 4, 6, True, True), (0, 10, 0, False, False)),
        *((1, 0, 10, False, False), (1, 1, 9, False, False), (1, 2, 8, False, False)),
        *((2, 1, 1, True, False), (2, 3, 3, True, True), (2, 6, 4, False, False)),
    ]


def test_a_timeline_is_bounded_and_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca.timeline.MAX_ROWS", 5)
    case = MemoryCase(frames(SAMPLE))
    document = timeline(case, judge(case).verdict)
    calls = case.table("collectives").collect().height
    assert document["otherData"]["left_out"]["collectives"]["earlier"] == calls - 5
    empty = timeline(MemoryCase({}), judge(case).verdict)
    assert_trace(empty)


def test_the_command_writes_a_timeline(built: Path, tmp_path: Path) -> None:
    for more in ((), ("--force",)):
        assert call("export", built, "--timeline", tmp_path / "t.json", *more).code == 0
    assert_trace(json.loads((tmp_path / "t.json").read_text()))


# Neutral names


def told(judgement: Judgement, hosts: dict[str, str]) -> tuple[object, ...]:
    """What a verdict says, its hosts under the new names."""
    verdict, advice = judgement.verdict, judgement.advice
    named = tuple(sorted(hosts.get(host, host) for host in verdict.hosts))
    shares = [(h.cause, h.ranks, round(h.probability, 9)) for h in verdict.hypotheses]
    evicted = sorted(hosts.get(host, host) for host in advice.evict_hosts)
    return verdict.cause, verdict.ranks, named, verdict.failed_at, verdict.step, advice.action, evicted, shares


@pytest.mark.parametrize("name", FOLDERS)
def test_the_verdict_is_the_same_under_the_renaming(name: str) -> None:
    found = frames(name)
    renaming, new = renamed(found)
    assert told(judge(MemoryCase(new)), {}) == told(judge(MemoryCase(found)), renaming.new["host"])
    text = "\n".join(json.dumps(frame.to_dicts(), default=str) for frame in new.values()).lower()
    originals = [old for kind, names in renaming.new.items() for old in names if kind != "domain" and not is_plain_word(old)]
    assert [old for old in originals if old.lower() in text] == []
    assert renamed(found)[0].new == renaming.new, "the same case gives the same names"


SECRETS = (
    *(
        "trn-blue-07",
        "trn-blue-08",
        "filer-q9",
        "research.acme",
        "acme-llm",
        "jdoe42",
        "Jane.Doe",
        "acme.example",
        "10.31.7.9",
        "10.31.7.10",
    ),
    *("fe80::1ff:fe23:4567:890a", "0c:42:a1:5d:11:9e", "d8f1c2aa-53b0-4e8f-9a77-0b2f6c3e9d10", "1650324012345", "i-0abc12345def67890"),
    *("acme-checkpoints", "pretrain-zephyr", "4711f00dba5eba11"),
    *("vosk", "mirelpod", "ostrans", "tolvctr", "brunnimg", "krapfen", "rackel9", "kobel", "3f1c2d9e", "lindwurm", "wibbel", "holunder"),
    *("quittenpkg", "zwetschge", "spargelkey", "trn-blue-[", "trnblue", "998877665544"),
)


def secretive(folder: Path) -> Path:
    """Made-up evidence full of names, each in several forms."""
    (folder / "zephyr" / "Trn-Blue-07").mkdir(parents=True)
    (folder / "rank_map.csv").write_text(
        "rank,host,local_rank,gpu\n0,Trn-Blue-07.research.acme.example,0,GPU-d8f1c2aa-53b0-4e8f-9a77-0b2f6c3e9d10\n"
        "1,trn-blue-08.research.acme.example,0,1\n"
    )
    (folder / "zephyr" / "Trn-Blue-07" / "rank_0.stderr.log").write_text(
        "2026-11-29 21:14:15,100 INFO trn-blue-07:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.31.7.9<0>\n"
        "2026-11-29 21:14:16,100 INFO step 12 loss 2.5 ckpt s3://acme-checkpoints/pretrain-zephyr/step_12 by Jane.Doe@acme.example\n"
        "2026-11-29 21:14:17,100 ERROR connection to trn-blue-08.research.acme.example:29500 (10.31.7.10:29500, fe80::1ff:fe23:4567:890a) lost\n"
        "Traceback (most recent call last):\n"
        '  File "/home/jdoe42/acme-llm/train.py", line 7, in step\n'
        "    sync()\n"
        "RuntimeError: cannot open /home/jdoe42/data/shard: filer-q9_export of host filer-q9 says user=jdoe42 may not\n"
    )
    (folder / "trn-blue-08.dmesg.log").write_text(
        "2026-11-29T21:14:10,000000+00:00 nfs: server filer-q9 not responding, still trying\n"
        "2026-11-29T21:14:11,000000+00:00 mlx5_core 0000:3b:00.0: Port module event, mac 0c:42:a1:5d:11:9e on i-0abc12345def67890\n"
        "2026-11-29T21:14:12,000000+00:00 NVRM: GPU at PCI:0000:3b:00: GPU-d8f1c2aa-53b0-4e8f-9a77-0b2f6c3e9d10\n"
        "2026-11-29T21:14:12,100000+00:00 NVRM: GPU Board Serial Number: 1650324012345\n"
        "2026-11-29T21:14:13,000000+00:00 NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    )
    (folder / "services").mkdir()
    state = {
        "terminated": {
            "exitCode": 137,
            "reason": "OOMKilled",
            "finishedAt": "2026-11-29T21:16:00Z",
            "message": "on trn-blue-07 by lindwurm",
        }
    }
    container = {"name": "tolvctr", "image": "registry.krapfen.com/brunnimg:1", "restartCount": 0, "state": state}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mirelpod-0", "namespace": "ostrans", "uid": "3f1c2d9e-1111-4222-8333-abcdefabcdef"},
        "spec": {"nodeName": "trn-blue-07", "containers": [{"name": "tolvctr", "image": container["image"]}]},
        "status": {"phase": "Failed", "podIP": "10.31.7.10", "containerStatuses": [container]},
    }
    (folder / "services" / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    (folder / "services" / "dcgm.prom").write_text(
        "2026-11-29T21:16:00Z\n"
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="trn-blue-07",instance="10.31.7.9:9400",rack="rackel9",cluster="kobel",spargelkey="holunder",'
        'account_id="998877665544",exported_pod="mirelpod-3"} 79\n'
    )
    (folder / "services" / "goodput.json").write_text(
        json.dumps(
            [
                {"job_name": "wibbel-z", "step_count": 4, "step_start_time": 1795986588.0},
                {"job_name": "wibbel-z", "job_start_time": 1795986580.0},
            ]
        )
    )
    (folder / "services" / "job.txt").write_text(
        "JobId=4106 JobName=wibbel2\n   UserId=jdoe42(700) GroupId=acme(70) MCS_label=N/A\n   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)\n"
        "   SubmitTime=2026-11-29T08:00:00 StartTime=2026-11-29T08:02:00 EndTime=2026-11-29T09:02:00\n   NodeList=trn-blue-[07-08]\n"
        "   Comment=ticket of holunder\n"
    )
    (folder / "services" / "nodes.txt").write_text(
        "NodeName=trn-blue-08 NodeAddr=10.31.7.10 State=DOWN+DRAIN ThreadsPerCore=1\n"
        "   Reason=gpu3 bad, see QX-99 by lindwurm [jdoe42@2026-11-29T21:02:00]\n"
    )
    (folder / "services" / "pip_freeze.trn-blue-07.txt").write_text(
        "torch==2.5.1\nnvidia-nccl-cu12==2.21.5\nquittenpkg==1.0+zwetschge\nzwetschge @ file:///home/jdoe42/zwetschge\n"
    )
    (folder / "services" / "trn-blue-07.dmesg.log").write_text(
        "2026-11-29T21:00:01,000000+00:00 nfs: server vosknfs.krapfen.internal not responding, still trying\n"
        "2026-11-29T21:00:01,000000+00:00 LustreError: 11-0: voskfs-OST0001-osc-ffff: operation ost_read to node 10.31.7.9@o2ib failed: rc = -110\n"
        "2026-11-29T21:00:02,000000+00:00 oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/kubepods/burstable/"
        "pod3f1c2d9e-1111-4222-8333-abcdefabcdef/xx,task=python,pid=99,uid=5001\n"
        "2026-11-29T21:00:02,000000+00:00 Memory cgroup out of memory: Killed process 99 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, "
        "shmem-rss:0kB, UID:5001 pgtables:1kB oom_score_adj:0\n"
    )
    (folder / "rank_1.stderr.log").write_text(
        "2026-11-29 21:16:04,617 [rank1] ERROR Traceback (most recent call last):\n"
        '  File "/home/jdoe42/acme-llm/train.py", line 10, in main\n'
        "RuntimeError: tcp://trn-blue-09:1234 and TRN_BLUE_08 and trnblue08, trn-blue-11-ib0<40123>, lindwurm@vosklogin of vosk.krapfen.internal\n"
    )
    (folder / "sacct.txt").write_text(
        "JobID|JobName|User|Partition|State|ExitCode|NodeList\n8012944|pretrain-zephyr|jdoe42|gpu|NODE_FAIL|1:0|trn-blue-[07-08]\n"
    )
    return folder


def packed_bytes(out: Path) -> bytes:
    """Every byte of an export, compressed columns in the open too."""
    data = b"".join(p.read_bytes() + p.name.encode() for p in sorted(out.rglob("*")) if p.is_file()) if out.is_dir() else out.read_bytes()
    for file in out.glob("*.parquet"):
        data += json.dumps(pl.read_parquet(file).to_dicts(), default=str, ensure_ascii=False).encode()
    return data


def test_no_true_name_is_in_any_byte_of_any_output(tmp_path: Path) -> None:
    folder = secretive(tmp_path / "evidence")
    case = tmp_path / "c.duckdb"
    key = tmp_path / "key.json"
    rows = json.dumps(tables_of_text(folder, case), default=str).lower()
    seen = [name for name in SECRETS if name.lower() in rows]
    assert len(seen) >= 12, f"the evidence no longer brings its names into the case: only {seen}"
    base = ("export", folder, "--case", case, "--anonymise")
    for kind in ("parquet", "csv", "jsonl"):
        assert call(*base, "--to", tmp_path / kind, "--format", kind).code == 0
    done = call(*base, "--to", tmp_path / "x.duckdb", "--format", "case", "--timeline", tmp_path / "t.json", "--key", key)
    assert done.code == 0, done.err
    for out in (tmp_path / "parquet", tmp_path / "csv", tmp_path / "jsonl", tmp_path / "x.duckdb", tmp_path / "t.json"):
        data = packed_bytes(out).lower()
        assert [name for name in (*SECRETS, "zephyr") if name.lower().encode() in data] == [], out.name
    readable = json.dumps(tables_of(tmp_path / "x.duckdb"), default=str).lower()
    assert [name for name in (*SECRETS, "zephyr") if name.lower() in readable] == []
    assert key.stat().st_mode & 0o777 == 0o600
    names = json.loads(key.read_text())["names"]
    assert set(names["host"].values()) >= {"trn-blue-07", "trn-blue-08", "filer-q9"}
    here, there = (call("diagnose", place, "--json", *more).doc for place, *more in ((folder, "--case", case), (tmp_path / "x.duckdb",)))
    assert here["verdict"]["cause"] == there["verdict"]["cause"]


def tables_of_text(folder: Path, case: Path) -> dict[str, list[tuple[Any, ...]]]:
    assert call("build", folder, "--case", case).code == 0
    return tables_of(case)


def naming(*texts: str, hosts: tuple[str, ...] = (), users: tuple[str, ...] = ()) -> Renaming:
    names = Names()
    names.see_column("ranks", "host", hosts)
    names.see_column("job_records", "user", users)
    for text in texts:
        names.see_text(text)
    for text in texts:
        names.see_relatives(text)
    return Renaming(names, {})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpu-a01: lost", "host-0001: lost"),
        ("GPU-A01.cluster.corp.example:29500 is gone", "host-0001:29500 is gone"),
        ("GPU_A01 and gpua01 are one, gpu-a[01-02] two", "host-0001 and host-0001 are one, name-0001 two"),
        ("from_gpu-a01_to_gpu-a02.log", "from_host-0001_to_host-0002.log"),
        ("gpu-a011 and xgpu-a01 are others", "gpu-a011 and xgpu-a01 are others"),
        ("node a is a node, and a GPU of node b", "node a is a node, and a GPU of node b"),
        ("10.0.0.7:1234 and 10.0.0.7", "198.18.100.101:1234 and 198.18.100.101"),
        ("127.0.0.1, 0.0.0.0 and driver 570.86.15", "127.0.0.1, 0.0.0.0 and driver 570.86.15"),
        ("c10::Error at::native a::b 12:30:45 [::]", "c10::Error at::native a::b 12:30:45 [::]"),
        ("2001:0db8:85a3::8a2e:370:7334 is up", "2001:db8::1000:1001 is up"),
        ("PCI 0000:3b:00.0 and 0c:42:a1:5d:11:9e", "PCI 0000:3b:00.0 and 02:00:00:00:00:01"),
        ("File /home/bob7/x.py of uid 5001", "File /home/user-0002/x.py of uid user-0001"),
        ("5001 steps of bob7", "5001 steps of user-0002"),
        ("root on node gpu", "root on node gpu"),
        ("/mnt/acme/data/x.py /home/bob7/llm/lib/torch/a.py", "/mnt/w1/data/x.py /home/user-0002/w2/lib/torch/a.py"),
    ],
)
def test_a_text_under_neutral_names(text: str, wanted: str) -> None:
    renaming = naming(
        text, "gpu-a01.cluster.corp.example", hosts=("gpu-a01", "gpu-a02", "a", "b", "node", "gpu"), users=("bob7", "5001", "root")
    )
    wanted = wanted.replace("host-0001", renaming.new["host"]["gpu-a01"]).replace("host-0002", renaming.new["host"]["gpu-a02"])
    assert renaming.text(text) == wanted


def test_names_of_a_case_that_is_neutral_already_do_not_collide() -> None:
    renaming = naming("198.18.100.101 called 10.0.0.1", hosts=("host-0002", "host-0001", "host-0003"))
    new = renaming.new["host"]
    assert not set(new) & set(new.values())
    assert sorted(new.values()) == [new[old] for old in sorted(new)]
    assert not set(renaming.new["ipv4"]) & set(renaming.new["ipv4"].values())
