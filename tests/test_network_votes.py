"""Network errors accuse by vote: real wordings of each transport, read by the real readers, one small scene per rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from collectors import trainer_log, version_lines
from rca.case import MemoryCase
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding, Skip, Source

HOSTS = tuple(f"node-{number}" for number in range(6))  # rank r is on host r // 2, process 100 + r; host h has address 192.0.2.10 + h
IB = "{host}:{pid}:5898 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer {peer}<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)"
IB_NEW = "{host}:{pid}:5898 [0] net_ib.cc:2009 NCCL WARN NET/IB: Got completion from peer {peer}<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid 2001:db8::1 remoteGids2001:db8::2 hca mlx5_0"
IB_NAMED = "{host}:{pid}:5898 [0] net_ib.cc:2411 NCCL WARN NET/IB: Got completion from peer {peer}<54862> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV(128) vendor_err=129 hca mlx5_0"
FLUSH = "{host}:{pid}:5898 [0] net_ib.cc:1615 NCCL WARN NET/IB : Got completion from peer {peer}<54862> with status=5 opcode=0 len=0 vendor err 249 (Recv)"
OWN = "{host}:{pid}:5898 [0] ib_plugin.c:1105 NCCL WARN NET/IB : Got completion from peer {peer}<49189> with error 4, opcode 5327, len 5327, vendor err 81 (Send)"
CLOSED = "{host}:{pid}:5898 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer {peer}<55693>"
REFUSED = "{host}:{pid}:5898 [0] include/socket.h:403 NCCL WARN Connect to {peer}<56821> failed : Connection refused"
NO_WAY = "{host}:{pid}:5898 [0] misc/socket.cc:484 NCCL WARN Connect to {peer}<56821> failed : No route to host"
OFI = "libfabric:{pid}:1772439127::efa:cq:rxr_cq_write_error():243<warn> err: 15, message: Unresponsive receiver (reachable by EFA device but handshake failed) My host id: i-{host} Peer host id: {peer}"
USING = "{host}:{pid}:5776 [0] NCCL INFO Bootstrap : Using eth0:{own}<0>"
PORT = "{host}:{pid}:5898 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
BACK = PORT.replace("port error", "port active")
GID = "{host}:{pid}:5898 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : GID table change"
# ruff: noqa: E501 - lines of logs as they are written


def address(host: int) -> str:
    return f"192.0.2.{10 + host}"


def said(speaker: int, wording: str, peer: str = "", *, after_s: float | None = None) -> tuple[int, str]:
    """A line of the log of a host's first rank, with a stamp where one is given."""
    stamp = f"2026-03-02 08:12:{after_s:06.3f}+00:00 " if after_s is not None else ""
    return speaker, stamp + wording.format(host=HOSTS[speaker], pid=100 + 2 * speaker, peer=peer, own=address(speaker))


