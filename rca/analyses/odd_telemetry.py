"""Which GPU's metrics stay apart from those of its peers, and in what words: clock, power, activity, times?

1. A vector for every GPU of the job: clocks, power, temperature, use, activity and links from its metrics; for its rank, where a map tells whose
   it is, computation, communication and data times of its steps, and what a straggler detector reports.
2. Peers are the GPUs of the same pipeline stage; where stages are not told, all of the job. Who stays far away for four minutes, from the first on
   or from a moment on, is odd (rca/analyses/_telemetry.py), and is told with those that are odd alike.
3. A GPU whose clock stays a fifth below its peers' while it is as busy as they are computes slower: its rank is a suspect, weakly, since how long
   its work takes was not measured here. All else is a note: a GPU that rests while the others spin may be the one that they wait for, or not.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from rca.analyses._faults import story
from rca.analyses._gpu_series import Gpu, Owners, owners_of
from rca.analyses._job_logs import READS
from rca.analyses._layout import stages
from rca.analyses._telemetry import MIN_PEERS, MIN_SPAN_S, SCHEMA, Deviation, Odd, lasted, odd_units
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("gpu_samples",)
USES = (*READS, "memberships", "rank_stats")
SIGNS = {
    "slow_clock_busy": Sign("slowness", ("slow_rank", "gpu_fault")),
    "odd_gpu": Sign("mention", (), is_note=True),
}


class _Metric(NamedTuple):
    pattern: str
    words: str
    unit: str
    scale: float  # from the exporter's unit


METRICS: Final = (  # DCGM's exporter and nvidia_smi_exporter; counters that only grow are no gauges
    _Metric(r"DCGM_FI_DEV_SM_CLOCK", "SM clock", "MHz", 1.0),
    _Metric(r"nvidia_smi_clocks_current_sm_clock_hz", "SM clock", "MHz", 1e-6),
    _Metric(r"DCGM_FI_DEV_MEM_CLOCK", "memory clock", "MHz", 1.0),
    _Metric(r"DCGM_FI_DEV_POWER_USAGE", "power", "W", 1.0),
    _Metric(r"nvidia_smi_power_draw_watts", "power", "W", 1.0),
    _Metric(r"DCGM_FI_DEV_GPU_TEMP|nvidia_smi_temperature_gpu", "temperature", "degrees C", 1.0),
    _Metric(r"DCGM_FI_DEV_GPU_UTIL", "use", "%", 1.0),
    _Metric(r"nvidia_smi_utilization_gpu_ratio", "use", "%", 100.0),
    _Metric(r"DCGM_FI_PROF_SM_ACTIVE", "SM activity", "%", 100.0),
    _Metric(r"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor activity", "%", 100.0),
    _Metric(r"DCGM_FI_PROF_DRAM_ACTIVE", "memory activity", "%", 100.0),
    _Metric(r"DCGM_FI_PROF_NVLINK_TX_BYTES", "NVLink sent", "GB/s", 1e-9),
    _Metric(r"DCGM_FI_PROF_NVLINK_RX_BYTES", "NVLink received", "GB/s", 1e-9),
    _Metric(r"DCGM_FI_PROF_PCIE_TX_BYTES", "PCIe sent", "GB/s", 1e-9),
    _Metric(r"DCGM_FI_PROF_PCIE_RX_BYTES", "PCIe received", "GB/s", 1e-9),
)
STEP_TIMES: Final = {"compute_s": "computation", "comm_s": "communication", "data_s": "wait for data"}
UNITS: Final = {m.words: m.unit for m in METRICS} | dict.fromkeys(STEP_TIMES.values(), "s a step")
CLOCK: Final = "SM clock"
BUSY: Final = ("use", "SM activity", "tensor activity")
SLOW_CLOCK: Final = 0.8  # of the peers' clock
AS_BUSY: Final = 0.8  # of the peers' use
MAX_CITES: Final = 6
MAX_TOLD: Final = 4  # metrics in the sentence


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding or note for each cluster of odd GPUs."""
    told = case.derive(story)
    owners = owners_of(case, told.logs)
    samples, gpus = _samples(case, owners)
    if len(gpus) < MIN_PEERS:
        raise NotEnoughEvidence(
            f"clocks, power or activity of {len(gpus)} GPUs of the job with instants: {MIN_PEERS} are needed to compare"
        )
    if samples["at_s"].max() - samples["at_s"].min() < MIN_SPAN_S:  # type: ignore[operator]
        raise NotEnoughEvidence(
            f"metrics of less than {MIN_SPAN_S / 60:.0f} minutes: what stays apart they do not show; bring the range of the job's time"
        )
    ranks = {unit: owners.ranks(gpu) for unit, gpu in gpus.items()}
    rows = pl.concat([samples.select(list(SCHEMA)), _of_ranks(case, {r[0]: unit for unit, r in ranks.items() if len(r) == 1})])
    stage = stages(case)
    peers: dict[str, Hashable] = {unit: stage.get(r[0]) for unit, r in ranks.items() if r}
    return [_finding(odd, samples, gpus, ranks) for odd in odd_units(rows, peers)]


