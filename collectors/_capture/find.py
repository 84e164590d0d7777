"""Which processes belong to which training job: trainers by the rank in their environment, what hangs below them, and who launched them.

A forked DataLoader worker has the environment and the command line of its trainer. So a trainer is a process that has a rank and no ancestor
with the same rank; a shell that only wraps one is no trainer. torchrun's RANK counts before what Slurm or Open MPI set, since agents have those.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collectors._capture.proc import Process

__all__ = ["Asked", "Job", "Member", "find_jobs"]

RANKS = (  # rank, world size, local rank
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
KEYS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid", "MASTER_ADDR", "MASTER_PORT")
WORKER = "pt_data_worker"  # torch names its DataLoader workers so
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_DEPTH = 100
_AGENT = re.compile(
    r"torchrun|torch[./]distributed[./](?:run|launch|elastic)|accelerate|deepspeed|lightning|pt_elastic|multiprocessing\.spawn"
)
_LAUNCHER = re.compile(r"^(?:srun|slurmstepd|mpirun|mpiexec|orterun|orted|prterun|prted)$")
_SPAWNED = re.compile(r"multiprocessing\.spawn import spawn_main")
_CHECKPOINT = re.compile(r"check_?point|ckpt|async_process_executor", re.I)


@dataclass(frozen=True)
class Asked:
    """A process that the user named, with its rank where told."""

    pid: int
    rank: int | None = None


@dataclass(frozen=True)
class Member:
    """A process of a job. Role: main, workerN, checkpointN, otherN (below a trainer), agent, launcher."""

    process: Process
    role: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None

    @property
    def is_trainer(self) -> bool:
        """Whether it is the process of a rank itself."""
        return self.role == "main"


@dataclass
class Job:
    """The processes of one job on this host, and what was found odd."""

    name: str
    key: tuple[str, ...]
    members: list[Member]
    oddities: list[str] = field(default_factory=list)

    @property
    def trainers(self) -> list[Member]:
        """Members that are a rank, by rank."""
        return sorted((m for m in self.members if m.is_trainer), key=lambda m: (m.rank is None, m.rank, m.process.pid))

    @property
    def world_size(self) -> int | None:
        """Ranks of the whole job, where its environment says so without contradiction."""
        said = {m.world_size for m in self.members if m.world_size is not None}
        return said.pop() if len(said) == 1 else None


def find_jobs(processes: Sequence[Process], asked: Collection[Asked] = (), name: str | None = None, own: int | None = None) -> list[Job]:
    """Jobs on this host, by name. `asked`: only what is at or below these processes. `name`: only the job of that name, id or port."""
    family = _Family(processes, own if own is not None else os.getpid())
    if asked:
        roots = {a.pid for a in asked}
        within = {pid for root in roots for pid in (root, *family.below(root)) if pid in family.by_pid}
        found = _ranked(family, within)
        covered = {m.process.pid for members in found.values() for m in members}
        for one in sorted(asked, key=lambda a: a.pid):
            if one.pid in family.by_pid and covered.isdisjoint({one.pid, *family.below(one.pid)}):
                members = _unranked(family, one)
                found[_key(members[0].process)] += members
    else:
        found = _ranked(family, set(family.by_pid))
    jobs = [_job(family, key, members) for key, members in found.items()]
    return sorted(_named([job for job in jobs if name is None or _answers(job, name)]), key=lambda job: job.name)


class _Family:
    """Who is whose child."""

    def __init__(self, processes: Sequence[Process], own: int) -> None:
        self.by_pid = {p.pid: p for p in processes}
        self.children: dict[int, list[int]] = defaultdict(list)
        for process in sorted(processes, key=lambda p: (p.started, p.pid)):
            self.children[process.ppid].append(process.pid)
        self.ours = {own, *self.below(own)}  # we may have been started by a trainer, and have its rank
        self.above_us = {p.pid for p in self.above(own)}

    def above(self, pid: int) -> Iterator[Process]:
        """Ancestors, the parent first."""
        for _ in range(MAX_DEPTH):
            process = self.by_pid.get(pid)
            if process is None or (parent := self.by_pid.get(process.ppid)) is None:
                return
            yield parent
            pid = parent.pid

    def below(self, pid: int) -> list[int]:
        """Descendants, oldest first within a generation."""
        found, generation = [], self.children.get(pid, [])
        while generation:
            found += generation
            generation = [child for parent in generation for child in self.children.get(parent, [])]
        return found


def _number(environ: Mapping[str, str] | None, name: str) -> int | None:
    text = (environ or {}).get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _key(process: Process) -> tuple[str, ...]:
    environ = process.environ or {}
    return tuple(environ.get(name, "") for name in KEYS)


def _ranked(family: _Family, within: set[int]) -> dict[tuple[str, ...], list[Member]]:
    """Trainers by the key of their job."""
    found: dict[tuple[str, ...], list[Member]] = defaultdict(list)
    torch_jobs: set[str] = set()  # Slurm jobs whose ranks are set by torchrun: their tasks are agents
    near: set[int] = set()  # processes at, above or below a trainer that was found
    for rank_name, world_name, local_name in RANKS:
        for process in (family.by_pid[pid] for pid in sorted(within)):
            rank = _number(process.environ, rank_name)
            job = (process.environ or {}).get("SLURM_JOB_ID", "")
            if rank is None or process.pid in family.ours or not process.is_python or process.comm == WORKER:
                continue
            if rank_name == RANKS[0][0]:
                if _number(process.environ, world_name) is None:
                    continue  # half of torch's pair: some other program's RANK
                torch_jobs.add(job)
            elif job and job in torch_jobs:
                continue
            if process.pid in near:
                continue
            if any(p.is_python and _number(p.environ, rank_name) == rank and _key(p) == _key(process) for p in family.above(process.pid)):
                continue
            local, world = _number(process.environ, local_name), _number(process.environ, world_name)
            found[_key(process)].append(Member(process, "main", rank, local, world))
        for member in (m for members in found.values() for m in members):
            pid = member.process.pid
            near |= {pid, *family.below(pid), *(p.pid for p in family.above(pid))}
    return found


def _unranked(family: _Family, one: Asked) -> list[Member]:
    """A named process without a rank: the parent of torch.multiprocessing.spawn, or a trainer itself.

    spawn starts its processes in the order of their number. Their ranks are that number, from the told one on; where none is told, from 0
    when MASTER_ADDR says that the whole job is on this host. Otherwise they stay unknown.
    """
    process = family.by_pid[one.pid]
    spawned = [family.by_pid[pid] for pid in family.children.get(one.pid, []) if _SPAWNED.search(family.by_pid[pid].line)]
    if not spawned:
        return [Member(process, "main", one.rank)]
    is_alone = all((p.environ or {}).get("MASTER_ADDR") in LOCAL for p in spawned)
    first = one.rank if one.rank is not None else 0 if is_alone else None
    size = len(spawned) if is_alone else None
    return [Member(p, "main", None if first is None else first + n, n, size) for n, p in enumerate(spawned)]


def _job(family: _Family, key: tuple[str, ...], trainers: list[Member]) -> Job:
    """The job with everything that hangs on its trainers."""
    job = Job("", key, [])
    by_rank: dict[int | None, list[Member]] = defaultdict(list)
    for member in trainers:
        by_rank[member.rank].append(member)
    for rank, members in sorted(by_rank.items(), key=lambda item: (item[0] is None, item[0])):
        keep = members if rank is None else [max(members, key=lambda m: (m.process.started, m.process.pid))]
        for member in members:
            if member not in keep:
                job.oddities.append(f"process {member.process.pid} calls itself rank {rank} too and is older: taken for a left-over")
        for member in keep:
            job.members += [member, *_descendants(family, member)]
    known = {m.process.pid for m in job.members}
    for process in _launchers(family, job.trainers, key):
        if process.pid not in known:
            known.add(process.pid)
            job.members.append(Member(process, "agent" if process.is_python else "launcher"))
    return job


def _descendants(family: _Family, trainer: Member) -> Iterator[Member]:
    numbers: dict[str, int] = defaultdict(int)
    for pid in family.below(trainer.process.pid):
        process = family.by_pid[pid]
        if pid in family.ours:
            continue
        kind = "worker" if process.comm == WORKER else "checkpoint" if _is_checkpoint(process, trainer.process) else "other"
        yield replace(trainer, process=process, role=f"{kind}{numbers[kind]}")
        numbers[kind] += 1


def _is_checkpoint(process: Process, trainer: Process) -> bool:
    """By its own name or a command line that is not the trainer's; otherwise the root of its stack tells."""
    return bool(_CHECKPOINT.search(process.comm) or (process.command != trainer.command and _CHECKPOINT.search(process.line)))


