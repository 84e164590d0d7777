"""Debuggers' dumps and Python stacks printed root first."""

from __future__ import annotations

from pathlib import Path

import pytest
from _sources import rows_of, source_of

from collectors import native_stacks, py_spy

PYSTACK = """Traceback for thread 12 (python3) [] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
    (Python) File "/usr/lib/python3.11/threading.py", line 327, in wait
        waiter.acquire()

Traceback for thread 11 (python3) [Has the GIL] (most recent call last):
    (Python) File "/job/train.py", line 9, in <module>
        main()
    (Python) File "/job/lib/net.py", line 3, in evaluate
        pass
    (C) File "???", line 0, in clock_nanosleep (/lib/libc.so.6)
"""
GDB = """[New LWP 12]
Thread 2 (Thread 0x7f535e7fb000 (LWP 12) "worker"):
#0  0x00007f6b84ad7ab4 in read () from /opt/app/lib/libpthread.so.0
#1  0x00007f6b72cabfa3 in ibv_get_async_event () from /lib64/libibverbs.so.1

Thread 1 (Thread 0x7f535e7fc000 (LWP 11) "python"):
#0  0x00007f68194a8adf in clock_nanosleep () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f67a9ff6236 in c10d::NCCLComm::create(int, int, ncclUniqueId, std::vector<int, std::allocator<int> >&)
    () from /usr/lib/libtorch_cuda.so
#2  _PyEval_EvalFrameDefault (f=Frame 0x7f3484000910, for file /job/train.py, line 35, in setup (x=<A at remote 0x7f>)) at ceval.c:1
"""
LLDB = """* thread #1, name = 'python', stop reason = signal SIGSTOP
  * frame #0: 0x00007ffff7e8a libc.so.6`__poll + 79
    frame #1: 0x00007ffff1111 libnccl.so.2`ncclProxyService(void*) + 12
"""
PY_BT = """(gdb) py-bt
#4 Frame 0x7f34, for file /usr/lib/python3.8/threading.py, line 302, in wait (self=<Condition at remote 0x7f>)
#8 Frame 0x7f35, for file /usr/lib/python3.8/queue.py, line 170, in get (self=<Queue at remote 0x7f>)
#12 Frame 0x7f36, for file /usr/lib/python3/dist-packages/torch/utils/data/dataloader.py, line 1011, in _try_get_data (self=1)
"""
ROOT_FIRST = """ Thread Thread-1 (daemon: True)
 File "/usr/lib/python3.10/threading.py", line 973, in _bootstrap
   self._bootstrap_inner()

 Thread MainThread (daemon: False)
 File "/job/train.py", line 112, in <module>
   import numpy
 File "<frozen importlib._bootstrap>", line 1027, in _find_and_load
"""
COREDUMP = """                Stack trace of thread 123:
                #0  0x00007f1 clock_nanosleep (libc.so.6 + 0x3)
                #1  0x00007f1 ncclProxyService (libnccl.so.2 + 0x3)
"""
RECIPE = """# ThreadID: 140737354000000
File: "/usr/lib/python3.8/threading.py", line 890, in _bootstrap
  self._bootstrap_inner()

# ThreadID: 140737354000001
File: "/job/x.py", line 9, in <module>
  main()
File: "/usr/lib/python3.8/queue.py", line 170, in get
  self.not_empty.wait()
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (PYSTACK, [(None, "threading:wait", "side_thread"), ("MainThread", "lib/net:evaluate", "eval")]),
        (GDB, [("worker", None, "side_thread"), ("MainThread", "train:setup", "init")]),
        (LLDB, [("MainThread", None, "side_thread")]),
        (PY_BT, [(None, "threading:wait", "dataloader")]),
        (
            ROOT_FIRST,
            [("Thread-1", "threading:_bootstrap", "side_thread"), ("MainThread", None, "import")],
        ),
        (COREDUMP, [(None, None, "side_thread")]),
        (RECIPE, [("140737354000000", "threading:_bootstrap", "side_thread"), ("MainThread", "queue:get", "unknown")]),
    ],
    ids=["pystack", "gdb", "lldb", "py_bt", "root_first", "coredump", "recipe"],
)
def test_formats(tmp_path: Path, text: str, rows: list[tuple[str | None, str | None, str]]) -> None:
    source = source_of(tmp_path, text.encode())
    assert native_stacks.claims("x", source.head)
    assert not py_spy.claims("x", source.head)
    tables, skips = rows_of(native_stacks, source)
    frames = {row["stack_id"]: row for row in tables["stack_frames"]}
    assert not skips
    assert [(r["thread_name"], frames[r["stack_id"]]["leaf"], frames[r["stack_id"]]["activity"]) for r in tables["stacks"]] == rows


def test_gdb_frames_wrap_over_lines_and_carry_thread_ids(tmp_path: Path) -> None:
    tables, _ = rows_of(native_stacks, source_of(tmp_path, GDB.encode()))
    assert [(row["thread_id"], row["pthread_id"]) for row in tables["stacks"]] == [(12, str(0x7F535E7FB000)), (11, str(0x7F535E7FC000))]
    assert tables["stack_frames"][1]["frames"] == ["libc:clock_nanosleep", "libtorch_cuda:c10d::NCCLComm::create", "train:setup"]
    assert tables["stack_frames"][1]["wait_kind"] == "comm_init"
    assert [row["record"] for row in tables["stacks"]] == ["L2", "L6"]


def test_failed_attach(tmp_path: Path) -> None:
    source = source_of(tmp_path, b"Could not attach to process.  If your uid matches ...\nptrace: Operation not permitted.\n")
    assert native_stacks.claims("x", source.head)
    tables, _ = rows_of(native_stacks, source)
    assert [row["dump_status"] for row in tables["stacks"]] == ["permission_denied"]


def test_a_text_that_ends_in_the_import_machinery_is_cut_and_names_no_leaf(tmp_path: Path) -> None:
    frames = [("/job/train.py", 3, "<module>"), ("<frozen importlib._bootstrap>", 1027, "_find_and_load")]
    deeper = [*frames, ("<frozen importlib._bootstrap>", 688, "_load_unlocked"), ("/job/model.py", 9, "<module>")]
    for shown, leaf in ((frames, None), (deeper, "model:<module>")):
        text = "Thread MainThread (daemon: False)\n\n" + "".join(f' File "{file}", line {line}, in {name}\n' for file, line, name in shown)
        tables, _ = rows_of(native_stacks, source_of(tmp_path, text.encode()))
        assert [row["leaf"] for row in tables["stack_frames"]] == [leaf]
        assert [row["activity"] for row in tables["stack_frames"]] == ["import"]
