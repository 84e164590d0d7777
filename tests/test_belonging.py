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

from rca.belonging import foreign_evidence, foreign_logs
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.timing_launches import other_launches
from rca.timing_sets import TimedFile

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

    @pytest.mark.parametrize(
        ("first", "after_s", "old"),
        [
            (2000, 2 * 86_400.0, {"one", "one-n"}),  # 1,980 steps that nobody saw, and that take 990 s
            (2000, -2 * 86_400.0, {"two", "two-n"}),  # higher steps, and days before: the later one went back
            (2000, 990.0, set()),  # one run that was timed now and then
            (8000, 4_500.0, set()),  # the same, over more than an hour
            (20, 2 * 86_400.0, set()),  # resumed where it was
            (35, 2 * 86_400.0, set()),  # a few steps were lost
            (2000, 60.0, set()),
        ],
    )
    def test_of_launches_far_apart_in_steps_and_time_the_last_counts(self, first: int, after_s: float, old: set[str]) -> None:
        steps = [*timings("one"), *timings("two", first=first, after_s=after_s)]
        numbers = [
            {"evidence_id": f"{name}-n/{row['rank']}", "rank": row["rank"], "step": row["step"], "loss": 1.0}
            for name, rows in (("one", timings("one")), ("two", timings("two", first=first)))
            for row in rows
        ]
        found = left_out(steps=steps, rank_progress=numbers)
        assert set(found) == old
        assert all(whole(whys, "an earlier launch") for whys in found.values())

    @pytest.mark.parametrize(("ties", "old"), [({}, "one"), ({"one": 2}, "one"), ({"one": 3}, "two"), ({"one": 3, "two": 3}, "one")])
    def test_of_launches_far_apart_that_which_is_firmly_tied_counts_before_the_last(self, ties: dict[str, int], old: str) -> None:
        files = {
            name: TimedFile(spans={0: (NOON + after, NOON + after + timedelta(seconds=10))}, steps={0: (first, first + 19)})
            for name, first, after in (("one", 0, timedelta()), ("two", 4000, timedelta(days=2)))
        }
        found = other_launches(files, ties, firm=3)
        assert set(found) == {old}
        assert found[old].startswith("an earlier launch" if old == "one" else "a later launch")

    def test_launches_far_apart_in_one_folder_are_told_file_by_file(self) -> None:
        two = [row | {"evidence_id": f"own/{row['rank']}.old"} for row in timings("own")]
        numbers = [{"evidence_id": f"own/{row['rank']}.old-n", "rank": row["rank"], "step": row["step"], "loss": 1.0} for row in two]
        steps = [*timings("own", first=2000, after_s=2 * 86_400.0), *two]
        assert len(left_out(steps=steps, rank_progress=numbers)["own"]) == 8

    def test_tails_of_other_ranks_are_no_other_launch(self) -> None:
        assert left_out(steps=[*timings("one", ranks=range(2)), *timings("two", ranks=range(2, 4), first=2000, after_s=2 * 86_400.0)]) == {}

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


HOSTS = [{"evidence_id": "map", "rank": rank, "host": f"host-{rank // 2}"} for rank in range(4)]
WORLD = [{"evidence_id": "fr/0", "group_id": "world:0", "kind": "world", "size": 4}]
DAY = timedelta(days=1)


def series(losses: dict[int, float | None], **values: Any) -> list[dict[str, Any]]:
    """Losses by step, as a trainer saves them; None = not finite."""
    return [
        {"evidence_id": "other/x", "record": f"E{step}", "step": step, "loss": loss, "is_finite": loss is not None, **values}
        for step, loss in losses.items()
    ]


def rows(num: int = 4, **values: Any) -> list[dict[str, Any]]:
    return [{"evidence_id": "other/x", "record": f"L{n + 1}", "rank": n, **values} for n in range(num)]


NUMBERS = [
    {"evidence_id": f"own/n{rank}", "rank": rank, "step": step, "loss": 2.0 - step / 100, "grad_norm": 1.0, "is_finite": True}
    for rank in range(4)
    for step in range(20)
]


