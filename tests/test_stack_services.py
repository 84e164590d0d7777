"""A rank that waits for an answer over the network is named; that storage is to blame is said only where a library of storage waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_stack_waits import BARRIER, ROOT_FRAMES, SITE, At, _captured, _peers, _verdict

ACCEPT = At((("accept", "/usr/lib/python3.11/socket.py", 294), ("fetch_license", "/srv/job/license.py", 8), *ROOT_FRAMES))
HTTP = At(
    (
        ("readinto", "/usr/lib/python3.11/socket.py", 706),
        ("_read_status", "/usr/lib/python3.11/http/client.py", 286),
        ("urlopen", "/usr/lib/python3.11/urllib/request.py", 216),
        ("report", "/srv/job/metrics.py", 8),
        *ROOT_FRAMES,
    )
)
OBJECT_STORE = At(
    (
        ("readinto", "/usr/lib/python3.11/socket.py", 706),
        ("_make_request", SITE + "urllib3/connectionpool.py", 534),
        ("send", SITE + "botocore/httpsession.py", 464),
        ("read_shard", "/srv/job/shards.py", 8),
        *ROOT_FRAMES,
    )
)


@pytest.mark.parametrize(("bad", "cause"), [(ACCEPT, "unknown"), (HTTP, "unknown"), (OBJECT_STORE, "storage_stall")])
def test_who_waits_for_a_service_is_named_and_why_is_said_only_of_storage(bad: At, cause: str, tmp_path: Path) -> None:
    verdict = _verdict(_captured(tmp_path, _peers(BARRIER, bad)))
    assert verdict["first_failing"]["ranks"] == [1]
    assert verdict["first_failing"]["probability"] > 0.7
    assert verdict["cause"] == cause
