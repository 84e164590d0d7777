"""A site's own numbers for the decision: `rca.toml` in the site's folder. What is not said stays unknown, and the advice says that it is. Pure.

One table, `[decision]`, of the fields of `Settings`. A field that does not exist, or a value that it cannot have, is an error that names the file,
the field and what is allowed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from typing import Any, Final

from rca.errors import UsageError

__all__ = ["FILE", "NOT_SAID", "SAME_FAULT_RESTARTS", "Settings", "parse"]

FILE: Final = "rca.toml"
TABLE: Final = "decision"
SAME_FAULT_RESTARTS: Final = (
    1  # ByteRobust, SOSP'25, section 4: a reattempt is made once; when it meets the fault again, code is rolled back
)
MOST: Final = 1e16  # of any number: parameters of a model a thousand times the largest yet


@dataclass(frozen=True)
class Settings:
    """What a site says of itself; None = not said. Hours, counts, bytes per parameter, GB/s as the names say."""

    same_fault_restarts: int = SAME_FAULT_RESTARTS  # restarts that may meet the same deterministic fault
    spares: int | None = None  # hosts that stand ready
    hot_standby: bool | None = None  # spares are warm: woken without a requeue
    in_process: bool | None = None  # ranks can rejoin without a new launch (NVRx in-process, torchft)
    repair_h: float | None = None  # until a host or link is mended, or a spare comes, h
    checkpoint_every_s: float | None = None  # between two checkpoints, s
    model_params: float | None = None  # parameters of the model
    num_layers: int | None = None  # layers that pipeline stages share
    global_batch: int | None = None  # samples of a step of the whole job
    micro_batch: int | None = None  # samples of one pass of a replica
    learning_rate: float | None = None
    optimizer_bytes: float | None = None  # of state per parameter: 12 = Adam with fp32 master weights
    is_optimizer_sharded: bool | None = None  # over the data-parallel ranks (distributed optimizer, ZeRO, FSDP)
    reshard_gb_s: float | None = None  # what all ranks together load or send, GB/s


NOT_SAID: Final = Settings()
_WHOLE: Final = ("same_fault_restarts", "spares", "num_layers", "global_batch", "micro_batch")
_FLAGS: Final = ("hot_standby", "in_process", "is_optimizer_sharded")
_MAY_BE_0: Final = ("same_fault_restarts", "spares")


def parse(text: str, file: str) -> tuple[Settings, int]:
    """The settings of a file, and how many of them it says. Raises UsageError that names file, field and what is allowed."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: no TOML ({error}). Write [{TABLE}] and lines such as `spares = 4`.") from None
    known = [field.name for field in fields(Settings)]
    if strange := sorted(set(told) - {TABLE}):
        raise UsageError(f"{file}: {strange[0]!r} stands outside [{TABLE}], the only table of this file. Move or remove it.")
    values: Any = told.get(TABLE, {})
    if not isinstance(values, dict):
        raise UsageError(f"{file}: {TABLE} is no table. Write [{TABLE}] and lines such as `spares = 4`.")
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"{file}: no setting is called {name!r}. There are {', '.join(known)}.")
        if wrong := _wrong(name, value):
            raise UsageError(f"{file}: {name} = {value!r} is {wrong}.")
    return Settings(**values), len(values)


def _wrong(name: str, value: Any) -> str:
    """What is wrong with a value; "" = nothing."""
    if name in _FLAGS:
        return "" if isinstance(value, bool) else "neither true nor false"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "no number"
    if name in _WHOLE and not isinstance(value, int):
        return "no whole number"
    least = 0 if name in _MAY_BE_0 else None
    if not (value >= least if least is not None else value > 0) or value > MOST:
        return f"not {'at least 0' if least is not None else 'above 0'} and at most {MOST:.0e}"
    return ""
