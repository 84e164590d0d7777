"""Where ranks run: a map, and the sources that contradict it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.roster import Roster, roster
from rca.tables import TABLES

HOSTS = ("host-a", "host-a", "host-b", "host-b")
SWAPPED = ("host-a", "host-b", "host-a", "host-b")  # ranks 1 and 2 the other way round


def rows(evidence: str, hosts: Sequence[str], **values: Any) -> list[dict[str, Any]]:
    return [
        {"evidence_id": evidence, "record": f"E{rank}", "rank": rank, "host": host} | {k: v[rank] for k, v in values.items()}
        for rank, host in enumerate(hosts)
    ]


def case_of(map_hosts: Sequence[str], **others: Sequence[str]) -> MemoryCase:
    """A map of these hosts, and other tables that name hosts of the ranks."""
    tables: dict[str, list[dict[str, Any]]] = {"ranks": rows("map", map_hosts, gpu=("0", "1", "0", "1"))}
    tables |= {table: rows(table, hosts) for table, hosts in others.items()}
    return MemoryCase(
        {
            table: TABLES[table].rows([{k: v for k, v in row.items() if k in TABLES[table].schema} for row in found])
            for table, found in tables.items()
        }
    )


def who(*args: Any, **others: Any) -> Roster:
    return roster(case_of(*args, **others))


def test_a_map_is_believed_against_one_other_source() -> None:
    for table in ("dump_index", "stacks", "steps", "log_events"):
        assert who(SWAPPED, **{table: HOSTS}).hosts == dict(enumerate(SWAPPED))


@pytest.mark.parametrize("tables", [("dump_index", "log_events"), ("steps", "stacks"), ("dump_index", "steps", "log_events")])
def test_a_map_that_two_other_sources_contradict_leaves_the_host_unknown(tables: tuple[str, ...]) -> None:
    found = who(SWAPPED, **dict.fromkeys(tables, HOSTS))
    assert (found.hosts, found.disputed) == ({0: "host-a", 3: "host-b"}, {1, 2})
    (finding,) = ask(case_of(SWAPPED, **dict.fromkeys(tables, HOSTS)), "sources_disagree").findings
    assert finding.numbers["candidates"] == [1, 2]


def test_a_map_whose_hosts_are_not_among_the_machines_is_of_another_run() -> None:
    other = ("host-x", "host-x", "host-y", "host-y")
    assert who(other, dump_index=HOSTS, hosts=HOSTS).hosts == {}


def test_pods_are_other_names_of_the_machines_that_a_map_names() -> None:
    pods = ("pod-1", "pod-1", "pod-2", "pod-2")
    found = who(HOSTS, dump_index=pods, log_events=pods, hosts=HOSTS)
    assert (found.hosts, found.disputed) == (dict(enumerate(HOSTS)), frozenset())


def test_two_maps_that_disagree_leave_the_rank_without_host_and_gpu() -> None:
    maps = [*rows("map", HOSTS, gpu=("0", "1", "0", "1")), *rows("old-map", SWAPPED, gpu=("0", "2", "0", "1"))]
    found = roster(MemoryCase({"ranks": TABLES["ranks"].rows(maps)}))
    assert found.hosts == {0: "host-a", 3: "host-b"}
    assert found.gpus == {0: "0", 2: "0", 3: "1"}


def test_of_several_names_of_one_gpu_the_most_telling_counts() -> None:
    maps = [*rows("map", HOSTS, gpu=("0", "1", "0", "1")), *rows("smi", HOSTS, gpu=("GPU-0000", "0000:3b:00.0", None, None))]
    assert roster(MemoryCase({"ranks": TABLES["ranks"].rows(maps)})).gpus == {0: "GPU-0000", 1: "0000:3b:00.0", 2: "0", 3: "1"}


def test_a_log_that_tells_of_the_start_alone_was_read() -> None:
    """Rank 3 left no log at all; that of ranks 1 and 2 says where they run, and nothing else."""
    from types import SimpleNamespace

    from apps.text import unseen_lines

    case = case_of(HOSTS, log_events=HOSTS[:1])
    case.frames["ranks"] = TABLES["ranks"].rows([*rows("map", HOSTS), *rows("own", HOSTS[:3])])
    case.frames["readings"] = TABLES["readings"].rows(
        [
            {"evidence_id": "map", "path": "map.json", "collector": "topology"},
            {"evidence_id": "own", "path": "all.log", "collector": "trainer_log"},
        ]
    )
    found = roster(case)
    assert found.started == {0, 1, 2}
    judgement: Any = SimpleNamespace(roster=found, outcomes=[])
    said = "\n".join(unseen_lines(judgement, []))
    assert "the log of ranks 1-2 tells of the start alone" in said
    assert "no log of rank 3:" in said


def test_questions_that_could_not_look_are_counted_by_what_they_want_and_equal_lines_are_quoted_thrice() -> None:
    from types import SimpleNamespace

    from apps.text import _blind_lines, _cited
    from rca.types import Cite, Outcome

    outcomes = [Outcome(name, "blind", "no rows in stacks") for name in ("a", "b")] + [Outcome("c", "blind", "2 steps: too few")]
    judgement: Any = SimpleNamespace(outcomes=outcomes)
    said = " ".join(_blind_lines(judgement))
    assert "2 were not looked at, as nothing here has rows in stacks (2); 1 found too little in what is there: c." in said
    cites = [Cite("log_events", "x", "x.log", f"L{n}", f"rank {n} timed out") for n in range(6)]
    assert [line.strip()[:6] for line in _cited([*cites, Cite("log_events", "x", "x.log", "L9", "ends")])] == [
        *("x.log ",) * 4,
        "and 3 ",
    ]
