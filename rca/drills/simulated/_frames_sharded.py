"""Stacks of torchtitan, and of a plain loop with FSDP: functions and files are theirs, lines about where they stand."""

from __future__ import annotations

from typing import Final

from rca.drills.simulated._framework import BACKWARD, MODULE, Frames, Framework

__all__ = ["PLAIN_FSDP", "TORCHTITAN"]

_T_BASE: Final[Frames] = (
    ("train_step", "torchtitan/train.py", 505),
    ("train", "torchtitan/train.py", 590),
    ("wrapper", "torch/distributed/elastic/multiprocessing/errors/__init__.py", 357),
    ("<module>", "torchtitan/train.py", 680),
)
_T_FORWARD: Final[Frames] = (
    ("forward", "torchtitan/models/llama3/model/model.py", 280),
    *MODULE,
    ("forward", "torchtitan/models/llama3/model/model.py", 480),
    *MODULE,
    ("forward_backward_step", "torchtitan/train.py", 455),
)
_T_BACKWARD: Final[Frames] = (*BACKWARD, ("backward", "torch/_tensor.py", 648), ("forward_backward_step", "torchtitan/train.py", 470))
_FSDP2 = "torch/distributed/fsdp/_fully_shard"
TORCHTITAN: Final = Framework(
    "torchtitan",
    _T_BASE,
    _T_FORWARD,
    _T_BACKWARD,
    {
        "tp": (
            ("all_reduce", "torch/distributed/_functional_collectives.py", 175),
            ("redistribute_local_tensor", "torch/distributed/tensor/_redistribute.py", 250),
            ("_prepare_output_fn", "torch/distributed/tensor/parallel/style.py", 250),
            *MODULE,
            *_T_FORWARD,
        ),
        "grad": _T_BACKWARD,
        "cp": (
            ("permute_tensor", "torch/distributed/_functional_collectives.py", 510),
            ("next_buffer", "torch/distributed/tensor/experimental/_attention.py", 240),
            *MODULE,
            *_T_FORWARD,
        ),
        "ep": (
            ("all_to_all_single_autograd", "torch/distributed/_functional_collectives.py", 500),
            ("_token_dispatch", "torchtitan/distributed/expert_parallel.py", 130),
            *MODULE,
            *_T_FORWARD,
        ),
        "dp": (
            ("foreach_reduce", f"{_FSDP2}/_fsdp_collectives.py", 460),
            ("post_backward", f"{_FSDP2}/_fsdp_param_group.py", 470),
            ("backward", f"{_FSDP2}/_fsdp_param_group.py", 720),
            *_T_BACKWARD,
        ),
        "pp": (
            ("_batch_p2p", "torch/distributed/pipelining/schedules.py", 600),
            ("_step_microbatches", "torch/distributed/pipelining/schedules.py", 910),
            ("step", "torch/distributed/pipelining/schedules.py", 730),
            ("forward_backward_step", "torchtitan/train.py", 430),
        ),
        "emb": (("all_reduce", "torch/distributed/_functional_collectives.py", 175), *_T_BACKWARD),
        "world": (
            ("all_reduce", "torch/distributed/_functional_collectives.py", 175),
            ("_dist_reduce", "torchtitan/distributed/utils.py", 52),
            ("dist_mean", "torchtitan/distributed/utils.py", 80),
        ),
    },
    (("_dist_reduce", "torchtitan/distributed/utils.py", 56), ("dist_mean", "torchtitan/distributed/utils.py", 80)),
    (("batch_generator", "torchtitan/train.py", 400), ("next_batch", "torchtitan/train.py", 560)),
    (
        ("save", "torch/distributed/checkpoint/state_dict_saver.py", 176),
        ("inner_func", "torch/distributed/checkpoint/logger.py", 87),
        ("dcp_save", "torchtitan/components/checkpoint.py", 350),
        ("save", "torchtitan/components/checkpoint.py", 470),
        *_T_BASE[1:],
    ),
    (("step", "torchtitan/components/optimizer.py", 120),),
)

_P_BASE: Final[Frames] = (("train_epoch", "train.py", 214), ("main", "train.py", 301), ("<module>", "train.py", 318))
_P_FORWARD: Final[Frames] = (
    ("forward", "model.py", 166),
    *MODULE,
    ("forward", "model.py", 231),
    *MODULE,
    ("forward", "torch/distributed/fsdp/fully_sharded_data_parallel.py", 864),
    *MODULE,
)
_P_BACKWARD: Final[Frames] = (*BACKWARD, ("backward", "torch/_tensor.py", 581))
PLAIN_FSDP: Final = Framework(
    "fsdp",
    _P_BASE,
    _P_FORWARD,
    _P_BACKWARD,
    {
        "tp": (("row_parallel", "parallel.py", 77), ("forward", "model.py", 120), *MODULE, *_P_FORWARD),
        "grad": _P_BACKWARD,
        "cp": (("gather_kv", "parallel.py", 140), ("forward", "model.py", 131), *MODULE, *_P_FORWARD),
        "ep": (("dispatch", "moe.py", 88), ("forward", "moe.py", 120), *MODULE, *_P_FORWARD),
        "dp": (
            ("_reduce_grad", "torch/distributed/fsdp/_runtime_utils.py", 860),
            ("_post_backward_hook", "torch/distributed/fsdp/_runtime_utils.py", 760),
            *_P_BACKWARD,
        ),
        "pp": (("recv_activations", "pipeline.py", 60), ("run_schedule", "pipeline.py", 131)),
        "emb": (("sync_tied_weights", "parallel.py", 190),),
        "world": (("mean_over_ranks", "parallel.py", 30),),
    },
    (("mean_over_ranks", "parallel.py", 34),),
    (("next_batch", "data.py", 95),),
    (("save", "torch/serialization.py", 850), ("save_checkpoint", "checkpoint.py", 72), *_P_BASE[1:]),
    (("step", "torch/optim/adamw.py", 220), ("wrapper", "torch/optim/optimizer.py", 484)),
)