def _samples(case: Tables, owners: Owners) -> tuple[pl.DataFrame, dict[str, Gpu]]:
    """Rows of the metrics above with instants, of GPUs that may be the job's, and these GPUs by name."""
    named = case.table("gpu_samples").filter(
        pl.col("name").str.contains("^(?:" + "|".join(m.pattern for m in METRICS) + ")$")
        & pl.col("value").is_not_null()
        & pl.col("sampled_at").is_not_null()
        & pl.any_horizontal(pl.col("gpu", "gpu_index", "gpu_uuid").is_not_null())
    )
    columns = ("host", "gpu", "gpu_index", "gpu_uuid", "name", "sampled_at", "value", "evidence_id", "record")
    rows = named.select(columns).sort("host", "gpu", "gpu_index", "gpu_uuid", "name", "sampled_at", "evidence_id", "record").collect()
    keys = rows.select("host", "gpu", "gpu_index", "gpu_uuid").unique(maintain_order=True)
    known = {gpu.words: gpu for key in keys.iter_rows() if owners.is_of_job(gpu := Gpu(*key))}
    units = pl.DataFrame([(*key, Gpu(*key).words) for key in keys.iter_rows()], schema={**keys.schema, "unit": pl.String}, orient="row")
    names = {name: next(m for m in METRICS if re.fullmatch(m.pattern, name)) for name in rows["name"].unique()}
    found = (
        rows.join(units, on=list(keys.columns), how="left", nulls_equal=True, maintain_order="left")
        .filter(pl.col("unit").is_in(list(known)))
        .with_columns(
            metric=pl.col("name").replace_strict({n: m.words for n, m in names.items()}, return_dtype=pl.String, default=None),
            value=pl.col("value")
            * pl.col("name").replace_strict({n: m.scale for n, m in names.items()}, return_dtype=pl.Float64, default=None),
            at_s=pl.col("sampled_at").dt.epoch("us") / 1e6,
        )
    )
    return found, {unit: known[unit] for unit in found["unit"].unique().sort()}


def _of_ranks(case: Tables, unit_of: Mapping[int, str]) -> pl.DataFrame:
    """The times of the ranks of these GPUs: from their steps, and from reports that name ranks."""
    units = pl.DataFrame(sorted(unit_of.items()), schema={"rank": pl.Int64, "unit": pl.String}, orient="row").lazy()
    steps = case.table("steps").filter(pl.col("started_at").is_not_null()).join(units, on="rank", how="inner")
    timed = [
        steps.select("unit", pl.lit(words).alias("metric"), (pl.col("started_at").dt.epoch("us") / 1e6).alias("at_s"), value=pl.col(column))
        for column, words in STEP_TIMES.items()
    ]
    stats = case.table("rank_stats").filter(pl.col("logged_at").is_not_null() & ~pl.col("name").str.contains("^(?:min|max)_"))
    reported = stats.join(units, on="rank", how="inner").select(
        "unit", ("reported " + pl.col("name")).alias("metric"), (pl.col("logged_at").dt.epoch("us") / 1e6).alias("at_s"),
        value=pl.coalesce("value_s", "value_w"),
    )  # fmt: skip
    return pl.concat([part.drop_nulls().select(list(SCHEMA)) for part in (*timed, reported)]).collect().cast(SCHEMA)  # type: ignore[arg-type]


