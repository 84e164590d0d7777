"""A tour through evidence, for `rca inspect`: what each file is and holds, which ranks each kind covers, and what stays open without the rest.

Files that differ only in numbers, read alike and without a complaint, are one line: 16,384 dumps are one kind of file, not 16,384 lines.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from apps.text import columns

__all__ = ["tour"]

MAIN: Final = ("collectives", "dumps", "stacks", "steps", "rank_progress", "log_events", "kernel_events", "host_logs")  # what answers most

FOLD_FROM: Final = 4  # files alike that become one line
WIDTH: Final = 110
MAX_WHY: Final = 300  # letters of a reason
MAX_SPANS: Final = 6  # runs of ranks that are spelled out
_NUMBER: Final = re.compile(r"\d+")
COVERS: Final = {  # what the rows of a table are called, and where they come from
    "dumps": ("recorder dumps", "TORCH_FR_DUMP_TEMP_FILE of every rank, or `rca capture`"),
    "collectives": ("recorded calls", "recorder dumps with entries"),
    "stacks": ("stacks", "`py-spy dump` of every rank in three rounds, or `rca capture`"),
    "steps": (
        "step timings",
        "times per rank and step: torchtitan's structured logs, a step table (rank, step, step_s), a profiler's trace",
    ),
    "ops": ("timed operations", "an operation table (rank, step, stage, dp, microbatch, op, start, duration), a profiler's trace"),
    "rank_progress": ("numbers of each rank", "loss, gradient norm or checksum that each rank writes for itself"),
    "log_events": ("log lines", "stdout and stderr of every rank and launcher"),
    "progress": ("printed steps", "the trainer's own log"),
    "kernel_events": ("kernel records", "`journalctl -k -o json` or `dmesg` of every host"),
    "host_logs": ("kernel logs", "`journalctl -k -o json` or `dmesg` of every host"),
    "configs": ("versions and settings", "`rca capture`, pip freeze, nvidia-smi -q of every host"),
    "replays": ("replays", "`rca replay`"),
    "rank_stats": ("reported statistics", "NVRx straggler scores, Megatron timers of all ranks"),
    "trainer_events": ("events of trainers", "structured logs of the trainer or launcher"),
    "node_events": ("reports of health services", "`kubectl get events -A -o json`, NVSentinel or gpud exports"),
    "node_states": ("states of nodes", "`scontrol show node -o`, `kubectl get nodes -o json`"),
    "job_records": ("accounting", "`sacct -DP -o ALL`"),
    "nccl_ras": ("NCCL RAS reports", "`ncclras -f json` twice, some seconds apart"),
    "evidence": ("any file", "recorder dumps, timings, logs"),
    "transfers": ("timed transfers", "a table of src_rank, dst_rank, transfer_s, bytes"),
    "nccl_calls": ("NCCL Inspector calls", "the Inspector plugin's files of every process"),
    "host_samples": ("host metrics", "dynolog's log of every host over the job's time"),
    "gpu_samples": ("GPU metrics", "the DCGM exporter's range query over the job's time"),
    "checkpoints": ("checkpoints", "the checkpoint folder (its shards are not read whole)"),
    "checkpoint_files": ("checkpoints", "the checkpoint folder (its shards are not read whole)"),
    "planned_windows": ("planned windows", "the calendar of maintenance (.ics, CSV, JSON) or `scontrol show reservation`"),
    "rank_states": ("states of ranks", "xpu_timer's metrics"),
    "ranks": ("processes of ranks", "a rank map (rank, host, gpu, dp, tp, pp), or `rca capture`"),
    "stack_frames": ("stacks", "`py-spy dump` of every rank in three rounds, or `rca capture`"),
    "group_status": ("header of recorder dumps", "recorder dumps"),
    "memberships": ("groups", "recorder dumps or a rank map"),
}


def tour(name: str, document: Mapping[str, Any], coverage: Mapping[str, Any], *, every_file: bool = False) -> list[str]:
    """Lines for people of an `rca.inspect/1` document. `coverage` as in `rca.diagnosis/1`; `every_file`: nothing is folded."""
    files = document["files"]
    read = [f for f in files if f["collector"]]
    kinds = sorted({kind for f in read for kind in f["collector"].split(",")})
    lines = [f"{name}: {_count(len(files), 'file')}, {len(read):,} read by {_count(len(kinds), 'collector')}", ""]
    rows = [row for group in _groups(read, every_file=every_file) for row in [_row(group)]]
    if rows:
        lines += [*columns(("file", "collector", "ranks", "when (UTC, or local as marked)", "rows"), rows), ""]
    lines += _complaints(files, every_file=every_file)
    return lines + _covered(document, coverage) + _open(document["open"], every=every_file)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' if number != 1 else ''}"


def _groups(files: Iterable[Mapping[str, Any]], *, every_file: bool) -> list[list[Mapping[str, Any]]]:
    """Files that are one line: alike but for the numbers in their paths, or the same file again."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for f in files:
        alike[(_NUMBER.sub("#", f["path"]), f["collector"], bool(f["copy_of"]))].append(f)
    groups = [
        part for group in alike.values() for part in ([group] if len(group) >= FOLD_FROM and not every_file else [[f] for f in group])
    ]
    return sorted(groups, key=lambda group: group[0]["path"])


def _row(group: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str, str]:
    totals: dict[str, int] = defaultdict(int)
    for f in group:
        for table, number in f["rows"].items():
            totals[table] += number
    what = ", ".join(f"{number:,} {table}" for table, number in sorted(totals.items(), key=lambda item: (-item[1], item[0]))) or "-"
    if group[0]["copy_of"]:
        what = f"copy of {group[0]['copy_of']}" if len(group) == 1 else "copies of other files"
    ranks = sorted({rank for f in group for rank in f["ranks"]})
    name = group[0]["path"] if len(group) == 1 else f"{_pattern([f['path'] for f in group])} ({len(group):,} files)"
    return name, group[0]["collector"].replace(",", ", "), runs(ranks) or "-", _span(group), what


