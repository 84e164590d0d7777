"""The terminal answer: the first line is the answer, then the chain of evidence, what was not seen, what to do, what else it could be."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apps.decision import first_lines, why_parts
from apps.headline import cause_words, condition, headline, percent, ranks_ranges, ranks_words
from apps.plain import one_line
from rca.analyses._words import quoted
from rca.causes import means
from rca.weighing import SLOWING, sign_of

if TYPE_CHECKING:
    from rca.judge import Judgement
    from rca.types import Advice, Cite, Finding, Hypothesis, Outcome

__all__ = [
    "advice_lines",
    "alternative_lines",
    "blind_lines",
    "chain",
    "columns",
    "decision_lines",
    "diagnosis_lines",
    "headline",
    "outcome_lines",
    "percent",
    "unseen_lines",
    "write",
]

WIDTH = 110
MAX_CITE = 220  # of a quoted line with its place: a kernel's or launcher's line is told whole
MAX_EQUAL = 3  # quoted lines of one finding that differ in numbers alone
MAX_SKIPS = 8
MAX_ALTERNATIVES = 4
MAX_SETS = 3  # sets of ranks of one alternative
UNSEEN = {
    "dumps": "recorder dump",
    "stacks": "stack dump",
    "steps": "step timing",
    "log_events": "log",
}  # what the absence of rows is called
NO_ROWS = "no rows in "  # how a question says that no evidence of its kind was brought
ALTERNATIVE_FROM = 0.01  # probability below which an alternative is not worth a line


def write(lines: Iterable[str]) -> None:
    """Print lines to stdout, each on one line whatever evidence it quotes (or a whole document, which is safe as it is)."""
    out = sys.stdout
    encoding = out.encoding or "utf-8"
    for line in lines:
        out.write(one_line(line).encode(encoding, "replace").decode(encoding) + "\n")
    out.flush()


def blind_lines(path: str, num_files: int, kinds: Sequence[str] = (), refused: Sequence[tuple[str, str]] = ()) -> list[str]:
    """What is said where nothing tells of a rank: no verdict, as if somebody had looked. `kinds`: collectors that read something.

    `refused`: files that nobody may or can open, and why: the first of them may be all that was brought.
    """
    if kinds:
        first = f"No evidence of ranks in {path}: {', '.join(kinds)} read something, but nothing in its {num_files:,} files tells what a rank did."
    else:
        first = f"No readable evidence in {path}: nothing in its {num_files:,} files tells what a rank did."
    bring = (
        "recorder dumps, stack dumps, logs and step timings of the ranks; kernel logs, and what schedulers, NCCL and health services say"
    )
    named = [f"  - {name}: {why}" for name, why in refused[:3]]
    own = [] if kinds else ["Lines of a trainer's own kind are read with an adapter of ten lines (docs/site.md)."]
    return [first, *named, f"To bring: {bring}. `rca inspect` says what each file is, and what is missing for which question.", *own]


def diagnosis_lines(judgement: Judgement, skips: Sequence[Mapping[str, Any]], *, is_why_told: bool = False) -> list[str]:
    """The whole answer; `is_why_told`: with all that the decision rests on."""
    verdict = judgement.verdict
    lines = [headline(judgement), condition(judgement), ""]
    lines += _chain(judgement)
    lines += unseen_lines(judgement, skips)
    if judgement.site is not None:
        lines += [*_wrapped(f"Rules of this site counted: {judgement.site.says}.", "", "  "), ""]
    lines += advice_lines(judgement.advice)
    lines += alternative_lines(judgement)
    if verdict.concurrent:
        lines += ["", "A second fault, independent of the first, is among the findings: see the alternatives."]
    return [*lines, *decision_lines(judgement.advice), *_blind_lines(judgement)] if is_why_told else lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False) or [
        first
    ]


def _chain(judgement: Judgement) -> list[str]:
    """Findings as a numbered list, each with the places a person can open."""
    findings = chain(judgement)
    if not findings:
        looked = [o.analysis for o in judgement.outcomes if o.status == "clear"]
        said = f"looked, and found nothing out of the ordinary: {', '.join(looked)}" if looked else "no question could be answered from it"
        lines = _wrapped(said, "  ", "  ")
        return ["Evidence", *lines, ""]
    lines = ["Evidence"]
    alike = Counter(map(_likeness, findings))
    first: dict[tuple[str, ...], tuple[Finding, str]] = {}
    for one in findings:
        first.setdefault(_likeness(one), one)
    for number, (finding, aside) in enumerate(first.values(), 1):
        more = alike[_likeness((finding, aside))] - 1
        others = f" And {more} more like it (--json has all)." if more else ""
        lines += _wrapped(f"{finding.says}{aside}.{others}", f" {number:2}. ", "     ")
        lines += _cited(finding.cites)
    return [*lines, ""]


def _cited(cites: Sequence[Cite]) -> list[str]:
    """The places, each with what stands there; of lines that differ in numbers alone the first few."""
    lines: list[str] = []
    seen: Counter[str] = Counter()
    for cite in cites:
        seen[said := re.sub(r"\d+", "", cite.text)] += 1
        if seen[said] <= MAX_EQUAL:
            lines.append(f"       {quoted(f'{cite.path} {cite.record}: {cite.text}', MAX_CITE)}")
    left = len(cites) - len(lines)
    return [*lines, f"       and {left} more line{'' if left == 1 else 's'} like these (--json)"] if left else lines


def _likeness(told: tuple[Finding, str]) -> tuple[str, ...]:
    """What makes findings one line: the same sign that accuses nobody, in words that differ in numbers and names of groups only."""
    finding, aside = told
    if finding.ranks or finding.hosts:
        return (finding.id, aside)
    return (finding.analysis, finding.sign, re.sub(r"\(ranks?[^)]*\)|\d+", "", finding.says), aside)


def chain(judgement: Judgement) -> list[tuple[Finding, str]]:
    """All findings, those for the verdict first; beside each what it is to the verdict, where it does not carry it."""
    verdict = judgement.verdict
    findings = [f for o in judgement.outcomes for f in o.findings]
    supports = {i for h in verdict.hypotheses[:1] for i in h.supports}
    findings.sort(key=lambda f: (f.id not in supports, f.ranks != verdict.ranks, f.analysis, f.id))
    return [(f, "" if f.id in supports else _aside(f, findings, supports, verdict.ranks)) for f in findings]


def _aside(finding: Finding, findings: Sequence[Finding], supports: set[str], answer: tuple[int, ...]) -> str:
    """What a finding that does not carry the verdict is to it: followed from it, silent about it, or against it."""
    if not finding.ranks:
        return " (accuses nobody)"
    for number, cause in enumerate(findings, 1):
        if cause.id in supports and finding.ranks and set(finding.ranks) <= set(cause.explains):
            is_slow = sign_of(finding).family in SLOWING  # which began before the end, and ends no job
            return f" (a second matter beside {number}.: slowness ends no job)" if is_slow else f" (explained by {number}.)"
    return " (speaks against this verdict)" if finding.ranks and not set(finding.ranks) & set(answer) else ""


def unseen_lines(judgement: Judgement, skips: Sequence[Mapping[str, Any]], *, are_named: bool = False) -> list[str]:
    """What was not looked at, and what that hides. `are_named`: with the names of the questions that were left open."""
    roster = judgement.roster
    lines = []
    for table, what in UNSEEN.items():
        missing = roster.missing(table)
        if table == "log_events" and (begun := [rank for rank in missing if rank in roster.started]):
            lines += _wrapped(
                f"the log of {ranks_ranges(begun)} tells of the start alone: only peers tell what happened then", "  - ", "    "
            )
            missing = [rank for rank in missing if rank not in roster.started]
        if missing and len(missing) < len(roster.everyone):
            lines += _wrapped(f"no {what} of {ranks_ranges(missing)}: only peers tell what happened there", "  - ", "    ")
        elif missing:
            lines += _wrapped(f"no {what} of any rank", "  - ", "    ")
    if not roster.logged_hosts:
        lines += _wrapped("no kernel log of any host", "  - ", "    ")
    elif silent := sorted(set(roster.hosts.values()) - roster.logged_hosts):
        lines += _wrapped(f"no kernel log of {', '.join(silent[:8])}{' and others' if len(silent) > 8 else ''}", "  - ", "    ")
    for outcome in judgement.outcomes:
        if outcome.status == "failed":
            lines += _wrapped(f"{outcome.analysis} (failed): {outcome.why}", "  - ", "    ")
    if blind := _blind(judgement):
        how_many = f"{len(blind)} question{'' if len(blind) == 1 else 's'} had too little to go by"
        lines += _wrapped(f"{how_many}: {', '.join(blind) if are_named else '--why names each'}", "  - ", "    ")
    lines += _skip_lines(skips)
    return ["Not seen", *lines, ""] if lines else []


def _blind(judgement: Judgement) -> list[str]:
    """Questions that nothing here answers."""
    return [outcome.analysis for outcome in judgement.outcomes if outcome.status == "blind"]


def _blind_lines(judgement: Judgement) -> list[str]:
    """How many of those questions want which tables, and by name those that looked and found too little."""
    blind = [outcome for outcome in judgement.outcomes if outcome.status == "blind"]
    wanted = Counter(outcome.why.removeprefix(NO_ROWS) for outcome in blind if outcome.why.startswith(NO_ROWS))
    own = [outcome.analysis for outcome in blind if not outcome.why.startswith(NO_ROWS)]
    tables = ", ".join(f"{name} ({number})" for name, number in sorted(wanted.items(), key=lambda kv: (-kv[1], kv[0])))
    told = [f"{len(blind) - len(own)} were not looked at, as nothing here has rows in {tables}"] if wanted else []
    told += [f"{len(own)} found too little in what is there: {', '.join(own)}"] if own else []
    more = "`rca analyse NAME PATH` says what one needs, `rca inspect` which files would hold it"
    return ["", "Questions left open", *_wrapped(f"{'; '.join(told)}. {more}", "  ", "    ")] if blind else []


def _skip_lines(skips: Sequence[Mapping[str, Any]]) -> list[str]:
    """Files that were not (wholly) read, those of one folder with one reason on one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for skip in skips:
        where = f" {skip['record']}" if skip["record"] else ""
        alike.setdefault((skip["path"].rpartition("/")[0], skip["why"]), []).append(skip["path"] + where)
    lines = []
    for (_, why), paths in list(alike.items())[:MAX_SKIPS]:
        more = f" and {len(paths) - 1} more in that folder" if len(paths) > 1 else ""
        lines += _wrapped(f"{paths[0]}{more}: {why}", "  - ", "    ")
    if len(alike) > MAX_SKIPS:
        lines.append(f"  - and {len(alike) - MAX_SKIPS} further reasons: `rca inspect` lists every file")
    return lines


