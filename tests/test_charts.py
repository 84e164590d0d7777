"""Pictures show the right values, with units and denominators, and nothing in a text of theirs is markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from _hostile_case import ATTACK

from apps import charts
from rca.tables import TABLES

AT = datetime(2026, 3, 2, 4, 0, tzinfo=UTC)
MARKUP = re.compile(r"<(?!br>|/?extra>)|\$")  # tags but for our own, and TeX


def states(*rows: tuple[int, str | None, str]) -> pl.DataFrame:
    return pl.DataFrame([{"rank": r, "host": h, "state": s, "says": "why"} for r, h, s in rows], schema_overrides={"host": pl.String})


def texts(figure: Any) -> Iterator[str]:
    """Every string of a figure but for its own settings."""

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from walk(item)
        elif isinstance(value, list):
            for item in value:
                yield from walk(item)

    yield from walk(json.loads(figure.to_json()))


def stages(*rows: tuple[str, float, float | None, float | None]) -> pl.DataFrame:
    return TABLES["stages"].rows(
        [
            {
                "stage": name, "started_at": AT + timedelta(seconds=start), "budget_s": budget, "origin": "hand",
                "ended_at": None if end is None else AT + timedelta(seconds=end),
            }
            for name, start, end, budget in rows
        ]
    )  # fmt: skip


def test_stage_bars_start_and_last_as_told_and_say_which_are_over() -> None:
    figure = charts.stage_timeline(stages(("load", 300, None, 120), ("detect", 0, 90, 60), ("localize", 90, 300, 300)))
    budget, took, open_ones = figure.data
    assert list(took.y) == ["detect", "localize", "load"]
    assert list(took.base) == [0, 90, 300]
    assert list(took.x) == [90, 210, 0]
    assert list(budget.x) == [60, 300, 120]
    assert list(took.text) == ["over budget", "", ""]
    assert list(open_ones.y) == ["load"]
    assert figure.layout.title.text == "Stages against their budgets: 1 of 3 over"
    assert figure.layout.xaxis.title.text.endswith(", s")


def test_grid_shows_the_state_of_each_rank_and_whom_it_waits_for() -> None:
    figure = charts.rank_grid(states((0, "host-a", "waits"), (1, "host-a", "first failing"), (2, "host-b", "nothing against it")), [(0, 1)])
    heat = figure.data[0]
    assert [[cell for cell in row if cell is not None] for row in heat.z] == [[2, 0, 4]]
    assert heat.text[0][0].startswith("0 ")
    assert heat.text[0][0].endswith("waits for 1")
    assert "\N{MULTIPLICATION X}" in heat.text[0][1]
    assert {trace.name for trace in figure.data[1:]} == {"first failing: 1", "waits: 1", "nothing against it: 1"}
    assert {a.text for a in figure.layout.annotations} == {"host-a", "host-b"}


def test_grid_of_many_ranks_pools_hosts_and_keeps_the_one_that_failed() -> None:
    many = states(*((r, f"host-{r // 8}", "first failing" if r == 3001 else "waits") for r in range(4096)))
    figure = charts.rank_grid(many)
    cells = [cell for row in figure.data[0].z for cell in row if cell is not None]
    assert len(cells) == 4096 // 8
    assert cells.count(0) == 1
    circle = next(trace for trace in figure.data[1:] if trace.marker.symbol == "circle-open")
    (place,) = zip(circle.x, circle.y, strict=True)
    assert figure.data[0].z[place[1]][place[0]] == 0
    assert "a cell is a host" in figure.layout.title.text
    assert "rank 3001" in figure.data[0].customdata[place[1]][place[0]]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 100, 1024, 20_000])
def test_every_rank_has_one_cell_of_its_own_or_its_hosts(count: int) -> None:
    for per_host in (1, 8, 72):
        figure = charts.rank_grid(states(*((r, f"host-{r // per_host}", "waits") for r in range(count))))
        cells = [cell for row in figure.data[0].z for cell in row if cell is not None]
        expected = count if count <= charts.MAX_CELLS else min(charts.MAX_CELLS, -(-count // per_host))
        assert expected / 2 <= len(cells) <= expected if count > charts.MAX_CELLS else len(cells) == expected


def events(*rows: tuple[float, str, bool]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"at": AT + timedelta(seconds=s), "is_utc": utc, "lane": lane, "kind": "log error", "what": "rank 0: it broke", "count": 3}
            for s, lane, utc in rows
        ],
        schema_overrides={"at": pl.Datetime("us", "UTC")},
    )


def test_event_lanes_are_hosts_and_printed_times_are_told_from_known_ones() -> None:
    figure = charts.event_timeline(events((0, "host-a", True), (5, "host-b", True), (9, "host-b", False)), began_at=AT)
    assert {(trace.name, len(trace.x), trace.marker.symbol) for trace in figure.data} == {
        ("log error", 2, "x"),
        ("log error (zone not told)", 1, "x-open"),
    }
    assert "open marks: as printed" in figure.layout.xaxis.title.text
    assert "and 2 more of its kind later" in figure.data[0].customdata[0]
    assert len(figure.layout.shapes) == 1


def test_of_many_hosts_the_suspect_and_the_earliest_are_drawn() -> None:
    rows = [(float(i), f"host-{i:03}", True) for i in range(200)]
    figure = charts.event_timeline(events(*rows), suspects=("host-199",))
    drawn = set(figure.data[0].y)
    assert len(drawn) == charts.MAX_LANES
    assert {"host-199", "host-000", "host-028"} <= drawn
    assert "30 of 200 hosts" in figure.layout.title.text


def test_fleet_pictures_add_up() -> None:
    weeks = pl.DataFrame(
        {"week": ["2026-W10", "2026-W11", "2026-W11"], "attribution": ["platform", "planned", "platform"], "num": [2, 1, 3]}
    )
    figure = charts.interruptions_by_week(weeks)
    assert {trace.name: list(trace.y) for trace in figure.data} == {"platform": [2, 3], "planned": [0, 1]}
    assert figure.layout.title.text == "Interruptions by week: 6 in 2 weeks"

    lost = pl.DataFrame(
        {"cause": ["gpu_fault", "bad_sample"], "attribution": ["platform", "workload"], "lost_gpu_s": [7200.0, None], "num": [2, 1]}
    )
    figure = charts.lost_time_by_cause(lost)
    assert {trace.name: (list(trace.y), list(trace.x)) for trace in figure.data} == {
        "platform": (["gpu fault (2)"], [2.0]),
        "workload": (["bad sample (1)"], [0.0]),
    }
    assert "2.0 GPU h in all" in figure.layout.title.text

    whose = pl.DataFrame({"attribution": ["planned", "platform"], "num": [1, 3], "lost_gpu_s": [3600.0, 3600.0]})
    figure = charts.platform_vs_planned(whose)
    assert {trace.name: list(trace.x) for trace in figure.data} == {"platform": [75.0, 50.0], "planned": [25.0, 50.0]}
    assert list(figure.data[0].y) == ["interruptions<br>(of 4)", "GPU time lost<br>(of 2.0 GPU h)"]

    times = pl.DataFrame({"stage": ["localize", "detect"], "mean_s": [200.0, 90.0], "num": [2, 3], "budget_s": [300.0, 60.0]})
    figure = charts.mttr_by_stage(times)
    assert list(figure.data[0].y) == ["detect (3)", "localize (2)"]
    assert list(figure.data[1].text) == ["90 s, over budget", "200 s"]
    assert list(figure.data[2].x) == [60.0, 300.0]


def test_reliability_shows_every_bin_with_its_interval_beside_the_diagonal() -> None:
    bins = [("by hand", 0.5, 6, 10, 0.31, 0.83), ("by hand", 0.9, 19, 20, 0.76, 0.99), ("fitted", 0.8, 8, 10, 0.49, 0.94)]
    figure = charts.reliability_diagram(pl.DataFrame(bins, schema=["name", "stated", "right", "count", "low", "high"], orient="row"))
    diagonal, before, after = figure.data
    assert (list(diagonal.x), list(diagonal.y)) == ([0, 1], [0, 1])
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in (before, after)] == [
        ("by hand", [0.5, 0.9], [0.6, 0.95]),
        ("fitted", [0.8], [0.8]),
    ]
    assert list(before.error_y.array) == pytest.approx([0.23, 0.04])
    assert list(before.error_y.arrayminus) == pytest.approx([0.29, 0.19])
    assert "40 answers" in figure.layout.title.text


def test_nothing_in_a_figure_is_markup() -> None:
    attacked = states((0, ATTACK, "waits"), (1, None, "first failing")).with_columns(pl.lit(ATTACK).alias("says"))
    hit = events((0, ATTACK, True)).with_columns(pl.lit(ATTACK).alias("what"))
    named = pl.DataFrame({"week": [ATTACK], "attribution": [ATTACK], "cause": [ATTACK], "num": [1], "lost_gpu_s": [1.0]})
    timed = pl.DataFrame({"stage": [ATTACK], "mean_s": [1.0], "num": [1], "budget_s": [1.0]})
    figures = [
        charts.rank_grid(attacked),
        charts.event_timeline(hit),
        charts.stage_timeline(stages((ATTACK, 0, 1, 1)).with_columns(pl.lit(ATTACK).alias("origin"))),
        charts.interruptions_by_week(named),
        charts.lost_time_by_cause(named),
        charts.platform_vs_planned(named),
        charts.mttr_by_stage(timed),
    ]
    for figure in figures:
        found = list(texts(figure))
        assert any("&lt;img" in text for text in found)
        assert [text for text in found if MARKUP.search(text)] == []


def test_text_is_one_line_and_not_endless() -> None:
    assert charts.shown("a\nb\x1b[0m") == "a\\nb\\x1b[0m"
    assert len(charts.shown("x" * 10_000)) == charts.MAX_TEXT
