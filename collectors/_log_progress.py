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

from collectors._log_lines import holds
from collectors._log_prefix import Line

__all__ = ["WORDS", "batch_of", "instant_of", "loss_of_batch", "of_batch", "of_json", "of_text"]

WORDS: Final = ("loss", "iteration", "step=", "step:", "s/it", "it/s", "ba/s", "[batch=")
_NUMBER: Final = r"[-+]?(?:[0-9][0-9,]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?|nan\b|inf(?:inity)?\b)"
_PAIR: Final = re.compile(  # a name of one to five words, perhaps a unit, and a number
    rf"(?i)(?<![\w/])(?P<name>[a-z_][a-z_/]{{0,40}}(?: [a-z_/]{{1,20}}){{0,4}})(?: \((?:tgs|(?P<unit>ms|s))\))?['\"]?\s{{0,4}}[:=#]?\s{{0,12}}"
    rf"(?:\[|['\"])?(?P<value>{_NUMBER})(?P<behind>%| ?ms\b|s\b)?(?![\w])"
)
_NAMES: Final = {  # as printed, in lower case and with blanks for underscores; the first name of a column that a line holds counts
    "step": ("global step", "global step/max steps", "num updates", "iteration", "iter", "step", "steps", "batch"),
    "epoch": ("epoch",),
    "loss": (
        *(
            "lm loss",
            "reduced train loss",
            "train loss",
            "training loss",
            "train/loss",
            "loss/train/total",
            "total loss",
            "avg loss",
            "train loss step",
        ),
        *("mean loss", "loss"),
    ),
    "grad_norm": ("grad norm", "gradient norm", "grad/norm", "train/grad norm", "global grad norm", "gnorm"),
    "learning_rate": ("lr", "learning rate", "train/lr"),
    "tokens_total": ("consumed tokens", "num input tokens seen", "num tokens", "total tokens", "tokens total", "consumed samples"),
    "tokens_per_s_per_gpu": ("tps", "tokens per sec per gpu", "tokens per second per gpu", "tokens per gpu per second"),
    "words_per_s": ("wps",),  # of a GPU where the use of one stands beside it (torchtitan), of the job elsewhere (fairseq)
    "mfu_ratio": ("mfu",),
    "iteration_s": ("elapsed time per iteration", "train step timing in s", "step time", "iter time", "iteration time"),
    "logged_step_s": ("elapsed ms", "elapsed"),  # may also be the time since the start
    "num_skipped": ("number of skipped iterations",),
    "num_nan": ("number of nan iterations",),
}
_COLUMN: Final = {name: (column, place) for column, names in _NAMES.items() for place, name in enumerate(names)}
_PLAIN: Final = frozenset({"epoch", "loss", "grad_norm", "learning_rate", "tokens_total", "tokens_per_s_per_gpu"})  # numbers without a unit
_WITH_UNIT: Final = frozenset({"mfu_ratio", "iteration_s", "logged_step_s"})
_CHECKED: Final = frozenset({"loss", "grad_norm"})  # must be finite in a sound step
_LAST_WORD: Final = frozenset({"step", "iteration", "epoch", "batch"})  # also behind other words: "finished step 12"
_BARE_MS: Final = re.compile(r"\| {0,4}([0-9]{1,12}(?:\.[0-9]{1,9})?) ?ms$")
_BAR: Final = re.compile(  # NeMo's has no pace
    r"^(?P<name>[^|%]{0,60}?):?\s{0,4}[0-9]{1,3}%\|[^|]{0,400}\|\s{0,8}(?P<step>[0-9]{1,15})/(?P<size>[0-9]{1,15}) "
    r"\[[^\]<]{1,20}<[^,\]]{1,20}(?:, {0,4}[0-9.?]+ ?(?:s/it|it/s|s/ba|ba/s)|, {0,4}(?=[A-Za-z_]))"
)
_ROUNDED: Final = re.compile(
    r"(?i)global_step=(?P<step>[0-9](?:\.[0-9]{1,9})?e\+?[0-9]{1,2})(?![\w.])"
)  # as Lightning's bar prints large numbers
_OF_EPOCH: Final = re.compile(  # a batch without a name, beside its epoch: torchvision, mmcv, fairseq, Keras, Lightning with Rich
    r"(?i)^\W{0,3}(?:train\w{0,10}\W{1,3})?epoch\W{0,5}[0-9]{1,6}(?:/[0-9]{1,6})?\W{1,120}(?P<step>[0-9]{1,15}) ?/ ?[0-9]{1,15}\b"
    r"|^(?P<keras>[0-9]{1,15})/[0-9]{1,15} (?:\[[=>. ]{3,80}\]|\u2501[\u2501 ]{2,80})"
)
_VALIDATES: Final = re.compile(
    r"(?i)^(?:validate|validati(?:on|ng)|eval\w{0,10})\b|\bvalid on '|^\{'(?:train_runtime|eval_)"
)  # no step of training
_BATCH: Final = re.compile(
    r"^(?:\[epoch=[0-9]{1,9}(?:/[0-9]{1,9})?\])?\[batch=(?P<step>[0-9]{1,15})/[0-9]{1,15}\]:$"
)  # Composer's, over a block
_LOSS_OF_BATCH: Final = re.compile(rf"(?i)^train loss/train/total: {{1,4}}(?P<loss>{_NUMBER})$")
_TRAINING_BAR: Final = re.compile(r"(?i)^(?:epoch|train|step|iter)|^$")

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "step": (
        "step",
        "iteration",
        "global_step",
        "iter",
        "train_step",
        "current_steps",
        "num_updates",
        "train_num_updates",
        "train/step",
        "train/global_step",
        "_step",
    ),
    "epoch": ("epoch",),
    "loss": ("loss", "lm loss", "lm_loss", "train_loss", "train/loss", "training_loss", "reduced_train_loss"),
    "grad_norm": ("grad_norm", "grad norm", "gradient_norm", "gnorm", "train_gnorm", "train/grad_norm", "global_grad_norm"),
    "learning_rate": ("lr", "learning_rate", "learning rate", "train_lr", "train/lr", "train/learning_rate"),
    "tokens_total": ("tokens", "tokens_total", "total_tokens", "consumed_tokens", "num_tokens", "tokens_seen", "consumed_samples"),
    "tokens_per_s_per_gpu": ("tps", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu"),
    "logged_step_s": ("step_time", "step_time_s", "iter_time", "time_per_step"),
}
_TIMES: Final = ("t_ns", "time_ns", "timestamp_ns", "time", "timestamp", "ts", "t", "_timestamp", "wall_time", "created_at", "datetime")
_OTHERS: Final = frozenset(
    {"t_start_ns", "dur_ms", "phases", "detail", "param_crc", "param_checksum", "sample_ids", "grad_norm_local", "log_type_name", "frames"}
)
MOST_COUNTED: Final = 1e18  # steps or tokens: what is larger counts neither
_LATEST_S: Final = 4e9  # seconds since 1970 of a year that no log is from; larger numbers count milli-, micro- or nanoseconds


