"""Lines of a trainer that nobody else writes, read with a regular expression of its own: adapters that ship, and those of a site.

`lines.yaml` is a list of adapters; a site's are tried first, and one of the name of a shipped one replaces it. The expressions are those of
Rust's regex crate, which no input can hold up: without lookaround and backreferences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from rca.errors import UsageError

__all__ = ["COLUMNS", "FILE", "UNITS", "Adapter", "parse", "shipped"]

FILE: Final = "lines.yaml"
UNITS: Final[Mapping[str, int]] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second
COLUMNS: Final = ("step_s", "compute_s", "comm_s", "data_s", "checkpoint_s")
_OF_A_LINE: Final = ("rank", "step", "host", "stage", "at", "loss", "grad_norm", "learning_rate", "epoch", "tokens")
_MEASURED: Final = ("loss", "grad_norm", "learning_rate", "tokens")
_TIMES: Final = tuple(f"{column[:-2]}_{unit}" for column in COLUMNS for unit in UNITS)
_FIELDS: Final = ("name", "line", "phases", "columns")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_GROUP: Final = re.compile(r"\(\?P?<([A-Za-z_]\w*)>")
MAX_PATTERN: Final = 4000  # characters
MAX_ADAPTERS: Final = 200


@dataclass(frozen=True)
class Adapter:
    """How a line of one kind is read: expressions with named groups, and which column of `steps` a phase is."""

    name: str
    line: str  # of the whole line
    phases: str = ""  # looked for again and again in the same line: groups `phase` and one of UNITS
    columns: Mapping[str, str] = field(default_factory=dict)  # phase -> column; other phases are left out

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of `line`, in order."""
        return tuple(_GROUP.findall(self.line))

    @property
    def is_long(self) -> bool:
        """Whether a line holds one phase of a step, so that a step is several lines."""
        return "phase" in self.groups


@lru_cache(maxsize=1)
def shipped() -> tuple[Adapter, ...]:
    """The adapters that ship."""
    return parse(resources.files("rca.catalogue").joinpath(FILE).read_text("utf-8"), FILE)


def parse(text: str, file: str) -> tuple[Adapter, ...]:
    """The adapters of a file. Raises UsageError that names the file, the adapter, the field, and what may stand there."""
    import yaml

    try:
        told = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{file}: no YAML ({' '.join(str(error).split())[:300]}). Quote expressions with single quotes.") from None
    if not isinstance(told, list) or not told or len(told) > MAX_ADAPTERS:
        raise UsageError(f"{file}: must be a list of 1 to {MAX_ADAPTERS} adapters, each beginning with `- name: ...`.")
    found: dict[str, Adapter] = {}
    for number, entry in enumerate(told, 1):
        adapter = _adapter(entry, number, file)
        if adapter.name in found:
            raise UsageError(f"{file}, adapter {adapter.name}: two have this name. Rename one.")
        found[adapter.name] = adapter
    return tuple(found.values())


def _adapter(entry: Any, number: int, file: str) -> Adapter:
    name = entry.get("name") if isinstance(entry, dict) else None
    where = f"{file}, adapter {name if isinstance(name, str) and name else number}"

    def wrong(field_: str, why: str) -> UsageError:
        return UsageError(f"{where}, {field_}: {why}. Correct it, or leave the folder out (--site, RCA_SITE).")

    if not isinstance(entry, dict):
        raise wrong("the whole", f"must be a mapping of {', '.join(_FIELDS)}")
    if strange := sorted(str(key) for key in entry if key not in _FIELDS):
        raise wrong(strange[0], f"no such field; allowed are {', '.join(_FIELDS)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong("name", "must be a word of letters, digits, `_`, `-` and `.`")
    line, phases, columns = entry.get("line"), entry.get("phases") or "", entry.get("columns") or {}
    of_line = _checked(line, "line", (*_OF_A_LINE, *_TIMES, "phase", *UNITS), wrong)
    if "step" not in of_line:
        raise wrong("line", "needs a group named step, as in (?P<step>[0-9]{1,9})")
    of_phases = _checked(phases, "phases", ("phase", *UNITS), wrong) if phases else []
    for field_, groups in (("line", of_line), ("phases", of_phases)):
        units = [unit for unit in UNITS if unit in groups]
        if (field_ == "phases" and phases and "phase" not in groups) or ("phase" in groups) != bool(units) or len(units) > 1:
            raise wrong(field_, f"a group named phase goes with exactly one of {', '.join(UNITS)}, the time of that phase in this unit")
    if not isinstance(columns, dict) or not all(isinstance(phase, str) and column in COLUMNS for phase, column in columns.items()):
        raise wrong("columns", f"must map phases, as the line writes them, to {', '.join(COLUMNS)}")
    has_phases = bool(of_phases) or "phase" in of_line
    if has_phases != bool(columns):
        raise wrong(
            "columns", "says which phase is which column" + ("; name at least one phase" if has_phases else "; there is no group phase")
        )
    if not has_phases and not {*_MEASURED, *_TIMES} & set(of_line):
        raise wrong("line", f"measures nothing: it needs one of {', '.join((*_MEASURED, *_TIMES))}, or phase")
    return Adapter(name, str(line), str(phases), dict(columns))


def _checked(pattern: Any, field_: str, allowed: Sequence[str], wrong: Callable[[str, str], UsageError]) -> list[str]:
    """The names of the groups of an expression that is one."""
    import polars as pl

    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise wrong(field_, f"must be a regular expression of at most {MAX_PATTERN} characters, in single quotes")
    groups = _GROUP.findall(pattern)
    if strange := next((group for group in groups if group not in allowed), None):
        raise wrong(field_, f"no group may be called {strange}; allowed are {', '.join(allowed)}")
    if len(set(groups)) != len(groups):
        raise wrong(field_, "a group is named twice")
    try:
        pl.Series([""]).str.extract_groups(pattern)
    except pl.exceptions.PolarsError as error:
        why = " ".join(str(error).split())[-200:]
        raise wrong(field_, f"no regular expression of the kind without lookaround and backreferences ({why})") from None
    return groups
