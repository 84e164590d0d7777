"""A case in which every text that a page may show tries to be something else than text: log lines, host names, file names."""

from __future__ import annotations

import json
from pathlib import Path

from _house import copy_case

__all__ = ["ATTACK", "HOST", "hostile_case"]

ATTACK = "<img src=x onerror=alert(1)> **bold** [a](javascript:alert(1)) $x$ :red[r] :smile: `c` https://evil.invalid/x"
HOST = "<img src=x onerror=alert(1)>**b**[a](javascript:alert(1))$x$:red[r"  # without a dot: a host is its first label
FILE = "<img src=x onerror=alert(1)> **b** [a](javascript:alert(1)) $x$ rank_3.stderr.log"


def hostile_case(folder: Path) -> Path:
    """The shipped case bad_sample with attacks in its log line, the name of that log and the name of the host concerned."""
    copy_case("bad_sample", folder)
    log = folder / "logs" / "rank_3.stderr.log"
    text = log.read_text("utf-8")
    assert "sample 131: 59 values where 64 are expected" in text
    log.unlink()
    (folder / "logs" / FILE).write_text(
        text.replace("sample 131: 59 values", f"sample 131: {ATTACK} 59 values").replace("[host-b]", ""), "utf-8"
    )
    index, other = folder / "stacks" / "index.json", folder / "logs" / "rank_2.stderr.log"
    index.write_text(index.read_text("utf-8").replace("host-b", HOST), "utf-8")
    other.write_text(other.read_text("utf-8").replace("[host-b]", ""), "utf-8")
    (folder / "logs" / "host-b.agent.log").unlink()  # the host is named nowhere else
    layout = json.loads((folder / "topology.json").read_text())
    for rank in layout["ranks"]:
        if rank["host"] == "host-b":
            rank["host"] = HOST
            rank["gpu"] = f"GPU {ATTACK}"
    (folder / "topology.json").write_text(json.dumps(layout))
    return folder
