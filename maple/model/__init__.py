"""Maple as a Transformers model, and the loaders for every spelling of its checkpoint.

Taking a name from this package registers MapleConfig and MapleForCausalLM with Transformers' Auto classes.
Its modules that only read checkpoints (checkpoint, hub, progress and what they use) import neither torch nor
Transformers, and neither does the package itself before a name is taken.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maple.model.cache import KVCache, new_cache
    from maple.model.configuration import MapleConfig
    from maple.model.load import (
        LoadCancelled,
        LoadedModel,
        LoadError,
        LoadOptions,
        LoadProgress,
        MapleModelError,
        load,
    )
    from maple.model.modeling import MapleForCausalLM, MapleModel
    from maple.model.register import register

__all__ = [
    "KVCache",
    "LoadCancelled",
    "LoadError",
    "LoadOptions",
    "LoadProgress",
    "LoadedModel",
    "MapleConfig",
    "MapleForCausalLM",
    "MapleModel",
    "MapleModelError",
    "load",
    "new_cache",
    "register",
]

_HOMES = {
    "KVCache": "cache",
    "LoadedModel": "load",
    "LoadOptions": "load",
    "MapleConfig": "configuration",
    "MapleForCausalLM": "modeling",
    "MapleModel": "modeling",
    "LoadCancelled": "errors",
    "LoadError": "errors",
    "LoadProgress": "progress",
    "MapleModelError": "errors",
    "load": "load",
    "new_cache": "cache",
    "register": "register",
}


class _Package(ModuleType):
    """Two of the names are functions whose modules are called like them: the functions win."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    """A public name, once it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("maple.model.register").register()
    value = getattr(importlib.import_module(f"maple.model.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


sys.modules[__name__].__class__ = _Package
