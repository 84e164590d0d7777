"""What papers print about failures beside what their own counts give: computed, never typed, by the formulas that this project uses on a fleet.

The tables lie in rca/catalogue/published/*.csv, each row with its source. A printed number agrees with ours when ours, rounded to as many
digits as are printed, is that number. Where they disagree both are shown, and why as far as it can be told.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from rca.reliability import formulas

__all__ = ["Compared", "compared", "statement", "table"]

Row = Mapping[str, str]
HARDWARE: Final = (
    ("GPU", "Host"),
    ("Network",),
    ("Unplanned Maintenance",),
)  # categories of Llama 3's table, widening what counts as hardware
_TOLERANCE: Final = 1e-9  # of binary fractions
DAILY_STEP: Final = 1e-5  # failures per machine and day: how finely the rate behind the spares is looked for
DAILY_STEPS: Final = 200


@dataclass(frozen=True)
class Compared:
    """A figure as printed and as computed. `published` None = not printed; `agrees` None = nothing to compare."""

    figure: str
    source: str
    unit: str
    published: float | None
    ours: float | None
    agrees: bool | None
    why: str

    def as_row(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


@cache
def table(name: str) -> tuple[Row, ...]:
    """The rows of rca/catalogue/published/<name>.csv, as text: how many digits are printed matters."""
    text = resources.files("rca.catalogue").joinpath("published").joinpath(f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def _statements() -> Mapping[str, Row]:
    return {row["name"]: row for row in table("statements")}


def statement(name: str) -> float:
    """A number that a paper states outside its tables."""
    return float(_statements()[name]["value"])


def compared() -> list[Compared]:
    """Every figure, Llama 3's first."""
    return [*_llama3(), *_byterobust(), *_standby(), *_meta(), *_fthsdp(), *_delta()]


def _compare(figure: str, source: str, unit: str, printed: str | None, ours: float | None, *, so: str = "", else_: str = "") -> Compared:
    """One comparison; `so` explains how ours comes about, `else_` why they may differ."""
    if printed is None or ours is None:
        return Compared(figure, source, unit, float(printed) if printed else None, ours, None, so or "not printed")
    digits = len(printed.partition(".")[2])
    agrees = abs(ours - float(printed)) <= 0.5 * 10.0**-digits + _TOLERANCE
    told = [so] if so else []
    if not agrees and else_:
        told.append(else_)
    return Compared(figure, source, unit, float(printed), ours, agrees, "; ".join(told) or "the same, rounded as printed")


def _stated(figure: str, name: str, ours: float | None, *, so: str = "", else_: str = "") -> Compared:
    row = _statements()[name]
    return _compare(figure, row["source"], row["unit"], row["value"], ours, so=so, else_=else_)


def _counts(rows: tuple[Row, ...], column: str = "", *values: str) -> int:
    return sum(int(row["count"]) for row in rows if not column or row[column] in values)


def _percent(part: float, whole: float) -> float | None:
    ratio = formulas.share(part, whole)
    return None if ratio is None else 100.0 * ratio


def _shares(rows: tuple[Row, ...], whole: float, label: str, name: str) -> Iterator[Compared]:
    """The printed share of each row against its count."""
    for row in rows:
        count, printed = int(row["count"]), row["pct_printed"]
        fits = round(float(printed) / 100.0 * whole)
        else_ = f"{fits} of {whole:.0f} would be {printed} %"
        yield _compare(
            f"{label}: {row[name]}, share", row["source"], "%", printed, _percent(count, whole), so=f"{count} of {whole:.0f}", else_=else_
        )


