"""Rows of recognised lines: repeats are folded into the first, and what a kind of line may add is bounded, so memory stays flat."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final

from collectors._log_prefix import Line
from collectors._log_signatures import Sighting

__all__ = ["Rows"]

MAX_TEXT = 1000  # characters of a message that are kept
MAX_OF_KIND = 16  # different messages of one kind, rank, host and process that are kept apart; the others count to the last of them
MAX_ROWS = 200_000
_OF_OTHERS: Final = ("elastic_", "slurm_", "k8s_", "rendezvous_")  # a launcher or scheduler speaks: the file's name is not its rank
_STEP: Final = re.compile(r"(?i)(?<![\w])(?:global[_ ])?(?:step|iteration|iter)s?\s{0,3}[:=#]?\s{0,9}#?(?P<step>[0-9]{1,15})\b(?!\.[0-9])")
_SAMPLES: Final = re.compile(
    r"(?i)(?<![\w])samples?(?:[_ ]?ids?)?['\"]?\s{0,3}[:=#]?\s{0,3}[\[({]?\s?(?P<ids>['\"]?[\w.:/-]{0,60}[0-9][\w.:/-]{0,60}['\"]?"
    r"(?:\s?,\s?['\"]?[\w.:/-]{0,60}[0-9][\w.:/-]{0,60}['\"]?){0,200})"
)

# Words before it that make it a number of samples, as Megatron's "consumed samples: 355467264", and not the name of one.
_COUNTED: Final = re.compile(r"(?i)(?:consumed|processed|total|number of|num|skipped|seen|trained|remaining|dropped)[\s_]{0,3}$")
_PER_SECOND: Final = re.compile(r"(?i)^/\s?s(?:ec)?")


class Rows:
    """`log_events` of one file, in the order of their first lines."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._last_of: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._num_of: Counter[tuple[Any, ...]] = Counter()
        self._steps_of: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._of_tasks: list[dict[str, Any]] = []  # rows whose rank is only the number of their task
        self._of_groups: list[dict[str, Any]] = []  # rows whose rank is that of a process group, the global one in the default group alone
        self.num_dropped = 0

    def add(self, line: Line, sighting: Sighting, *, exception: str | None = None, frames: list[str] | None = None) -> dict[str, Any]:
        """Add one sighting: what the prefix says is kept unless the sighting's own fields say it better. Gives the row it counts to."""
        fields = {name: value for name, value in sighting.fields.items() if value is not None}
        kind = (sighting.signature, *(fields.get(name, getattr(line, name)) for name in ("rank", "host", "pid")))
        if self._num_of[kind] >= MAX_OF_KIND:
            self._last_of[kind]["num_folded"] += 1
            return self._last_of[kind]
        text = fields.get("message", line.text).strip()[:MAX_TEXT]
        key = (*kind, line.group_rank, fields.get("exit_code"), fields.get("is_retried"), text)  # the last try says what those before said
        if (same := self._rows.get(key)) is not None:
            same["num_folded"] += 1
            return same
        row: dict[str, Any] = {
            "record": f"L{line.number}",
            "rank": line.rank,
            "group_rank": line.group_rank,
            "host": line.host,
            "pid": line.pid,
            "logged_at": line.at,
            "logged_at_local": line.local,
            "level": line.level,
            "signature": sighting.signature,
            "exception": exception,
            "frames": frames,
            "step": _step(text) if not sighting.signature.startswith("slurm_") else None,  # a step of Slurm is a part of a job
            "sample_ids": _samples(text) if sighting.signature != "train_progress" else None,
            "num_folded": 1,
        }
        if line.local:
            fields.pop("logged_at_local", None)
        row |= fields | {"message": text}
        if len(self._rows) >= MAX_ROWS:
            self.num_dropped += 1
            return row
        if line.is_of_task and "rank" not in fields:
            self._of_tasks.append(row)
        if line.is_of_group and "rank" not in fields:
            self._of_groups.append(row)
        self._rows[key] = self._last_of[kind] = row
        self._num_of[kind] += 1
        return row

    def count_step(self, line: Line, step: int | None) -> None:
        """One more finished step: the first of each writer is a row, the others only count to it."""
        writer = (line.rank, line.host)
        if (same := self._steps_of.get(writer)) is not None:
            same["num_folded"] += 1
        else:
            self._steps_of[writer] = self.add(line, Sighting("train_progress", {"step": step}))

    def knows_writer(self, rank: int | None, host: str | None) -> bool:
        """Whether steps of this writer have a row, so that further ones only count."""
        return (rank, host) in self._steps_of

    def count_steps(self, rank: int | None, host: str | None, num: int) -> None:
        """Further steps of a writer that is known, some of them at once."""
        self._steps_of[rank, host]["num_folded"] += num

    @property
    def kinds(self) -> list[tuple[Any, ...]]:
        """Signature, rank, host and pid of each row, once for each sighting."""
        return [key[:4] for key, row in self._rows.items() for _ in range(row["num_folded"])]

    def is_full(self, signature: str, *whose: object) -> bool:
        """Whether further lines of this kind (rank, host, pid) only count to the last row of it, whatever they say."""
        return self._num_of[(signature, *whose)] >= MAX_OF_KIND

    def fold(self, signature: str, *whose: object, num: int) -> None:
        """Further lines of a kind that is full, some of them at once."""
        self._last_of[(signature, *whose)]["num_folded"] += num

    def __len__(self) -> int:
        return len(self._rows)

    def drop(self, row: Mapping[str, Any]) -> None:
        """Take back a row just added, when a later line turns out to say it better."""
        for key, known in list(self._rows.items())[-1:]:
            if known is row:
                del self._rows[key]

    def forget_tasks(self) -> None:
        """The tasks turned out to be no ranks: what was read before that was known loses the rank that it had of them."""
        for row in self._of_tasks:
            row["rank"] = None

    def finish(self, rank_said: int | None) -> list[dict[str, Any]]:
        """All rows. Processes whose rank another line of the file tells get it; what no line gives a rank gets that of the file's name."""
        rows = list(self._rows.values())
        self._tell_groups(rows, rank_said)
        self._complete(rows, "pid", "rank")
        ranks = {row["rank"] for row in rows} - {None}
        for row in rows:
            if row["rank"] is None and rank_said is not None and ranks <= {rank_said} and not row["signature"].startswith(_OF_OTHERS):
                row["rank"] = rank_said
        self._complete(rows, "rank", "host")
        return _merged(sorted(rows, key=lambda row: int(row["record"][1:])))

    def _tell_groups(self, rows: list[dict[str, Any]], rank_said: int | None) -> None:
        """A rank that a process group calls its own is no global one where the file's name says another, or another line shows the two to differ.
        No rank is below its rank in a group, which lists its ranks in their order: such a name counts something else."""
        inside = {row["rank"] for row in self._of_groups}
        own = {id(row) for row in self._of_groups}
        others = {row["rank"] for row in rows if id(row) not in own} - {None}
        is_named = rank_said is not None and others <= {rank_said} and all(rank <= rank_said for rank in inside)
        if inside and (is_named or any(row["rank"] is not None and row["group_rank"] not in {None, row["rank"]} for row in rows)):
            for row in self._of_groups:
                row["rank"], row["group_rank"] = rank_said if is_named else None, row["rank"]

    @staticmethod
    def _complete(rows: list[dict[str, Any]], by: str, wanted: str) -> None:
        """Fill in what a row leaves open where all rows of the same `by` that tell it agree."""
        told: dict[Any, set[Any]] = defaultdict(set)
        for row in rows:
            if row[by] is not None and row[wanted] is not None:
                told[row[by]].add(row[wanted])
        for row in rows:
            if row[wanted] is None and len(known := told.get(row[by], set())) == 1:
                row[wanted] = next(iter(known))


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per end of a process, however often the launcher repeats it (a line at once, a block at its own end)."""
    kept: list[dict[str, Any]] = []
    ends: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["pid"] is None or not row["signature"].startswith(("elastic_", "process_signal")):
            kept.append(row)
            continue
        key = tuple(row.get(name) for name in ("signature", "rank", "pid", "signal"))
        if key not in ends:
            kept.append(row)
            ends[key] = row
            continue
        first = ends[key]
        first["num_folded"] += row["num_folded"]
        for name, value in row.items():
            if first.get(name) is None:
                first[name] = value
    return kept


def _step(text: str) -> int | None:
    found = _STEP.search(text)
    return int(found["step"]) if found else None


def _samples(text: str) -> list[str] | None:
    named = (m for m in _SAMPLES.finditer(text) if not _COUNTED.search(text[: m.start()][-20:]) and not _PER_SECOND.search(m["ids"]))
    found = next(named, None)
    return [part.strip(" '\"").rstrip(".:") for part in found["ids"].split(",")] if found else None
