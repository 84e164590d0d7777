"""Stacks of DeepSpeed (0.16) with pipeline stages: its engine runs a schedule of instructions, and every call of a step is made below that.

Functions and files are theirs (deepspeed/runtime/pipe/engine.py), lines about theirs.
"""

from __future__ import annotations

from typing import Final

from rca.drills.simulated._framework import BACKWARD, MODULE, Frames, Framework

__all__ = ["DEEPSPEED_STAGED"]

_DS = "deepspeed/runtime"
_ENGINE = f"{_DS}/pipe/engine.py"
_BASE: Final[Frames] = (
    ("_exec_schedule", _ENGINE, 1425),
    ("train_batch", _ENGINE, 388),
    ("train", "finetune.py", 151),
    ("main", "finetune.py", 188),
    ("<module>", "finetune.py", 204),
)
_LAYER: Final[Frames] = (
    ("forward", "transformers/models/llama/modeling_llama.py", 320),
    *MODULE,
    ("exec_func", f"{_DS}/pipe/module.py", 350),
    ("forward", f"{_DS}/pipe/module.py", 370),
    *MODULE,
    ("forward", f"{_DS}/engine.py", 2010),
    ("_exec_forward_pass", _ENGINE, 725),
)
_FORWARD: Final[Frames] = (("forward", "transformers/models/llama/modeling_llama.py", 178), *MODULE, *_LAYER)
_BACKWARD: Final[Frames] = (*BACKWARD, ("_exec_backward_pass", _ENGINE, 850))
_STEP: Final[Frames] = (
    ("step", f"{_DS}/zero/stage_1_and_2.py", 1840),
    ("_take_model_step", f"{_DS}/engine.py", 2170),
    ("_exec_optimizer_step", _ENGINE, 1250),
)
_RECEIVES: Final[Frames] = (("recv", f"{_DS}/pipe/p2p.py", 80), ("_exec_recv_activations", _ENGINE, 1110))

DEEPSPEED_STAGED: Final = Framework(
    "deepspeed",
    _BASE,
    _FORWARD,
    _BACKWARD,
    {
        "tp": (("all_reduce", "deepspeed/comm/torch.py", 160), ("forward", "deepspeed/module_inject/layers.py", 260), *MODULE, *_LAYER),
        "grad": _BACKWARD,
        "cp": (("all_to_all_single", "deepspeed/comm/torch.py", 330), ("forward", "deepspeed/sequence/layer.py", 370), *MODULE, *_LAYER),
        "ep": (("all_to_all_single", "deepspeed/comm/torch.py", 330), ("forward", "deepspeed/moe/sharded_moe.py", 100), *MODULE, *_LAYER),
        "dp": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("allreduce_bucket", f"{_DS}/zero/stage_1_and_2.py", 1560),
            ("allreduce_gradients", f"{_DS}/engine.py", 1950),
            ("_exec_reduce_grads", _ENGINE, 295),
        ),
        "pp": (("recv", "deepspeed/comm/comm.py", 400), *_RECEIVES),
        "emb": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("allreduce_tied_weight_gradients", f"{_DS}/pipe/module.py", 430),
            ("_exec_reduce_tied_grads", _ENGINE, 275),
        ),
        "world": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("has_overflow", f"{_DS}/zero/stage_1_and_2.py", 1990),
            *_STEP,
        ),
    },
    (("has_overflow", f"{_DS}/zero/stage_1_and_2.py", 1996), ("check_overflow", f"{_DS}/zero/stage_1_and_2.py", 2010), *_STEP),
    (("_next_batch", _ENGINE, 640), ("_exec_load_micro_batch", _ENGINE, 860)),
    (
        ("save", "torch/serialization.py", 943),
        ("_save_zero_checkpoint", f"{_DS}/engine.py", 3600),
        ("save_checkpoint", f"{_DS}/engine.py", 3220),
        *_BASE[2:],
    ),
    (("step", f"{_DS}/zero/stage_1_and_2.py", 1870), *_STEP[1:]),
)
