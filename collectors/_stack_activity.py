"""What the program is doing, from the canonical frames of a stack.

Order: the launcher; then the checkpoint, compile, loader, profiler, set-up or tear-down frame nearest to the leaf;
then an import; then the nearest of evaluation, generation and training; then weak hints (a module's forward).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from collectors._stack_native import NATIVE_ABORT, NATIVE_INIT, any_of

__all__ = ["Frame", "activity_of", "is_wrapper"]


class Frame(NamedTuple):
    """A canonical frame: its key and the two halves of it."""

    key: str
    module: str
    function: str
    native: bool


_WRAPPER: Final = any_of(
    r"^torch/distributed/c10d_logger:",
    r"^torch/_dynamo/(eval_frame:(_fn|__call__|compile_wrapper|inner)|external_utils:|decorators:)",
    r"^(functools|contextlib|torch/utils/_contextlib):",
    r"^torch/_utils_internal:",
    r"^torch/distributed/elastic/multiprocessing/errors/",
    r":(_?wrapper|_?wrapped|inner|_?inner_wrapper|wrapped_fn|wrapped_func(tion)?|wrapper_function|log_wrapper|decorated?)$",
    r":(decorate_(context|autocast|fwd|bwd|no_grad)|_call_impl|_wrapped_call_impl|_lazy_forward)$",
    r":<(lambda|listcomp|dictcomp|setcomp|genexpr)>$",
    r"^threading:(run|_bootstrap\w*)$",
    r"^multiprocessing/process:(run|_bootstrap)$",
)


def is_wrapper(frame: Frame) -> bool:
    """A frame that says nothing by itself: loggers, decorators, comprehensions, thread starters."""
    if frame.native:
        return frame.function in ("??", "") or frame.function.startswith(("_PyEval", "PyEval_Eval", "_PyObject", "PyObject_"))
    return _WRAPPER.search(frame.key) is not None


_AGENT: Final = any_of(
    r"^torch/distributed/elastic/(agent|rendezvous|timer|metrics)/",
    r"^torch/distributed/(launcher/|run:|launch:)",
    r"^torch/multiprocessing/spawn:(join|spawn|start_processes)$",
    r"^torch/distributed/elastic/multiprocessing/api:(wait|_poll|join|close|start)$",
    r"^(deepspeed/launcher|accelerate/commands|horovod/runner|colossalai/cli|torchx)/",
)
_TEARDOWN: Final = any_of(
    r":_*((destroy|abort|shutdown)_process_groups?|abort_process_group|_?shutdown_backend|destroy_model_parallel)$",
    r":(ncclComm(Abort|Destroy|Finalize)|destroy_distributed\w*|cleanup_(dist|distributed|ddp|process_group)\w*)$",
)
_INIT: Final = any_of(
    r":_*(init_process_group|new_group|_?new_process_group_helper|new_subgroups\w*|split_group|init_device_mesh|create_c10d_store)$",
    r":_*(init(ialize)?_(distributed|dist|model_parallel|process_groups?|torch_distributed|worker_distributed)\w*)$",
    r":_*(setup_distributed|dist_init|setup_dist|init_comm\w*|create_comm\w*|ncclCommInit\w*|initialize_model_parallel)$",
    r"^torch/distributed/(rendezvous|device_mesh):",
    r":_store_based_barrier$",
)
# Activation checkpointing recomputes layers; it saves nothing.
_NOT_CHECKPOINT: Final = any_of(
    r"^torch/utils/checkpoint:",
    r"(activation_checkpoint|algorithms/_checkpoint|checkpoint_activations|checkpoint_wrapper)",
    r"^megatron/core/tensor_parallel/random:",
    r":_*(gradient_checkpointing\w*|checkpoint(ed)?_(forward|sequential|handler|wrapper|layer|block)\w*|custom_checkpoint)$",
)
_CHECKPOINT: Final = any_of(
    r"^(torch/distributed/checkpoint|orbax|torchsnapshot|dlrover/.*(ckpt|checkpoint|flash))/",
    r"(^|/)dist_checkpointing/",
    r"(^|/)(model_)?checkpoint(ing|er|ers|_engine|_io|_saver|_manager|s)?(/[^:]*)?:",
    r":\w*(save|load|write|restore|resume|finali[sz]e|commit|persist|upload|read|sync|flush|snapshot)\w*_?(checkpoint|ckpt)s?\w*$",
    r":\w*(checkpoint|ckpt)s?_?(save|saver|load|loader|write|writer|restore|commit|finali[sz]e|upload|flush|thread|process|loop)\w*$",
    r":_*((async_)?save_(model|state|state_dict|pretrained|optimizer\w*|sharded\w*|shards?)|load_(state_dict|weights|pretrained))$",
    r":_*(maybe_finalize_async_calls|_?from_pretrained|_load_pretrained_model)$",
)
_WEAK_CHECKPOINT: Final = any_of(r"^(torch/serialization|safetensors(/\w+)?):")
_COMPILE: Final = any_of(
    r"^torch/_inductor/",
    r"^torch/_dynamo/",
    r"^torch/_functorch/(aot_autograd|_aot_autograd/|partitioners|compilers|compile_utils|fx_minifier)",
    r"^torch/fx/(passes|experimental|interpreter|graph_module|graph)\b",
    r"^torch/utils/(cpp_extension|_cpp_extension_versioner|file_baton)",
    r"^triton/(compiler|backends|runtime/(build|cache|autotuner)|testing)",
    r"^(deepspeed/ops/op_builder|numba/core|jax/_src/(compiler|interpreters)|tvm|cutlass/backend|tilelang)/",
    r":_*(compile_(kernels?|dependencies|extension|cpp|module)\w*|jit_(build|compile)\w*|nvcc_\w+)$",
)
# Compiled code that runs also lives in those packages.
_COMPILED_RUNS: Final = any_of(
    r"^torch/_dynamo/(eval_frame|external_utils|decorators|compiled_autograd)\b",
    r"^torch/_inductor/(output_code|utils|cudagraph_trees|cudagraph_utils|compile_fx:run|codecache:(__call__|current_callable|call))",
    r"^torch/_inductor/runtime/triton_heuristics:(run|launcher|__call__)$",
    r"^torch/_inductor/runtime/(static_cuda_launcher|runtime_utils)",
    r"^torch/_functorch/_aot_autograd/(runtime_wrappers|utils|subclass_codegen|functional_utils)"
    r":(runtime_wrapper|inner_fn|wrapper|g|f|fn|forward|backward|_backward_impl|impl_fn|_compiled_(forward|backward)|call_func\w*|"
    r"compiled_(fn|function)|rng_functionalization_wrapper|debug_compiled_function|inner|apply|_backward|_forward)$",
    r"^torch/_functorch/aot_autograd:(forward|g|returned_function|boxed_forward|wrapped|new_fn|compiled_function)$",
    r"^torch/_inductor/codecache:call$",
    r"^torch/_inductor/compile_worker/",  # a pool that waits for work; what it compiles shows other frames
)
_PROFILER: Final = any_of(
    r"^torch/(profiler|autograd/profiler)[\w/]*:(start|stop|step|_?transit\w*|prepare_trace|start_trace|stop_trace|export_\w+|"
    r"_?prepare_\w+|_?parse_\w+|_start_\w+|_stop_\w+|_enable_\w+|_disable_\w+|__exit__|__enter__|events|key_averages)$",
    r"^(cProfile|yappi|viztracer|deepspeed/profiling|torch_tb_profiler|pyinstrument)\b",
    r":_*(cupti|CUPTI)\w*",
    r"^lib(cupti|kineto)",
)
_NOT_PROFILER: Final = any_of(r"^torch/autograd/profiler:(__enter__|__exit__)$")  # record_function around every hook
_DATALOADER: Final = any_of(
    r"^torch/utils/data/",
    r"^(torchdata|webdataset|datasets|streaming|nvidia/dali|tensorflow/python/data|tensorflow_datasets|grain|ffcv|litdata|mosaicml)/",
    r"^megatron/(core/datasets|data|legacy/data)/",
    r"(^|/)(data_?loaders?|data_?modules?|data_?sets?|data_?iterators?|data_?fetch\w*|data_?pipelines?)(/[^:]*)?:",
    r":_*((get|next|fetch|load|read|prefetch|prepare)_(next_)?(\w+_)?(micro_?|mini_?)?batch(es)?|next_batch|get_batch\w*|exec_load_micro_batch)$",
    r":_*(get_data|next_data|try_get_data|load_sample|fetch_sample|pin_memory_loop|worker_loop_data|data_generator|prefetch_data)$",
)
_IMPORT: Final = any_of(r"^importlib(/|:)", r"^(zipimport|pkgutil):")
_EVAL: Final = any_of(
    r":_*((run_|do_|_|maybe_)*(eval|evaluate|evaluation)(_(batch|step|loop|epoch|model|results?|one_epoch|iter|dataset|and_\w+|\w+))?)$",
    r":_*((run_|do_|maybe_)*(validate|validation)(_(step|loop|epoch|one_epoch|model|run|iter))?|val_(step|loop|epoch)|test_step|test_loop)$",
    r":_*(prediction_step|prediction_loop|run_sanity_check|_run_sanity_check|evaluate_and_print_results)$",
    r"(^|/)(eval|evaluate|evaluation|evaluation_loop|evaluator|validate|lm_eval|lighteval)(/[^:]*)?:",
)
_NOT_EVAL: Final = any_of(r"^(torch|ast|pandas|numpy|pydantic|jsonschema|marshmallow)/", r":(eval_frame|safe_eval|literal_eval)$")
_INFERENCE: Final = any_of(
    r"^(vllm|sglang|tensorrt_llm|lmdeploy|text_generation_server|mlc_llm|transformers/generation|vllm_\w+|aphrodite|ktransformers)/",
    r":_*(generate(_sequences|_tokens|_text|_batch)?|rollout\w*|(greedy|beam)_search|forward_(decode|extend)|execute_model|decode_step)$",
    r"(^|/)(inference|serving|rollout)(/[^:]*)?:",
)
_TRAIN: Final = any_of(
    r":_*(pre_?)?train(ing)?(_(step|batch|epoch|one_epoch|loop|iter|iteration|one_step|function|fn|func|minibatch|micro_?batch|tasks?))?$",
    r":\w*(train|training)_(step|loop|batch|epoch|iteration)$",
    r":_*(inner_training_loop|(\w+_)?optimi[sz]er(_step)?|optim_step|forward_backward\w*|(forward|backward)_step\w*|backward|fit(_loop)?)$",
    r":_*(reduce_grad(ient)?s?|(all_?)?reduce_grad\w*|sync_grad\w*|grad_sync|finish_grad_sync|clip_grad\w*|finalize_model_grads)$",
    r":_*(update_(actor|critic|policy)|run_step|accumulate_grad\w*|step_optimizer|zero_grad|compute_loss|loss_fn)$",
    r"^torch/optim/",
    r"^torch/autograd/(graph|__init__|function):",
    r"(^|/)(pytorch_)?lightning/(pytorch/)?loops/(fit_loop|training_epoch_loop|epoch/training|optimization)",
)
_WEAK_TRAIN: Final = any_of(
    r":(forward|step|loss)$",
    r"^torch/(nn/parallel|nn/modules|nn/functional|distributed/(fsdp|pipelining|_composable)|amp|cuda/amp)\b",
    r"^deepspeed/runtime/(zero|pipe|fp16|bf16_optimizer|engine)\b",
    r"^(megatron/core/(pipeline_parallel|optimizer|distributed|transformer)|apex|transformers/models|flash_attn|fairscale)/",
)
_SPECIAL: Final = (
    ("teardown", _TEARDOWN, None),
    ("init", _INIT, None),
    ("checkpoint", _CHECKPOINT, _NOT_CHECKPOINT),
    ("compile", _COMPILE, _COMPILED_RUNS),
    ("profiler", _PROFILER, _NOT_PROFILER),
    ("dataloader", _DATALOADER, None),
)
_PHASE: Final = (("eval", _EVAL, _NOT_EVAL), ("inference", _INFERENCE, None), ("train_step", _TRAIN, None))


class _Marks(NamedTuple):
    """What one frame tells."""

    is_agent: bool
    special: str | None
    phase: str | None
    imports: bool
    serializes: bool
    may_train: bool


@lru_cache(1 << 16)
def _marks(key: str) -> _Marks:
    """What the frame of this key tells; cached, because stacks differ far more than their frames."""

    def first(rules: Sequence[tuple[str, re.Pattern[str], re.Pattern[str] | None]]) -> str | None:
        for label, pattern, but_not in rules:
            if pattern.search(key) and not (but_not and but_not.search(key)):
                return label
        return None

    return _Marks(
        is_agent=_AGENT.search(key) is not None,
        special=first(_SPECIAL),
        phase=first(_PHASE),
        imports=_IMPORT.search(key) is not None,
        serializes=_WEAK_CHECKPOINT.search(key) is not None,
        may_train=_WEAK_TRAIN.search(key) is not None,
    )


def activity_of(frames: Sequence[Frame], natives: str) -> str:
    """What the program is doing; `unknown` where no frame tells. `frames` are informative ones, innermost first."""
    marks = [_marks(frame.key) for frame in frames]
    if any(mark.is_agent for mark in marks):
        return "agent"
    if NATIVE_ABORT.search(natives):
        return "teardown"
    if NATIVE_INIT.search(natives):
        return "init"
    if special := next((mark.special for mark in marks if mark.special), None):
        return special
    # A job that is started by being imported is not importing: its loop stands between the leaf and the import.
    if next((mark.imports for mark in marks if mark.imports or mark.phase), False):
        return "import"
    if any(mark.serializes for mark in marks):
        return "checkpoint"
    phase = next((mark.phase for mark in marks if mark.phase), None)
    return phase or ("train_step" if any(mark.may_train for mark in marks) else "unknown")
