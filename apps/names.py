"""Names that a person gives and that become part of a path or a record: one check for all verbs."""

from __future__ import annotations

from typing import Final

from rca.errors import UsageError

__all__ = ["host_name"]

MAX_HOST: Final = 253  # characters of a DNS name


def host_name(text: str) -> str:
    """A name of a host as given. Raises UsageError for what no host is called, or what could not be one folder's name."""
    if not text or not text.isprintable() or any(letter in text for letter in " /") or text.startswith((".", "-")) or len(text) > MAX_HOST:
        raise UsageError(f"{text[:60]!r} is no name of a host: wanted are up to {MAX_HOST} letters without spaces or /, as in host-a")
    return text
