"""Long runs of what patterns repeat: a pattern that looks twice at every byte takes hours for a megabyte, and no random input shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType

from _promise import MB, keep
from _seeds import seeds

from rca import plugins

__all__ = ["slowest"]

SIZE = 1_000_000  # bytes of a run
LONGER = 4  # times: so long is the slowest run once more, which shows a time that grows faster than the file
ENDLESS = 30.0  # times the allowed time: a run that takes longer is told as such, the others are still tried
RUNS = (
    *(b"a", b"0", b" ", b"\t", b"\n", b"\r", b"\0", b"[", b"]", b"(", b")", b"{", b"}", b"<", b">", b'"', b"'", b"\\", b"/", b"."),
    *(b":", b"-", b"_", b"=", b",", b";", b"|", b"#", b"%", b"&", b"\xc2\xb2", b"\xff", b"\x1b[0m", b"\r\n", b" \n", b"a ", b"0 "),
    *(b"a=", b"a:", b"a.", b"a/", b"0:", b"0.", b"0-", b"[0]", b"[a]", b"(a)", b'"a":', b'{"a":', b"[[", b'"\\"'),
    *(b'File "', b'  File "a", line 1, in a\n', b"Traceback (most recent call last):\n", b"Error: ", b"2026-01-01 ", b"00:00:00 "),
    *(b"2026-01-01T00:00:00", b"[rank0]: ", b"rank 0 ", b"step 1 ", b"loss: 1 ", b"NVRM: ", b"Xid (PCI:0000:00:00): ", b"[ 0.0] "),
    *(b"Jan  1 00:00:00 host ", b"kernel: ", b"Thread 0x0 (active): \n", b"Process 1: ", b"#0  0x0 in a () from b\n", b"srun: error: "),
)
NUM_BEGINNINGS = 12  # of lines of real files, each of which a run follows
FOLLOWING = (b"a", b"0", b" ", b"[", b'"', b".", b"0:", b"a ", b"a=")  # behind them


def slowest(name: str) -> tuple[str, float]:
    """Which run took the longest for its size, in words, and CPU seconds per MB. Raises what the collector raises, with the run as a note."""
    collector = plugins.load("collectors", name)
    what, s_per_mb = max(((what, _s_per_mb(collector, what, data)) for what, data in _inputs(collector, SIZE)), key=lambda one: one[1])
    longer = next(data for other, data in _inputs(collector, LONGER * SIZE) if other == what)
    return what, max(s_per_mb, _s_per_mb(collector, f"{what}, {LONGER} times as long", longer))


def _s_per_mb(collector: ModuleType, what: str, data: bytes) -> float:
    try:
        return keep(collector, data, patience=ENDLESS) / (len(data) / MB)
    except Exception as error:
        error.add_note(what)
        raise


def _inputs(collector: ModuleType, size: int) -> Iterator[tuple[str, bytes]]:
    """Each run alone, behind a file that the collector claims, and behind (and as) the beginnings of the lines of such files."""
    real = seeds(collector)
    before = real[0] if real else b""
    for run in RUNS:
        long = run * (size // len(run))
        yield f"{run!r} alone", long
        yield f"{run!r} behind a file", before + b"\n" + long
    for beginning in _beginnings(real):
        yield f"{beginning!r} again and again", before + b"\n" + beginning * (size // len(beginning))
        yield f"{beginning!r} on every line", before + b"\n" + (beginning + b"\n") * (size // (len(beginning) + 1))
        for run in FOLLOWING:
            yield f"{run!r} behind {beginning!r}", before + b"\n" + beginning + run * (size // len(run))


def _beginnings(real: list[bytes]) -> list[bytes]:
    """Of lines that differ in more than their numbers, spread over all that there are."""
    found: dict[bytes, bytes] = {}
    for data in real:
        for line in data.split(b"\n"):
            cut = line[: 8 + len(line) * 2 // 3][:60]
            if cut.strip():
                found.setdefault(re.sub(rb"\d+", b"0", cut), cut)
    kinds = list(found.values())
    return kinds[:: max(1, len(kinds) // NUM_BEGINNINGS)][:NUM_BEGINNINGS]
