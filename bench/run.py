"""Compares `rca diagnose` with torchfrtrace and with plain unpickling on the same dumps, and its readers of logs with plain ones.

    python bench/run.py [--quick] [--only CASE] [--no-torchfrtrace] [--repeat N]
    python bench/run.py --readers [--quick] [--repeat N]
    python bench/run.py --write-docs

Dumps are written once to bench/out (about 700 MB, and 8 GB of 16,384 ranks, which take a quarter of an hour), logs one
after the other, and removed again. Every
program runs in a process of its own, one after the other, the files being in the page cache. Results go to
bench/out/results.json, beside those of other cases; --write-docs makes docs/benchmarks.md of them and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from _analyses import HEAD as ANALYSES_HEAD
from _analyses import SIZES, Judged, measure_analyses
from _logs import LOGS
from _readers import HEAD as READER_HEAD
from _readers import Reading, measure_log
from _tools import TOOLS, Measurement, measure

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
DOCS = HERE.parent / "docs" / "benchmarks.md"
NAMES = ("tpdp_64", "tpdp_256", "pp4_256", "tpdp_1024", "tpdp_16384")
MAX_TORCHFRTRACE = 2 << 30  # bytes of dumps: ten times as much memory it needs
SIZES_MB = (25, 100)  # of each log: time must grow with the size, memory not at all
QUICK_MB = (20,)
MB = 1e6
INTRODUCTION = """# Benchmarks

`rca diagnose` against torchfrtrace (the analyser that torch ships) and against plain `pickle.load` of the same
files, the floor of any reader in Python. Measured in one run by `make bench` (`.venv/bin/python bench/run.py`);
this page is written from its results by `.venv/bin/python bench/run.py --write-docs`.

Machine: {machine}.

The dumps are simulated by a causal model of who waits for whom, in NCCL style (recorder 2.10, 18 frames a call):
one rank stops before a tensor-parallel call. CPU seconds are user plus system, children included, and are the
figure to compare; the peak is that of all processes of a program together. `rca --fast` is the first answer, `rca` the whole
diagnosis with its case file built from nothing, by the compiled reader where Numba is installed; below it the same by
the plain one. Nothing is compiled or cached for the first time in a measured run. torchfrtrace does not rank what it finds: its first finding counts
as its answer. Unpickling loads one file after the other and answers nothing."""
READERS = """
## Readers of logs

How fast the collectors read kernel and trainer logs, at two sizes: the time grows with the size, the memory does not.
Beside them, in MB per CPU-second, what it costs to look for one word only: line after line in Python, and by `grep -c`.
CPU seconds are those of the reading alone, the least of {repeat} run(s); the peak is that of the whole process, libraries included.
On average {load:.0f} programs wanted a core when the run began: on a busy machine every figure is lower, those of the plain readers, too.
A log without events shows how fast silence is established; in a flood every line tells an event, and few rows come of it."""
ANALYSES = """
## All analyses at once, to 16,384 ranks

A simulated hang of one rank, its tables written directly: 126 calls and some stacks of every rank, steps and numbers of each, logs, a map.
CPU and wall seconds are those of all analyses, without the making of the tables; the peak is that of the whole process, the making included."""
WARM = """
import sys
from pathlib import Path
from collectors.flight_recorder import batch, is_compiled
from rca.types import Source
if is_compiled():
    path = next(Path(sys.argv[1]).iterdir())
    batch().add(Source(path.name, path, path.stat().st_size))
"""
GROWTH = """
## How the cost grows

