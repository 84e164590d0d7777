"""What a replay's groups computed, as evidence: `rca.replay/1`, one file for each run of a group."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rca.probes._replay_order import RunOptions
from rca.replay import DOUBLE_RUN, references
from rca.sources import WORKSPACE

__all__ = ["Running", "fill_in_expected", "iso", "record", "write_json"]

RECORD_VERSION: Final = "rca.replay/1"
LAST_WORDS: Final = 300  # characters of a failed group's log that its record keeps


@dataclass
class Running:
    """A group that was started."""

    phase: str
    number: int
    members: Sequence[int]
    folder: Path
    agents: list[subprocess.Popen[bytes]]
    began_at: datetime
    deadline: float


def record(group: Running, plan: Mapping[str, Any], out: Path, options: RunOptions, *, timed_out: bool) -> int:
    """Write what the group left, a file for each repeat; how many are whole."""
    ended = datetime.now(UTC)
    codes = [agent.returncode for agent in group.agents]
    lines = [_lines(group.folder / f"place_{place}.jsonl") for place in range(len(group.members))]
    whole = 0
    for repeat in range(plan["repeats"]):
        hosts = []
        for place, index in enumerate(group.members):
            steps = [
                {"step": step, "fingerprint": told, "expected": None, "outcome": None}
                for step, told in sorted(lines[place].get(repeat, {}).items())
            ]
            missing = len(steps) < options.steps + 1
            hosts.append(
                {"host": plan["hosts"][index], "index": index, "place": place, "outcome": "missing" if missing else None, "steps": steps}
            )
        is_whole = all(host["outcome"] is None for host in hosts)
        whole += is_whole
        why = None if is_whole else "timed out" if timed_out else f"ended with {codes}: {_last_words(group.folder / 'log')}"
        document = {
            "schema_version": RECORD_VERSION, "replay_id": plan["replay_id"], "phase": group.phase, "group": group.number, "repeat": repeat,
            "outcome": None if is_whole else "missing", "why": why, "started_at": iso(group.began_at), "ended_at": iso(ended), "hosts": hosts,
            "plan": {key: plan[key] for key in ("mode", "num_hosts", "pp", "k", "m", "n", "repeats")},
        }  # fmt: skip
        write_json(out / f"{group.phase}-{group.number}-r{repeat}.json", document)
    return whole


def _lines(path: Path) -> dict[int, dict[int, str]]:
    """repeat -> step -> fingerprint of one host; a torn last line is left out."""
    found: dict[int, dict[int, str]] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                found.setdefault(told["repeat"], {})[told["step"]] = told["fingerprint"]
    return found


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if re.search(r"(Error|exitcode|Signal)", line)]
    return lines[-1].strip()[-LAST_WORDS:] if lines else "nothing was said"


def fill_in_expected(out: Path) -> None:
    """Compare all groups, and write into each record what its bits should be."""
    documents = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*-r*.json"))}
    rows = [
        {
            "phase": document["phase"],
            "group_number": document["group"],
            "repeat": document["repeat"],
            "host": host["host"],
            "place": host["place"],
            **step,
        }
        for document in documents.values()
        for host in document["hosts"]
        for step in host["steps"]
    ]
    expected = references(rows)
    for path, document in documents.items():
        outcomes = set()
        for host in document["hosts"]:
            for step in host["steps"]:
                wanted = expected.get((document["phase"] == DOUBLE_RUN, host["place"], step["step"]))
                step["expected"] = wanted
                step["outcome"] = None if wanted is None else "equal" if step["fingerprint"] == wanted else "differs"
                outcomes.add(step["outcome"])
        if "differs" in outcomes:
            document["outcome"] = "differs"
        elif document["outcome"] is None and outcomes == {"equal"}:
            document["outcome"] = "equal"
        write_json(path, document)


def write_json(path: Path, value: object) -> None:
    """The whole document or nothing."""
    part = path.with_name(f"{path.name}{WORKSPACE}{os.getpid()}")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
