"""Who speaks in a line of a host's log: the kernel, a daemon that watches hardware, or any other program, whose text proves nothing.

A program may log whatever it likes, words of a driver included. Only the kernel, and the daemons whose work is to pass on what hardware and
kernel tell them, are believed.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["TAG", "is_believed"]

# "host program[pid]: " of a syslog; the host and the process id may be missing.
TAG: Final = re.compile(
    r"(?:(?P<host>[^\s:|\[\]]{1,255}) )?(?P<program>[A-Za-z_(][\w.@+\-/()]{0,63})(?P<pid>\[[0-9]{1,10}\])?: (?!segfault at )"
)
_BELIEVED: Final = re.compile(
    r"(?i)(?:vm)?kernel|klogd|kmsg|dmesg|(?:r|ng-?)?syslog(?:d|-ng)?|systemd(?:-.*)?"  # the kernel, and who carries its lines
    r"|nv(?:idia)?[-_].*|nvsm.*|nvsentinel.*|dcgm.*|fabricmanager|gpud.*|.*xid.*"  # of the vendor and for its GPUs
    r"|nhc.*|.*health.*|.*problem-detector|.*monitor(?:d|ing)?"  # checks of a node
    r"|rasdaemon|mcelog|edac.*|abrt.*|ipmi.*|.*bmc.*|sel|thermald|smartd|mdadm|multipathd|watchdog"  # of the machine
    r"|mmfs.*|gpfs.*|lustre.*|lnet.*|lctl|rpc\..*|mount\..*|networkmanager|dhcpcd|opensm|ibacm|slurmd.*"  # of mounts, links and the scheduler
)


def is_believed(program: str | None) -> bool:
    """Whether a program's word counts for the hardware it speaks of; None (no program is named) is the kernel's own log."""
    return program is None or _BELIEVED.fullmatch(program.rpartition("/")[2]) is not None
