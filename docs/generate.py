"""Writes what derives from the code: the reference pages, the picture, the worked example of how_it_decides.md.

python docs/generate.py           write them (make docs)
python docs/generate.py --check   write nothing; exit 1 when one is out of date
python docs/generate.py --campaign DIR/campaign.json   take over the results of `rca drill campaign` first
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import accuracy
import picture
import scores

from collectors._stack_labels import ACTIVITIES, WAIT_KINDS
from rca import catalogues, plugins
from rca.building import build
from rca.case import Case
from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS, STAGES
from rca.drills import simulated
from rca.judge import Judgement, judge
from rca.sources import inventory
from rca.tables import DUMP_STATUS, GROUP_KINDS, TABLES
from rca.types import Hypothesis
from rca.weighing import bits, weights

DOCS = Path(__file__).resolve().parent
CASES = DOCS.parent / "data" / "cases"
NOTE = "<!-- Written by docs/generate.py (make docs). Change the code it describes, not this page. -->\n"
REGION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HELP_WIDTH = 100
EXAMPLE = "lock_hang"
EXAMPLE_ROWS = 8


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    parser.add_argument("--campaign", type=Path, metavar="FILE", help="results of `rca drill campaign` to show from now on")
    args = parser.parse_args()
    if args.campaign:
        accuracy.keep(args.campaign)
    os.environ["COLUMNS"] = str(HELP_WIDTH)
    stale = []
    for name, text in pages().items():
        path = DOCS / name
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not args.check:
            path.write_text(text, "utf-8")
    for name in stale:
        sys.stderr.write(f"docs/{name}: {'out of date, run `make docs`' if args.check else 'written'}\n")
    return 1 if stale and args.check else 0


def pages() -> dict[str, str]:
    """Name -> text of every page that is written here."""
    return {
        "tables.md": tables_page(),
        "collectors.md": collectors_page(),
        "analyses.md": analyses_page(),
        "verbs.md": verbs_page(),
        "causes.md": causes_page(),
        "drills.md": drills_page(),
        "accuracy.md": accuracy_page(),
        "wait_graph.svg": picture.picture(),
        "how_it_decides.md": with_regions(DOCS / "how_it_decides.md", {"worked_example": worked_example}),
    }


def plain(text: str) -> str:
    """Text in which no angle bracket outside of back-ticks is taken for HTML."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "\\<") for number, part in enumerate(parts))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(plain(str(cell)).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def page(title: str, introduction: str, parts: Iterable[str]) -> str:
    """A page: title, note, introduction, parts with an empty line between them."""
    return "\n".join([f"# {title}\n", NOTE, f"{introduction.strip()}\n", *parts])


def section(name: str, *parts: str) -> str:
    """A section with its heading."""
    return "\n".join([f"## {name}\n", *(part if part.endswith("\n") else part + "\n" for part in parts)])


def doc(module: ModuleType) -> str:
    """A module's text."""
    return plain((module.__doc__ or "").strip())


def tables_page() -> str:
    """Every table: what one row is, and every column."""
    types = {"Int64": "integer", "Float64": "float", "String": "text", "Boolean": "boolean"}
    types |= {"List(Int64)": "integers", "List(String)": "texts", "Datetime(time_unit='us', time_zone='UTC')": "instant"}
    parts = [table(("table", "one row per"), ((f"[{t.name}](#{t.name})", t.grain) for t in TABLES.values()))]
    for t in TABLES.values():
        rows = ((c.name, types[str(c.dtype)], c.doc) for c in t.columns)
        parts.append(section(t.name, f"One row per {plain(t.grain)}.", table(("column", "type", "means"), rows)))
    introduction = (
        "The tables of a case (`case.duckdb`), as `rca/tables/` declares them. Instants (`_at`) are UTC, durations (`_s`) seconds. "
        "A missing value is null. `evidence_id` and `record` lead from a row to the file and the place in it."
    )
    return page("Tables", introduction, parts)


def collectors_page() -> str:
    """Every reader of a source format."""
    parts = []
    for name in plugins.names("collectors"):
        module = plugins.load("collectors", name)
        gives = ", ".join(f"[{t}](tables.md#{t})" for t in module.EMITS)
        known = f"`claims`: {plain((module.claims.__doc__ or '').strip())}" if module.claims.__doc__ else ""
        parts.append(section(name, doc(module), *([known] if known else []), f"Fills: {gives}."))
    introduction = (
        "One source format per file of `collectors/`. A file is recognised by its content, so names and folders do not matter, whether it is "
        "plain, compressed or in an archive ([evidence](evidence.md)). `rca inspect PATH` says which collector read what. Lines of your own are "
        "read with an adapter of ten lines ([site](site.md))."
    )
    return page("Collectors", introduction, [_formats(), _scores(), _not_read(), *parts])


