"""Flight-recorder dumps that break tools: each needs the right answer, or an honest partial one, never a wrong name."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _traps import STOP, TP4, Dump, diagnose, hang, path, pickled, run, stopped

from collectors._unpickle import PickleRefused, load
from rca.drills._synthetic import Fault, Job, Recorder, write

PP2 = Job(tp=2, pp=2, dp=4)
PP4 = Job(tp=2, pp=4, dp=2)
SMALL = Recorder(buffer=40)  # a ring of forty records: wrapped on every rank, half of the job forgotten
LAYOUTS = {
    "tp_dp": (TP4, STOP, Recorder()),
    "pp4_plain": (PP4, Fault("stop", (9,)), Recorder()),
    "pp4_wrapped": (PP4, Fault("stop", (9,)), SMALL),
    "pp4_wrapped_uneven_last_stage": (replace(PP4, extra=3), Fault("stop", (9,)), SMALL),
    "pp4_wrapped_uneven_culprit_on_last_stage": (replace(PP4, extra=3), Fault("stop", (13,)), SMALL),
    "pp2_wrapped": (PP2, Fault("stop", (9,)), SMALL),
    "pp4_coalesced": (replace(PP4, p2p="coalesced"), Fault("stop", (9,)), Recorder()),
    "pp4_coalesced_wrapped_uneven": (replace(PP4, p2p="coalesced", extra=3), Fault("stop", (9,)), SMALL),
    "pp4_other_rank_order": (replace(PP4, order="tp-pp-dp"), Fault("stop", (9,)), SMALL),
    "pp4_embedding_group": (replace(PP4, embedding=True), Fault("stop", (1,)), Recorder()),
    "pp4_gloo": (replace(PP4, backend="gloo"), Fault("stop", (9,)), Recorder()),
    "no_start_events_2_9": (PP2, Fault("stop", (9,)), Recorder(version="2.9", timing=False)),
    "only_active_without_frames": (PP4, Fault("stop", (9,)), Recorder(only_active=True, frames=False, timing=False)),
    "only_active_coalesced": (replace(PP4, p2p="coalesced"), Fault("stop", (9,)), Recorder(only_active=True)),
    "recorder_2_4": (PP2, Fault("stop", (9,)), Recorder(version="2.4")),
    "recorder_1_9": (TP4, STOP, Recorder(version="1.9")),
    "timed_out": (TP4, STOP, Recorder(timed_out=True)),
    "one_name_for_all_groups_of_an_axis": (PP2, Fault("stop", (9,)), Recorder(group_names="axis")),
    "json": (TP4, STOP, Recorder(format="json", name="rank_{rank}.json")),
    "gzip": (TP4, STOP, Recorder(compression="gzip", name="nccl_trace_rank_{rank}.gz")),
    "zstd": (TP4, STOP, Recorder(compression="zstd", name="nccl_trace_rank_{rank}.zst")),
    "json_gzip_unnamed_compression": (TP4, STOP, Recorder(format="json", compression="gzip")),
    "host_in_file_name": (TP4, STOP, Recorder(name="nccl_trace_rank_{host}_{rank}")),
    "host_folders_flat_name": (TP4, STOP, Recorder(name="gpu-n15.comm_lib_trace_rank_{rank}")),
    "nvrx_name": (TP4, STOP, Recorder(name="_dump_{rank}", only_active=True, frames=False, version="2.9")),
    "first_call_of_all": (TP4, Fault("stop", (5,), "tp", 0), Recorder()),
    "before_dp_call": (TP4, Fault("stop", (5,), "dp", -2), Recorder()),
    "before_world_call": (TP4, Fault("stop", (5,), "world", -1), Recorder()),
    "before_first_use_of_a_group_wrapped": (replace(TP4, steps=1, microbatches=8), Fault("stop", (5,), "world", -1), SMALL),
    "before_first_use_of_a_group_only_active": (replace(TP4, steps=1), Fault("stop", (5,), "world", -1), Recorder(only_active=True)),
    "named_groups_only_active": (PP2, Fault("stop", (9,), "dp", -3), Recorder(only_active=True, group_names="axis")),
    "named_groups_only_active_embedding": (
        replace(PP2, embedding=True, microbatches=1, tp_names=("all_to_all", "all_reduce")),
        Fault("stop", (13,), "dp", -2),
        Recorder(version="2.4", only_active=True, format="json", group_names="axis"),
    ),
    "named_groups_world_calls_evicted": (
        replace(PP2, order="tp-dp-pp", p2p="coalesced", extra=3),
        Fault("stop", (8,), "world", -1),
        Recorder(buffer=25, group_names="axis"),
    ),
    "before_embedding_call": (replace(PP4, embedding=True), Fault("stop", (13,), "emb", -1), Recorder()),
    "before_plain_send": (PP4, Fault("stop", (5,), "pp", -1), Recorder()),
    "before_plain_recv": (PP4, Fault("stop", (9,), "pp", -4), SMALL),
    "before_coalesced_exchange": (replace(PP4, p2p="coalesced"), Fault("stop", (5,), "pp", -3), Recorder()),
    "unequal_all_to_all": (replace(TP4, tp_names=("all_to_all", "all_reduce")), STOP, Recorder()),
    "barriers": (replace(TP4, world_name="all_reduce_barrier"), STOP, Recorder()),
    "unknown_op": (replace(TP4, tp_names=("all_reduce_sparse", "monitored_barrier", "fancy_op")), STOP, Recorder()),
    "unknown_backend": (replace(TP4, backend="nccl2"), STOP, Recorder()),
    "custom_backend": (replace(TP4, backend="custom"), STOP, Recorder()),
    "no_file_of_the_culprit": (TP4, Fault("no_dump", (5,)), Recorder()),
    "no_file_of_the_culprit_pp4_wrapped": (replace(PP4, extra=3), Fault("no_dump", (9,)), SMALL),
    "no_file_of_the_culprit_gloo": (replace(TP4, backend="gloo"), Fault("no_dump", (5,)), Recorder()),
    "no_file_of_rank_0": (TP4, Fault("no_dump", (0,)), Recorder()),
    "two_silent_ranks": (Job(tp=4, dp=4), Fault("stop", (5, 10)), Recorder()),
    "two_silent_ranks_pp4": (PP4, Fault("stop", (5, 14)), SMALL),
    "a_whole_host_gone": (Job(tp=4, dp=4), Fault("no_dump", (4, 5, 6, 7)), Recorder(gpus_per_host=4)),
}


# Dumps that fit other stories as well: naming nobody is an honest answer, naming somebody else is not.
OPEN = {
    "a_whole_host_gone",  # one of its ranks may have stopped and the others waited for it
    "no_file_of_the_culprit_gloo",  # gloo lists no members: who is absent from a group cannot be known
    "named_groups_world_calls_evicted",  # no entry ties the header's world status to a group
    "pp4_gloo",  # gloo records no send or recv: seven ranks wait for nobody as far as can be seen
    "before_first_use_of_a_group_only_active",  # neither a call nor a status says whether rank 5 ever used the group
}


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_silent_rank_is_named(name: str, tmp_path: Path) -> None:
    job, fault, recorder = LAYOUTS[name]
    truth = hang(tmp_path / "fr", job, fault, recorder=recorder)
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks == truth.ranks or (name in OPEN and not answer.ranks)
    assert answer.layer != "communication"


@pytest.mark.parametrize("name", ["tp_dp", "pp4_wrapped_uneven_last_stage", "no_file_of_the_culprit", "unknown_op"])
def test_call_that_the_silent_rank_did_not_join_is_named(name: str, tmp_path: Path) -> None:
    job, fault, recorder = LAYOUTS[name]
    truth = hang(tmp_path / "fr", job, fault, recorder=recorder)
    last = diagnose(tmp_path / "fr").doc["verdict"]["first_failing"]["last_collective"]
    assert (last["op"], last["seq"]) == (truth.op, truth.seq)


# Healthy jobs --------------------------------------------------------------------------------------------------------

HEALTHY = {
    "tp_dp": (TP4, Recorder()),
    "pp4_plain": (PP4, Recorder()),
    "pp2_plain_send_recv_in_groups_of_two": (PP2, Recorder()),
    "pp4_coalesced": (replace(PP4, p2p="coalesced"), Recorder()),
    "pp2_coalesced_bidirectional": (replace(PP2, p2p="coalesced", microbatches=4), Recorder()),
    "pp4_coalesced_chain_one_microbatch": (replace(PP4, p2p="coalesced", microbatches=1), Recorder()),
    "pp4_coalesced_wrapped_uneven": (replace(PP4, p2p="coalesced", extra=3), SMALL),
    "pp4_gloo": (replace(PP4, backend="gloo"), Recorder()),
    "wrapped_uneven": (replace(PP4, extra=3), SMALL),
    "only_active": (TP4, Recorder(only_active=True)),
    "only_active_coalesced": (replace(PP4, p2p="coalesced"), Recorder(only_active=True)),
    "no_start_events": (TP4, Recorder(version="2.9", timing=False)),
    "unequal_all_to_all": (replace(TP4, tp_names=("all_to_all",)), Recorder()),
    "json": (PP2, Recorder(format="json", name="rank_{rank}.json")),
    "barriers": (replace(TP4, world_name="barrier"), Recorder()),
    "recorder_1_9": (PP2, Recorder(version="1.9")),
}


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_finished_job_accuses_nobody(name: str, tmp_path: Path) -> None:
    job, recorder = HEALTHY[name]
    truth = write(job, None, tmp_path / "fr", recorder=recorder)
    assert not truth.waiting
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks == ()
    assert answer.cause in ("healthy", "unknown")


def test_started_against_completed_is_no_fault(tmp_path: Path) -> None:
    def lagging(rank: int, dump: Dump) -> Dump:
        """The watchdog of odd ranks has not yet seen the end of the last two calls."""
        for entry in dump["entries"][-2:] if rank % 2 else ():
            entry |= {"state": "started", "time_discovered_completed_ns": None, "retired": False}
        return dump

    write(TP4, None, tmp_path / "fr", edit=lagging)
    assert diagnose(tmp_path / "fr").ranks == ()


def test_started_against_scheduled_does_not_hide_the_silent_rank(tmp_path: Path) -> None:
    def late(rank: int, dump: Dump) -> Dump:
        for entry in dump["entries"] if rank in (1, 6) else ():
            if entry["state"] == "started":
                entry |= {"state": "scheduled", "time_discovered_started_ns": None}
        return dump

    truth = stopped(tmp_path / "fr", edit=late)
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


# Other faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorder", [Recorder(), Recorder(timing=False)], ids=["start_events", "none"])
@pytest.mark.parametrize("axis", ["tp", "dp", "world"])
def test_stuck_call_is_communication_and_blames_no_rank(axis: Any, recorder: Recorder, tmp_path: Path) -> None:
    hang(tmp_path / "fr", TP4, Fault("stuck", (5,), axis, -1), recorder=recorder)
    answer = diagnose(tmp_path / "fr")
    assert (answer.ranks, answer.layer) == ((), "communication")


def test_stuck_call_in_a_pipelined_job_blames_no_rank(tmp_path: Path) -> None:
    hang(tmp_path / "fr", replace(PP4, extra=3), Fault("stuck", (9,), "tp", -8), recorder=SMALL)
    answer = diagnose(tmp_path / "fr")
    assert (answer.ranks, answer.layer) == ((), "communication")


def test_stuck_transfer_blames_no_rank(tmp_path: Path) -> None:
    hang(tmp_path / "fr", PP4, Fault("stuck", (9,), "pp", -4))
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks == ()
    assert answer.layer in ("communication", "unknown")


@pytest.mark.parametrize(("kind", "rank"), [("size", 0), ("size", 5), ("dtype", 4), ("op", 0), ("op", 7)])
def test_mismatch_names_the_odd_rank_wherever_it_stands(kind: Any, rank: int, tmp_path: Path) -> None:
    hang(tmp_path / "fr", TP4, Fault(kind, (rank,)))
    answer = diagnose(tmp_path / "fr")
    assert (answer.ranks, answer.cause) == ((rank,), "collective_mismatch")


@pytest.mark.parametrize("kind", ["size", "dtype", "op"])
def test_mismatch_in_a_pair_blames_no_single_rank_without_cause(kind: Any, tmp_path: Path) -> None:
    hang(tmp_path / "fr", Job(tp=2, dp=4), Fault(kind, (5,)))
    answer = diagnose(tmp_path / "fr")
    assert answer.cause == "collective_mismatch"
    assert answer.ranks in ((), (5,), (4, 5))


@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize("kind", ["skip", "extra"])
def test_skipped_or_extra_call_is_a_mismatch(kind: Any, rank: int, tmp_path: Path) -> None:
    """From there on the rank calls something else than its peers under the same number."""
    hang(tmp_path / "fr", TP4, Fault(kind, (rank,)))
    answer = diagnose(tmp_path / "fr")
    assert (answer.ranks, answer.cause) == ((rank,), "collective_mismatch")


@pytest.mark.parametrize("kind", ["skip", "extra"])
def test_silently_shifted_calls_are_a_mismatch(kind: Any, tmp_path: Path) -> None:
    """With one operation throughout, wrong calls pair up and end: only the count is off, when the step ends."""
    hang(tmp_path / "fr", replace(TP4, tp_names=("all_reduce",)), Fault(kind, (5,)))
    answer = diagnose(tmp_path / "fr")
    assert answer.cause == "collective_mismatch"
    assert answer.ranks in ((), (5,))


@pytest.mark.parametrize(("job", "nth"), [(PP2, -1), (PP4, -4), (replace(PP4, p2p="coalesced"), -3)])
def test_skipped_transfer_never_blames_the_other_end(job: Job, nth: int, tmp_path: Path) -> None:
    truth = hang(tmp_path / "fr", job, Fault("p2p_skip", (5,), "pp", nth))
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks in ((), truth.ranks)


def test_cycle_of_two_ranks_blames_neither_alone(tmp_path: Path) -> None:
    """Each call blocks, and rank 1 has swapped its last two: rank 0 waits in one group and rank 1 in the other."""
    hang(tmp_path / "fr", Job(tp=2, dp=1, dp_ops=0, backend="gloo"), Fault("swap", (1,), "tp", -1))
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks in ((), (0, 1))
    assert answer.cause in ("collective_mismatch", "unknown")


def test_cycle_with_calls_enqueued_ahead_never_blames_the_rank_in_order(tmp_path: Path) -> None:
    hang(tmp_path / "fr", Job(tp=2, dp=1, dp_ops=0), Fault("swap", (1,), "tp", -1))
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks in ((), (1,), (0, 1))
    assert answer.cause in ("collective_mismatch", "unknown")


def test_cycle_with_a_majority_blames_at_most_the_odd_rank(tmp_path: Path) -> None:
    hang(tmp_path / "fr", Job(tp=4, dp=1, dp_ops=0), Fault("swap", (2,), "tp", -1))
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks in ((), (2,), (0, 1, 2, 3))
    assert answer.cause in ("collective_mismatch", "unknown")


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "share"), [(2, 0.5), (4, 0.5), (4, 0.02), (5, 0.5), (5, 0.02)])
def test_truncated_file_is_listed_and_the_rest_answers(rank: int, share: float, tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr")
    torn = path(tmp_path / "fr", rank)
    torn.write_bytes(torn.read_bytes()[: int(torn.stat().st_size * share)])
    answer = diagnose(tmp_path / "fr")
    assert answer.skipped(torn.name)
    assert answer.ranks == truth.ranks


@pytest.mark.parametrize(("rank", "content"), [(2, b""), (5, b""), (2, b"\x00" * 4096), (5, b"\x80\x02}q\x00"), (2, b"{")])
def test_empty_or_foreign_bytes_do_not_stop_the_rest(rank: int, content: bytes, tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr")
    path(tmp_path / "fr", rank).write_bytes(content)
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks == truth.ranks


def test_torn_gzip_member_does_not_stop_the_rest(tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr", recorder=Recorder(compression="gzip"))
    torn = path(tmp_path / "fr", 2)
    torn.write_bytes(torn.read_bytes()[:-200])
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_formats_and_compressions_mix(tmp_path: Path) -> None:
    stopped(tmp_path / "json", recorder=Recorder(format="json"))
    truth = stopped(tmp_path / "fr")
    for rank in (1, 5):
        shutil.copy(path(tmp_path / "json", rank), path(tmp_path / "fr", rank))
    packed = path(tmp_path / "fr", 6)
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_mixed_versions_are_read_together(tmp_path: Path) -> None:
    stopped(tmp_path / "old", recorder=Recorder(version="2.9"))
    truth = stopped(tmp_path / "fr")
    for rank in (0, 5, 6):
        shutil.copy(path(tmp_path / "old", rank), path(tmp_path / "fr", rank))
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


@pytest.mark.parametrize("ranks", [{2}, {5}, set(range(8))])
def test_dumps_without_entries_never_mislead(ranks: set[int], tmp_path: Path) -> None:
    def headers(rank: int, dump: Dump) -> Dump:
        return {key: value for key, value in dump.items() if key != "entries" or rank not in ranks}

    truth = stopped(tmp_path / "fr", edit=headers)
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks in ((truth.ranks,) if len(ranks) == 1 else ((), truth.ranks))


@pytest.mark.parametrize("missing", [(0,), (6,), (1, 4)])
def test_missing_file_of_an_innocent_rank_is_no_fault(missing: tuple[int, ...], tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr", edit=lambda rank, dump: None if rank in missing else dump)
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks == truth.ranks


@pytest.mark.parametrize("other", [0, 2])
def test_missing_files_of_culprit_and_innocent_are_told_apart(other: int, tmp_path: Path) -> None:
    """The peers of the innocent rank have finished all they share with it; those of the culprit wait for it alone."""
    truth = stopped(tmp_path / "fr", edit=lambda rank, dump: None if rank in (other, 5) else dump)
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_missing_file_in_a_finished_job_accuses_nobody(tmp_path: Path) -> None:
    write(TP4, None, tmp_path / "fr", edit=lambda rank, dump: None if rank == 3 else dump)
    assert diagnose(tmp_path / "fr").ranks == ()


@pytest.mark.parametrize("names", ["number", "axis"])
def test_dumped_rank_that_never_joined_outweighs_a_missing_file(names: Any, tmp_path: Path) -> None:
    """Of two ranks that the world waits for, one left a dump that shows it never made the call."""
    truth = hang(
        tmp_path / "fr",
        TP4,
        Fault("stop", (5,), "world", -1),
        recorder=Recorder(only_active=True, group_names=names),
        edit=lambda rank, dump: None if rank == 3 else dump,
    )
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_one_waiting_rank_alone_accuses_nobody_in_the_wrong(tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr", edit=lambda rank, dump: dump if rank == 6 else None)
    assert diagnose(tmp_path / "fr").ranks in ((), truth.ranks)


def test_stuck_call_with_a_missing_file_does_not_blame_that_rank_for_sure(tmp_path: Path) -> None:
    """Whether rank 6 arrived cannot be known: it may be named, but only with doubt."""
    hang(tmp_path / "fr", TP4, Fault("stuck", (5,)), edit=lambda rank, dump: None if rank == 6 else dump)
    answer = diagnose(tmp_path / "fr")
    assert answer.ranks in ((), (6,))
    assert not answer.doc["verdict"]["proven"]


def test_stray_files_beside_the_dumps_change_nothing(tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr")
    (tmp_path / "fr" / "r_0.json").write_text(json.dumps({"note": "not a dump", "entries": []}))
    (tmp_path / "fr" / "rank_5.json").write_text("[]")
    (tmp_path / "fr" / "README.md").write_text("rank 3 is broken\n")
    (tmp_path / "fr" / "nccl_trace_rank_3.bak").write_bytes(b"")
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_json_copies_of_the_same_dumps_change_nothing(tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr")
    stopped(tmp_path / "fr", recorder=Recorder(format="json", name="nccl_trace_rank_{rank}.json"))
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_folders_per_host_are_read(tmp_path: Path) -> None:
    truth = stopped(tmp_path / "flat")
    for rank in range(8):
        folder = tmp_path / "fr" / f"gpu-n{15 + rank // 4}" / "comm_traces"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path(tmp_path / "flat", rank), folder / f"rank_{rank}")
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


# Groups --------------------------------------------------------------------------------------------------------------


def test_group_missing_from_pg_config_is_inferred(tmp_path: Path) -> None:
    def forget(rank: int, dump: Dump) -> Dump:
        dump["pg_config"] = {name: told for name, told in dump["pg_config"].items() if "TENSOR" not in told["desc"]}
        return dump

    truth = stopped(tmp_path / "fr", edit=forget)
    assert diagnose(tmp_path / "fr").ranks in ((), truth.ranks)


def test_group_missing_from_pg_config_of_one_rank_is_found_at_its_peers(tmp_path: Path) -> None:
    def forget(rank: int, dump: Dump) -> Dump:
        if rank == 5:
            dump["pg_config"] = {"0": dump["pg_config"]["0"]}
        return dump

    truth = stopped(tmp_path / "fr", edit=forget)
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_one_name_with_two_descriptions_is_one_group(tmp_path: Path) -> None:
    def rename(rank: int, dump: Dump) -> Dump:
        for told in dump["pg_config"].values():
            told["desc"] += ":v2" if rank == 6 else ""
        for entry in dump["entries"]:
            name, desc = entry["process_group"]
            entry["process_group"] = (name, desc + (":v2" if rank == 6 else ""))
        return dump

    truth = stopped(tmp_path / "fr", edit=rename)
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_two_groups_of_the_same_members_and_kind_are_kept_apart(tmp_path: Path) -> None:
    def split(rank: int, dump: Dump) -> Dump:
        """Move every all_reduce of the tensor group to a twin of it: both undescribed, each with its own numbers."""
        name = next(name for name, told in dump["pg_config"].items() if "TENSOR" in told["desc"])
        twin = f"9{name}"
        dump["pg_config"][twin] = dump["pg_config"][name] | {"name": twin}
        for told in (dump["pg_config"][name], dump["pg_config"][twin]):
            told["desc"] = "undefined"
        last = {name: 0, twin: 0}
        for entry in dump["entries"]:
            if entry["process_group"][0] == name:
                mine = twin if entry["profiling_name"] == "nccl:all_reduce" else name
                last[mine] += 1
                entry |= {"process_group": (mine, "undefined"), "collective_seq_id": last[mine], "op_id": last[mine]}
                entry["pg_id"] += 40 if mine == twin else 0
        del dump["pg_status"]
        return dump

    truth = stopped(tmp_path / "fr", edit=split)
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_shifted_record_ids_do_not_matter(tmp_path: Path) -> None:
    def shift(rank: int, dump: Dump) -> Dump:
        """Some ranks have recorded more calls: their numbers run ahead and their ring begins later."""
        dump["entries"] = dump["entries"][10 * (rank % 3) :]
        for entry in dump["entries"]:
            entry["record_id"] += 400 * (rank % 3)
        return dump

    truth = stopped(tmp_path / "fr", edit=shift)
    assert diagnose(tmp_path / "fr").ranks == truth.ranks
    write(TP4, None, tmp_path / "healthy", edit=shift)
    assert diagnose(tmp_path / "healthy").ranks == ()


def test_ring_that_lost_the_blocked_call_still_names_the_silent_rank(tmp_path: Path) -> None:
    """A rank far ahead in other groups has evicted the call it waits in; its header still tells."""
    job = Job(tp=4, dp=2, tp_ops=4, dp_ops=30, world_ops=30)
    truth = hang(tmp_path / "fr", job, Fault("stop", (5,), "tp", -1), recorder=Recorder(buffer=20))
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


def test_missing_tabulate_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tabulate", None)
    truth = hang(tmp_path / "fr", replace(PP4, p2p="coalesced"), Fault("stop", (9,)))
    assert diagnose(tmp_path / "fr").ranks == truth.ranks


# Hostile files, through the command itself ---------------------------------------------------------------------------

MEMORY_BYTES = 1 << 30


class _Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, (f"touch {self.target}",)


def test_malicious_pickle_never_runs_and_is_listed(tmp_path: Path) -> None:
    import pickle

    truth = stopped(tmp_path / "fr")
    for rank, protocol in ((2, 2), (3, 4)):
        dump = {"version": "2.10", "pg_config": {}, "entries": [_Attack(tmp_path / f"ran_{rank}")]}
        path(tmp_path / "fr", rank).write_bytes(pickle.dumps(dump, protocol=protocol))
    answer = run(tmp_path / "fr").answer
    assert not list(tmp_path.glob("ran_*"))
    assert answer.skipped("nccl_trace_rank_2")
    assert answer.skipped("nccl_trace_rank_3")
    assert answer.ranks == truth.ranks


def _laughs() -> bytes:
    """A list of ten lists of ten lists ...: 10^12 numbers once written out, a few hundred bytes as a pickle."""
    levels = b"](" + b"K\x01" * 10 + b"eq\x01"
    for level in range(2, 13):
        levels += b"](" + b"h" + bytes([level - 1]) + (b"h" + bytes([level - 1])) * 9 + b"eq" + bytes([level])
    entry = b"}(X\x0b\x00\x00\x00input_sizes" + levels + b"X\x09\x00\x00\x00record_idK\x00u"
    return pickled(b"](", entry, b"e")


BOMBS = {
    "claims_a_terabyte": pickled(b"\x8d", (1 << 40).to_bytes(8, "little"), b"x" * 64),
    "claims_four_gigabytes": pickled(b"X\xff\xff\xff\xff", b"x" * 64),
    "memo_number_of_billions": pickled(b"]r\x00\x00\x00\x08"),  # 2^27: a plain unpickler fills two gigabytes
    "memo_number_of_four_billion": pickled(b"]r\xff\xff\xff\xff"),
    "nested_a_million_deep": pickled(b"]" * 1_000_000, b"a" * 999_999),
    "nested_tuples": pickled(b")", b"\x85" * 1_000_000),
    "laughs": _laughs(),
    "endless_integer": pickled(b"\x8b\x00\x00\x40\x00", b"\x01" * (1 << 22)),
    "frame_of_a_terabyte": b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"}.",
}


HARMLESS = ("laughs", "memo_number_of_billions")  # a reader that does not fall for them may well read them


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_memory_bomb_is_listed_and_costs_nothing(name: str, tmp_path: Path) -> None:
    truth = stopped(tmp_path / "fr")
    path(tmp_path / "fr", 2).write_bytes(BOMBS[name])
    begun = time.monotonic()
    ran = run(tmp_path / "fr")
    assert ran.peak_bytes < MEMORY_BYTES
    assert time.monotonic() - begun < 30
    assert ran.answer.skipped("nccl_trace_rank_2") or name in HARMLESS
    assert ran.answer.ranks == truth.ranks


def test_a_memo_much_longer_than_the_dump_is_refused_and_not_filled() -> None:
    """A kilobyte that takes a gigabyte and seconds, found by `make fuzz`: below what a reader may use, far above what a dump of its size needs."""
    bomb = pickled(b"]r" + (57_763_189).to_bytes(4, "little"))
    with pytest.raises(PickleRefused, match="far more memory"):
        load(io.BytesIO(bomb), len(bomb))


def test_compressed_bomb_is_listed_and_costs_nothing(tmp_path: Path) -> None:
    import zstandard

    truth = stopped(tmp_path / "fr")
    head = pickled()[:-2] + b"](X" + (1 << 31).to_bytes(4, "little")
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    block = b"\x00" * (1 << 24)
    parts = [packer.compress(head), *(packer.compress(block) for _ in range(128)), packer.flush()]
    path(tmp_path / "fr", 2).write_bytes(b"".join(parts))
    ran = run(tmp_path / "fr")
    assert ran.peak_bytes < MEMORY_BYTES
    assert ran.answer.skipped("nccl_trace_rank_2")
    assert ran.answer.ranks == truth.ranks


def test_nothing_readable_is_said_by_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "fr").mkdir()
    (tmp_path / "fr" / "nccl_trace_rank_0").write_bytes(b"")
    assert run(tmp_path / "fr").answer.exit_code == 3


def test_command_answers_on_stdout_alone(tmp_path: Path) -> None:
    truth = hang(tmp_path / "fr", PP4, Fault("stop", (9,)), recorder=SMALL)
    answer = run(tmp_path / "fr").answer
    assert (answer.exit_code, answer.ranks) == (0, truth.ranks)


# Real dumps ----------------------------------------------------------------------------------------------------------

GLOO_JOB = """
import os, sys, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
data = dist.new_group([0, 1, 2], group_desc="DATA_PARALLEL_GROUP")
x = torch.ones(8, 8)
for _ in range(5):
    dist.all_reduce(x, group=data)