def _llama3() -> Iterator[Compared]:
    rows = table("llama3_interruptions")
    source = rows[0]["source"]
    total = _counts(rows)
    yield from _shares(rows, total, "Llama 3", "component")
    yield _stated("Llama 3: unexpected interruptions", "llama3_unexpected", float(total), so=f"sum of the table's {len(rows)} counts")
    planned = statement("llama3_planned")
    yield _stated(
        "Llama 3: all interruptions", "llama3_interruptions", total + planned, so=f"{planned:.0f} planned and {total} unexpected ones"
    )
    printed = sum(float(row["pct_printed"]) for row in rows)
    missing = "the share printed of its largest row is too small for its count"
    yield _compare("Llama 3: sum of the printed shares", source, "%", "100", printed, so="sum of the printed column", else_=missing)
    gpu = _counts(rows, "category", "GPU")
    by_print = sum(float(row["pct_printed"]) for row in rows if row["category"] == "GPU")
    yield _stated(
        "Llama 3: share of GPUs",
        "llama3_gpu_share",
        _percent(gpu, total),
        so=f"{gpu} of {total}",
        else_=f"the printed shares sum to {by_print:.1f} %",
    )
    categories: tuple[str, ...] = ()
    steps = []
    for more in HARDWARE:
        categories += more
        count = _counts(rows, "category", *categories)
        steps.append((count, f"{' and '.join(name.lower() if name != 'GPU' else name for name in more)} {_percent(count, total):.1f} %"))
    else_ = f"the paper does not say which rows it adds: {', with '.join(text for _, text in steps)}"
    yield _stated(
        "Llama 3: share of hardware", "llama3_hardware", _percent(steps[-1][0], total), so=f"{steps[-1][0]} of {total}", else_=else_
    )
    hours = statement("llama3_days") * 24.0
    hosts = statement("llama3_gpus") / statement("llama3_gpus_per_host")
    every = formulas.mean_time(int(total + planned), hours)
    yield _stated(
        "Llama 3: hours between failures", "llama3_hours_per_failure", formulas.mean_time(total, hours),
        so=f"{hours:.0f} h / {total} unexpected interruptions",
        else_=f"the printed figure counts the {planned:.0f} planned ones as failures: {hours:.0f} h / {total + planned:.0f} = {every:.2f} h",
    )  # fmt: skip
    yield _compare(
        "Llama 3: hours between interruptions, planned ones included", _statements()["llama3_hours_per_failure"]["source"], "h",
        _statements()["llama3_hours_per_failure"]["value"], every, so=f"{hours:.0f} h / {total + planned:.0f}",
    )  # fmt: skip
    low, high = (count / (hours / 24.0 * hosts) * 1000.0 for count in formulas.poisson_interval(total))
    yield _compare(
        "Llama 3: failures per 1,000 node-days", source, "1/1000 node-days", None, formulas.per_1000(total, hours * hosts),
        so=f"not printed; {total} on {hosts:.0f} hosts in {hours / 24.0:.0f} days, {low:.2f} to {high:.2f} at 95 %",
    )  # fmt: skip


def _byterobust() -> Iterator[Compared]:
    rows = table("byterobust_incidents")
    total = _counts(rows)
    yield from _shares(rows, total, "ByteRobust", "symptom")
    explicit, implicit = (_counts(rows, "category", kind) for kind in ("explicit", "implicit"))
    yield _stated(
        "ByteRobust: explicit failures", "byterobust_explicit", float(explicit), so="sum of the rows",
        else_=f"the text names {explicit - statement('byterobust_explicit'):,.0f} fewer than the table holds",
    )  # fmt: skip
    nan = _counts(rows, "symptom", "NaN value")
    yield _stated(
        "ByteRobust: implicit failures", "byterobust_implicit", float(implicit), so="sum of the rows",
        else_=f"without the {nan} of NaN they are {implicit - nan}",
    )  # fmt: skip
    yield _compare(
        "ByteRobust: all incidents", rows[0]["source"], "incidents", None, float(total), so=f"not printed; sum of {len(rows)} rows"
    )
    actions = table("byterobust_actions")
    for model, name in (("dense", "byterobust_dense"), ("MoE", "byterobust_moe")):
        own = tuple(row for row in actions if row["model"] == model)
        yield _stated(f"ByteRobust: incidents of the {model} job", name, float(_counts(own)), so="sum of the table's counts")
        yield from _shares(own, _counts(own), f"ByteRobust, {model} job", "action")


