"""The text of a scene, laid out into files: logs of trainers, launchers and scheduler, kernel logs, numbers of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rca.drills.simulated._kernel_text import boots, kernel_files
from rca.drills.simulated._run import Run
from rca.drills.simulated._step_records import number_files, number_frame, number_path
from rca.tables import TABLES

if TYPE_CHECKING:
    import polars as pl

    from rca.drills.simulated._scene import Scene

__all__ = ["number_frames", "text_files"]

MANY_HOSTS = 64  # of a larger job not every kernel log is kept


def _run(scene: Scene) -> Run | None:
    found = scene.notes.get("run")
    return found if isinstance(found, Run) else None


def _skew_ns(scene: Scene) -> dict[str, int]:
    return {host: round(seconds * 1e9) for host, seconds in scene.skew_s.items()}


def text_files(scene: Scene) -> dict[str, list[str]]:
    """Path -> lines of everything that processes, kernels and the scheduler wrote; empty for a scene without a run."""
    run = _run(scene)
    if run is None:
        return {}
    skew = _skew_ns(scene)
    files = run.book.laid_out(host_of=run.teller.host_of, job_id=run.teller.job_id, skew_ns=skew)
    if run.has_kernel:
        hosts = [host for host in scene.world.host_names() if host not in run.kernel_lost]
        if len(hosts) > MANY_HOSTS:  # of a large job the logs of those that said something, and of some others
            told = [host for host in hosts if run.kernel.get(host) or host in run.kernel_ends]
            hosts = sorted({*told, *scene.topic("kernel hosts").sample(hosts, MANY_HOSTS)})
        began = int(run.ends_at[0]) if len(run.ends_at) else run.bite_at
        files |= kernel_files(
            run.kernel, hosts, form=run.form, booted=boots(hosts, began, scene.seed), began_at=began, captured_at=run.captured_at,
            seed=scene.seed, skew_ns=skew, ends_at=run.kernel_ends,
            zone_h=run.book.zone_h or None,
        )  # fmt: skip
    return files


def written_numbers(scene: Scene) -> dict[str, list[str]]:
    """Path -> lines of the numbers that each rank keeps for itself."""
    run = _run(scene)
    if run is None or run.numbers is None or not run.has_numbers:
        return {}
    return number_files(run.numbers, first_step=run.first, reached=run.reached, without=run.book.lost)


def number_frames(scene: Scene) -> dict[str, pl.DataFrame]:
    """The same as the table that they become."""
    run = _run(scene)
    if run is None or run.numbers is None or not run.has_numbers or not any(run.reached):
        return {}
    rows = [
        {"evidence_id": f"numbers-{rank}", "path": number_path(rank), "kind": "step_timing", "size_bytes": 120 * steps, "is_stale": False}
        for rank, steps in enumerate(run.reached)
        if steps and rank not in run.book.lost
    ]
    told = number_frame(run.numbers, first_step=run.first, reached=run.reached, without=run.book.lost)
    return {"rank_progress": told, "evidence": TABLES["evidence"].rows(rows)}