def _launchers(family: _Family, trainers: Sequence[Member], key: tuple[str, ...]) -> Iterator[Process]:
    """Agents above the trainers, launchers above these, and the srun of the same Slurm job."""
    for member in trainers:
        for place, process in enumerate(family.above(member.process.pid)):
            if process.pid in family.above_us or process.pid == 1:
                break
            is_agent = process.is_python and (place == 0 or _AGENT.search(process.line) or process.comm == "pt_elastic")
            if is_agent or _LAUNCHER.match(process.comm):
                yield process
    slurm = key[KEYS.index("SLURM_JOB_ID")]
    for process in family.by_pid.values():
        if slurm and _LAUNCHER.match(process.comm) and (process.environ or {}).get("SLURM_JOB_ID") == slurm:
            yield process


def _answers(job: Job, name: str) -> bool:
    environs = [m.process.environ or {} for m in job.members]
    return name in job.key or any(name in (e.get("SLURM_JOB_NAME"), e.get("SLURM_JOBID")) for e in environs)


def _named(jobs: list[Job]) -> list[Job]:
    """Every job gets a name that is a file name and its own."""
    taken: dict[str, int] = defaultdict(int)
    for job in sorted(jobs, key=lambda j: j.key):
        run, slurm, mpi, _, port = job.key
        said = f"slurm-{slurm}" if slurm else f"run-{run}" if run not in ("", "none") else f"mpi-{mpi}" if mpi else ""
        pid = min(m.process.pid for m in job.members)
        base = re.sub(r"[^A-Za-z0-9._-]", "_", said or (f"port-{port}" if port else f"pid-{pid}"))[:80]
        taken[base] += 1
        job.name = base if taken[base] == 1 else f"{base}-{taken[base]}"
    return jobs
