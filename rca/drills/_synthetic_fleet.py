"""Writes the records of a fleet that nobody ran: launches and incidents of some weeks, at the rates that papers print.

1. One job at a time runs on all hosts, `JOB_WEEKS` long; the last one still runs at the end. Interruptions of it are a Poisson process over its
   whole time (_synthetic_fleet_rates.py). One that arrives while the job is down shows at the first steps after it.
2. A fault of a host falls on a few hosts far more often than on the others, as in fleets with parts that fail again and again.
3. Each interruption passes its stages; the launch ends when the fault is located, the next begins with loading, from the last checkpoint.
4. Some of it is not recorded, and some verdicts are overruled by a person, as in real records.
All by rca/incidents and rca/incidents, from notes, the way `rca open` and `rca close` make them. The same seed gives the same bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from rca.causes import CAUSES
from rca.drills._synthetic_fleet_rates import RATES, components, drawn_s, path_of, per_host_day
from rca.errors import UsageError
from rca.files import put_folders
from rca.incidents.incident import fold, recurrence
from rca.incidents.records import Record, attempt_path, attempt_record, default_id, incident_path, iso, job_of, note

__all__ = ["Fleet", "records", "write"]

EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)  # that the report reads
MAX_HOST_DAYS: Final = 10_000_000  # ninety times Llama 3's 54 days: some 40,000 incidents
GPUS: Final = 8  # of a host
JOB_WEEKS: Final = 4
STEP_S: Final = 10.0
TOKENS_PER_GPU: Final = 1024  # of a step
CHECKPOINT_STEPS: Final = 100  # ByteRobust: every 30 min or 100 steps
BAD_SHARE: Final = 0.012  # of hosts: 1.2 % of RSC-1's nodes were lemons (Meta, HPCA 2025)
BAD_FACTOR: Final = 20.0  # how much more often these fail; ours
NO_SPARE: Final = 0.1  # of failures; ours
NOT_RECORDED: Final = 0.03  # of ends of stages and of recomputed steps; ours
OVERRULED: Final = 0.05  # of failures; ours
FIRST_STEPS_S: Final = (30.0, 300.0)  # after a restart, when a fault that came meanwhile shows
ONE_RANK: Final = frozenset(
    {"gpu_fault", "gpu_memory_fault", "slow_rank", "silent_data_corruption", "user_exception", "code_hang", "numeric_divergence"}
)
WHOLE_HOST: Final = frozenset({"host_fault", "host_lost", "nvlink_fault", "network_fault", "network_transient", "host_out_of_memory"})


@dataclass(frozen=True)
class Fleet:
    """What is made up: whose rates, for how long up to `end` (exclusive), on how many hosts."""

    end: datetime
    rates: str = "llama3"
    days: float = 56.0
    hosts: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rates not in RATES:
            raise UsageError(f"no published rates are called {self.rates!r}: choose of {', '.join(RATES)}")
        if self.days <= 0 or self.hosts <= 0:
            raise UsageError("a fleet needs at least one host and some time: give a positive number of hosts and weeks")
        if not self.days * self.hosts <= MAX_HOST_DAYS:
            raise UsageError(f"that is more than {MAX_HOST_DAYS:,} days of a host: give fewer hosts or weeks")
        if self.days > (self.end - EARLIEST).days:
            raise UsageError(f"{self.days:,.0f} days up to {self.end:%Y-%m-%d} begin before {EARLIEST:%Y}: give fewer weeks or a later end")
        if self.seed < 0:
            raise UsageError(f"{self.seed} is no seed: give 0 or more")


def write(fleet: Fleet, out: Path) -> dict[str, int]:
    """Write the records below `out`, which must not hold any yet; returns how many of each."""
    if any((out / name).exists() for name in ("incidents", "attempts")):
        raise UsageError(f"{out}: holds records already; name a new folder, so that made-up ones never mix with real ones")
    counts = {"attempts": 0, "incidents": 0}

    def files() -> Iterator[tuple[str, str]]:
        for path, record in records(fleet):
            counts[path.partition("/")[0]] += 1
            yield path, json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    put_folders(out, files())
    return counts


def records(fleet: Fleet) -> Iterator[tuple[str, Record]]:
    """Every record with its place, in order of time."""
    run = _Run(fleet, np.random.default_rng(fleet.seed))
    for arrival in run.arrivals():
        yield from run.interrupted(arrival)
    yield from run.ended()


@dataclass
class _Run:
    """The fleet as time goes by."""

    fleet: Fleet
    rng: np.random.Generator
    now: datetime = field(init=False)  # when the job, as it stands, was launched
    ready: datetime = field(init=False)  # when it trained again
    job: int = 0
    attempt: int = 0
    step: int | None = None  # it resumed from
    earlier: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.start = self.now = self.ready = self.fleet.end - timedelta(days=self.fleet.days)
        count = self.fleet.hosts
        weights = np.ones(count)
        weights[self.rng.permutation(count)[: round(BAD_SHARE * count)]] = BAD_FACTOR
        self.weights = weights / weights.sum()
        self.parts = components(self.fleet.rates)

    def arrivals(self) -> Iterator[datetime]:
        """Moments of a Poisson process over the whole time."""
        mean_s = 86400.0 / (per_host_day() * self.fleet.hosts)
        moment = self.start
        while (moment := moment + timedelta(seconds=round(float(self.rng.exponential(mean_s)), 3))) < self.fleet.end:
            yield moment

    def interrupted(self, arrival: datetime) -> Iterator[tuple[str, Record]]:
        """The launch that an interruption ends, and its record unless it lasts beyond the end."""
        while self.ready >= self._job_end() or arrival >= self._job_end():
            yield self._launch(max(self._job_end(), self.ready), "completed")
            self.job, self.attempt, self.step = self.job + 1, 0, None
            self.now = self.ready = max(self._job_end(self.job - 1), self.ready)
        began = max(arrival, self.ready + timedelta(seconds=round(float(self.rng.uniform(*FIRST_STEPS_S)), 3)))
        if began >= self.fleet.end:
            return
        cause = self.parts[self.rng.choice(len(self.parts), p=[part.share for part in self.parts])].cause
        stages, last_step = self._stages(cause, began), self._last_step(began)
        is_planned = CAUSES[cause].attribution == "planned"
        checkpoint = last_step if is_planned else (self.step or 0) + (last_step - (self.step or 0)) // CHECKPOINT_STEPS * CHECKPOINT_STEPS
        stopped = next((end for name, _, end in stages if name == "localize"), began)
        launched = next(start for name, start, _ in stages if name == "load")
        over = stages[-1][2]
        if over < self.fleet.end:
            record = self._incident(cause, began, stages, last_step, checkpoint)
            yield incident_path(record), record
        yield self._launch(min(stopped, self.fleet.end), "stopped" if is_planned else "failed", last_step)
        self.now, self.ready, self.attempt, self.step = launched, over, self.attempt + 1, checkpoint

    def ended(self) -> Iterator[tuple[str, Record]]:
        """The launch that still runs when the records end."""
        if self.now < self.fleet.end:
            yield self._launch(None, None)

    def _job_end(self, job: int | None = None) -> datetime:
        return self.start + timedelta(weeks=JOB_WEEKS) * ((self.job if job is None else job) + 1)

    def _last_step(self, at: datetime) -> int:
        return (self.step or 0) + max(0, int((at - self.ready).total_seconds() / STEP_S))

    def _launch(self, ended: datetime | None, kind: str | None, last_step: int | None = None) -> tuple[str, Record]:
        """The record of the launch under way."""
        gpus = self.fleet.hosts * GPUS
        record = attempt_record(
            job_id=f"job-{self.job}", attempt=self.attempt, started_at=self.now, ended_at=ended, end_kind=kind, world_size=gpus,
            num_hosts=self.fleet.hosts, num_gpus=gpus, resumed_from_step=self.step, last_step=last_step, step_s=STEP_S,
            tokens_per_step=TOKENS_PER_GPU * gpus, exit_code={"failed": 1, "completed": 0}.get(kind or ""),
        )  # fmt: skip
        return attempt_path(record), record

    def _stages(self, cause: str, began: datetime) -> list[tuple[str, datetime, datetime]]:
        """Stages one after the other, from the moment of the fault."""
        found, moment = [], began
        for stage in path_of(cause, has_spare=self.rng.random() >= NO_SPARE):
            end = moment + timedelta(seconds=drawn_s(self.rng, stage, cause))
            found.append((stage, moment, end))
            moment = end
        return found

    def _incident(
        self, cause: str, began: datetime, stages: list[tuple[str, datetime, datetime]], last_step: int, checkpoint: int
    ) -> Record:
        """The record, folded from the notes that people and tool would have left."""
        rng, gpus = self.rng, self.fleet.hosts * GPUS
        ranks, hosts = self._blamed(cause)
        noticed = next((end for name, _, end in stages if name == "detect"), began)
        name = default_id(f"job-{self.job}", began, f"{self.fleet.seed}-{self.attempt}")
        said = self._mistaken(cause)
        job = job_of(
            job_id=f"job-{self.job}", attempt=self.attempt, world_size=gpus, num_hosts=self.fleet.hosts, num_gpus=gpus, step_s=STEP_S,
            started_at=iso(self.now), last_step=last_step, resumed_from_step=self.step, tokens_per_step=TOKENS_PER_GPU * gpus,
        )  # fmt: skip
        data: dict[str, Any] = {"detected_at": iso(noticed), "diagnosis": _diagnosis(said, began, ranks, hosts, last_step), "job": job}
        notes = [note(name, noticed, "open", "", data)]
        if said != cause:
            notes.append(note(name, stages[-1][2], "overrule", "the bench test of the parts says otherwise", {"cause": cause}))
        told = [
            {"stage": stage, "started_at": iso(start), "ended_at": None if rng.random() < NOT_RECORDED else iso(end)}
            for stage, start, end in stages
        ]
        steps = None if rng.random() < NOT_RECORDED else last_step - checkpoint
        evicted = hosts if CAUSES[cause].action == "replace" else []
        close: dict[str, Any] = {
            "stages": told, "evicted": evicted, "recomputed_steps": steps, "code_version": f"build-{(began - self.start).days // 7}",
        }  # fmt: skip
        if steps is None:  # nobody wrote down how far it had come
            job["last_step"] = None
        closed = stages[-1][2] + timedelta(minutes=30)
        record = fold([*notes, note(name, closed, "close", "", close)])
        close["recurs_incident_id"] = recurrence(record, self.earlier[record["cause"]])
        record = fold([*notes, note(name, closed, "close", "", close)])
        self.earlier[record["cause"]].append(record)
        return record

    def _blamed(self, cause: str) -> tuple[list[int], list[str]]:
        """Ranks and hosts that failed first; nobody where a cause has no such place."""
        if cause not in ONE_RANK | WHOLE_HOST:
            return [], []
        is_physical = CAUSES[cause].attribution == "platform"
        host = int(self.rng.choice(self.fleet.hosts, p=self.weights if is_physical else None))
        first = host * GPUS
        ranks = [first + int(self.rng.integers(GPUS))] if cause in ONE_RANK else list(range(first, first + GPUS))
        return ranks, [f"host-{host}"]

    def _mistaken(self, cause: str) -> str:
        """What the tool said: mostly the cause, now and then another one, never of a planned stop."""
        if CAUSES[cause].attribution == "planned" or self.rng.random() >= OVERRULED:
            return cause
        others = sorted({part.cause for part in self.parts if CAUSES[part.cause].attribution == "platform"} - {cause})
        return others[self.rng.integers(len(others))]


def _diagnosis(cause: str, began: datetime, ranks: list[int], hosts: list[str], step: int) -> Record:
    """As the notes keep what the tool said."""
    known = CAUSES[cause]
    where = f" on {hosts[0]}" if hosts else ""
    return {
        "cause": cause, "layer": known.layer, "attribution": known.attribution, "action": known.action, "probability": 0.9, "proven": False,
        "ranks": ranks, "hosts": hosts, "gpus": [f"GPU-{rank:04d}" for rank in ranks] if len(ranks) == 1 else [],
        "at": iso(began), "step": step, "summary": f"{known.means}{where}",
    }  # fmt: skip
