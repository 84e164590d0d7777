"""Evidence in an object store: a server of the S3 protocol in this process, asked as the real one is."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _house import SAMPLE, call, copy_case, copy_dumps, truth

from apps import remote
from rca.errors import UsageError

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = moto.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def store(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the server, with a bucket `jobs`; the command finds the server by the usual variables."""
    for name, value in {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "key-0", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), "AWS_EC2_METADATA_DISABLED": "true",
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="jobs")
    yield client
    for found in client.list_objects_v2(Bucket="jobs").get("Contents", []):
        client.delete_object(Bucket="jobs", Key=found["Key"])


def upload(store: Any, folder: Path, prefix: str) -> None:
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        store.put_object(Bucket="jobs", Key=f"{prefix}/{file.relative_to(folder).as_posix()}", Body=file.read_bytes())


def test_a_prefix_is_read_once_and_again_when_its_listing_changes(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_dumps(SAMPLE, tmp_path / "c")
    upload(store, folder, "run-7")
    store.put_object(Bucket="jobs", Key="run-7/truth.json", Body=b"{}")
    store.put_object(Bucket="jobs", Key="run-7/../odd\x01 name", Body=b"odd")
    before = {o["Key"]: o["ETag"] for o in store.list_objects_v2(Bucket="jobs")["Contents"]}
    here = call("diagnose", folder, "--json").doc
    done = call("diagnose", "s3://jobs/run-7", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.doc["verdict"] == here["verdict"]
    assert done.doc["verdict"]["first_failing"]["ranks"] == truth(SAMPLE)["first_failing_ranks"]
    assert {o["Key"]: o["ETag"] for o in store.list_objects_v2(Bucket="jobs")["Contents"]} == before, "nothing was written there"
    (case,) = (tmp_path / "cache").rglob("case.duckdb")
    stamp = case.stat().st_mtime_ns
    with monkeypatch.context() as broken:
        broken.setattr("apps.remote.fetch", None)  # the same listing is not fetched again
        again = call("diagnose", "s3://jobs/run-7/", "--json")
        assert (again.code, again.doc["verdict"]) == (0, done.doc["verdict"])
        assert call("inspect", "s3://jobs/run-7").out.count("nccl_trace_rank_") == 1
    assert case.stat().st_mtime_ns == stamp
    store.delete_object(Bucket="jobs", Key="run-7/note.txt")
    assert call("build", "s3://jobs/run-7").code == 0
    assert case.stat().st_mtime_ns != stamp
    assert "note.txt" not in call("inspect", "s3://jobs/run-7", "--json").out
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("s3")] == []


def test_notes_on_remote_evidence_lie_in_the_data_folder_wherever_the_command_is_called(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store, copy_dumps(SAMPLE, tmp_path / "c"), "run-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = call("open", "s3://jobs/run-8")
    assert opened.code == 0, opened.err
    monkeypatch.chdir(tmp_path / "elsewhere")
    noted = call("note", "s3://jobs/run-8", "the job was restarted by hand")
    assert noted.code == 0, noted.err
    (file,) = (tmp_path / "data").rglob("*.jsonl")
    assert "restarted by hand" in file.read_text()
    assert not list(tmp_path.glob("s3*")) + list((tmp_path / "elsewhere").iterdir())


def test_an_archive_and_a_single_object(store: Any, tmp_path: Path) -> None:
    packed = io.BytesIO()
    folder = copy_dumps(SAMPLE, tmp_path / "c")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
    store.put_object(Bucket="jobs", Key="packed/case.bin", Body=packed.getvalue())
    done = call("diagnose", "s3://jobs/packed/case.bin", "--json")
    assert done.doc["verdict"]["first_failing"]["ranks"] == truth(SAMPLE)["first_failing_ranks"]
    dump = next((folder / "fr").iterdir())
    store.put_object(Bucket="jobs", Key=f"one/{dump.name}", Body=dump.read_bytes())
    files = call("inspect", f"s3://jobs/one/{dump.name}", "--json").doc["files"]
    assert [f["path"] for f in files] == [dump.name]
    assert files[0]["collector"] == "flight_recorder"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://nowhere/x", "no such bucket"),
        ("s3://jobs/nothing", "no such object"),
        ("s3://", "names no bucket"),
        ("s3:///", "names no bucket"),
    ],
)
def test_what_is_not_there_is_exit_2_and_a_sentence(store: Any, url: str, words: str) -> None:
    for verb in ("diagnose", "inspect", "build"):
        done = call(verb, url)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
        assert done.err.count("\n") == 1


