"""Steps that a trainer prints or writes as JSON: number, loss, gradient norm and the like, whatever the trainer's layout.

Megatron's pipes, torchtitan's colons, DeepSpeed's and Lightning's equal signs, progress bars and the dictionaries of the HF Trainer differ
only in what stands between a name and its number, so one pattern per quantity reads them all. A value that is not finite becomes null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from collectors._log_prefix import Line

__all__ = ["WORDS", "of_json", "of_text"]

WORDS: Final = ("loss", "iteration", "step=", "step:", "s/it", "it/s")
_NUMBER: Final = r"(?P<value>[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d{1,3})?|nan\b|inf(?:inity)?\b))"
_GAP: Final = r"['\"]?\s{0,4}[:=]?\s{0,12}\[?"


def _named(names: str, *, ahead: str = r"(?<![\w/])", behind: str = r"(?![\w])") -> re.Pattern[str]:
    return re.compile(rf"(?i){ahead}(?:{names}){_GAP}{_NUMBER}{behind}")


_STEP: Final = tuple(
    re.compile(rf"(?i)(?<![\w])(?:{name})['\"]?\s{{0,4}}[:=#]?\s{{0,12}}(?P<value>\d[\d,]{{0,18}})(?:\.0+)?(?![\w.+])")
    for name in ("global[_ ]step", "iteration|iter", "step", "batch")
)
_LOSS: Final = tuple(_named(name) for name in (r"lm[ _]loss", r"reduced_train_loss", r"train(?:ing)?[_/ ]loss", r"loss"))
_GRAD: Final = _named(r"grad(?:ient)?[ _]norm")
_RATE: Final = _named(r"lr|learning[ _]rate")
_EPOCH: Final = _named(r"epoch")
_TOKENS: Final = (_named(r"consumed[ _]tokens|tokens[ _]total|total[ _]tokens"), _named(r"consumed[ _]samples"))
_PER_GPU: Final = _named(r"tps")
_MFU: Final = re.compile(r"(?i)(?<!\w)mfu['\"]?\s{0,4}[:=]?\s{0,4}(?P<value>\d{1,3}(?:\.\d+)?)(?P<percent>%)?")
_TOOK: Final = re.compile(
    r"(?i)(?:(?<!\w)(?:elapsed(?: time)?(?: per iteration)?|(?:step|iter(?:ation)?)[ _]time)[ _]?\(?(?P<unit>ms|s)?\)?\s{0,4}[:=]\s{0,4}"
    r"(?P<value>\d+(?:\.\d+)?)\s?(?P<unit_behind>ms|s)?(?!\w)|\| {0,4}(?P<bare>\d+(?:\.\d+)?) ?ms\s*$)"
)
_SKIPPED: Final = re.compile(r"(?i)number of skipped iterations:\s{0,6}(?P<value>\d+)")
_BAR: Final = re.compile(
    r"^(?P<name>[^|%]{0,60}?):?\s{0,4}\d{1,3}%\|[^|]{0,400}\|\s{0,8}(?P<step>\d+)/\d+ \[[^\]<]{1,20}<[^,\]]{1,20}, {0,4}[\d.?]+ ?(?P<rate>s/it|it/s)"
)
_TRAINING_BAR: Final = re.compile(r"(?i)^(?:epoch|train|step|iter)|^$")
_DEEPSPEED: Final = re.compile(r"(?<![\w])step=\d+, skipped=\d+")

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "step": ("step", "iteration", "global_step", "iter", "train_step", "train/step", "train/global_step", "_step"),
    "epoch": ("epoch",),
    "loss": ("loss", "lm loss", "lm_loss", "train_loss", "train/loss", "training_loss", "reduced_train_loss"),
    "grad_norm": ("grad_norm", "grad norm", "gradient_norm", "train/grad_norm", "global_grad_norm"),
    "learning_rate": ("lr", "learning_rate", "learning rate", "train/lr", "train/learning_rate"),
    "tokens_total": ("tokens", "tokens_total", "total_tokens", "consumed_tokens", "num_tokens", "tokens_seen", "consumed_samples"),
    "tokens_per_s_per_gpu": ("tps", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu"),
    "logged_step_s": ("step_time", "step_time_s", "iter_time", "time_per_step"),
}
_TIMES: Final = ("t_ns", "time_ns", "timestamp_ns", "time", "timestamp", "ts", "t", "_timestamp", "wall_time", "created_at", "datetime")
_OTHERS: Final = frozenset(
    {"t_start_ns", "dur_ms", "phases", "detail", "param_crc", "param_checksum", "sample_ids", "grad_norm_local", "log_type_name", "frames"}
)
_LATEST_S: Final = 4e9  # seconds since 1970 of a year that no log is from; larger numbers count milli-, micro- or nanoseconds


def of_text(line: Line) -> dict[str, Any] | None:
    """Columns of `progress` of a line that tells of a finished step; None where it does not."""
    text = line.text
    bar = _BAR.match(text.lstrip()) if "%|" in text else None
    row = {
        "step": _step(text),
        "epoch": _number(_EPOCH, text),
        "learning_rate": _number(_RATE, text),
        "tokens_per_s_per_gpu": _number(_PER_GPU, text),
        "tokens_total": next((int(n) for regex in _TOKENS if (n := _number(regex, text)) is not None), None),
    }
    values = {"loss": next((m["value"] for r in _LOSS if (m := r.search(text))), None), "grad_norm": _said(_GRAD, text)}
    if bar and row["step"] is None and (_TRAINING_BAR.match(bar["name"].strip()) or values["loss"]):
        row["step"] = int(bar["step"])
    took = _took(text)
    is_dict = text.lstrip().startswith("{'") and values["loss"] is not None
    has_measure = values["loss"] is not None or values["grad_norm"] is not None or took is not None
    if not (is_dict or (row["step"] is not None and (has_measure or bar or _DEEPSPEED.search(text)))):
        return None
    if (skipped := _SKIPPED.search(text)) is not None:
        row["is_skipped"] = int(skipped["value"]) > 0
    if (mfu := _MFU.search(text)) is not None:
        row["mfu_ratio"] = float(mfu["value"]) / (100 if mfu["percent"] else 1)
    return row | _measures(values) | {"logged_step_s": took, "ended_at": line.at, "ended_at_local": line.local}


def of_json(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Columns of `progress` of one JSON object that holds global metrics of a step; None for objects of another kind."""
    if _OTHERS & set(entry):
        return None
    found = {column: next((entry[key] for key in keys if key in entry), None) for column, keys in _KEYS.items()}
    step = _float(found["step"])
    if step is None or not math.isfinite(step) or (found["loss"] is None and found["grad_norm"] is None):
        return None
    row: dict[str, Any] = {name: _finite(_float(value)) for name, value in found.items() if name not in ("step", "tokens_total")}
    tokens = _finite(_float(found["tokens_total"]))
    at, local = _time(entry)
    is_told = [value for value in (found["loss"], found["grad_norm"]) if value is not None]
    return row | {
        "step": int(step),
        "tokens_total": int(tokens) if tokens is not None else None,
        "is_finite": all((number := _float(value)) is not None and math.isfinite(number) for value in is_told),
        "ended_at": at,
        "ended_at_local": local,
    }


