"""firstfault: which rank of a distributed training job failed first, why, and what to do next.

For notebooks and programs: `inventory` finds the evidence, `build` reads it into a case file, `Case.open` opens that, `answer` judges it.
Each is imported when it is first asked for; `import rca` alone loads nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rca.building import build
    from rca.case import Case
    from rca.judge import judge as answer
    from rca.sources import inventory

__version__ = "0.1.0"
__all__ = ["Case", "__version__", "answer", "build", "inventory"]

_HOMES = {  # a name of its own for each: a submodule, once imported, hides a function of the same name
    "Case": ("rca.case", "Case"),
    "answer": ("rca.judge", "judge"),
    "build": ("rca.building", "build"),
    "inventory": ("rca.sources", "inventory"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
