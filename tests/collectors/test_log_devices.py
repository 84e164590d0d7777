"""Which process and GPU a rank has, as NCCL's lines of a communicator's begin say it."""

from __future__ import annotations

import pytest

from collectors._log_devices import Devices

LINE = "host-a:4242:4642 [5] NCCL INFO ncclCommInitRankConfig comm 0x55d5c8a0 rank {} nranks 8 cudaDev 5 nvmlDev 5 busId {} - Init COMPLETE"
FIVE = {"rank": 13, "host": "host-a", "pid": 4242, "gpu": "0000:9a:00", "record": "L7", "role": "trainer"}


@pytest.mark.parametrize(
    ("lines", "said", "rows"),
    [
        (["[rank13]: " + LINE.format(5, "9a000")], None, [FIVE]),  # the number in the line is that in a group
        ([LINE.format(5, "9a000"), LINE.format(1, "9a000")], 13, [FIVE]),  # a second communicator of the same process
        ([LINE.format(5, "9a000")], None, []),  # whose line it is, is not told
        ([LINE.format(5, "10001b000")], 13, [FIVE | {"gpu": "1000:1b:00"}]),  # with a domain
        (["[rank13]: " + LINE.format(n, "9a000").replace("4242", str(4242 + n)) for n in range(2)], None, []),  # no rank has two processes
        (["[rank13]: " + LINE.format(8, "9a000")], None, []),  # no rank of eight
        (["13: " + LINE.format(5, "9a000")], None, [FIVE]),  # the task of srun --label
        (["13: " + LINE.format(n, "9a000").replace("4242", str(4242 + n)) for n in range(2)], None, []),  # a task of several is a node
        (["[rank 13] hostname=host-a local_rank=5 pid=4242 backend=gloo"], None, [FIVE | {"gpu": None, "local_rank": 5}]),
        (['{"rank": 13, "local_rank": 5, "pid": 4242, "host": "host-a.site"}'], None, [FIVE | {"gpu": None, "local_rank": 5}]),
        (["[rank 13] local_rank=5 pid=4242"], None, []),  # on which host is not told
    ],
)
def test_rank_process_and_gpu(lines: list[str], said: int | None, rows: list[dict[str, object]]) -> None:
    devices = Devices(said)
    devices.hear(lines, 7)
    assert devices.rows() == rows


def test_a_task_that_is_a_node_is_no_rank() -> None:
    devices = Devices(None)
    devices.hear(["13: " + LINE.format(5, "9a000")], 7)
    assert devices.rows(tasks_are_nodes=True) == []
