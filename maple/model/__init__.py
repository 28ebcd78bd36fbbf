"""Maple as a Transformers model, and the loaders for every spelling of its checkpoint.

Importing this package registers MapleConfig and MapleForCausalLM with Transformers' Auto classes.
"""

from __future__ import annotations

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

register()