def of_text(line: Line) -> dict[str, Any] | None:
    """Columns of `progress` that a line fills which tells of a finished step, and is_iteration: whether it states the time of one as such; None
    where it tells of none."""
    text = line.text.strip()
    if not holds(text, WORDS) or _VALIDATES.search(text):
        return None
    said = _said(text)
    bar = _BAR.match(text) if "%|" in text else None
    step = _whole(said.get("step", ""))
    if bar and step is None and ("loss" in said or _TRAINING_BAR.match(bar["name"].strip())):
        step = _of_bar(bar, text, said.get("epoch", ""))
    if step is None and "loss" in said and (batch := _OF_EPOCH.match(text)):
        step = int(batch["step"] or batch["keras"])
    took = (
        said.get("iteration_s") or said.get("logged_step_s") or next((f"{found[1]}ms" for found in (_BARE_MS.search(text),) if found), None)
    )
    if not (said.keys() & {"loss", "grad_norm"} or (took and step is not None) or bar or text.startswith("step=")):
        return None
    if step is None and not (text.startswith("{'") and "loss" in said) and not (bar and "loss" in said):  # the HF Trainer counts epochs
        return None
    row: dict[str, Any] = {"step": step, "is_finite": None, "ended_at": line.at, "ended_at_local": line.local}
    for column in said.keys() & _PLAIN:
        row[column] = _finite(number := _float(said[column]))
        if column in _CHECKED:
            row["is_finite"] = row["is_finite"] is not False and number is not None and math.isfinite(number)
    if "words_per_s" in said and "mfu_ratio" in said and "tokens_per_s_per_gpu" not in row:
        row["tokens_per_s_per_gpu"] = _finite(_float(said["words_per_s"]))
    if "tokens_total" in row:
        row["tokens_total"] = _count(row["tokens_total"])
    if "mfu_ratio" in said:
        row["mfu_ratio"] = _scaled(said["mfu_ratio"], "%", 100)
    for column in said.keys() & {"num_skipped", "num_nan"}:
        row[column] = _whole(said[column])
    if "num_skipped" in said:
        row["is_skipped"] = said["num_skipped"].strip() != "0"
    if took:
        row["logged_step_s"] = _scaled(took, "ms", 1000)
        row["is_iteration"] = "iteration_s" in said
    return row


def batch_of(text: str) -> int | None:
    """The step that a block of Composer's is of: its first line has nothing else."""
    found = _BATCH.match(text.strip()) if text.lstrip()[:1] == "[" else None
    return int(found["step"]) if found else None