def scene(folder: Path, lines: Sequence[tuple[int, str]], *, mapped: bool = True, hosts: int = 6) -> MemoryCase:
    """A job of `hosts` hosts; every host's first rank has the lines that it says, and where `mapped` NCCL's word for its own address."""
    rows: dict[str, list[pl.DataFrame]] = {name: [TABLES[name].frame()] for name in TABLES}
    places = [
        {"evidence_id": "map", "record": f"L{r}", "rank": r, "host": HOSTS[r // 2], "pid": 100 + r, "local_rank": r % 2}
        for r in range(2 * hosts)
    ]
    rows["ranks"].append(TABLES["ranks"].rows(places))
    for host in range(hosts):
        text = [said(host, USING)[1]] * mapped + [f"[rank{2 * host}]: step 1"] + [line for speaker, line in lines if speaker == host]
        file = folder / f"host-{host}.log"
        file.write_text("\n".join(text) + "\n")
        source = Source(f"rank_{2 * host}.log", file, file.stat().st_size)
        for collector in (trainer_log, version_lines):
            if collector.claims(source.path, source.head):
                for item in collector.read(source):
                    assert not isinstance(item, Skip)
                    rows[item[0].name].append(item[1].with_columns(pl.lit(f"log-{host}").alias("evidence_id")))
    return MemoryCase({name: pl.concat(frames) for name, frames in rows.items()})


def votes(case: MemoryCase) -> dict[str, Finding]:
    outcome = ask(case, "network_votes")
    assert outcome.status in ("found", "clear"), outcome.why
    assert all(finding.cites for finding in outcome.findings)
    return {finding.sign: finding for finding in outcome.findings}


BAD = 2  # host that is at fault in the scenes: ranks 4 and 5
ONTO_BAD = tuple((speaker, address(BAD)) for speaker in (0, 1, 4))


@pytest.mark.parametrize("wording", [IB, IB_NEW, IB_NAMED, NO_WAY])
def test_the_far_end_of_most_reports_is_accused_and_no_speaker(wording: str, tmp_path: Path) -> None:
    case = scene(tmp_path, [said(speaker, wording, peer) for speaker, peer in ONTO_BAD])
    found = votes(case)
    assert {sign: (f.hosts, f.ranks, f.numbers["num_accusing"]) for sign, f in found.items()} == {"accused": (("node-2",), (4, 5), 3)}
    verdict = judge(case)
    assert (verdict.verdict.cause, verdict.verdict.ranks, verdict.advice.evict_hosts) == ("network_fault", (4, 5), ("node-2",))


@pytest.mark.parametrize(("links", "is_open"), [({}, True), ({BAD: "ib"}, False), ({5: "ib"}, True)])
def test_whether_a_link_lasts_down_only_its_own_host_tells(links: Mapping[int, str], *, is_open: bool, tmp_path: Path) -> None:
    """The others give up whether it comes back or not: its port is asked before the host is left out."""
    case = scene(tmp_path, [said(speaker, IB, peer) for speaker, peer in ONTO_BAD])
    frames = {name: case.table(name).collect() for name in TABLES}
    down = [{"evidence_id": f"k{h}", "record": "L1", "host": HOSTS[h], "kind": kind, "num_folded": 1} for h, kind in links.items()]
    judged = judge(MemoryCase({**frames, "kernel_events": TABLES["kernel_events"].rows(down)}))
    assert ("came back nothing tells" in judged.advice.because) is is_open
    assert judged.verdict.cause == "network_fault"


def test_the_accused_may_report_its_own_far_ends_too(tmp_path: Path) -> None:
    own = [said(BAD, IB, address(speaker)) for speaker, _ in ONTO_BAD]
    found = votes(scene(tmp_path, [*(said(speaker, IB, peer) for speaker, peer in ONTO_BAD), *own]))
    assert [(sign, f.hosts) for sign, f in found.items()] == [("accused", ("node-2",))]


def test_an_address_that_nothing_maps_stays_one_and_evicts_nobody(tmp_path: Path) -> None:
    case = scene(tmp_path, [said(speaker, IB, peer) for speaker, peer in ONTO_BAD], mapped=False)
    assert {sign: (f.hosts, f.ranks) for sign, f in votes(case).items()} == {"accused": (("192.0.2.12",), ())}
    done = judge(case)
    assert (done.verdict.ranks, done.verdict.hosts, done.advice.evict_hosts) == ((), (), ())


def test_hosts_that_lost_their_neighbour_and_gave_up_are_no_second_fault(tmp_path: Path) -> None:
    """A ring: both neighbours of the bad host report it; then their other neighbours report them."""
    lines = [said(1, IB, address(BAD), after_s=1), said(3, IB, address(BAD), after_s=1)]
    lines += [said(0, IB, address(1), after_s=3), said(4, IB, address(3), after_s=3), said(5, IB, address(0), after_s=5)]
    for stamped in (True, False):
        told = lines if stamped else [(speaker, line.partition("+00:00 ")[2]) for speaker, line in lines]
        assert {sign: f.hosts for sign, f in votes(scene(tmp_path, told)).items()} == {"accused_silent": ("node-2",)}


def test_a_host_that_said_nothing_while_all_others_complained_is_gone_itself(tmp_path: Path) -> None:
    lines = [said(speaker, IB, address(BAD)) for speaker in range(6) if speaker != BAD]
    assert [(sign, f.ranks) for sign, f in votes(scene(tmp_path, lines)).items()] == [("accused_silent", (4, 5))]
    assert judge(scene(tmp_path, lines)).verdict.cause == "host_lost"
    lines.append(said(BAD, NO_WAY, address(0)))
    assert list(votes(scene(tmp_path, lines))) == ["accused"]


@pytest.mark.parametrize(("after_s", "host", "sign"), [(-5, BAD, None), (3600, BAD, "accused"), (-5, 5, "accused")])
def test_a_host_whose_kernel_killed_a_trainer_before_lost_its_connections_with_it(
    after_s: int, host: int, sign: str, tmp_path: Path
) -> None:
    case = scene(tmp_path, [said(speaker, IB, peer, after_s=1) for speaker, peer in ONTO_BAD])
    (first,) = case.table("log_events").select(pl.col("logged_at").min()).collect().row(0)
    kill = {"evidence_id": "dmesg", "record": "L1", "host": HOSTS[host], "kind": "oom", "pid": 4711, "process": "python", "num_folded": 1}
    frames = {name: case.table(name).collect() for name in TABLES}
    frames["kernel_events"] = TABLES["kernel_events"].rows([{**kill, "logged_at": first + timedelta(seconds=after_s)}])
    assert next(iter(votes(MemoryCase(frames))), None) == sign


@pytest.mark.parametrize(
    ("lines", "sign", "cause"),
    [
        ([said(1, PORT), said(1, BACK)], "flap_over", "unknown"),
        ([said(1, PORT)], "port_error", "network_transient"),
        ([said(1, PORT), said(1, BACK.replace("mlx5_0", "mlx5_7"))], "port_error", "network_transient"),
        ([said(1, PORT), said(1, BACK), said(0, CLOSED, address(3))], "flapped", "network_transient"),
        ([said(1, CLOSED, address(3), after_s=-60), said(1, PORT), said(1, BACK)], "flap_over", "unknown"),  # of something before
        ([said(1, PORT), said(1, BACK), said(0, REFUSED, address(3))], "flap_over", "unknown"),  # a host that refuses can be reached
    ],
)
def test_a_port_that_was_up_again_ended_nothing_by_itself(lines: list[tuple[int, str]], sign: str, cause: str, tmp_path: Path) -> None:
    found = votes(scene(tmp_path, lines))
    assert sign in found
    assert any("port active" in cite.text for cite in found[sign].cites) == (sign != "port_error")
    judged = judge(scene(tmp_path, lines))
    assert judged.verdict.cause == cause
    assert [check["status"] for check in judged.advice.before_restart if check["check"] == "network trouble"] == ["seen"]


def test_an_accused_host_whose_link_came_back_lost_it_for_a_moment(tmp_path: Path) -> None:
    lines = [*(said(speaker, IB, peer) for speaker, peer in ONTO_BAD), said(BAD, PORT), said(BAD, BACK)]
    assert votes(scene(tmp_path, lines))["accused_flap"].ranks == (4, 5)
    assert judge(scene(tmp_path, lines)).advice.action == "retry"


OPEN: Mapping[str, tuple[list[tuple[int, str]], str, tuple[str, ...]]] = {
    "one report": ([said(0, IB, address(1))], "link_unheard", ("node-1",)),
    "both ends of one connection": ([said(0, IB, address(1)), said(1, IB, address(0))], "link", ()),
    "one host reports all others": ([said(0, IB, address(peer)) for peer in (1, 2, 3)], "tie", ()),
    "one closed connection": ([said(0, CLOSED, address(1))], "closed", ("node-1",)),
    "two against two": ([said(0, IB, address(4)), said(1, IB, address(4)), said(2, IB, address(5)), said(3, IB, address(5))], "tie", ()),
    "all against all": ([said(a, IB, address(b)) for a in range(6) for b in range(6) if a != b], "everywhere", ()),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_the_votes_leave_open_accuses_no_rank(name: str, tmp_path: Path) -> None:
    lines, sign, hosts = OPEN[name]
    case = scene(tmp_path, lines)
    (finding,) = votes(case).values()
    assert (finding.sign, finding.hosts, finding.ranks) == (sign, hosts, ())
    done = judge(case)
    assert (done.verdict.ranks, done.advice.evict_hosts) == ((), ())


NOTHING: Mapping[str, list[tuple[int, str]]] = {
    "flushed requests": [said(speaker, FLUSH, peer) for speaker, peer in ONTO_BAD],
    "loopback": [said(speaker, CLOSED, "127.0.0.1") for speaker in (0, 1, 4)],
    "the same machine": [said(0, CLOSED, address(0)), said(1, CLOSED, "node-1.example")],
    "a change of addresses": [said(0, GID)],
    "no far end named": [(0, "NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unknown error")],
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_is_no_vote(name: str, tmp_path: Path) -> None:
    assert votes(scene(tmp_path, NOTHING[name])) == {}


def test_closed_connections_name_a_host_to_look_at_and_no_rank_among_several(tmp_path: Path) -> None:
    for wording in (CLOSED, REFUSED):
        found = votes(scene(tmp_path, [said(speaker, wording, peer) for speaker, peer in ONTO_BAD]))
        assert {sign: (f.hosts, f.ranks, f.numbers["candidates"]) for sign, f in found.items()} == {"gone": (("node-2",), (), [4, 5])}


GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] {what} [{peer}]:57021{end}. This is typically caused by a remote worker crashing."
GLOO_LOST = ("Connection closed by peer", "Read error"), ("", ": Connection reset by peer")
GLOO_AWAY = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] failed to connect, willRetry=0, retry=3, local=[192.0.2.99]:41001, remote=[{peer}]:41212, error=Connection timed out"
STORE = "[W302 08:12:01.000000000 socket.cpp:697] [c10d] The client socket has failed to connect to [{peer}]:29500 (errno: 110 - Connection timed out)."


def test_other_transports_name_the_far_end_in_words_of_their_own(tmp_path: Path) -> None:
    def raised(speaker: int, text: str) -> list[tuple[int, str]]:
        frames = [
            "Traceback (most recent call last):",
            '  File "/venv/torch/distributed/distributed_c10d.py", line 3252, in all_reduce',
            "    work.wait()",
        ]
        return [(speaker, line) for line in (*frames, text)]

    for what, end in zip(*GLOO_LOST, strict=True):
        lines = [line for speaker, peer in ONTO_BAD for line in raised(speaker, GLOO.format(what=what, peer=peer, end=end))]
        assert votes(scene(tmp_path, lines))["gone"].hosts == ("node-2",), what
    lines = [line for speaker, peer in ONTO_BAD for line in raised(speaker, GLOO_AWAY.format(peer=peer))]
    assert votes(scene(tmp_path, lines))["accused"].hosts == ("node-2",)
    found = votes(scene(tmp_path, [(speaker, STORE.format(peer="node-2")) for speaker, _ in ONTO_BAD]))
    assert {sign: f.hosts for sign, f in found.items()} == {"gone": ("node-2",)}


def test_an_object_store_that_refuses_is_no_peer(tmp_path: Path) -> None:
    text = [
        "Traceback (most recent call last):",
        '  File "/venv/botocore/httpsession.py", line 500, in send',
        "    raise error",
        "ConnectionResetError: connection to [198.51.100.9]:443 reset by peer",
    ]
    assert votes(scene(tmp_path, [(speaker, line) for speaker in (0, 1, 4) for line in text])) == {}


def test_closed_connections_of_who_gave_up_itself_are_no_votes(tmp_path: Path) -> None:
    waited = "[rank4]:[E302 08:12:01.000000000 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    assert votes(scene(tmp_path, [(BAD, waited), *(said(speaker, CLOSED, peer) for speaker, peer in ONTO_BAD)])) == {}


WAITED = "[rank{rank}]:[E302 08:12:{s:02d}.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."


def test_transfers_that_fail_after_every_rank_gave_up_are_no_votes_and_those_before_are(tmp_path: Path) -> None:
    """Ranks abort their communicators after a time-out; what the others then see of their connections tells nothing of its cause."""
    for after_s, signs in ((20, {}), (1, {"accused": ("node-2",)})):
        reports = [said(speaker, IB, peer, after_s=after_s) for speaker, peer in ONTO_BAD]
        waited = [(host, WAITED.format(rank=2 * host, s=10)) for host in range(6)]
        lines = [*reports, *waited] if after_s < 10 else [*waited, *reports]
        assert {sign: f.hosts for sign, f in votes(scene(tmp_path, lines)).items()} == signs, after_s


RAISED = ["Traceback (most recent call last):", '  File "/job/train.py", line 7, in step', "    x = table[key]", "KeyError: 'a'"]


def test_a_process_that_ended_for_a_reason_of_its_own_explains_what_its_peers_lost(tmp_path: Path) -> None:
    raised = [(BAD, line) for line in RAISED]
    for wording in (CLOSED, IB):
        case = scene(tmp_path, [*raised, *(said(speaker, wording, peer) for speaker, peer in ONTO_BAD)])
        assert votes(case) == {}
        assert judge(case).verdict.cause == "user_exception"


def test_a_failed_port_accuses_the_host_that_prints_it_and_ports_of_several_the_fabric(tmp_path: Path) -> None:
    found = votes(scene(tmp_path, [said(BAD, PORT)]))
    assert {sign: (f.hosts, f.ranks) for sign, f in found.items()} == {"port_error": (("node-2",), (4, 5))}
    found = votes(scene(tmp_path, [said(host, PORT) for host in (0, 1, BAD)]))
    assert {sign: (f.hosts, f.ranks) for sign, f in found.items()} == {"everywhere": ((), ())}


def test_a_failed_registration_is_the_reporters_own_side(tmp_path: Path) -> None:
    case = scene(tmp_path, [said(0, OWN, address(1))])
    assert {sign: (f.hosts, f.ranks) for sign, f in votes(case).items()} == {"own_side": ((), ())}
    assert judge(case).verdict.ranks == ()


def test_peers_named_by_host_by_rank_and_by_a_transports_own_name(tmp_path: Path) -> None:
    for peer in ("node-2", "node-2.cluster.example"):
        assert votes(scene(tmp_path, [said(speaker, CLOSED, peer) for speaker in (0, 1)]))["gone"].hosts == ("node-2",)
    by_rank = [
        said(speaker, "{host}:{pid}:1 [0] NCCL WARN NET/IB : Got completion with status=12 vendor err 129 from remote rank 5")
        for speaker in (0, 1)
    ]
    assert votes(scene(tmp_path, by_rank))["accused"].hosts == ("node-2",)
    by_id = [said(speaker, OFI, "i-0b5") for speaker in (0, 1)]
    assert votes(scene(tmp_path, by_id))["accused"].hosts == ("i-0b5",)


def test_order_of_rows_and_of_hosts_does_not_matter(tmp_path: Path) -> None:
    case = scene(tmp_path, [said(speaker, IB, peer) for speaker, peer in ONTO_BAD])

    def told(of: Any) -> list[Any]:
        return [(f.id, f.says, f.ranks, sorted((c.evidence_id, c.record) for c in f.cites)) for f in votes(of).values()]

    shuffled = MemoryCase({name: frame.sample(fraction=1.0, shuffle=True, seed=3) for name, frame in case.frames.items()})
    assert told(shuffled) == told(case)


@pytest.mark.parametrize(("other", "ranks"), [((2, 5), (4, 5, 6, 7)), ((4, 5), ())])
def test_hosts_whose_links_went_down_are_cut_off_where_every_report_crosses(
    tmp_path: Path, other: tuple[int, int], ranks: tuple[int, ...]
) -> None:
    pairs = ((0, 2), (1, 3), (3, 4), other)
    tables = dict(scene(tmp_path, [said(one, IB, address(two)) for one, two in pairs]).frames)
    down = [{"evidence_id": f"dmesg-{host}", "record": "L1", "host": HOSTS[host], "kind": "nic", "message": "Link down"} for host in (2, 3)]
    found = votes(MemoryCase(tables | {"kernel_events": TABLES["kernel_events"].rows(down)}))
    assert (found["accused"].ranks if "accused" in found else ()) == ranks


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("", "blind"),  # the start of a rank tells nothing of the time of trouble
        ('[rank0]: Traceback (most recent call last):\n  File "/w/train.py", line 3, in step\nValueError: bad\n', "clear"),
    ],
)
def test_who_read_no_output_of_ranks_at_work_did_not_look(line: str, status: str, tmp_path: Path) -> None:
    file = tmp_path / "host-0.log"
    file.write_text(
        f"I1101 21:42:54.878000 52738 torch/distributed/elastic/agent/server/api.py:845] [default] starting workers for entrypoint: python\n{line}"
    )
    frames = {name: [TABLES[name].frame()] for name in TABLES}
    for item in trainer_log.read(Source("host-0.log", file, file.stat().st_size)):
        assert not isinstance(item, Skip)
        frames[item[0].name].append(item[1].with_columns(pl.lit("log-0").alias("evidence_id")))
    case = MemoryCase({name: pl.concat(parts) for name, parts in frames.items()})
    assert ask(case, "network_votes").status == status
