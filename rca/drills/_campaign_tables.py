"""The tables of a campaign over simulated incidents, from its rows: what is right, what is not, who is evicted, what figures are worth. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rca.drills._campaign_calibration import Answers, auroc, brier, ece, interval, reliability, skill
from rca.drills._campaign_plan import CALIBRATING
from rca.drills._campaign_shares import at_most, wilson
from rca.drills._judge import PARTS

__all__ = ["NAMES", "STATED", "Table", "share", "short", "tables", "whole"]

Row = Mapping[str, Any]
Table = tuple[Sequence[str], list[tuple[object, ...]]]  # header, rows
NAMES = {
    "ranks": "first failing rank",
    "hosts": "host",
    "cause": "cause",
    "layer": "layer",
    "attribution": "attribution",
    "action": "action",
    "evicted": "nobody evicted in vain",
    "whole": "whole answer",
}
MARKS = ("right", "open", "wrong")
FIGURES: Mapping[str, Callable[[Answers], float]] = {"ECE": ece, "Brier score": brier, "Brier skill": skill, "AUROC": auroc}
KEPT = (
    "kind",
    "ranks",
    "seed",
    "way",
    "is_thinned",
    "layout",
    "confusions",
    "class",
    "marks",
    "stated",
    "suspected",
    "by_hand",
    "evicted",
    "beside",
    "judged_s",
    "error",
)
MAX_PAIRS = 40
MAX_WRONG = 60


def short(row: Row) -> dict[str, Any]:
    """What the tables need of a row, in as few letters as can still be read; what was said and wanted only where they differ."""
    found = {key: row[key] for key in KEPT if row.get(key) not in (None, [], ()) and row[key] is not False}
    if marks := row.get("marks"):
        found["marks"] = "".join(marks[part][0] for part in NAMES)
        found |= {"evicted": row["evicted"]} if any(row["evicted"].values()) else {}
        found |= {"said": row["said"], "truth": row["truth"]} if marks["whole"] != "right" else {}
    return found


def whole(row: Row) -> dict[str, Any]:
    """A short row with the marks of all parts, and hosts to evict, none of which may be."""
    if not row.get("marks"):
        return dict(row)
    marks = {part: next(mark for mark in MARKS if mark[0] == letter) for part, letter in zip(NAMES, row["marks"], strict=True)}
    return {**row, "marks": marks, "evicted": row.get("evicted") or dict.fromkeys(("named", "hit", "must", "met", "innocent"), 0)}


def tables(rows: Sequence[Row]) -> dict[str, Table]:
    """Title -> table. Shares are of faults whose evidence tells; jobs in which nothing failed, evidence that tells nothing, and incidents with a
    part of their evidence stand apart. What a stated probability is worth is told of all."""
    rows = sorted(map(whole, rows), key=lambda r: (r["kind"], r["ranks"], r["seed"], r["way"]))
    everything = [r for r in rows if r.get("marks")]
    answered, thinned = [r for r in everything if not r.get("is_thinned")], [r for r in everything if r.get("is_thinned")]
    faults = [r for r in answered if r["class"] == "fault"]
    found: dict[str, Table] = {
        "By part of the answer": (("part", *MARKS, "of", "right, 95 % interval"), list(_parts(faults))),
        "What must not happen": (("what", "seen", "of", "at most (95 %)"), list(_never(answered))),
        "By kind": (("kind", "class", "runs", *(NAMES[p] for p in (*PARTS, "whole"))), _grouped(answered, lambda r: [(r["kind"], r["class"])])),
        "By size": (("ranks", "runs", *(NAMES[p] for p in (*PARTS, "whole")), "median s", "longest s"), _sizes(faults)),
        "By confusion": (("confusion", "runs", *(NAMES[p] for p in (*PARTS, "whole"))), _grouped(faults, lambda r: r.get("confusions") or ["none"])),
        "With a part of the evidence": (("part", *MARKS, "of", "right, 95 % interval"), list(_parts([r for r in thinned if r["class"] == "fault"]))),
        "What must not happen, with a part of the evidence": (("what", "seen", "of", "at most (95 %)"), list(_never(thinned))),
        "By way": (("evidence", "runs", *(NAMES[p] for p in (*PARTS, "whole"))), _grouped(faults, lambda r: [r["way"]])),
        "Eviction": (("figure", "value", "of"), list(_evictions(answered))),
        "Stated probability": (("answers", "evidence", "stated of", "n", "right", *FIGURES), list(_calibration(answered, thinned))),
        "Reliability": (("answers", "stated from", "to", "on average", "n", "right"), list(_reliability(everything))),
        "Confusion pairs": (("truth", "said", "incidents", "kinds"), _pairs(answered)),
        "torchfrtrace on the same files": (("what", "firstfault", "torchfrtrace", "of"), list(_beside(answered))),
        "Answers that are not right": (("kind", "ranks", "seed", "evidence", "confusions", "said", "wanted"), list(_not_right(answered))),
        "Answers that are wrong with a part of the evidence": (
            ("kind", "ranks", "seed", "evidence", "confusions", "said", "wanted"),
            list(_not_right([r for r in thinned if r.get("stated") and not r["stated"][1]])),
        ),
    }  # fmt: skip
    failed = Counter(name for r in everything for name in r.get("failed", ()))
    if failed or len(everything) < len(rows):
        told = [(f"analysis {name} failed", count) for name, count in sorted(failed.items())]
        told += sorted(Counter(f"{r['kind']}: no answer, {r['error']}" for r in rows if not r.get("marks")).items())
        found["Failures"] = (("what", "incidents"), [tuple(t) for t in told])
    return found


def share(right: int, of: int) -> str:
    """A share in percent with its 95 % interval."""
    low, high = wilson(right, of)
    return f"{100 * right / of:.1f} % ({100 * low:.1f} to {100 * high:.1f})" if of else "none"


def _parts(rows: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    for part, name in NAMES.items():
        counts = Counter(r["marks"][part] for r in rows)
        yield (name, *(counts[mark] for mark in MARKS), len(rows), share(counts["right"], len(rows)))


def _never(rows: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    """What would be worse than not knowing, with the bound that this many incidents prove."""

    def of(*classes: str) -> list[Row]:
        return [r for r in rows if r["class"] in classes]

    def is_accused(r: Row) -> bool:
        said = r.get("said")
        return bool(said and (said["ranks"] or said["hosts"])) or r["marks"]["evicted"] == "wrong"

    def line(what: str, seen: int, among: int) -> tuple[object, ...]:
        return what, seen, among, f"{100 * at_most(seen, among):.2f} %" if among else "nothing proven"

    healthy, planned, mute, faults = of("healthy"), of("planned"), of("unanswerable"), of("fault")
    yield line("healthy job: a rank or host accused", sum(map(is_accused, healthy)), len(healthy))
    yield line("healthy job: a fault named", sum(r["marks"]["cause"] == "wrong" for r in healthy), len(healthy))
    yield line(
        "planned stop: counted as the platform's", sum(r.get("said", {}).get("attribution") == "platform" for r in planned), len(planned)
    )
    yield line("planned stop: a rank or host accused", sum(map(is_accused, planned)), len(planned))
    yield line("evidence taken away: a rank, host or cause named", sum(r["marks"]["whole"] == "wrong" for r in mute), len(mute))
    yield line("fault: another rank accused", sum(r["marks"]["ranks"] == "wrong" for r in faults), len(faults))
    yield line("fault: another cause named", sum(r["marks"]["cause"] == "wrong" for r in faults), len(faults))
    yield line(
        "fault: called healthy or planned", sum(r.get("said", {}).get("attribution") in ("none", "planned") for r in faults), len(faults)
    )


def _grouped(rows: Sequence[Row], keys: Callable[[Row], Iterable[object]]) -> list[tuple[object, ...]]:
    """Runs and right parts of the rows of each key."""
    groups: dict[Any, list[Row]] = {}
    for r in rows:
        for key in keys(r):
            groups.setdefault(key, []).append(r)
    return [(*(k if isinstance(k, tuple) else (k,)), len(groups[k]), *_right(groups[k])) for k in sorted(groups)]


def _right(rows: Sequence[Row]) -> tuple[object, ...]:
    return tuple(sum(r["marks"][part] == "right" for r in rows) for part in (*PARTS, "whole"))


def _sizes(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    found = []
    for ranks in sorted({r["ranks"] for r in rows}):
        own = [r for r in rows if r["ranks"] == ranks]
        times = sorted(r["judged_s"] for r in own if r["way"] == "tables") or [0.0]
        found.append((ranks, len(own), *_right(own), f"{times[len(times) // 2]:.1f}", f"{times[-1]:.1f}"))
    return found


def _evictions(rows: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    """Over hosts: of those told to go how many should, of those that should how many are told; and what it costs the innocent."""
    told = [r["evicted"] for r in rows]
    named, hit, must, met = (sum(t[key] for t in told) for key in ("named", "hit", "must", "met"))
    evicting = [t for t in told if t["named"]]
    yield "precision: hosts told to go that are at fault, or of a group that goes whole", share(hit, named), named
    yield "recall: hosts that must go that are told to", share(met, must), must
    yield "incidents with an eviction", len(evicting), len(told)
    innocent = sum(t["innocent"] for t in evicting)
    yield "hosts not at fault per eviction", f"{innocent / len(evicting):.2f}" if evicting else "none", innocent
    groups = [t["group"] for t in told if "group" in t]
    yield "group hit: all hosts of the group at fault are told to go", share(groups.count("right"), len(groups)), len(groups)


def _stated(r: Row) -> Any:
    return r.get("stated") or r.get("suspected")


STATED: Mapping[str, Callable[[Row], Any]] = {  # what a probability is stated of -> (probability, is so) in a row
    "what is named or suspected": _stated,
    "the same, weights set by hand": lambda r: r.get("by_hand"),
    "what is named": lambda r: r.get("stated"),
}


def _answers(rows: Iterable[Row], which: Callable[[Row], Any]) -> Answers:
    return Answers.of([(*told, r["kind"]) for r in rows if (told := which(r))])


def _calibration(answered: Sequence[Row], thinned: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    """What is named is nearly always so; a probability is stated of what is only suspected too, and must be worth as much."""
    for evidence, rows in (("whole and thinned", [*answered, *thinned]), ("whole", answered), ("thinned", thinned)):
        for what, which in STATED.items():
            for name, own in _halves(rows):
                answers = _answers(own, which)
                if not len(answers):
                    continue
                figures = []
                for figure in FIGURES.values():
                    low, high = interval(answers, figure)
                    figures.append(f"{figure(answers):.3f} ({low:.3f} to {high:.3f})")
                yield (name, evidence, what, len(answers), int(answers.is_right.sum()), *figures)


def _halves(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Kinds that the fit has not seen first: theirs are the figures that count."""
    unseen = [r for r in rows if r["kind"] not in CALIBRATING]
    seen = [r for r in rows if r["kind"] in CALIBRATING]
    return [("kinds unseen in the fit", unseen), ("kinds of the fit, other sizes and seeds", seen), ("all", list(rows))]


