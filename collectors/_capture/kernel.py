"""The kernel's log, and when this host booted: what places lines that count from boot.

In this order, the first that answers: `dmesg --time-format iso`, /dev/kmsg read without waiting, `journalctl --dmesg`. Every line but the
journal's, which has it, gets the host's name before it, as pdsh prints it: a log that was copied elsewhere still says whose it is.
"""

from __future__ import annotations

import os
import subprocess
import time

from collectors._capture.files import Folder, reason

__all__ = ["boot_ns", "capture_kernel", "zone_s"]

MAX_BYTES = 16 << 20
WAIT_S = 20.0
MAX_RECORD = 8192  # bytes that one read of /dev/kmsg may give
DMESG = ("dmesg", "--time-format", "iso")
JOURNAL = ("journalctl", "--dmesg", "--boot", "--output=short-iso-precise", "--no-pager", "--quiet", "--lines=200000")
_ENVIRONMENT = {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"} | {
    name: os.environ[name] for name in ("TZ",) if name in os.environ
}


def boot_ns() -> int:
    """When this host booted, ns since 1970, by its clock of now."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def zone_s() -> int:
    """Seconds that this host's clock is ahead of UTC."""
    return time.localtime().tm_gmtoff


def capture_kernel(folder: Folder) -> None:
    """Write `kernel/<host>.dmesg.log` and `kernel/hosts.json`."""
    with folder.doing("kernel_hosts"):
        folder.write_json("kernel/hosts.json", {folder.host: {"boot_time_ns": boot_ns(), "zone_offset_s": zone_s()}})
        folder.note("kernel_hosts", "ok")
    whys = []
    for name, read in (("dmesg", _dmesg), ("/dev/kmsg", _kmsg), ("journalctl", _journal)):
        try:
            data, has_host = read()
        except (OSError, subprocess.SubprocessError) as error:
            whys.append(f"{name}: {reason(error)}")
            continue
        if not data.strip():
            whys.append(f"{name}: empty")
            continue
        with folder.doing("kernel_log", by=name):
            lines = data[-MAX_BYTES:].split(b"\n")[1 if len(data) > MAX_BYTES else 0 :]
            # (lines that begin with a blank go on with what the record before says of its device)
            lead = b"" if has_host else folder.host.encode() + b": "
            folder.write(f"kernel/{folder.host}.dmesg.log", b"".join(lead + line + b"\n" for line in lines if line and line[:1] != b" "))
            folder.note("kernel_log", "ok", "; ".join(whys) or None, by=name)
        return
    folder.note("kernel_log", "failed", f"{'; '.join(whys)}. Reading it takes CAP_SYSLOG: the kernel's log of this host was not looked at")


def _dmesg() -> tuple[bytes, bool]:
    return _run(DMESG), False


def _journal() -> tuple[bytes, bool]:
    return _run(JOURNAL), True


def _run(command: tuple[str, ...]) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, stdin=subprocess.DEVNULL, env=_ENVIRONMENT)
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(complaint[-1][:200] if complaint else f"exit code {done.returncode}")
    return done.stdout


def _kmsg() -> tuple[bytes, bool]:
    """Every record that the kernel still holds; ends where it would have to wait."""
    held = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    records = []
    try:
        while True:
            try:
                records.append(os.read(held, MAX_RECORD))
            except BlockingIOError:
                return b"".join(records), False
            except BrokenPipeError:  # it was overwritten meanwhile: the next one is there
                continue
    finally:
        os.close(held)
