"""Who prints what, and when, in a job that runs, fails, is stopped or ends: trainers, watchdogs, launchers, the scheduler.

Cause first: a death or an exception is told by its own process and its launcher; what the others print follows from it by what they wait for and
how they learn of it (closed connections, no acknowledgements, time-outs, the rendezvous), with the delays that these have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from rca.drills.simulated import _scheduler, _symptoms
from rca.drills.simulated._kernel_gpu import drawn_address
from rca.drills.simulated._logbook import LogBook
from rca.drills.simulated._symptoms import Call, Torch
from rca.drills.simulated._voices import Voice

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World

__all__ = ["Launcher", "Learns", "Teller"]

Launcher = Literal["torchrun", "srun"]
Learns = Literal["closed", "retry", "time_out", "rendezvous", "killed"]
S: Final = 1_000_000_000
MS: Final = 1_000_000
LOUD: Final = 256  # ranks of a large job whose symptoms are kept: rate limits and lost lines do the rest
REMOTE: Final = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
GLOO_CLOSED: Final = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.9]:{port}. "
    "This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error."
)
GLOO_TIMED_OUT: Final = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting {limit}ms for recv operation to complete"
)
GLOO_FRAMES: Final = (("torch/distributed/c10d_logger.py", "wrapper", 83), ("torch/distributed/distributed_c10d.py", "all_reduce", 2810))
PLACES: Final[tuple[tuple[str, str, int], ...]] = (("{program}", "<module>", 412), ("{program}", "main", 366), ("{program}", "train", 288))


@dataclass
class Teller:
    """Writes into the book of one job."""

    book: LogBook
    voice: Voice
    torch: Torch
    launcher: Launcher
    backend: str
    world: World
    pid_of: Callable[[int], int]
    job_id: str
    rng: random.Random
    tells_places: bool = False  # the logs say on which host and GPU each rank runs

    @property
    def world_size(self) -> int:
        return self.world.world_size

    @cached_property
    def hosts(self) -> list[str]:
        return self.world.host_names()

    @cached_property
    def _first(self) -> dict[str, int]:
        return {host: number * self.world.gpus_per_host for number, host in enumerate(self.hosts)}

    def host_of(self, rank: int) -> str:
        return self.hosts[rank // self.world.gpus_per_host]

    def ranks_on(self, host: str) -> list[int]:
        """All ranks of a host."""
        first = self._first[host]
        return list(range(first, min(first + self.world.gpus_per_host, self.world_size)))

    @property
    def is_new(self) -> bool:
        """Whether the launcher writes the newer form of its lines."""
        return self.torch.era in ("2.3", "2.5", "2.8")

    def agent_pid(self, host: str) -> int:
        return self.pid_of(self._first[host]) - 11

    def starts(self, at: int, *, resumed: int | None = None) -> None:
        """Launchers and trainers say that they begin, or go on from a checkpoint."""
        if self.launcher == "torchrun":
            for host in self.hosts[:LOUD]:
                self.book.agent(host, at - 9 * S, *_symptoms.agent_starts(self.agent_pid(host), is_new=self.is_new))
        for rank in range(self.world_size if self.world_size <= LOUD else 8):
            self.book.say(rank, at - 2 * S + rank % 89 * MS, *self.voice.started(rank, self.world_size, self.pid_of(rank)))
        if self.tells_places and self.world_size <= LOUD:
            for rank in range(self.world_size):
                self.book.say(rank, at - 3 * S + rank % 83 * MS, self._place(rank))
        if resumed is not None:
            self.book.say(self.voice.speakers[0], at - S, *self.voice.loaded(resumed))

    def _place(self, rank: int) -> str:
        """Where a rank runs, as NCCL (or the program) says it when the communicator is made."""
        host, local, pid = self.host_of(rank), rank % self.world.gpus_per_host, self.pid_of(rank)
        if self.backend == "gloo":
            return f"[rank {rank}] hostname={host} local_rank={local} pid={pid} backend=gloo"
        bus = drawn_address(local).split(":")[1]
        comm = f"comm 0x{0x55D5C8A0 + rank * 4096:x} rank {rank} nranks {self.world_size} cudaDev {local} nvmlDev {local} busId {bus}000"
        return f"{host}:{pid}:{pid + 400} [{local}] NCCL INFO ncclCommInitRankConfig {comm} commId 0x7a3f9c11 - Init COMPLETE"

    def steps(
        self,
        ends: Sequence[int],
        first: int,
        *,
        times: Sequence[float],
        losses: Sequence[float],
        norms: Sequence[float],
        without: Collection[int] = (),
    ) -> None:
        """Progress as the speakers print it: `ends` (ns), seconds, losses and norms of the steps from number `first` on."""
        speakers = range(self.world_size) if self.voice.all_speak else self.voice.speakers
        nans = 0
        for k, end in enumerate(ends):
            nans += losses[k] != losses[k]
            if (first + k) % self.voice.every:
                continue
            lines = self.voice.step(first + k, step_s=times[k], loss=losses[k], norm=norms[k], nans=nans, skipped=nans)
            for rank in speakers:
                if rank not in without:
                    self.book.say(rank, end + (rank * 7919) % 4000 * 1000, *lines)

    def saves(self, number: int, began: int, ended: int | None) -> None:
        """A checkpoint; `ended` None: the save never ends."""
        speaker = self.voice.speakers[0]
        self.book.say(speaker, began, *self.voice.save_began(number))
        if ended is not None:
            self.book.say(speaker, ended, *self.voice.save_ended(number, (ended - began) / S))

    def ends_well(self, at: int, number: int, runtime_s: float) -> None:
        """The training reaches its last step."""
        self.book.say(self.voice.speakers[0], at, *self.voice.ended(number, runtime_s))
        if self.launcher == "torchrun":
            for host in self.hosts[:LOUD]:
                self.book.agent(host, at + 2 * S, *_symptoms.agent_done(self.agent_pid(host), is_new=self.is_new))

    def raises(self, rank: int, at: int, error: str, frames: Iterable[tuple[str, str, int]] = ()) -> None:
        """An uncaught exception of a rank."""
        places = [(file.format(program=self.voice.program), function, line) for file, function, line in (*PLACES, *frames)]
        self.book.say(rank, at, *_symptoms.traceback(error, places, prefix=_symptoms.uncaught(rank, self.torch.era)))

    def died(self, ranks: Sequence[int], at: int, code: int, *, for_memory: bool = False) -> None:
        """The launcher of each rank's host sees it end and stops its siblings; all ranks of that host are silent from then on.

        `for_memory`: Slurm counted a kill for memory in the step's control group, and says so.
        """
        for host in dict.fromkeys(self.host_of(rank) for rank in ranks):
            dead = [rank for rank in ranks if self.host_of(rank) == host]
            mates = [rank for rank in self.ranks_on(host) if rank not in dead]
            if self.launcher == "srun":
                how = (
                    f"Exited with exit code {code}"
                    if code > 0
                    else {
                        -9: "Killed",
                        -6: "Aborted (core dumped)",
                        -7: "Bus error (core dumped)",
                        -11: "Segmentation fault (core dumped)",
                        -15: "Terminated",
                    }[code]
                )
                if for_memory:
                    self.book.job(at + 200 * MS, *_scheduler.killed_for_memory(self.job_id))
                    how = "Out Of Memory"
                self.book.job(at + 300 * MS, *_scheduler.tasks_ended(host, dead, how))
                continue
            agent, local = self.agent_pid(host), {rank: number for number, rank in enumerate(self.ranks_on(host))}
            self.book.agent(
                host, at + 100 * MS, *_symptoms.siblings_stopped([self.pid_of(rank) for rank in mates], agent, is_new=self.is_new)
            )
            self.book.agent(
                host,
                at + 900 * MS,
                *_symptoms.child_failed(agent, code=code, local=local[dead[0]], pid=self.pid_of(dead[0]), is_new=self.is_new),
            )
            told = [{"rank": rank, "local": local[rank], "host": host, "code": code, "pid": self.pid_of(rank)} for rank in dead]
            if code != -6 and self.rng.random() < 0.5:
                told += [{"rank": rank, "local": local[rank], "host": host, "code": -15, "pid": self.pid_of(rank)} for rank in mates[:2]]
            self.book.agent(host, at + S, *_symptoms.failure_report(self.voice.program, told))
            self.book.silence([*dead, *mates], at + 50 * MS)

    def others_learn(self, at: int, dead: Collection[int], how: Learns, call_of: Callable[[int], Call]) -> int:
        """Ranks of other hosts find out that `dead` (ranks) are gone; gives the instant at which the last of them has ended, ns."""
        gone = {self.host_of(rank) for rank in dead}
        rest = [rank for rank in range(self.world_size) if rank not in dead and (self.launcher == "srun" or self.host_of(rank) not in gone)]
        delay = {"closed": 1, "retry": 22, "time_out": self.torch.timeout_s, "rendezvous": 40, "killed": 2}[how] * S
        loud = rest if len(rest) <= LOUD else sorted(self.rng.sample(rest, LOUD))
        peer = self.rng.choice(sorted(gone)) if gone else "192.0.2.7"
        last = at + delay
        for rank in loud:
            when = at + delay + self.rng.randrange(2_000) * MS
            last = max(last, when)
            call, host = call_of(rank), self.host_of(rank)
            if self.backend == "gloo":
                if how == "time_out":
                    self.raises(rank, when, GLOO_TIMED_OUT.format(limit=1000 * self.torch.timeout_s), GLOO_FRAMES)
                elif how == "closed":
                    self.raises(rank, when, GLOO_CLOSED.format(port=self.rng.randrange(9000, 60000)), GLOO_FRAMES)
                continue
            if how == "time_out":
                self.book.say(rank, when, *self.torch.timed_out(rank, call, self.rng))
                self.book.say(rank, when + 2 * S, *self.torch.torn_down(rank, call, self.torch.caught(call, 44)))
            elif how in ("closed", "retry"):
                local = self.ranks_on(host).index(rank)
                kind = "closed" if how == "closed" else "retry"
                if host != peer and (rank % 3 == 0 or len(loud) <= 8):  # only who talks to the dead over the network
                    port, pid = self.rng.randrange(32000, 60000), self.pid_of(rank)
                    self.book.say(
                        rank, when, *_symptoms.network_error(kind, self.rng, host=host, pid=pid, local=local, peer=peer, port=port)
                    )
                self.book.say(rank, when + 40 * MS, *self.torch.torn_down(rank, call, REMOTE))
        return last + 3 * S

    def rest_ends(self, at: int, dead: Collection[int], how: Learns) -> None:
        """The launchers of the other hosts tell of their workers, which aborted or were stopped."""
        gone = {self.host_of(rank) for rank in dead}
        if self.launcher == "srun":
            how_ended = "Aborted (core dumped)" if self.backend == "nccl" else "Exited with exit code 1"
            if how == "killed" or self.rng.random() < 0.5:
                self.book.job(at, f"srun: Terminating StepId={self.job_id}.0", *_scheduler.cancelled(self.job_id, self.hosts[0]))
            for host in self.hosts[:LOUD]:
                if rest := [rank for rank in self.ranks_on(host) if rank not in dead]:
                    self.book.job(at + S, *_scheduler.tasks_ended(host, rest, "Terminated" if how == "killed" else how_ended))
            self.book.job(at + 2 * S, f"srun: Force Terminated StepId={self.job_id}.0")
            return
        for host in [host for host in self.hosts if host not in gone][:LOUD]:
            when, agent, mates = at + self.rng.randrange(900) * MS, self.agent_pid(host), list(self.ranks_on(host))
            if how == "rendezvous":
                head = f"W<<slash>> {agent} torch/distributed/elastic/multiprocessing/api.py:900]"
                self.book.agent(host, when, *[f"{head} Closing process {self.pid_of(rank)} via signal SIGTERM" for rank in mates])
                continue
            self.book.agent(host, when, *_symptoms.siblings_stopped([self.pid_of(rank) for rank in mates[1:]], agent, is_new=self.is_new))
            self.book.agent(
                host, when + 700 * MS, *_symptoms.child_failed(agent, code=-6, local=0, pid=self.pid_of(mates[0]), is_new=self.is_new)
            )
            self.book.agent(
                host,
                when + 800 * MS,
                *_symptoms.failure_report(
                    self.voice.program, [{"rank": mates[0], "local": 0, "host": host, "code": -6, "pid": self.pid_of(mates[0])}]
                ),
            )

    def time_outs(self, at: int, waiting: Sequence[int], call_of: Callable[[int], Call], *, told: Sequence[int] = ()) -> None:
        """A call that began at `at` and never ended: watchdogs of the ranks that wait in it, and the word of it at the ranks `told`."""
        loud = list(waiting) if len(waiting) <= LOUD else sorted(self.rng.sample(list(waiting), LOUD))
        for rank in loud:
            when = at + self.torch.timeout_s * S + self.rng.randrange(1500) * MS
            self.book.say(rank, when, *self.torch.timed_out(rank, call_of(rank), self.rng))
        if loud and self.torch.era in ("2.5", "2.8"):
            for rank in [*told][:LOUD]:
                self.book.say(rank, at + (self.torch.timeout_s + 2) * S, *self.torch.asked_to_dump(rank, call_of(rank), loud[0]))

    def stopped(self, at: int) -> None:
        """Every launcher is asked to stop from outside, and stops its workers."""
        for host in self.hosts[:LOUD]:
            if self.launcher == "torchrun":
                agent, mates = self.agent_pid(host), list(self.ranks_on(host))
                when = at + self.rng.randrange(400) * MS
                self.book.agent(host, when, *_symptoms.agent_stopped(agent, is_new=self.is_new))
                self.book.agent(
                    host, when + MS, *_symptoms.siblings_stopped([self.pid_of(rank) for rank in mates], agent, is_new=self.is_new)
                )
                self.book.agent(
                    host, when + 2 * S, f"torch.distributed.elastic.multiprocessing.api.SignalException: Process {agent} got signal: 15"
                )
            else:
                self.book.job(at + S, *_scheduler.tasks_ended(host, list(self.ranks_on(host)), "Terminated"))
        self.book.silence(range(self.world_size), at + S)
