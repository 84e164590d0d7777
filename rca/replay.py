"""What the rows of `replays` prove: which group differs from the others that computed the same, and which host the differing ones share. Pure.

All groups of a replay run the same steps from the same seed on the same data, so what stands at one place of a group (`place`) must have the
same bits in every group, phase and repeat. No trusted host is needed:

1. Reference, step by step: the fingerprint that most hosts found at a place, and at least two; a run that differed before has no vote. A
   tie has none.
2. A run of a group differs where a fingerprint is not the reference; it is equal only when all of it is there and equal; killed, it is missing.
   A group whose own repeats differ from each other differs too, also where there is no reference; where most groups do, the steps are not
   deterministic and nothing is told.
3. Double run: a host that differs is the culprit.
4. Two phases: the candidates are the hosts that a differing group of each phase share. A candidate is the culprit when it is the only one in a
   differing group, or when it is, in every differing group of both phases, the one host that differs first, before the difference spreads.
5. Two faulty hosts leave up to four candidates; a fault that shows in one phase only leaves a whole group. Both are said, not decided.

Source: ByteRobust (SOSP'25, arXiv 2509.16293), algorithm 1; majority in place of a trusted reference as in SDCHunter (OSDI'26).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

__all__ = ["COMMANDS", "DOUBLE_RUN", "GroupResult", "Judged", "chance", "judge_replays", "references"]

DOUBLE_RUN: Final = "double_run"
COMMANDS: Final = (  # in this order; the last one reads the evidence with the replay's records
    "rca replay plan PATH --out plan.json",
    "rca replay run plan.json --out PATH/replay --launcher 'ssh {host}'",
    "rca diagnose PATH",
)
MIN_HOSTS: Final = 2  # that must agree on a reference: one that computes wrongly agrees with itself
Row = Mapping[str, Any]  # of the table `replays`
Place = tuple[bool, int, int]  # double run or not, place in the group, step


@dataclass(frozen=True)
class GroupResult:
    """One group of a phase over all its repeats."""

    phase: str
    number: int
    hosts: tuple[str, ...]  # by place
    outcome: str  # equal, differs, missing, undecided (no reference)
    repeats: Mapping[str, int]  # outcome -> number of runs that had it
    first: tuple[str, ...]  # hosts that differed first, in the earliest step of any repeat; one = it is named
    step: int | None  # earliest step that differed

    @property
    def named(self) -> str | None:
        """The one host that differed first."""
        return self.first[0] if len(self.first) == 1 else None


@dataclass(frozen=True)
class Judged:
    """The answer of one replay."""

    replay_id: str
    outcome: str  # culprit, candidates, clean, undecided
    hosts: tuple[str, ...]  # culprits or candidates, sorted
    because: str
    then: str  # what to do next; "" = nothing
    groups: tuple[GroupResult, ...]
    ran_at: datetime | None
    rows: tuple[Row, ...] = field(default=(), repr=False)  # those that differ first, of the hosts above

    @property
    def shown(self) -> tuple[int, int]:
        """Of the whole runs of groups with a named host: how many differed, and how many there were."""
        counts = [group.repeats for group in self.groups if set(group.hosts) & set(self.hosts)]
        differs = sum(count.get("differs", 0) for count in counts)
        return differs, differs + sum(count.get("equal", 0) for count in counts)


def chance(q: float, repeats: int, num_phases: int = 2) -> float:
    """That every phase shows a fault that one replay reproduces with probability `q`: (1 - (1 - q)^repeats)^num_phases."""
    return float((1.0 - (1.0 - q) ** repeats) ** num_phases)


def references(rows: Iterable[Row]) -> dict[Place, str]:
    """(double run or not, place, step) -> fingerprint that most of its hosts found there; absent on a tie.

    What follows a difference in a run tells nothing: from the step after its first one, a run has no vote.
    """
    at_step: dict[tuple[bool, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row["fingerprint"] is not None and row["step"] is not None:
            at_step[row["phase"] == DOUBLE_RUN, row["step"]].append(row)
    found: dict[Place, str] = {}
    parted: set[tuple[str, int, int]] = set()
    for key in sorted(at_step):
        voting = [row for row in at_step[key] if _run_of(row) not in parted]
        places: dict[int, list[Row]] = defaultdict(list)
        for row in voting:
            places[row["place"]].append(row)
        chosen = {(key[0], place, key[1]): value for place, own in places.items() if (value := _majority(own)) is not None}
        parted |= {_run_of(row) for row in voting if chosen.get(_place(row), row["fingerprint"]) != row["fingerprint"]}
        found |= chosen
    return found


def _majority(rows: Sequence[Row]) -> str | None:
    """The fingerprint that more hosts found than any other, at least two, and that more than half of the hosts or
    more than half of the runs show. A host has one vote for each value it found: its own repeats are no second opinion."""
    voters: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        voters[row["fingerprint"]].add(row["host"])
    num_hosts = len(set().union(*voters.values()))
    best = max(len(hosts) for hosts in voters.values())
    winners = [value for value, hosts in voters.items() if len(hosts) == best]
    if len(winners) != 1 or best < MIN_HOSTS:
        return None
    runs = sum(row["fingerprint"] == winners[0] for row in rows)
    return winners[0] if 2 * best > num_hosts or 2 * runs > len(rows) else None


def _run_of(row: Row) -> tuple[str, int, int]:
    return row["phase"], row["group_number"], row["repeat"]


def judge_replays(rows: Iterable[Row]) -> list[Judged]:
    """One answer for each replay, by replay_id. Rows of the table `replays` in any order; those without a replay, phase or host are left out."""
    of_replay: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if None not in (row["replay_id"], row["phase"], row["group_number"], row["host"], row["place"]):
            of_replay[row["replay_id"]].append(row)
    return [_judge(name, of_replay[name]) for name in sorted(of_replay)]


def _place(row: Row) -> Place:
    return row["phase"] == DOUBLE_RUN, row["place"], row["step"]


def _judge(replay_id: str, rows: Sequence[Row]) -> Judged:
    expected = references(rows)
    of_group: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        of_group[row["phase"], row["group_number"]].append(row)
    repeats = {row["repeat"] for row in rows if row["repeat"] is not None} or {0}
    places: dict[bool, set[Place]] = defaultdict(set)
    for row in rows:
        if row["fingerprint"] is not None and row["step"] is not None:
            places[row["phase"] == DOUBLE_RUN].add(_place(row))
    groups = tuple(_group(key, of_group[key], repeats, places[key[0] == DOUBLE_RUN], expected) for key in sorted(of_group))
    outcome, hosts, because, then = _answer(groups)
    ran_at = max((row["ran_at"] for row in rows if row["ran_at"] is not None), default=None)
    return Judged(replay_id, outcome, tuple(sorted(hosts)), because, then, groups, ran_at, _first_rows(groups, of_group, hosts))


def _group(
    key: tuple[str, int], rows: Sequence[Row], repeats: Collection[int], places: Collection[Place], expected: Mapping[Place, str]
) -> GroupResult:
    """A group over its repeats. Rows without a repeat only say who belongs to it."""
    members = dict(sorted({(row["place"], row["host"]) for row in rows}))
    runs: dict[int, list[Row]] = {repeat: [] for repeat in sorted(repeats)}
    for row in rows:
        if row["repeat"] is not None:
            runs[row["repeat"]].append(row)
    counts: Counter[str] = Counter()
    earliest: dict[int, set[str]] = defaultdict(set)
    for run in runs.values():
        outcome, step, first = _run(run, {at for at in places if at[1] in members}, expected)
        counts[outcome] += 1
        if step is not None:
            earliest[step] |= first
    itself = _parts_with_itself(rows)
    step = min(earliest, default=None)
    if step is None and itself is not None:
        return GroupResult(*key, tuple(members.values()), "differs", dict(counts), *itself)
    outcome = next(name for name in ("differs", "missing", "undecided", "equal") if counts[name])
    return GroupResult(
        *key, tuple(members.values()), outcome, dict(counts), tuple(sorted(earliest[step])) if step is not None else (), step
    )


def _run(run: Sequence[Row], places: Collection[Place], expected: Mapping[Place, str]) -> tuple[str, int | None, set[str]]:
    """Outcome of one run, the first step that differs, and the hosts that do so there (none where a step before it has no reference)."""
    seen = {_place(row): row for row in run if row["fingerprint"] is not None and row["step"] is not None}
    wrong = [row for at, row in seen.items() if at in expected and row["fingerprint"] != expected[at]]
    open_steps = [at[2] for at in seen if at not in expected]
    if wrong:
        step = min(row["step"] for row in wrong)
        clear = not open_steps or step < min(open_steps)
        return "differs", step, {row["host"] for row in wrong if row["step"] == step} if clear else set()
    if not seen or set(places) - set(seen) or any(row["fingerprint"] is None for row in run):
        return "missing", None, set()
    return ("undecided" if open_steps else "equal"), None, set()


def _parts_with_itself(rows: Sequence[Row]) -> tuple[tuple[str, ...], int] | None:
    """Hosts and first step at which the repeats of one group differ from each other."""
    values: dict[tuple[int, str], set[str]] = defaultdict(set)
    for row in rows:
        if row["fingerprint"] is not None and row["step"] is not None and row["repeat"] is not None:
            values[row["step"], row["host"]].add(row["fingerprint"])
    parted = sorted(key for key, found in values.items() if len(found) > 1)
    return (tuple(host for step, host in parted if step == parted[0][0]), parted[0][0]) if parted else None


Answer = tuple[str, Collection[str], str, str]


def _answer(groups: Sequence[GroupResult]) -> Answer:
    differing = [group for group in groups if group.outcome == "differs"]
    by_itself = [group for group in differing if not group.repeats.get("differs")]
    if 2 * len(by_itself) > len(groups) > 1 or len(differing) == len(groups) > 1:
        return (
            "undecided",
            (),
            f"{len(differing)} of {len(groups)} groups differ: the steps are not deterministic here, or most hosts are wrong",
            "run the same group twice on hosts that are known to be good; if it differs from itself, make the steps deterministic first",
        )
    open_groups = [group for group in groups if group.outcome in ("missing", "undecided")]
    if not differing:
        return _nothing_differs(groups, open_groups)
    if {group.phase for group in groups} == {DOUBLE_RUN}:
        hosts = {group.hosts[0] for group in differing}
        agreeing = sum(group.outcome == "equal" for group in groups)
        of_others = f"others than the {agreeing} hosts that agree" if agreeing else "others in one repeat than in another"
        return "culprit", hosts, f"the bits of {_names(hosts)} are {of_others}", _then(open_groups)
    return _two_phases(differing, open_groups)


def _then(open_groups: Sequence[GroupResult]) -> str:
    """What a culprit leaves to do: the groups that tell nothing may hold another one."""
    return f"take it out and replay again: {len(open_groups)} groups told nothing, and may hold another" if open_groups else ""


def _nothing_differs(groups: Sequence[GroupResult], open_groups: Sequence[GroupResult]) -> Answer:
    whole = len(groups) - len(open_groups)
    if not open_groups:
        return "clean", (), f"all {whole} groups computed the same bits in every repeat", ""
    missing = [group for group in open_groups if group.outcome == "missing"]
    if missing:
        shown = "; ".join(f"{g.phase.replace('_', ' ')} group {g.number}" for g in missing[:4])
        because = f"{len(missing)} of {len(groups)} groups left no whole record ({shown}); the {whole} whole ones agree"
        return "undecided", (), because, "run the replay again for the groups that are missing, and see why they ended"
    tied = sorted({host for group in open_groups for host in group.hosts})
    because = f"{len(open_groups)} of {len(groups)} groups have no majority: a tie, or one host alone, does not tell which bits are right"
    return "undecided", (), because, f"add hosts that are known to be good to {_names(tied)} and run again"


def _two_phases(differing: Sequence[GroupResult], open_groups: Sequence[GroupResult]) -> Answer:
    phases: dict[str, list[GroupResult]] = defaultdict(list)
    for group in differing:
        phases[group.phase].append(group)
    if len(phases) == 1:
        return _one_phase(next(iter(phases.values())), open_groups)
    first, second = phases.values()
    candidates = {host for a in first for b in second for host in set(a.hosts) & set(b.hosts)}
    shown = " and ".join(_numbers(phase, groups) for phase, groups in phases.items())
    named = [{group.named for group in groups} for groups in (first, second)]
    if named[0] == named[1] and None not in named[0]:
        hosts = {host for host in named[0] if host}
        return (
            "culprit",
            hosts,
            f"{shown} differ from the others, each first at {_names(hosts)}, before the difference spread",
            _then(open_groups),
        )
    only = {next(iter(shared)) for group in differing if len(shared := candidates & set(group.hosts)) == 1}
    if candidates and all(only & set(group.hosts) for group in differing):
        return "culprit", only, f"{shown} differ from the others and share {_names(only)}", _then(open_groups)
    if not candidates:
        because = f"{shown} differ and share no host: more than one is wrong, or the fault does not always show"
        return "candidates", {host for g in differing for host in g.first or g.hosts}, because, _apart(differing, ())
    return "candidates", candidates, f"{shown} differ, and {len(candidates)} hosts fit: {_names(candidates)}", _apart(differing, candidates)


def _one_phase(differing: Sequence[GroupResult], open_groups: Sequence[GroupResult]) -> Answer:
    hosts = {host for group in differing for host in group.first or group.hosts}
    phase = differing[0].phase
    missing = [group for group in open_groups if group.phase != phase]
    why = f"{len(missing)} groups of the other phase left no whole record" if missing else "the other phase did not show it again"
    shown = ", ".join(str(group.number) for group in differing[:8])
    because = f"{phase} group {shown} differs from the others, first at {_names(hosts)}, but {why}"
    return "candidates", hosts, because, "repeat the other phase until it shows too (--repeats): one difference alone proves no host"


def _apart(differing: Sequence[GroupResult], candidates: Collection[str]) -> str:
    fitting = sorted(candidates) or sorted({host for group in differing for host in group.hosts})
    return f"run {_names(fitting)} each on its own, beside hosts that are clean: rca replay plan --mode double_run"


def _numbers(phase: str, groups: Sequence[GroupResult]) -> str:
    """`vertical group 3`, `horizontal groups 0, 2`."""
    more = f" and {len(groups) - 8} more" if len(groups) > 8 else ""
    return f"{phase} group{'s' if len(groups) > 1 else ''} {', '.join(str(group.number) for group in groups[:8])}{more}"


def _names(hosts: Iterable[str]) -> str:
    names = sorted(hosts)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _first_rows(
    groups: Sequence[GroupResult], of_group: Mapping[tuple[str, int], Sequence[Row]], hosts: Collection[str]
) -> tuple[Row, ...]:
    """Of each differing group the rows of its first differing step, those of the hosts above before the others."""
    found = []
    for group in groups:
        if group.outcome == "differs":
            rows = [row for row in of_group[group.phase, group.number] if row["step"] == group.step and row["fingerprint"] is not None]
            rows.sort(key=lambda row: (row["host"] not in hosts, row["host"], row["repeat"], row["evidence_id"] or "", row["record"]))
            found += rows[:2]
    return tuple(found)
