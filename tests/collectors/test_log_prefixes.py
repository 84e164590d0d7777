"""What stands before a message, in every form that launchers, engines and loggers write it: alone, nested in one another, and around tracebacks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _sources import rows_of, source_of

from collectors import trainer_log
from collectors._log_prefix import Line, parse, pieces

BODY = "RuntimeError: CUDA error: an illegal memory access was encountered"
# prefix, local stamp, level, global rank, host, task
FORMS: tuple[tuple[str, str | None, str | None, int | None, str | None, int | None], ...] = (
    ("3: ", None, None, None, None, 3),
    (" 3: ", None, None, None, None, 3),
    ("0003: ", None, None, None, None, 3),
    ("host-a: ", None, None, None, "host-a", None),
    ("host-a12: ", None, None, None, "host-a12", None),
    ("node001: ", None, None, None, "node001", None),
    ("ip-10-0-0-12: ", None, None, None, "ip-10-0-0-12", None),
    ("worker-3: ", None, None, None, "worker-3", None),
    ("a100-st-p4d24xlarge-1: ", None, None, None, "a100-st-p4d24xlarge-1", None),
    ("gpu-node-7.cluster.local: ", None, None, None, "gpu-node-7", None),
    ("192.0.2.17: ", None, None, None, "192.0.2.17", None),
    ("[default3]:", None, None, None, None, None),
    ("[default3]: ", None, None, None, None, None),
    ("[rank3]:", None, None, 3, None, None),
    ("[rank3]: ", None, None, 3, None, None),
    ("[rank 3]: ", None, None, 3, None, None),
    ("[RANK 3] ", None, None, 3, None, None),
    ("[Rank 3] ", None, None, 3, None, None),
    ("(rank 3) ", None, None, 3, None, None),
    ("rank3: ", None, None, 3, None, None),
    ("rank 3: ", None, None, 3, None, None),
    ("Rank 3: ", None, None, 3, None, None),
    ("[rank=3] ", None, None, 3, None, None),
    ("rank=3 ", None, None, 3, None, None),
    ("[3]: ", None, None, None, None, None),
    ("[gpu-check] 2026-03-04 05:06:07 ", "2026-03-04T05:06:07", None, None, None, None),
    ("[trainer3]:", None, None, None, None, None),
    ("[trainer3]:[rank9]: ", None, None, 9, None, None),
    ("[pod/worker-3/pytorch] ", None, None, None, "worker-3", None),
    ("worker-3 pytorch ", None, None, None, "worker-3", None),
    ("worker-3 \u203a pytorch ", None, None, None, "worker-3", None),
    ("worker-3  | ", None, None, None, "worker-3", None),
    ("trainer_1  | ", None, None, None, "trainer_1", None),
    ("trainer-1 | ", None, None, None, "trainer-1", None),
    ("2026-03-04T05:06:07.123456789Z stdout F ", "2026-03-04T05:06:07.123456", None, None, None, None),
    ("2026-03-04T05:06:07.123456789+02:00 stderr F ", "2026-03-04T05:06:07.123456", None, None, None, None),
    ("2026-03-04T05:06:07.123456789Z stderr P ", "2026-03-04T05:06:07.123456", None, None, None, None),
    ("Mar 04 05:06:07.123456 host-a python[123]: ", "03-04T05:06:07.123456", None, None, "host-a", None),
    ("Mar  4 05:06:07 host-a python[123]: ", "03-04T05:06:07", None, None, "host-a", None),
    ("Mar 04 05:06:07 host-a slurmstepd[123]: ", "03-04T05:06:07", None, None, "host-a", None),
    ("2026-03-04T05:06:07+0000 host-a python3[123]: ", "2026-03-04T05:06:07", None, None, "host-a", None),
    ("2026-03-04T05:06:07.123456+00:00 host-a train.sh[123]: ", "2026-03-04T05:06:07.123456", None, None, "host-a", None),
    ("(RayTrainWorker pid=123, ip=10.0.0.1) ", None, None, None, "10.0.0.1", None),
    ("(RayTrainWorker pid=123) ", None, None, None, None, None),
    ("(TorchTrainer pid=123, ip=10.0.0.1) ", None, None, None, "10.0.0.1", None),
    ("\x1b[36m(RayTrainWorker pid=123, ip=10.0.0.1)\x1b[0m ", None, None, None, "10.0.0.1", None),
    ("(pid=123, ip=10.0.0.1) ", None, None, None, "10.0.0.1", None),
    ("(pid=123) ", None, None, None, None, None),
    ("(raylet, ip=10.0.0.1) ", None, None, None, "10.0.0.1", None),
    ("(main_task pid=12) ", None, None, None, None, None),
    ("[1,3]<stdout>:", None, None, None, None, 3),
    ("[1,3]<stderr>: ", None, None, None, None, 3),
    ("[1,3]<stderr> ", None, None, None, None, 3),
    ("[1,3]:", None, None, None, None, 3),
    ("[prterun-host-a-12@1,3]<stderr>: ", None, None, None, None, 3),
    ("Wed Mar  4 05:06:07 2026[1,3]<stderr>:", "2026-03-04T05:06:07", None, None, None, 3),
    ("[3]<stdout>:", None, None, None, None, 3),
    ("Wed Mar  4 05:06:07 2026[3]<stderr>:", "2026-03-04T05:06:07", None, None, None, 3),
    ("2026-03-04T05:06:07.884Z: [1,12]<stdout>:", "2026-03-04T05:06:07.884", None, None, None, 12),
    ("E0304 05:06:07.123456 12 train.cc:5] ", "03-04T05:06:07.123456", "error", None, None, None),
    ("[E304 05:06:07.123456789 train.cc:5] ", "03-04T05:06:07.123456", "error", None, None, None),
    ("E20260304 05:06:07.123456 12 train.cc:5] ", "2026-03-04T05:06:07.123456", "error", None, None, None),
    ("2026-03-04 05:06:07,123 - root - ERROR - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07,123 - my-trainer - ERROR - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07,123 ERROR ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07,123 [ERROR] ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07,123 root ERROR ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("[2026-03-04 05:06:07,123][train][ERROR] - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("[2026-03-04 05:06:07,123] [ERROR] [launch.py:3:main] ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("[2026-03-04 05:06:07,123] [ERROR] [axolotl.train:123] [PID:12] [RANK:3] ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("[2026-03-04 05:06:07,123] [ERROR] [axolotl.train.main:123] [PID:12] [RANK:3] ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07.123 | ERROR    | train:main:12 - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07.123 | ERROR    | __main__:<module>:12 - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("2026-03-04 05:06:07 | ERROR | train | ", "2026-03-04T05:06:07", "error", None, None, None),
    ("[NeMo E 2026-03-04 05:06:07 train:12] ", "2026-03-04T05:06:07", "error", None, None, None),
    ("[NeMo W 2026-03-04 05:06:07 nemo_logging:349] ", "2026-03-04T05:06:07", "warning", None, None, None),
    ("[titan] 2026-03-04 05:06:07,123 - root - ERROR - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("[rank3]:[titan] 2026-03-04 05:06:07,123 - root - ERROR - ", "2026-03-04T05:06:07.123", "error", 3, None, None),
    ("[rank3]:2026-03-04 05:06:07,123 - root - ERROR - ", "2026-03-04T05:06:07.123", "error", 3, None, None),
    ("ERROR:root:", None, "error", None, None, None),
    ("ERROR:torch.distributed.elastic.multiprocessing.api:", None, "error", None, None, None),
    ("ERROR - ", None, "error", None, None, None),
    ("[ERROR] ", None, "error", None, None, None),
    ("[ERROR|trainer.py:123] 2026-03-04 05:06:07,123 >> ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("03/04/2026 05:06:07 - ERROR - __main__ - ", "2026-03-04T05:06:07", "error", None, None, None),
    ("[03/04/2026 05:06:07][ERROR] ", "2026-03-04T05:06:07", "error", None, None, None),
    ("03/04 05:06:07 ERROR ", "03-04T05:06:07", "error", None, None, None),
    ("[2026-03-04T05:06:07Z] ", "2026-03-04T05:06:07", None, None, None, None),
    ("2026/03/04 05:06:07 ", "2026-03-04T05:06:07", None, None, None, None),
    ("20260304 05:06:07 ", "2026-03-04T05:06:07", None, None, None, None),
    ("1772600767.123456 ", None, None, None, None, None),
    ("[1772600767.123] ", None, None, None, None, None),
    ("05:06:07 ", "05:06:07", None, None, None, None),
    ("05:06:07.123 ERROR ", "05:06:07.123", "error", None, None, None),
    ("[05:06:07] ", "05:06:07", None, None, None, None),
    ("Wed Mar  4 05:06:07 2026 ", "2026-03-04T05:06:07", None, None, None, None),
    ("[Wed Mar 04 05:06:07 2026] ", "2026-03-04T05:06:07", None, None, None, None),
    ("Wed Mar  4 05:06:07 UTC 2026 ", "2026-03-04T05:06:07", None, None, None, None),
    ("04-Mar-2026 05:06:07 ", "2026-03-04T05:06:07", None, None, None, None),
    ("[2026-03-04 05:06:07] host-a:123:456 [3] ", "2026-03-04T05:06:07", None, None, "host-a", None),
    ("[2026-03-04 05:06:07.123] host-a:123:456 [3] ", "2026-03-04T05:06:07.123", None, None, "host-a", None),
    ("host-a:123:456 [3] ", None, None, None, "host-a", None),
    ("> ", None, None, None, None, None),
    ("> > ", None, None, None, None, None),
    (">>> ", None, None, None, None, None),
    ("[12] ", None, None, None, None, None),
    ("12 | ", None, None, None, None, None),
    ("  12\t", None, None, None, None, None),
    ("stderr: ", None, None, None, None, None),
    ("[stderr] ", None, None, None, None, None),
    ("submitit ERROR (2026-03-04 05:06:07,123) - ", "2026-03-04T05:06:07.123", "error", None, None, None),
    ("[36m[2026-03-04 05:06:07,123][0m ", "2026-03-04T05:06:07.123", None, None, None, None),
    ("\x1b[1;31mERROR\x1b[0m ", None, "error", None, None, None),
    (
        "\x1b[32m2026-03-04 05:06:07.123\x1b[0m | \x1b[1mERROR   \x1b[0m | \x1b[36mtrain\x1b[0m:\x1b[36mmain\x1b[0m:\x1b[36m12\x1b[0m - ",
        "2026-03-04T05:06:07.123",
        "error",
        None,
        None,
        None,
    ),
    ("(EngineCore_0 pid=12) ERROR 03-04 05:06:07 [core.py:12] ", "03-04T05:06:07", "error", None, None, None),
    ("(Worker_TP3 pid=12) ", None, None, None, None, None),
    ("ERROR 03-04 05:06:07 [multiproc_executor.py:12] ", "03-04T05:06:07", "error", None, None, None),
    ("INFO 03-04 05:06:07 utils.py:12] ", "03-04T05:06:07", "info", None, None, None),
    ("[gpu:3] ", None, None, None, None, None),
    ("[PG ID 2 PG GUID 5(tp) Rank 1] ", None, None, None, None, None),
    ("[rank3]:[E304 05:06:07.1 x.cpp:1] [PG ID 2 PG GUID 5(tp) Rank 1] ", "03-04T05:06:07.1", "error", 3, None, None),
    ("[0] ", None, None, None, None, None),
    ("[host-a][rank3] ", None, None, 3, "host-a", None),
    ("[host-a:rank3] ", None, None, 3, "host-a", None),
    ("[host-a:12345] ", None, None, None, "host-a", None),
    ("[W 2026-03-04 05:06:07,123 train.py:5] ", "2026-03-04T05:06:07.123", "warning", None, None, None),
    ('time="2026-03-04T05:06:07Z" level=error msg="', "2026-03-04T05:06:07", "error", None, None, None),
    ('ts=2026-03-04T05:06:07Z level=error msg="', "2026-03-04T05:06:07", "error", None, None, None),
    ('ts=2026-03-04T05:06:07Z caller=x.go:12 level=error msg="', "2026-03-04T05:06:07", "error", None, None, None),
    ("  | 2026-03-04T05:06:07.208-07:00 | ", "2026-03-04T05:06:07.208", None, None, None, None),
    ("2026-03-04T05:06:07.208-07:00host-a:85:85 [0] ", "2026-03-04T05:06:07.208", None, None, "host-a", None),
    ("algo-1-abcde  | ", None, None, None, "algo-1-abcde", None),
    ("[1] ", None, None, None, None, None),
    ("[36malgo-1 |[0m ", None, None, None, "algo-1", None),
    ("2026-03-04 05:06:07.123456: E external/xla/x.cc:12] ", "2026-03-04T05:06:07.123456", "error", None, None, None),
    ("I0000 00:00:1772600767.123456   12 x.cc:1] ", None, "info", None, None, None),
)
OUTER = (
    *(
        "3: ",
        "host-a12: ",
        "host-a: ",
        "node001: ",
        "ip-10-0-0-12: ",
        "192.0.2.17: ",
        "[default3]:",
        "[trainer3]:",
        "[rank3]: ",
        "[pod/worker-3/pytorch] ",
    ),
    *(
        "worker-3 pytorch ",
        "worker-3  | ",
        "2026-03-04T05:06:07.123456789Z stdout F ",
        "Mar  4 05:06:07 host-a python[123]: ",
        "[1,3]<stdout>:",
    ),
    *(
        "(RayTrainWorker pid=123, ip=10.0.0.1) ",
        "2026-03-04T05:06:07.884Z: ",
        "> ",
        "[12] ",
        "  12\t",
        "12 | ",
        "stderr: ",
        "[1772600767.123] ",
    ),
    *("05:06:07 ", "20260304 05:06:07 ", "\x1b[36m(RayTrainWorker pid=123, ip=10.0.0.1)\x1b[0m ", "  | 2026-03-04T05:06:07.208-07:00 | "),
)
INNER = (
    *("[rank7]:[E304 05:06:09.1 x.cpp:1] [Rank 7] ", "[rank7]:[E304 05:06:09.1 x.cpp:1] [PG ID 2 PG GUID 5(tp) Rank 1] ", "[rank7]: "),
    *(
        "[default5]:[rank7]: ",
        "host-b:123:456 [3] ",
        "2026-03-04 05:06:09,123 - root - ERROR - ",
        "ERROR:root:",
        "submitit ERROR (2026-03-04 05:06:09,123) - ",
    ),
    *(
        "[2026-03-04 05:06:09,123] [ERROR] [launch.py:3:main] ",
        "2026-03-04 05:06:09.123 | ERROR    | train:main:12 - ",
        "INFO 03-04 05:06:09 [core.py:12] ",
    ),
    *("[NeMo E 2026-03-04 05:06:09 train:12] ", "E0304 05:06:09.123456 12 torch/distributed/elastic/multiprocessing/api.py:874] "),
    *(
        "2026-03-04 05:06:09 [host-b][rank7] ERROR ",
        "[ERROR|trainer.py:123] 2026-03-04 05:06:09,123 >> ",
        "03/04/2026 05:06:09 - ERROR - __main__ - ",
    ),
)
GRAVEST_FIRST = ("error", "warning", "info", "debug")
TRACEBACK = f"""Traceback (most recent call last):
  File "/job/train.py", line 12, in main
    step(batch)
  File "/job/model.py", line 5, in forward
    return x @ w
{BODY}
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


