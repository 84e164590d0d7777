"""Numbers of all ranks as each rank writes them (a file of JSON lines a rank), and as the table that they become."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from rca.drills.simulated._numbers import Numbers, sample_ids
from rca.tables import TABLES

__all__ = ["number_files", "number_frame", "number_path"]

MANY = 200_000  # rows: a larger job keeps no list of samples for each step of each rank


def number_path(rank: int) -> str:
    """Where a rank keeps its numbers."""
    return f"timings/local_rank_{rank}.jsonl"


def number_files(numbers: Numbers, *, first_step: int, reached: Sequence[int], without: Collection[int] = ()) -> dict[str, list[str]]:
    """Path -> lines. `reached`: steps that each rank wrote; `without`: ranks whose files are lost."""
    return {
        number_path(rank): [json.dumps(_numbered(numbers, rank, k, first_step)) for k in range(steps)]
        for rank, steps in enumerate(reached)
        if rank not in without and steps
    }


def _numbered(numbers: Numbers, rank: int, k: int, first_step: int) -> dict[str, object]:
    loss, norm = float(numbers.loss[rank, k]), float(numbers.norm[rank, k])
    return {
        "rank": rank, "step": first_step + k, "loss": round(loss, 5) if numbers.has_loss[rank] else None, "grad_norm_local": round(norm, 6),
        "param_crc": f"{int(numbers.checksum[rank, k]):08x}", "samples": list(sample_ids(numbers, rank, k)),
    }  # fmt: skip


def _kept(reached: Sequence[int], steps: int, without: Collection[int]) -> np.ndarray:
    """Ranks x steps: whether the rank wrote the step and its file is there."""
    counts = np.array([0 if rank in without else number for rank, number in enumerate(reached)])
    kept: np.ndarray = np.arange(steps)[None] < counts[:, None]
    return kept


def number_frame(
    numbers: Numbers, *, first_step: int, reached: Sequence[int], without: Collection[int] = (), with_checksum: bool = True
) -> pl.DataFrame:
    """Rows of `rank_progress`, by rank and step."""
    kept = _kept(reached, numbers.norm.shape[1], without)
    rank, step = np.nonzero(kept)
    loss = np.round(np.where(numbers.has_loss[rank], numbers.loss[kept], np.nan), 5)
    norm = np.round(numbers.norm[kept], 6)
    finite = np.isfinite(norm) & (np.isfinite(numbers.loss[kept]) | ~numbers.has_loss[rank])
    first = numbers.first_sample[rank, step]
    ids = pl.Series(first[:, None] + np.arange(numbers.samples) * numbers.stride).arr.to_list() if len(first) <= MANY else None
    rows = {
        "rank": pl.Series(rank), "step": pl.Series(first_step + step), "loss": _known(loss), "grad_norm": _known(norm),
        "is_finite": pl.Series(finite),
        "param_checksum": [f"{number:08x}" for number in numbers.checksum[kept].tolist()] if with_checksum else None,
        "sample_ids": ids, "record": "L" + pl.Series(step + 1).cast(pl.String), "job_id": "job-0", "attempt": 0,
        "evidence_id": pl.Series([f"numbers-{r}" for r in range(len(reached))])[rank],
    }  # fmt: skip
    return TABLES["rank_progress"].frame(rows, height=len(rank))


def _known(values: np.ndarray) -> pl.Series:
    return pl.Series(values).fill_nan(None)