class TestReports:
    """A job of 4 ranks on two hosts, whose timings show steps 0 to 19 from noon on, and whose numbers are finite."""

    def judged(self, **more: Sequence[dict[str, Any]]) -> str:
        """Why `other/x` is left out; "" where it stays. Nothing of the job's own may go."""
        tables: dict[str, list[dict[str, Any]]] = {
            "steps": timings("own"), "dumps": dumps(for_s=5.0), "ranks": HOSTS, "groups": WORLD, "rank_progress": NUMBERS,
            "host_logs": [{"evidence_id": "kernel/0", "host": "host-0"}],
        }  # fmt: skip
        found = left_out(**{name: [*tables.get(name, []), *more.get(name, [])] for name in {*tables, *more}})
        assert set(found) <= {"other"}
        return found.get("other", [""])[0]

    @pytest.mark.parametrize(
        ("table", "told", "why"),
        [
            ("progress", series({10: 1.9, 20: None, 40: None}), "goes to step 40, and the job reached step 19"),
            ("progress", series({5: 1.9, 10: None}), "at step 10 is not finite"),
            ("progress", series({5: 1.95, 10: 1.9, 15: 900.0}), "go other ways"),
            ("progress", series({5: 7.8, 10: 7.6, 15: 7.4}), ""),  # the sum of four
            ("progress", series({5: 1.95, 19: 1.8, 25: 1.7}), ""),  # the last steps of ranks may be lost
            ("progress", series({20: None}), ""),  # after the last one that is known to be sound
            ("progress", series({400: 1.9}, ended_at=NOON), ""),  # counted otherwise, in the time of the job
            ("progress", series({5: 1.9}, ended_at_local="2026-02-01T12:00:00"), "before the job began"),
            ("progress", series({5: 1.9}, ended_at_local="2026-03-01T02:00:00"), ""),  # some zone
            ("steps", rows(step=1000, step_s=0.5), "goes to step 1000"),
            ("steps", rows(step=3, step_s=0.5, host="gpu-7"), "rank 0 is on gpu-7 there, and on host-0 in the job"),
            ("rank_stats", rows(name="gpu", score_ratio=0.5, host="gpu-7"), "another job: rank 0"),
            ("rank_stats", rows(name="gpu", score_ratio=0.5, host="HOST-1.site.example"), ""),  # of the job, whichever rank is meant
            ("rank_stats", rows(name="gpu", score_ratio=0.5, host="10.0.0.7"), ""),  # an address is no name
            ("rank_stats", rows(name="gpu", score_ratio=0.5), ""),
            ("rank_stats", rows(6, name="gpu", score_ratio=0.5), "it has a rank 5, and the job 4 ranks"),
            ("rank_stats", rows(name="gpu", score_ratio=0.5, logged_at=NOON + DAY), "after the job ended"),
            ("trainer_events", rows(event="stop", step=5000), "goes to step 5000"),
            ("trainer_events", rows(event="stop", logged_at=NOON - DAY), "before the job began"),
            ("rank_states", rows(is_hang=True, logged_at=NOON - DAY), "before the job began"),
            ("rank_states", rows(is_hang=True, logged_at=NOON + DAY), ""),  # it still stands when somebody looks
            ("gpu_samples", [{"evidence_id": "other/x", "name": "XID", "host": "gpu-7"}], "it is of host gpu-7"),
            ("gpu_samples", [{"evidence_id": "other/x", "name": "XID", "host": h} for h in ("gpu-7", "host-1")], ""),
            ("node_events", [{"evidence_id": "other/x", "host": "gpu-7"}], "it is of host gpu-7"),
            ("node_events", [{"evidence_id": "other/x", "host": "host-1", "logged_at": NOON - DAY}], ""),  # others judge their age
            ("nccl_calls", [{"evidence_id": "other/x", "comm": "a", "group_rank": 1, "group_size": 64}], "a communicator has 64 ranks"),
            ("nccl_ras", [{"evidence_id": "other/x", "comm": "a", "ranks_per_comm": 4}], ""),
            ("nccl_ras", [{"evidence_id": "other/x", "comm": "a", "ranks_per_comm": 8}], "a communicator has 8 ranks"),
        ],
    )  # fmt: skip
    def test_go_where_they_contradict_the_job(self, table: str, told: list[dict[str, Any]], why: str) -> None:
        assert self.judged(**{table: told}).count(why) >= 1
        assert bool(self.judged(**{table: told})) == bool(why)

    def test_steps_before_the_first_that_is_known(self) -> None:
        late = [row | {"step": row["step"] + 1000} for row in timings("own")]
        for first, goes in ((100, True), (990, False), (1005, False)):
            found = left_out(steps=late, dumps=dumps(), progress=series({first: 1.9}))
            assert bool(found) == goes

    def test_what_tells_nothing_of_the_job_stays(self) -> None:
        told = rows(step=1000, step_s=0.5)
        assert left_out(steps=told) == left_out(steps=told, dumps=dumps()) == left_out(progress=series({40: None})) == {}

    def test_a_profile_of_some_steps_bounds_no_job_that_ran_on(self) -> None:
        few = timings("own", num=3, first=10)
        assert left_out(steps=few, dumps=dumps(after_s=0.0, for_s=300.0), progress=series({600: 1.9})) == {}
        assert set(left_out(steps=few, dumps=dumps(after_s=0.0, for_s=300.0), progress=series({6000: 1.9}))) == {"other"}

    def test_machines_that_bear_other_names_than_the_ranks_tell_nothing(self) -> None:
        samples = [{"evidence_id": "other/x", "name": "XID", "host": "gpu-7"}]
        assert left_out(steps=timings("own"), dumps=dumps(), ranks=HOSTS, groups=WORLD, gpu_samples=samples) == {}

    def test_the_files_of_a_folder_go_together(self) -> None:
        named = [row | {"evidence_id": f"other/{row['rank']}", "host": "gpu-7"} for row in rows(name="gpu", score_ratio=0.5)]
        silent = [{"evidence_id": "other/x", "rank": 1, "name": "gpu", "score_ratio": 0.5}]
        assert "another job" in self.judged(rank_stats=[*named, *silent])
        found = left_out(steps=timings("own"), dumps=dumps(), ranks=HOSTS, groups=WORLD, rank_stats=[*named, *silent])
        assert len(found["other"]) == 5


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
                assert ask(case, "slow_rank").status == "blind"
                assert ask(case, "job_motion").status in ("blind", "clear")

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