def lines(raw: str) -> list[Line]:
    return [parse(piece, 1) for piece in pieces(raw)]


def events(folder: Path, text: str) -> list[dict[str, Any]]:
    return rows_of(trainer_log, source_of(folder, text.encode(), "x.log"))[0]["log_events"]


@pytest.mark.parametrize(("prefix", "local", "level", "rank", "host", "label"), FORMS, ids=[form[0] for form in FORMS])
def test_every_form_tells_what_it_holds_and_leaves_the_message(
    prefix: str, local: str | None, level: str | None, rank: int | None, host: str | None, label: int | None
) -> None:
    (line,) = lines(prefix + BODY)
    assert line.text.strip() == BODY
    assert (line.local, line.level, line.rank, line.host, line.label) == (local, level, rank, host, label)


def test_digits_of_another_script_are_no_number() -> None:
    for prefix in ("[rank\u0663]: ", "rank \u0663: ", "[rank1\u0663]: ", "\u0663: "):
        (line,) = lines(prefix + BODY)
        assert (line.rank, line.label) == (None, None), prefix


def test_forms_nest_in_one_another() -> None:
    for outer in OUTER:
        for inner in INNER:
            ((a,), (b,), (both,)) = (lines(prefix + BODY) for prefix in (outer, inner, outer + inner))
            level = next((level for level in GRAVEST_FIRST if level in (a.level, b.level)), None)
            host = a.host if a.host and not a.host[0].isdigit() else b.host or a.host  # a name says more than an address
            wanted = (a.local or b.local, level, b.rank if a.rank is None else a.rank, host, a.label, BODY)
            assert (both.local, both.level, both.rank, both.host, both.label, both.text.strip()) == wanted, outer + inner


