"""Instants as Kubernetes gives them: RFC 3339 in its objects, RFC 1123 with a zone where `kubectl describe` prints them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from collectors._json_records import instant

__all__ = ["kube_instant"]


def kube_instant(value: Any) -> datetime | None:
    """The instant, in UTC; None for null, the zero time of Go, and anything without a zone."""
    if isinstance(value, datetime):  # of YAML
        return value.astimezone(UTC) if value.tzinfo and 2000 <= value.year < 2200 else None
    if isinstance(value, date) or not isinstance(value, str) or len(value) > 60:
        return None
    if value[:1].isalpha() and "," in value[:5]:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        return instant(at.isoformat())
    return instant(value)
