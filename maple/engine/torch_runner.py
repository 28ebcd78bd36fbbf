"""The runner over the Transformers model: one sequence after another, on whatever device torch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from maple.engine.cache import CacheHandle, CachePool
from maple.engine.runner import SequenceSlice
from maple.model import KVCache, LoadedModel, new_cache

__all__ = ["TorchRunner"]


class _SliceCancelledError(Exception):
    """Leaves a forward pass whose result nobody wants any more."""


class _Interruption:
    """Asked before each decoder layer, so that a cancelled prefill stops within one, not within a chunk."""

    def __init__(self) -> None:
        self.cancelled: Callable[[], bool] | None = None

    def __call__(self, *_: Any) -> None:
        if self.cancelled is not None and self.cancelled():
            raise _SliceCancelledError


class TorchRunner:
    """Runs each slice as a forward pass of its own, so that no sequence depends on its neighbours."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self._pool = CachePool(lambda: new_cache(loaded.config, history=0))
        self._interruption = _Interruption()
        for layer in loaded.model.model.layers:
            layer.register_forward_pre_hook(self._interruption)

    @property
    def kv_bytes(self) -> int:
        """Memory of all sequences' keys and values."""
        return self._pool.nbytes

    def open(self, owner: str, prompt_ids: Sequence[int]) -> CacheHandle[KVCache]:
        """An empty cache."""
        return self._pool.open(owner, prompt_ids)

    def step(self, slices: Sequence[SequenceSlice]) -> list[npt.NDArray[np.float32] | None]:
        """Run the slices in turn; the rows are fp32 in main memory."""
        with torch.inference_mode():
            return [self._run(one) for one in slices]

    def close(self, cache: CacheHandle[KVCache]) -> None:
        """Free the cache."""
        self._pool.close(cache)

    def _run(self, one: SequenceSlice) -> npt.NDArray[np.float32] | None:
        ids = torch.tensor([list(one.ids)], device=self._model.device)
        self._interruption.cancelled = one.cancelled
        try:
            output = self._model(input_ids=ids, cache=one.cache.store, use_cache=True, logits_to_keep=1)
        except _SliceCancelledError:
            return None
        finally:
            self._interruption.cancelled = None
        if not one.want_logits:
            return None
        row: npt.NDArray[np.float32] = output.logits[0, -1].float().cpu().numpy()
        return row