def test_a_traceback_is_one_event_under_every_form(tmp_path: Path) -> None:
    for prefix, _, _, rank, host, label in FORMS:
        if prefix.endswith('msg="'):  # there a message is one line
            continue
        found = events(tmp_path, "".join(f"{prefix}{line}\n" for line in TRACEBACK.splitlines()))
        got = [(row["signature"], row["exception"], len(row["frames"] or []), row["rank"], row["host"]) for row in found]
        assert got == [("cuda_illegal_access", "RuntimeError", 2, label if rank is None else rank, host)], prefix


@pytest.mark.parametrize(
    "prefix",
    [
        "[default3]:",
        "local_rank: 3 ",
        "[local_rank 3] ",
        "[node_rank 3] ",
        "[GPU3] ",
        "[PID:7] [RANK:3] ",
        "(worker1, rank=3, pid=7, ip=10.0.0.1) ",
        "[3] ",
        "[PG 2 Rank 3] ",
        "[PG ID 2 PG GUID 5(tp) Rank 3] ",
    ],
)
def test_a_rank_of_a_node_or_a_group_is_no_rank(prefix: str) -> None:
    (line,) = lines(prefix + BODY)
    assert line.rank is None
    assert line.label is None


def test_a_task_is_told_from_a_node_by_the_rank_beside_it(tmp_path: Path) -> None:
    body = "[E ProcessGroupNCCL.cpp:587] [Rank 3] Watchdog caught collective operation timeout"
    assert [(row["rank"], row["group_rank"]) for row in events(tmp_path, f"12: {body}\n")] == [(12, 3)]  # no node 12 has rank 3
    assert [(row["rank"], row["group_rank"]) for row in events(tmp_path, f"1: {body}\n")] == [(3, None)]
    assert [
        row["rank"] for row in events(tmp_path, "0: slurmstepd: error: *** STEP 1.0 ON host-a CANCELLED AT 2026-03-04T05:06:07 ***\n")
    ] == [None]