def test_logs_that_end_before_later_ones_of_their_name_begin_are_of_an_earlier_launch() -> None:
    """Two launches in local time: nothing ties a process to a rank."""

    def log(pid: int, hours: list[int]) -> list[dict[str, Any]]:
        return [{"pid": pid, "logged_at_local": f"01-0{2 + hour // 24}T{hour % 24:02d}:00:00"} for hour in hours]

    def left(**files: tuple[str, int, list[int]]) -> set[str]:
        events = [
            {"evidence_id": id_, "record": f"L{n}", **row}
            for id_, (_, pid, hours) in files.items()
            for n, row in enumerate(log(pid, hours))
        ]
        read = [{"evidence_id": id_, "path": path} for id_, (path, _, _) in files.items()]
        case = MemoryCase({"log_events": TABLES["log_events"].rows(events), "readings": TABLES["readings"].rows(read)})
        return set(foreign_logs(case))

    old, new = ("before/host-1.agent.log", 7, [0, 3]), ("logs/host-1.log", 9, [20, 30])
    assert left(a=old, b=new) == {"a"}
    assert left(a=("before/host-2.agent.log", 7, [0, 3]), b=new) == set()  # a log that ends early: of a host that died early
    assert left(a=("before/host-1.agent.log", 9, [0, 3]), b=new) == set()  # the same process
    assert left(a=old, b=("logs/host-1.log", 9, [2, 30])) == set()  # they overlap
    assert left(a=("before/agent.log", 7, [0, 3]), b=("logs/agent.log", 9, [20, 30])) == set()  # of whom is not told


