"""The incident explorer: pages of apps/pages over the cases that were named. Served to this machine alone, by `rca explore`.

streamlit runs SCRIPT anew at every click; what was read stays on the shelf of the process. Nothing is asked of any other machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apps.look import Look, Shelf

__all__ = ["ADDRESS", "OPTIONS", "SCRIPT", "main", "serve", "show_page"]

ADDRESS: Final = "127.0.0.1"
OPTIONS: Final[dict[str, Any]] = {  # streamlit's settings; given here they beat any file or variable of the user's
    "server.address": ADDRESS,
    "browser.serverAddress": ADDRESS,  # else the allowed origins are looked up on the network
    "server.headless": True,  # no browser and no question of its own
    "server.fileWatcherType": "none",
    "server.runOnSave": False,
    "server.enableCORS": True,
    "server.enableXsrfProtection": True,
    "server.enableStaticServing": False,
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",  # a fault of ours is told on stderr
    "logger.hideWelcomeMessage": True,
    "logger.level": "error",
    "global.developmentMode": False,
}
SCRIPT: Final = Path(__file__).resolve().parent / "pages" / "_main.py"
PROGRESS_S: Final = 0.2  # between two steps of the progress bar


def main(paths: Sequence[str], fleet: str = "") -> None:
    """Draw the page asked for. `paths`: cases and fleets in the order named; `fleet` is the folder used where none is among them."""
    import streamlit as st

    from apps.pages._words import STYLE
    from rca import plugins

    st.set_page_config(page_title="firstfault", layout="wide", initial_sidebar_state="expanded")
    st.html(STYLE)
    pages = {name: plugins.load("apps.pages", name) for name in plugins.names("apps.pages")}
    shown = [
        st.Page(partial(show_page, name, paths, fleet), title=page.TITLE, url_path=name, default=not number)
        for number, (name, page) in enumerate(pages.items())
    ]
    st.navigation(shown).run()


def show_page(name: str, paths: Sequence[str], fleet: str) -> None:
    """One page of apps/pages, over the evidence that its reader picks."""
    import streamlit as st

    from apps.look import is_fleet
    from apps.pages._words import problem
    from rca import plugins
    from rca.errors import RcaError

    page = plugins.load("apps.pages", name)
    fleets = [path for path in paths if is_fleet(Path(path))] or ([fleet] if fleet and Path(fleet).is_dir() else [])
    places = fleets if page.OVER == "fleet" else [*paths, *(path for path in fleets if path not in paths)]
    if not places:
        st.info(EMPTY[page.OVER])
        return
    with st.sidebar:
        number = st.selectbox("Evidence", range(len(places)), format_func=lambda i: _short(places[i], places), key=f"place_{page.OVER}")
        if st.button("Look again", help="Check the evidence for what was added since"):
            _shelf().forget()
    path = places[number or 0]
    try:
        look = _look(path)
    except (RcaError, OSError) as error:
        problem("This evidence cannot be shown. Name a folder, archive or case.duckdb that can be read.", f"{path}: {error}")
        return
    page.render(look)


EMPTY: Final = {
    "case": "No evidence was named. Start the explorer with `rca explore PATH`.",
    "fleet": "No fleet was found. `rca close PATH --fleet DIR` records an incident in one; `rca explore --fleet DIR` shows it.",
}


def _short(path: str, among: Sequence[str]) -> str:
    """The end of a path that tells it from the others."""
    parts = Path(path).parts
    for length in range(1, len(parts) + 1):
        tail = parts[-length:]
        if sum(Path(other).parts[-length:] == tail for other in among) == 1:
            return "/".join(tail)
    return path


def _shelf() -> Shelf:
    import streamlit as st

    from apps.look import Shelf

    @st.cache_resource(show_spinner=False)
    def kept() -> Shelf:
        return Shelf()

    return kept()


def _look(path: str) -> Look:
    """The case of a path; a bar shows how far its reading has come."""
    import time

    import streamlit as st

    place = st.empty()
    last = 0.0

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_S:
            last = time.monotonic()
            place.progress(done / max(total, 1), text=f"Reading the evidence: file {done:,} of {total:,}")

    try:
        return _shelf().look(path, told)
    finally:
        place.empty()


def serve(paths: Sequence[str], fleet: str, port: int, ready: Callable[[], None]) -> None:
    """Serve until a signal ends it. `ready` is called once the port answers."""
    import threading

    from streamlit.web import bootstrap

    options = {**OPTIONS, "server.port": port}
    flags = {name.replace(".", "_"): value for name, value in options.items()}
    bootstrap.load_config_options(flags)
    threading.Thread(target=_when_up, args=(port, ready), daemon=True).start()
    bootstrap.run(str(SCRIPT), is_hello=False, args=[json.dumps({"paths": list(paths), "fleet": fleet})], flag_options=flags)


def _when_up(port: int, ready: Callable[[], None]) -> None:
    import socket
    import time

    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex((ADDRESS, port)) == 0:
                ready()
                return
        time.sleep(0.1)
