"""What every process prints, kept with its instant until the evidence is laid out into files in the style that the site keeps its logs.

Lines hold tokens where a stamp or a name goes (`<<py>>`, `<<glog>>`, ...), so that a host whose clock is off stamps all its lines alike.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final, Literal

__all__ = ["MANY_RANKS", "Entry", "Filing", "LogBook", "drawn_filing"]

Filing = Literal["ranks", "hosts", "job"]
Entry = tuple[int, int, str]  # ns since the epoch by the true clock, number in order of saying, line with tokens

MANY_RANKS: Final = 512  # a job of more keeps few files of many ranks
_TOKEN: Final = re.compile(r"<<(py|dot|glog|sec|slash|iso|local|under)>>")


class LogBook:
    """Collects lines by speaker: a rank, a host's launcher, or the job as its scheduler prints it."""

    def __init__(self, *, filing: Filing, zone_h: int = 0, job_file: str = "slurm-{job}.out") -> None:
        self.filing: Filing = filing
        self.zone_h = zone_h  # hours that the stamps of trainers lie ahead of UTC
        self.job_file = job_file
        self.ranks: dict[int, list[Entry]] = defaultdict(list)
        self.agents: dict[str, list[Entry]] = defaultdict(list)
        self.jobs: list[Entry] = []
        self.lost: set[int] = set()  # ranks whose lines nobody kept
        self.lost_hosts: set[str] = set()  # launchers likewise
        self._count = 0

    def say(self, rank: int, at: int, *lines: str) -> None:
        """A rank prints lines, all at `at` (ns)."""
        self._add(self.ranks[rank], at, lines)

    def agent(self, host: str, at: int, *lines: str) -> None:
        """The launcher of a host prints lines."""
        self._add(self.agents[host], at, lines)

    def job(self, at: int, *lines: str) -> None:
        """The scheduler prints lines into the file of the job."""
        self._add(self.jobs, at, lines)

    def _add(self, entries: list[Entry], at: int, lines: Iterable[str]) -> None:
        for line in lines:
            self._count += 1
            entries.append((at, self._count, line))

    def silence(self, ranks: Iterable[int], after: int) -> None:
        """Ranks that print nothing any more from `after` (ns) on: they are dead, or wait without a word."""
        for rank in ranks:
            self.ranks[rank] = [entry for entry in self.ranks[rank] if entry[0] < after]

    def laid_out(self, *, host_of: Callable[[int], str], job_id: str, skew_ns: Mapping[str, int]) -> dict[str, list[str]]:
        """Path -> lines. Per-rank files, a file per host whose lines carry `[rankN]:`, or one file with srun's labels."""
        width = len(str(max(self.ranks, default=0)))
        files: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for rank, entries in self.ranks.items():
            if rank in self.lost:
                continue
            host = host_of(rank)
            path, label = {
                "ranks": (f"logs/rank_{rank}.stderr.log", ""),
                "hosts": (f"logs/{host}.log", f"[rank{rank}]: "),
                "job": (f"logs/{self.job_file.format(job=job_id)}", f"{rank:{width}d}: "),
            }[self.filing]
            files[path] += [(at, number, _labelled(label, self._stamped(at, line, skew_ns.get(host, 0)))) for at, number, line in entries]
        for host, entries in self.agents.items():
            if host in self.lost_hosts:
                continue
            path = f"logs/{host}.log" if self.filing == "hosts" else f"logs/{host}.agent.log"
            files[path] += [(at, number, self._stamped(at, line, skew_ns.get(host, 0))) for at, number, line in entries]
        if self.jobs:
            path = f"logs/{self.job_file.format(job=job_id)}"
            batch = skew_ns.get(host_of(0), 0)  # slurmstepd and srun stamp by the clock of the host that they run on
            files[path] += [(at, number, self._stamped(at, line, batch)) for at, number, line in self.jobs]
        return {path: [line for _, _, line in sorted(entries)] for path, entries in sorted(files.items()) if entries}

    def _stamped(self, at: int, line: str, skew_ns: int) -> str:
        if "<<" not in line:
            return line
        return _TOKEN.sub(lambda found: _stamp(found[1], at + skew_ns, self.zone_h), line)


def _labelled(label: str, line: str) -> str:
    """torch puts its own `[rankN]:` before what it prints itself; nobody puts a second one there."""
    return line if label.startswith("[rank") and line.startswith("[rank") else label + line


def _stamp(kind: str, at_ns: int, zone_h: int) -> str:
    at = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC) + timedelta(microseconds=at_ns // 1000 % 1_000_000)
    local = at.astimezone(timezone(timedelta(hours=zone_h)))
    if kind == "iso":  # with its zone
        return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
    forms = {
        "py": f"{local:%Y-%m-%d %H:%M:%S},{local.microsecond // 1000:03d}",
        "dot": f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}",
        "glog": f"{local.month}{local:%d %H:%M:%S}.{local.microsecond:06d}{at_ns % 1000:03d}",  # torch's C++: no zero before the month
        "sec": f"{local:%Y-%m-%d %H:%M:%S}",
        "slash": f"{local:%m%d %H:%M:%S}.{local.microsecond // 1000 * 1000:06d}",  # of torch's Python side
        "local": f"{local:%Y-%m-%dT%H:%M:%S}",
        "under": f"{local:%Y-%m-%d_%H:%M:%S}",
    }
    return forms[kind]


def drawn_filing(rng: random.Random, num_ranks: int) -> Filing:
    """How a site keeps logs; a large job has no file of its own for each rank."""
    return rng.choice(("hosts", "job")) if num_ranks > MANY_RANKS else rng.choice(("ranks", "ranks", "hosts", "job"))
