"""Chains of kernel records: which began it, and whom the answer evicts. Every scene is kernel logs and a rank map, read as they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from _house import call, read_folder
from _rack import HGX, LINK_DOWN, LINK_RECOVERED, LOST_PACKETS, Rack, local_time, rack_with_a_bad_link, since_boot, victims_words

from rca.analyses._kernel_edges import edges
from rca.case import MemoryCase
from rca.catalogues import by_code
from rca.questions import ask
from rca.types import Finding, Outcome

BAD = 21  # the rank whose link fails in the rack; it runs on host-05
REMAPPED = "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate."
NO_REMAP = "pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row"
CONTAINED = "pid={pid}, name=python, Contained: FB DED (0x2). RST: No, D-RST: No"
CONTAINED_SM = "pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No"
PRIVILEGE = "pid={pid}, name=python, NVLink: FBHUB interrupt hit on link 3 on GPU2: PRIV Error"
OFF_THE_BUS = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FIRMWARE = "pid={other}, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)"
MMU = "pid={pid}, name=python, Ch 00000012, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f_5b000000. Fault is of type"
SM = "pid={pid}, name=python, Graphics SM Warp Exception on (GPC {gpc}, TPC 1, SM 0): Illegal Instruction Encoding"
DOUBLE_BIT = "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU"


def ask_of(rack: Rack, folder: Path, **how: object) -> Outcome:
    with read_folder(rack.write(folder, **how)) as tables:  # type: ignore[arg-type]
        outcome = ask(MemoryCase(tables), "fatal_xid")
    assert outcome.status != "failed", outcome.why
    return outcome


def only(rack: Rack, folder: Path, **how: object) -> Finding:
    (finding,) = ask_of(rack, folder, **how).findings
    assert finding.cites
    return finding


def host() -> Rack:
    return Rack(num_hosts=1, gpus=HGX)


def other_way_round(rack: Rack) -> Rack:
    """The same lines, those of equal times in the other order: nothing may depend on how a log is sorted."""
    rack.lines = {name: list(reversed(lines)) for name, lines in rack.lines.items()}
    return rack


# The rack: one bad link among 64 GPUs


@pytest.mark.parametrize("off_s", [0.0, 7.0, -4.0, 45.0])
def test_one_end_of_the_bad_link_is_evicted_whatever_its_clock_says(off_s: float, tmp_path: Path) -> None:
    rack = rack_with_a_bad_link(BAD)
    rack.off_s = {"host-05": off_s}
    found = only(rack, tmp_path)
    assert (found.sign, found.ranks, found.hosts) == ("nvlink_record", (BAD,), ("host-05",))
    followed = {told["name"]: told["num_gpus"] for told in found.numbers["followed_by"]}
    assert followed == {"Xid 145": 63, "Xid 45": 63}
    assert "Xid 145 on 63 GPUs of 16 hosts" in found.says
    assert [cite.text.split("): ")[1].split(",")[0] for cite in found.cites] == ["149", "145", "45"]


@pytest.mark.parametrize("stamp", [since_boot, local_time])
def test_rack_whose_logs_have_no_instants_is_told_by_what_stands_at_their_ends(stamp: Callable[[float], str], tmp_path: Path) -> None:
    rack = rack_with_a_bad_link(BAD)
    rack.stamp = stamp
    found = only(rack, tmp_path / "a")
    assert (found.sign, found.ranks, found.hosts, found.numbers["failed_at"]) == ("nvlink_record", (BAD,), ("host-05",), None)
    words = {0: [(n - 20.0, f"INFO [rank0] step {n} loss 2.0") for n in range(20)]}
    assert only(rack, tmp_path / "c", logs_of=words).hosts == ("host-05",)
    old = Rack(num_hosts=2, stamp=stamp).xid(5, -86400, 79, OFF_THE_BUS)
    assert only(old, tmp_path / "b").sign == "doubtful_record"


def test_rack_diagnosed_from_beside_the_logs_of_its_victims(tmp_path: Path) -> None:
    rack = rack_with_a_bad_link(BAD)
    done = call("diagnose", rack.write(tmp_path / "rack", logs_of=victims_words(rack, BAD)), "--json")
    verdict, advice = done.doc["verdict"], done.doc["advice"]
    assert (verdict["cause"], verdict["first_failing"]["hosts"], advice["action"]) == ("nvlink_fault", ["host-05"], "replace")
    assert advice["evict"]["hosts"] == ["host-05"]


def test_without_the_log_of_the_bad_end_nobody_is_evicted_and_the_gap_is_named(tmp_path: Path) -> None:
    rack = rack_with_a_bad_link(BAD)
    words = victims_words(rack, BAD)
    first_heard = {rank: lines for rank, lines in words.items() if rank in (3, BAD)}  # one victim's error, and none of the others'
    done = call("diagnose", rack.write(tmp_path / "rack", without={"host-05"}, logs_of=first_heard), "--json")
    assert (done.doc["verdict"]["cause"], done.doc["advice"]["evict"]["hosts"]) == ("nvlink_fault", [])
    assert done.doc["verdict"]["first_failing"]["ranks"] == []
    (record,) = [f for f in done.doc["findings"] if f["analysis"] == "fatal_xid"]
    assert (record["sign"], record["numbers"]["unread_hosts"]) == ("peer_record", ["host-05"])
    assert "no kernel log of host-05" in record["says"]


def test_lost_packets_alone_accuse_nobody(tmp_path: Path) -> None:
    rack = Rack(num_hosts=4)
    for rank in range(16):
        rack.xid(rank, rank / 100, 145, LOST_PACKETS)
    found = only(rack.torn_down(range(16), 3.0), tmp_path)
    assert (found.sign, found.ranks, found.hosts, found.numbers["unread_hosts"]) == ("peer_record", (), (), [])


def test_of_two_ends_on_several_hosts_the_one_that_was_bad_before(tmp_path: Path) -> None:
    rack = Rack(num_hosts=4)
    rack.xid(5, 0.0, 149, LINK_DOWN).xid(10, 0.2, 149, LINK_DOWN)
    found = only(rack, tmp_path / "a")
    assert (found.ranks, len(found.hosts)) == ((), 2)
    rack.xid(10, -86400, 149, LINK_RECOVERED)
    assert only(rack, tmp_path / "b").hosts == ("host-02",)


def test_fault_that_the_job_outlived_did_not_end_it(tmp_path: Path) -> None:
    rack = Rack(num_hosts=2).xid(1, -3600.0, 94, CONTAINED).xid(6, 0.0, 79, OFF_THE_BUS)
    words = {rank: [(n * 60.0 - 7200.0, f"INFO [rank{rank}] step {n} loss 2.0") for n in range(120)] for rank in (0, 5)}
    assert only(rack, tmp_path / "a", logs_of=words).ranks == (6,)
    survived = Rack(num_hosts=2).xid(1, -3600.0, 94, CONTAINED)
    assert ask_of(survived, tmp_path / "b", logs_of=words).status == "clear"


def test_link_that_goes_on_is_no_strong_record(tmp_path: Path) -> None:
    found = only(Rack(num_hosts=1).xid(1, 0.0, 149, LINK_RECOVERED), tmp_path)
    assert found.sign == "nonfatal_link_record"


def test_teardown_never_hides_the_gpu_that_degrades(tmp_path: Path) -> None:
    rack = Rack(num_hosts=6)
    rack.torn_down((r for r in range(24) if r != 9), 0.0, times=500).xid(9, -3.0, 64, NO_REMAP)
    assert only(rack, tmp_path).hosts == ("host-02",)


# Chains on one host: code, rank, seconds, body


def say(rack: Rack, *told: tuple[int, int, float, str]) -> Rack:
    for rank, code, seconds, body in told:
        rack.xid(rank, seconds, code, body.replace("{other}", "999"))
    return rack


CHAINS: dict[str, tuple[tuple[tuple[int, int, float, str], ...], str, tuple[int, ...], str]] = {
    # what is logged; sign, ranks accused, policy
    "torn down by a fault": (((2, 79, 0, OFF_THE_BUS), (2, 45, 0.2, "pid={pid}, name=python, Ch 0"), (2, 154, 0.3, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")), "gpu_record", (2,), "reboot_host"),  # noqa: E501
    "a halted controller": (((3, 62, 0, "0000 0000 0000 0000 0000 0000 0000 0000"), (3, 45, 1, "pid={pid}, name=python, Ch 0"), (3, 119, 8, FIRMWARE), (3, 154, 8.1, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")), "gpu_record", (3,), "reset_gpu"),  # noqa: E501
    "memory repaired": (((1, 48, 0, DOUBLE_BIT), (1, 171, 0.001, "detail"), (1, 63, 0.4, REMAPPED), (1, 94, 2, CONTAINED), (1, 94, 90, CONTAINED), (1, 45, 3, "pid={pid}, name=python, Ch 0")), "gpu_memory_record", (1,), "reset_gpu"),  # noqa: E501
    "memory not repaired": (((1, 48, 0, DOUBLE_BIT), (1, 64, 0.4, NO_REMAP), (1, 94, 2, CONTAINED)), "gpu_memory_record", (1,), "replace_host"),
    "bad memory seen first by a program": (((4, 31, 0, MMU), (4, 48, 0.5, DOUBLE_BIT)), "gpu_memory_record", (4,), "reset_gpu"),
    "contained, once": (((5, 94, 0, CONTAINED),), "gpu_memory_record", (5,), "restart_job"),
    "contained, after a repair": (((5, 63, 0, REMAPPED), (5, 94, 90, CONTAINED)), "gpu_memory_record", (5,), "reset_gpu"),
    "contained, and the driver wants a reset": (((5, 94, 0, CONTAINED), (5, 154, 1, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")), "gpu_memory_record", (5,), "reset_gpu"),  # noqa: E501
    "a program's fault": (((6, 13, 0, SM.replace("{gpc}", "2")), (6, 43, 0.002, "pid={pid}, name=python, Ch 0"), (6, 109, 5, "pid={pid}, name=python, Ch 0, errorString CTX SWITCH TIMEOUT")), "application_record", (6,), "check_application"),  # noqa: E501
    "a lost GPU and its peers": (((2, 79, 0, OFF_THE_BUS), (0, 74, 0.5, "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"), (4, 74, 0.6, "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 5(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")), "gpu_record", (2,), "reboot_host"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("turn", [lambda rack: rack, other_way_round], ids=["as logged", "reversed"])
def test_chain_of_one_host_has_one_root(turn: Callable[[Rack], Rack], tmp_path: Path) -> None:
    for number, (name, (told, sign, ranks, policy)) in enumerate(CHAINS.items()):
        found = only(turn(say(host(), *told)), tmp_path / str(number))
        assert (found.sign, found.ranks, found.numbers["policy"]) == (sign, ranks, policy), name


def test_what_the_driver_asks_for_is_told(tmp_path: Path) -> None:
    found = only(say(host(), *CHAINS["torn down by a fault"][0]), tmp_path)
    assert "Xid 154 (the driver asks for: Node Reboot Required)" in found.says


def test_port_above_a_lost_gpu_is_no_gpu(tmp_path: Path) -> None:
    rack = host().say("host-00", 0.0, "pcieport 0000:40:01.0: AER: Uncorrected (Fatal) error received: 0000:40:01.0")
    alone = only(rack, tmp_path / "a")
    assert (alone.sign, alone.ranks) == ("pcie_record", ())
    found = only(rack.xid(6, 0.1, 79, OFF_THE_BUS), tmp_path / "b")
    assert (found.sign, found.ranks, found.numbers["gpu"]) == ("gpu_record", (6,), HGX[6])
    assert any("AER" in cite.text for cite in found.cites)


def test_switch_comes_before_the_links_of_its_gpus_and_after_a_lost_gpu(tmp_path: Path) -> None:
    rack = host().say("host-00", 0.0, "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 11009, Fatal, Link 32 ingress invalid VCSet")
    for rank in (1, 5):
        rack.xid(
            rank, 0.2, 74, "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
        )
    found = only(rack, tmp_path / "a")
    assert (found.hosts, found.numbers["gpu"], "SXid" in found.says) == (("host-00",), "0000:85:00", True)
    lost = host().xid(2, 0.0, 79, OFF_THE_BUS)
    lost.say("host-00", 12.0, "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 32 LTSSM Fault Up")
    assert only(lost, tmp_path / "b").ranks == (2,)


def test_of_a_pair_of_links_the_end_that_its_peers_name(tmp_path: Path) -> None:
    train = "pid='<unknown>', name=<unknown>, NVLink: Failed to train link 4 to remote PCI:{}"
    named = host().xid(0, 0.0, 74, train.format(HGX[3])).xid(6, 0.3, 74, train.format(HGX[3]))
    assert only(named, tmp_path / "a").ranks == (3,)
    pair = host().xid(0, 0.0, 74, train.format(HGX[3])).xid(3, 0.3, 74, train.format(HGX[0]))
    found = only(pair, tmp_path / "b")
    assert (found.ranks, found.hosts, found.numbers["candidates"]) == ((), ("host-00",), [0, 3])


def test_memory_errors_that_came_over_the_links_accuse_no_memory(tmp_path: Path) -> None:
    rack = host()
    for rank in (0, 1, 2, 4, 5, 6):
        rack.xid(rank, 0.1, 137, PRIVILEGE)
    rack.xid(3, 0.3, 94, CONTAINED_SM)
    found = only(rack, tmp_path / "a")
    assert (found.sign, found.ranks, found.hosts) == ("peer_access_record", (), ())
    own = only(host().xid(3, 0.3, 94, CONTAINED_SM), tmp_path / "b")
    assert (own.sign, own.numbers["policy"]) == ("gpu_memory_record", "restart_job")


def test_whoever_calls_a_dead_firmware_is_no_suspect(tmp_path: Path) -> None:
    rack = host()
    for number in range(12):  # every trainer of the host, and a monitor, ask the GPU of rank 3
        caller = 5000 + number % 8 if number < 8 else 999
        rack.xid(3, number, 119, FIRMWARE.replace("{other}", str(caller)))
    assert only(rack, tmp_path).ranks == (3,)


def test_killed_processes_and_verdicts_alone_are_nothing(tmp_path: Path) -> None:
    rack = host().torn_down(range(8), 0.0)
    rack.xid(3, 0.5, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert ask_of(rack, tmp_path).status == "clear"


def test_stated_cause_counts_also_where_its_own_record_is_gone(tmp_path: Path) -> None:
    rack = host().xid(4, 0.0, 45, "pid={pid}, name=python, Ch 0 caused by previous Xid 13")
    assert ask_of(rack, tmp_path).status == "clear"


# The program, or the GPU


def test_same_fault_everywhere_within_seconds_is_the_program(tmp_path: Path) -> None:
    rack = Rack(num_hosts=4)
    for rank in (0, 1, 2, 6, 9, 13):
        rack.xid(rank, rank / 10, 31, MMU)
    found = only(rack, tmp_path / "a")
    assert (found.sign, found.ranks, found.numbers["policy"]) == ("node_wide_record", (), "check_application")
    spread = Rack(num_hosts=4)
    for number, rank in enumerate((0, 5, 9)):
        spread.xid(rank, number * 200.0, 31, MMU)
    assert only(spread, tmp_path / "b").sign == "application_record"


@pytest.mark.parametrize(
    ("code", "body", "same_unit"), [(31, MMU, False), (13, SM.replace("{gpc}", "2"), True)], ids=["31 over processes", "13 at one unit"]
)
def test_one_gpu_that_fails_process_after_process_is_the_gpu(code: int, body: str, same_unit: bool, tmp_path: Path) -> None:  # noqa: FBT001
    rack = host()
    for number in range(1 if same_unit else 2):
        rack.xid(5, -3600.0 * (number + 1), code, body.replace("{pid}", str(300 + number)))
    rack.xid(5, 0.0, code, body)
    found = only(rack, tmp_path / "a")
    assert (found.sign, found.ranks, found.numbers["policy"]) == ("repeated_record", (5,), "check_gpu")
    for number in range(2):  # another GPU did the same: the program
        rack.xid(1, -3600.0 * (number + 1) + 5, code, body.replace("{pid}", str(400 + number)))
    assert only(rack, tmp_path / "b").sign == "application_record"


# The edges themselves


def test_edges_name_known_codes_and_their_source_and_lead_round_in_no_circle() -> None:
    after: dict[str, set[str]] = {}
    for edge in edges():
        assert edge.source
        assert edge.says
        assert edge.window_s >= edge.early_s >= 0
        for term in (edge.parent, edge.child):
            kind, _, code = term.partition(":")
            number = code.split("/")[0]
            assert kind == "aer" or number == "*" or int(number) in by_code(kind), term
        if "*" not in edge.parent:
            after.setdefault(edge.parent, set()).add(edge.child.split("/")[0])

    def reached(term: str, seen: frozenset[str]) -> set[str]:
        return {term} | {t for child in after.get(term, set()) - seen for t in reached(child, seen | {child})}

    assert [term for term in after if any(term in reached(child, frozenset()) for child in after[term])] == []


# Disks and mounts beside GPUs, and faults that cannot be ordered


DISK = "blk_update_request: I/O error, dev sdz, sector 2048 op 0x0:(READ)"
MOUNT = "nfs: server fs1 not responding, still trying"


@pytest.mark.parametrize("line", [DISK, MOUNT])
def test_a_disk_or_mount_does_not_hide_the_gpu_of_a_job_that_says_nothing_of_storage(line: str, tmp_path: Path) -> None:
    rack = Rack(num_hosts=2, gpus=HGX).xid(3, 0.0, 48, DOUBLE_BIT).torn_down(range(16), 5.0)
    rack.say("host-01", -5.0, line)
    found = [finding for finding in ask_of(rack, tmp_path).findings if finding.ranks]
    assert [(finding.sign, finding.ranks, finding.hosts) for finding in found] == [("gpu_memory_record", (3,), ("host-00",))]


def test_a_disk_counts_where_the_job_speaks_of_storage(tmp_path: Path) -> None:
    rack = Rack(num_hosts=2, gpus=HGX).say("host-01", -5.0, MOUNT).xid(3, 0.5, 31, f"{MMU} FAULT_PDE ACCESS_TYPE_READ")
    steps = [(-60.0 + 10 * n, f"INFO [rank9] step {n} loss 2.0") for n in range(6)]
    said = [*steps, (-2.0, "ERROR [rank9] OSError: [Errno 116] Stale file handle: '/mnt/fs1/shard-3'")]
    found = ask_of(rack, tmp_path, logs_of={9: said}).findings
    assert any("host-01" in finding.hosts or "host-01" in finding.says for finding in found)


def test_faults_of_two_hosts_that_the_clocks_cannot_order_leave_the_cause_open_whichever_is_written_first(tmp_path: Path) -> None:
    memory = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0 grain:32)"
    for number, (gpu_s, memory_s) in enumerate([(3.0, 4.0), (4.0, 3.0)]):
        rack = Rack(num_hosts=2, gpus=HGX).xid(3, gpu_s, 79, OFF_THE_BUS).say("host-01", memory_s, memory)
        found = only(rack, tmp_path / str(number), logs_of={9: [(-60.0 + 10 * n, f"INFO [rank9] step {n} loss 2.0") for n in range(7)]})
        assert (found.sign, found.ranks) == ("doubtful_record", ())
        assert "host-00" in found.says
        assert "host-01" in found.says
