"""Records that stand a time-out before the teardown, beside logs of other kinds, without a map, or beside links that broke with them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from _house import call, read_folder
from _rack import HGX, NOON, TORN_DOWN, Rack, local_time

from rca.case import MemoryCase
from rca.questions import ask
from rca.types import Outcome

BAD = 12  # a rank of the second of three hosts
FAULT = (
    (0.0, 48, "pid='<unknown>', name=<unknown>, DBE (double bit error) has been detected on GPU in the framebuffer"),
    (0.002, 63, "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate."),
    (0.01, 94, "pid={pid}, name=python3, Contained: SM (0x1). RST: No, D-RST: No"),
    (0.02, 45, TORN_DOWN),
)
LINK = "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"


def broken(gap_s: float) -> Rack:
    """A memory fault `gap_s` before the end of all other processes."""
    rack = Rack(num_hosts=3, gpus=HGX)
    for seconds, code, body in FAULT:
        rack.xid(BAD, seconds - gap_s, code, body)
    return rack.torn_down((r for r in range(rack.world_size) if r != BAD), 0.0, times=2)


def asked(folder: Path) -> Outcome:
    with read_folder(folder) as tables:
        outcome = ask(MemoryCase(tables), "fatal_xid")
    assert outcome.status != "failed", outcome.why
    return outcome


def trainers(folder: Path, rack: Rack, gap_s: float, timeout_ms: int = 600_000) -> Path:
    """torchrun.log with torch's own stamps, which have no zone: steps up to the fault, then the watchdog of every other rank."""

    def stamp(seconds: float) -> str:
        return f"{NOON + timedelta(seconds=seconds):%m%d %H:%M:%S}.{int(seconds * 1000) % 1000:03d}000000"

    lines = [f"[rank{r}]:[I{stamp(-gap_s - 60 + 6 * n)} train.py:10] step {n} loss 2.1" for n in range(10) for r in (0, 1)]
    lines += [
        f"[rank{r}]:[E{stamp(-5 + r / 100)} ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)={timeout_ms}) ran for {timeout_ms + 42} milliseconds "
        "before timing out."
        for r in range(rack.world_size)
        if r != BAD
    ]
    (folder / "torchrun.log").write_text("\n".join(lines) + "\n")
    return folder


def test_root_counts_whatever_time_out_lies_before_the_teardown(tmp_path: Path) -> None:
    for gap_s in (5.0, 590.0, 599.0, 601.0, 1800.0, 2100.0):
        for has_log in (False, True):
            rack = broken(gap_s)
            folder = rack.write(tmp_path / f"{gap_s}-{has_log}")
            (found,) = asked(trainers(folder, rack, gap_s) if has_log else folder).findings
            assert (found.sign, found.ranks, found.hosts) == ("gpu_memory_record", (BAD,), ("host-01",)), (gap_s, has_log)


def test_stated_time_out_reaches_further_than_the_defaults(tmp_path: Path) -> None:
    rack = broken(7205.0)
    outcome = asked(rack.write(tmp_path / "a"))
    assert [f.ranks for f in outcome.findings] == [()]  # two hours before the last records: of the job or not, that is not told
    assert "Xid 48 of host-01 GPU 0000:9d:00" in outcome.why
    (found,) = asked(trainers(rack.write(tmp_path / "b"), rack, 7205.0, 7_200_000)).findings
    assert found.ranks == (BAD,)


def test_dated_watchdog_dates_the_job_back_to_the_call_that_hung(tmp_path: Path) -> None:
    """Logs that begin with the watchdog's line: the call that it speaks of began ten minutes before."""
    rack = broken(605.0)
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600042 milliseconds"
    words = {r: [(-5.0 + r / 100, f"ERROR [rank{r}] {text} before timing out.")] for r in (0, 1, 2)}
    (found,) = asked(rack.write(tmp_path, logs_of=words)).findings
    assert found.ranks == (BAD,)


