"""The explorer in a real browser: the answer on the first screen, the lines behind a finding, the fleet's figures, and nothing but text.

One server and one browser for all tests (each takes seconds to start); every page has its own log of console errors and requests.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _hostile_case import ATTACK, HOST, hostile_case
from _house import RCA, ROOT, SAMPLE, copy_case, copy_dumps
from _small_fleet import small_fleet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 60_000  # software rendering: a first page takes seconds
SCREEN = {"width": 1400, "height": 900}
HOSTILE = "<img src=x onerror=alert(1)> **case** :red[x]"


@dataclass
class Seen:
    """What a page did besides showing."""

    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)  # requests to any other machine


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("browser")
    return {
        "case": copy_dumps(SAMPLE, root / SAMPLE),
        "logs": copy_case("worker_oom_killed", root / "worker_oom_killed"),
        "hostile": hostile_case(root / HOSTILE),
        "fleet": small_fleet(root / "fleet", host=HOST, summary=ATTACK),
    }


@pytest.fixture(scope="module")
def url(places: dict[str, Path]) -> Iterator[str]:
    """The address of a running `rca explore`; Ctrl-C ends it with 0."""
    command = [*RCA, "explore", "--no-browser", *map(str, places.values())]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(timeout=60)
        assert code == 0
        assert "Traceback" not in server.stderr.read()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        running = player.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def page(browser: Browser, url: str, seen: Seen) -> Iterator[Page]:
    """A fresh page at the first case; whatever went wrong on it fails the test at its end."""
    context = browser.new_context(viewport=SCREEN)  # type: ignore[arg-type]
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    opened.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: seen.errors.append(str(error)))
    opened.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    own = (url, url.replace("http", "ws"), "data:", "blob:")
    opened.on("request", lambda request: None if request.url.startswith(own) else seen.elsewhere.append(request.url))
    opened.goto(url)
    opened.wait_for_selector(".st-key-headline .stText")
    yield opened
    context.close()
    assert seen == Seen()


def pick(page: Page, number: int, headline: str) -> None:
    """Choose evidence in the side bar and wait for its answer."""
    page.get_by_role("combobox", name="Evidence").click()
    page.locator("[role=option]").nth(number).click()
    page.locator(".st-key-headline .stText", has_text=headline).wait_for()


def settled(page: Page) -> None:
    """Wait until no script runs and the pictures are drawn."""
    page.wait_for_selector("[data-testid=stStatusWidget]", state="detached")
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")


def bottom(locator: Any) -> float:
    box = locator.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


def test_first_visit_may_be_the_second_page(browser: Browser, url: str) -> None:
    """The very first request of this server: a bookmark, or a page that was open when the server was started anew."""
    context = browser.new_context(viewport=SCREEN)  # type: ignore[arg-type]
    opened = context.new_page()
    opened.goto(f"{url}/reliability")
    opened.locator(".st-key-headline .stText", has_text="5 interruptions").wait_for(timeout=PATIENCE_MS)
    titles = opened.locator("[data-testid=stSidebarNav] a").all_inner_texts()
    context.close()
    assert [title.strip() for title in titles] == ["Incident", "Reliability"]


def test_first_screen_holds_the_whole_answer(page: Page) -> None:
    headline = page.locator(".st-key-headline .stText")
    assert headline.inner_text().startswith("Rank 3 on host-b ")
    command = page.locator("[data-testid=stCode]", has_text="ssh host-b").first
    for part in (
        headline,
        page.get_by_text("no: concluded from evidence, not reproduced"),
        page.get_by_text("What to do", exact=True),
        command,
    ):
        assert bottom(part) < SCREEN["height"]


def test_ranks_are_drawn_each_with_its_state(page: Page) -> None:
    settled(page)
    grid = page.locator(".js-plotly-plot").first
    assert "State of 8 ranks" in grid.inner_text()
    z = grid.evaluate("(plot) => plot.data[0].z")
    cells = [cell for row in z for cell in row if cell is not None]
    assert sorted(cells) == [0, *[2] * 7]
    assert "first failing: 1" in grid.inner_text()


def test_opening_a_finding_shows_the_very_line_of_the_file(page: Page, places: dict[str, Path]) -> None:
    pick(page, 1, "Rank 4 ")
    lines = (places["logs"] / "kernel" / "host-c.dmesg.log").read_text().split("\n")
    killed = next(number for number, line in enumerate(lines, 1) if "oom-kill:" in line)
    place = page.get_by_text(f"kernel/host-c.dmesg.log L{killed}", exact=True)
    findings = page.get_by_text("what stands in")
    for number in range(findings.count()):
        findings.nth(number).click()
        page.locator(f".st-key-finding_{number + 1} [data-testid=stCode]").first.wait_for()
        if place.count():
            break
    place.first.wait_for()
    box = page.locator("[data-testid=stCode]", has_text=f"> {killed} ").filter(has_text="oom-kill:").first
    shown = box.inner_text()
    for line in lines[killed - 4 : killed + 3]:
        assert line[:400] in shown.replace("\u00a0", " ")


def test_hostile_text_stays_text(page: Page, seen: Seen) -> None:
    pick(page, 2, "Rank 3 ")
    settled(page)
    page.get_by_text("Finding 1: what stands in").click()
    page.locator("[data-testid=stCode]", has_text="onerror").first.wait_for()
    page.locator(".js-plotly-plot").last.hover()
    text = page.locator("body").inner_text()
    assert ATTACK in text
    assert HOST in text
    assert HOSTILE in text
    for selector in ("img[src=x]", "a[href^=javascript]", "a[href*=evil]", ".katex", "main strong", "main em", "iframe"):
        assert page.locator(selector).count() == 0, selector
    assert page.locator(".js-plotly-plot a").count() == 0
    page.get_by_role("combobox", name="Evidence").click()
    page.locator("[role=option]").first.wait_for()
    assert page.locator("[role=option]", has_text=HOSTILE).count() == 1
    assert page.locator("img[src=x]").count() == 0
    assert seen.dialogs == []


def test_second_page_shows_the_figures_of_the_fleet(page: Page) -> None:
    page.locator("[data-testid=stSidebarNav]").get_by_text("Reliability").click()
    page.locator(".st-key-headline .stText", has_text="5 interruptions: 4 failures, 1 planned").wait_for()
    settled(page)
    for words in ("Job hours between failures", "75 h", "Mean time to recover", "790 s"):
        assert page.get_by_text(words).count() >= 1, words
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8")
    counts = page.locator(".js-plotly-plot").first.evaluate("(plot) => plot.data.map((bar) => bar.y.reduce((a, b) => a + b, 0))")
    assert sum(counts) == 5


def test_record_of_the_fleet_shows_its_stages(page: Page) -> None:
    pick(page, 3, ATTACK)
    page.get_by_text("from the first stage to the end of the last: 420 s of 600 s allowed").wait_for()
    assert page.locator("img[src=x]").count() == 0


def test_only_this_machine_is_listened_to(url: str) -> None:
    port = int(url.rpartition(":")[2])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            local, state = row.split()[1], row.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                found.add(local.rpartition(":")[0])
    assert found == {"0100007F"}


def test_a_page_of_another_site_cannot_open_its_socket(url: str) -> None:
    answers = {}
    for origin in (url, "http://evil.invalid"):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        connection.request(
            "GET", "/_stcore/stream",
            headers={
                "Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )  # fmt: skip
        answers[origin] = connection.getresponse().status
        connection.close()
    assert answers == {url: 101, "http://evil.invalid": 403}
