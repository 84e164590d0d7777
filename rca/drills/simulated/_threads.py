"""Threads that stand beside the main one in a trainer, and what data loader processes show."""

from __future__ import annotations

import random

from rca.drills.simulated._frameworks import Frames
from rca.drills.simulated._stacks import ProcessStack, Thread

__all__ = ["IN_QUEUE", "NEXT_BATCH", "RUN", "WORKER", "bystanders", "loader_waits", "reads"]

RUN: Frames = (("run", "threading.py", 982), ("_bootstrap_inner", "threading.py", 1045), ("_bootstrap", "threading.py", 1002))
_POLL: Frames = (
    ("select", "selectors.py", 415),
    ("wait", "multiprocessing/connection.py", 947),
    ("_poll", "multiprocessing/connection.py", 440),
    ("poll", "multiprocessing/connection.py", 257),
    ("get", "multiprocessing/queues.py", 113),
)
NEXT_BATCH: Frames = (
    ("_try_get_data", "torch/utils/data/dataloader.py", 1251),
    ("_get_data", "torch/utils/data/dataloader.py", 1415),
    ("_next_data", "torch/utils/data/dataloader.py", 1458),
    ("__next__", "torch/utils/data/dataloader.py", 708),
)
IN_QUEUE: Frames = _POLL + NEXT_BATCH  # the trainer waits for a batch of its workers
WORKER: Frames = (
    ("_worker_loop", "torch/utils/data/_utils/worker.py", 349),
    ("run", "multiprocessing/process.py", 108),
    ("_bootstrap", "multiprocessing/process.py", 314),
    ("_launch", "multiprocessing/popen_fork.py", 71),
    ("__init__", "multiprocessing/popen_fork.py", 19),
    ("start", "multiprocessing/process.py", 121),
    ("__init__", "torch/utils/data/dataloader.py", 1171),
    ("_get_iterator", "torch/utils/data/dataloader.py", 424),
    ("__iter__", "torch/utils/data/dataloader.py", 484),
)
_FETCH: Frames = (("fetch", "torch/utils/data/_utils/fetch.py", 54),)
_SIDE: tuple[Thread, ...] = (
    Thread((("wait", "threading.py", 327), ("_feed", "multiprocessing/queues.py", 231), *RUN), "QueueFeederThread"),
    Thread(
        (
            *_POLL,
            ("do_one_step", "torch/utils/data/_utils/pin_memory.py", 35),
            ("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py", 59),
            *RUN,
        ),
        "Thread-4 (_pin_memory_loop)",
    ),
    Thread(
        (
            ("wait", "threading.py", 331),
            ("wait", "threading.py", 629),
            ("run", "tqdm/_monitor.py", 60),
            ("_bootstrap_inner", "threading.py", 1045),
            ("_bootstrap", "threading.py", 1002),
        ),
        "Thread-2",
    ),
    Thread(
        (
            ("wait", "threading.py", 327),
            ("get", "queue.py", 171),
            ("run", "tensorboard/summary/writer/event_file_writer.py", 269),
            ("_run", "tensorboard/summary/writer/event_file_writer.py", 244),
            ("_bootstrap_inner", "threading.py", 1045),
            ("_bootstrap", "threading.py", 1002),
        ),
        "Thread-3",
    ),
)
_READS: tuple[Frames, ...] = (
    (("read", "fsspec/implementations/local.py", 372), ("_load_shard", "data/shards.py", 61), ("__getitem__", "data/shards.py", 48)),
    (
        ("readinto", "socket.py", 706),
        ("read", "ssl.py", 1168),
        ("recv_into", "ssl.py", 1314),
        ("get_object", "s3_dataset.py", 88),
        ("__getitem__", "s3_dataset.py", 52),
    ),
    (("open", "pathlib.py", 1044), ("_open_part", "samples.py", 49), ("__getitem__", "samples.py", 40)),
    (("_get", "megatron/core/datasets/indexed_dataset.py", 610), ("__getitem__", "megatron/core/datasets/gpt_dataset.py", 175)),
)


def bystanders(rng: random.Random) -> tuple[Thread, ...]:
    """Some of the threads that trainers have beside the main one: the same on all ranks of a job."""
    return tuple(thread for thread in _SIDE if rng.random() < 0.35)


def reads(rng: random.Random) -> Frames:
    """A sample that is being read from storage, by some data set, in a worker."""
    return rng.choice(_READS[:3]) + _FETCH + WORKER


def loader_waits(place: int) -> ProcessStack:
    """A loader process that has nothing to do."""
    return ProcessStack((Thread(_POLL + WORKER),), role=f"worker{place}")