def test_the_speaker_of_an_error_stands_behind_its_kind_where_nothing_stands_before_it(tmp_path: Path) -> None:
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    for text, rank, group_rank in (
        (f"RuntimeError: [Rank 3] {watchdog}", 3, None),
        (f"  what():  [Rank 3] {watchdog}", 3, None),
        (f"  what():    what():  [PG ID 2 PG GUID 9(tp) Rank 1] {watchdog}", None, 1),
        (f"[rank9]: RuntimeError: [Rank 3] {watchdog}", 9, None),
        (f'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\nRuntimeError: [Rank 3] {watchdog}', 3, None),
    ):
        assert [(row["signature"], row["rank"], row["group_rank"]) for row in events(tmp_path, text + "\n")] == [
            ("nccl_watchdog_timeout", rank, group_rank)
        ], text


def test_a_stamp_is_an_instant_where_its_zone_is_known() -> None:
    at = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    for prefix in (
        *(
            "[1772600767] ",
            "1772600767.0 ",
            "Wed Mar  4 05:06:07 UTC 2026 ",
            "2026-03-04T07:06:07+02:00 ",
            "2026-03-04T05:06:07Z stdout F ",
        ),
        *("04-Mar-2026 05:06:07Z ", "20260304 05:06:07Z ", "2026-03-03T22:06:07-0700 host-a python[1]: "),
    ):
        assert lines(prefix + BODY)[0].at == at, prefix
    for prefix in ("Wed Mar  4 05:06:07 CET 2026 ", "2026-02-30T05:06:07Z ", "03-04 05:06:07 ", "12 "):
        assert lines(prefix + BODY)[0].at is None, prefix


