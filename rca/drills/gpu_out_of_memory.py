"""One rank runs out of GPU memory."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["gpu_out_of_memory"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "the forward pass of one rank raises torch.OutOfMemoryError, with the allocator's own words; the rank ends with exit code 1"
TRAP = "its peers only see connections close, and say so at once"
ENDS = "stall"

# The allocator's message; here no GPU is there to raise it.
MESSAGE = (
    "CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU {gpu} has a total capacity of 79.10 GiB of which {free:.2f} MiB is free. "
    "Process {{pid}} has {used:.2f} GiB memory in use. Of the allocated memory {held:.2f} GiB is allocated by PyTorch, and "
    "{spare:.2f} GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank's forward pass of a step raises."""
    rank, step, rng = pick("gpu_out_of_memory", layout, seed=seed)
    free_mib, spare = rng.uniform(100, 900), rng.uniform(0.5, 4.0)
    used = 79.10 - free_mib / 1024
    numbers = {"asked": rng.uniform(1, 4), "free": free_mib, "used": used, "spare": spare, "held": used - spare - 0.6}
    message = MESSAGE.format(gpu=layout.ranks()[rank]["gpu"], **numbers)
    return Injection((rank,), step, {str(rank): {"gpu_memory": {"step": step, "message": message}}})