def loss_of_batch(text: str) -> float | None:
    """The training loss that a line of such a block tells, not finite where it is not; None of another line."""
    found = _LOSS_OF_BATCH.match(text.strip()) if "/total: " in text else None
    return _float(found["loss"]) if found else None


def of_batch(line: Line, step: int, loss: float) -> dict[str, Any]:
    """Columns of `progress` of such a step."""
    return {"step": step, "loss": _finite(loss), "is_finite": math.isfinite(loss), "ended_at": line.at, "ended_at_local": line.local}


def _of_bar(bar: re.Match[str], text: str, epoch: str) -> int | None:
    """The step that a bar stands at. Where the global one is printed too, rounded, it is the bar's count, in its epoch or over all, that rounds to
    it; None where neither does."""
    count = int(bar["step"])
    if (rounded := _ROUNDED.search(text)) is None:
        return count
    whole = _whole(epoch)
    counts = (count, *((whole * int(bar["size"]) + count,) if whole else ()))
    digits = len(rounded["step"].lower().partition("e")[0].replace(".", "")) - 1
    return next((of for of in counts if any(float(f"{near:.{digits}e}") == float(rounded["step"]) for near in (of, of - 1))), None)


def _said(text: str) -> dict[str, str]:
    """Column -> number as printed, its unit (ms, %) behind it."""
    found: dict[str, tuple[int, str]] = {}
    for pair in _PAIR.finditer(text):
        name = pair["name"].lower().replace("_", " ").strip()
        if (known := _COLUMN.get(name)) is None and (last := name.rpartition(" ")[2]) in _LAST_WORD:
            known = _COLUMN[last]
        if known is None:
            continue
        column, place = known
        value = pair["value"]
        if column == "step" and _whole(value) is None:
            continue  # rounded, as bars do
        if column not in found or place < found[column][0]:
            unit = pair["unit"] or pair["behind"] or ("ms" if name.endswith(" ms") else "")
            found[column] = place, value + unit.strip() if column in _WITH_UNIT else value
    return {column: value for column, (_, value) in found.items()}


def _whole(value: str) -> int | None:
    """A count as printed, also with commas or as 564.0; None for what is none."""
    number, _, rest = value.replace(",", "").partition(".")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 16 and not rest.strip("0") else None


def _scaled(value: str, unit: str, per_unit: int) -> float | None:
    number = _finite(_float(value.removesuffix(unit).removesuffix("s")))
    return number / per_unit if number is not None and value.endswith(unit) else number


def of_json(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Columns of `progress` of one JSON object that holds global metrics of a step; None for objects of another kind."""
    if _OTHERS & set(entry):
        return None
    found = {column: next((entry[key] for key in keys if key in entry), None) for column, keys in _KEYS.items()}
    step = _count(_finite(_float(found["step"])))
    if step is None or (found["loss"] is None and found["grad_norm"] is None):
        return None
    row: dict[str, Any] = {name: _finite(_float(value)) for name, value in found.items() if name not in ("step", "tokens_total")}
    at, local = _time(entry)
    is_told = [value for value in (found["loss"], found["grad_norm"]) if value is not None]
    return row | {
        "step": step,
        "tokens_total": _count(_finite(_float(found["tokens_total"]))),
        "is_finite": all((number := _float(value)) is not None and math.isfinite(number) for value in is_told),
        "ended_at": at,
        "ended_at_local": local,
    }


def _float(value: Any) -> float | None:
    """A number, also printed with commas or as NaN; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _count(value: float | None) -> int | None:
    """A number of steps or tokens; None where no table could hold it."""
    return int(value) if value is not None and abs(value) < MOST_COUNTED else None


def _time(entry: Mapping[str, Any]) -> tuple[datetime | None, str | None]:
    """The instant and the printed stamp of a JSON object: a count since 1970 in whatever unit fits, or ISO 8601."""
    value = next((entry[key] for key in _TIMES if entry.get(key) is not None), None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return instant_of(value), None
    if isinstance(value, str) and 19 <= len(value) <= 40:
        try:
            at = datetime.fromisoformat(value)
            instant = at.astimezone(UTC) if at.tzinfo else None
        except (ValueError, OverflowError):  # no zone moves the first and the last day of the calendar
            return None, None
        return instant, at.replace(tzinfo=None).isoformat()
    return None, None


def instant_of(count: float) -> datetime | None:
    """A count since 1970 as an instant, in seconds or in the thousandths of them that fit; None where no log is from then."""
    if not 1e8 < count < _LATEST_S * 1e9:
        return None
    unit = next(unit for unit in (1, 10**3, 10**6, 10**9) if count / unit < _LATEST_S)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=count * 1_000_000 // unit)
