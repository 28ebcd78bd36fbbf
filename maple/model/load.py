"""From a folder or a hub id to a model that answers."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from maple.model.errors import LoadCancelled, LoadError, MapleModelError
from maple.model.progress import LoadProgress

if TYPE_CHECKING:
    from maple.model.configuration import MapleConfig
    from maple.model.modeling import MapleForCausalLM

__all__ = ["LoadCancelled", "LoadError", "LoadOptions", "LoadProgress", "LoadedModel", "MapleModelError", "load"]


@attrs.frozen(kw_only=True)
class LoadOptions:
    """What to load and in which form; the string settings are those of the MAPLE_ variables of the same names."""

    source: str
    revision: str = "main"
    device: str = "auto"
    dtype: str = "auto"
    pack_experts: str = "auto"
    head_dtype: str = "auto"
    cache_dir: pathlib.Path | None = None


@attrs.frozen(kw_only=True)
class LoadedModel:
    """A model in eval mode on its device, and what a server wants to say about it."""

    model: MapleForCausalLM
    config: MapleConfig
    folder: pathlib.Path
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float]
    device: str
    dtype: str
    attention: str
    packed_tensors: int
    bytes: int
    seconds: float
    from_cache: bool


def _never() -> bool:
    return False


def load(
    options: LoadOptions,
    *,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool] = _never,
) -> LoadedModel:
    """Load `options.source` in the calling thread; raises `LoadError` with one line, or `LoadCancelled`."""
    raise NotImplementedError
