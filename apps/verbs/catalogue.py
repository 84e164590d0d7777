"""Show what is known of an Xid or SXid: every authority's own word, our rule and why, and what it follows from or leads to.

`rca catalogue xid 79` prints one code (`rca catalogue 79` the same), `rca catalogue xid` all of them. Authorities are never merged: where they
differ, all stand there. A site's own files (--site, RCA_SITE; how to write them: docs/site.md) are laid over what is shipped. A number that nobody
describes has the class unknown, which does not mean harmless.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apps.site import option

if TYPE_CHECKING:
    from rca.catalogues import Row

__all__ = ["arguments", "run"]

NAMES = {"xid": "Xid", "sxid": "SXid"}
ABOUT = {
    "xid": ("layer", "origin", "role", "cause", "unused_since_ampere", "meta_gcm_causes"),
    "sxid": ("unit", "layer", "role", "cause", "severity", "recovery"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca catalogue {xid,sxid,CODE} [CODE] [--json] [--site FOLDER]`."""
    parser.add_argument(
        "kind", metavar="{xid,sxid,CODE}", type=str.lower, help="Xid (of a GPU) or SXid (of an NVSwitch); a number is an Xid"
    )
    parser.add_argument("code", metavar="CODE", type=int, nargs="?", help="number; without one all are listed")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.catalogue/1) on stdout")
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, also for a number that nobody describes; 2 for a wrong file of the site."""
    from apps.document import site_document, to_json
    from apps.site import choose
    from apps.text import columns, write
    from rca.catalogues import by_code, site
    from rca.errors import UsageError

    if args.code is None and args.kind.isascii() and args.kind.isdigit():
        args.kind, args.code = "xid", int(args.kind[:9])
    if args.kind not in NAMES:
        raise UsageError(f"{args.kind}: no catalogue has that name. Known are xid and sxid; a number by itself is an Xid.")
    choose(args.site)
    known = by_code(args.kind)
    chosen = site()
    codes = sorted(known) if args.code is None else [args.code]
    if args.json:
        head: dict[str, Any] = {"schema_version": "rca.catalogue/1", "kind": args.kind}
        write(
            [to_json(head | {"codes": [_document(args.kind, code) for code in codes], "site": site_document(chosen) if chosen else None})]
        )
        return 0
    if args.code is None:
        shown = [
            (str(code), known[code]["name"], known[code]["role"], known[code]["cause"] or "-", known[code]["policy"]) for code in codes
        ]
        write(columns(("code", "name", "role", "cause", "our policy"), shown))
    else:
        write(_lines(_document(args.kind, args.code)))
    if chosen is not None:
        write(["", f"Rules of this site counted: {chosen.says}."])
    return 0


def _document(kind: str, code: int) -> dict[str, Any]:
    """All that is known of one code."""
    from rca.catalogues import by_code
    from rca.policies import rule_of

    row, rule = by_code(kind).get(code), rule_of(kind, code)
    base: dict[str, Any] = {"code": code, "name": row["name"] if row else None, "symbol": (row["symbol"] or None) if row else None}
    return {
        **base,
        "class": row["role"] if row else "unknown",
        "about": {column: row[column] or None for column in ABOUT[kind]} if row else {},
        "rule": rule.as_row() if rule else None,
        "means": {o.column: o.means for o in rule.opinions} if rule else {},
        "follows_from": _edges(f"{kind}:{code}", "to", "from"),
        "leads_to": _edges(f"{kind}:{code}", "from", "to"),
        "source": row["source"] if row else None,
    }


def _edges(term: str, here: str, there: str) -> list[dict[str, Any]]:
    """Edges that begin or end at a code; those of any code of its kind where it can be a fault."""
    from rca.catalogues import by_code, rows

    kind, code = term.split(":")
    known = by_code(kind).get(int(code))
    alike = {term, f"{kind}:*"} if known and known["cause"] else {term}
    found = [row for row in rows("xid_edges") if row[here] in alike or row[here].startswith(f"{term}/")]
    return [_edge(row, there) for row in found if row[there] != term]


def _edge(row: Row, there: str) -> dict[str, Any]:
    return {
        "of": row[there],
        "kind": row["kind"],
        "scope": row["scope"],
        "within_s": float(row["window_s"]),
        "early_s": float(row["early_s"] or 0),
        "says": row["says"],
        "source": row["source"],
    }


def _lines(told: Mapping[str, Any]) -> list[str]:
    from apps.text import columns

    kind = "SXid" if "severity" in told["about"] else "Xid"
    if told["rule"] is None:
        return [
            f"{told['code']}: in no catalogue, so its class is unknown. That is not harmless: the record is shown, and accuses nobody by itself.",
            "A site can describe it in its own xid.csv or sxid.csv (--site, RCA_SITE).",
        ]
    rule = told["rule"]
    lines = [f"{kind} {told['code']}: {told['name']}" + (f" ({told['symbol']})" if told["symbol"] else "")]
    lines += [f"  {column.replace('_', ' ')}: {value}" for column, value in told["about"].items() if value]
    lines += ["", f"{'The rule of this site' if rule['is_sites'] else 'Our rule'}: {rule['policy']}: {rule['says']}"]
    lines += [f"  because: {rule['why']}"] if rule["why"] else []
    lines += ["", "Authorities" + (", which differ on whether the GPU stays in use" if rule["differ"] else "")]
    said = [(a["who"], a["column"], a["says"], told["means"][a["column"]] or "-") for a in rule["authorities"]]
    lines += [f"  {line}" for line in columns(("who", "column", "says", "that is"), said)] if said else ["  none says anything"]
    for title, key in (("Follows from", "follows_from"), ("Leads to", "leads_to")):
        if told[key]:
            lines += ["", title, *_edge_lines(told[key])]
    return [*lines, "", f"Source: {told['source']}"]


def _edge_lines(edges: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for edge in edges:
        early = f", or {edge['early_s']:g} s before" if edge["early_s"] else ""
        lines.append(f"  {edge['of']} ({edge['kind']}, {edge['scope']}, within {edge['within_s']:g} s{early}): {edge['says']}")
        lines.append(f"    {edge['source']}")
    return lines
