"""Which checkpoints the evidence holds, and whether each is whole: descriptions joined with the files that are there. Pure.

A file that nobody copied is not missing: where none of the files that a description names is among the evidence, the checkpoint was not looked at.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from rca.step_names import step_said
from rca.types import Cite, Tables

__all__ = ["DAMAGED", "Problem", "SavedState", "saved_states"]

Status = Literal["whole", "torn", "incomplete", "unmarked", "undescribed", "not_looked"]
DAMAGED: Final = frozenset({"torn", "incomplete"})
ALONE: Final = frozenset({"lightning", "torch_save"})  # one file is the checkpoint: that it is whole shows that the save was finished
_STAGING: Final = re.compile(
    r"(?i)^\.?tmp[-_.]|[-_.](?:tmp|incomplete|partial|unfinished|staging)$|\.tmp[-_.]|checkpoint-tmp"
)  # renamed when done
MAX_NAMED: Final = 3  # files named in a sentence
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Problem:
    """What is wrong with one file, and the row that shows it. `is_absent`: it is not where the others are."""

    file: str
    says: str
    cite: Cite
    is_absent: bool = False


@dataclass(frozen=True)
class SavedState:
    """A checkpoint with all that the evidence says of it."""

    name: str  # its folder below the evidence root
    formats: tuple[str, ...]
    step: int | None
    saved_at: datetime | None
    saved_to: str | None
    status: Status
    is_marked: bool | None
    parts: frozenset[str]
    lacks: tuple[str, ...]  # () also where nothing tells
    problems: tuple[Problem, ...]
    num_files: int  # that are described
    num_unchecked: int  # checksums that were not compared
    cites: tuple[Cite, ...]

    @property
    def is_weights_only(self) -> bool:
        """Nothing but the model is in it: training cannot go on from it as it was."""
        return self.status == "whole" and bool(self.parts) and self.parts <= {"model", "other"}

    @property
    def why(self) -> str:
        """What speaks against going back to it; "" where nothing does."""
        if self.problems:
            named = "; ".join(f"{posixpath.basename(p.file)}: {p.says}" for p in self.problems[:MAX_NAMED])
            more = f" and {len(self.problems) - MAX_NAMED} more" if len(self.problems) > MAX_NAMED else ""
            return f"{'torn' if self.status == 'torn' else 'incomplete'} ({named}{more})"
        return {
            "unmarked": "its save is not marked as finished",
            "undescribed": "nothing here describes which files it has",
            "not_looked": "its files are not among the evidence",
        }.get(self.status, "weights only" if self.is_weights_only else "")

    @property
    def age(self) -> tuple[int, datetime, str]:
        """The newest sorts last."""
        return (self.step if self.step is not None else -1, self.saved_at or _LONG_AGO, self.name)


def saved_states(case: Tables) -> tuple[SavedState, ...]:
    """Every checkpoint that a description, a mark or a shard tells of, the newest first."""
    told, listed = case.table("checkpoints").collect(), case.table("checkpoint_files").collect()
    if not told.height and not listed.height:
        return ()
    there = _there(case)
    rows, files = defaultdict(list), defaultdict(list)
    for row in told.sort("checkpoint", "evidence_id", "record", "format").iter_rows(named=True):
        rows[row["checkpoint"]].append(row)
    for row in listed.sort("checkpoint", "file", "evidence_id", "record").iter_rows(named=True):
        files[row["checkpoint"]].append(row)
    tags = _tags(told.iter_rows(named=True))
    found = [_state(name, rows[name], files[name], there, tags) for name in sorted({*rows, *files} - {None})]
    return tuple(sorted(found, key=lambda state: state.age, reverse=True))


@dataclass(frozen=True)
class _File:
    """A file of the evidence."""

    evidence_id: str
    size: int | None
    sha256: str | None


def _there(case: Tables) -> dict[str, _File]:
    """Every file of the evidence by its path, copies too."""
    known = {
        id_: _File(id_, size, digest)
        for id_, size, digest in case.table("evidence").select("evidence_id", "size_bytes", "sha256").collect().iter_rows()
    }
    paths = [
        *case.table("evidence").select("path", "evidence_id").collect().iter_rows(),
        *case.table("readings").select("path", "evidence_id").collect().iter_rows(),
    ]
    return {path: known[id_] for path, id_ in paths if path is not None and id_ in known}


def _tags(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The step of the newest finished save by the folder that saves lie in, where a tag tells it (DeepSpeed's `latest`)."""
    found: dict[str, int] = {}
    for row in rows:
        if row["format"] == "deepspeed" and row["is_marked"] and row["step"] is not None:
            parent = posixpath.dirname(row["checkpoint"])
            found[parent] = max(found.get(parent, 0), row["step"])
    return found


