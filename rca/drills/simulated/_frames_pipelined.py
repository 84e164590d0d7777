"""Stacks of Megatron-LM (core 0.12) and of DeepSpeed (0.16) under the Hugging Face Trainer: functions and files theirs, lines about theirs."""

from __future__ import annotations

from typing import Final

from rca.drills.simulated._framework import BACKWARD, MODULE, Frame, Frames, Framework

__all__ = ["DEEPSPEED", "MEGATRON_LM"]

_MEGATRON = "megatron/core"
_M_SCHEDULE: Final[Frame] = ("forward_backward_pipelining_without_interleaving", f"{_MEGATRON}/pipeline_parallel/schedules.py", 1890)
_M_BASE: Final[Frames] = (
    ("train_step", "megatron/training/training.py", 1364),
    ("train", "megatron/training/training.py", 2164),
    ("pretrain", "megatron/training/training.py", 870),
    ("<module>", "pretrain_gpt.py", 341),
)
_M_FORWARD: Final[Frames] = (
    ("forward", f"{_MEGATRON}/transformer/mlp.py", 152),
    *MODULE,
    ("forward", f"{_MEGATRON}/transformer/transformer_layer.py", 488),
    *MODULE,
    ("forward", f"{_MEGATRON}/transformer/transformer_block.py", 540),
    *MODULE,
    ("forward", f"{_MEGATRON}/models/gpt/gpt_model.py", 302),
    ("forward_step", "pretrain_gpt.py", 255),
    ("forward_step", f"{_MEGATRON}/pipeline_parallel/schedules.py", 310),
    _M_SCHEDULE,
)
_M_BACKWARD: Final[Frames] = (
    *BACKWARD,
    ("custom_backward", f"{_MEGATRON}/pipeline_parallel/schedules.py", 159),
    ("backward_step", f"{_MEGATRON}/pipeline_parallel/schedules.py", 418),
    _M_SCHEDULE,
)
MEGATRON_LM: Final = Framework(
    "megatron",
    _M_BASE,
    _M_FORWARD,
    _M_BACKWARD,
    {
        "tp": (
            ("_reduce", f"{_MEGATRON}/tensor_parallel/mappings.py", 31),
            ("forward", f"{_MEGATRON}/tensor_parallel/layers.py", 1183),
            *MODULE,
            *_M_FORWARD,
        ),
        "grad": _M_BACKWARD,
        "cp": (("forward", "transformer_engine/pytorch/attention.py", 3310), *MODULE, *_M_FORWARD[3:]),
        "ep": (
            ("all_to_all", f"{_MEGATRON}/tensor_parallel/mappings.py", 430),
            ("token_permutation", f"{_MEGATRON}/transformer/moe/token_dispatcher.py", 560),
            ("forward", f"{_MEGATRON}/transformer/moe/moe_layer.py", 170),
            *MODULE,
            *_M_FORWARD[3:],
        ),
        "dp": (
            ("start_grad_sync", f"{_MEGATRON}/distributed/param_and_grad_buffer.py", 340),
            ("finish_grad_sync", f"{_MEGATRON}/distributed/param_and_grad_buffer.py", 398),
            ("finish_grad_sync", f"{_MEGATRON}/distributed/distributed_data_parallel.py", 450),
            ("finalize_model_grads", f"{_MEGATRON}/distributed/finalize_model_grads.py", 272),
            _M_SCHEDULE,
        ),
        "pp": (
            ("_communicate", f"{_MEGATRON}/pipeline_parallel/p2p_communication.py", 370),
            ("send_forward_recv_backward", f"{_MEGATRON}/pipeline_parallel/p2p_communication.py", 505),
            _M_SCHEDULE,
        ),
        "emb": (
            ("_allreduce_word_embedding_grads", f"{_MEGATRON}/distributed/finalize_model_grads.py", 128),
            ("finalize_model_grads", f"{_MEGATRON}/distributed/finalize_model_grads.py", 284),
            _M_SCHEDULE,
        ),
        "world": (
            ("get_grad_norm_fp32", f"{_MEGATRON}/optimizer/clip_grads.py", 128),
            ("step", f"{_MEGATRON}/optimizer/optimizer.py", 540),
        ),
    },
    (
        ("get_grad_norm_fp32", f"{_MEGATRON}/optimizer/clip_grads.py", 132),
        ("get_grad_norm", f"{_MEGATRON}/optimizer/optimizer.py", 190),
        ("step", f"{_MEGATRON}/optimizer/optimizer.py", 540),
    ),
    (
        ("__next__", f"{_MEGATRON}/rerun_state_machine.py", 1030),
        ("get_batch_on_this_tp_rank", "megatron/training/utils.py", 290),
        ("get_batch", "pretrain_gpt.py", 172),
        ("forward_step", "pretrain_gpt.py", 246),
        ("forward_step", f"{_MEGATRON}/pipeline_parallel/schedules.py", 310),
        _M_SCHEDULE,
    ),
    (
        ("save", f"{_MEGATRON}/dist_checkpointing/serialization.py", 390),
        ("save_checkpoint", "megatron/training/checkpointing.py", 480),
        ("save_checkpoint_and_time", "megatron/training/training.py", 1630),
        *_M_BASE[1:],
    ),
    (("step", f"{_MEGATRON}/optimizer/optimizer.py", 552),),
)

