"""Every picture: a polars frame in, a plotly figure out. Pure; the only place that knows plotly.

Units stand in axis titles, denominators in titles, and colour never stands alone (a mark, a label or the hover text says the same). Paper and
plot are transparent and the greys are of middle strength, so a figure reads on white and on black alike.

plotly takes a subset of HTML in every text (a link among it), and TeX between dollar signs. Whatever comes from evidence therefore passes
`shown`, which leaves plain text of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from apps.plain import one_line
from rca.causes import ATTRIBUTIONS, STAGES

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = [
    "RANK_STATES",
    "event_timeline",
    "interruptions_by_week",
    "lost_time_by_cause",
    "mttr_by_stage",
    "platform_vs_planned",
    "rank_grid",
    "reliability_diagram",
    "shown",
    "stage_timeline",
]

# Okabe and Ito's palette (2008): told apart with any kind of colour blindness.
RED, ORANGE, YELLOW, GREEN, SKY, BLUE, PINK, GREY = "#D55E00", "#E69F00", "#F0E442", "#009E73", "#56B4E9", "#0072B2", "#CC79A7", "#8B949E"
RANK_STATES: Final = (
    "first failing",
    "accused by another finding",
    "waits",
    "not seen",
    "nothing against it",
)  # worst first: pooling keeps it
STATE_COLOURS: Final = (RED, ORANGE, SKY, "#A4ADB6", GREEN)
STATE_MARKS: Final = ("\N{MULTIPLICATION X}", "!", "\N{HORIZONTAL ELLIPSIS}", "?", "")
ATTRIBUTION_COLOURS: Final = dict(zip(ATTRIBUTIONS, (RED, BLUE, GREEN, "#B8C0C8", GREY), strict=True))
KIND_LOOKS: Final = {  # kind of event -> colour, symbol
    "kernel event": (RED, "diamond"),
    "log error": (ORANGE, "x"),
    "log warning": (YELLOW, "triangle-up"),
    "scheduler event": (PINK, "square"),
    "last recorded call": (SKY, "circle"),
}
MAX_CELLS: Final = 2000  # ranks in a grid; beyond it a cell is a host, or several (a single cell would be smaller than a pixel)
MAX_LANES: Final = 30  # hosts in a timeline
LABELLED: Final = 64  # ranks up to which each cell bears its number
WORDED: Final = 16  # ranks up to which it also says whom the rank waits for
MAX_TEXT: Final = 160  # of a hover line or label
FEW: Final = 8  # interruptions of a week up to which the axis counts them one by one
HOUR_S: Final = 3600.0
INK: Final = "#808890"


def shown(text: object, limit: int = MAX_TEXT) -> str:
    """Text as plotly shows it letter by letter: no HTML, no link, no TeX; on one line and not endless."""
    line = one_line(str(text))
    line = line if len(line) <= limit else f"{line[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("$", "&#36;")):
        line = line.replace(character, entity)
    return line


def stage_timeline(stages: pl.DataFrame) -> Figure:
    """One incident's stages as bars over s since the first of them, each with its budget as a frame.

    `stages`: rows of the table `stages` of one incident. A stage that has not ended is drawn as a mark at its beginning.
    """
    rows = stages.filter(pl.col("started_at").is_not_null()).sort(
        pl.col("stage").replace_strict({name: i for i, name in enumerate(STAGES)}, default=len(STAGES)), "started_at"
    )
    begin: Any = rows["started_at"].min()
    figure = _figure(_height(rows["stage"].n_unique()))
    labels, starts, lengths, hovers, colours, budgets = [], [], [], [], [], []
    for row in rows.iter_rows(named=True):
        length = (row["ended_at"] - row["started_at"]).total_seconds() if row["ended_at"] else None
        budget = row["budget_s"]
        labels.append(shown(row["stage"]))
        starts.append((row["started_at"] - begin).total_seconds())
        lengths.append(length)
        budgets.append(budget)
        colours.append(GREY if length is None or budget is None else RED if length > budget else GREEN)
        took = "no end told" if length is None else f"{length:,.0f} s"
        allowed = "no budget" if budget is None else f"{budget:,.0f} s allowed"
        hovers.append(f"{shown(row['stage'])}: {took}, {allowed}<br>from {_utc(row['started_at'])}, told by {shown(row['origin'])}")
    figure.add_bar(
        y=labels, x=budgets, base=starts, orientation="h", name="budget", hoverinfo="skip",
        marker={"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 1.5}}, width=0.86,
    )  # fmt: skip
    figure.add_bar(
        y=labels, x=[n or 0 for n in lengths], base=starts, orientation="h", name="took", marker={"color": colours}, width=0.5,
        text=[("over budget" if c == RED else "") for c in colours], textposition="inside", customdata=hovers,
        hovertemplate="%{customdata}<extra></extra>", showlegend=False,
    )  # fmt: skip
    open_ones = [(label, start, hover) for label, start, hover, n in zip(labels, starts, hovers, lengths, strict=True) if n is None]
    if open_ones:
        figure.add_scatter(
            y=[o[0] for o in open_ones], x=[o[1] for o in open_ones], mode="markers", name="began, no end told",
            marker={"symbol": "line-ns-open", "size": 18, "color": ORANGE, "line": {"width": 3}}, customdata=[o[2] for o in open_ones],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    late = sum(c == RED for c in colours)
    figure.update_layout(title=_title(f"Stages against their budgets: {late} of {rows.height} over"), barmode="overlay")
    figure.update_xaxes(title=f"time since {_utc(begin)}, s", rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def event_timeline(events: pl.DataFrame, *, began_at: datetime | None = None, suspects: Sequence[str] = ()) -> Figure:
    """What hosts and ranks showed first, a lane for each host.

    `events`: `at` (instant), `is_utc` (false: a printed time of no known zone), `lane` (host), `kind` (of KIND_LOOKS), `what`, `count` (lines
    behind the mark). Beyond MAX_LANES hosts those of `suspects` and the ones with the earliest marks are drawn; the title says how many.
    """
    first = events.group_by("lane").agg(pl.col("at").min()).sort("at", "lane")
    lanes = sorted(first["lane"].to_list(), key=lambda lane: lane not in suspects)[:MAX_LANES]
    drawn = events.filter(pl.col("lane").is_in(lanes))
    figure = _figure(_height(len(lanes)))
    for (kind, is_utc), part in sorted(drawn.group_by("kind", "is_utc"), key=lambda pair: str(pair[0])):
        colour, symbol = KIND_LOOKS[str(kind)]
        figure.add_scatter(
            x=part["at"].to_list(), y=[shown(lane) for lane in part["lane"]], mode="markers",
            name=f"{kind}{'' if is_utc else ' (zone not told)'}",
            marker={
                "color": colour, "symbol": symbol if is_utc else f"{symbol}-open", "size": 11,
                "line": {"width": 1.5, "color": INK if is_utc else colour},
            },
            customdata=[
                f"{_utc(at) if is_utc else at.strftime('%Y-%m-%d %H:%M:%S.%f')[:-3] + ' as printed'}<br>{shown(what)}"
                + (f"<br>and {count - 1:,} more of its kind later" if count > 1 else "")
                for at, what, count in part.select("at", "what", "count").iter_rows()
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    if began_at is not None:
        figure.add_vline(x=began_at, line={"color": RED, "dash": "dot", "width": 1.5})
        figure.add_annotation(
            x=began_at, y=1, yref="paper", text="fault", showarrow=False, font={"color": RED}, xanchor="left", yanchor="top", xshift=3
        )
    shown_of = f"{len(lanes)} of {first.height} hosts" if first.height > len(lanes) else f"{first.height} hosts"
    clock = "UTC" if drawn["is_utc"].all() else "as printed, zone not told" if not drawn["is_utc"].any() else "UTC; open marks: as printed"
    figure.update_layout(title=_title(f"First of each kind of event, {shown_of}" + (" (earliest)" if first.height > len(lanes) else "")))
    figure.update_xaxes(title=f"time ({clock})", type="date")
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=[shown(lane) for lane in sorted(lanes, reverse=True)], title="host"
    )
    return figure


def rank_grid(states: pl.DataFrame, links: Sequence[tuple[int, int]] = ()) -> Figure:
    """The state of every rank, hosts as blocks; of more than MAX_CELLS ranks a cell is a host (or several) and shows the worst of its ranks.

    `states`: `rank`, `host` (null = not known), `state` (of RANK_STATES), `says`. `links`: (waiting, awaited) ranks, written where there
    is room. Ranks that a pooled cell hides are for the page to list.
    """
    cells, is_pooled = _cells(states)
    at, width, height = _places(cells)
    z: list[list[int | None]] = [[None] * width for _ in range(height)]
    texts, hovers = [[""] * width for _ in range(height)], [[""] * width for _ in range(height)]
    is_labelled = len(cells) <= LABELLED and not is_pooled
    awaited: dict[int, list[str]] = {}
    for waiting, other in links:
        awaited.setdefault(waiting, []).append(str(other))
    for cell in cells:
        x, y = at[cell["key"]]
        z[y][x] = RANK_STATES.index(cell["state"])
        mark = STATE_MARKS[z[y][x] or 0]
        texts[y][x] = f"{cell['key']}{' ' + mark if mark else ''}" if is_labelled else mark if len(cells) <= 4 * LABELLED else ""
        if cell["key"] in awaited and len(cells) <= WORDED:
            texts[y][x] += f"<br>waits for {', '.join(awaited[cell['key']][:3])}{', ...' * (len(awaited[cell['key']]) > 3)}"
        hovers[y][x] = cell["hover"]
    figure = _figure(max(190, min(330, 62 + 34 * height)))
    gap = 2 if len(cells) <= 4 * LABELLED else 1
    figure.add_heatmap(
        z=z, text=texts, texttemplate="%{text}", customdata=hovers, hovertemplate="%{customdata}<extra></extra>", hoverongaps=False,
        zmin=0, zmax=len(RANK_STATES), colorscale=_steps(STATE_COLOURS), showscale=False, xgap=gap, ygap=gap, textfont={"color": "#1B1F24"},
    )  # fmt: skip
    counts = dict(states.group_by("state").len().iter_rows())
    for state, colour in zip(RANK_STATES, STATE_COLOURS, strict=True):
        if counts.get(state):
            figure.add_scatter(
                x=[None],
                y=[None],
                mode="markers",
                name=f"{state}: {counts[state]:,}",
                marker={"color": colour, "symbol": "square", "size": 12},
            )
    roots = [cell for cell in cells if cell["state"] == RANK_STATES[0]]
    if roots and not is_labelled:  # a mark of a size of its own: a cell among a thousand is a few pixels
        figure.add_scatter(
            x=[at[c["key"]][0] for c in roots], y=[at[c["key"]][1] for c in roots], mode="markers", showlegend=False, hoverinfo="skip",
            marker={"symbol": "circle-open", "size": 22, "color": RED, "line": {"width": 3}},
        )  # fmt: skip
    if len({cell["host"] for cell in cells}) <= 16 and not is_pooled:
        _name_blocks(figure, cells, at)
    total = states.height
    pooled = f"; a cell is {is_pooled}, coloured by its worst rank" if is_pooled else ""
    figure.update_layout(title=_title(f"State of {total:,} rank{'s' if total != 1 else ''}{pooled}"))
    figure.update_xaxes(visible=False, range=[-0.6, width - 0.4], fixedrange=is_labelled)
    figure.update_yaxes(visible=False, range=[height - 0.4, -0.9], fixedrange=is_labelled)
    return figure


def _cells(states: pl.DataFrame) -> tuple[list[dict[str, Any]], str]:
    """Cells of a grid, ranks of a host side by side, and what a cell is when it is not one rank."""
    rows = states.sort("rank").to_dicts()
    if len(rows) <= MAX_CELLS:
        order = {host: i for i, host in enumerate(dict.fromkeys(row["host"] for row in rows))}
        rows.sort(key=lambda row: (order[row["host"]], row["rank"]))
        for row in rows:
            row["key"] = row["rank"]
            row["hover"] = f"rank {row['rank']} on {shown(row['host'] or 'a host not known')}<br>{row['state']}: {shown(row['says'])}"
        return rows, ""
    hosts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        hosts.setdefault(row["host"] or f"ranks {row['rank'] // 8 * 8} to {row['rank'] // 8 * 8 + 7}", []).append(row)
    many = math.ceil(len(hosts) / MAX_CELLS)
    names, cells = list(hosts), []
    for start in range(0, len(names), many):
        members = [row for name in names[start : start + many] for row in hosts[name]]
        worst = min(members, key=lambda row: RANK_STATES.index(row["state"]))
        others = f" and {many - 1} more hosts" if many > 1 else ""
        cells.append(
            {
                "key": names[start], "host": None, "state": worst["state"],
                "hover": f"{shown(names[start])}{others}, {len(members)} ranks<br>rank {worst['rank']} {worst['state']}: {shown(worst['says'])}",
            }
        )  # fmt: skip
    return cells, "a host" if many == 1 else f"{many} hosts"


def _places(cells: Sequence[Mapping[str, Any]]) -> tuple[dict[Any, tuple[int, int]], int, int]:
    """Column and row of every cell, and the size of the grid: blocks of up to 8 in a row, wide rather than high, a gap between hosts."""
    blocks: dict[Any, list[Any]] = {}
    for cell in cells:
        blocks.setdefault(cell["host"], []).append(cell["key"])
    largest = max(map(len, blocks.values()), default=1)
    across = min(8, largest) if len(blocks) > 1 else max(1, math.ceil(math.sqrt(largest * 6)))
    down = math.ceil(largest / across)
    in_a_row = max(1, min(len(blocks), round(math.sqrt(len(blocks) * (down + 1) * 5 / (across + 1)))))
    at: dict[Any, tuple[int, int]] = {}
    for number, members in enumerate(blocks.values()):
        left, top = number % in_a_row * (across + 1), number // in_a_row * (down + 1)
        at |= {key: (left + i % across, top + i // across) for i, key in enumerate(members)}
    return at, in_a_row * (across + 1) - 1, math.ceil(len(blocks) / in_a_row) * (down + 1) - 1


def _name_blocks(figure: Figure, cells: Sequence[Mapping[str, Any]], at: Mapping[Any, tuple[int, int]]) -> None:
    blocks: dict[str | None, list[tuple[int, int]]] = {}
    for cell in cells:
        blocks.setdefault(cell["host"], []).append(at[cell["key"]])
    room = 92 // max(1, len(blocks))  # letters that a block is wide
    for host, places in blocks.items():
        figure.add_annotation(
            x=min(x for x, _ in places) - 0.5, y=min(y for _, y in places) - 0.52, text=shown(host or "host not known", max(6, room)),
            showarrow=False, xanchor="left", yanchor="bottom", font={"size": 12, "color": INK},
        )  # fmt: skip


def mttr_by_stage(frame: pl.DataFrame) -> Figure:
    """Mean time of each stage against its budget.

    `frame`: `stage`, `mean_s` (f64, s), `num` (incidents whose stage is timed), and where known `budget_s` (null = no budget).
    """
    rows = frame.sort(pl.col("stage").replace_strict({name: i for i, name in enumerate(STAGES)}, default=len(STAGES)))
    budgets = rows["budget_s"].to_list() if "budget_s" in rows.columns else [None] * rows.height
    labels = [shown(f"{stage} ({num})") for stage, num in rows.select("stage", "num").iter_rows()]
    means = rows["mean_s"].to_list()
    over = [mean is not None and budget is not None and mean > budget for mean, budget in zip(means, budgets, strict=True)]
    colours = [RED if is_over else GREY if budget is None else GREEN for is_over, budget in zip(over, budgets, strict=True)]
    words = ["" if mean is None else f"{mean:,.0f} s{', over budget' * is_over}" for mean, is_over in zip(means, over, strict=True)]
    figure = _figure(_height(rows.height))
    figure.add_bar(
        y=labels, x=means, orientation="h", marker={"color": colours}, name="mean", showlegend=False,
        hovertemplate="%{y}: %{x:,.0f} s<extra></extra>",
    )  # fmt: skip
    end = 1.35 * max([*filter(None, means), *filter(None, budgets), 1.0])
    figure.add_scatter(  # in a column of their own: beside the bars they would meet the marks of the budgets
        y=labels, x=[end] * len(labels), mode="text", text=words, textposition="middle left", showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    known = [(label, budget) for label, budget in zip(labels, budgets, strict=True) if budget is not None]
    figure.add_scatter(
        y=[label for label, _ in known], x=[budget for _, budget in known], mode="markers", name="budget",
        marker={"symbol": "line-ns-open", "size": 20, "color": INK, "line": {"width": 3}}, hovertemplate="budget %{x:,.0f} s<extra></extra>",
    )  # fmt: skip
    figure.update_layout(title=_title("Mean time of each stage (incidents whose stage is timed in brackets)"))
    figure.update_xaxes(title="mean time, s", range=[0, end])
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def interruptions_by_week(frame: pl.DataFrame) -> Figure:
    """Interruptions of each week by whose they are. `frame`: `week` (2026-W47), `attribution`, `num` (interruptions)."""
    weeks = sorted(frame["week"].unique())
    figure = _figure(280)
    for attribution in _in_order(frame):
        part = dict(frame.filter(pl.col("attribution") == attribution).group_by("week").agg(pl.col("num").sum()).iter_rows())
        figure.add_bar(
            x=[shown(week) for week in weeks], y=[part.get(week, 0) for week in weeks], name=shown(attribution),
            marker={"color": ATTRIBUTION_COLOURS.get(attribution, GREY)}, hovertemplate=f"%{{x}}: %{{y}} {shown(attribution)}<extra></extra>",
        )  # fmt: skip
    total = int(frame["num"].sum())
    figure.update_layout(
        title=_title(f"Interruptions by week: {total:,} in {len(weeks)} week{'s' if len(weeks) != 1 else ''}"), barmode="stack"
    )
    figure.update_xaxes(type="category", title="ISO week in which they began")
    tallest = max((int(frame.filter(pl.col("week") == week)["num"].sum()) for week in weeks), default=0)
    figure.update_yaxes(title="interruptions", rangemode="tozero", dtick=1 if tallest <= FEW else None)  # no halves of one
    return figure


def lost_time_by_cause(frame: pl.DataFrame) -> Figure:
    """GPU hours lost by cause, most first. `frame`: `cause`, `attribution`, `lost_gpu_s` (GPU seconds, null = not known), `num` (incidents)."""
    total = float(frame["lost_gpu_s"].sum() or 0)
    order = (
        frame.group_by("cause").agg(pl.col("lost_gpu_s").sum(), pl.col("num").sum()).sort("lost_gpu_s", "cause", descending=[True, False])
    )
    labels = {cause: shown(f"{cause.replace('_', ' ')} ({num})") for cause, num in order.select("cause", "num").iter_rows()}
    figure = _figure(_height(order.height))
    for attribution in _in_order(frame):
        part = dict(frame.filter(pl.col("attribution") == attribution).group_by("cause").agg(pl.col("lost_gpu_s").sum()).iter_rows())
        figure.add_bar(
            y=[labels[cause] for cause in part], x=[(part[cause] or 0) / HOUR_S for cause in part], orientation="h", name=shown(attribution),
            marker={"color": ATTRIBUTION_COLOURS.get(attribution, GREY)},
            hovertemplate=f"%{{y}}: %{{x:,.1f}} GPU h, {shown(attribution)}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        title=_title(f"GPU time lost by cause: {total / HOUR_S:,.1f} GPU h in all (incidents in brackets)"), barmode="stack"
    )
    figure.update_xaxes(title="lost, GPU h", rangemode="tozero")
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=list(reversed(labels.values())))
    return figure


def platform_vs_planned(frame: pl.DataFrame) -> Figure:
    """Share of interruptions and of lost GPU time by whose they are. `frame`: `attribution`, `num` (interruptions), `lost_gpu_s` (GPU seconds)."""
    num, lost = float(frame["num"].sum()), float(frame["lost_gpu_s"].sum() or 0)
    labels = [f"interruptions<br>(of {num:,.0f})", f"GPU time lost<br>(of {lost / HOUR_S:,.1f} GPU h)"]
    figure = _figure(210)
    for attribution in _in_order(frame):
        part = frame.filter(pl.col("attribution") == attribution)
        shares = [100 * float(part["num"].sum()) / num if num else 0.0, 100 * float(part["lost_gpu_s"].sum() or 0) / lost if lost else 0.0]
        figure.add_bar(
            y=labels, x=shares, orientation="h", name=shown(attribution), marker={"color": ATTRIBUTION_COLOURS.get(attribution, GREY)},
            text=[f"{shown(attribution)} {share:.0f} %" if share >= 8 else "" for share in shares], textposition="inside", insidetextanchor="middle",
            hovertemplate=f"{shown(attribution)}: %{{x:.1f}} % of %{{y}}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(title=_title("Platform, workload or planned"), barmode="stack")
    figure.update_xaxes(title="share, %", range=[0, 100])
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def reliability_diagram(frame: pl.DataFrame) -> Figure:
    """Stated probability against what came true. `frame`: `name` (of a series), `stated` (mean of a bin, 0..1), `right`, `count`, and the interval of
    the share, `low`, `high`; on the diagonal a probability is honest."""
    figure = _figure(420)
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="honest", line={"color": INK, "dash": "dot"}, hoverinfo="skip")
    for number, name in enumerate(frame["name"].unique(maintain_order=True)):
        part = frame.filter(pl.col("name") == name)
        share = (part["right"] / part["count"]).to_list()
        figure.add_scatter(
            x=part["stated"].to_list(), y=share, mode="lines+markers", name=shown(name),
            marker={"color": (BLUE, ORANGE, GREEN, PINK)[number % 4], "symbol": ("circle", "diamond", "square", "x")[number % 4], "size": 9},
            error_y={
                "type": "data", "symmetric": False, "array": [high - y for high, y in zip(part["high"], share, strict=True)],
                "arrayminus": [y - low for low, y in zip(part["low"], share, strict=True)], "thickness": 1,
            },
            customdata=[f"{right:,} of {count:,} right" for right, count in part.select("right", "count").iter_rows()],
            hovertemplate="stated %{x:.3f}, %{customdata}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(title=_title(f"Stated probability against share right: {int(frame['count'].sum()):,} answers"))
    figure.update_xaxes(title="stated probability, mean of a bin", range=[0, 1.02])
    figure.update_yaxes(title="share right, with 95 % interval", range=[0, 1.02])
    return figure


def _in_order(frame: pl.DataFrame) -> list[str]:
    """Attributions of a frame, in the order of the vocabulary."""
    found = frame["attribution"].unique().to_list()
    return sorted(found, key=lambda name: (ATTRIBUTIONS.index(name) if name in ATTRIBUTIONS else len(ATTRIBUTIONS), name))


def _figure(height: int) -> Figure:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    figure.update_layout(
        template="none", height=height, margin={"l": 10, "r": 10, "t": 64, "b": 10}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "size": 13}, legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        bargap=0.25, hoverlabel={"align": "left"}, uniformtext={"minsize": 11, "mode": "hide"}, showlegend=True,
    )  # fmt: skip
    figure.update_xaxes(automargin=True, gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    figure.update_yaxes(automargin=True, gridcolor="rgba(128,128,128,0.15)", zeroline=False)
    return figure


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "x": 0, "xanchor": "left", "xref": "container", "y": 0.98, "yanchor": "top", "font": {"size": 15}}


def _height(rows: int) -> int:
    return 130 + 26 * max(rows, 2)


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale of steps: value i of n has colour i."""
    n = len(colours)
    return [[edge / n, colour] for i, colour in enumerate(colours) for edge in (i, i + 1)]


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
