"""Harm that evidence takes after the capture: a torn file, a host with the wrong time."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from rca.drills._capture import write_json
from rca.drills._layout import Scene

__all__ = ["cut", "shift_clock"]

MARGIN_NS = 3_600_000_000_000  # numbers this far around the run count as its instants: kernel lines lie up to an hour before
LONG_OF_8 = b"\x8a\x08"  # pickle: an integer of eight bytes, which follow
NUMBER = re.compile(r"(?<![0-9.])[0-9]{19}(?![0-9.])")  # ns since the epoch
STAMP = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9][T _][0-9][0-9]:[0-9][0-9]:[0-9][0-9]")
GLOG = re.compile(r"(?m)^([IWEF])([0-9]{4} [0-9][0-9]:[0-9][0-9]:[0-9][0-9])")  # of the launchers: no year


def cut(path: Path, share: float) -> None:
    """Keep the first `share` of the bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def shift_clock(folder: Path, scene: Scene, *, host: str, by_s: int) -> None:
    """Shift every wall-clock stamp that `host` or a rank on it wrote: dumps, stacks, logs, timings, kernel log and boot time."""
    ranks = [row["rank"] for row in scene.layout.ranks() if row["host"] == host]
    by_ns = by_s * 1_000_000_000
    first, last = scene.began_ns - MARGIN_NS, scene.now_ns + MARGIN_NS

    def moved(instant: int) -> int:
        return instant + by_ns if first <= instant <= last else instant

    for rank in ranks:
        dump = folder / "fr" / f"nccl_trace_rank_{rank}"
        dump.write_bytes(_in_pickle(dump.read_bytes(), moved))
    texts = [folder / "logs" / f"{host}.agent.log", folder / "kernel" / f"{host}.dmesg.log"]
    texts += [path for rank in ranks for path in folder.glob(f"*/*rank_{rank}.*") if path.parent.name in ("logs", "timings")]
    for path in texts:
        path.write_text(_in_text(path.read_text(), moved, by_s))
    index, hosts = folder / "stacks" / "index.json", folder / "kernel" / "hosts.json"
    rows, boots = json.loads(index.read_text()), json.loads(hosts.read_text())
    write_json(index, [row | {"t_ns": moved(row["t_ns"])} if row["host"] == host else row for row in rows])
    boots[host]["boot_time_ns"] += by_ns
    write_json(hosts, boots)


def _in_pickle(data: bytes, moved: Callable[[int], int]) -> bytes:
    """The recorder writes an instant as an integer of eight bytes; only the instants of the run fit the window."""
    out = bytearray(data)
    at = data.find(LONG_OF_8)
    while 0 <= at <= len(data) - 10:
        (number,) = struct.unpack_from("<q", data, at + 2)
        struct.pack_into("<q", out, at + 2, moved(number))
        at = data.find(LONG_OF_8, at + 1)
    return bytes(out)


def _in_text(text: str, moved: Callable[[int], int], by_s: int) -> str:
    def stamp(found: re.Match[str]) -> str:
        separator = found.group()[10]
        at = datetime.fromisoformat(found.group().replace("_", "T")) + timedelta(seconds=by_s)
        return f"{at:%Y-%m-%d}{separator}{at:%H:%M:%S}"

    def short(found: re.Match[str]) -> str:
        at = datetime.strptime(f"2000{found.group(2)}", "%Y%m%d %H:%M:%S") + timedelta(seconds=by_s)
        return f"{found.group(1)}{at:%m%d %H:%M:%S}"

    text = NUMBER.sub(lambda found: str(moved(int(found.group()))), text)
    return GLOG.sub(short, STAMP.sub(stamp, text))