def _reliability(rows: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    for name, own in _halves(rows)[:2]:
        for b in reliability(_answers(own, _stated)):
            yield name, f"{b.low:.3f}", f"{b.high:.3f}", f"{b.stated:.3f}", b.count, f"{b.right / b.count:.3f}"


def _pairs(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """What is said for what, most often first."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        if r["marks"]["cause"] != "right":
            pairs.setdefault((" or ".join(r["truth"]["cause"]), r["said"]["cause"]), []).append(r["kind"])
    most = sorted(pairs.items(), key=lambda one: (-len(one[1]), one[0]))[:MAX_PAIRS]
    return [(*pair, len(kinds), ", ".join(sorted(set(kinds)))) for pair, kinds in most]


def _beside(rows: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    """torchfrtrace against ours, on the same written files of incidents that have a first failing rank."""
    both = [r for r in rows if r.get("beside") and r["class"] == "fault" and not _names_nobody(r)]
    quiet = [r for r in rows if r.get("beside") and (r["class"] in ("healthy", "planned") or _names_nobody(r))]
    ours = [r["marks"]["ranks"] for r in both]
    other = [r["beside"] for r in both]
    yield "names the first failing ranks, and no others", ours.count("right"), sum(o["is_exact"] for o in other), len(both)
    yield "a first failing rank among those named", ours.count("right"), sum(o["hit"] for o in other), len(both)
    yield "names others only", ours.count("wrong"), sum(o["named"] > 0 and not o["hit"] for o in other), len(both)
    yield "names nobody", ours.count("open"), sum(o["named"] == 0 for o in other), len(both)
    counts = sorted(o["named"] for o in other if o["named"])
    yield "ranks named, median and most", "-", f"{counts[len(counts) // 2]}, {counts[-1]}" if counts else "-", len(counts)
    yield (
        "names a rank although none failed",
        sum(r["marks"]["ranks"] == "wrong" for r in quiet),
        sum(r["beside"]["named"] > 0 for r in quiet),
        len(quiet),
    )
    yield "ended with an error", 0, sum(r["beside"]["has_failed"] for r in (*both, *quiet)), len(both) + len(quiet)


def _names_nobody(row: Row) -> bool:
    return not row["beside"]["wanted"]


def _not_right(rows: Sequence[Row]) -> Iterable[tuple[object, ...]]:
    """Wrong ones first; each can be made anew from kind, ranks and seed."""
    bad = sorted((r for r in rows if r["marks"]["whole"] != "right"), key=lambda r: r["marks"]["whole"] != "wrong")
    for r in bad[:MAX_WRONG]:
        said, truth = r["said"], r["truth"]
        parts = ", ".join(part for part in PARTS if r["marks"][part] != "right")
        stated = f" ({100 * r['stated'][0]:.0f} %)" if r.get("stated") else ""
        yield (
            r["kind"], r["ranks"], r["seed"], "thinned" if r.get("is_thinned") else r["way"], ", ".join(r.get("confusions") or ()) or "none",
            f"{r['marks']['whole']}: {said['cause']}, {_ranks(said['ranks'])}, {said['action']}{stated}",
            f"{' or '.join(truth['cause'])}, {_ranks(truth['first_failing_ranks'])}, {' or '.join(truth['action'])} [{parts}]",
        )  # fmt: skip


def _ranks(ranks: Sequence[object]) -> str:
    return f"rank {' '.join(map(str, ranks))}" if ranks else "nobody"
