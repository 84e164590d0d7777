"""What the rules ask for of a chain of kernel records: ours, the driver's own demand, a failed repair's, the site's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rca.analyses._kernel_edges import Link
from rca.analyses._kernel_events import Record
from rca.analyses._kernel_roots import Scene
from rca.catalogues import by_code, rows
from rca.policies import opinions, sites_way_out, strictness

__all__ = ["policy_of", "ruled", "sites_rule"]

_DEMANDS: Mapping[str, str] = {
    "reset": "reset_gpu",
    "drain": "reset_gpu",
    "drain_reset": "reset_gpu",
    "reboot": "reboot_host",
}  # verdicts of the driver
_DEMANDING: Final = ("repairs", "verdict")  # edges at whose end a line says what is needed: a repair that a reset makes effective


def policy_of(seen: Scene, root: Record, following: Sequence[tuple[Record, Link]]) -> str:
    """What our rules ask for: of the root, or of a failed repair in its chain, or what the driver itself demands where we would let it run on."""
    policy = "check_gpu" if root in seen.repeated else root.policy
    worse = [r.policy for r, link in following if link.edge is not None and link.edge.kind == "worsens"]
    if "replace_host" in worse:
        return "replace_host"
    stance = {row["policy"]: row["stance"] for row in rows("policies")}
    if stance.get(policy) == "out":
        return policy
    asked = [root.recovery, *(r.recovery for r, link in following if link.edge is not None and link.edge.kind in _DEMANDING)]
    demands = [_DEMANDS[word] for word in asked if word is not None and word in _DEMANDS]
    return demands[-1] if demands else worse[-1] if worse else policy


def sites_rule(root: Record, policy: str, following: Sequence[tuple[Record, Link]]) -> tuple[Record, str]:
    """The record whose policy counts, and that: where the site asks for more at another record of this chain and device, it is that one."""
    own = [
        r for r, _ in following if (r.host, r.gpu) == (root.host, root.gpu) and r.policy_code is not None and sites_way_out(*r.policy_code)
    ]
    strictest = max(own, key=lambda r: strictness(r.policy), default=None)
    return (strictest, strictest.policy) if strictest is not None and strictness(strictest.policy) > strictness(policy) else (root, policy)


def ruled(record: Record, policy: str) -> dict[str, Any]:
    """Our rule for a record, and the words of the authorities beside it, each under its column of the catalogue."""
    told = record.policy_code
    row = by_code(told[0]).get(told[1]) if told else None
    return {"policy": policy, "policy_code": told, "authorities": {o.column: o.value for o in opinions(row)} if row else {}}