One program, the same number of calls of every rank."""
HEAD = ("case", "program", "CPU s", "wall s", "peak MB", "ranks", "group", "its answer")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, keep the results."""
    args = _arguments(argv)
    if args.write_docs:
        DOCS.write_text(_page(json.loads((OUT / "results.json").read_text())))
        return 0
    names = [] if args.readers or args.analyses else ["tpdp_64"] if args.quick else [args.only] if args.only else list(NAMES)
    tools = [tool for tool in TOOLS if tool != "torchfrtrace" or not args.no_torchfrtrace]
    results: dict[str, Any] = {"machine": _machine(), "cases": {}}
    if names:
        _warm()
    for name in names:
        results["cases"][name] = _case(name, tools, repeat=args.repeat)
        _keep(results)
    if args.analyses or not (args.only or args.readers):
        results["analyses"] = _analyses(SIZES[:1] if args.quick else SIZES)
        _keep(results)
    if not args.only and not args.analyses:
        results["readers"] = _readers(QUICK_MB if args.quick else SIZES_MB, repeat=args.repeat)
        _keep(results)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 ranks only, and small logs")
    parser.add_argument("--readers", action="store_true", help="the readers of logs only")
    parser.add_argument("--analyses", action="store_true", help="all analyses on simulated tables of 1,024 to 16,384 ranks only")
    parser.add_argument("--only", choices=NAMES, help="this case only")
    parser.add_argument("--no-torchfrtrace", action="store_true", help="leave torchfrtrace out (minutes at 1,024 ranks)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each program; median CPU time counts, of a log's reader the least")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md from the last results")
    return parser.parse_args(argv)


def _case(name: str, tools: Sequence[str], *, repeat: int) -> dict[str, Any]:
    """Prepare the dumps, then measure every program on them."""
    dumps = OUT / name
    OUT.mkdir(exist_ok=True)
    has_numba = find_spec("numba") is not None
    # In a process of its own: a child's peak memory is never below that of the process that started it.
    subprocess.run([sys.executable, str(HERE / "_cases.py"), name, str(dumps)], check=True)
    truth = json.loads(dumps.with_suffix(".truth.json").read_text())["truth"]
    files = list(dumps.iterdir())
    size = sum(file.stat().st_size for file in files)
    sys.stdout.write(f"\n{name}: {len(files)} dumps, {size / MB:.0f} MB; truth: rank {truth['ranks']} did not join ")
    sys.stdout.write(f"{truth['op']} {truth['seq']} of group {truth['group_name']}:{truth['group_desc']}\n")
    rows = []
    for tool in tools if size < MAX_TORCHFRTRACE else [tool for tool in tools if tool != "torchfrtrace"]:
        if tool == "rca, plain reader" and not has_numba:
            continue
        runs = [measure(tool, dumps, OUT / "scratch", truth) for _ in range(repeat)]
        middle = median(run.cpu_s for run in runs)
        rows.append(min(runs, key=lambda run: abs(run.cpu_s - middle)))
        sys.stderr.write(f"{name} {tool}: {rows[-1].cpu_s:.2f} CPU s\n")
    sys.stdout.write("\n".join(_aligned([HEAD, *(_cells(name, row) for row in rows)], range(2, 5))) + "\n")
    return {"num_dumps": len(files), "size_bytes": size, "truth": truth, "runs": [asdict(row) for row in rows]}


def _warm() -> None:
    """One run of each program on small dumps: Python and Numba keep what they compile."""
    name = NAMES[0]
    subprocess.run([sys.executable, str(HERE / "_cases.py"), name, str(OUT / name)], check=True)
    truth = json.loads((OUT / name).with_suffix(".truth.json").read_text())["truth"]
    for tool in ("rca --fast", "rca", "rca, plain reader"):
        measure(tool, OUT / name, OUT / "scratch", truth)
    sys.path.insert(0, str(HERE.parent))
    subprocess.run(
        [sys.executable, "-c", WARM, str(OUT / name)], check=True, cwd=HERE.parent, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    )


def _readers(sizes_mb: Sequence[int], *, repeat: int) -> dict[str, Any]:
    """Write every log in every size and let it be read."""
    OUT.mkdir(exist_ok=True)
    readings, load = [], os.getloadavg()[0]
    for log in LOGS.values():
        for size_mb in sizes_mb:
            readings.append(measure_log(log, size_mb, OUT, repeat=repeat))
            sys.stderr.write(f"{log.name} {size_mb} MB: {readings[-1].cpu_s:.2f} CPU s\n")
    sys.stdout.write("\n".join(_aligned([READER_HEAD, *(reading.cells for reading in readings)], range(1, 8))) + "\n")
    return {"repeat": repeat, "load": load, "readings": [asdict(reading) for reading in readings]}


