"""Advice as lines that a person may paste: a look first, a drain last. Pure: nothing is ever run.

Host names come from evidence. In a pasted line such a name stays one word and never becomes an option, a second command or a second node:
it is quoted, `--` stands before one that begins with a dash, and a scheduler is told only names that a node can have.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rca.roster import Roster
from rca.types import Verdict

__all__ = ["commands", "drain", "host_list", "hostlist", "node_name"]

_OOM: Final = ("sudo dmesg -T | grep -iE 'oom|killed process'", "what was killed, and what held the memory")
_MOUNTS: Final = (
    "grep -E 'nfs|lustre|gpfs|beegfs|fuse' /proc/mounts; sudo dmesg -T | grep -iE 'nfs|lustre|not responding'",
    "does storage answer there?",
)
_ROOM: Final = ("df -h; df -i", "which file system is full, of bytes or of files; of an object store look at its quota")
_PORTS: Final = ("ibstat; ip -br link", "each port: Active, LinkUp, its full rate")
_GPU: Final = ("nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE; sudo dmesg -T | grep -iE 'xid|fallen off'", "the GPUs of that host")
_LOOKS: Final = {  # cause -> what to run on the first host named, and what it shows
    **dict.fromkeys(("host_out_of_memory", "process_killed"), _OOM),
    **dict.fromkeys(("data_stall", "storage_stall"), _MOUNTS),
    **dict.fromkeys(("gpu_fault", "gpu_memory_fault", "nvlink_fault", "silent_data_corruption"), _GPU),
    **dict.fromkeys(("network_fault", "network_transient"), _PORTS),
    "slow_rank": ("nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE; uptime", "clocks, throttling, load of the host"),
}
LOOK_AT_ALL: Final = frozenset({"slow_rank", "network_fault", "network_transient"})  # causes that several hosts have side by side
LOOK_INSIDE: Final = frozenset({"unknown", "code_hang"})  # causes for which the stack of the living process tells more
MAX_SAMPLES: Final = 16  # named in one command
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # what Slurm takes as one node
_ALL: Final = "all"  # to Slurm every node there is
_NUMBERED: Final = re.compile(r"(.*?)([0-9]+)")


def commands(verdict: Verdict, roster: Roster, evict: Sequence[str], *, has_no_room: bool = False) -> tuple[str, ...]:
    """Lines a person may run, in this order: a look at what the verdict rests on or leaves open, then a drain for hosts to replace. `has_no_room`:
    storage was full."""
    look = _ROOM if has_no_room and verdict.cause == "storage_stall" else _LOOKS.get(verdict.cause)
    looks = [_look(verdict, roster, [roster.spelled(host) for host in verdict.hosts], look)] if verdict.ranks and verdict.hosts else []
    return tuple(line for line in (*looks, *_leave_out(verdict), drain(verdict, [roster.spelled(host) for host in evict])) if line)


def _look(verdict: Verdict, roster: Roster, hosts: Sequence[str], look: tuple[str, str] | None) -> str:
    """A look at the first host; at all of them where each may be a fault of its own."""
    rank, host = verdict.ranks[0], hosts[0]
    if verdict.cause == "host_lost":
        node = f"; scontrol show node={node_name(host)}" if _is_node(host) else ""
        return f"ping -c 3 {_word(host)}{node}   # is it there at all?"
    if look is not None:
        command, why = look
        if len(hosts) > 1 and verdict.cause in LOOK_AT_ALL and (where := host_list(hosts, len(hosts))):
            return f'pdsh -w {where} "{command}"   # {why}'
        return f'ssh {_word(host)} "{command}"   # {why}'
    if verdict.cause not in LOOK_INSIDE:
        return ""
    if rank in roster.pids:
        return f"ssh {_word(host)} sudo py-spy dump --native --pid {roster.pids[rank]}   # the trainer of rank {rank}, before anything is stopped"
    return (
        f"ssh {_word(host)} 'grep -lzx RANK={rank} /proc/[0-9]*/environ'   # processes of rank {rank}: the trainer and its loader workers"
    )


def _leave_out(verdict: Verdict) -> tuple[str, ...]:
    """Lines that put samples on the list of those to leave out, and that hand the list to the loader."""
    told = verdict.data["sample_ids"] if verdict.data and verdict.cause == "bad_sample" else ()
    ids = [shlex.quote(str(one)) for one in told if not str(one).startswith("-")][:MAX_SAMPLES]
    if not ids:
        return ()
    return (
        f"rca quarantine PATH --add {' '.join(ids)} --because 'rca: {verdict.cause}'   # the list keeps who put it there, and why",
        "rca quarantine PATH --ids > bad.txt   # for the loader",
    )


def drain(verdict: Verdict, hosts: Sequence[str]) -> str:
    """The line that takes hosts, as their scheduler spells them, out of use; "" where none is a name that a node can have."""
    nodes = sorted({node_name(host) for host in hosts if _is_node(host)})
    if not nodes:
        return ""
    ranks = f" rank {','.join(map(str, verdict.ranks[:4]))}" if verdict.ranks else ""
    reason = shlex.quote(f"rca: {'stands apart, cause open' if verdict.cause == 'unknown' else verdict.cause}{ranks}")
    return f"scontrol update nodename={shlex.quote(hostlist(nodes))} state=drain reason={reason}   # keeps new jobs away; stops none"


def host_list(hosts: Sequence[str], most: int) -> str:
    """The first `most` of these hosts as one word of a command line, in Slurm's short form; "" where none is a name that a node can have."""
    nodes = sorted({node_name(host) for host in hosts if _is_node(host)})[:most]
    return shlex.quote(hostlist(nodes)) if nodes else ""


def _word(host: str) -> str:
    """A host as one word of a command line that no program takes for an option."""
    return f"{'-- ' if host.startswith('-') else ''}{shlex.quote(host)}"


def _is_node(host: str) -> bool:
    return bool(_NODE.fullmatch(host)) and host.lower() != _ALL


def node_name(host: str) -> str:
    """A host as Slurm names nodes: its first label, spelled as the source does; an address stays whole."""
    return host if host.replace(".", "").isdigit() else host.split(".")[0]


def hostlist(nodes: Sequence[str]) -> str:
    """Names of nodes in Slurm's short form: `node[012,017-019]`. Numbers of one width go together, so that zeros in front are kept.

    Source: Slurm, hostlist expressions (scontrol show hostlist).
    """
    numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
    plain = []
    for node in sorted(set(nodes)):
        if (found := _NUMBERED.fullmatch(node)) and len(found[2]) <= 18:
            numbers[found[1], len(found[2])].append(int(found[2]))
        else:
            plain.append(node)
    shown = [(prefix, width, _numbered(prefix, width, found)) for (prefix, width), found in numbers.items()]
    return ",".join(text for _, _, text in sorted([*shown, *((node, 0, node) for node in plain)]))


def _numbered(prefix: str, width: int, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]:0{width}d}" + (f"-{run[-1]:0{width}d}" if len(run) > 1 else "") for run in runs]
    return f"{prefix}[{','.join(parts)}]"
