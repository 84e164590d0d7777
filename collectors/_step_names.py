"""What trainers call the rank, the step and the times of a step, and in which unit a name says that its times are. For every reader of timings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

__all__ = [
    "DP",
    "HOST",
    "LOSS",
    "MAX_TIME_S",
    "NORM",
    "PER_SECOND",
    "PLAIN",
    "RANK",
    "SQUARED_TOKENS",
    "STAGE",
    "START",
    "STEP",
    "STEP_TIME",
    "TOKENS",
    "columns",
    "heading",
    "split",
]

MAX_TIME_S: Final = 1e8  # three years: no step lasts that long
PER_SECOND: Final[Mapping[str, int]] = {
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanos", "nanoseconds"), 10**9),
    **dict.fromkeys(("us", "usec", "usecs", "micros", "microseconds"), 10**6),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "milliseconds"), 10**3),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1),
}
_UNIT: Final = re.compile(rf"^([^\s(]{{1,80}}?)(?:_|\s?\(|\.)({'|'.join(PER_SECOND)})\)?$", re.I)
PLAIN: Final = re.compile(r"_(?:time|dur|duration|elapsed|t)$")

# What trainers call the same thing; the first one present counts.
RANK: Final = ("global_rank", "world_rank", "rank", "rank_id")
STEP: Final = ("global_step", "step", "iteration", "iter", "train_step", "step_id")
HOST: Final = ("host", "hostname", "host_name", "node", "node_name")
STAGE: Final = ("stage", "pipeline_stage", "pp_stage", "pp_rank", "pp")
DP: Final = ("dp_rank", "dp", "data_parallel_rank")
TOKENS: Final = ("num_tokens", "tokens", "n_tokens", "ntokens", "local_tokens", "num_local_tokens", "batch_tokens", "tokens_in_batch")
SQUARED_TOKENS: Final = ("squared_tokens", "tokens_squared", "sum_squared_lengths", "sum_seqlen_squared", "seqlen_squared_sum", "sum_l2")
LOSS: Final = ("loss_local", "local_loss", "loss", "train_loss", "lm_loss")
NORM: Final = ("grad_norm_local", "local_grad_norm", "grad_norm")

# Names of times, unit and a closing "_time" taken off. Forward and backward may include waiting, and the optimizer does: they are no computation.
START: Final = frozenset({"t_start", "start", "started_at", "start_at", "start_time", "start_ts", "ts_start", "step_start", "t0", "begin"})
STEP_TIME: Final = frozenset({"dur", "duration", "elapsed", "step", "step_dur", "step_total", "iteration", "iter", "total", "wall"})
_PARTS: Final = {
    "compute_s": re.compile(r"^(\w{1,40}_)?(compute|computation)(_(fwd|bwd|forward|backward))?$"),
    "comm_s": re.compile(r"^(\w{1,40}_)?(comm|communication|all_?reduce|reduce_?scatter|all_?gather|p2p)$"),
    "data_s": re.compile(r"^(data|dataloader|(data|batch)_?(load(ing|er)?|wait|fetch|next)|(get|next|fetch)_batch)$"),
    "forward_s": re.compile(r"^(forward|fwd)(_(pass|compute|computation))?$|^(compute|computation)_(forward|fwd)$"),
    "backward_s": re.compile(r"^(backward|bwd)(_(pass|compute|computation))?$|^(compute|computation)_(backward|bwd)$"),
    "checkpoint_s": re.compile(r"^(checkpoint|ckpt)(ing|_(save|load|saving|loading))?$"),
}
_RUN: Final = re.compile(r"^.{1,200} - ")  # an export of several runs puts "run - " before its metrics
_SIGNS: Final = re.compile(r"[\s\-./]+")
_IN_BRACKETS: Final = re.compile(rf"[(\[]({'|'.join(PER_SECOND)})[)\]]$")
_ROOMS: Final = re.compile(r"^_|^(?:train(?:ing|er)?|time_metrics|loss_metrics|samples|perf|timing|timers?)_(?=\w)")


@lru_cache(maxsize=4096)
def split(key: str) -> tuple[str, int | None]:
    """A name without its unit, lower case, and how many of the unit make a second; None = it names no unit."""
    found = _UNIT.match(key)
    return (found[1].lower(), PER_SECOND[found[2].lower()]) if found else (key.lower(), None)


@lru_cache(maxsize=4096)
def columns(name: str) -> tuple[tuple[str, bool], ...]:
    """The column of `steps` that a time of this name adds to, and whether the name stands for all of it; () = none."""
    plain = PLAIN.sub("", name)
    return tuple((column, plain == column[:-2]) for column, pattern in _PARTS.items() if pattern.match(plain))


def heading(text: str) -> str:
    """The heading of a column, or the tag of a metric, in the form of the names above: `iteration-time (ms)` is iteration_time_ms, `train/lm loss`
    is lm_loss.
    """
    name = _RUN.sub("", text.strip().strip("\"'")[:300].lower())
    name = _IN_BRACKETS.sub(r"_\1", name)
    name = _SIGNS.sub("_", name).strip("_") if not name.startswith("_") else _SIGNS.sub("_", name)
    for _ in range(3):
        name = _ROOMS.sub("", name)
    return re.sub(r"_{2,}(?!min$|max$)", "_", name)
