"""What is to be done about an Xid or SXid: our own rule, and what the authorities say, each for itself and never merged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rca.catalogues import Row, by_code, is_sites, rows
from rca.types import Finding, Verdict

__all__ = ["Opinion", "Rule", "opinions", "rule_of", "rule_of_verdict", "sites_way_out", "spread", "strictness"]

STAY, OUT = "stay", "out"  # what an opinion comes down to: the GPU stays in use, or it is taken out
NAMES: Final = {"xid": "Xid", "sxid": "SXid"}


@dataclass(frozen=True)
class Opinion:
    """What one authority says of a code."""

    column: str  # of the catalogue
    who: str
    value: str  # the authority's own word
    stance: str  # stay, out, or open where it depends
    means: str
    source: str


@dataclass(frozen=True)
class Rule:
    """Our rule for a code, and what others say of it."""

    name: str  # Xid 79
    policy: str
    action: str  # of rca.causes; "" = that of the cause
    stance: str
    says: str  # what is to be done
    why: str  # why so, of this code; "" = nothing special
    opinions: tuple[Opinion, ...]
    is_sites: bool = False  # a row of the site decided it

    @property
    def whose(self) -> str:
        """Whose rule it is, at the beginning of a sentence or within one."""
        return "this site's rule" if self.is_sites else "our rule"

    @property
    def differ(self) -> bool:
        """Whether some would keep the GPU in use and others would not, we among them."""
        return {STAY, OUT} <= {self.stance, *(o.stance for o in self.opinions)}

    def as_row(self) -> dict[str, Any]:
        """For JSON documents."""
        return {
            "of": self.name,
            "policy": self.policy,
            "says": self.says,
            "why": self.why or None,
            "authorities": [{"column": o.column, "who": o.who, "says": o.value, "stance": o.stance} for o in self.opinions],
            "differ": self.differ,
            "is_sites": self.is_sites,
        }


def opinions(row: Row) -> tuple[Opinion, ...]:
    """What the authorities say of a code, in the order of the catalogue; those that are silent are left out."""
    known = {(a["column"], a["value"]): a for a in rows("authorities")}
    columns = dict.fromkeys(a["column"] for a in rows("authorities"))
    found = []
    for column in columns:
        if value := row.get(column, ""):
            about = known.get((column, value)) or known.get((column, value.split(" ")[0]))
            who = about["who"] if about else next(a["who"] for (name, _), a in known.items() if name == column)
            found.append(
                Opinion(
                    column,
                    who,
                    value,
                    about["stance"] if about else "open",
                    about["means"] if about else "",
                    about["source"] if about else "",
                )
            )
    return tuple(found)


def rule_of(kind: str, code: int, policy: str | None = None) -> Rule | None:
    """The rule for a code of `xid` or `sxid`, or that `policy` where the evidence asks for another one; None for a number that is unknown."""
    row = by_code(kind).get(code)
    if row is None:
        return None
    chosen = policy or row["policy"]
    about: Mapping[str, str] = next((p for p in rows("policies") if p["policy"] == chosen), {})
    why = (
        row["why"]
        if chosen == row["policy"]
        else f"the rule for this code alone is {row['policy']}, and other records of the chain ask for more"
    )
    its_own = chosen == row["policy"] and is_sites(kind, (str(code),), "policy")
    return Rule(
        f"{NAMES[kind]} {code}", chosen, about.get("action", ""), about.get("stance", "open"), about.get("says", ""), why, opinions(row),
        its_own or is_sites("policies", (chosen,), "action"),
    )  # fmt: skip


def strictness(policy: str) -> tuple[bool, int]:
    """To compare policies by: what leaves the GPU in use, what takes it out until it is well, then a reboot, then for good."""
    out = any(row["policy"] == policy and row["stance"] == OUT for row in rows("policies"))
    return out, ("reboot_host", "replace_host").index(policy) + 1 if policy in ("reboot_host", "replace_host") else 0


def sites_way_out(kind: str, code: int | None) -> bool:
    """Whether the site itself said of a code of `xid` or `sxid` that the GPU is to be taken out, whatever the code means elsewhere."""
    row = by_code(kind).get(code) if kind in NAMES and code is not None else None
    return row is not None and is_sites(kind, (str(code),), "policy") and strictness(row["policy"])[0]


def rule_of_verdict(verdict: Verdict, findings: Sequence[Finding]) -> Rule | None:
    """The rule for the record that the answer rests on; None where it rests on none."""
    carrying = next((h.supports for h in verdict.hypotheses if (h.cause, h.ranks) == (verdict.cause, verdict.ranks)), ())
    for f in findings:
        if f.id in carrying and (told := f.numbers.get("policy_code")):
            return rule_of(told[0], told[1], f.numbers["policy"])
    return None


def spread(rule: Rule) -> str:
    """One line: who would keep the GPU in use and who would not, each in its own word; "" where all agree with us."""
    if not rule.differ:
        return ""
    said = [(rule.whose, rule.stance), *((f"{o.who} ({o.value.split(' (')[0]})", o.stance) for o in rule.opinions)]
    sides = {stance: ", ".join(who for who, its in said if its == stance) for stance in (STAY, OUT)}
    return f"authorities differ on {rule.name}: leave it in use: {sides[STAY]}; take it out: {sides[OUT]}"