def _finding(odd: Odd, samples: pl.DataFrame, gpus: Mapping[str, Gpu], of_gpu: Mapping[str, tuple[int, ...]]) -> Finding:
    ranks = tuple(sorted({rank for unit in odd.units for rank in of_gpu[unit]}))
    named = all(of_gpu[unit] for unit in odd.units)
    is_slow = _is_slow(odd, samples) and named
    where = tuple(sorted({gpus[unit].host or "" for unit in odd.units} - {""}))
    whose = f" ({ranks_text(ranks)})" if ranks else ""
    who = f"{odd.units[0]}{whose}" if len(odd.units) == 1 else f"{len(odd.units)} GPUs ({', '.join(odd.units[:MAX_TOLD])}){whose}"
    says = f"{who} stood apart from {len(odd.others)} peers for {lasted(odd)}: {words(odd.deviations)}"
    numbers = {
        "deviations": [{"metric": d.metric, "own": _round(d.own), "others": _round(d.others), "widths": round(d.widths, 1)} for d in odd.deviations],
        "candidates": list(ranks), "span_s": odd.span_s, "num_peers": len(odd.others),
    }  # fmt: skip
    return Finding(
        "odd_telemetry", "slow_clock_busy" if is_slow else "odd_gpu", says, ranks=ranks if is_slow else (), hosts=where,
        scope=f"odd {odd.units}", numbers=numbers, cites=_cites(odd, samples),
    )  # fmt: skip


def _is_slow(odd: Odd, samples: pl.DataFrame) -> bool:
    """Whether its clock is far below the peers' while it is as busy as they are, as far as anything tells how busy."""
    clock = next((d for d in odd.deviations if d.metric == CLOCK), None)
    if clock is None or clock.own > SLOW_CLOCK * clock.others:
        return False
    use = samples.filter(pl.col("metric").is_in(BUSY) & (pl.col("at_s") >= odd.since_s))
    for _, part in use.group_by("metric"):
        own, others = (part.filter(pl.col("unit").is_in(units))["value"].median() for units in (odd.units, odd.others))
        if own is not None and others is not None and own >= AS_BUSY * others:  # type: ignore[operator]
            return True
    return False


def words(deviations: Sequence[Deviation]) -> str:
    """`SM clock 1,110 MHz against 1,980, power 310 W against 640`."""
    told = [
        f"{d.metric} {_round(d.own):,g} {UNITS.get(d.metric, '')}".rstrip() + f" against {_round(d.others):,g}"
        for d in deviations[:MAX_TOLD]
    ]
    return ", ".join(told)


def _round(value: float) -> float:
    """Four digits: what a person reads."""
    return float(f"{value:.4g}")


def _cites(odd: Odd, samples: pl.DataFrame) -> tuple[Cite, ...]:
    """A middle sample of each metric that is odd."""
    found: list[Cite] = []
    of_unit = samples.filter((pl.col("unit") == odd.units[0]) & (pl.col("at_s") >= odd.since_s))
    metrics = [d.metric for d in odd.deviations if d.metric in of_unit["metric"]] or [of_unit["metric"][0]]
    for metric in metrics:  # times of its rank are cited where slow_rank tells them
        own = of_unit.filter(pl.col("metric") == metric)
        rows: list[dict[str, Any]] = own.sort("value", "sampled_at", "evidence_id", "record")[len(own) // 2 : len(own) // 2 + 1].to_dicts()
        found += [
            Cite(
                "gpu_samples",
                r["evidence_id"],
                "",
                r["record"],
                f"{r['name']} of {odd.units[0]}: {r['value']:g} at {r['sampled_at']:%H:%M:%S} UTC",
            )
            for r in rows
        ]
    return tuple(found[:MAX_CITES])
