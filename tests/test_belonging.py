"""Step timings, logs and kernel logs of another run beside the job's own, or in their place: left out with the reason, never used."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _house import CASES, copy_case, read_folder

from rca.belonging import foreign_evidence
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP_S = 0.5


def timings(
    folder: str, *, after_s: float = 0.0, ranks: Sequence[int] = range(4), first: int = 0, num: int = 20, pace: float = 1.0, **values: Any
) -> list[dict[str, Any]]:
    """One file per rank, its steps half a second each."""
    return [
        {
            "evidence_id": f"{folder}/rank_{rank}", "record": f"L{n + 1}", "rank": rank, "step": first + n, "step_s": STEP_S,
            "compute_s": 0.2 * pace, "started_at": NOON + timedelta(seconds=after_s + n * STEP_S),
        } | values
        for rank in ranks
        for n in range(num)
    ]  # fmt: skip


def dumps(*, after_s: float = 5.0, for_s: float = 3.0, ranks: Sequence[int] = range(4)) -> list[dict[str, Any]]:
    first = NOON + timedelta(seconds=after_s)
    return [{"evidence_id": f"fr/{rank}", "rank": rank, "first_at": first, "last_at": first + timedelta(seconds=for_s)} for rank in ranks]


def left_out(**tables: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Folder -> what of it is left out and why, in a job that left these tables."""
    frames = {name: TABLES[name].rows(rows) for name, rows in tables.items()}
    ids = sorted({row["evidence_id"] for rows in tables.values() for row in rows})
    frames["readings"] = TABLES["readings"].rows([{"evidence_id": id_, "path": id_} for id_ in ids])
    found: dict[str, list[str]] = {}
    for id_, why in foreign_evidence(MemoryCase(frames), ()).items():
        found.setdefault(id_.partition("/")[0], []).append(why)
    return found


def whole(reasons: list[str], word: str, num: int = 4) -> bool:
    return len(reasons) == num and all(word in why for why in reasons)


class TestTimings:
    def test_of_one_run_stay(self) -> None:
        assert left_out(steps=timings("own"), dumps=dumps()) == {}
        assert left_out(steps=timings("own")) == {}

    @pytest.mark.parametrize("after_s", [-3600.0, -30.0, 9.0, 3600.0])
    @pytest.mark.parametrize("has_own", [True, False])
    def test_outside_the_recorded_calls_are_of_another_run(self, after_s: float, *, has_own: bool) -> None:
        own = timings("own") if has_own else []
        found = left_out(steps=[*own, *timings("old", after_s=after_s, pace=3.0)], dumps=dumps())
        assert set(found) == {"old"}
        assert whole(found["old"], "another run")

    def test_what_was_kept_in_memory_and_lost_ends_a_few_steps_before_the_oldest_call(self) -> None:
        assert left_out(steps=timings("own", num=4), dumps=dumps()) == {}

    def test_a_job_that_ran_on_after_its_dump_wrote_a_second_file(self) -> None:
        more = timings("own-2", after_s=10.0, first=20)
        assert left_out(steps=[*timings("own"), *more], dumps=dumps()) == {}

    def test_a_rank_beyond_the_world_is_of_another_job(self) -> None:
        world = [{"evidence_id": "fr/0", "group_id": "world:0", "kind": "world", "size": 4}]
        found = left_out(steps=[*timings("own"), *timings("big", ranks=range(4, 8))], dumps=dumps(), groups=world)
        assert whole(found["big"], "the job 4 ranks")

    def test_one_strange_file_drags_none_of_its_folder_along(self) -> None:
        world = [{"evidence_id": "fr/0", "group_id": "world:0", "kind": "world", "size": 4}]
        numbers = [{"evidence_id": "own/local_0", "rank": 0, "step": step, "loss": 2.0} for step in range(20)]
        found = left_out(steps=[*timings("own"), *timings("own", ranks=[9])], rank_progress=numbers, groups=world)
        assert whole(found.get("own", []), "another job", 1)

    def test_other_hosts_are_of_another_job_unless_all_bear_other_names(self) -> None:
        people = [{"evidence_id": "map", "rank": rank, "host": f"host-{rank}"} for rank in range(4)]
        strange = [row | {"host": f"host-{row['rank'] + 7}"} for row in timings("else", first=100)]
        named = [row | {"host": f"host-{row['rank']}"} for row in timings("own")]
        assert whole(left_out(steps=[*named, *strange], ranks=people)["else"], "another job")
        assert whole(left_out(steps=strange, ranks=people)["else"], "another job"), "nothing ties these hosts to the job"
        assert left_out(steps=strange, ranks=people, dumps=dumps()) == {}, "timed in its calls: its hosts only bear other names"

    def test_of_two_sets_the_one_counts_that_was_running_when_stacks_were_taken(self) -> None:
        looked = [{"evidence_id": "index", "rank": 0, "sampled_at": NOON + timedelta(seconds=4)}]
        found = left_out(steps=[*timings("own"), *timings("old", after_s=-60, pace=3.0)], dump_index=looked)
        assert set(found) == {"old"}

    def test_of_two_sets_that_nothing_tells_apart_neither_is_used(self) -> None:
        found = left_out(steps=[*timings("one"), *timings("two", after_s=90, pace=3.0)])
        assert whole(found["one"], "not to be told")
        assert whole(found["two"], "not to be told")

    def test_a_job_that_was_resumed_counts_from_its_later_start(self) -> None:
        found = left_out(steps=[*timings("first"), *timings("second", after_s=90, first=15, pace=3.0)])
        assert set(found) == {"first"}
        assert whole(found["first"], "an earlier run")

    def test_a_copy_in_other_words_contradicts_nothing(self) -> None:
        again = [row | {"compute_s": 0.2004, "step_s": None} for row in timings("copy")]
        assert left_out(steps=[*timings("own"), *again]) == {}

    def test_numbers_without_instants_go_with_the_timings_of_their_folder(self) -> None:
        numbers = [
            {"evidence_id": f"{folder}/local_{rank}", "rank": rank, "step": step, "loss": loss, "param_checksum": f"{folder}{step}"}
            for folder, loss in (("own", 2.0), ("old", 3.0))
            for rank in range(4)
            for step in range(20)
        ]
        found = left_out(steps=[*timings("own"), *timings("old", after_s=-60)], rank_progress=numbers, dumps=dumps())
        assert set(found) == {"old"}
        assert len(found["old"]) == 8


