"""Advised commands: pasted into a shell, nothing of them comes from evidence but single words that are names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from _house import call, copy_case, memory_case

from rca.causes import CAUSES
from rca.commands import commands, hostlist
from rca.judge import Judgement, judge
from rca.roster import Roster
from rca.types import Verdict

HOSTILE = (
    "-oProxyCommand=reboot",
    "--version",
    "a;reboot",
    "$(reboot)",
    "`reboot`",
    "a b",
    "a'b",
    'a"; reboot; "',
    "a\nreboot",
    "a#b",
    "*",
    "a,b",
    "a[0-9]",
    "ALL",
    "all",
    "\u202eb",
    "",
)


@cache
def slow_rank() -> Judgement:
    return judge(memory_case("slow_rank"))


def advised(host: str, cause: str, ranks: tuple[int, ...] = (3,)) -> Sequence[str]:
    """The commands for a verdict on a host of that name."""
    found = slow_rank()
    verdict: Verdict = replace(found.verdict, cause=cause, hosts=(host,), ranks=ranks)
    roster: Roster = replace(found.roster, hosts={3: host}, pids={3: 77}, spellings={})
    return commands(verdict, roster, (host,) if CAUSES[cause].action == "replace" else ())


def words_of(line: str) -> list[str]:
    """As a shell splits it, operators on their own, comments gone."""
    split = shlex.shlex(line, posix=True, punctuation_chars=True)
    split.whitespace_split = True
    return list(split)


@pytest.mark.parametrize("cause", ["host_lost", "code_hang", "slow_rank", "gpu_fault", "storage_stall", "process_killed"])
@pytest.mark.parametrize("host", HOSTILE)
def test_a_host_name_stays_one_word_and_no_option(host: str, cause: str) -> None:
    """The line with a hostile name has the same words as with a plain one, but for the name itself."""
    plain = [words_of(line) for line in advised("host-b", cause)]
    lines = [words_of(line) for line in advised(host, cause)]
    assert lines
    for line, usual in zip(lines, plain, strict=False):
        if host.startswith("-"):
            place = line.index("--")
            assert line[place + 1] == host
            line = line[:place] + line[place + 1 :]
        if ";" in usual and ";" not in line:
            usual = usual[: usual.index(";")]  # the scheduler is not asked about a name that no node can have
        assert [host if word == "host-b" else word for word in usual] == line


@pytest.mark.parametrize("host", HOSTILE)
def test_no_node_is_drained_by_a_name_that_no_node_can_have(host: str) -> None:
    assert not any("scontrol" in line for cause in ("host_lost", "slow_rank") for line in advised(host, cause))


def test_hosts_are_told_in_the_short_form_of_the_scheduler() -> None:
    assert hostlist(["node012", "node017"]) == "node[012,017]"
    assert hostlist(["n3", "n1", "n2", "n10", "n9"]) == "n[1-3,9],n10"
    assert hostlist(["g3-057", "g3-060", "g3-059", "g3-061"]) == "g3-[057,059-061]"
    assert hostlist(["host-b", "host-a", "x07", "x07"]) == "host-a,host-b,x07"
    assert hostlist(["a" + "9" * 40, "7"]) == "7,a" + "9" * 40
    assert hostlist([]) == ""


def test_a_drain_names_all_hosts_in_one_word() -> None:
    found = slow_rank()
    lines = commands(found.verdict, found.roster, ("node017", "node012"))
    assert words_of(lines[-1])[:5] == ["scontrol", "update", "nodename=node[012,017]", "state=drain", "reason=rca: slow_rank rank 5"]


def test_commands_spell_a_host_as_its_map_does(tmp_path: Path) -> None:
    """Schedulers tell capitals apart; who is who is still told by the lower-case first label."""
    folder = copy_case("slow_rank", tmp_path / "evidence")
    told = json.loads((folder / "topology.json").read_text())
    for entry in told["ranks"]:
        entry["host"] = {"host-c": "Host-C.Cluster.local"}.get(entry["host"], entry["host"])
    (folder / "topology.json").write_text(json.dumps(told))
    document = call("diagnose", folder, "--json").doc
    assert document["verdict"]["first_failing"]["hosts"] == ["host-c"]
    assert document["advice"]["evict"] == {"hosts": ["Host-C"], "ranks": [4, 5], "group": None, "innocent_hosts": []}
    look, drain = document["advice"]["commands"]
    assert look.startswith("ssh Host-C.Cluster.local ")
    assert "nodename=Host-C " in drain
