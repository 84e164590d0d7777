"""Sister ranks of other pipeline stages end a step by other calls: where a whole group called the same, none of its members is odd."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from rca.analyses._call_sisters import HISTORY
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.topology import same_groups

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


@pytest.mark.parametrize(("more", "known"), [((), {0: "dp_cp:a", 1: "dp_cp:b"}), ((("dp_cp?other", 0),), {1: "dp_cp:b"})])
def test_a_group_known_by_name_alone_is_the_one_of_its_kind_that_a_map_lists(
    more: tuple[tuple[str, int], ...], known: dict[int, str]
) -> None:
    """All groups of a kind go by one name in the dumps, and the map numbers them. Whoever uses two groups of the kind stays open."""
    listed = [("dp_cp:a", "33", (0, 2)), ("dp_cp:b", "34", (1, 3))]
    used = [("dp_cp?dp", 0), ("dp_cp?dp", 1), *more]
    groups = [{"group_id": group, "group_name": name, "kind": "dp_cp", "size": 2} for group, name, _ in listed]
    groups += [
        {"group_id": group, "group_name": group.partition("?")[2], "kind": "dp_cp"} for group in sorted({group for group, _ in used})
    ]
    members = [{"group_id": group, "rank": rank} for group, _, ranks in listed for rank in ranks]
    members += [{"group_id": group, "rank": rank} for group, rank in used]
    found = same_groups({"groups": TABLES["groups"].rows(groups), "memberships": TABLES["memberships"].rows(members)})
    assert {rank: group for (name, rank), group in found.items() if name == "dp_cp?dp"} == known


@pytest.mark.parametrize(("op", "sign"), [("broadcast", "tie"), ("all_reduce", "never_joined")])
def test_of_two_who_differ_by_a_call_that_was_never_made_before_neither_is_named(op: str, sign: str) -> None:
    """One waits in a last call that the other did not make: left out where it is the usual one, else it may as well be one too many."""
    whole = case({})
    pair = (pl.col("rank") < 2) & (pl.col("group_id") == "tp:0")
    tables = {name: whole.table(name).collect() for name in ("dumps", "groups", "memberships", "collectives", "evidence")}
    tables |= {"dumps": tables["dumps"].filter(pl.col("rank") < 2), "memberships": tables["memberships"].filter(pair)}
    is_last = pl.col("record_id") == HISTORY + 1
    calls = tables["collectives"].filter(pair & ~(is_last & (pl.col("rank") == 1)))
    tables["collectives"] = calls.with_columns(pl.when(is_last).then(pl.lit(op)).otherwise("op").alias("op"))
    (finding,) = ask(MemoryCase(tables), "first_silent_rank").findings
    assert (finding.sign, finding.ranks, finding.numbers.get("candidates")) == (
        sign,
        () if sign == "tie" else (1,),
        [0, 1] if sign == "tie" else None,
    )
