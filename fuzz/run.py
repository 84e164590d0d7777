"""Fuzzes every collector, one after the other, then tries wrong values and long runs on each: `python fuzz/run.py [COLLECTOR...] [--seconds N]`.

What an input breaks is tried again without the fuzzer, made small, and left in fuzz/out/COLLECTOR-*; what was learned of a collector stays
in fuzz/out/corpus and is where the next run starts. Ends with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _long_runs import slowest
from _minimise import minimised, place_of, what_breaks
from _promise import S_PER_MB
from _seeds import MAX_BYTES, seeds, words
from _wrong_values import wrong_values

from rca import plugins

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
SECONDS = 60
MEMORY = Path("/dev/shm")  # thousands of files are written
NICE = 10  # it runs for many minutes beside other work
OPTIONS = (f"-max_len={4 * MAX_BYTES}", "-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=0")


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz, tell what broke, and how many inputs were tried."""
    known = plugins.names("collectors")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("collectors", nargs="*", metavar="COLLECTOR", help="which to fuzz; all where none is named")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"for each collector ({SECONDS})")
    args = parser.parse_args(argv)
    if strange := sorted({*args.collectors} - {*known}):
        parser.error(f"no collector {', '.join(strange)}: choose from {', '.join(known)}")
    os.nice(NICE)
    broken = 0
    with tempfile.TemporaryDirectory(prefix="firstfault-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        for name in args.collectors or known:
            broken += _fuzz(name, args.seconds) + _values(name) + _runs(name)
    _say(f"{broken} of the promises are broken" if broken else "all promises were kept")
    return 1 if broken else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fuzz(name: str, seconds: int) -> int:
    """How many findings (0 or 1: the first ends the round)."""
    collector = plugins.load("collectors", name)
    corpus, given, inputs = OUT / "corpus" / name, OUT / "seeds" / name, seeds(collector)
    for folder in (corpus, given):
        folder.mkdir(parents=True, exist_ok=True)
    for old in (*given.iterdir(), *OUT.glob(f"{name}-*")):
        old.unlink()
    for number, data in enumerate(inputs):
        (given / f"{number:03d}").write_bytes(data)
    listed = OUT / "seeds" / f"{name}.dict"
    listed.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in words(collector, inputs)))
    command = [sys.executable, str(HERE / "one.py"), name, *OPTIONS, f"-max_total_time={seconds}", f"-dict={listed}"]
    done = subprocess.run(
        [*command, f"-artifact_prefix={OUT / name}-", str(corpus), str(given)],
        capture_output=True, text=True, errors="replace", env={**os.environ, "PYTHONPATH": str(HERE.parent)}, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    tried = next((line.split()[-1] for line in said.splitlines() if "number_of_executed_units" in line), "?")
    _say(f"{name}: {tried} inputs from {len(inputs)} seeds in {seconds} s")
    left = sorted(OUT.glob(f"{name}-*"))
    if done.returncode and not left:
        _say(said[-4000:])
        return 1
    return sum(_tell(name, path) for path in left)


def _tell(name: str, path: Path) -> int:
    """Says what an input breaks, and leaves it as small as it gets; 0 where it breaks nothing without the fuzzer."""
    data = path.read_bytes()
    why = what_breaks(name, data)
    if why is None:
        _say(f"  {path} ({len(data)} bytes) breaks nothing without the fuzzer: too slow for it alone, or its own fault")
        return 0
    small = minimised(name, data, why)
    path.write_bytes(small)
    _say(f"  BROKEN by {path} ({len(small)} bytes): {why}")
    return 1


def _values(name: str) -> int:
    """How many kinds of findings; one input of each is kept."""
    kinds: dict[str, bytes] = {}
    for data, error in wrong_values(plugins.load("collectors", name)):
        kinds.setdefault(place_of(error), data)
    for number, (why, data) in enumerate(kinds.items()):
        path = OUT / f"{name}-value-{number}"
        path.write_bytes(data)
        _say(f"  BROKEN by {path} ({len(data)} bytes): {why}")
    return len(kinds)


def _runs(name: str) -> int:
    try:
        what, s_per_mb = slowest(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        _say(f"  BROKEN by a long run of {error.__notes__[0]}: {type(error).__name__}: {error}")
        return 1
    _say(f"{name}: slowest long run {s_per_mb:.2f} s per MB ({what})")
    return int(s_per_mb > S_PER_MB)


if __name__ == "__main__":
    sys.exit(main())