def _standby() -> Iterator[Compared]:
    """Whether one daily failure rate explains all the printed spares at once, and which."""
    rows = table("byterobust_standby")
    sizes = {int(row["machines"]): int(row["p99_printed"]) for row in rows}
    rates = [step * DAILY_STEP for step in range(1, DAILY_STEPS)]
    fitting = [rate for rate in rates if all(formulas.spares(machines, rate) == spares for machines, spares in sizes.items())]
    rate = fitting[len(fitting) // 2] if fitting else None
    why = (
        f"Binomial(machines, p) with p = {fitting[0]:.5f} to {fitting[-1]:.5f} per machine and day gives all {len(sizes)}"
        if fitting
        else "no daily failure rate gives all of them"
    )
    for row in rows:
        machines = int(row["machines"])
        ours = None if rate is None else float(formulas.spares(machines, rate))
        yield _compare(f"ByteRobust: spare machines for {machines}, P99", row["source"], "machines", row["p99_printed"], ours, so=why)


def _meta() -> Iterator[Compared]:
    for row in table("meta_mttf"):
        nodes, unit = int(row["gpus"]) / int(row["gpus_per_node"]), row["unit"]
        hours = formulas.mean_time_to_failure(nodes, float(row["per_1000_node_days"]))
        so = f"1 / ({nodes:,.0f} node{'s' * (nodes != 1)} x {row['per_1000_node_days']} per 1,000 node-days)"
        else_ = "measured: the one rate per node, taken over jobs of all sizes above 128 GPUs, does not give the time of jobs of this size"
        ours = hours / 24.0 if unit == "d" else hours
        yield _compare(
            f"Meta: MTTF of {int(row['gpus']):,} GPUs, {row['kind']}", row["source"], unit, row["mttf_printed"], ours, so=so, else_=else_
        )
    for row in table("meta_ratio"):
        nodes = float(row["nodes"])
        told = {
            "mttf_h": formulas.mean_time_to_failure(nodes, float(row["per_1000_node_days"])),
            "recover_h": float(row["recover_min"]) / 60.0,
            "interval_h": float(row["interval_min"]) / 60.0,
        }
        closed, exact = formulas.lower_ratio(**told), formulas.expected_ratio(**told)
        setting = f"{row['recover_min']} min recovery, checkpoint each {row['interval_min']} min"
        label = f"Meta: training time ratio, {row['cluster']}, {nodes:,.0f} nodes, {setting}"
        for name, ours, else_ in (
            ("closed form", closed, row["note"]),
            (
                "renewal",
                exact,
                row["note"] or f"the closed form, a lower bound, gives {closed:.3f}: it lets no failure fall into a recovery",
            ),
        ):
            yield _compare(f"{label}, {name}", row["source"], "", row["ratio_printed"], ours, so="no cost of writing", else_=else_)


def _fthsdp() -> Iterator[Compared]:
    rows = table("fthsdp_32k")
    source = rows[0]["source"]
    total = statement("fthsdp_interruptions")
    yield _compare(
        "FT-HSDP: sum of the printed shares", source, "%", "100.0", sum(float(row["pct_of_678"]) for row in rows), so=f"{len(rows)} rows"
    )
    sdc = next(float(row["pct_of_678"]) for row in rows if row["component"] == "SDC")
    yield _stated("FT-HSDP: silent data corruption", "fthsdp_sdc", sdc / 100.0 * total, so=f"{sdc} % of {total:.0f}")
    servers = statement("fthsdp_large_gpus") / statement("fthsdp_gpus_per_server")
    minutes = formulas.mean_time_to_failure(servers, statement("fthsdp_rate")) * 60.0
    yield _stated(
        "FT-HSDP: minutes between interruptions of the largest job", "fthsdp_large_mtbf", minutes,
        so=f"1 / ({servers:,.0f} servers x {statement('fthsdp_rate')} per 1,000 servers and day)",
        else_="interruptions grow faster than the number of servers, or the rate is that of another period",
    )  # fmt: skip


def _delta() -> Iterator[Compared]:
    hours = statement("delta_days") * 24.0
    for row in table("delta_ampere_v1_xid"):
        ours = formulas.mean_time(int(row["count"]), hours)
        so = f"{hours:.0f} h / {int(row['count']):,}"
        yield _compare(
            f"Delta: hours between Xid {row['xid']} ({row['name']}) anywhere", row["source"], "h", row["system_mtbe_node_h"], ours, so=so
        )
