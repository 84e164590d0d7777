"""The step that the name of a saved folder or file says. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["step_said"]

MAX_NAME: Final = 400  # characters of a name that are looked at
_STEP: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:global_?)?(?:step|iter(?:ation)?|checkpoint|ckpt)s?[-_=]{0,3}([0-9]{1,12})(?![0-9.]*\.[0-9])"
)


def step_said(path: str) -> int | None:
    """The step that the name of a folder or file says (iter_0001234, checkpoint-500, global_step10); of several the innermost."""
    for part in reversed(path.split("/")):
        if found := _STEP.findall(part[:MAX_NAME]):
            return int(found[-1])
    return None
