"""Draws docs/wait_graph.svg: who waits for whom in the shipped case data/cases/lock_hang.

1. The case is read, and its wait graph is the one the analyses use: full arrows. 2. gloo records no send or recv, so a rank without an
unfinished call that its stack shows in a recv gets a broken arrow to the other member of its pipeline group (from the rank map). 3. The
root, red, is what `rca diagnose` names. Run by docs/generate.py; `python docs/picture.py` prints the picture.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rca.analyses._stack_views import main_views, seen
from rca.analyses._waits import build_waits
from rca.building import build
from rca.case import Case
from rca.judge import judge
from rca.roster import roster
from rca.sources import inventory

CASE = Path(__file__).resolve().parent.parent / "data" / "cases" / "lock_hang"

COLUMNS = ("host-a", "host-b", "host-d", "host-c")  # in this order no arrow crosses another
MARGIN, BOX_WIDTH, GAP = 20, 140, 104
TOP, BOX_HEIGHT, ROWS = 66, 224, (64, 176)  # ROWS: where a host's ranks stand below the top of its box
WIDTH, HEIGHT = 2 * MARGIN + len(COLUMNS) * BOX_WIDTH + (len(COLUMNS) - 1) * GAP, TOP + BOX_HEIGHT + 44
RADIUS = 21
INSET = 36  # of a circle's centre from its box's left edge: leaves room for a label beside a vertical arrow

# Greys and a red that read on white and on #0d1117 alike; node text stands on its own fill.
LINE, FAINT, ROOT, NODE, TEXT_ON_NODE, TEXT_ON_ROOT = "#6e7781", "#8b949e", "#cf222e", "#eaeef2", "#1f2328", "#ffffff"


@dataclass(frozen=True)
class Graph:
    """Ranks with their hosts, arrows with what the waiting rank waits in, and the root."""

    hosts: dict[str, list[int]]
    recorded: dict[tuple[int, int], str]  # (waiting, awaited) -> call, from the recorder
    shown: dict[tuple[int, int], str]  # the same from the stack and the rank map
    roots: tuple[int, ...]


def read_graph(folder: Path = CASE) -> Graph:
    """The wait graph of a case."""
    with tempfile.TemporaryDirectory() as spool:
        target = Path(spool) / "case.duckdb"
        build(inventory(folder, Path(spool) / "archives"), target)
        case = Case.open(target)
        try:
            return _graph(case)
        finally:
            case.close()


def _graph(case: Case) -> Graph:
    waits = case.derive(build_waits)
    who = roster(case)
    recorded = {
        (rank, other): f"{re.split('[:?]', call.group_id)[0]} {call.op} #{call.seq}"
        for rank, call in waits.first.items()
        for other in waits.ways_out(rank)
    }
    stages = case.table("ranks").filter(pl.col("pp").is_not_null()).select("rank", "dp", "tp").collect().rows()
    place = {rank: (dp, tp) for rank, dp, tp in stages}
    shown = {}
    for rank, views in case.derive(main_views).items():
        if rank not in waits.first and seen(views)[-1].wait_kind == "p2p":
            (other,) = (r for r in place if r != rank and place[r] == place[rank])
            shown[rank, other] = "recv"
    hosts: dict[str, list[int]] = {}
    for rank, host in sorted(who.hosts.items()):
        hosts.setdefault(host, []).append(rank)
    return Graph(hosts, recorded, shown, judge(case).verdict.ranks)


def draw(graph: Graph) -> str:
    """The picture as SVG: a box for each host, a circle for each rank, an arrow to whom it waits for."""
    at = {}
    parts = []
    for number, host in enumerate(COLUMNS):
        left = MARGIN + number * (BOX_WIDTH + GAP)
        parts.append(f'<rect x="{left}" y="{TOP}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="none" stroke="{FAINT}"/>')
        parts.append(_text(left + 10, TOP + 20, host, size=14, anchor="start"))
        at |= {rank: (left + INSET, TOP + row) for rank, row in zip(graph.hosts[host], ROWS, strict=True)}
    for (rank, other), label in sorted(graph.recorded.items()):
        parts += _arrow(at[rank], at[other], label, is_broken=False)
    for (rank, other), label in sorted(graph.shown.items()):
        parts += _arrow(at[rank], at[other], label, is_broken=True)
    for rank, (x, y) in sorted(at.items()):
        fill, colour = (ROOT, TEXT_ON_ROOT) if rank in graph.roots else (NODE, TEXT_ON_NODE)
        parts.append(f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="{fill}" stroke="{LINE}" stroke-width="1.5"/>')
        parts.append(_text(x, y + 6, str(rank), size=17, colour=colour, weight="bold"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">',
            "<title>Who waits for whom in data/cases/lock_hang: seven ranks wait, the red one waits for nobody</title>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0 L10 5 L0 10 z" fill="{LINE}"/></marker></defs>',
            _text(WIDTH // 2, 26, "Who waits for whom in data/cases/lock_hang", size=17, weight="bold"),
            _text(WIDTH // 2, 50, "an arrow leads from a rank to the rank it waits for; the red rank waits for nobody", size=14),
            *parts,
            *_key(),
            "</svg>\n",
        ]
    )


def _key() -> list[str]:
    y, second = HEIGHT - 18, MARGIN + 260
    return [
        _line((MARGIN, y), (MARGIN + 44, y), is_broken=False),
        _text(MARGIN + 54, y + 5, "from the flight recorder", size=13, anchor="start"),
        _line((second, y), (second + 44, y), is_broken=True),
        _text(second + 54, y + 5, "from the stack and the rank map (gloo records no send or recv)", size=13, anchor="start"),
    ]


def _arrow(start: tuple[int, int], end: tuple[int, int], label: str, *, is_broken: bool) -> list[str]:
    """An arrow between two circles, its label in the gap between two boxes, or beside it within a box."""
    (x1, y1), (x2, y2) = start, end
    gap = RADIUS + 3
    what, _, number = label.partition(" #")
    number = f"#{number}" if number else ""
    if y1 == y2:
        side = 1 if x2 > x1 else -1
        middle = min(x1, x2) - INSET + BOX_WIDTH + GAP // 2
        words = [_text(middle, y1 - 9, what, size=13), *([_text(middle, y1 + 19, number, size=13)] if number else [])]
        return [_line((x1 + side * gap, y1), (x2 - side * gap, y2), is_broken=is_broken), *words]
    side = 1 if y2 > y1 else -1
    middle = (y1 + y2) // 2
    words = [_text(x1 + 9, middle - 3, what, size=13, anchor="start"), _text(x1 + 9, middle + 14, number, size=13, anchor="start")]
    return [_line((x1, y1 + side * gap), (x2, y2 - side * gap), is_broken=is_broken), *words]


def _line(start: tuple[int, int], end: tuple[int, int], *, is_broken: bool) -> str:
    dash = ' stroke-dasharray="6 4"' if is_broken else ""
    return f'<path d="M{start[0]} {start[1]} L{end[0]} {end[1]}" stroke="{LINE}" stroke-width="2"{dash} marker-end="url(#head)"/>'


def _text(x: int, y: int, text: str, *, size: int, colour: str = LINE, anchor: str = "middle", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'


def picture() -> str:
    """The picture of the shipped case."""
    return draw(read_graph())


if __name__ == "__main__":
    sys.stdout.write(picture())