def _pattern(paths: Sequence[str]) -> str:
    """The paths as one, what differs between braces: rank_{0-7}.log."""
    numbers = list(zip(*(_NUMBER.findall(path) for path in paths), strict=True))
    shown = iter(values[0] if len(set(values)) == 1 else f"{{{min(values, key=int)}-{max(values, key=int)}}}" for values in numbers)
    return _NUMBER.sub(lambda _: next(shown), paths[0])


def runs(numbers: Sequence[int]) -> str:
    """Sorted numbers as runs: 0-7,9."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in found[:MAX_SPANS]]
    return ",".join([*shown, *(["..."] if len(found) > MAX_SPANS else [])])


def _span(group: Sequence[Mapping[str, Any]]) -> str:
    """First and last moment; of the files that tell no zone what they print, marked as local."""
    for first, last, mark in (("first_at", "last_at", ""), ("first_at_local", "last_at_local", " local")):
        begins = [f[first] for f in group if f[first] is not None]
        ends = [f[last] for f in group if f[last] is not None]
        if begins and ends:
            begin, end = _moment(min(begins)), _moment(max(ends))
            if begin == end:
                return begin + mark
            day, _, time = end.rpartition(" ")
            return f"{begin} to {time if day and begin.startswith(day) else end}{mark}"
    return "-"


def _moment(moment: datetime | str) -> str:
    text = f"{moment:%Y-%m-%d %H:%M:%S}" if isinstance(moment, datetime) else moment.replace("T", " ")
    return text.partition(".")[0]


def _complaints(files: Iterable[Mapping[str, Any]], *, every_file: bool) -> list[str]:
    """What could not be read, wholly or in part, with its reason and the nearest guess."""
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for f in files:
        for skip in f["skipped"]:
            path = f["path"] if every_file else _NUMBER.sub("#", f["path"])
            alike[(path, _NUMBER.sub("#", skip["why"]), f["guess"] or "")].append({**f, **skip})
    lines: list[str] = []
    for (_, _, guess), group in sorted(alike.items(), key=lambda item: item[1][0]["path"]):
        one = group[0]
        names = [one["path"]] if len(group) == 1 else [f"{_pattern([f['path'] for f in group])} ({len(group):,} files)"]
        place = f" {one['record']}" if one["record"] and len(group) == 1 else ""
        more = f" ({one['count']:,} records)" if one["count"] > 1 and len(group) == 1 else ""
        text = f"{names[0]}{place}: {one['why']}{more}{f'; {guess}' if guess else ''}"
        lines += textwrap.wrap(
            text[: WIDTH + MAX_WHY + len(guess)], WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    return ["Not read, or not all of it", *lines, ""] if lines else []


def _covered(document: Mapping[str, Any], coverage: Mapping[str, Any]) -> list[str]:
    """Which ranks left which kind of evidence."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for f in document["files"]:
        for table in f["rows"]:
            ranks[table] |= set(f["ranks"])
    everyone = {rank for found in ranks.values() for rank in found}
    size = coverage["world_size"]
    if not everyone and size is None:
        return []
    lines = []
    for table in ("dumps", "stacks", "steps", "rank_progress", "log_events", *(["rank_stats"] if ranks["rank_stats"] else [])):
        missing = coverage["ranks_missing"].get(table, [])
        of = coverage["ranks_with"].get(table, len(ranks[table]))
        told = "none" if not of else f"{of:,} of {size:,}" if size else f"{of:,}"
        lacks = f", without {runs(missing)}" if of and missing else ""
        lines.append((COVERS[table][0], told + lacks))
    return [
        f"Ranks covered ({size:,} in all)" if size else "Ranks covered",
        *(f"  {line}" for line in columns(("evidence", "ranks"), lines)),
        "",
    ]


def _open(questions: Sequence[Mapping[str, Any]], *, every: bool) -> list[str]:
    """The questions that could not be asked, together where the same evidence would open them, what answers most first.

    Unless `every` is asked for, what only special tools write is one line.
    """
    if not questions:
        return ["Every question could be asked."]
    together: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for question in questions:
        together[tuple(question["lacks"])].append(question)
    lines, more = ["Left open by what is missing"], []
    for lacks, group in sorted(together.items(), key=lambda item: (min((_place(table) for table in item[0]), default=-1), item[0])):
        words = " or ".join(dict.fromkeys(_called(table)[0] for table in lacks))
        if lacks and not every and not set(lacks) & {*MAIN}:
            more.append(f"{words} ({', '.join(question['question'] for question in group)})")
            continue
        if lacks:
            bring = "; ".join(dict.fromkeys(_called(table)[1] for table in lacks))
            lines += textwrap.wrap(
                f"no {words}; to bring: {bring}", WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
        for question in group:
            why = "" if lacks else f" ({question['why'][:MAX_WHY]})"
            text = f"{question['question']}: {question['asks']}{why}"
            lines += textwrap.wrap(
                text, WIDTH, initial_indent="    " if lacks else "  ", subsequent_indent="      ", break_on_hyphens=False
            )
    if more:
        text = f"also not there: {', '.join(more)}; `rca inspect --all` says what to bring"
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return lines


def _called(table: str) -> tuple[str, str]:
    """What the rows of a table are called, and what to bring for them."""
    return COVERS.get(table, (table, f"what fills {table} (`rca tables {table}`)"))


def _place(table: str) -> int:
    return MAIN.index(table) if table in MAIN else len(MAIN)
