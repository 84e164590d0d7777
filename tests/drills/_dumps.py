"""Reads recorder dumps of captures without running anything in them."""

from __future__ import annotations

import io
import pickle
from typing import Any

__all__ = ["load_dump"]


class NoGlobals(pickle.Unpickler):
    """Refuses every global: a dump is plain containers and numbers."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} in a recorder dump")


def load_dump(data: bytes) -> dict[str, Any]:
    """The dictionary that a rank's recorder wrote."""
    dump: dict[str, Any] = NoGlobals(io.BytesIO(data)).load()
    return dump
