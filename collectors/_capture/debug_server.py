"""torch's debug server, asked for its flight recorder.

`torch.distributed.debug.start_debug_server` opens an HTTP server in every trainer, at a port of the system's choosing. It is found without a
touch: a trainer that runs it has threads called pt_workerserver, and exactly one socket that listens on every address and is not the store's.
Where that is not so, no port is tried: a stray connection can upset NCCL, gloo or the store.

Only these handlers are asked, which read and answer: fr_trace_json, dump_nccl_trace_json (without Python stacks, so without the interpreter
lock). Never torch_profile, dump_traceback, pyspy_dump. torch 2.13 answers POST alone, though nothing is changed by it.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path

from collectors._capture.files import reason
from collectors._capture.proc import read_text

__all__ = ["fetch", "find_server"]

HANDLERS = ("fr_trace_json", "dump_nccl_trace_json?onlyactive=false")
WAIT_S = 10.0
MAX_BYTES = 256 << 20
THREAD = "pt_workerserver"
_LISTENS, _ANY = "0A", re.compile(r"0+:([0-9A-F]{4})")


def find_server(pid: int, store_port: str | None) -> int | str | None:
    """The port of the worker server; None where there is no such server; else why it cannot be told."""
    names = (read_text(task / "comm") for task in Path(f"/proc/{pid}/task").glob("*"))
    if not any((name or "").strip() == THREAD for name in names):
        return None
    try:
        own = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError as error:
        return f"its sockets may not be looked at: {reason(error)}"
    ports = {port for port in _listening(pid, own) if str(port) != store_port}
    if len(ports) != 1:
        return f"{len(ports)} sockets could be the debug server: none is tried"
    return ports.pop()


def _listening(pid: int, own: set[str]) -> Iterator[int]:
    """Ports of the process that listen on every address."""
    for family in ("tcp", "tcp6"):
        for line in (read_text(Path(f"/proc/{pid}/net/{family}")) or "").splitlines()[1:]:
            fields = line.split()
            found = _ANY.fullmatch(fields[1])
            if found and fields[3] == _LISTENS and f"socket:[{fields[9]}]" in own:
                yield int(found[1], 16)


def fetch(port: int) -> Iterator[tuple[str, bytes | None, str]]:
    """(handler, answer, why there is none) of every handler. One that this torch does not have is passed over."""
    for path in HANDLERS:
        handler = path.partition("?")[0]
        try:
            status, data = _post(port, f"/handler/{path}")
        except (OSError, http.client.HTTPException) as error:
            yield handler, None, reason(error)
            continue
        if status == 404:
            continue
        if status != 200:
            yield handler, None, f"status {status}"
        elif len(data) > MAX_BYTES:
            yield handler, None, "its answer is too large"
        else:
            yield handler, data, ""


def _post(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", path)
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_BYTES + 1)
    finally:
        connection.close()
