"""Plugins are modules: listing a folder is the registry, the file name is the public name."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

__all__ = ["load", "names"]


def names(package: str) -> tuple[str, ...]:
    """Public plugin names of a package, sorted; a module whose name starts with "_" is a helper, a folder a room, not a plugin."""
    module = importlib.import_module(package)
    return tuple(sorted(m.name for m in pkgutil.iter_modules(module.__path__) if not (m.ispkg or m.name.startswith("_"))))


def load(package: str, name: str) -> ModuleType:
    """The plugin module `package.name`."""
    return importlib.import_module(f"{package}.{name}")