if rank == 0:
    dist.send(x, 1)
elif rank == 1:
    dist.recv(x, 0)
dist.barrier()
if rank != 1:
    work = dist.all_reduce(x, group=data, async_op=True)
time.sleep(1)
with open(f"{folder}/fr/nccl_trace_rank_{rank}", "wb") as file:
    file.write(_dump_fr_trace())
os._exit(0)
"""


@pytest.mark.live
def test_real_gloo_dump_names_the_silent_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "fr").mkdir()
    (tmp_path / "job.py").write_text(GLOO_JOB)
    command = [sys.executable, str(tmp_path / "job.py")]
    jobs = [subprocess.Popen([*command, str(rank), str(tmp_path)], env={"TORCH_FR_BUFFER_SIZE": "100"}) for rank in range(3)]
    assert [job.wait(timeout=60) for job in jobs] == [0, 0, 0]
    assert diagnose(tmp_path / "fr").ranks == (1,)


REAL = sorted(Path(__file__).parents[1].glob("data/cases/**/fault_injection.log"))


@pytest.mark.parametrize("truth", REAL, ids=lambda file: file.parent.name)
def test_real_nccl_dumps_name_the_injected_ranks(truth: Path, tmp_path: Path) -> None:
    shutil.copytree(truth.parent, tmp_path / "fr", ignore=shutil.ignore_patterns("*.log"))
    injected = json.loads(truth.read_text().splitlines()[0].partition(":")[2])
    assert diagnose(tmp_path / "fr").ranks == tuple(sorted(injected))
