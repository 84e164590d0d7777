"""How kernel records are told: names, devices, moments, and what follows from one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from rca.analyses._job_logs import Line
from rca.analyses._kernel_edges import Link
from rca.analyses._kernel_events import Record, waits_for_gpus
from rca.catalogues import site_rows

__all__ = ["counted", "examples", "followers", "hung_words", "named", "on_devices", "when"]

_ACTION: Final = re.compile(r"\bto 0x[0-9a-fA-F]{1,4} \(([^()]{1,60})\)")
WORDS_CHARS: Final = 100  # of a line that are said


def on_devices(roots: Sequence[Record]) -> str:
    gpus = sorted({r.gpu for r in roots if r.gpu})
    what = "switch" if roots[0].kind == "sxid" else "GPU"
    return f" {what}{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}" if gpus else ""


def named(record: Record) -> str:
    """Its name; of a line that only the site's own rules know what the site calls it, and its words."""
    if record.kind in ("xid", "sxid"):
        row = next((row for row in site_rows(record.kind) if row["code"] == str(record.code)), None)
        return f"{record.name} (this site's: {row['name']})" if row else record.name
    for row in site_rows("kernel_lines"):
        if (
            row["kind"] == record.kind
            and any(m in record.line.text for m in row["markers"].split("|"))
            and re.match(row["pattern"], record.line.text)
        ):
            return f"{record.name}{' ' + row['what'] if row['what'] else ''} (this site's line: {record.line.text[:WORDS_CHARS]})"
    return record.name


def when(root: Record) -> str:
    line = root.line
    if line.at is not None:
        return f" at {line.at:%H:%M:%S} UTC"
    if line.local is not None:
        return f", when is not told (its line says {line.local.replace('T', ' ')}, no evidence tells its zone: hosts.json with that of the host does)"
    if line.uptime_s is not None:
        return f", when is not told (its line says {line.uptime_s:.0f} s after a boot that nothing dates: hosts.json with the host's boot places it)"
    return ", when is not told"


def hung_words(hung: Sequence[Record]) -> str:
    """How many tasks of a host hang, and in what: where each waits for the driver of the GPUs, that is said."""
    num = len({r.line.pid for r in hung})
    where = " in the driver of its GPUs" if all(waits_for_gpus(r.kind, r.unit) for r in hung) else ""
    return f"{num} of its tasks {'is' if num == 1 else 'are'} blocked{where}{when(min(hung, key=lambda r: r.at_s))}"


def followers(links: Sequence[tuple[Record, Link]]) -> list[dict[str, Any]]:
    """Kinds of records that follow, in the order of time: on how many GPUs and hosts, why, and who says so."""
    by_name: dict[str, list[tuple[Record, Link]]] = defaultdict(list)
    for record, link in sorted(links, key=lambda told: (told[0].at_s, told[0].order, told[0].name)):
        by_name[record.name].append((record, link))
    found = []
    for name, told in by_name.items():
        edge = told[0][1].edge
        found.append(
            {
                "name": name,
                "num_gpus": len({(r.host, r.gpu) for r, _ in told}),
                "num_hosts": len({r.host for r, _ in told}),
                "because": _demand(told) or told[0][1].says,
                "source": edge.source if edge else "the line itself",
            }
        )
    return found


def _demand(told: Sequence[tuple[Record, Link]]) -> str:
    """What recovery the driver asks for, by the last of its verdicts that names one; "" where none does."""
    asked = [found[1] for record, link in told if link.edge and link.edge.kind == "verdict" and (found := _ACTION.search(record.line.text))]
    return f"the driver asks for: {asked[-1]}" if asked else ""


def counted(num_gpus: int, num_hosts: int) -> str:
    return (f" on {num_gpus} GPUs" + (f" of {num_hosts} hosts" if num_hosts > 1 else "")) if num_gpus > 1 else ""


def examples(links: Sequence[tuple[Record, Link]]) -> list[Line]:
    """Of each kind that follows the first line, in the order of time."""
    first: dict[str, Line] = {}
    for record, _ in links:
        first.setdefault(record.name, record.line)
    return list(first.values())