def test_what_passes_a_line_on_may_think_little_of_it() -> None:
    assert lines("2026-03-04 05:06:07,123 INFO stderr: x")[0].level == "info"
    assert lines("2026-03-04 05:06:07,123 INFO [rank3]:[E304 05:06:07.1 x.cpp:1] x")[0].level == "error"


WATCHDOG = "Watchdog caught collective operation timeout"


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (f"step 12 | loss 2.0[rank3]:[E304 05:06:07.1 a.cpp:5] [Rank 3] {WATCHDOG}", [(None, "step 12 | loss 2.0"), (3, WATCHDOG)]),
        (f"[rank3]:[E304 05:06:07.1 a.cpp:5] x.[rank4]:[E304 05:06:07.1 a.cpp:5] {WATCHDOG}", [(3, "x."), (4, WATCHDOG)]),
        (f"3%|#| 3/5 [6:28<94:39, 1.37it/s, loss=2.6][E ProcessGroupNCCL.cpp:458] [Rank 0] {WATCHDOG}", [(None, None), (0, WATCHDOG)]),
        (
            "100%|##| 10/10 [00:01<00:00, 9.9it/s]Traceback (most recent call last):",
            [(None, None), (None, "Traceback (most recent call last):")],
        ),
        (
            "saving\rdone\r[rank0]: Traceback (most recent call last):",
            [(None, "saving"), (None, "done"), (0, "Traceback (most recent call last):")],
        ),
        (f"2026-02-18T10:48:25.681Z [rank7]:[E218 10:48:25.1 a.cpp:632] [Rank 7] {WATCHDOG}", [(7, WATCHDOG)]),
        ("Original Traceback (most recent call last):", [(None, "Original Traceback (most recent call last):")]),
        (f"[Rank 4] NCCL watchdog thread terminated with exception: [Rank 4] {WATCHDOG}", [(4, None)]),
        (
            "srun: error: host-a: task 0: Killedslurmstepd: error: *** x",
            [(None, "srun: error: host-a: task 0: Killed"), (None, "slurmstepd: error: *** x")],
        ),
    ],
)
def test_writers_that_share_a_line_are_told_apart(raw: str, wanted: list[tuple[int | None, str | None]]) -> None:
    found = lines(raw)
    assert [line.rank for line in found] == [rank for rank, _ in wanted]
    assert all(text is None or line.text.strip() == text for line, (_, text) in zip(found, wanted, strict=True))