@pytest.mark.parametrize(
    ("old", "new", "span_day", "is_older"),
    [
        # path, steps, day.hour of the first step (None: no stamps), what its end says; then the same of the other log
        (
            ("before/rank_0.log", [1, 2, 3], 1.0, "raised"),
            ("logs/host-1.log", [40, 41, 42], 3.0, ""),
            None,
            True,
        ),  # later steps, later stamps
        (
            ("before/rank_0.log", [40, 41, 42], 1.0, "raised"),
            ("logs/rank_0.log", [20, 21, 22], 1.1, ""),
            None,
            True,
        ),  # went back to a checkpoint
        (
            ("before/rank_0.log", [2050, 2060], 1.0, "raised"),
            ("logs/rank_0.log", [2070, 2080], 1.5, "ended"),
            None,
            True,
        ),  # every tenth step is printed: two lines are ten steps
        (
            ("before/rank_0.log", [2059, 2060], 1.0, "raised"),
            ("logs/rank_0.log", [2061, 2062], 1.5, "ended"),
            None,
            False,
        ),  # what was under way when a rank ended
        (("before/rank_0.log", [40, 41, 42], 1.0, "raised"), ("logs/host-1.log", [20, 21, 22], 1.1, ""), None, False),  # of other clocks
        (("before/rank_0.log", [40, 41, 42], 1.0, "raised"), ("logs/host-1.log", [20, 21, 22], 2.1, ""), None, True),  # beyond any zone
        (("before/rank_0.log", [1, 2, 3], None, "raised"), ("logs/rank_0.log", [40, 41, 42], None, ""), None, True),  # no stamps at all
        (
            ("before/rank_0.log", [1, 2, 3], None, "raised"),
            ("logs/rank_0.log", [4, 5, 6], None, ""),
            None,
            False,
        ),  # goes on: a log cut in two
        (
            ("before/rank_0.log", [1, 2, 3], 1.0, ""),
            ("logs/rank_0.log", [40, 41, 42], 3.0, "raised"),
            None,
            False,
        ),  # no end: the same launch
        (("logs/rank_3.log", [1, 2, 3], 1.0, "raised"), ("logs/rank_0.log", [3, 4], 1.0, ""), None, False),  # ranks of one launch
        (
            ("before/slurm-7.out", [], None, "cancelled"),
            ("logs/job.log", [], None, "StepId=9.0"),
            None,
            True,
        ),  # Slurm's numbers, either way
        (("before/slurm-9.out", [], None, "cancelled"), ("logs/job.log", [], None, "StepId=7.0"), None, None),
        (
            ("logs/slurm-9.out", [1, 2, 3], 1.0, "raised"),
            ("b/slurm-7.out", [40, 41, 42], 3.0, "cancelled"),
            None,
            False,
        ),  # no earlier job, whatever its stamps say
        (
            ("before/rank_0.log", [1, 2, 3], 1.0, "raised"),
            ("logs/rank_9.log", [], None, ""),
            3,
            True,
        ),  # days before the first recorded call
        (("before/rank_0.log", [1, 2, 3], 3.0, "raised"), ("logs/rank_9.log", [], None, ""), 3, False),
    ],
)
def test_logs_that_ended_before_others_tell_of_steps_are_of_an_earlier_launch(
    old: tuple[str, list[int], float | None, str],
    new: tuple[str, list[int], float | None, str],
    span_day: int | None,
    *,
    is_older: bool | None,
) -> None:
    tables: dict[str, list[dict[str, Any]]] = {"progress": [], "log_events": [], "readings": [], "dumps": []}
    for path, steps, day, says in (old, new):
        tables["readings"].append({"evidence_id": path, "path": path})
        for n, step in enumerate(steps):
            at = f"2026-03-{int(day):02d}T{round(day % 1 * 10) + 1:02d}:{n:02d}:00" if day is not None else None
            tables["progress"].append({"evidence_id": path, "record": f"L{n}", "step": step, "ended_at_local": at})
        ends = {"raised": "python_traceback", "cancelled": "slurm_cancelled"}
        sign = ends.get(says, "slurm_task_exit" if says else "worker_started")
        tables["log_events"].append({"evidence_id": path, "record": "L99", "signature": sign, "message": says})
    if span_day is not None:
        at_call = datetime(2026, 3, span_day, 12, tzinfo=UTC)
        tables["dumps"].append({"evidence_id": "fr/0", "rank": 0, "first_at": at_call, "last_at": at_call + timedelta(minutes=1)})
    case = MemoryCase({name: TABLES[name].rows(rows) for name, rows in tables.items()})
    assert set(foreign_evidence(case, ())) == {True: {old[0]}, False: set(), None: {new[0]}}[is_older]


