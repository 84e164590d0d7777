"""How well are slow-downs of a job found in its step times? Writes the tables of docs/fail_slow.md.

    python docs/fail_slow.py [FOLDER]

FOLDER holds golden series of step times of sound jobs (CSV with a column iteration_time_s: Megatron publishes two); without it only the made-up
series are measured anew, and the rows of the golden ones stay as they are. Nothing is random but for fixed seeds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from rca.analyses._change_points import MIN_SIDE, change_points

PAGE: Final = Path(__file__).with_suffix(".md")
SLOWER: Final = (1.10, 1.12, 1.15, 1.2, 1.3, 1.4, 1.6)
BEFORE: Final = 100  # iterations of a window before the slow-down
WINDOW: Final = 200  # last iterations that are looked at, each time one has ended
WITHIN: Final = 30  # iterations after its beginning, in which a slow-down has to be found
NEAR: Final = 5  # iterations that the place found may lie beside the true one
TIMES: Final = 40  # slow-downs of each size, at places evenly spread over the series


@dataclass(frozen=True)
class Rates:
    """What became of the slow-downs of one size put into one series."""

    tried: int
    delays: tuple[int, ...]  # iterations after its beginning at which each one found was told, this one included

    @property
    def missed(self) -> float:
        """Share that was not found within WITHIN iterations (FNR)."""
        return 1 - len(self.delays) / self.tried


def made_up() -> dict[str, Any]:
    """Series of sound jobs: quiet, noisy, in waves, and with single slow steps."""
    rng = np.random.default_rng(7)
    wave = rng.standard_normal(2000)
    for n in range(1, len(wave)):
        wave[n] = 0.8 * wave[n - 1] + 0.6 * wave[n]
    spikes = np.where(rng.random(2000) < 0.02, rng.uniform(1.5, 15, 2000), 1.0)
    return {
        "noise 1 %": 10 * np.exp(0.01 * rng.standard_normal(2000)),
        "noise 5 %": 10 * np.exp(0.05 * rng.standard_normal(2000)),
        "noise 2 %, one step in fifty up to 15 times": 10 * np.exp(0.02 * rng.standard_normal(2000)) * spikes,
        "noise 3 % in waves": 10 * np.exp(0.03 * wave),
    }


def golden(folder: Path) -> dict[str, Any]:
    """Series of step times of sound jobs, by the name of their file; what is not a number is no step."""
    found = {}
    for path in sorted(folder.glob("megatron_golden_*.csv")):
        head, *lines = path.read_text().splitlines()
        at = head.split(",").index("iteration_time_s")
        cells = [line.split(",")[at] for line in lines if line.count(",") == head.count(",")]
        values = np.array([float(cell) if re.fullmatch(r"[0-9.]+", cell) else np.nan for cell in cells])
        found[path.stem.removeprefix("megatron_golden_")] = values[np.isfinite(values)]
    return found


def alarms(values: Any, *, every: int = 1) -> tuple[int, int]:
    """How often a rise is told in a sound series, looked at after each iteration, and how often it was looked at."""
    looks = range(2 * MIN_SIDE, len(values) + 1, every)
    return sum(bool(_rises(values[max(0, end - WINDOW) : end])) for end in looks), len(looks)


def rates(values: Any, ratio: float, *, times: int = TIMES) -> Rates:
    """Slow-downs of this size put into the series, one at a time."""
    delays = []
    places = np.linspace(BEFORE, len(values) - WITHIN - 1, times).astype(int)
    for at in places.tolist():
        slowed = values[at - BEFORE : at + WITHIN].copy()
        slowed[BEFORE:] *= ratio
        for length in range(1, WITHIN + 1):
            if any(abs(place - BEFORE) <= NEAR for place in _rises(slowed[: BEFORE + length])):
                delays.append(length)
                break
    return Rates(len(places), tuple(delays))


def _rises(values: Any) -> list[int]:
    return [change.index for change in change_points(values) if change.ratio > 1]


def table(series: Mapping[str, Any]) -> Iterator[str]:
    """Rows of Markdown, one a series."""
    for name, values in series.items():
        told, looks = alarms(values)
        cells = [f"{told} of {looks:,}"]
        for ratio in SLOWER:
            found = rates(values, ratio)
            cells.append(f"{found.missed:.1%}, {median(found.delays):.0f}" if found.delays else "100.0%")
        yield f"| {name} | {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    """Write the tables."""
    text = PAGE.read_text()
    parts = {"made_up": made_up()} | ({"golden": golden(Path(arguments[0]))} if arguments else {})
    for name, series in parts.items():
        if not series:
            sys.exit(f"{arguments[0]}: no megatron_golden_*.csv with a column iteration_time_s there; the page is as it was")
        head = f"| series | false alarms | {' | '.join(f'{ratio - 1:.0%}' for ratio in SLOWER)} |\n|{' --- |' * (len(SLOWER) + 2)}\n"
        block = head + "\n".join(table(series)) + "\n"
        text, count = re.subn(
            rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", lambda found, block=block: found[1] + block + found[2], text, flags=re.S
        )
        assert count == 1, name
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
