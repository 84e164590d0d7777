"""What torchfrtrace, the analyser that torch ships, names on the same dumps: of ranks, and in its first finding, which is what a reader sees."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["PROGRAM", "beside", "first_finding"]

PROGRAM = Path(sys.executable).parent / "torchfrtrace"  # not resolved: the scripts stand beside the interpreter of this environment
WAIT_S = 300.0
_NUMBER = re.compile(r"([0-9]+)(?!.*[0-9])")


def beside(folder: Path, truth: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether its first finding names a first failing rank, and how many ranks it names. None where it is not installed or has nothing to read.

    It is given the folder of the dumps with the beginning that their names share, which is all it needs.
    """
    dumps = sorted(path for path in folder.rglob("*") if path.is_file() and path.open("rb").read(1) == b"\x80")
    folders = {path.parent for path in dumps}
    if not PROGRAM.exists() or len(folders) != 1 or len(dumps) < 2:
        return None
    prefix = _NUMBER.split(dumps[0].name)[0]
    done = subprocess.run(
        [str(PROGRAM), str(folders.pop()), "-p", prefix], capture_output=True, text=True, timeout=WAIT_S, check=False
    )  # what it prints goes to both streams, and a finding may come before a failure
    named, _ = first_finding(done.stdout + done.stderr)
    wanted = set(truth["first_failing_ranks"])
    hit, is_exact = bool(set(named) & wanted), bool(wanted) and set(named) == wanted
    return {"has_failed": done.returncode != 0, "named": len(named), "wanted": len(wanted), "hit": hit, "is_exact": is_exact}


def first_finding(text: str) -> tuple[list[int], str]:
    """(ranks, group) of the first finding in what it prints; it ranks nothing."""
    first, _, _ = text.partition("collective stack trace")
    group = re.search(r"^group info: (.*)$", first, re.MULTILINE)
    missing = re.search(r"^missing ranks: \{(.*)\}$", first, re.MULTILINE)
    named = missing.group(1).split(",") if missing else re.findall(r"Culprit rank ([0-9]+)", first)
    return [int(rank) for rank in named], group.group(1) if group else "no finding"
