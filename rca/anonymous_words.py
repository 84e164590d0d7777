"""What may stay in a path or in a text of somebody else's service: words that everybody uses, and numbers; any other word becomes w1, w2. Pure.

The words are those of catalogue/common_words.txt (English, and what machines, schedulers and trainers are called by): a list of what is harmless
holds where one of what is secret would have a gap.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib import resources
from typing import Any, Final

__all__ = ["FREE", "NEW", "Words", "is_common"]

FREE: Final = frozenset(  # (table, column) with sentences of people or of their services
    f"{table}.{column}"
    for table, columns in {
        "node_events": "object reason message recommended_action",
        "node_states": "reason",
        "job_records": "comment reason state",
        "scheduler_events": "reason state",
        "trainer_events": "message",
        "planned_windows": "kind",
        "nccl_ras": "errors",
        "nccl_calls": "comm_name",
        "gpu_samples": "comm",
        "host_samples": "metrics",
        "configs": "component value",
        "notes": "text data",
        "quarantines": "because",
        "incidents": "because summary code_version",
        "readings": "first_skip problem guess",
        "evidence": "stale_because",
        "checkpoint_files": "problem",
    }.items()
    for column in columns.split()
)
NEW: Final = re.compile(  # what the renaming writes
    r"(?<![A-Za-z0-9])(?:(?:neutral-)?(?:host|user|name|serial|mail|cloud|url)-(?:[ab]-)?[0-9]{4,}|w[0-9]+"
    r"|(?:GPU-|MIG-)?00000000-0000-4000-[89]000-[0-9]{12}|[0f][0-9]{31}|2001:db8:[0-9a-f:]{1,30}|0[2a](?:[:\-][0-9][0-9]){5})(?![A-Za-z0-9])"
)
_PART: Final = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]+")
_TOKEN: Final = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]+")
_HUMP: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PATH_WORDS: Final = """rank ranks round sample iter poll snap nccl fr trace traces dump dumps stack stacks log logs json jsonl
    txt csv tsv pkl pickle gz zst zstd bz xz tar zip bin out err stderr stdout main trainer worker launcher kernel kern dmesg
    journal journalctl syslog messages steps step timing timings topology index hosts host node gpu py spy pyspy gdb pystack
    faulthandler native tb notes note replay replays incident incidents attempt attempts config configs pip freeze env nvidia smi
    collect xid metrics prom prometheus ras inspector sacct scontrol sinfo squeue slurm k s events event pods nodes checkpoint
    checkpoints ckpt global model optim states safetensors distcp metadata latest shard yaml yml xml md html parquet duckdb old
    prev a b c d e r t v x part rotated mp layer pytorch bundle archive history facts address map addresses versions version info
    list megatron deepspeed torchtitan nemo training train rdzv restart job sys data status state"""
_IN_PATHS: Final = frozenset(_PATH_WORDS.split())  # words of a path that say what a file is
_MAX_DIGITS: Final = 8  # more are an account, a ticket, a serial number
_PAIR: Final = re.compile(r'"((?:[^"\\]|\\.){1,200})": ?"((?:[^"\\]|\\.){0,4000})"')  # of labels that were cut at a length
_LABELS: Final = """gpu device modelname pci_bus_id pci_bus gpu_i_id gpu_i_profile minor_number err_code err_msg xid le quantile rank
    local_rank global_rank op coll collective algo proto dtype datatype link nvlink port lane window_size_in_ms dcgm_fi_driver_version
    driver_version cuda_version version name __name__ type state mode cpu fstype unit collectiontype message_size channel n_ranks
    nranks nnodes level severity reason phase condition kind"""
_HARMLESS: Final = frozenset(_LABELS.split())  # labels whose value is a place in a machine, a word of the exporter or a number


@lru_cache(maxsize=1)
def _common() -> frozenset[str]:
    return frozenset(resources.files("rca.catalogue").joinpath("common_words.txt").read_text("utf-8").split()) | _IN_PATHS


def is_common(word: str) -> bool:
    """Whether a word of letters, or of several humps, is one that everybody uses."""
    return len(word) == 1 or word.lower() in _common() or all(hump.lower() in _common() for hump in _HUMP.findall(word) or (word,))


class Words:
    """Words that were replaced, and by what: the same word by the same, in capitals or not."""

    def __init__(self) -> None:
        self._new: dict[str, str] = {}

    def whole(self, text: str) -> str:
        """A new word for a text as a whole."""
        return self._new.setdefault(text.lower(), f"w{len(self._new) + 1}")

    def of_path(self, renamed: str) -> str:
        """A path whose names are replaced: of the rest only words that say what kind of file it is, and numbers."""
        return self._between(renamed, _PART, self._path_part)

    def of_text(self, renamed: str) -> str:
        """A text whose names are replaced: of the rest only common words and short numbers. JSON stays JSON."""
        if renamed[:1] in "{[":
            try:
                return json.dumps(self._inside(json.loads(renamed)), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass  # a text that begins with a bracket
        return self._between(renamed, _TOKEN, self._token)

    def of_labels(self, renamed: str) -> str:
        """Labels as JSON whose names are replaced: of any but harmless ones the value goes as a whole, unless it is a number or replaced already."""
        told = {}
        for key, value in ((json.loads(f'"{part}"', strict=False) for part in found.groups()) for found in _PAIR.finditer(renamed)):
            is_told = key.lower() in _HARMLESS or not re.search(r"[^\W0-9_]|[0-9]{9}", NEW.sub("", value))
            told[self.of_text(key)] = self.of_text(value) if is_told else self.whole(value)
        return json.dumps(told)

    def _inside(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.of_text(key): self._inside(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._inside(inner) for inner in value]
        return self._between(value, _TOKEN, self._token) if isinstance(value, str) else value

    def _between(self, renamed: str, parts: re.Pattern[str], new: Any) -> str:
        """Everything between new names, part by part."""
        out, at = [], 0
        for found in [*NEW.finditer(renamed), None]:
            start, end = (found.start(), found.end()) if found else (len(renamed), len(renamed))
            out += [new(part[0]) for part in parts.finditer(renamed[at:start])]
            out.append(renamed[start:end])
            at = end
        return "".join(out)

    def _path_part(self, part: str) -> str:
        if part.isdigit() or not part.isalpha() or part.lower() in _IN_PATHS:
            return part if part.isascii() else "_"
        return self.whole(part)

    def _token(self, token: str) -> str:
        """Words as they are called (mlx5, cu124, NodeNotReady) stay; what mixes letters and digits otherwise is an identifier."""
        if not token[0].isascii() or not token[0].isalnum():
            return token if token.isascii() else re.sub(r"[^\x00-\x7f]+", "_", token)
        letters, digits = re.findall(r"[A-Za-z]+", token), sum(map(str.isdigit, token))
        is_kept = digits <= _MAX_DIGITS and (not digits or len(letters) < 3) and all(map(is_common, letters))
        return token if is_kept else self.whole(token)