def test_colours_are_taken_away_however_they_were_written_down() -> None:
    for escape in ("\x1b", "^[", "#033", r"\x1b", r"\u001b", ""):
        assert lines(f"{escape}[1;31m[rank3]{escape}[0m: {BODY}")[0].rank == 3, repr(escape)
    assert lines(f"\x1b]0;window\x07\x1b(B{BODY}")[0].text == BODY


def reports(rank: int) -> list[str]:
    lead = f"[rank{rank}]:[E304 05:06:07.12345678{rank} ProcessGroupNCCL.cpp:607]"
    work = "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000)"
    return [
        f"{lead} [Rank {rank}] {WATCHDOG}: {work} ran for 60006{rank} milliseconds before timing out.",
        f"{lead} [PG 1 Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582.",
        f"{lead} [PG 1 Rank {rank}] First PG on this rank to signal dumping.",
    ]


def test_a_terminal_s_width_takes_nothing_away(tmp_path: Path) -> None:
    whole = [line for rank in range(3) for line in reports(rank)]
    wanted = sorted(
        (name, rank, 1) for rank in range(3) for name in ("nccl_watchdog_timeout", "nccl_watchdog_detected", "nccl_dump_signal")
    )
    for width in (72, 80, 100, 120, 132, 158):
        broken = [line[at : at + width] for line in whole for at in range(0, len(line), width)]
        for text in (
            "\n".join(broken),
            "\r\n".join(broken) + "\r\n",
            "\n".join(line.rstrip() for line in broken),
            "".join(f"> {line}\n" for line in broken),
            "\ufeff" + "\n".join(broken),
        ):
            found = sorted((row["signature"], row["rank"], row["num_folded"]) for row in events(tmp_path, text + "\n"))
            assert found == wanted, (width, text[:300])


def test_equal_lines_are_no_terminal_s_width(tmp_path: Path) -> None:
    refused = (
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [host-a.example]:29500 (errno: 111 - Connection refused)."
    )
    for rest in (
        "Timed out after 1801 seconds waiting for clients. 7/8 clients joined.",
        "torch.distributed.DistStoreError: Socket Timeout",
    ):
        found = events(tmp_path, f"{refused}\n{refused}\n{rest}\n")
        assert [(row["num_folded"], row["record"]) for row in found] == [(2, "L1"), (1, "L3")], rest


def test_the_marks_of_open_mpi_and_of_slurm_s_daemon_beside_a_host(tmp_path: Path) -> None:
    (row,) = events(tmp_path, "gpu-5: [gpu-5:20331] *** Process received signal ***\ngpu-5: [gpu-5:20331] Signal: Aborted (6)\n")
    assert (row["signature"], row["signal"], row["host"]) == ("process_signal", "SIGABRT", "gpu-5")
    (row,) = events(
        tmp_path, "slurmstepd-host-a12: error: *** STEP 1.0 ON host-a12 CANCELLED AT 2026-03-04T05:06:07 DUE TO TIME LIMIT ***\n"
    )
    assert (row["signature"], row["host"]) == ("slurm_time_limit", None)