def _state(
    name: str, rows: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]], there: Mapping[str, _File], tags: Mapping[str, int]
) -> SavedState:
    own = [row for row in files if (file := there.get(row["file"])) is not None and file.evidence_id == row["evidence_id"]]
    described = [row for row in files if not any(row is other for other in own)]
    formats = tuple(sorted({row["format"] for row in rows if row["format"]} or {row["format"] for row in own if row["format"]}))
    step = max((row["step"] for row in rows if row["step"] is not None), default=step_said(name))
    marks = [row["is_marked"] for row in rows if row["is_marked"] is not None]
    is_marked = None if not marks else all(marks)
    tag = tags.get(posixpath.dirname(name))
    if tag is not None and "deepspeed" in formats and step is not None:
        is_marked = step <= tag
    if _STAGING.search(posixpath.basename(name)):
        is_marked = False
    problems = [Problem(row["file"], row["problem"], _cite(row, row["problem"])) for row in own if row["problem"]]
    present = [row for row in described if row["file"] in there]
    problems += [problem for row in present if (problem := _misfit(row, there[row["file"]])) is not None]
    if present:
        problems += [
            Problem(r["file"], "is not among its files here", _cite(r, "named"), True) for r in described if r["file"] not in there
        ]
    problems += _too_few_bytes(rows, described, there)
    parts = frozenset(part for row in (*rows, *files) for part in row["parts"] or ())
    tell = [row["lacks"] for row in rows if row["lacks"] is not None]
    lacks = tuple(part for part in tell[0] if part not in parts) if tell else ()
    status = _status(formats, problems, own, described, is_marked=is_marked, has_present=bool(present))
    return SavedState(
        name=name, formats=formats, step=step, saved_at=max((r["saved_at"] for r in rows if r["saved_at"]), default=None),
        saved_to=next((r["saved_to"] for r in rows if r["saved_to"]), None), status=status, is_marked=is_marked, parts=parts,
        lacks=lacks if status == "whole" else (), problems=tuple(sorted(_distinct(problems), key=lambda p: (p.is_absent, p.file, p.says))),
        num_files=len({r["file"] for r in described}),
        num_unchecked=sum(r["checksum"] is not None and not _is_checked(r, there.get(r["file"])) for r in described),
        cites=tuple(_cite(row, f"{row['format']}: {row['checkpoint']}") for row in (*rows, *own)[:MAX_NAMED]),
    )  # fmt: skip


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    return list({(problem.file, problem.says): problem for problem in problems}.values())


def _status(
    formats: Sequence[str],
    problems: Sequence[Problem],
    own: Sequence[Any],
    described: Sequence[Any],
    *,
    is_marked: bool | None,
    has_present: bool,
) -> Status:
    if any(not problem.is_absent for problem in problems):
        return "torn"
    if is_marked is False:
        return "unmarked"
    if described and not has_present:
        return "not_looked"
    if problems:
        return "incomplete"
    if described:
        return "whole"
    if any(row["file"].endswith(".distcp") for row in own):
        return "unmarked"  # the description is written last
    if not own:
        return "not_looked"
    return "whole" if is_marked or ALONE & set(formats) else "undescribed"


def _misfit(row: Mapping[str, Any], file: _File) -> Problem | None:
    """What does not fit between what a description says of a file and the file."""
    exact, least, size = row["exact_bytes"], row["least_bytes"], file.size
    if size is not None and exact is not None and size != exact:
        says = f"has {size:,} bytes where {exact:,} are said"
    elif size is not None and least is not None and size < least:
        says = f"has {size:,} bytes, and what should be in it needs {least:,}"
    elif _is_checked(row, file) and row["checksum"].lower() != file.sha256:
        says = "its SHA-256 is not the one that is said"
    else:
        return None
    return Problem(row["file"], says, _cite(row, says))


def _is_checked(row: Mapping[str, Any], file: _File | None) -> bool:
    return file is not None and file.sha256 is not None and row["checksum_kind"] == "sha256" and row["checksum"] is not None


def _too_few_bytes(rows: Sequence[Mapping[str, Any]], described: Sequence[Mapping[str, Any]], there: Mapping[str, _File]) -> list[Problem]:
    """Files of an index that tells only the bytes of all: together they must have as many."""
    found = []
    for row in rows:
        names = {r["file"] for r in described if r["evidence_id"] == row["evidence_id"]}
        sizes = [there[name].size for name in names if name in there]
        known = [size for size in sizes if size is not None]
        is_alone = all(r["exact_bytes"] is None and r["least_bytes"] is None for r in described)  # else each file is judged by itself
        if is_alone and row["size_bytes"] is not None and names and len(known) == len(names) and sum(known) < row["size_bytes"]:
            says = f"all its files together have {sum(known):,} bytes, and {row['size_bytes']:,} are said"
            found.append(Problem(row["checkpoint"], says, _cite(row, says)))
    return found


def _cite(row: Mapping[str, Any], text: str) -> Cite:
    return Cite("checkpoint_files" if "file" in row else "checkpoints", row["evidence_id"], "", row["record"], text[:300])
