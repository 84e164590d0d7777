"""Stop-time checks: what is run on the idle hosts before a restart, in this order, as command lines. Pure: nothing is ever run.

ByteRobust (SOSP'25, arXiv 2509.16293, section 4), step 7: extended diagnostics of each GPU, bandwidth all-to-all inside each host, all-gather
between neighbours; where numbers are wrong also a bitwise alignment: every host computes the same small steps, and an odd one out is the suspect.
About 70 % of the machines with silent corruption are found by the first; passing them all is no proof of health.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rca.commands import host_list
from rca.replay import COMMANDS

__all__ = ["stop_time_checks"]

NUMERIC: Final = ("numeric", "hardware")  # layers of a verdict for which bits are compared
GPUS: Final = 8  # of a host, where a map does not tell


def stop_time_checks(hosts: Sequence[str], *, layer: str, gpus_per_host: int | None) -> tuple[str, ...]:
    """The commands for these hosts, spelled as their scheduler does; placeholders where none is known."""
    where = host_list(hosts, len(hosts)) or "HOSTS"  # all: whoever is left out counts as checked
    gpus, how = gpus_per_host or GPUS, "" if gpus_per_host else f"; how many GPUs a host has is not told: {GPUS} are assumed"
    lines = [
        f"pdsh -w {where} 'sudo dcgmi diag -r 3'   # about 15 min a host; where NVIDIA's EUD is installed: dcgmi diag -r eud",
        f"pdsh -w {where} 'alltoall_perf -b 1G -e 8G -f 2 -g {gpus}'   # inside each host: an odd one out has a bad link{how}",
    ]
    if len(hosts) != 1:
        lines.append(f"srun -w PAIR -N2 --ntasks-per-node={gpus} all_gather_perf -b 1G -e 8G -f 2 -g 1   # each host with its neighbour")
    if layer in NUMERIC:
        plan, *rest = COMMANDS
        lines += [f"{plan.replace('--out', '--mode double_run --out')}   # bitwise alignment: every host computes the same steps", *rest]
    return tuple(lines)
