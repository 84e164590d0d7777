"""Open the incident explorer in a browser: the answer, the ranks, the evidence behind it, and the fleet's reliability.

PATH is a case folder, an archive, a case.duckdb or a fleet folder, several may be named; without PATH the fleet is shown. Served on 127.0.0.1 only:
nothing else can reach it and it asks nothing of the network. From another machine: `ssh -L 8501:127.0.0.1:8501 HOST`. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = ["arguments", "run"]

PORT = 8501
TRIES = 20  # ports that are tried when none was asked for


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca explore [PATH...] [--port N] [--no-browser] [--fleet DIR]`."""
    parser.add_argument("paths", metavar="PATH", nargs="*", help="case folder, archive, case.duckdb or fleet folder")
    parser.add_argument("--port", type=int, metavar="N", help=f"port on 127.0.0.1 (default: {PORT}, or the next free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    parser.add_argument("--fleet", metavar="DIR", help="fleet folder (default: $RCA_FLEET, else $XDG_DATA_HOME/firstfault/fleet)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 when ended, 2 when a path is missing, the port is taken or streamlit is not installed."""
    from importlib.util import find_spec
    from pathlib import Path

    from apps.explorer import ADDRESS, serve
    from apps.places import fleet_folder
    from apps.remote import is_remote
    from apps.text import write
    from rca.errors import UsageError

    if missing := [path for path in args.paths if not is_remote(path) and not Path(path).exists()]:
        raise UsageError(f"{missing[0]}: no such file or folder. Name evidence or a fleet.")
    fleet = fleet_folder(args.fleet)
    if not args.paths and not fleet.is_dir():
        raise UsageError(f"no evidence was named, and there is no fleet at {fleet}. Name a PATH, or a fleet with --fleet.")
    if lacking := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise UsageError(f"the explorer needs {lacking[0]}: pip install 'firstfault[explore]'")
    port, claim = _free_port(ADDRESS, args.port)
    url = f"http://{ADDRESS}:{port}"

    def ready() -> None:
        write([url])
        if not args.no_browser:
            _open(url)

    try:
        with claim, contextlib.suppress(KeyboardInterrupt):
            serve(args.paths, str(fleet), port, ready)
    except SystemExit as ended:  # how streamlit ends where it cannot listen
        if ended.code:
            raise UsageError(
                f"port {port} on {ADDRESS} was taken while the explorer started: start it again, or name one with --port"
            ) from None
    return 0


def _free_port(address: str, asked: int | None) -> tuple[int, socket.socket]:
    """The port asked for, else the first free one, and what keeps other explorers off it until ours listens, seconds later. A taken one is told
    rather than shared."""
    import socket

    from rca.errors import UsageError

    if asked is not None and not 1 <= asked <= 65535:
        raise UsageError(f"--port {asked}: a port is a number from 1 to 65535")
    for port in [asked] if asked is not None else range(PORT, PORT + TRIES):
        claim = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                claim.bind(f"\0rca-explore-{port}")  # a name in memory, that goes with the process
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError:
            claim.close()
            continue
        return port, claim
    tried = f"port {asked} is" if asked is not None else f"ports {PORT} to {PORT + TRIES - 1} are"
    raise UsageError(f"{tried} taken on {address}: name a free one with --port")


def _open(url: str) -> None:
    import webbrowser

    webbrowser.open(url)
