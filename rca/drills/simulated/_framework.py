"""What a way to train looks like in a stack: the type of that, and frames that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["BACKWARD", "MODULE", "Frame", "Frames", "Framework"]

Frame = tuple[str, str, int]  # function, file, line
Frames = tuple[Frame, ...]  # innermost first

MODULE: Final[Frames] = (("_call_impl", "torch/nn/modules/module.py", 1762), ("_wrapped_call_impl", "torch/nn/modules/module.py", 1751))
BACKWARD: Final[Frames] = (("_engine_run_backward", "torch/autograd/graph.py", 824), ("backward", "torch/autograd/__init__.py", 347))


@dataclass(frozen=True, eq=False)
class Framework:
    """The frames of a way to train. `calls` = for each axis (and "tp" in backward as "grad") who makes the call, outside of the c10d frame."""

    name: str
    base: Frames  # the training step and what called it
    forward: Frames  # of a layer, down to where it computes
    backward: Frames
    calls: Mapping[str, Frames]
    sync: Frames  # where the CPU waits for the GPU at the end of a step
    data: Frames  # fetching the next batch, without the loader's own frames
    save: Frames  # writing a checkpoint
    optimizer: Frames
