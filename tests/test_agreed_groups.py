"""Sister ranks of other pipeline stages end a step by other calls: where a whole group called the same, none of its members is odd."""

from __future__ import annotations

from typing import Any

import pytest

from rca.analyses._call_sisters import HISTORY
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

RANKS = range(8)  # tensor pairs (0, 1), (2, 3), (4, 5), (6, 7)


def case(last: dict[int, str]) -> MemoryCase:
    """Every rank makes the same calls in its pair until one of the world; then the pairs make one more, `last` = by whom it is another one."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("dumps", "groups", "memberships", "collectives", "evidence")}
    rows["groups"].append({"evidence_id": "fr-0", "record": "E0", "group_id": "world:0", "kind": "world", "size": len(RANKS)})
    for rank in RANKS:
        of, pair = {"evidence_id": f"fr-{rank}", "rank": rank}, f"tp:{rank // 2}"
        rows["evidence"].append({"evidence_id": of["evidence_id"], "path": of["evidence_id"], "is_stale": False})
        rows["dumps"].append({**of, "record": "E0", "backend": "nccl", "format": "pickle", "num_entries": HISTORY + 2, "is_torn": False})
        rows["memberships"] += [{**of, "record": "E0", "group_id": group, "group_rank": rank} for group in ("world:0", pair)]
        calls = [(pair, n, "all_reduce", "completed") for n in range(1, HISTORY + 1)]
        calls += [("world:0", 1, "all_reduce", "completed"), (pair, HISTORY + 1, last.get(rank, "all_reduce"), "scheduled")]
        for number, (group, seq, op, state) in enumerate(calls):
            rows["collectives"].append(
                {**of, "record": f"E{number}", "record_id": number, "backend": "nccl", "group_id": group, "collective_seq_id": seq, "op": op,
                 "sizes": "[8] -> [8]", "is_p2p": False, "state": state, "is_retired": False, "is_tail": True}
            )  # fmt: skip
    rows["groups"] += [{"evidence_id": "fr-0", "record": "E0", "group_id": f"tp:{n}", "kind": "tp", "size": 2} for n in range(4)]
    return MemoryCase({name: TABLES[name].rows(made) for name, made in rows.items()})


@pytest.mark.parametrize(("last", "odd"), [({}, set()), ({6: "reduce_scatter", 7: "reduce_scatter"}, set()), ({6: "reduce_scatter"}, {6})])
def test_what_all_members_of_a_group_called_is_not_odd(last: dict[int, str], odd: set[int]) -> None:
    found = ask(case(last), "mismatched_collective").findings
    assert {rank for finding in found for rank in finding.ranks} == odd