_DS = "deepspeed/runtime"
_D_BASE: Final[Frames] = (
    ("training_step", "transformers/trainer.py", 3740),
    ("_inner_training_loop", "transformers/trainer.py", 2560),
    ("train", "transformers/trainer.py", 2240),
    ("main", "finetune.py", 188),
    ("<module>", "finetune.py", 204),
)
_D_FORWARD: Final[Frames] = (
    ("forward", "transformers/models/llama/modeling_llama.py", 178),
    *MODULE,
    ("forward", "transformers/models/llama/modeling_llama.py", 320),
    *MODULE,
    ("forward", f"{_DS}/engine.py", 2010),
    *MODULE,
    ("compute_loss", "transformers/trainer.py", 3810),
)
_D_BACKWARD: Final[Frames] = (
    *BACKWARD,
    ("backward", f"{_DS}/fp16/loss_scaler.py", 65),
    ("backward", f"{_DS}/zero/stage_1_and_2.py", 2060),
    ("backward", f"{_DS}/engine.py", 2060),
)
DEEPSPEED: Final = Framework(
    "deepspeed",
    _D_BASE,
    _D_FORWARD,
    _D_BACKWARD,
    {
        "tp": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("forward", "deepspeed/module_inject/layers.py", 260),
            *MODULE,
            *_D_FORWARD[1:],
        ),
        "grad": _D_BACKWARD,
        "cp": (
            ("all_to_all_single", "deepspeed/comm/torch.py", 330),
            ("forward", "deepspeed/sequence/layer.py", 370),
            *MODULE,
            *_D_FORWARD[3:],
        ),
        "ep": (
            ("all_to_all_single", "deepspeed/comm/torch.py", 330),
            ("forward", "deepspeed/moe/sharded_moe.py", 100),
            *MODULE,
            *_D_FORWARD[3:],
        ),
        "dp": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("allreduce_bucket", f"{_DS}/zero/stage_1_and_2.py", 1560),
            ("allreduce_gradients", f"{_DS}/engine.py", 1950),
        ),
        "pp": (
            ("recv", "deepspeed/comm/comm.py", 400),
            ("recv", f"{_DS}/pipe/p2p.py", 80),
            ("_exec_recv_activations", f"{_DS}/pipe/engine.py", 1110),
            ("_exec_schedule", f"{_DS}/pipe/engine.py", 1400),
            ("train_batch", f"{_DS}/pipe/engine.py", 390),
        ),
        "emb": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("allreduce_tied_weight_gradients", f"{_DS}/pipe/module.py", 430),
            ("_exec_schedule", f"{_DS}/pipe/engine.py", 1400),
        ),
        "world": (
            ("all_reduce", "deepspeed/comm/torch.py", 160),
            ("has_overflow", f"{_DS}/zero/stage_1_and_2.py", 1990),
            ("step", f"{_DS}/zero/stage_1_and_2.py", 1840),
        ),
    },
    (
        ("has_overflow", f"{_DS}/zero/stage_1_and_2.py", 1996),
        ("check_overflow", f"{_DS}/zero/stage_1_and_2.py", 2010),
        ("step", f"{_DS}/zero/stage_1_and_2.py", 1840),
        ("step", f"{_DS}/engine.py", 2270),
    ),
    (("__iter__", "accelerate/data_loader.py", 567), ("get_batch_samples", "transformers/trainer.py", 5290)),
    (
        ("save", "torch/serialization.py", 943),
        ("_save_zero_checkpoint", f"{_DS}/engine.py", 3600),
        ("save_checkpoint", f"{_DS}/engine.py", 3220),
        ("_save_checkpoint", "transformers/trainer.py", 3180),
        ("_maybe_log_save_evaluate", "transformers/trainer.py", 3090),
        *_D_BASE[1:],
    ),
    (("step", f"{_DS}/engine.py", 2282),),
)