def advice_lines(advice: Advice) -> list[str]:
    """The first action, why, and the commands; a sentence that wraps stays deeper than a command, so that it cannot pass for one."""
    action = "a person must look" if advice.action == "human" else advice.action.replace("_", " ")
    lines = [f"What to do: {action}"]
    lines += _wrapped(advice.because, "  ", "    ")
    if advice.rule is not None and (rule := _rule_text(advice)):
        lines += _wrapped(rule, "  ", "    ")
    if advice.differ:
        lines += _wrapped(advice.differ, "  ", "    ")
    if advice.evict_hosts:
        on_it = f" ({ranks_ranges(advice.evict_ranks, len(advice.evict_ranks))})" if advice.evict_ranks else ""
        lines += _wrapped(f"evict {', '.join(advice.evict_hosts)}{on_it}", "  ", "    ")
    if advice.innocent_hosts:
        lines += _wrapped(f"of these {', '.join(advice.innocent_hosts)} only go along: what stands there only waits", "  ", "    ")
    lines += [f"  $ {command}" for command in advice.commands]
    if advice.replay is not None:
        lines.append("  a replay of a few steps on the idle hosts proves or clears them:")
        lines += [f"  $ {command}" for command in advice.replay["commands"]]
    return [*lines, *_indented(first_lines(advice))]


