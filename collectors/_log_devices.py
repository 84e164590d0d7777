"""Which rank sits on which host and GPU, as NCCL says where a communicator begins (NCCL_DEBUG=INFO).

    [rank5]: host-a:4242:4642 [5] NCCL INFO ncclCommInitRankConfig comm 0x55d5 rank 5 nranks 8 cudaDev 5 nvmlDev 5 busId 9a000 commId 0x7a3f - Init

The rank in the line counts inside its communicator, so the rank is that of the line's prefix, else of the file's name. `busId` is the PCI
address in hexadecimal, domain << 20 | bus << 12 | device << 4 | function (NCCL, busIdToInt64 in src/misc/utils.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from collectors._log_prefix import parse, plain_host

__all__ = ["MARK", "Devices"]

MARK: Final = " busId "
_BEGINS: Final = re.compile(
    r"(?P<host>[A-Za-z][\w.-]{0,62}):(?P<pid>\d{1,9}):\d{1,9} \[\d{1,4}\] NCCL INFO .{0,200}"
    r"\brank (?P<number>\d{1,7}) nranks (?P<of>\d{1,7}) cudaDev \d{1,4}"
    r".{0,40} busId (?P<bus>[0-9a-f]{1,12})\b"
)


@dataclass
class Devices:
    """The processes of one log."""

    rank_said: int | None  # by the name of the file
    _found: dict[tuple[int, str, int, str], str] = field(default_factory=dict)  # rank, host, pid, GPU -> record

    def hear(self, texts: Iterable[str], first: int) -> None:
        """Take lines; `first`: the number of the first one."""
        for number, text in enumerate(texts, first):
            if MARK not in text or not (found := _BEGINS.search(text)):
                continue
            line = parse(text, number)
            rank = line.rank if line.rank is not None else self.rank_said
            if rank is None or int(found["number"]) >= int(found["of"]):
                continue
            host = plain_host(found["host"])
            if host is not None:
                self._found.setdefault((rank, host, int(found["pid"]), _address(int(found["bus"], 16))), f"L{number}")

    def rows(self) -> list[dict[str, Any]]:
        """Rows of `ranks`. A number before the lines that stands for several processes (a node's, not a rank's) is no rank."""
        processes: dict[int, set[tuple[str, int]]] = {}
        for rank, host, pid, _ in self._found:
            processes.setdefault(rank, set()).add((host, pid))
        return [
            {"rank": rank, "host": host, "pid": pid, "gpu": gpu, "record": record, "role": "trainer"}
            for (rank, host, pid, gpu), record in self._found.items()
            if len(processes[rank]) == 1
        ]


def _address(bus: int) -> str:
    """dddd:bb:dd of a busId."""
    return f"{bus >> 20:04x}:{bus >> 12 & 0xFF:02x}:{bus >> 4 & 0xFF:02x}"
