"""Where the main thread of a trainer stands, as a stack dump shows it, in four ways to train; and what the recorder keeps of each call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from rca.drills.simulated._frames_pipelined import DEEPSPEED, MEGATRON_LM
from rca.drills.simulated._frames_sharded import PLAIN_FSDP, TORCHTITAN
from rca.drills.simulated._frames_staged import DEEPSPEED_STAGED
from rca.drills.simulated._framework import Frame, Frames, Framework

__all__ = ["FRAMEWORKS", "Frame", "Frames", "Framework", "collective", "in_stages", "recorder_stacks", "stand"]

_C10D: Final = "torch/distributed/distributed_c10d.py"
_LOGGER: Final[Frame] = ("wrapper", "torch/distributed/c10d_logger.py", 83)
_LINES: Final = {  # of a call in torch/distributed/distributed_c10d.py
    "all_reduce": 2930,
    "_all_gather_base": 3870,
    "_reduce_scatter_base": 4330,
    "broadcast": 2825,
    "barrier": 4780,
    "send": 2500,
    "recv": 2540,
    "all_to_all": 4520,
    "batch_isend_irecv": 2680,
    "all_gather": 3790,
}
_PUBLIC: Final = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}

FRAMEWORKS: Final[Mapping[str, Framework]] = {f.name: f for f in (MEGATRON_LM, DEEPSPEED, TORCHTITAN, PLAIN_FSDP)}


def in_stages(framework: Framework) -> Framework:
    """How it trains where the model is cut into pipeline stages: stacks that are sampled and those of the recorder are of one program."""
    return DEEPSPEED_STAGED if framework is DEEPSPEED else framework


def collective(framework: Framework, axis: str, op: str, *, is_backward: bool = False, blocks: bool = True) -> Frames:
    """The stack of a thread in a call on an axis; where the call does `not block` (NCCL), of one that waits for the GPU afterwards."""
    around = framework.calls["grad" if is_backward and axis == "tp" else axis]
    if is_backward and axis == "tp":
        return around + framework.base  # autograd calls from C++: no Python frame below it
    if axis == "world" and not blocks:
        return framework.sync + framework.base
    name = "recv" if op.startswith("recv") else "send" if op.startswith("send") else "batch_isend_irecv" if op == "coalesced" else op
    inner: Frames = ((_PUBLIC.get(name, name), _C10D, _LINES.get(name, 2900)), _LOGGER)
    if axis == "pp" and not blocks:
        inner = (("synchronize", "torch/cuda/__init__.py", 1040),)
    return inner + around + framework.base


def stand(framework: Framework, where: str) -> Frames:
    """The stack of a thread in `forward`, `backward`, `data`, `save` or `optimizer`."""
    frames: Frames = getattr(framework, where)
    return frames if where == "save" else frames + framework.base


_SITES: Final = (  # of a simulated program (rca/drills/_synthetic_job.py): number of the site -> axis, operation, in backward
    *((("tp", "all_reduce", False),) * 10),
    ("cp", "_all_gather_base", False),
    ("ep", "all_to_all", False),
    *((("tp", "all_reduce", True),) * 6),
    ("cp", "_all_gather_base", True),
    ("ep", "all_to_all", True),
    *((("dp", "_reduce_scatter_base", True),) * 10),
    ("emb", "all_reduce", True),
    ("world", "all_reduce", False),
    ("pp", "coalesced", False),
    ("pp", "send", False),
)


@cache
def recorder_stacks(framework: Framework) -> list[list[dict[str, Any]]]:
    """The frames that the recorder keeps of each call site; sites of one kind differ in the line of the layer."""
    found = []
    for site, (axis, op, is_backward) in enumerate(_SITES):
        frames = collective(framework, axis, op, is_backward=is_backward)
        found.append(
            [{"name": name, "filename": file, "line": line + site * (depth == 3)} for depth, (name, file, line) in enumerate(frames)]
        )
    return found
