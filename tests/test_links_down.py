"""Hosts whose network links are down: their ranks are named where the calls that hang reach them, of one host or of all behind a switch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from _kernel_case import kernel_case

from rca.analyses import fatal_xid
from rca.errors import NotEnoughEvidence

AT = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
DOWN = "2026-03-01T10:00:0{n},000000+00:00 mlx5_core 0000:4f:00.0: Port: 1 Link DOWN\n"
RANKS = [{"evidence_id": "map", "rank": n, "host": f"host-{'abcd'[n // 2]}"} for n in range(8)]


def rows(*groups: tuple[int, ...]) -> dict[str, list[dict[str, Any]]]:
    """Dumps of all ranks; the members of each group are in a call of it that nobody ends."""
    calls = [
        {
            "evidence_id": f"d{rank}", "record_id": n, "rank": rank, "group_id": f"dp:{n}", "collective_seq_id": 7, "op": "all_reduce",
            "sizes": "[1] -> [1]", "is_p2p": False, "state": "started", "backend": "nccl", "created_at": AT + timedelta(seconds=1), "is_tail": True,
        }
        for n, ranks in enumerate(groups) for rank in ranks
    ]  # fmt: skip
    return {
        "ranks": RANKS,
        "dumps": [
            {"evidence_id": f"d{n}", "rank": n, "num_entries": 1, "backend": "nccl", "first_at": AT, "last_at": AT} for n in range(8)
        ],
        "collectives": calls,
        "groups": [{"evidence_id": "map", "group_id": f"dp:{n}", "size": len(ranks), "kind": "dp"} for n, ranks in enumerate(groups)],
        "memberships": [{"evidence_id": "map", "group_id": f"dp:{n}", "rank": rank} for n, ranks in enumerate(groups) for rank in ranks],
    }


@pytest.mark.parametrize(
    ("hosts", "groups", "ranks"),
    [
        ("a", ((0, 2), (1, 6)), (0, 1)),  # every call that hangs reaches the host
        ("ab", ((0, 4), (2, 6)), (0, 1, 2, 3)),  # one switch, two hosts
        ("a", ((0, 2), (4, 6)), ()),  # another one hangs elsewhere
        ("a", ((0, 1),), (0, 1)),  # what hangs inside the host needs no network: it hangs behind others
        ("abcd", ((0, 2),), ()),  # all of them: what all share
    ],
)
def test_whose_links_are_down(tmp_path: Path, hosts: str, groups: tuple[tuple[int, ...], ...], ranks: tuple[int, ...]) -> None:
    logs = {f"host-{host}.log": DOWN.format(n=n) for n, host in enumerate(hosts)}
    case = kernel_case(tmp_path, logs, {name: name.removesuffix(".log") for name in logs}, **rows(*groups))
    (found,) = fatal_xid.analyse(case)
    assert (found.sign, found.ranks, found.hosts) == ("network_record", ranks, tuple(f"host-{host}" for host in hosts))


@pytest.mark.parametrize(
    ("hosts", "after", "found"),
    [
        ("ab", "", ["host-a", "host-b"]),  # nothing else tells when the job ran
        ("ab", "2026-03-01T12:00:00,000000+00:00 EDAC MC: Ver: 3.0.0\n", []),  # the logs go on for hours
        ("ab", "2026-03-01T10:00:09,000000+00:00 mlx5_core 0000:4f:00.0: Port: 1 Link ACTIVE\n", []),
        ("a", "", []),  # one port alone: any host has some that no job uses
    ],
)
def test_links_that_go_down_together_need_no_log_of_the_job(tmp_path: Path, hosts: str, after: str, found: list[str]) -> None:
    logs = {f"host-{host}.log": DOWN.format(n=n) + after for n, host in enumerate(hosts)}
    case = kernel_case(tmp_path, logs, {name: name.removesuffix(".log") for name in logs}, ranks=RANKS)
    try:
        (one,) = fatal_xid.analyse(case) or (None,)
    except NotEnoughEvidence:
        one = None
    assert (list(one.hosts) if one else []) == found
    assert one is None or ("a switch" in one.says and not one.ranks and len(one.cites) == len(hosts))
