"""Texts that people wrote about logs: what they quote of one is no log, and no evidence of this job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["is_document", "is_quoted"]

_NAME: Final = re.compile(  # markup is written for readers; so is plain text that is called so
    r"(?i)(?:.*\.(?:md|markdown|rst|adoc|org)|(?:.*[-_. ])?(?:readme|notes?|todo|changelog)(?:\.te?xt)?)(?:\.(?:gz|bz2|xz|zst))?"
)
_QUOTED: Final = re.compile(r"\s*(?:> ?){1,9}\S")


def is_document(name: str) -> bool:
    """Whether a file is by its name one that people write and read: no program logs into it."""
    return _NAME.fullmatch(name.replace("\\", "/").rpartition("/")[2]) is not None


def is_quoted(lines: Iterable[str]) -> bool:
    """Whether all of these lines are quoted, as in mails."""
    return all(_QUOTED.match(line) for line in lines)
