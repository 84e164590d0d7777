"""Scores the readers on labelled cases and keeps the result for docs/collectors.md: `python docs/scores.py FOLDER` (`make scores` only prints it).

FOLDER holds the cases with their answers and a score.py, which runs `rca inspect` on each file and compares rows.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).resolve().with_name("scores.csv")
COMMAND = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "rca"
COLUMNS = ("kind", "files_right", "files", "result")
_LINE = re.compile(
    r"^(?P<kind>\w+): files right (?P<files_right>\d+)/(?P<files>\d+), (?P<result>.+): (?:holds|DOES NOT HOLD)$", re.MULTILINE
)


def main() -> int:
    """Run, keep, and print what was kept."""
    if len(sys.argv) != 2 or not (script := Path(sys.argv[1]) / "score.py").is_file():
        sys.stderr.write(f"{__doc__}\n")
        return 2
    done = subprocess.run([sys.executable, str(script), str(COMMAND)], capture_output=True, text=True, check=False)
    rows = [found.groupdict() for found in _LINE.finditer(done.stdout)]
    if not rows:
        sys.stderr.write(done.stdout + done.stderr)
        return 1
    with KEPT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    sys.stdout.write(KEPT.read_text("utf-8"))
    return 0


def kept() -> list[Mapping[str, str]]:
    """The result of the last run that was kept."""
    with KEPT.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main())