def test_fault_of_an_earlier_job_is_told_and_not_counted(tmp_path: Path) -> None:
    """The same fault, but the processes of its host ended then, and others end now."""
    rack = broken(1500.0)
    for rank in (8, 9, 10, 11):
        rack.xid(rank, -1499.0, 45, f"pid={300 + rank}, name=python3, Ch 0")
    (found,) = asked(rack.write(tmp_path)).findings
    assert (found.sign, found.ranks, found.hosts, found.numbers["not_counted"]) == ("not_counted", (), (), 2)
    assert "broken_beside" not in found.numbers  # what an earlier job met tells nothing of this one's restart
    assert "Xid 48 of host-01 GPU 0000:9d:00 at 2026-03-01 11:35:00 UTC" in found.says
    assert found.cites


def test_old_line_of_another_host_does_not_hide_the_record_of_a_process_of_the_job(tmp_path: Path) -> None:
    """The host of the fault has stamps without zone, one of the others dated lines, the third an old stall of a file server."""
    for name, old in (("dated", None), ("undated", local_time)):
        rack = broken(585.0)
        folder = rack.write(tmp_path / name)
        rack.stamp = local_time
        here = rack.write(tmp_path / f"{name}-local")
        (folder / "host-01.dmesg.log").write_text((here / "host-01.dmesg.log").read_text())
        third = folder / "host-02.dmesg.log"
        text = (here / "host-02.dmesg.log" if old else third).read_text()
        stamp = (old or Rack().stamp)(-5 * 3600.0)
        third.write_text(f"{stamp} nfs: server storage not responding, still trying\n{text}")
        (found,) = asked(trainers(folder, rack, 585.0)).findings
        assert (found.sign, found.ranks, found.hosts) == ("gpu_memory_record", (BAD,), ("host-01",)), name


def test_kernel_logs_alone_name_host_and_gpu_and_ask_for_a_map(tmp_path: Path) -> None:
    folder = broken(605.0).write(tmp_path / "all")
    (folder / "ranks.csv").unlink()
    done = call("diagnose", folder, "--json")
    assert done.code == 0
    verdict, advice = done.doc["verdict"], done.doc["advice"]
    assert (verdict["cause"], verdict["first_failing"]["ranks"], verdict["first_failing"]["hosts"]) == ("gpu_memory_fault", [], ["host-01"])
    assert advice["evict"]["hosts"] == ["host-01"]
    assert "map of ranks to hosts" in advice["because"]
    assert advice["replay"] is None
    (found,) = [f for f in done.doc["findings"] if f["analysis"] == "fatal_xid"]
    assert "Xid 48 GPU 0000:9d:00" in found["says"]
    assert "no map of ranks to hosts was given" in found["says"]


def test_one_log_that_names_no_host_shows_its_record_and_evicts_nobody(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_text((broken(605.0).write(tmp_path / "all") / "host-01.dmesg.log").read_text())
    done = call("diagnose", tmp_path / "kern.log")
    assert "Xid 48 GPU 0000:9d:00" in done.out
    assert "no kernel log of any host" not in done.out
    assert "No readable evidence" not in done.out
    assert "map of ranks to hosts" in done.out
    assert "evict" not in done.out


def test_memory_fault_of_one_host_explains_the_links_of_all_others(tmp_path: Path) -> None:
    for after_s in (1.0, 31.0, 60.0):
        rack = broken(70.0)
        for rank in (0, 16):
            rack.xid(rank, -70.0 + after_s, 74, LINK)
        (found,) = asked(rack.write(tmp_path / str(after_s))).findings
        assert (found.sign, found.ranks, found.hosts) == ("gpu_memory_record", (BAD,), ("host-01",)), after_s
        assert "Xid 74 on 2 GPUs of 2 hosts" in found.says
    lost = Rack(num_hosts=3, gpus=HGX)
    for rank in (3, 20):
        lost.xid(rank, 0.0, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    advice = call("diagnose", lost.write(tmp_path / "lost"), "--json").doc["advice"]
    assert (advice["replay"], advice["evict"]["hosts"]) == (None, [])
    assert "host-00, host-02" in advice["because"]
    assert "ranks" not in json.dumps(advice["because"])


def test_gpu_lost_after_the_first_fault_is_told_as_broken_beside(tmp_path: Path) -> None:
    rack = broken(590.0)
    rack.xid(1, -10.0, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    (found,) = asked(rack.write(tmp_path)).findings
    assert found.hosts == ("host-01",)
    (beside,) = found.numbers["broken_beside"]
    assert (beside["host"], beside["record"].partition(" of ")[0]) == ("host-00", "Xid 79")
