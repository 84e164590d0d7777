"""The identity of a process group: its kind and its members, never a process-local number or a name."""

from __future__ import annotations

import hashlib
from functools import lru_cache

__all__ = ["group_id"]


@lru_cache(maxsize=65536)
def group_id(kind: str, ranks: tuple[int, ...]) -> str:
    """`<kind>:<8 hex digits of the sorted global ranks>`: the same group has the same id on every rank."""
    return f"{kind}:{hashlib.sha256(','.join(map(str, ranks)).encode()).hexdigest()[:8]}"