def _formats() -> str:
    """Every collector with its first sentence."""
    firsts = (
        (f"[{n}](#{n})", plain((plugins.load("collectors", n).__doc__ or "").strip().splitlines()[0])) for n in plugins.names("collectors")
    )
    return table(("collector", "reads"), firsts)


def _scores() -> str:
    """How the readers fare on files with known answers."""
    rows = ((row["kind"], f"{row['files_right']} of {row['files']}", row["result"]) for row in scores.kept())
    told = (
        "Small real files, most of them from public issues and test data, each with what a reader must find in it. A file is right when every value "
        "is. `python docs/scores.py FOLDER` runs them and keeps the result."
    )
    return section("How they score", told, table(("kind of files", "files right", "result"), rows))


def _not_read() -> str:
    """Formats that are told from others, and why they are not read."""
    rows = {row["format"]: row["says"] for row in catalogues.rows("known_formats") if not row["reader"]}
    told = "`rca inspect` names these by their first bytes or telltale words, says why they are not read and what to bring instead."
    return section("Recognised, not read", told, table(("format", "why, and what to bring"), rows.items()))


def analyses_page() -> str:
    """Every question, its method, its signs and what they are worth."""
    parts = []
    for name in plugins.names("rca.analyses"):
        module = plugins.load("rca.analyses", name)
        needs = ", ".join(f"[{t}](tables.md#{t})" for t in module.NEEDS)
        uses = ", ".join(f"[{t}](tables.md#{t})" for t in module.USES)
        tables = f"Needs: {needs}." + (f" Uses where there: {uses}." if uses else "")
        parts.append(section(name, doc(module), tables, table(("sign", "family", "speaks for (bits)", "why"), _signs(name, module))))
    introduction = (
        "One question per file of `rca/analyses/`. A sign that is found speaks for causes with so many bits: each bit doubles the odds. Of "
        "the signs of one family only the strongest counts per cause and set of ranks. `clear` is what it is worth that a question "
        "looked and found nothing. The bits stand in `rca/catalogue/bits.csv`, beside what they were as set by hand (see [unproven](unproven.md))."
    )
    return page("Analyses", introduction, parts)


def _signs(name: str, module: ModuleType) -> list[tuple[str, str, str, str]]:
    why = _reasons()
    rows = []
    for sign in [*module.SIGNS, "clear"]:
        worth = [(cause, gain) for (analysis, s, cause), gain in bits().items() if (analysis, s) == (name, sign)]
        if sign == "clear" and not worth:
            continue
        family = module.SIGNS[sign].family if sign in module.SIGNS else "-"
        minus = "-" if sign in module.SIGNS and module.SIGNS[sign].is_against else ""
        shown = ", ".join(f"{cause} {minus}{gain:g}" for cause, gain in worth) or "nothing: it is shown only"
        reasons = list(dict.fromkeys(why[name, sign, cause] for cause, _ in worth if why[name, sign, cause] != "as above"))
        rows.append((f"`{sign}`", family, shown, "; ".join(reasons[:3])))
    return rows


def _reasons() -> dict[tuple[str, str, str], str]:
    import csv
    from importlib import resources

    text = resources.files("rca.catalogue").joinpath("bits.csv").read_text("utf-8")
    return {(r["analysis"], r["sign"], r["cause"]): r["why"] for r in csv.DictReader(text.splitlines())}


