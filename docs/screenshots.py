"""Takes the pictures of docs/explorer.md: `python docs/screenshots.py` (streamlit, plotly, playwright and Chromium installed).

The evidence is shipped or made by the drills from fixed seeds, so the same code gives the same pictures but for fonts and the machine's time zone.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import chromium

from rca.drills._synthetic import Fault, Job, write
from rca.drills._synthetic_fleet import Fleet
from rca.drills._synthetic_fleet import write as write_fleet

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
MAX_BYTES = 200_000
CASES = ("lock_hang", "worker_oom_killed")
LARGE = Job(tp=8, pp=4, dp=32, steps=2)  # 1,024 ranks on 128 hosts
FAULT = Fault("stop", (777,))


def evidence(folder: Path) -> list[str]:
    """Two shipped cases, one of 1,024 ranks, and a fleet, below `folder`; their names."""
    for name in CASES:
        shutil.copytree(ROOT / "data" / "cases" / name, folder / name, ignore=shutil.ignore_patterns("truth.json", "case.duckdb"))
    dumps = folder / "large" / "fr"
    dumps.mkdir(parents=True)
    write(LARGE, FAULT, dumps)
    ranks = [{"rank": r, "host": f"host-{r // 8:03d}", "gpu": r % 8, "local_rank": r % 8} for r in range(LARGE.world_size)]
    (folder / "large" / "topology.json").write_text(json.dumps({"world_size": LARGE.world_size, "ranks": ranks}))
    write_fleet(Fleet(end=datetime(2026, 11, 23, tzinfo=UTC), hosts=512), folder / "fleet")
    return [*CASES, "large", "fleet"]


def pick(page: Page, number: int) -> None:
    """Choose evidence in the side bar and wait for its answer."""
    before = page.locator(chromium.HEADLINE).inner_text()
    page.get_by_role("combobox", name="Evidence").click()
    page.get_by_role("option").nth(number).click()
    page.wait_for_function("([where, before]) => document.querySelector(where)?.innerText !== before", arg=[chromium.HEADLINE, before])


def incident(_: Page) -> None:
    """The first case, as it opens."""


def finding(page: Page) -> None:
    """The line of the kernel log behind a finding."""
    pick(page, 1)
    page.get_by_text("what stands in").first.wait_for()
    places = page.get_by_text("kernel/host-c.dmesg.log L")
    for number in range(page.get_by_text("what stands in").count()):
        opener = page.get_by_text("what stands in").nth(number)
        opener.click()
        page.locator(f".st-key-finding_{number + 1} [data-testid=stCode]").first.wait_for()
        if places.count():
            opener.evaluate("(element) => element.scrollIntoView({block: 'start'})")
            return
        opener.click()
    raise SystemExit("no finding of worker_oom_killed rests on the kernel log any more: choose another picture")


def ranks(page: Page) -> None:
    """A job of 1,024 ranks."""
    pick(page, 2)
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()


def reliability(page: Page) -> None:
    """The fleet."""
    page.locator("[data-testid=stSidebarNav]").get_by_text("Reliability").click()
    page.locator(chromium.HEADLINE, has_text="interruptions").wait_for()


SHOTS: tuple[tuple[Callable[[Any], None], bool], ...] = ((incident, False), (finding, False), (ranks, True), (reliability, False))  # dark?


def main() -> None:
    """Take them all."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        names = evidence(Path(place))
        with chromium.explorer(names, Path(place)) as url:
            for show, dark in SHOTS:
                with chromium.opened(url, dark=dark) as page:
                    show(page)
                    chromium.settled(page)
                    file = PICTURES / f"explorer_{show.__name__}.png"
                    page.screenshot(path=file)
                if file.stat().st_size > MAX_BYTES:
                    raise SystemExit(f"{file}: {file.stat().st_size:,} bytes, more than {MAX_BYTES:,}")


if __name__ == "__main__":
    main()
