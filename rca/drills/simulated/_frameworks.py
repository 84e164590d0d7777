"""Where the main thread of a trainer stands, as a stack dump shows it: what four ways to train look like in each kind of call.

Functions and files are those of the frameworks (Megatron-LM core 0.12, DeepSpeed 0.16 under the Hugging Face Trainer, torchtitan, a plain FSDP
loop); lines are about where they stand. A frame is (function, file, line), innermost first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

__all__ = ["FRAMEWORKS", "Frame", "Frames", "Framework", "collective", "recorder_stacks", "stand"]

Frame = tuple[str, str, int]
Frames = tuple[Frame, ...]

_C10D = "torch/distributed/distributed_c10d.py"
_LOGGER: Final = ("wrapper", "torch/distributed/c10d_logger.py", 83)
_MODULE: Final = (("_call_impl", "torch/nn/modules/module.py", 1762), ("_wrapped_call_impl", "torch/nn/modules/module.py", 1751))
_BACKWARD: Final = (("_engine_run_backward", "torch/autograd/graph.py", 824), ("backward", "torch/autograd/__init__.py", 347))
_LINES: Final = {
    "all_reduce": 2930, "_all_gather_base": 3870, "_reduce_scatter_base": 4330, "broadcast": 2825, "barrier": 4780, "send": 2500, "recv": 2540,
    "all_to_all": 4520, "batch_isend_irecv": 2680, "all_gather": 3790,
}  # fmt: skip
_PUBLIC: Final = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}


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


_MEGATRON = "megatron/core"
_M_SCHEDULE: Final = ("forward_backward_pipelining_without_interleaving", f"{_MEGATRON}/pipeline_parallel/schedules.py", 1890)
_M_BASE: Final = (
    ("train_step", "megatron/training/training.py", 1364), ("train", "megatron/training/training.py", 2164),
    ("pretrain", "megatron/training/training.py", 870), ("<module>", "pretrain_gpt.py", 341),
)  # fmt: skip
_M_FORWARD: Final = (
    ("forward", f"{_MEGATRON}/transformer/mlp.py", 152), *_MODULE, ("forward", f"{_MEGATRON}/transformer/transformer_layer.py", 488), *_MODULE,
    ("forward", f"{_MEGATRON}/transformer/transformer_block.py", 540), *_MODULE, ("forward", f"{_MEGATRON}/models/gpt/gpt_model.py", 302),
    ("forward_step", "pretrain_gpt.py", 255), ("forward_step", f"{_MEGATRON}/pipeline_parallel/schedules.py", 310), _M_SCHEDULE,
)  # fmt: skip
_M_BACKWARD: Final = (
    *_BACKWARD, ("custom_backward", f"{_MEGATRON}/pipeline_parallel/schedules.py", 159),
    ("backward_step", f"{_MEGATRON}/pipeline_parallel/schedules.py", 418), _M_SCHEDULE,
)  # fmt: skip
_MEGATRON_LM: Final = Framework(
    "megatron", _M_BASE, _M_FORWARD, _M_BACKWARD,
    {
        "tp": (("_reduce", f"{_MEGATRON}/tensor_parallel/mappings.py", 31), ("forward", f"{_MEGATRON}/tensor_parallel/layers.py", 1183), *_MODULE, *_M_FORWARD),
        "grad": _M_BACKWARD,
        "cp": (("forward", "transformer_engine/pytorch/attention.py", 3310), *_MODULE, *_M_FORWARD[3:]),
        "ep": (("all_to_all", f"{_MEGATRON}/tensor_parallel/mappings.py", 430), ("token_permutation", f"{_MEGATRON}/transformer/moe/token_dispatcher.py", 560),
               ("forward", f"{_MEGATRON}/transformer/moe/moe_layer.py", 170), *_MODULE, *_M_FORWARD[3:]),
        "dp": (("start_grad_sync", f"{_MEGATRON}/distributed/param_and_grad_buffer.py", 340), ("finish_grad_sync", f"{_MEGATRON}/distributed/param_and_grad_buffer.py", 398),
               ("finish_grad_sync", f"{_MEGATRON}/distributed/distributed_data_parallel.py", 450),
               ("finalize_model_grads", f"{_MEGATRON}/distributed/finalize_model_grads.py", 272), _M_SCHEDULE),
        "pp": (("_communicate", f"{_MEGATRON}/pipeline_parallel/p2p_communication.py", 370), ("send_forward_recv_backward", f"{_MEGATRON}/pipeline_parallel/p2p_communication.py", 505),
               _M_SCHEDULE),
        "emb": (("_allreduce_word_embedding_grads", f"{_MEGATRON}/distributed/finalize_model_grads.py", 128),
                ("finalize_model_grads", f"{_MEGATRON}/distributed/finalize_model_grads.py", 284), _M_SCHEDULE),
        "world": (("get_grad_norm_fp32", f"{_MEGATRON}/optimizer/clip_grads.py", 128), ("step", f"{_MEGATRON}/optimizer/optimizer.py", 540)),
    },
    (("get_grad_norm_fp32", f"{_MEGATRON}/optimizer/clip_grads.py", 132), ("get_grad_norm", f"{_MEGATRON}/optimizer/optimizer.py", 190), ("step", f"{_MEGATRON}/optimizer/optimizer.py", 540)),
    (("__next__", f"{_MEGATRON}/rerun_state_machine.py", 1030), ("get_batch_on_this_tp_rank", "megatron/training/utils.py", 290), ("get_batch", "pretrain_gpt.py", 172),
     ("forward_step", "pretrain_gpt.py", 246), ("forward_step", f"{_MEGATRON}/pipeline_parallel/schedules.py", 310), _M_SCHEDULE),
    (("save", f"{_MEGATRON}/dist_checkpointing/serialization.py", 390), ("save_checkpoint", "megatron/training/checkpointing.py", 480),
     ("save_checkpoint_and_time", "megatron/training/training.py", 1630), *_M_BASE[1:]),
    (("step", f"{_MEGATRON}/optimizer/optimizer.py", 552),),
)  # fmt: skip

_DS = "deepspeed/runtime"
_D_BASE: Final = (
    ("training_step", "transformers/trainer.py", 3740), ("_inner_training_loop", "transformers/trainer.py", 2560), ("train", "transformers/trainer.py", 2240),
    ("main", "finetune.py", 188), ("<module>", "finetune.py", 204),
)  # fmt: skip
_D_FORWARD: Final = (
    ("forward", "transformers/models/llama/modeling_llama.py", 178), *_MODULE, ("forward", "transformers/models/llama/modeling_llama.py", 320), *_MODULE,
    ("forward", f"{_DS}/engine.py", 2010), *_MODULE, ("compute_loss", "transformers/trainer.py", 3810),
)  # fmt: skip
_D_BACKWARD: Final = (
    *_BACKWARD,
    ("backward", f"{_DS}/fp16/loss_scaler.py", 65),
    ("backward", f"{_DS}/zero/stage_1_and_2.py", 2060),
    ("backward", f"{_DS}/engine.py", 2060),
)
_DEEPSPEED: Final = Framework(
    "deepspeed", _D_BASE, _D_FORWARD, _D_BACKWARD,
    {
        "tp": (("all_reduce", "deepspeed/comm/torch.py", 160), ("forward", "deepspeed/module_inject/layers.py", 260), *_MODULE, *_D_FORWARD[1:]),
        "grad": _D_BACKWARD,
        "cp": (("all_to_all_single", "deepspeed/comm/torch.py", 330), ("forward", "deepspeed/sequence/layer.py", 370), *_MODULE, *_D_FORWARD[3:]),
        "ep": (("all_to_all_single", "deepspeed/comm/torch.py", 330), ("forward", "deepspeed/moe/sharded_moe.py", 100), *_MODULE, *_D_FORWARD[3:]),
        "dp": (("all_reduce", "deepspeed/comm/torch.py", 160), ("allreduce_bucket", f"{_DS}/zero/stage_1_and_2.py", 1560), ("allreduce_gradients", f"{_DS}/engine.py", 1950)),
        "pp": (("recv", "deepspeed/comm/comm.py", 400), ("recv", f"{_DS}/pipe/p2p.py", 80), ("_exec_recv_activations", f"{_DS}/pipe/engine.py", 1110),
               ("_exec_schedule", f"{_DS}/pipe/engine.py", 1400), ("train_batch", f"{_DS}/pipe/engine.py", 390)),
        "emb": (("all_reduce", "deepspeed/comm/torch.py", 160), ("allreduce_tied_weight_gradients", f"{_DS}/pipe/module.py", 430), ("_exec_schedule", f"{_DS}/pipe/engine.py", 1400)),
        "world": (("all_reduce", "deepspeed/comm/torch.py", 160), ("has_overflow", f"{_DS}/zero/stage_1_and_2.py", 1990), ("step", f"{_DS}/zero/stage_1_and_2.py", 1840)),
    },
    (("has_overflow", f"{_DS}/zero/stage_1_and_2.py", 1996), ("check_overflow", f"{_DS}/zero/stage_1_and_2.py", 2010), ("step", f"{_DS}/zero/stage_1_and_2.py", 1840), ("step", f"{_DS}/engine.py", 2270)),
    (("__iter__", "accelerate/data_loader.py", 567), ("get_batch_samples", "transformers/trainer.py", 5290)),
    (("save", "torch/serialization.py", 943), ("_save_zero_checkpoint", f"{_DS}/engine.py", 3600), ("save_checkpoint", f"{_DS}/engine.py", 3220),
     ("_save_checkpoint", "transformers/trainer.py", 3180), ("_maybe_log_save_evaluate", "transformers/trainer.py", 3090), *_D_BASE[1:]),
    (("step", f"{_DS}/engine.py", 2282),),
)  # fmt: skip

_T_BASE: Final = (
    ("train_step", "torchtitan/train.py", 505), ("train", "torchtitan/train.py", 590), ("wrapper", "torch/distributed/elastic/multiprocessing/errors/__init__.py", 357),
    ("<module>", "torchtitan/train.py", 680),
)  # fmt: skip
_T_FORWARD: Final = (
    ("forward", "torchtitan/models/llama3/model/model.py", 280), *_MODULE, ("forward", "torchtitan/models/llama3/model/model.py", 480), *_MODULE,
    ("forward_backward_step", "torchtitan/train.py", 455),
)  # fmt: skip
_T_BACKWARD: Final = (*_BACKWARD, ("backward", "torch/_tensor.py", 648), ("forward_backward_step", "torchtitan/train.py", 470))
_FSDP2 = "torch/distributed/fsdp/_fully_shard"
_TORCHTITAN: Final = Framework(
    "torchtitan", _T_BASE, _T_FORWARD, _T_BACKWARD,
    {
        "tp": (("all_reduce", "torch/distributed/_functional_collectives.py", 175), ("redistribute_local_tensor", "torch/distributed/tensor/_redistribute.py", 250),
               ("_prepare_output_fn", "torch/distributed/tensor/parallel/style.py", 250), *_MODULE, *_T_FORWARD),
        "grad": _T_BACKWARD,
        "cp": (("permute_tensor", "torch/distributed/_functional_collectives.py", 510), ("next_buffer", "torch/distributed/tensor/experimental/_attention.py", 240), *_MODULE, *_T_FORWARD),
        "ep": (("all_to_all_single_autograd", "torch/distributed/_functional_collectives.py", 500), ("_token_dispatch", "torchtitan/distributed/expert_parallel.py", 130), *_MODULE, *_T_FORWARD),
        "dp": (("foreach_reduce", f"{_FSDP2}/_fsdp_collectives.py", 460), ("post_backward", f"{_FSDP2}/_fsdp_param_group.py", 470), ("backward", f"{_FSDP2}/_fsdp_param_group.py", 720), *_T_BACKWARD),
        "pp": (("_batch_p2p", "torch/distributed/pipelining/schedules.py", 600), ("_step_microbatches", "torch/distributed/pipelining/schedules.py", 910),
               ("step", "torch/distributed/pipelining/schedules.py", 730), ("forward_backward_step", "torchtitan/train.py", 430)),
        "emb": (("all_reduce", "torch/distributed/_functional_collectives.py", 175), *_T_BACKWARD),
        "world": (("all_reduce", "torch/distributed/_functional_collectives.py", 175), ("_dist_reduce", "torchtitan/distributed/utils.py", 52), ("dist_mean", "torchtitan/distributed/utils.py", 80)),
    },
    (("_dist_reduce", "torchtitan/distributed/utils.py", 56), ("dist_mean", "torchtitan/distributed/utils.py", 80)),
    (("batch_generator", "torchtitan/train.py", 400), ("next_batch", "torchtitan/train.py", 560)),
    (("save", "torch/distributed/checkpoint/state_dict_saver.py", 176), ("inner_func", "torch/distributed/checkpoint/logger.py", 87), ("dcp_save", "torchtitan/components/checkpoint.py", 350),
     ("save", "torchtitan/components/checkpoint.py", 470), *_T_BASE[1:]),
    (("step", "torchtitan/components/optimizer.py", 120),),
)  # fmt: skip

_P_BASE: Final = (("train_epoch", "train.py", 214), ("main", "train.py", 301), ("<module>", "train.py", 318))
_P_FORWARD: Final = (
    ("forward", "model.py", 166),
    *_MODULE,
    ("forward", "model.py", 231),
    *_MODULE,
    ("forward", "torch/distributed/fsdp/fully_sharded_data_parallel.py", 864),
    *_MODULE,
)
_P_BACKWARD: Final = (*_BACKWARD, ("backward", "torch/_tensor.py", 581))
_PLAIN: Final = Framework(
    "fsdp", _P_BASE, _P_FORWARD, _P_BACKWARD,
    {
        "tp": (("row_parallel", "parallel.py", 77), ("forward", "model.py", 120), *_MODULE, *_P_FORWARD),
        "grad": _P_BACKWARD,
        "cp": (("gather_kv", "parallel.py", 140), ("forward", "model.py", 131), *_MODULE, *_P_FORWARD),
        "ep": (("dispatch", "moe.py", 88), ("forward", "moe.py", 120), *_MODULE, *_P_FORWARD),
        "dp": (("_reduce_grad", "torch/distributed/fsdp/_runtime_utils.py", 860), ("_post_backward_hook", "torch/distributed/fsdp/_runtime_utils.py", 760), *_P_BACKWARD),
        "pp": (("recv_activations", "pipeline.py", 60), ("run_schedule", "pipeline.py", 131)),
        "emb": (("sync_tied_weights", "parallel.py", 190),),
        "world": (("mean_over_ranks", "parallel.py", 30),),
    },
    (("mean_over_ranks", "parallel.py", 34),),
    (("next_batch", "data.py", 95),),
    (("save", "torch/serialization.py", 850), ("save_checkpoint", "checkpoint.py", 72), *_P_BASE[1:]),
    (("step", "torch/optim/adamw.py", 220), ("wrapper", "torch/optim/optimizer.py", 484)),
)  # fmt: skip

FRAMEWORKS: Final[Mapping[str, Framework]] = {f.name: f for f in (_MEGATRON_LM, _DEEPSPEED, _TORCHTITAN, _PLAIN)}


def collective(framework: Framework, axis: str, op: str, *, is_backward: bool = False, blocks: bool = True) -> Frames:
    """The stack of a thread in a call on an axis; where the call does `not block` (NCCL), of one that waits for the GPU afterwards."""
    around = framework.calls["grad" if is_backward and axis == "tp" else axis]
    if is_backward and axis == "tp":
        return around + framework.base  # autograd calls from C++: no Python frame below it
    if axis == "world" and not blocks:
        return framework.sync + framework.base
    name = "recv" if op.startswith("recv") else "send" if op.startswith("send") else "batch_isend_irecv" if op == "coalesced" else op
    inner = ((_PUBLIC.get(name, name), _C10D, _LINES.get(name, 2900)), _LOGGER)
    if axis == "pp" and not blocks:
        inner = (("synchronize", "torch/cuda/__init__.py", 1040),)
    return inner + around + framework.base


def stand(framework: Framework, where: str) -> Frames:
    """The stack of a thread in `forward`, `backward`, `data`, `save` or `optimizer`."""
    frames: Frames = getattr(framework, where)
    return frames if where == "save" else frames + framework.base


_SITES: Final = (  # of a simulated program (rca/drills/_synthetic_job.py): number of the site -> axis, operation, in backward
    *((("tp", "all_reduce", False),) * 10), ("cp", "_all_gather_base", False), ("ep", "all_to_all", False),
    *((("tp", "all_reduce", True),) * 6), ("cp", "_all_gather_base", True), ("ep", "all_to_all", True),
    *((("dp", "_reduce_scatter_base", True),) * 10), ("emb", "all_reduce", True), ("world", "all_reduce", False),
    ("pp", "coalesced", False), ("pp", "send", False),
)  # fmt: skip


@cache
def recorder_stacks(framework: Framework) -> list[list[dict[str, str | int]]]:
    """The frames that the recorder keeps of each call site; sites of one kind differ in the line of the layer."""
    found = []
    for site, (axis, op, is_backward) in enumerate(_SITES):
        frames = collective(framework, axis, op, is_backward=is_backward)
        found.append(
            [{"name": name, "filename": file, "line": line + site * (depth == 3)} for depth, (name, file, line) in enumerate(frames)]
        )
    return found
