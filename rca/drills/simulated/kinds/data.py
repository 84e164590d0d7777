"""Data, storage and checkpoints: samples that cannot be read, a share that fails, a state that is damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rca.drills.simulated import _kernel_host
from rca.drills.simulated._run import MS, Run, S

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = ["bad_sample", "bad_sample_again", "checkpoint_torn", "loader_timed_out", "storage_full", "storage_stale_handle"]

NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {"storage_stale_handle": lambda world: world.num_hosts > 1}
LOADER = (
    ("{program}", "next_batch", 95),
    ("torch/utils/data/dataloader.py", "__next__", 708),
    ("torch/utils/data/dataloader.py", "_next_data", 1480),
    ("torch/_utils.py", "reraise", 733),
)


def _sample_error(rng: random.Random, sample: int) -> str:
    """What a loader's worker says of a sample: the text of an exception that it raised, as torch hands it on."""
    inner = rng.choice(
        (
            f"ValueError: sample {sample}: 4093 values where 4096 are expected",
            f"UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte (sample {sample})",
            f"PIL.UnidentifiedImageError: cannot identify image file 'shard-00412/{sample}.jpg'",
            f"KeyError: 'input_ids' in sample {sample} of shard-00412.tar",
            f"json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0), record {sample}",
        )
    )
    kind = inner.split(":")[0].split(".")[-1]
    lines = [
        f"{kind}: Caught {kind} in DataLoader worker process {rng.randrange(8)}.",
        "Original Traceback (most recent call last):",
        '  File "/usr/lib/python3/dist-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop',
        "    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]",
        '  File "/usr/lib/python3/dist-packages/torch/utils/data/_utils/fetch.py", line 52, in fetch',
        "    data = [self.dataset[idx] for idx in possibly_batched_index]",
        '  File "/workspace/data/dataset.py", line 118, in __getitem__',
        "    return self.decode(self.read(index))",
        inner,
    ]
    return "\n".join(lines)


def bad_sample(scene: Scene) -> None:
    """A sample cannot be decoded; the rank that reads it raises."""
    run = Run.of(scene)
    run.plays()
    rank, sample = run.pick(), run.rng.randrange(10_000, 9_000_000)
    run.teller.raises(rank, run.bite_at, _sample_error(run.rng, sample), LOADER)
    run.teller.died([rank], run.bite_at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], run.bite_at + 2 * S)
    scene.tell("bad_sample", [rank])
    run.note(sample=sample)


def bad_sample_again(scene: Scene) -> None:
    """The launch before failed at the same sample on another rank, and so does this one."""
    run = Run.of(scene)
    run.plays()
    rank, sample = run.pick(), run.rng.randrange(10_000, 9_000_000)
    text = _sample_error(run.rng, sample)
    run.teller.raises(rank, run.bite_at, text, LOADER)
    run.teller.died([rank], run.bite_at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], run.bite_at + 2 * S)
    other = (rank + 1 + run.rng.randrange(max(1, scene.world.world_size - 1))) % scene.world.world_size
    run.book.job(
        run.bite_at + 20 * S,
        f"retry-controller: attempt failed on sample {sample} (rank {rank}); the attempt before failed on sample {sample} (rank {other})",
    )
    scene.tell("bad_sample", [rank])
    run.note(sample=sample)


def loader_timed_out(scene: Scene) -> None:
    """The loader of a rank gives up after waiting for its workers, which hang in a read of a share."""
    run = Run.of(scene)
    run.plays()
    rank, wait = run.pick(), run.rng.choice((120, 300, 600))
    at = run.bite_at + wait * S
    if run.rng.random() < 0.6:
        run.told(rank, _kernel_host.nfs_hangs(run.bite_at + 20 * S, run.rng, server="filer-2.storage"))
    run.teller.raises(rank, at, f"RuntimeError: DataLoader timed out after {wait} seconds", LOADER[:3])
    run.teller.died([rank], at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], at + 2 * S)
    scene.tell(["data_stall", "storage_stall"], [rank])


def storage_full(scene: Scene) -> None:
    """The file system of the checkpoints is full; the rank that writes raises."""
    run = Run.of(scene)
    run.plays()
    rank = run.teller.voice.speakers[0] if run.rng.random() < 0.5 else run.pick()
    at = run.bite_at
    run.teller.saves(run.first + run.bite, at - 2 * S, None)
    root = run.teller.voice.root
    frames = (("{program}", "save_checkpoint", 266), ("torch/serialization.py", "save", 943))
    run.teller.raises(rank, at, f"OSError: [Errno 28] No space left on device: '{root}/step_{run.first + run.bite}/part_{rank}.pt'", frames)
    run.teller.died([rank], at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], at + 2 * S)
    scene.tell("storage_stall", [rank], action=["retry", "human"])


def storage_stale_handle(scene: Scene) -> None:
    """A share is remounted under the job: ranks of all hosts get stale handles within seconds. The share, and no rank."""
    run = Run.of(scene)
    run.plays()
    at, world = run.bite_at, scene.world
    for host in world.host_names()[:64]:
        for rank in run.teller.ranks_on(host)[: run.rng.randrange(1, 9)]:
            name = f"/data/tokens/part-{run.rng.randrange(4096):05d}.bin"
            run.teller.raises(
                rank,
                at + run.rng.randrange(3000) * MS,
                f"OSError: [Errno 116] Stale file handle: '{name}'",
                (("data/dataset.py", "read", 71),),
            )
        run.teller.died(run.teller.ranks_on(host)[:1], at + 6 * S, 1)
        run.kernel[host] += _kernel_host.nfs_hangs(at - 190 * S, run.rng, server="filer-2.storage", until=at - 2 * S)
    run.no_dumps()
    run.ended_at = at + 20 * S
    scene.tell("storage_stall", hosts=[])


def checkpoint_torn(scene: Scene) -> None:
    """After a restart the state cannot be loaded: a part of it is damaged. The ranks that read that part raise."""
    run = Run.of(scene)
    run.plays(until=0)
    rank, step = run.pick(), run.first
    at = int(run.ends_at[0])
    root = run.teller.voice.root
    run.book.say(run.teller.voice.speakers[0], at - 40 * S, *run.teller.voice.loaded(step))
    error = run.rng.choice(
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "RuntimeError: PytorchStreamReader failed reading file data/217: file read failed",
            f"safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata: {root}/step_{step}/part_{rank}.safetensors",
            f"_pickle.UnpicklingError: pickle data was truncated: {root}/step_{step}/optim_{rank}.pt",
        )
    )
    frames = (("{program}", "load_checkpoint", 231), ("torch/serialization.py", "load", 1425))
    run.teller.raises(rank, at, error, frames)
    run.teller.died([rank], at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], at + 2 * S)
    scene.steps = None
    run.has_numbers = False
    scene.tell("checkpoint_corrupt", [rank], hosts=[])
    scene.truth["hosts"] = [run.host(rank)]
