"""What a thread waits for, from the innermost Python frames of its stack.

Order: a collective or point-to-point call within the first four frames; then a blocking call of the standard library,
told apart by the frames that made it; then copies to the host, files and network. A leaf in a library that computes is
`none`; a leaf in other code says nothing (`unknown`): a C call, a lock or a sleep has no frame of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from collectors._stack_activity import Frame
from collectors._stack_native import any_of

__all__ = ["blocking_wait", "communication_wait", "is_idle_leaf", "python_wait"]

NEAR_LEAF = 4  # frames: a collective deeper than this is not what the thread is inside of

_C10D: Final = r"^torch/distributed/(distributed_c10d|_functional_collectives\w*|nn/functional|_symmetric_memory\S*|utils|algorithms/join):"
_COMM_CODE: Final = (
    r"^(torch/distributed/(fsdp|_composable|tensor|_tensor|nn|algorithms)|torch/nn/parallel|deepspeed|megatron|horovod|colossalai|fairscale|"
    r"apex|mpi4py|torch_xla|torch_npu|cupy|nemo|accelerate/utils/operations|pytorch_lightning|lightning|vllm/distributed|"
    r"sglang/srt/distributed|vllm/model_executor/parallel_utils|transformer_engine|fairseq/distributed|mmengine/dist|bagua)\b\S*:"
)
_COLLECTIVE_NAME: Final = (
    r"_*(all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier|monitored_barrier|gather|scatter|reduce|"
    r"(fused_|foreach_)(all_gather|reduce)|wait_tensor|sync_buffers|sync_module_states|sync_params_and_buffers|"
    r"verify_param_shape_across_processes|verify_params_across_processes|distributed_broadcast_coalesced|broadcast_coalesced|"
    r"coalescing_manager|end_coalescing|wait_and_clear|mark_step)"
)
_C10D_COLLECTIVE: Final = re.compile(_C10D + _COLLECTIVE_NAME + r"\w*$")
_OTHER_COLLECTIVE: Final = re.compile(_COMM_CODE + _COLLECTIVE_NAME + r"\w*$|^horovod/\S*:synchronize$")
_P2P: Final = any_of(
    r"^torch/distributed/distributed_c10d:_*(i?send|i?recv|batch_isend_irecv|(send|recv)_object_list)$",
    r"(p2p\w*|pipeline_parallel/\w+|pipelining/\w+|pipe/\w+|parallel_state|pynccl\w*):\w*(send|recv|communicate|p2p)\w*$",
)
_COMM_INIT: Final = any_of(
    r"^torch/distributed/distributed_c10d:(_new_process_group_helper|_new_group\w*|new_group|split_group|init_process_group|"
    r"_create_process_group_wrapper|_perform_\w+)$",
    r":(ncclCommInit\w*|ncclCommSplit|init_nccl\w*|initNcclComm\w*)$",
    r"(^|/)(pynccl\w*|nccl\w*):__init__$",
)
_COMM_ABORT: Final = any_of(
    r"^torch/distributed/distributed_c10d:(destroy_process_group|_shutdown_backend|_?abort_process_group|_abort\w*|_shutdown\w*)$",
    r":ncclComm(Abort|Destroy|Finalize)$",
)
_STORE: Final = any_of(
    r"^torch/distributed/distributed_c10d:_store_based_barrier$",
    r"^torch/distributed/(rendezvous|elastic/rendezvous/\w+|elastic/utils/(store|distributed)):",
    r"(^|/)\w*(kv_?store|tcp_?store|c10d_store|rendezvous_store)\w*:(get|wait|set|add|barrier|check|multi_get|compare_set)$",
    r":_*(wait_for_store|store_(get|wait|barrier|set)|create_c10d_store)$",
)
_CUDA_SYNC: Final = any_of(
    r":_*((cuda_?|device_?|stream_?|npu_?)?synchronize|block_until_ready|wait_device_ops|cuda_sync|device_sync)$",
    r"^torch/cuda/\S*:(synchronize|wait|wait_event)$",
    r":_*(item|tolist|local_scalar\w*|cpu|numpy)$",
    r"^torch/(_tensor:(__(repr|format|array|bool|float|int|index|contains|len|deepcopy)__|tolist)|_tensor_str:)",
    r":\w*(to|on)_(device|cuda|gpu|cpu|host|tensor)s?(_recursive\w*)?$",
    r":\w*(copy|move|transfer|send|put)_\w*(device|cuda|gpu|host)\w*$",
    r"^torch/(cuda/)?amp/grad_scaler:",
    r":\w*(has_overflow|has_inf_or_nan|check_overflow|check_for_nan\w*|found_inf\w*|all_finite|init_forward_metadata)\w*$",
)
_IO: Final = any_of(
    r"^(fsspec|gcsfs|s3fs|adlfs|boto3|botocore|s3transfer|minio|oss2|aiohttp|urllib3|requests|httpx|httpcore|http|ssl|socket|smart_open|"
    r"tarfile|zipfile|gzip|lzma|bz2|shutil|genericpath|posixpath|glob|pathlib|io|_pyio|codecs|h5py|pyarrow|zarr|tensorstore|webdataset|"
    r"huggingface_hub|paramiko|urllib|nvme|aio|kvikio|lmdb|pandas/io|google/cloud/storage|google/resumable_media|azure)\b",
    r"^(numpy/lib/(npyio|_npyio\w*|format|_format\w*|_datasource)|numpy/_?core/(memmap|records)|safetensors|torch/serialization)\b",
    r"^os:(listdir|scandir|stat|walk|makedirs|fsync|open|read|write|remove|replace|rename)$",
    r"^torch/distributed/checkpoint/(filesystem|_fsspec\w*|hf_storage)\w*:_*(write|read|open|split|flush|fsync|rename|exists|mkdir|rm)",
    r"^importlib/_bootstrap_external:(_?path_\w+|get_data|_fill_cache|find_spec|_?get_spec|set_data)$",
    r":\w*(fsync|fdatasync)\w*$",
)
_IO_LEAF: Final = any_of(r":_*(read|write|flush|open|download|upload|post|urlopen|http_get|listdir|read_file|write_file)(_\w+)?$")
_LEAF_IDLE: Final = any_of(
    r"^concurrent/futures/thread:_worker$",
    r"^signal:(sigwait\w*|pause)$",
    r"^(ray|dask|distributed|redis|celery)/\S*:(main_loop|_?get_next_task\w*|run_task_loop|_?periodically_\w+|_run|listen)$",
    r"^torch/distributed/elastic/agent/",
    r"^torch/_inductor/compile_worker/",
)
_COMPUTES: Final = any_of(
    r"^(torch|torchvision|torchaudio|triton|numpy|scipy|sklearn|pandas|PIL|transformers|deepspeed|apex|flash_attn|einops|xformers|"
    r"transformer_engine|bitsandbytes|tokenizers|sentencepiece|cv2|importlib|json|pickle|copy|re|ast|inspect|linecache|traceback)\b",
)
_C_CALL: Final = any_of(r"^torch/autograd/(graph|__init__|function):(_engine_run_backward|backward|grad|apply)$")

# Blocking calls of the standard library. The wait is told by who made the call.
_PLUMBING: Final = any_of(
    r"^(threading|queue|selectors|select|socket|ssl|socketserver|subprocess|signal|_queue):",
    r"^(multiprocessing|torch/multiprocessing|concurrent/futures|asyncio|uvloop|anyio)/",
    r"^os:(waitpid|wait|wait4|read|fork|forkpty)$",
)
_JOIN: Final = any_of(
    r"^multiprocessing/(process:join|popen_\w+:(poll|wait))$",
    r"^subprocess:(_?wait|_try_wait|communicate|_communicate|call|run|check_\w+|__exit__)$",
    r"^os:wait",
    r"^torch/multiprocessing/spawn:join$",
    r"^torch/distributed/elastic/multiprocessing/api:",
)
_SERVICE_LOOP: Final = any_of(
    r"^multiprocessing/(queues:_feed|resource_sharer:|resource_tracker:|managers:|forkserver:)",
    r"^multiprocessing/pool:(_handle_\w+|_wait_for_updates|worker|_worker_handler)$",
    r"^(socketserver:|concurrent/futures/(thread:_worker|process:_process_worker|process:wait_result_broken_or_wakeup))",
    r"^asyncio/base_events:_run_once$",
)
_SEMAPHORE: Final = any_of(r"^multiprocessing/synchronize:(acquire|__enter__)$", r"^threading:(acquire|__enter__|_acquire_restore)$")
_THREAD_JOIN: Final = any_of(r"^threading:(join|_wait_for_tstate_lock|_shutdown)$")
_QUEUE: Final = any_of(
    r"^(queue|_queue):",
    r"^(multiprocessing|torch/multiprocessing)/(queues|connection|pool|managers|synchronize):",
    r"^(threading|concurrent/futures/\w+):(wait|wait_for|result|as_completed|exception|__exit__|shutdown)$",
)
_NETWORK: Final = any_of(r"^(http|urllib3?|requests|httpx|httpcore|aiohttp|botocore|ssl|redis|websocket\w*|paramiko)\b", r"^socket:")
_RPC: Final = any_of(
    r"^(grpc|torch/distributed/rpc|xmlrpc|rpyc|thriftpy2?|Pyro[0-9])\b",
    r"^ray/\S*:(get|wait|get_objects|_get_object\w*|get_async|_raylet\w*)$",
    r"^ray/(util/|experimental/channel)",
)
_LOCK_CODE: Final = any_of(r"^(filelock|portalocker|fasteners|lockfile)\b", r"^torch/utils/file_baton:", r"^importlib/_bootstrap:acquire$")
_MESSAGE_QUEUE: Final = any_of(r"^(zmq|nanomsg|pynng)\b", r"shm_broadcast:|:\w*(shm|shared_memory)_(recv|read|wait)\w*$")


def is_idle_leaf(frame: Frame) -> bool:
    """A loop of a library that waits for work."""
    return _LEAF_IDLE.search(frame.key) is not None


def communication_wait(near: Sequence[Frame]) -> str | None:
    """A call into the communication library within the first frames. Other code named like one does not count."""
    for place, frame in enumerate(near[:NEAR_LEAF]):
        key = frame.key
        if _P2P.search(key):
            return "p2p"
        if _C10D_COLLECTIVE.search(key) or (place == 0 and _OTHER_COLLECTIVE.search(key)):
            return "collective"
        if _STORE.search(key):
            return "store"
        if place == 0 and _COMM_INIT.search(key):
            return "comm_init"
        if place == 0 and _COMM_ABORT.search(key):
            return "comm_abort"
    return None


def blocking_wait(frames: Sequence[Frame], *, side: bool) -> str | None:
    """A blocking call of the standard library, told apart by its callers. None where the leaf is no such call."""
    depth = 0
    while depth < len(frames) and _PLUMBING.search(frames[depth].key):
        depth += 1
    if not depth:
        return None
    plumbing, callers = frames[:depth], frames[depth : depth + NEAR_LEAF]

    def has(pattern: re.Pattern[str], where: Sequence[Frame] = plumbing) -> bool:
        return any(pattern.search(frame.key) for frame in where)

    if has(_JOIN) or has(_JOIN, callers[:1]):
        return "process_join"
    if has(_RPC, callers):
        return "rpc"
    if has(_LOCK_CODE, callers[:1]):
        return "lock"
    if has(_SERVICE_LOOP) or has(_LEAF_IDLE):
        return "idle"
    if has(_SEMAPHORE) and not has(_SERVICE_LOOP):
        return "lock"
    if has(_THREAD_JOIN):
        return "lock"
    if has(_NETWORK) or has(_NETWORK, callers[:2]):
        return "idle" if side and plumbing[0].function == "accept" else "io"
    if has(_QUEUE):
        return "queue"
    return "idle" if side else "queue"


def python_wait(frames: Sequence[Frame], activity: str) -> str:
    """What the innermost Python frames say when no blocking call of the standard library is the leaf."""
    leaf, near = frames[0], frames[:2]
    if _LOCK_CODE.search(leaf.key):
        return "lock"
    if _LEAF_IDLE.search(leaf.key):
        return "idle"
    if any(_RPC.search(frame.key) for frame in near):
        return "rpc"
    if any(_MESSAGE_QUEUE.search(frame.key) for frame in near):
        return "queue"
    if any(_CUDA_SYNC.search(frame.key) for frame in near):
        return "cuda_sync"
    if any(_IO.search(frame.key) for frame in frames[:3]) or _IO_LEAF.search(leaf.key):
        return "io"
    if _C_CALL.search(leaf.key):
        return "unknown"
    if activity in ("compile", "import", "profiler") or _COMPUTES.search(leaf.key):
        return "none"
    return "unknown"
