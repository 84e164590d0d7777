"""`rca explore` and the system's Chromium, for the pages of docs/ that show pictures of the explorer."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 60_000  # software rendering: a first page takes seconds
HEADLINE = ".st-key-headline .stText"  # the first line of every page
SCREEN = {"width": 1400, "height": 900}


@contextlib.contextmanager
def explorer(paths: Sequence[str | Path], cwd: Path) -> Iterator[str]:
    """The address of a running `rca explore` over some evidence; it ends with the block."""
    command = [sys.executable, "-m", "apps.cli", "explore", "--no-browser", *map(str, paths)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            if not address.startswith("http://127.0.0.1:"):
                raise SystemExit(f"rca explore gave no address but {address!r}")
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)


@contextlib.contextmanager
def opened(url: str, *, dark: bool = False) -> Iterator[Page]:
    """A page of the explorer, once its first answer stands."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = browser.new_context(viewport=SCREEN, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.wait_for_selector(HEADLINE)
        yield page
        browser.close()


def settled(page: Page) -> None:
    """Wait until no script runs and the pictures are drawn."""
    page.wait_for_selector("[data-testid=stStatusWidget]", state="detached")
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    page.wait_for_timeout(300)  # the last frame of an animation
