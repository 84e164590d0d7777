"""What `rca capture` copies and asks: dump files, the dump pipe, logs, the kernel's log, GPUs. Each against a real process, file or pipe."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _capture_jobs import environment, wait_until
from _house import RCA, ROOT

from collectors import xid
from collectors._capture import gpu as _capture_gpu
from collectors._capture import logs as _capture_logs
from collectors._capture import recorder as _capture_recorder
from collectors._capture.bounded import bounded
from collectors._capture.debug_server import fetch, find_server
from collectors._capture.facts import owners
from collectors._capture.files import PARTIAL, Folder, open_regular
from collectors._capture.find import Member
from collectors._capture.kernel import capture_kernel
from collectors._capture.logs import Logs
from collectors._capture.proc import read_process
from collectors._capture.recorder import ask_for_dumps, copy_dumps
from rca.types import Source

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
# What torch's NCCL backend does for a dump pipe: make it, and write the dump file when a byte comes.
DUMPS_WHEN_ASKED = """
import os, pathlib
rank = os.environ["RANK"]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(pipe)
held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
os.set_blocking(held, True)
import select
while True:
    select.select([held], [], [])
    if os.read(held, 100):
        pathlib.Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank).write_text("second")
        break
import time
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "out" / "host-a", "host-a", time.time_ns)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Any]:
    """Starts a rank whose standard output and error go where the caller says; ends it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str = SLEEP, *, rank: int = 0, out: Any = None, err: Any = None, **more: str) -> Member:
        mark = tmp_path / f"ready{len(started)}"
        with mark.open("wb") as ready:
            said = Path(f"/proc/self/fd/{(out or ready).fileno()}") if out != subprocess.PIPE else None
            before = said.stat().st_size if said else 0
            env = environment(rank, 4, 29500, XDG_CACHE_HOME=str(tmp_path / "cache"), **more)
            process = subprocess.Popen(
                [sys.executable, "-c", program], env=env, stdout=out or ready, stderr=err or subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
            started.append(process)
            if said:
                wait_until(lambda: said.stat().st_size > before)  # its first line
        wait_until(lambda: read_process(process.pid) is not None)  # until it has its command line
        found = read_process(process.pid)
        assert found is not None
        return Member(found, "main", rank, rank, 4)

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def steps(folder: Folder, name: str) -> list[tuple[str, str | None]]:
    return [(step["status"], step["why"]) for step in folder.steps if step["step"] == name]


def test_a_dump_of_this_launch_is_copied(folder: Folder, launch: Any, tmp_path: Path) -> None:
    member = launch(rank=3, TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump_"))
    (tmp_path / "dump_3").write_bytes(b"dump")
    assert set(copy_dumps(folder, [member], "fr")) == {3}
    assert (folder.root / "fr" / "nccl_trace_rank_3").read_bytes() == b"dump"


def test_a_dump_at_the_default_place_is_found(folder: Folder, launch: Any, tmp_path: Path) -> None:
    member = launch(rank=3)
    (tmp_path / "cache" / "torch").mkdir(parents=True)
    (tmp_path / "cache" / "torch" / "comm_lib_trace_rank_3").write_bytes(b"dump")
    assert set(copy_dumps(folder, [member], "fr")) == {3}


def test_a_dump_that_is_older_than_its_process_is_left(folder: Folder, launch: Any, tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(b"dump")
    os.utime(tmp_path / "dump_0", (1e9, 1e9))
    member = launch(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump_"))
    assert copy_dumps(folder, [member], "fr") == {}
    assert "earlier launch" in str(steps(folder, "recorder_file")[0][1])


def test_links_pipes_and_files_too_large_are_not_copied(
    folder: Folder, launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [launch(rank=rank, TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump_")) for rank in range(3)]
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dump_0").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "dump_1")
    (tmp_path / "dump_2").write_bytes(b"x" * 100)
    monkeypatch.setattr(_capture_recorder, "MAX_BYTES", 99)  # the limit alone is lowered: a file over it would be 256 MB
    assert copy_dumps(folder, members, "fr") == {}
    assert [status for status, _ in steps(folder, "recorder_file")] == ["failed"] * 3
    assert not (folder.root / "fr").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_copied(folder: Folder, launch: Any, tmp_path: Path) -> None:
    member = launch(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump_"))
    (tmp_path / "dump_0").write_bytes(b"dump")
    os.chown(tmp_path / "dump_0", 65534, 65534)
    assert copy_dumps(folder, [member], "fr") == {}
    assert "another user" in str(steps(folder, "recorder_file")[0][1])


def test_a_file_that_changes_whenever_it_is_looked_at_is_not_taken_for_whole(
    folder: Folder, launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = launch(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump_"))
    place, look = tmp_path / "dump_0", os.fstat
    place.write_bytes(b"dump")

    def grows(descriptor: int) -> os.stat_result:
        with place.open("ab") as file:
            file.write(b"more")
        return look(descriptor)

    monkeypatch.setattr(_capture_recorder, "QUIET_S", 0.01)  # the wait between two looks alone is shortened
    monkeypatch.setattr(os, "fstat", grows)
    found = copy_dumps(folder, [member], "fr")
    monkeypatch.undo()
    assert found == {}
    assert steps(folder, "recorder_file") == [("failed", "it changed while it was read")]
    assert not (folder.root / "fr").exists()


def test_the_pipe_is_asked_with_a_byte_and_the_new_dump_is_copied_beside_the_old(folder: Folder, launch: Any, tmp_path: Path) -> None:
    places = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"), "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_")}
    member = launch(DUMPS_WHEN_ASKED, rank=2, **places)
    (tmp_path / "dump_2").write_text("first")
    copy_dumps(folder, [member], "fr")
    ask_for_dumps(folder, [member])
    assert (folder.root / "fr" / "nccl_trace_rank_2").read_text() == "first"
    assert (folder.root / "fr" / "asked" / "nccl_trace_rank_2").read_text() == "second"
    assert steps(folder, "recorder_pipe") == [("ok", "asked with one byte")]


def test_a_pipe_that_nobody_reads_or_that_is_none_is_not_written_to(folder: Folder, launch: Any, tmp_path: Path) -> None:
    members = [launch(rank=rank, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=str(tmp_path / "pipe_")) for rank in range(3)]
    os.mkfifo(tmp_path / "pipe_0.pipe")
    (tmp_path / "pipe_1.pipe").write_text("a file")
    ask_for_dumps(folder, members)
    assert [status for status, _ in steps(folder, "recorder_pipe")] == ["failed"] * 3
    assert (tmp_path / "pipe_1.pipe").read_text() == "a file"


def test_a_trainer_without_a_debug_server_is_not_connected_to(launch: Any, tmp_path: Path) -> None:
    listens = "import socket, time; s = socket.create_server(('', 0)); s.settimeout(3)\nprint('ready', flush=True)\ns.accept()"
    member = launch(listens)
    assert find_server(member.process.pid, None) is None


def test_logs_are_named_by_the_rank_that_writes_them_alone(folder: Folder, launch: Any, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as own, (tmp_path / "b").open("wb") as errors, (tmp_path / "c").open("wb") as common:
        members = [launch(rank=0, out=own, err=errors), launch(rank=1, out=common, err=common), launch(rank=2, out=common, err=common)]
        for name in ("a", "b", "c"):
            (tmp_path / name).write_text(f"text of {name}\n")
        logs = Logs(folder, members)
        for member in members:
            os.kill(member.process.pid, 9)
        with (tmp_path / "a").open("a") as more:
            more.write("last words\n")
        (tmp_path / "b").unlink()
        assert logs.copy() == 3
    found = {path.name: path.read_text() for path in (folder.root / "logs").iterdir()}
    assert found["rank_0.stdout.log"].endswith("last words\n")
    assert found["rank_0.stderr.log"] == "text of b\n"  # its name is gone, the file is held
    assert "text of c" in found["shared.log"]


def test_a_long_log_loses_its_beginning_and_says_so(folder: Folder, launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_capture_logs, "MAX_BYTES", 25)
    with (tmp_path / "a").open("wb") as out:
        member = launch(out=out)
    (tmp_path / "a").write_text("".join(f"line {n}\n" for n in range(10)))
    Logs(folder, [member]).copy()
    assert (folder.root / "logs" / "rank_0.stdout.log").read_text() == "line 7\nline 8\nline 9\n"
    assert ("ok", "only the last 21 of 70 bytes") in steps(folder, "log")


def test_what_goes_through_a_pipe_is_left_for_its_reader(folder: Folder, launch: Any) -> None:
    member = launch(out=subprocess.PIPE)
    Logs(folder, [member]).copy()
    assert any("a pipe" in str(why) for _, why in steps(folder, "log"))
    reader, writer = os.pipe()
    os.write(writer, b"kept")
    with pytest.raises(OSError, match="no regular file"):
        open_regular(Path(f"/proc/self/fd/{reader}"), follow=True)
    assert os.read(reader, 10) == b"kept"
    os.close(reader)
    os.close(writer)


def test_torchruns_error_file_and_the_log_of_a_rank_that_has_ended_are_kept(folder: Folder, launch: Any, tmp_path: Path) -> None:
    for local in range(2):
        (tmp_path / "attempt_0" / str(local)).mkdir(parents=True)
    error = tmp_path / "attempt_0" / "0" / "error.json"
    error.write_text('{"message": "x"}')
    (tmp_path / "attempt_0" / "1" / "stderr.log").write_text("ValueError: of the rank that is gone\n")
    with (tmp_path / "attempt_0" / "0" / "stdout.log").open("wb") as out:
        member = launch(rank=4, out=out, TORCHELASTIC_ERROR_FILE=str(error))
    member = Member(member.process, "main", 4, 0, 8)
    (tmp_path / "attempt_0" / "0" / "stdout.log").write_text("text\n")
    Logs(folder, [member]).copy()
    assert {path.name for path in (folder.root / "logs").iterdir()} == {"rank_4.stdout.log", "rank_4.error.log", "rank_5.stderr.log"}


def test_the_kernels_log_names_its_host_or_says_why_it_is_missing(folder: Folder) -> None:
    capture_kernel(folder)
    ((status, why),) = steps(folder, "kernel_log")
    path = folder.root / "kernel" / "host-a.dmesg.log"
    if status == "failed":
        assert "CAP_SYSLOG" in str(why)
        assert not path.exists()
        return
    data = path.read_bytes()
    assert xid.claims(path.name, data[:65536])
    rows = {table.name: frame for table, frame in (i for i in xid.read(Source("log", path, len(data))) if isinstance(i, tuple))}
    assert rows["host_logs"]["host"].to_list() == ["host-a"]
    (facts,) = json.loads((folder.root / "kernel" / "hosts.json").read_text()).values()
    assert 0 < facts["boot_time_ns"] < time.time_ns()


def test_without_a_driver_gpus_are_not_looked_at_which_is_said() -> None:
    found, why = _capture_gpu.gpus()
    assert (found is None) == (why is not None)
    assert why is None or "not looked at" in why


def test_every_name_of_nvml_that_is_used_exists() -> None:
    pynvml = pytest.importorskip("pynvml")
    used = set(re.findall(r"pynvml\.(\w+)", Path(_capture_gpu.__file__).read_text()))
    assert len(used) > 15
    assert [name for name in sorted(used) if not hasattr(pynvml, name)] == []


def test_a_process_runs_on_the_gpu_where_it_holds_most_memory() -> None:
    def gpu(uuid: str | None, *held: tuple[int, int | None]) -> dict[str, Any]:
        return {"uuid": uuid, "processes": [{"pid": pid, "memory_bytes": size} for pid, size in held]}

    stray = [gpu("GPU-0000", (1, 40_000), (2, 500)), gpu("GPU-0001", (2, 40_000)), {"index": 2, "problem": "lost"}, gpu(None, (4, 1))]
    assert owners(stray) == {1: "GPU-0000", 2: "GPU-0001"}
    assert owners([gpu("GPU-0000", (3, None)), gpu("GPU-0001", (3, None))]) == {}


def test_a_partial_capture_is_read_and_shows_as_such(folder: Folder) -> None:
    folder.write_json("topology.json", {"ranks": [{"rank": 0, "host": "host-a"}, {"rank": 1, "host": "host-a"}]})
    assert stat.S_ISREG((folder.root / PARTIAL).stat().st_mode)
    done = subprocess.run([*RCA, "diagnose", str(folder.root.parent), "--json"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert any("cut short" in skip["why"] for skip in json.loads(done.stdout)["skipped"])


LISTENS = """
import ctypes, socket, sys, time
ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)
held = [socket.create_server((host, 0)) for host in {hosts!r}]
print(*(s.getsockname()[1] for s in held), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "hosts", "is_found"),
    [
        (b"pt_workerserver", ["0.0.0.0", "127.0.0.1"], True),
        (b"pt_workerserver", ["0.0.0.0", "0.0.0.0"], False),  # which of them is it?
        (b"python", ["0.0.0.0"], None),  # no such server: a socket of something else
    ],
)
def test_only_a_socket_that_can_be_nothing_else_is_the_debug_server(
    name: bytes, hosts: list[str], *, is_found: bool | None, launch: Any, tmp_path: Path
) -> None:
    member = launch(LISTENS.format(name=name, hosts=hosts))
    ports = [int(port) for port in (tmp_path / "ready0").read_text().split()]
    found = find_server(member.process.pid, None)
    if is_found:
        assert found == ports[0]
        assert isinstance(find_server(member.process.pid, str(ports[0])), str)  # that one is the store
    elif is_found is None:
        assert found is None
    else:
        assert found == "2 sockets could be the debug server: none is tried"


