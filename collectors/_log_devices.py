"""Which rank sits on which host, process and GPU, as logs say where a job begins.

    [rank5]: host-a:4242:4642 [5] NCCL INFO ncclCommInitRankConfig comm 0x55d5 rank 5 nranks 8 cudaDev 5 nvmlDev 5 busId 9a000 commId 0x7a3f - Init
    [rank 4] hostname=host-a local_rank=4 pid=4242

1. The first is NCCL's (NCCL_DEBUG=INFO). The rank in it counts inside its communicator, so the rank is that of the line's prefix, else of the file's
   name. `busId` is the PCI address in hexadecimal, domain << 20 | bus << 12 | device << 4 | function (NCCL, busIdToInt64 in src/misc/utils.cc).
2. The second is what programs print of themselves: host, local rank and process as words and values, in any order, and the rank before or among them.
3. A number that srun or mpirun puts before lines is the rank, unless the log shows that these tasks are nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from collectors._log_prefix import Line, parse, plain_host

__all__ = ["MARKS", "Devices"]

_BUS, _LOCAL = " busId ", "local_rank"
MARKS: Final = (_BUS, _LOCAL)  # of which a line of this kind holds one
_BEGINS: Final = re.compile(
    r"(?P<host>[A-Za-z][\w.-]{0,62}):(?P<pid>[0-9]{1,9}):[0-9]{1,9} \[[0-9]{1,4}\] NCCL INFO .{0,200}"
    r"\brank (?P<number>[0-9]{1,7}) nranks (?P<of>[0-9]{1,7}) cudaDev [0-9]{1,4}"
    r".{0,40} busId (?P<bus>[0-9a-f]{1,12})\b"
)
_VALUES: Final = {
    name: re.compile(rf"(?i)(?<![\w.]){words}['\"]?[=:] ?['\"]?({value})(?![\w-])")
    for name, words, value in (
        ("host", "(?:hostname|host|node|nodename)", r"[A-Za-z][\w.-]{0,62}"),
        ("local_rank", "local_rank", r"[0-9]{1,4}"),
        ("pid", "pid", r"[0-9]{1,9}"),
        ("rank", "(?:global_)?rank", r"[0-9]{1,7}"),
    )
}


@dataclass(frozen=True)
class _Seat:
    """Where one process of a rank runs."""

    rank: int
    host: str
    pid: int
    gpu: str | None
    local_rank: int | None
    is_of_task: bool  # the rank is the number of a task


@dataclass
class Devices:
    """The processes of one log."""

    rank_said: int | None  # by the name of the file
    _found: dict[_Seat, str] = field(default_factory=dict)  # -> record

    def hear(self, texts: Iterable[str], first: int) -> None:
        """Take lines; `first`: the number of the first one."""
        for number, text in enumerate(texts, first):
            seat = self._of_nccl(text, number) if _BUS in text else self._of_program(text, number) if _LOCAL in text else None
            if seat is not None:
                self._found.setdefault(seat, f"L{number}")

    def _of_nccl(self, text: str, number: int) -> _Seat | None:
        found = _BEGINS.search(text)
        if not found or int(found["number"]) >= int(found["of"]):
            return None
        return self._seat(parse(text, number), None, found["host"], found["pid"], gpu=_address(int(found["bus"], 16)))

    def _of_program(self, text: str, number: int) -> _Seat | None:
        said = {name: found[1] for name, pattern in _VALUES.items() if (found := pattern.search(text))}
        if not {"host", "local_rank", "pid"} <= said.keys():
            return None
        return self._seat(parse(text, number), said.get("rank"), said["host"], said["pid"], local_rank=int(said["local_rank"]))

    def _seat(
        self, line: Line, said: str | None, host: str, pid: str, *, gpu: str | None = None, local_rank: int | None = None
    ) -> _Seat | None:
        of_line = int(said) if said is not None else line.rank
        rank = of_line if of_line is not None else line.label if line.label is not None else self.rank_said
        name = plain_host(host)
        if rank is None or name is None:
            return None
        return _Seat(rank, name, int(pid), gpu, local_rank, of_line is None and line.label is not None)

    def rows(self, *, tasks_are_nodes: bool = False) -> list[dict[str, Any]]:
        """Rows of `ranks`. A number before the lines that stands for several processes (a node's, not a rank's) is no rank; nor is any where
        `tasks_are_nodes`."""
        seats = {seat: record for seat, record in self._found.items() if not (tasks_are_nodes and seat.is_of_task)}
        processes: dict[int, set[tuple[str, int]]] = {}
        for seat in seats:
            processes.setdefault(seat.rank, set()).add((seat.host, seat.pid))
        if any(seat.is_of_task and len(processes[seat.rank]) > 1 for seat in seats):
            seats = {
                seat: record for seat, record in seats.items() if not seat.is_of_task
            }  # one task with several is no rank, nor are the others
        return [
            {"rank": seat.rank, "host": seat.host, "pid": seat.pid, "gpu": seat.gpu, "record": record, "role": "trainer"}
            | ({"local_rank": seat.local_rank} if seat.local_rank is not None else {})
            for seat, record in seats.items()
            if len(processes[seat.rank]) == 1
        ]


def _address(bus: int) -> str:
    """dddd:bb:dd of a busId."""
    return f"{bus >> 20:04x}:{bus >> 12 & 0xFF:02x}:{bus >> 4 & 0xFF:02x}"
