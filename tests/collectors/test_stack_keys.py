"""Canonical keys and the two labels, on stacks as torch, Megatron, DeepSpeed, vLLM and plain programs show them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors._stack_keys import describe, frame_key
from collectors._stack_labels import ACTIVITIES, WAIT_KINDS
from collectors._stack_text import parse_frame

ROLES = {"trainer", "dataloader_worker", "agent", "compile_worker", "other", "unknown"}
THREAD = ["run (threading.py:982)", "_bootstrap_inner (threading.py:1045)", "_bootstrap (threading.py:1002)"]
GENERATED = "c" + "ab2c3d4e5f" * 5 + ".py"


def stack_of(text: str):
    frames = []
    for line in text.split("\n"):
        if line.strip():
            frames += THREAD if line.strip() == "THREAD" else [line.strip()]
    parsed = [parse_frame(frame) for frame in frames]
    assert all(parsed), text
    return describe([(f[0], f[1]) for f in parsed if f], native=[f[3] for f in parsed if f])


LABELLED = [
    (
        "dcp async side",
        """
        slow_fsync (dcp.py:10)
        _write_item (torch/distributed/checkpoint/filesystem.py:200)
        FileSystemWriter.write_data (torch/distributed/checkpoint/filesystem.py:500)
        write_data (torch/distributed/checkpoint/state_dict_saver.py:300)
        _DistWrapper.all_reduce (torch/distributed/checkpoint/utils.py:240)
        _save_state_dict (torch/distributed/checkpoint/state_dict_saver.py:350)
        _WorkItem.run (concurrent/futures/thread.py:58)
        _worker (concurrent/futures/thread.py:83)
        THREAD
        """,
        "checkpoint",
        "io",
    ),
    (
        "dcp peers",
        """
        gather_object (torch/distributed/distributed_c10d.py:3000)
        wrapper (torch/distributed/c10d_logger.py:83)
        _DistWrapper.reduce_scatter (torch/distributed/checkpoint/utils.py:200)
        _save_state_dict (torch/distributed/checkpoint/state_dict_saver.py:350)
        _worker (concurrent/futures/thread.py:83)
        THREAD
        """,
        "checkpoint",
        "collective",
    ),
    (
        "idle executor",
        """
        _worker (concurrent/futures/thread.py:81)
        THREAD
        """,
        "side_thread",
        "idle",
    ),
    (
        "pin mem",
        """
        select (selectors.py:415)
        wait (multiprocessing/connection.py:947)
        _poll (multiprocessing/connection.py:440)
        poll (multiprocessing/connection.py:257)
        get (multiprocessing/queues.py:113)
        do_one_step (torch/utils/data/_utils/pin_memory.py:37)
        _pin_memory_loop (torch/utils/data/_utils/pin_memory.py:61)
        THREAD
        """,
        "dataloader",
        "queue",
    ),
    (
        "dl shutdown",
        """
        poll (multiprocessing/popen_fork.py:27)
        wait (multiprocessing/popen_fork.py:47)
        join (multiprocessing/process.py:149)
        _shutdown_workers (torch/utils/data/dataloader.py:1328)
        __del__ (torch/utils/data/dataloader.py:1350)
        train (train.py:3)
        <module> (train.py:9)
        """,
        "dataloader",
        "process_join",
    ),
    (
        "dl shutdown wait timeout",
        """
        select (selectors.py:415)
        wait (multiprocessing/connection.py:947)
        wait (multiprocessing/popen_fork.py:40)
        join (multiprocessing/process.py:149)
        _shutdown_workers (torch/utils/data/dataloader.py:1328)
        <module> (train.py:9)
        """,
        "dataloader",
        "process_join",
    ),
    (
        "worker read",
        """
        _read (dask_io.py:3)
        read_block (fsspec/utils.py:2)
        __getitem__ (ds.py:3)
        fetch (torch/utils/data/_utils/fetch.py:51)
        _worker_loop (torch/utils/data/_utils/worker.py:308)
        run (multiprocessing/process.py:108)
        _bootstrap (multiprocessing/process.py:314)
        _launch (multiprocessing/popen_fork.py:71)
        main (train.py:3)
        """,
        "dataloader",
        "io",
    ),
    (
        "mp.spawn parent",
        """
        select (selectors.py:415)
        wait (multiprocessing/connection.py:930)
        join (torch/multiprocessing/spawn.py:109)
        start_processes (torch/multiprocessing/spawn.py:202)
        spawn (torch/multiprocessing/spawn.py:240)
        <module> (main.py:3)
        """,
        "agent",
        "process_join",
    ),
    (
        "mp.spawn child",
        """
        all_reduce (torch/distributed/distributed_c10d.py:1316)
        train (main.py:3)
        _wrap (torch/multiprocessing/spawn.py:74)
        run (multiprocessing/process.py:108)
        _bootstrap (multiprocessing/process.py:314)
        _main (multiprocessing/spawn.py:129)
        spawn_main (multiprocessing/spawn.py:116)
        <module> (<string>:1)
        """,
        "train_step",
        "collective",
    ),
    (
        "nan check .item",
        """
        _maybe_opt_step (torch/cuda/amp/grad_scaler.py:333)
        step (torch/cuda/amp/grad_scaler.py:338)
        train (t.py:3)
        """,
        "train_step",
        "cuda_sync",
    ),
    (
        "lightning to_tensor",
        """
        __to_tensor (lightning/pytorch/core/module.py:626)
        __to_tensor (pytorch_lightning/core/module.py:1)
        log (lightning/pytorch/core/module.py:450)
        training_step (model.py:3)
        _run_training_step (x.py:3)
        """,
        "train_step",
        "cuda_sync",
    ),
    (
        "sglang",
        """
        init_forward_metadata (sglang/srt/layers/attention/flashinfer_backend.py:200)
        forward_decode (sglang/srt/model_executor/model_runner.py:900)
        forward_batch_generation (sglang/srt/managers/tp_worker.py:170)
        run_batch (sglang/srt/managers/scheduler.py:1400)
        event_loop_overlap (sglang/srt/managers/scheduler.py:640)
        run_scheduler_process (sglang/srt/managers/scheduler.py:2200)
        run (multiprocessing/process.py:108)
        _bootstrap (multiprocessing/process.py:314)
        """,
        "inference",
        "cuda_sync",
    ),
    (
        "vllm engine loop",
        """
        dequeue (vllm/distributed/device_communicators/shm_broadcast.py:400)
        worker_busy_loop (vllm/v1/executor/multiproc_executor.py:500)
        worker_main (vllm/v1/executor/multiproc_executor.py:400)
        """,
        "inference",
        "queue",
    ),
    (
        "store",
        """
        _store_based_barrier (torch/distributed/distributed_c10d.py:400)
        init_process_group (torch/distributed/distributed_c10d.py:900)
        main (t.py:3)
        <module> (t.py:9)
        """,
        "init",
        "store",
    ),
    (
        "rendezvous",
        """
        _create_c10d_store (torch/distributed/rendezvous.py:189)
        _env_rendezvous_handler (torch/distributed/rendezvous.py:258)
        init_process_group (torch/distributed/distributed_c10d.py:900)
        main (t.py:3)
        """,
        "init",
        "store",
    ),
    (
        "newgroup",
        """
        _new_process_group_helper (torch/distributed/distributed_c10d.py:900)
        _new_group_with_tag (torch/distributed/distributed_c10d.py:900)
        new_group (torch/distributed/distributed_c10d.py:900)
        initialize_model_parallel (megatron/core/parallel_state.py:3)
        <module> (t.py:9)
        """,
        "init",
        "comm_init",
    ),
    (
        "destroy",
        """
        _shutdown_backend (torch/distributed/distributed_c10d.py:900)
        destroy_process_group (torch/distributed/distributed_c10d.py:900)
        <module> (t.py:9)
        """,
        "teardown",
        "comm_abort",
    ),
    (
        "rpc",
        """
        _wait_all (torch/distributed/rpc/api.py:100)
        shutdown (torch/distributed/rpc/api.py:300)
        main (x.py:3)
        """,
        "unknown",
        "rpc",
    ),
    (
        "grpc",
        """
        wait (threading.py:302)
        _wait_once (grpc/_common.py:106)
        wait (grpc/_common.py:148)
        result (grpc/_channel.py:733)
        main (x.py:3)
        """,
        "unknown",
        "rpc",
    ),
    (
        "ray get",
        """
        get_objects (ray/worker.py:300)
        get (ray/worker.py:1500)
        train (x.py:3)
        <module> (x.py:4)
        """,
        "train_step",
        "rpc",
    ),
    (
        "import",
        """
        _path_stat (<frozen importlib._bootstrap_external>:147)
        find_spec (<frozen importlib._bootstrap_external>:1600)
        _find_spec (<frozen importlib._bootstrap>:1000)
        _find_and_load (<frozen importlib._bootstrap>:1176)
        <module> (train.py:1)
        """,
        "import",
        "io",
    ),
    (
        "import exec",
        """
        <module> (torch/__init__.py:5)
        _call_with_frames_removed (<frozen importlib._bootstrap>:241)
        exec_module (<frozen importlib._bootstrap_external>:940)
        _find_and_load (<frozen importlib._bootstrap>:1176)
        <module> (train.py:1)
        """,
        "import",
        "none",
    ),
    (
        "file baton",
        """
        wait (torch/utils/file_baton.py:45)
        _jit_compile (torch/utils/cpp_extension.py:1694)
        load (torch/utils/cpp_extension.py:1284)
        jit_load (deepspeed/ops/op_builder/builder.py:500)
        <module> (t.py:3)
        """,
        "compile",
        "lock",
    ),
    (
        "backward",
        """
        _engine_run_backward (torch/autograd/graph.py:769)
        backward (torch/autograd/__init__.py:289)
        train (x.py:3)
        """,
        "train_step",
        "unknown",
    ),
    (
        "rerun act ckpt",
        """
        forward (torch/nn/modules/linear.py:114)
        _call_impl (torch/nn/modules/module.py:1)
        custom_forward (megatron/core/transformer/transformer_block.py:3)
        forward (megatron/core/tensor_parallel/random.py:300)
        checkpoint (megatron/core/tensor_parallel/random.py:320)
        _checkpointed_forward (megatron/core/transformer/transformer_block.py:400)
        train_step (megatron/training/training.py:3)
        """,
        "train_step",
        "none",
    ),
    (
        "torch ckpt",
        """
        forward (layer.py:3)
        checkpoint (torch/utils/checkpoint.py:3)
        train_step (t.py:3)
        """,
        "train_step",
        "unknown",
    ),
    (
        "megatron p2p",
        """
        _communicate (megatron/core/pipeline_parallel/p2p_communication.py:300)
        recv_forward (megatron/core/pipeline_parallel/p2p_communication.py:400)
        forward_backward_pipelining_without_interleaving (megatron/core/pipeline_parallel/schedules.py:1)
        train_step (megatron/training/training.py:3)
        """,
        "train_step",
        "p2p",
    ),
    (
        "megatron ckpt save",
        """
        poll (multiprocessing/popen_fork.py:27)
        wait (multiprocessing/popen_fork.py:43)
        join (multiprocessing/process.py:149)
        save_checkpoint (megatron/training/checkpointing.py:400)
        save_checkpoint_and_time (megatron/training/training.py:3)
        train (megatron/training/training.py:3)
        """,
        "checkpoint",
        "process_join",
    ),
    (
        "torch.save",
        """
        write (torch/serialization.py:500)
        _save (torch/serialization.py:800)
        save (torch/serialization.py:440)
        save_model (t.py:3)
        train (t.py:4)
        """,
        "checkpoint",
        "io",
    ),
    (
        "torch.load in dataset",
        """
        _load (torch/serialization.py:800)
        load (torch/serialization.py:440)
        __getitem__ (ds.py:3)
        fetch (torch/utils/data/_utils/fetch.py:51)
        __next__ (torch/utils/data/dataloader.py:630)
        train (t.py:4)
        """,
        "dataloader",
        "io",
    ),
    (
        "profiler",
        """
        stop (torch/profiler/profiler.py:500)
        step (torch/profiler/profiler.py:700)
        train (t.py:4)
        """,
        "profiler",
        "none",
    ),
    (
        "hf eval",
        """
        __next__ (torch/utils/data/dataloader.py:630)
        evaluation_loop (transformers/trainer.py:3000)
        evaluate (transformers/trainer.py:2900)
        _inner_training_loop (transformers/trainer.py:1900)
        train (transformers/trainer.py:1600)
        """,
        "dataloader",
        "none",
    ),
    (
        "hf generate",
        """
        forward (torch/nn/modules/linear.py:114)
        forward (transformers/models/llama/modeling_llama.py:1)
        sample (transformers/generation/utils.py:2)
        generate (transformers/generation/utils.py:1)
        main (t.py:3)
        """,
        "inference",
        "none",
    ),
    (
        "asyncio main",
        """
        select (selectors.py:468)
        _run_once (asyncio/base_events.py:1898)
        run_forever (asyncio/base_events.py:603)
        run (asyncio/runners.py:44)
        <module> (server.py:3)
        """,
        "unknown",
        "idle",
    ),
    (
        "tqdm",
        """
        wait (threading.py:324)
        wait (threading.py:607)
        run (tqdm/_monitor.py:60)
        _bootstrap_inner (threading.py:1016)
        _bootstrap (threading.py:973)
        """,
        "side_thread",
        "idle",
    ),
    (
        "resource tracker",
        """
        main (multiprocessing/resource_tracker.py:200)
        <module> (<string>:1)
        """,
        "side_thread",
        "idle",
    ),
    (
        "http",
        """
        readinto (socket.py:705)
        _read_status (http/client.py:280)
        getresponse (http/client.py:1375)
        _make_request (urllib3/connectionpool.py:1)
        request (requests/api.py:3)
        log (t.py:3)
        train (t.py:4)
        """,
        "train_step",
        "io",
    ),
    (
        "semaphore",
        """
        acquire (threading.py:450)
        limited (x.py:3)
        main (x.py:3)
        """,
        "unknown",
        "lock",
    ),
    (
        "mp lock",
        """
        __enter__ (multiprocessing/synchronize.py:95)
        save (x.py:3)
        main (x.py:3)
        """,
        "unknown",
        "lock",
    ),
    (
        "thread join",
        """
        _wait_for_tstate_lock (threading.py:1116)
        join (threading.py:1096)
        main (x.py:3)
        """,
        "unknown",
        "lock",
    ),
    (
        "future",
        """
        wait (threading.py:324)
        result (concurrent/futures/_base.py:451)
        main (x.py:3)
        """,
        "unknown",
        "queue",
    ),
    (
        "inductor subproc wait",
        """
        wait (threading.py:324)
        result (concurrent/futures/_base.py:451)
        wait (torch/_inductor/async_compile.py:300)
        <module> (/tmp/torchinductor_u/ab/cab2c3d4e5fab2c3d4e5fab2c3d4e5fab2c3d4e5fab2c3d4e5f.py:33)
        """,
        "compile",
        "queue",
    ),
    (
        "compiled call",
        """
        call (/tmp/torchinductor_u/ab/cab2c3d4e5fab2c3d4e5fab2c3d4e5fab2c3d4e5fab2c3d4e5f.py:33)
        run (torch/_inductor/utils.py:3)
        __call__ (torch/_inductor/output_code.py:400)
        call_func_at_runtime_with_args (torch/_functorch/_aot_autograd/utils.py:126)
        runtime_wrapper (torch/_functorch/_aot_autograd/runtime_wrappers.py:300)
        forward (torch/_functorch/aot_autograd.py:1100)
        _fn (torch/_dynamo/eval_frame.py:600)
        train_step (t.py:3)
        """,
        "train_step",
        "unknown",
    ),
    (
        "ddp init",
        """
        _verify_param_shape_across_processes (torch/distributed/utils.py:282)
        __init__ (torch/nn/parallel/distributed.py:800)
        main (t.py:3)
        """,
        "train_step",
        "collective",
    ),
    (
        "fsdp",
        """
        all_gather_into_tensor (torch/distributed/distributed_c10d.py:3700)
        wrapper (torch/distributed/c10d_logger.py:81)
        _all_gather_flat_param (torch/distributed/fsdp/_flat_param.py:1400)
        unshard (x.py:3)
        forward (torch/distributed/fsdp/fully_sharded_data_parallel.py:800)
        validate (t.py:3)
        """,
        "eval",
        "collective",
    ),
    (
        "wait_tensor",
        """
        wait_tensor (torch/distributed/_functional_collectives.py:130)
        trigger_wait (torch/distributed/_functional_collectives.py:600)
        train_step (t.py:3)
        """,
        "train_step",
        "collective",
    ),
    (
        "ds ckpt commit",
        """
        barrier (torch/distributed/distributed_c10d.py:2500)
        barrier (deepspeed/comm/torch.py:190)
        log_wrapper (deepspeed/comm/comm.py:117)
        save_checkpoint (deepspeed/runtime/engine.py:3000)
        train (t.py:3)
        """,
        "checkpoint",
        "collective",
    ),
    (
        "comm abort native",
        """
        std::condition_variable::wait (libstdc++.so.6)
        c10d::NCCLComm::abort (libtorch_cuda.so)
        c10d::ProcessGroupNCCL::abort (libtorch_cuda.so)
        _abort_process_group (torch/distributed/distributed_c10d.py:1600)
        main (x.py:3)
        """,
        "teardown",
        "comm_abort",
    ),
    (
        "store native",
        """
        poll (libc.so.6)
        c10d::TCPStore::wait (libtorch_cpu.so)
        <module> (modes.py:3)
        """,
        "unknown",
        "store",
    ),
    (
        "gloo native",
        """
        pthread_cond_wait (libc.so.6)
        std::condition_variable::wait (libstdc++.so)
        c10d::Work::wait (libtorch_cpu.so)
        all_reduce (torch/distributed/distributed_c10d.py:3252)
        <module> (x.py:3)
        """,
        "unknown",
        "collective",
    ),
    (
        "sleep native",
        """
        clock_nanosleep (libc.so.6)
        time_sleep (libpython3.11.so.1.0)
        hang (x.py:3)
        <module> (x.py:5)
        """,
        "unknown",
        "sleep",
    ),
    (
        "cuda native",
        """
        cuStreamSynchronize (libcuda.so.1)
        at::native::_local_scalar_dense_cuda (libtorch_cuda.so)
        train_step (t.py:3)
        """,
        "train_step",
        "cuda_sync",
    ),
    (
        "dask store",
        """
        wait (threading.py:312)
        get (queue.py:180)
        queue_get (dask/local.py:3)
        train (x.py:3)
        """,
        "train_step",
        "queue",
    ),
    (
        "wandb",
        """
        wait (threading.py:312)
        get (queue.py:180)
        _run (wandb/sdk/internal.py:3)
        THREAD
        """,
        "side_thread",
        "idle",
    ),
    (
        "inductor read thread",
        """
        _recv_msg (torch/_inductor/compile_worker/subproc_pool.py:60)
        _read_thread (torch/_inductor/compile_worker/subproc_pool.py:200)
        THREAD
        """,
        "side_thread",
        "idle",
    ),
    (
        "compile worker main",
        """
        _recv_msg (torch/_inductor/compile_worker/subproc_pool.py:60)
        main (torch/_inductor/compile_worker/subproc_pool.py:300)
        main (torch/_inductor/compile_worker/__main__.py:40)
        <module> (torch/_inductor/compile_worker/__main__.py:60)
        """,
        "side_thread",
        "idle",
    ),
    (
        "accelerate launch",
        """
        _try_wait (subprocess.py:1770)
        wait (subprocess.py:1083)
        simple_launcher (accelerate/commands/launch.py:600)
        main (accelerate/commands/launch.py:1)
        <module> (accelerate:8)
        """,
        "agent",
        "process_join",
    ),
    (
        "broadcast in data",
        """
        broadcast (torch/distributed/distributed_c10d.py:1191)
        broadcast_data (megatron/core/tensor_parallel/data.py:88)
        get_batch (pretrain_gpt.py:50)
        forward_step (pretrain_gpt.py:90)
        train_step (megatron/training.py:3)
        """,
        "dataloader",
        "collective",
    ),
    (
        "cuda sync below",
        """
        synchronize (torch/cuda/__init__.py:566)
        stop (megatron/core/timers.py:120)
        train_step (megatron/training/training.py:3)
        """,
        "train_step",
        "cuda_sync",
    ),
    (
        "dist_wrapper lambda",
        """
        reduce (user.py:3)
        _run (x.py:2)
        main (x.py:1)
        """,
        "unknown",
        "unknown",
    ),
    (
        "tensor repr",
        """
        __repr__ (torch/_tensor.py:400)
        log (t.py:3)
        train (t.py:4)
        """,
        "train_step",
        "cuda_sync",
    ),
    (
        "pl barrier",
        """
        barrier (torch/distributed/distributed_c10d.py:2500)
        barrier (pytorch_lightning/strategies/ddp.py:100)
        setup (pytorch_lightning/trainer.py:1)
        fit (pytorch_lightning/trainer/trainer.py:500)
        """,
        "train_step",
        "collective",
    ),
    (
        "webdataset queue",
        """
        select (selectors.py:415)
        wait (multiprocessing/connection.py:947)
        _poll (multiprocessing/connection.py:440)
        poll (multiprocessing/connection.py:257)
        get (multiprocessing/queues.py:113)
        worker (multiprocessing/pool.py:114)
        run (multiprocessing/process.py:108)
        _bootstrap (multiprocessing/process.py:314)
        """,
        "side_thread",
        "idle",
    ),
    (
        "fork of dl",
        """
        poll (multiprocessing/popen_fork.py:28)
        is_alive (multiprocessing/process.py:160)
        x (t.py:3)
        """,
        "unknown",
        "process_join",
    ),
]


@pytest.mark.parametrize(("text", "activity", "wait_kind"), [row[1:] for row in LABELLED], ids=[row[0] for row in LABELLED])
def test_labels(text: str, activity: str, wait_kind: str) -> None:
    stack = stack_of(text)
    assert (stack.activity, stack.wait_kind) == (activity, wait_kind), stack.frames


@pytest.mark.parametrize(
    ("name", "file", "key"),
    [
        ("Condition.wait", "/usr/lib/python3.11/threading.py", "threading:wait"),
        ("wait", "threading.py", "threading:wait"),
        ("f.<locals>.g", "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "torch/nn/modules/module:g"),
        ("main.<locals>.<dictcomp>", "/home/user/code/train.py", "train:<dictcomp>"),
        ("forward", "src/project/models/net.py", "src/project/models/net:forward"),
        ("synchronize", "/mnt/archive/torch/cuda/__init__.py", "torch/cuda/__init__:synchronize"),
        ("step", "/workspace/engine/torch/step.py", "step:step"),
        ("impl", "torch/x/subclass_codegen.py:codegen(backward)", "torch/x/subclass_codegen:impl"),
        ("call", f"/tmp/torchinductor_user/ab/{GENERATED}", "<generated>:call"),
        ("_find_and_load", "<frozen importlib._bootstrap>", "importlib/_bootstrap:_find_and_load"),
        ("forward", "<eval_with_key>.17 from /job/a.py:3 in f", "<eval_with_key>:forward"),
        ("<module>", "<string>", "<string>:<module>"),
        ("run", "C:\\Python\\lib\\threading.py", "threading:run"),
        ("PyThread_acquire_lock_timed", "libpython3.11.so.1.0", "libpython3.11:PyThread_acquire_lock_timed"),
        ("0x7f3276ea3f16", "libc.so.6", "libc:??"),
        ("c10d::NCCLComm::create(int, std::vector<int>, x&)", "/opt/lib/libtorch_cuda.so", "libtorch_cuda:c10d::NCCLComm::create"),
        ("void at::native::fill<float, (int)4>(at::Tensor&)", "libtorch_cpu.so", "libtorch_cpu:at::native::fill"),
        ("ncclProxyService", "proxy.cc", "proxy:ncclProxyService"),
        ("main", None, "?:main"),
    ],
)
def test_frame_key(name: str, file: str | None, key: str) -> None:
    assert frame_key(name, file) == key


def test_same_place_in_old_and_new_dumps_is_one_stack() -> None:
    new = describe([("Condition.wait", "/usr/lib/python3.11/threading.py"), ("Loader.get", "/job/train.py")])
    old = describe([("wait", "threading.py"), ("get", "train.py")])
    assert new == old
    assert len(new.stack_id) == 16


def test_fork_child_loses_the_frames_of_its_parent() -> None:
    child = """
        write (x.py:3)
        run (multiprocessing/process.py:108)
        _bootstrap (multiprocessing/process.py:314)
        _launch (multiprocessing/popen_fork.py:71)
        train_step (train.py:3)
        """
    stack = stack_of(child)
    assert stack.frames[-1] == "multiprocessing/process:_bootstrap"
    assert (stack.role, stack.activity) == ("other", "unknown")


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("f (x.py:1)\n_worker_loop (torch/utils/data/_utils/worker.py:308)\nrun (multiprocessing/process.py:108)", "dataloader_worker"),
        ("_invoke_run (torch/distributed/elastic/agent/server/api.py:923)\n<module> (torchrun:8)", "agent"),
        ("main (torch/_inductor/compile_worker/__main__.py:40)\n<module> (x.py:3)", "compile_worker"),
        ("main (multiprocessing/resource_tracker.py:200)\n<module> (<string>:1)", "other"),
        ("f (x.py:1)\n<module> (train.py:3)", "trainer"),
        ("f (x.py:1)\nTHREAD", "unknown"),
        ("f (x.py:1)", "unknown"),
    ],
)
def test_role_by_root(text: str, role: str) -> None:
    assert stack_of(text).role == role


def test_leaf_is_the_first_python_frame() -> None:
    stack = stack_of("0x7f32 (libc.so.6)\nPyThread_acquire_lock_timed (libpython3.11.so.1.0)\nlog (x.py:3)\n<module> (x.py:9)")
    assert (stack.leaf, stack.leaf_key) == ("x:log", "libpython3.11:PyThread_acquire_lock_timed")
    assert stack_of("poll (libc.so.6)").leaf is None


def test_a_library_name_tells_what_frames_do_not() -> None:
    frames = [("0x7f00", "libc.so.6")]
    named, plain = describe(frames, thread_name="pt_nccl_watchdg"), describe(frames)
    assert (named.activity, named.wait_kind) == ("side_thread", "idle")
    assert (plain.activity, plain.wait_kind) == ("unknown", "unknown")
    assert named.stack_id != plain.stack_id


@given(st.lists(st.tuples(st.text(max_size=40), st.none() | st.text(max_size=60)), max_size=12))
def test_any_frames_get_labels_of_the_closed_lists(frames: list[tuple[str, str | None]]) -> None:
    stack = describe(frames)
    assert stack.activity in ACTIVITIES
    assert stack.wait_kind in WAIT_KINDS
    assert stack.role in ROLES
    assert stack == describe(frames)
