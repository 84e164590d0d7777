"""What the names in a checkpoint mean: parts of the recoverable state, the folder it is, the step that its name says."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["NEEDED", "folder_of", "joined", "lacking", "part_of", "parts_of"]

NEEDED: Final = ("model", "optimizer", "scheduler", "rng", "sampler")  # of a state from which training goes on as if it had never stopped
MAX_NAME: Final = 400  # characters of a name that are looked at

# The first pattern that fits counts: "lr_scheduler" before "optimizer.lr", "data_sampler" before "data". Names as the savers choose them: Megatron
# (opt_param_scheduler, rng_state), torchtitan (dataloader, lr_scheduler, train_state), HF (scheduler, rng), DeepSpeed (module), Lightning (loops).
_PARTS: Final = (
    ("scheduler", re.compile(r"(?i)scheduler|^sched|lr_sched|last_epoch|lr_policy")),
    (
        "rng",
        re.compile(r"(?i)(?<![a-z])rngs?(?![a-z])|rng_|_rng|random_?(?:state|number)|torch_random|cuda_?random|prng|(?<![a-z])seed_state"),
    ),
    (
        "sampler",
        re.compile(r"(?i)sampler|data_?(?:loader|iter|cursor|state|stream|set_state)|(?<![a-z])cursor|consumed_(?:train_)?samples|^loops$"),
    ),
    ("optimizer", re.compile(r"(?i)optim|exp_avg|momentum|master_?param|param_groups|fp32_flat_groups|zero_")),
    (
        "model",
        re.compile(
            r"(?i)^(?:model|module|network|net|state_dict|weight|param|parameter|ema|policy|actor|critic|encoder|decoder|embedding)s?(?![a-z])"
            r"|model[0-9]*$|layers?[._][0-9]|(?:weight|bias)$"
        ),
    ),
)
_INNER: Final = re.compile(
    r"(?i)^(?:mp_rank_[0-9]+(?:_[0-9]+){0,2}|tp_rank_[0-9]+.{0,20}|weights|model|optim(?:izer)?|dist_ckpt|pytorch_model_fsdp_[0-9]+|optimizer_[0-9]+)$"
)


def part_of(name: str) -> str | None:
    """The part that a key or file name stands for; None where it names none."""
    short = name[:MAX_NAME]
    for words in (short.partition(".")[0], short):  # of model.optimizer_head.weight the first word says more
        for part, pattern in _PARTS:
            if pattern.search(words):
                return part
    return None


def parts_of(names: Iterable[str]) -> list[str]:
    """The parts that names stand for, in the order of NEEDED; `other` where something is of none of them."""
    found = {part_of(name) or "other" for name in names}
    return [part for part in (*NEEDED, "other") if part in found]


def lacking(parts: Iterable[str]) -> list[str]:
    """What a state that lists these parts needs beside them."""
    have = set(parts)
    return [part for part in NEEDED if part not in have]


def folder_of(path: str) -> str:
    """The folder of the checkpoint that a file lies in: that of the file, or above it where that holds one model-parallel rank's or one part's."""
    folder = posixpath.dirname(path)
    while folder and _INNER.match(posixpath.basename(folder)):
        folder = posixpath.dirname(folder)
    return folder or "."


def joined(folder: str, name: str) -> str:
    """A file that a description in `folder` names, below the evidence root; as written where it leads out of the folder."""
    if name.startswith("/") or "://" in name or ".." in name.split("/"):
        return name
    return posixpath.normpath(posixpath.join("" if folder == "." else folder, name))