def verbs_page() -> str:
    """Every verb with its help."""
    parts = []
    for name in plugins.names("apps.verbs"):
        module = plugins.load("apps.verbs", name)
        parser = argparse.ArgumentParser(
            prog=f"rca {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(parser)
        codes = (module.run.__doc__ or "").strip().splitlines()[0]
        parts.append(section(name, *(f"```text\n{text.strip()}\n```\n" for text in _helps(parser)), codes))
    introduction = (
        "What `rca VERB --help` prints. A bare folder is enough for every verb: the case file is built when it is missing or out of date."
    )
    return page("Verbs", introduction, parts)


def _helps(parser: argparse.ArgumentParser) -> list[str]:
    """The help of a parser and of its actions."""
    found = [parser.format_help()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [text for name in action.choices for text in _helps(action.choices[name])]
    return found


def causes_page() -> str:
    """The closed vocabularies."""
    rows = ((f"`{c.name}`", c.layer, c.attribution, c.action, f"{c.prior:g}", c.means) for c in CAUSES.values())
    others = {
        "layer": LAYERS, "attribution": ATTRIBUTIONS, "action": ACTIONS, "stage": STAGES, "group kind": GROUP_KINDS, "dump status": DUMP_STATUS,
        "activity of a stack": ACTIVITIES, "what a stack waits for": WAIT_KINDS,
    }  # fmt: skip
    parts = [
        table(("cause", "layer", "attribution", "first action", "prior", "means"), rows),
        section("Other closed vocabularies", table(("of what", "values"), ((name, ", ".join(values)) for name, values in others.items()))),
    ]
    introduction = (
        "What a verdict can name, each cause with its layer, whose it is, the first action, and its share of interruptions before any "
        "evidence (`rca/causes.py` says where the shares come from; they sum to 1). Not every cause can be found yet: one that no sign of "
        "the [analyses](analyses.md) speaks for can only come up among the alternatives."
    )
    return page("Causes", introduction, parts)


def drills_page() -> str:
    """Every fault that can be injected, with its truth."""
    parts = []
    for name in plugins.names("rca.drills"):
        module = plugins.load("rca.drills", name)
        truth = ((key, ", ".join(values)) for key, values in module.TRUTH.items())
        parts.append(section(name, doc(module), f"Story: {module.STORY}.", f"Trap: {module.TRAP}.", table(("truth", "accepted"), truth)))
    kinds = ((f"`{name}`", kind.module, kind.of_class, kind.about) for name, kind in sorted(simulated.KINDS.items()))
    simulation = (
        "Incidents of 8 to 16,384 ranks that `rca drill run KIND --simulated --ranks N --seed N --out DIR` writes and `rca drill campaign` plays: "
        "what every process does and prints, in the wording of several frameworks and launchers, with its truth. How often answers to them are "
        "right: [accuracy](accuracy.md)."
    )
    parts.append(section("Simulated kinds", simulation, table(("kind", "file", "class", "what happens"), kinds)))
    introduction = (
        "Faults that `rca drill run FAULT --live` injects into a small real training job (torch with gloo, on this machine), one per "
        "file of `rca/drills/`. Captures of some are shipped in [data/cases](../data/README.md)."
    )
    return page("Drills", introduction, parts)


def accuracy_page() -> str:
    """How often answers are right, on live drills and on simulated incidents."""
    parts = []
    for heading, text, tables in accuracy.sections():
        parts.append(
            section(heading, text, *(f"### {name}\n\n{table(head, rows) if rows else 'None.'}" for name, (head, rows) in tables.items()))
        )
    return page("Accuracy", accuracy.INTRODUCTION, parts)


def with_regions(path: Path, writers: Mapping[str, Callable[[], str]]) -> str:
    """A page written by hand, with its generated regions renewed."""
    return REGION.sub(lambda found: f"{found[1]}{writers[found[2]]()}{found[3]}", path.read_text("utf-8"))


def worked_example() -> str:
    """The sum behind the verdict of a shipped case: prior, bits of each sign, score, probability."""
    judgement = _judged(CASES / EXAMPLE)
    signs = {f.id: (f.analysis, f.sign) for o in judgement.outcomes for f in o.findings}
    best, *rest = judgement.verdict.hypotheses[:EXAMPLE_ROWS]
    rows = []
    for h in (best, *rest):
        score = _score(h, signs)
        expected = _unsurprised(best) * 2 ** (weights().sharpness * (score - _score(best, signs)))
        if not math.isclose(expected, _unsurprised(h), rel_tol=1e-6):
            raise SystemExit(f"the sum shown for {h.cause} is not what the verdict computes: {expected} against {_unsurprised(h)}")
        prior = CAUSES[h.cause].prior
        gains = ", ".join(f"{bits()[*signs[i], h.cause]:g} (`{signs[i][1]}`)" for i in h.supports)
        who = ", ".join(map(str, h.ranks)) or "nobody"
        rows.append((h.cause, who, f"{prior:g}", f"{math.log2(prior):.2f}", gains or "0", f"{score:.2f}", _share(h.probability)))
    return table(("cause", "ranks", "prior", "log2 prior", "bits", "score", "probability"), rows)


def _share(probability: float) -> str:
    return f"{probability:.4f}" if probability >= 0.0001 else f"{probability:.0e}"


def _unsurprised(hypothesis: Hypothesis) -> float:
    """Its probability without what stays with `unknown` whatever speaks for an answer."""
    is_unknown = (hypothesis.cause, hypothesis.ranks) == ("unknown", ())
    return hypothesis.probability - weights().surprise * is_unknown


def _score(hypothesis: Hypothesis, signs: Mapping[str, tuple[str, str]]) -> float:
    together = max if hypothesis.cause == "unknown" else sum
    return math.log2(CAUSES[hypothesis.cause].prior) + together([bits()[*signs[i], hypothesis.cause] for i in hypothesis.supports] or [0.0])


def _judged(folder: Path) -> Judgement:
    with tempfile.TemporaryDirectory() as spool:
        target = Path(spool) / "case.duckdb"
        build(inventory(folder, Path(spool) / "archives"), target)
        case = Case.open(target)
        try:
            return judge(case)
        finally:
            case.close()


if __name__ == "__main__":
    sys.exit(main())