@pytest.mark.parametrize(
    ("ended", "other", "out"),
    [
        # of job 77, which printed steps: the frames of its exception (None: it tells no end); of job 78: what it tells
        (["<module> (/opt/train.py:5)"], {"frames": ["<module> (/opt/eval.py:3)"]}, []),  # an evaluation: no later launch
        (["<module> (/opt/train.py:5)"], {"frames": ["f (/opt/a.py:1)", "<module> (/opt/train.py:9)"]}, ["77"]),  # the same program again
        (["<module> (/opt/train.py:5)"], {"frames": ["<module> (/opt/eval.py:3)"], "rank": 3}, ["77"]),  # it has ranks
        (["<module> (/usr/bin/torchrun:5)"], {"frames": ["<module> (/usr/bin/torchrun:5)"]}, []),  # which starts any program
        (["<module> (/opt/train.py:5)"], {"signature": "slurm_task_exit", "message": "srun: error: a: tasks 0-15: Exited"}, ["77"]),
        (["<module> (/opt/train.py:5)"], {"signature": "slurm_task_exit", "message": "srun: error: a: task 0: Exited"}, []),
        (None, {"frames": ["<module> (/opt/eval.py:3)"]}, ["78"]),  # this one goes on
        (None, {"frames": ["<module> (/opt/eval.py:3)"], "rank": 3}, []),
        (None, {"frames": ["<module> (/opt/eval.py:3)"], "logged_at_local": "2026-03-01T01:01:30"}, ["78"]),
        (None, {"frames": ["<module> (/opt/eval.py:3)"], "logged_at_local": "2026-03-01T01:09:30"}, []),  # behind the last step: who knows
    ],
)
def test_a_later_job_that_tells_of_no_training_is_no_later_launch(ended: list[str] | None, other: dict[str, Any], out: list[str]) -> None:
    own, beside = "slurm-77.out", "slurm-78.out"
    stamps = [f"2026-03-01T01:{n:02d}:00" for n in range(4)]
    events = [{"evidence_id": own, "record": "L1", "signature": "train_progress", "logged_at_local": at} for at in stamps]
    if ended is not None:
        events.append({"evidence_id": own, "record": "L99", "rank": 5, "signature": "python_traceback", "frames": ended})
    events.append({"evidence_id": beside, "record": "L9", "signature": "python_traceback"} | other)
    tables = {
        "log_events": events,
        "progress": [{"evidence_id": own, "record": f"L{n}", "step": 40 + n, "ended_at_local": at} for n, at in enumerate(stamps)],
        "readings": [{"evidence_id": path, "path": path} for path in (own, beside)],
    }
    case = MemoryCase({name: TABLES[name].rows(rows) for name, rows in tables.items()})
    assert [id_[6:8] for id_ in foreign_evidence(case, ())] == out


def test_a_log_above_the_folder_of_an_earlier_launch_stays() -> None:
    events = [
        {"evidence_id": path, "record": "L1", "signature": "slurm_cancelled", "message": says}
        for path, says in (("logs/attempt_0/slurm-7.out", ""), ("logs/job.log", "StepId=9.0"), ("logs/attempt_0/rank_1.log", ""))
    ]
    read = [{"evidence_id": path, "path": path} for path in ("logs/attempt_0/slurm-7.out", "logs/job.log", "logs/attempt_0/rank_1.log")]
    case = MemoryCase({"log_events": TABLES["log_events"].rows(events), "readings": TABLES["readings"].rows(read)})
    assert set(foreign_evidence(case, ())) == {"logs/attempt_0/slurm-7.out", "logs/attempt_0/rank_1.log"}


def rates(folder: str, first: int, num: int = 5) -> list[dict[str, Any]]:
    """Steps of rank 0 as Hugging Face prints them: no number, no stamp, the learning rate of a warm-up."""
    return [
        {"evidence_id": f"{folder}/rank_0", "record": f"L{n + 1}", "rank": 0, "loss": 3.0, "learning_rate": 1e-7 * (first + n)}
        for n in range(num)
    ]


@pytest.mark.parametrize(("first", "old"), [(9000, ["old"]), (9900, []), (9050, [])])
def test_a_schedule_of_learning_rates_is_a_clock(first: int, old: list[str]) -> None:
    ended = {"evidence_id": "old/rank_3", "record": "L1", "rank": 3, "signature": "python_traceback", "exception": "ValueError"}
    progress = [*rates("old", first), *rates("new", 9050)]
    assert list(left_out(progress=progress, log_events=[ended])) == old


@pytest.mark.parametrize(("hours", "old"), [(40, ["old"]), (11, [])])  # within what zones differ by, it may be of this launch
def test_logs_that_ended_a_day_before_the_first_call_are_old_even_where_no_others_are(hours: float, old: list[str]) -> None:
    ended = NOON - timedelta(hours=hours)
    line = {"evidence_id": "old/rank_3", "record": "L1", "rank": 3, "signature": "python_traceback", "exception": "ValueError"}
    assert list(left_out(log_events=[line | {"logged_at_local": f"{ended:%Y-%m-%dT%H:%M:%S}"}], dumps=dumps())) == old


