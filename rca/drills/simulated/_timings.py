"""Step timings as each rank writes them (a file of JSON lines a rank), and as the table that these become."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from rca.drills.simulated._scene import Scene, Steps
from rca.tables import TABLES

__all__ = ["timing_files", "timing_frames"]

_PARTS = {"compute_s": "fwd_bwd_compute", "comm_s": "comm", "data_s": "data", "checkpoint_s": "checkpoint"}
_DIGITS = 6  # of a second: what such a file keeps


def timing_files(scene: Scene) -> Iterator[tuple[str, list[str]]]:
    """Path and lines of each rank that wrote some."""
    if scene.steps is None:
        return
    steps = scene.steps
    values, starts = _rounded(steps), _starts_ns(scene, steps)
    for rank in _ranks(scene, steps):
        lines = []
        for k in range(steps.step_s.shape[1]):
            if np.isnan(values["step_s"][rank, k]):
                continue
            line: dict[str, Any] = {"rank": rank, "step": steps.first + k}
            if steps.has_started_at:
                line["t_start_ns"] = int(starts[rank, k])
            line["dur_s"] = float(values["step_s"][rank, k])
            line |= {
                f"{_PARTS[name]}_s": float(values[name][rank, k])
                for name in _PARTS
                if name in values and not np.isnan(values[name][rank, k])
            }
            lines.append(json.dumps(line))
        if lines:
            yield path_of(rank), lines


def timing_frames(scene: Scene) -> dict[str, pl.DataFrame]:
    """The same as rows of `steps` and `evidence`."""
    if scene.steps is None:
        return {}
    steps = scene.steps
    ranks = np.array(_ranks(scene, steps), dtype=np.int64)
    values = {name: array[ranks] for name, array in _rounded(steps).items()}
    kept = ~np.isnan(values["step_s"])
    ids = np.array(
        [hashlib.sha256(f"{path_of(rank)}:{scene.kind}:{scene.seed}".encode()).hexdigest()[:16] for rank in ranks.tolist()], dtype=object
    )
    row, column = np.nonzero(kept)
    place = (np.cumsum(kept, axis=1) - 1)[row, column]
    records = np.array([f"L{n + 1}" for n in range(kept.shape[1])], dtype=object)
    data: dict[str, object] = {
        "evidence_id": pl.Series(ids[row].tolist(), dtype=pl.String), "record": pl.Series(records[place].tolist(), dtype=pl.String),
        "job_id": "job-0", "attempt": 0, "rank": pl.Series(ranks[row]), "step": pl.Series(steps.first + column),
    }  # fmt: skip
    data |= {name: pl.Series(array[row, column], nan_to_null=True) for name, array in values.items()}
    if steps.has_started_at:
        stamps = pl.Series(_starts_ns(scene, steps)[ranks][row, column]).cast(pl.Datetime("ns"))
        data["started_at"] = stamps.dt.replace_time_zone("UTC").cast(TABLES["steps"].schema["started_at"])
    files = [
        {"evidence_id": id_, "path": path_of(rank), "kind": "step_timing", "size_bytes": int(count) * 90, "is_stale": False}
        for id_, rank, count in zip(ids, ranks.tolist(), kept.sum(axis=1), strict=True)
        if count
    ]
    return {"steps": TABLES["steps"].frame(data, height=len(row)), "evidence": TABLES["evidence"].rows(files)}


def path_of(rank: int) -> str:
    return f"timings/rank_{rank}.jsonl"


def _ranks(scene: Scene, steps: Steps) -> Sequence[int]:
    return range(scene.world.world_size) if steps.ranks is None else steps.ranks


def _rounded(steps: Steps) -> dict[str, np.ndarray]:
    found = {"step_s": np.round(steps.step_s, _DIGITS)}
    for name in _PARTS:
        array = getattr(steps, name)
        if array is not None:
            found[name] = np.round(array, _DIGITS)
    return found


def _starts_ns(scene: Scene, steps: Steps) -> np.ndarray:
    """When each step began on the clock of its rank's host: the steps before it are over, the last one ends with the scene's step of the fault."""
    spans = np.round(np.nan_to_num(steps.step_s) * 1e9).astype(np.int64)
    hosts = np.array([round(scene.skew_s.get(host, 0.0) * 1e9) for host in scene.world.host_names()])
    skew = hosts[np.arange(scene.world.world_size) // scene.world.gpus_per_host]
    ends = np.cumsum(spans, axis=1)
    first = round(scene.at(scene.fault_step).timestamp() * 1e9) - ends[:, min(scene.fault_step - steps.first, spans.shape[1]) - 1]
    begins: np.ndarray = first[:, None] + ends - spans + skew[:, None]
    return begins