def _indented(sentences: Iterable[str]) -> list[str]:
    """Sentences under a heading; those that begin with `$ ` are commands, and stay on one line."""
    return [line for one in sentences for line in ([f"  {one}"] if one.startswith("$ ") else _wrapped(one, "  ", "    "))]


def decision_lines(advice: Advice) -> list[str]:
    """All that the decision rests on, under headings."""
    lines: list[str] = []
    for heading, sentences in why_parts(advice):
        lines += ["", heading]
        lines += _indented(sentences)
    return lines


def _rule_text(advice: Advice) -> str:
    """The rule for the kernel record that the answer rests on; "" where the reason says it already."""
    told = advice.rule or {}
    if not told.get("says") or advice.because.startswith(told["says"]):
        return ""
    whose = "this site's rule" if told["is_sites"] else "our rule"
    return f"{whose} for {told['of']} is {told['policy'].replace('_', ' ')}: {told['says']}" + (f" ({told['why']})" if told["why"] else "")


def alternative_lines(judgement: Judgement) -> list[str]:
    """Other answers, one line a cause: the ranks it would accuse, each set with its own probability where there are several."""
    verdict = judgement.verdict
    answer = (verdict.cause, verdict.ranks)
    rows = [h for h in verdict.hypotheses if (h.cause, h.ranks) != answer and h.probability >= ALTERNATIVE_FROM and h.supports]
    by_cause: dict[str, list[Hypothesis]] = {}
    for h in rows:
        by_cause.setdefault(h.cause, []).append(h)
    signs = [f.sign for o in judgement.outcomes for f in o.findings]
    lines = []
    for cause, alike in list(by_cause.items())[:MAX_ALTERNATIVES]:
        several = len(alike) > 1
        who = " or ".join(_accused(h) + (f" ({percent(h.probability)})" if several else "") for h in alike[:MAX_SETS])
        who += " or others" if len(alike) > MAX_SETS else ""
        same = "the same cause, but " if cause == verdict.cause else ""
        meaning = means(cause, signs) if cause != "unknown" else "none of the causes this version knows"
        lines.append(f"  {percent(sum(h.probability for h in alike)):>6}  {cause_words(cause)}, {same}{who}: {meaning}")
    return ["", "Otherwise", *lines] if lines else []


def _accused(hypothesis: Hypothesis) -> str:
    return ranks_words(hypothesis.ranks, 8) if hypothesis.ranks else "no rank to blame"


def outcome_lines(outcome: Outcome) -> list[str]:
    """One question's answer."""
    told = " of what would accuse; what it saw, accusing nobody:" if outcome.status == "clear" and outcome.findings else ""
    lines = [f"{outcome.analysis}: {outcome.status}{told}"]
    if not outcome.findings:
        return [*lines, *_wrapped(outcome.why, "  ", "  ")]
    for number, finding in enumerate(outcome.findings, 1):
        lines += _wrapped(f"[{finding.sign}] {finding.says}.", f" {number:2}. ", "     ")
        lines += [f"       {cite.path} {cite.record}: {cite.text}" for cite in finding.cites]
    return lines


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A plain table, columns as wide as their widest cell."""
    cells = [[one_line(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def finding_ids(findings: Sequence[Finding]) -> list[str]:
    """Ids, for tests and logs."""
    return [f.id for f in findings]
