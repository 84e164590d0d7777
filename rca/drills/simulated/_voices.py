"""How trainers of five families say that they start, step, save and end. Text alone; `<<...>>` tokens are stamps (_logbook.py)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["FAMILIES", "Voice", "drawn_voice"]

Family = Literal["megatron", "deepspeed", "torchtitan", "hf", "house"]
FAMILIES: Final[tuple[Family, ...]] = ("megatron", "deepspeed", "torchtitan", "hf", "house")


@dataclass(frozen=True)
class Voice:
    """One trainer's wording and who of its ranks speaks."""

    family: Family
    speakers: tuple[int, ...]  # ranks that print progress
    all_speak: bool  # every rank prints steps, as house-made trainers do
    every: int  # steps from one printed step to the next
    total: int  # steps of the whole training
    batch: int  # samples of a step
    program: str
    root: str  # where checkpoints go

    def started(self, rank: int, world_size: int, pid: int) -> list[str]:
        """What a rank prints first."""
        if self.family == "megatron":
            if rank:
                return []
            return [
                f"using world size: {world_size}, data-parallel size: {max(1, world_size // 4)}, tensor-model-parallel size: 2",
                "[before the start of training step] datetime: <<sec>> ",
            ]
        if self.family == "deepspeed":
            return ["[<<py>>] [INFO] [comm.py:652:init_distributed] cdb=None"] if rank % 8 == 0 else []
        if self.family == "torchtitan":
            return (
                [f"[titan] <<py>> - root - INFO - Training starts at step 1, with local batch size {self.batch // 8 or 1}"]
                if not rank
                else []
            )
        if self.family == "hf":
            return ["***** Running training *****", f"  Total optimization steps = {self.total:,}"] if not rank else []
        return [f"<<py>> INFO trainer: rank {rank} of {world_size}, pid {pid}"]

    def speaks(self, rank: int) -> bool:
        """Whether the rank prints steps."""
        return self.all_speak or rank in self.speakers

    def step(self, number: int, *, step_s: float, loss: float, norm: float, skipped: int = 0, nans: int = 0) -> list[str]:
        """What a speaker prints after a step."""
        rate, ms = min(3e-4, 1e-7 * (number + 1)), 1e3 * step_s
        if self.family == "megatron":
            shown = f"{loss:.6E}" if loss == loss else "nan"
            return [
                f" [<<sec>>] iteration {number:8d}/{self.total:8d} | consumed samples: {number * self.batch:12d} | "
                f"elapsed time per iteration (ms): {ms:.1f} | learning rate: {rate:.6E} | global batch size: {self.batch:5d} | "
                f"lm loss: {shown} | loss scale: 1.0 | grad norm: {norm:.3f} | "
                f"number of skipped iterations: {skipped:3d} | number of nan iterations: {nans:3d} |"
            ]
        if self.family == "deepspeed":
            return [
                f"[<<py>>] [INFO] [logging.py:96:log_dist] [Rank 0] step={number}, skipped={skipped}, lr=[{rate:.3e}], mom=[(0.9, 0.95)]",
                f"steps: {number} loss: {loss:.4f} iter time (s): {step_s:.3f} samples/sec: {self.batch / step_s:.3f}",
            ]
        if self.family == "torchtitan":
            return [
                f"[titan] <<py>> - root - INFO - step: {number:2d}  loss: {loss:8.5f}  grad_norm: {norm:7.4f}  "
                f"memory: 61.32GiB(77.40%)  tps: {self.batch * 512 / step_s:,.0f}  tflops: 388.12  mfu: 39.24%"
            ]
        if self.family == "hf":
            return [f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.6g}, 'learning_rate': {rate:.4g}, 'epoch': {number / self.total:.2f}}}"]
        return [f"<<py>> INFO trainer: step {number} | loss {loss:.4f} | grad norm {norm:.3f} | {ms:.0f} ms"]

    def save_began(self, number: int) -> list[str]:
        """A save begins."""
        return {
            "megatron": [f"saving checkpoint at iteration {number:7d} to {self.root} in torch_dist format"],
            "deepspeed": [
                f"[<<py>>] [INFO] [logging.py:96:log_dist] [Rank 0] [Torch] Checkpoint global_step{number} is about to be saved!"
            ],
            "torchtitan": ["[titan] <<py>> - root - INFO - Saving the checkpoint (or staging if async is enabled)."],
            "hf": [f"Saving model checkpoint to {self.root}/checkpoint-{number}"],
            "house": [f"<<py>> INFO trainer: saving checkpoint of step {number} to {self.root}/step_{number}"],
        }[self.family]

    def save_ended(self, number: int, took_s: float) -> list[str]:
        """The save is done."""
        return {
            "megatron": [f"  successfully saved checkpoint from iteration {number:7d} to {self.root} [ t 1/2, p 1/2 ]"],
            "deepspeed": [f"[<<py>>] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step{number} is ready now!"],
            "torchtitan": [
                f"[titan] <<py>> - root - INFO - Finished saving the checkpoint (or staging if async is enabled)in {took_s:.2f} seconds."
            ],
            "hf": [],
            "house": [f"<<py>> INFO trainer: checkpoint of step {number} saved in {took_s:.1f} s"],
        }[self.family]

    def loaded(self, number: int) -> list[str]:
        """A state was loaded at the start."""
        return {
            "megatron": [f"  successfully loaded checkpoint from {self.root} [ t 1/2, p 1/2 ] at iteration {number}"],
            "deepspeed": [
                f"[<<py>>] [INFO] [torch_checkpoint_engine.py:25:load] [Torch] Loaded checkpoint from {self.root}/global_step{number}."
            ],
            "torchtitan": [f"[titan] <<py>> - root - INFO - Loading the checkpoint from {self.root}/step-{number}."],
            "hf": [f"Loading model from {self.root}/checkpoint-{number}."],
            "house": [f"<<py>> INFO trainer: resumed from {self.root}/step_{number}"],
        }[self.family]

    def ended(self, number: int, runtime_s: float) -> list[str]:
        """The training came to its regular end."""
        return {
            "megatron": ["[after training is done] datetime: <<sec>> "],
            "deepspeed": [f"[<<py>>] [INFO] training finished after {number} steps"],
            "torchtitan": ["[titan] <<py>> - root - INFO - Training completed", "[titan] <<py>> - root - INFO - Process group destroyed"],
            "hf": [f"{{'train_runtime': {runtime_s:.4f}, 'train_samples_per_second': 41.2, 'train_loss': 1.9, 'epoch': 1.0}}"],
            "house": [f"<<py>> INFO trainer: training finished, {number} steps"],
        }[self.family]

    def frames(self, place: Iterable[tuple[str, str, int]]) -> list[str]:
        """Lines of a Python traceback below its first line; `place`: (file, function, line), outermost first."""
        return [part for file, function, line in place for part in (f'  File "{file}", line {line}, in {function}', "    ...")]


def drawn_voice(rng: random.Random, *, world_size: int, job_root: str, family: str | None = None) -> Voice:
    """A trainer of some family. House-made trainers let every rank speak, in a job that is small enough."""
    kind: Family = family or rng.choice(FAMILIES)  # type: ignore[assignment]
    speaker = world_size - 1 if kind == "megatron" else 0
    program = {
        "megatron": f"{job_root}/pretrain_gpt.py",
        "deepspeed": f"{job_root}/train_ds.py",
        "torchtitan": f"{job_root}/torchtitan/train.py",
        "hf": f"{job_root}/run_clm.py",
        "house": f"{job_root}/{rng.choice(('train', 'main', 'pretrain'))}.py",
    }[kind]
    return Voice(
        kind,
        (speaker,),
        all_speak=kind == "house" and world_size <= 256,
        every=rng.choice((1, 1, 5, 10)),
        total=rng.choice((20_000, 100_000, 500_000)),
        batch=rng.choice((64, 256, 1024)) * max(1, world_size // 64),
        program=program,
        root=rng.choice(("/ckpt/run7", "/lustre/exp/ckpt", "/mnt/weka/job/checkpoints", "s3://models/run-19/ckpt")),
    )