def _analyses(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Ask all questions of simulated jobs, the smallest first."""
    found = []
    for ranks in sizes:
        found.append(measure_analyses(ranks))
        sys.stderr.write(f"analyses at {ranks:,} ranks: {found[-1].cpu_s:.1f} CPU s\n")
    sys.stdout.write("\n".join(_aligned([ANALYSES_HEAD, *(one.cells for one in found)], range(5))) + "\n")
    return [asdict(one) for one in found]


def _cells(case: str, run: Measurement) -> tuple[str, ...]:
    figures = (f"{run.cpu_s:.2f}", f"{run.wall_s:.2f}", f"{run.peak_bytes / MB:.0f}")
    return (case, run.tool, *figures, run.ranks, run.group, run.answer)


def _aligned(rows: Sequence[Sequence[str]], right: range) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(w) if n in right else cell.ljust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def _keep(results: dict[str, Any]) -> None:
    """Add to the results; cases measured earlier stay where machine and versions are the same."""
    path = OUT / "results.json"
    if path.exists():
        before = json.loads(path.read_text())
        if before["machine"] == results["machine"]:
            results = {**before, **results, "cases": {**before["cases"], **results["cases"]}}
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def _machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0] if models else platform.processor() or "unknown",
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("firstfault", "torch", "polars", "duckdb", "numba")},
    }


def _growth(cases: Mapping[str, Any]) -> list[str]:
    """How the cost of a whole diagnosis grows with the ranks, from the case of one size to the largest."""
    told = {}
    for name in NAMES:
        for run in cases[name]["runs"] if name in cases and name.startswith("tpdp") else ():
            if run["tool"] == "rca" and run.get("build_s"):
                told[cases[name]["num_dumps"]] = run
    if len(told) < 2:
        return []
    least, most = min(told), max(told)
    lines = ["", GROWTH, "", "| ranks | reading and storing, wall s | all analyses, wall s | CPU s of all |", "|---:|---:|---:|---:|"]
    lines += [f"| {n:,} | {run['build_s']:.2f} | {run['diagnose_s']:.2f} | {run['cpu_s']:.2f} |" for n, run in sorted(told.items())]

    def exponent(column: str, low: int) -> str:
        return f"{math.log(told[most][column] / told[low][column]) / math.log(most / low):.2f}"

    low = max(n for n in told if n < most)
    exponents = (
        f"{what} {exponent(column, least)} ({exponent(column, low)})" for what, column in (("CPU", "cpu_s"), ("analyses", "diagnose_s"))
    )
    return [*lines, "", f"Exponent of the ranks, {least:,} to {most:,} (and from {low:,}): {', '.join(exponents)}."]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _page(results: dict[str, Any]) -> str:
    """docs/benchmarks.md."""
    from _cases import CASES

    machine = results["machine"]
    versions = ", ".join(f"{name} {told}" for name, told in machine["versions"].items() if told)
    told = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; Python {machine['python']}, {versions}"
    lines = [INTRODUCTION.format(machine=told)]
    for name in [name for name in NAMES if name in results["cases"]]:
        case = results["cases"][name]
        truth = case["truth"]
        call = f"`{truth['op']}` {truth['seq']} of its {truth['axis']} group"
        lines += [
            "",
            f"## {case['num_dumps']} ranks: {CASES[name].about} ({case['size_bytes'] / MB:.0f} MB)",
            "",
            f"Truth: rank {truth['ranks'][0]} did not join {call}.",
            "",
            "| program | CPU s | wall s | peak MB | ranks | group | its answer |",
            "|---|---:|---:|---:|---|---|---|",
        ]
        lines += ["| " + " | ".join(_cells(name, Measurement(**run))[1:]) + " |" for run in case["runs"]]
    lines += _growth(results["cases"])
    if analyses := results.get("analyses"):
        lines += [ANALYSES, "", f"| {' | '.join(ANALYSES_HEAD)} |", f"|{'---:|' * 5}---|---|"]
        lines += [f"| {' | '.join(Judged(**one).cells)} |" for one in analyses]
    if readers := results.get("readers"):
        lines += [
            READERS.format(repeat=readers["repeat"], load=readers["load"]),
            "",
            f"| {' | '.join(READER_HEAD)} |",
            f"|---{'|---:' * (len(READER_HEAD) - 1)}|",
        ]
        lines += [f"| {' | '.join(Reading(**reading).cells)} |" for reading in readers["readings"]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