def test_handlers_that_only_read_are_asked_and_no_others() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(200 if "fr_trace" in self.path else 404)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        assert list(fetch(server.server_port)) == [("fr_trace_json", b"{}", "")]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == ["/handler/fr_trace_json", "/handler/dump_nccl_trace_json?onlyactive=false"]
    assert [(handler, data) for handler, data, _ in fetch(server.server_port)] == [("fr_trace_json", None), ("dump_nccl_trace_json", None)]


def test_work_that_never_ends_is_given_up_and_its_late_writes_are_refused(folder: Folder) -> None:
    from threading import Event

    hangs, is_over = Event(), Event()

    def work() -> None:
        hangs.wait()
        with folder.doing("late"):
            folder.write("late.txt", b"late")
        is_over.set()

    with folder.doing("slow"):
        bounded(work, 0.05)
    assert "does its file system hang?" in str(steps(folder, "slow")[0][1])
    folder.seal({})
    hangs.set()
    assert is_over.wait(10)
    assert steps(folder, "late") == [("failed", "the capture is sealed")]
    assert not (folder.root / "late.txt").exists()
    assert bounded(lambda: 3, 10) == 3
    with pytest.raises(OSError, match="no regular file"):
        bounded(lambda: open_regular(folder.root), 10)


def test_capture_needs_the_standard_library_alone() -> None:
    """It runs in the images of training jobs; nvidia-ml-py is loaded only when the GPUs are looked at."""
    code = "import sys, apps.verbs.capture, collectors._capture.run; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert {"apps", "collectors", "rca"} <= loaded
    assert loaded - sys.stdlib_module_names - {"apps", "collectors", "rca", "__main__"} == set()