@pytest.mark.parametrize(
    ("own", "others", "is_older"),
    [
        (("worker_started", "python_traceback"), ("worker_started",), True),
        (("python_traceback",), ("worker_started",), False),  # the same launch, its errors in a folder of their own
        (("worker_started", "python_traceback"), ("worker_started", "python_traceback"), False),  # which ended first nothing tells
        (("worker_started",), ("worker_started", "python_traceback"), False),
    ],
)
def test_of_two_starts_of_a_rank_without_stamps_the_one_that_ended_was_first(
    own: tuple[str, ...], others: tuple[str, ...], *, is_older: bool
) -> None:
    files = {"logs/attempt_0/rank_0.log": own, "logs/rank_0.log": others}
    rows = [
        {"evidence_id": path, "record": f"L{n}", "rank": 0, "signature": sign}
        for path, signs in files.items()
        for n, sign in enumerate(signs)
    ]
    read = [{"evidence_id": path, "path": path} for path in files]
    case = MemoryCase({"log_events": TABLES["log_events"].rows(rows), "readings": TABLES["readings"].rows(read)})
    assert ("logs/attempt_0/rank_0.log" in foreign_evidence(case, ())) is is_older


@pytest.mark.parametrize(
    ("seq", "stale", "is_older"),
    [
        (20_299, (), True),  # between the last completed and the last made: the call that the dump ends at
        (20_298, (), False),  # completed
        (54_132, (), False),  # not made yet
        (20_299, ("dump",), False),  # the dump is of an earlier launch itself
    ],
)
def test_of_two_starts_of_a_rank_the_one_counts_whose_time_outs_name_the_calls_that_dumps_end_at(
    seq: int, stale: tuple[str, ...], *, is_older: bool
) -> None:
    told = {
        "logs/attempt_0/rank_0.log": (("worker_started", ""), ("python_traceback", "no schedule beyond step 100")),
        "logs/rank_0.log": (("worker_started", ""), ("nccl_watchdog_timeout", f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE)")),
    }
    rows = [
        {"evidence_id": path, "record": f"L{n}", "rank": 0, "signature": sign, "message": message}
        for path, lines in told.items()
        for n, (sign, message) in enumerate(lines)
    ]
    read = [{"evidence_id": path, "path": path} for path in told]
    ends = {"evidence_id": "dump", "record": "E0", "rank": 0, "group_id": "dp:1", "last_enqueued": 20_304, "last_completed": 20_298}
    tables = {"log_events": rows, "readings": read, "group_status": [ends]}
    case = MemoryCase({name: TABLES[name].rows(of) for name, of in tables.items()})
    assert ("logs/attempt_0/rank_0.log" in foreign_logs(case, stale)) is is_older


def test_a_log_of_ranks_that_the_job_does_not_have_is_of_another() -> None:
    """A map names four ranks; what a log of both says is left."""
    named = [{"evidence_id": "map/m", "record": str(rank), "rank": rank, "local_rank": rank} for rank in range(4)]
    said = {"own": [3], "other": [4], "both": [2, 9], "nobody": [None]}
    lines = [{"evidence_id": f"{id_}/x", "record": f"L{n}", "rank": rank} for id_, ranks in said.items() for n, rank in enumerate(ranks)]
    assert set(left_out(ranks=named, log_events=lines)) == {"other"}
    assert left_out(ranks=named[1:], log_events=lines) == {}  # a map of some does not tell how many there are


@pytest.mark.parametrize(
    ("local", "is_left_out"),
    [("2026-03-03T11:00:00", True), ("03-03T11:00:00", True), ("2026-03-02T01:00:00", False), ("2025-09-20T12:00:00", True), (None, False)],
)
def test_a_log_of_nobody_that_was_written_on_another_day_is_of_another_run(local: str | None, *, is_left_out: bool) -> None:
    """Its stamps lack their zone, so they must be further off than any zone."""
    line = {"evidence_id": "crash/x", "record": "L6", "signature": "python_traceback", "logged_at_local": local}
    assert set(left_out(steps=timings("own"), log_events=[line])) == ({"crash"} if is_left_out else set())