def _step(text: str) -> int | None:
    return next((int(m["value"].replace(",", "")) for regex in _STEP if (m := regex.search(text)) and len(m["value"]) < 16), None)


def _said(regex: re.Pattern[str], text: str) -> str | None:
    found = regex.search(text)
    return found["value"] if found else None


def _number(regex: re.Pattern[str], text: str) -> float | None:
    return _finite(_float(_said(regex, text)))


def _float(value: Any) -> float | None:
    """A number, also printed with commas or as NaN; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) < 1e18 else None


def _measures(values: Mapping[str, str | None]) -> dict[str, Any]:
    numbers = {name: _float(value) for name, value in values.items() if value is not None}
    finite = all(number is not None and math.isfinite(number) for number in numbers.values())
    return {name: _finite(number) for name, number in numbers.items()} | {"is_finite": finite if numbers else None}


def _took(text: str) -> float | None:
    """Duration of the step as printed, s."""
    found = _TOOK.search(text)
    if not found:
        return None
    if found["bare"]:
        return float(found["bare"]) / 1000
    return float(found["value"]) / (1000 if "ms" in ((found["unit"] or "").lower(), (found["unit_behind"] or "").lower()) else 1)


def _time(entry: Mapping[str, Any]) -> tuple[datetime | None, str | None]:
    """The instant and the printed stamp of a JSON object: a count since 1970 in whatever unit fits, or ISO 8601."""
    value = next((entry[key] for key in _TIMES if entry.get(key) is not None), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e8 < value < _LATEST_S * 1e9:
        unit = next(unit for unit in (1, 10**3, 10**6, 10**9) if value / unit < _LATEST_S)
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value * 1_000_000 // unit), None
    if isinstance(value, str) and 19 <= len(value) <= 40:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return None, None
        local = at.replace(tzinfo=None).isoformat()
        return (at.astimezone(UTC), local) if at.tzinfo else (None, local)
    return None, None
