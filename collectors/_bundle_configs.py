"""Versions, settings and addresses in the documents of a capture: what the host and the programs on it were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from collectors._config_values import FAMILIES, is_secret, package, plain_value, scalar, setting

__all__ = ["addresses", "of_host", "of_processes"]

MAX_RANKS: Final = 4096  # that one set of programs is told for
_PLACES: Final = {"kernel": "kernel", "system": "os", "nvidia_driver": "nvidia_driver"}
_NESTED: Final[Mapping[str, Callable[[str], str]]] = {"packages": package, "image": "image:{}".format, "files": "hash:{}".format}
_ADAPTER: Final = {"fw_ver": "firmware", "hca_type": "adapter", "board_id": "adapter_board"}


def of_host(document: Mapping[str, Any], host: str | None, at: datetime | None) -> Iterator[dict[str, object]]:
    """Rows of `configs` from the facts of a host (`rca.host/1`)."""
    about = {"host": host, "source": "capture", "observed_at": at}
    versions = _mapping(document.get("versions"))
    for place, (key, value) in enumerate(versions.items()):
        component = _PLACES.get(key)
        if component and (text := scalar(value[0] if isinstance(value, list) and value else value)) is not None:
            value = text.strip('"')
            yield {"record": f"versions/E{place}", **about, "component": component, "value": plain_value(component, value)}
        elif key == "programs" and isinstance(value, list):
            yield from _programs(value, f"versions/E{place}", about)
    for place, (name, facts) in enumerate(_mapping(document.get("adapters")).items()):
        for key, component in _ADAPTER.items():
            if isinstance(name, str) and (text := scalar(_mapping(facts).get(key))) is not None:
                yield {"record": f"adapters/E{place}", **about, "component": f"{component}:{scalar(name)}", "value": text}
    for place, gpu in enumerate(_list(document.get("gpus"))):
        for key, component in (("vbios", "vbios"), ("name", "gpu_model"), ("driver", "nvidia_driver")):
            if (text := scalar(_mapping(gpu).get(key))) is not None:
                yield {"record": f"gpus/E{place}", **about, "component": component, "value": plain_value(component, text)}


def _programs(programs: Sequence[Any], record: str, about: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """What trainers have loaded: of the host where all have the same, else of the ranks that have it."""
    for program in programs:
        told = _mapping(program)
        ranks = [rank for rank in _list(told.get("ranks")) if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 40]
        pairs = [("python_minor", told.get("python_version"))]
        for key, named in _NESTED.items():
            pairs += [(named(name), value) for name, value in _mapping(told.get(key)).items() if isinstance(name, str) and scalar(name)]
        for component, value in pairs:
            for rank in ranks[:MAX_RANKS] if len(programs) > 1 else (None,):
                if (text := scalar(value)) is not None:
                    yield {"record": record, **about, "rank": rank, "component": scalar(component), "value": text}


def of_processes(processes: object, host: str | None, at: datetime | None) -> Iterator[dict[str, object]]:
    """Rows of `configs` from the variables of trainers (`rca.processes/1`): each value of a host once, by the first process that has it."""
    seen: set[tuple[str, str]] = set()
    for place, entry in enumerate(_list(processes)):
        told = _mapping(entry)
        if told.get("role") != "main":
            continue
        for name, value in _mapping(told.get("environment")).items():
            text = setting(f"env:{name}", value) if isinstance(name, str) and FAMILIES.fullmatch(name) and not is_secret(name) else None
            if text is not None and (name, text) not in seen:
                seen.add((name, text))
                yield {
                    "record": f"E{place}", "host": host, "component": f"env:{name}", "value": text, "source": "capture", "observed_at": at,
                }  # fmt: skip


def addresses(document: Mapping[str, Any], host: str | None) -> Iterator[dict[str, object]]:
    """Rows of `host_addresses`."""
    for place, value in enumerate(_list(document.get("addresses"))):
        if host is not None and isinstance(value, str) and (text := scalar(value)) is not None:
            yield {"record": f"addresses/E{place}", "host": host, "address": text}


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