def combined(folder: Path, own: str, other: str, kinds: Sequence[str], beside: str) -> Path:
    """A shipped case with these kinds of evidence of another one, in a folder beside its own or in their place."""
    copy_case(own, folder)
    for kind in kinds:
        if not beside:
            shutil.rmtree(folder / kind)
        shutil.copytree(CASES / other / kind, folder / beside / kind)
    return folder


ALL = ("logs", "kernel", "timings")


class TestSetsOfAnotherRun:
    @pytest.mark.parametrize("other", ["slow_rank", "worker_oom_killed"])
    @pytest.mark.parametrize(("kinds", "beside"), [(("timings",), "earlier"), (ALL, "earlier"), (("timings",), ""), (ALL, "")])
    def test_accuses_nobody_of_a_sound_job(self, other: str, kinds: Sequence[str], beside: str, tmp_path: Path) -> None:
        with read_folder(combined(tmp_path / "x", "none", other, kinds, beside)) as tables:
            case = MemoryCase(tables)
            found = [ask(case, question) for question in ("slow_rank", "process_death", "fatal_xid", "loss_anomaly", "replica_divergence")]
            assert [f.sign for outcome in found for f in outcome.findings] == []
            stale = tables["evidence"].filter("is_stale")
            foreign = [path for path in stale["path"].to_list() if path.startswith(f"{beside}/" if beside else ("timings/", "logs/"))]
            assert len(foreign) >= 8 * (1 + (len(kinds) > 1))
            assert set(stale["path"]) - set(foreign) <= {"kernel/host-c.dmesg.log"}, "what is the job's own stays"
            if beside:
                assert ask(case, "slow_rank").status == "clear"
            else:
                assert ask(case, "slow_rank").status == ask(case, "job_motion").status == "blind"

    def test_an_earlier_run_hides_no_slow_rank(self, tmp_path: Path) -> None:
        with read_folder(combined(tmp_path / "x", "slow_rank", "none", ALL, "earlier")) as tables:
            (finding,) = ask(MemoryCase(tables), "slow_rank").findings
            assert finding.ranks == (5,)
            assert tables["evidence"].filter(pl.col("is_stale") & ~pl.col("path").str.starts_with("earlier/")).height == 0

    def test_one_file_of_another_run_leaves_its_rank_open(self, tmp_path: Path) -> None:
        folder = copy_case("none", tmp_path / "x")
        shutil.copy(CASES / "slow_rank" / "timings" / "rank_5.jsonl", folder / "timings" / "rank_5.jsonl")
        with read_folder(folder) as tables:
            outcome = ask(MemoryCase(tables), "slow_rank")
        assert (outcome.status, "ranks 5" in outcome.why) == ("blind", True)