def test_a_store_that_does_not_let_us_in_or_is_not_there(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    done = call("diagnose", "s3://jobs/x")
    assert done.code == 2
    assert "credentials" in done.err.lower()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-0")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    done = call("diagnose", "s3://jobs/x")
    assert done.code == 2
    assert "127.0.0.1:9" in done.err
    assert done.err.count("\n") == 1


class Forgetful:
    """The files of a real store of fsspec; some are forbidden, some vanish after they were listed, some fail once."""

    def __init__(self) -> None:
        from fsspec.implementations.memory import MemoryFileSystem

        self.inner, self.failed = MemoryFileSystem(), set[str]()

    def find(self, path: str, *, detail: bool) -> Any:
        return self.inner.find(path, detail=detail)

    def get_file(self, key: str, target: str) -> None:
        if "forbidden" in key:
            raise PermissionError("Access Denied")
        if "gone" in key:
            raise FileNotFoundError(key)
        if "once" in key and key not in self.failed:
            self.failed.add(key)
            raise TimeoutError("slow")
        self.inner.get_file(key, target)


def test_objects_that_vanish_or_are_forbidden_are_named_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Forgetful()
    for name in ("forbidden.log", "gone.log", "host-a/once.log", "host-a/rank_1.log"):
        store.inner.pipe_file(f"/bucket/run/{name}", name.encode())
    objects = remote.listed(store, "/bucket/run", "az://bucket/run")
    assert [o.name for o in objects] == ["forbidden.log", "gone.log", "host-a/once.log", "host-a/rank_1.log"]
    files, refused = remote.fetch(store, objects, tmp_path / "a", "az://bucket/run")
    assert {name: file.read_text() for file, name in files} == {name: name for name in ("host-a/once.log", "host-a/rank_1.log")}
    assert [name for name, why in refused] == ["forbidden.log", "gone.log"]
    assert all("cannot be fetched" in why for _, why in refused)
    monkeypatch.setattr(remote, "MAX_OBJECT_BYTES", 14)
    files, refused = remote.fetch(store, objects, tmp_path / "b", "az://bucket/run")
    assert "fetch it yourself" in dict(refused)["host-a/rank_1.log"]
    monkeypatch.setattr(remote, "SPARE_BYTES", 1 << 62)
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME to a larger disk"):
        remote.fetch(store, objects, tmp_path / "c", "az://bucket/run")


@pytest.mark.parametrize(("scheme", "extra", "package"), [("gs", "gcs", "gcsfs"), ("az", "azure", "adlfs"), ("abfs", "azure", "adlfs")])
def test_without_the_extra_it_says_what_to_install(scheme: str, extra: str, package: str) -> None:
    try:
        __import__(package)
    except ImportError:
        done = call("diagnose", f"{scheme}://bucket/run")
        assert done.code == 2
        assert f"pip install 'firstfault[{extra}]'" in done.err
    else:
        assert remote.is_remote(f"{scheme}://bucket/run")


def test_other_addresses_are_no_stores(tmp_path: Path) -> None:
    assert not any(map(remote.is_remote, ("s3", "./s3://x", "http://x/y", str(tmp_path), "", "file:///x")))
    copy_case(SAMPLE, tmp_path / "s3:x")
    assert not remote.is_remote("s3:x")
