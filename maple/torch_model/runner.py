"""The runner over the Transformers model: one sequence after another, on whatever device torch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from maple.engine.kv.cache import CacheHandle, CacheLimits, KvSnapshot, SnapshotUnfit, Wait
from maple.engine.kv.prefix_tree import SessionKey
from maple.engine.runner import SequenceSlice
from maple.torch_model.kv import TorchCache, TorchSequence, fill_layer
from maple.torch_model.kv_layers import KVCache, new_cache
from maple.torch_model.load import LoadedModel

UNLIMITED = 1 << 62


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
    """Runs each slice as a forward pass of its own, so that no sequence depends on its neighbours.

    ``budget`` bounds the bytes of all keys and values, kept ones included.
    """

    def __init__(
        self, loaded: LoadedModel, *, budget: int = UNLIMITED, limits: CacheLimits | None = None
    ) -> None:
        config, limits = loaded.config, limits or CacheLimits()
        self._model = loaded.model
        self._vocabulary = config.vocab_size
        # What is kept may be cut back anywhere, so its sliding layers forget nothing.
        self._history = None if limits.prefix_bytes else 0
        self._make: Callable[[], KVCache] = lambda: new_cache(config, history=self._history)
        self._cache = TorchCache(self._make, token_bytes=_token_bytes(loaded), budget=budget, limits=limits)
        self._interruption = _Interruption()
        for layer in loaded.model.model.layers:
            layer.register_forward_pre_hook(self._interruption)

    @property
    def longest(self) -> int:
        """The longest sequence that fits into the budget, in tokens."""
        return self._cache.longest

    @property
    def kv_bytes(self) -> int:
        """Memory of all sequences' keys and values."""
        return self._cache.nbytes

    @property
    def kv_blocks(self) -> int:
        """The same, in blocks of 64 tokens begun."""
        return self._cache.blocks

    @property
    def evictions(self) -> int:
        """Kept sequences that were dropped for room."""
        return self._cache.evictions

    @property
    def kv_format(self) -> str:
        """What a snapshot's arrays hold."""
        return f"maple-torch-1/{self._model.kv_dtype}".replace("torch.", "")

    def open(
        self, owner: str, prompt_ids: Sequence[int], longest: int = 0, *, reuse: bool = True
    ) -> CacheHandle[TorchSequence] | Wait:
        """A sequence with all that is there of the prompt."""
        sequence = self._cache.open(owner, prompt_ids, longest, reuse=reuse)
        return sequence if isinstance(sequence, Wait) else CacheHandle(sequence, reused=sequence.length)

    def step(self, slices: Sequence[SequenceSlice]) -> list[npt.NDArray[np.float32] | None]:
        """Run the slices in turn; the rows are fp32 in main memory."""
        with torch.inference_mode():
            return [self._run(one) for one in slices]

    def reserve(self, cache: CacheHandle[TorchSequence], length: int) -> bool:
        """A sequence has had all that it may need since it was opened."""
        return True

    def close(
        self, cache: CacheHandle[TorchSequence], *, keep: bool = True, session: SessionKey | None = None
    ) -> None:
        """Free the cache, or keep it for reuse within the limits."""
        self._cache.close(cache.store, keep=keep, session=session)

    def resident(self, owner: str, ids: Sequence[int]) -> int:
        """How many of the first ids are there to go on from."""
        return self._cache.find(owner, ids)[1]

    @property
    def sessions(self) -> int:
        """Sessions of which something is kept."""
        return self._cache.sessions

    def session_ids(self, session: SessionKey) -> Sequence[int]:
        """The session's ids, as far as they are kept."""
        return self._cache.session_ids(session)

    def forget_session(self, session: SessionKey, running: Sequence[CacheHandle[TorchSequence]] = ()) -> bool:
        """Drop what is kept of the session; running sequences share nothing with it."""
        return self._cache.forget_session(session)

    def snapshot(self, owner: str, ids: Sequence[int]) -> KvSnapshot | None:
        """A copy of what is there of the ids; None where nothing is."""
        sequence, length = self._cache.find(owner, ids)
        if sequence is None:
            return None
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for number, layer in enumerate(sequence.cache.layers):
            kept = length - layer.start
            for name, part in (("keys", layer.keys), ("values", layer.values)):
                arrays[f"{name}.{number}"] = part[0, :, :kept].contiguous().cpu().view(torch.uint8).numpy()
        return KvSnapshot(ids=tuple(ids[:length]), kv_format=self.kv_format, arrays=arrays)

    def restore(self, owner: str, snapshot: KvSnapshot, session: SessionKey | None = None) -> int | Wait:
        """Keep a snapshot's keys and values for reuse: how many ids are resident. Raises SnapshotUnfit."""
        if any(not 0 <= token < self._vocabulary for token in snapshot.ids):
            raise SnapshotUnfit("an id lies outside the vocabulary")
        sequence = self._cache.open(owner, (), 0)
        if isinstance(sequence, Wait):
            return sequence
        self._cache.close(sequence, keep=False)
        sequence.ids, sequence.reserved = list(snapshot.ids), 0
        with torch.inference_mode():
            for number, layer in enumerate(sequence.cache.layers):
                keys, values = (self._tensor(snapshot, f"{name}.{number}") for name in ("keys", "values"))
                fill_layer(layer, keys, values, len(snapshot.ids) - keys.shape[-2])
        self._cache.keep(sequence, session)
        return self.resident(owner, snapshot.ids)

    def _tensor(self, snapshot: KvSnapshot, name: str) -> torch.Tensor:
        config = self._model.config
        try:
            data = torch.from_numpy(snapshot.arrays[name].copy()).view(self._model.kv_dtype)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SnapshotUnfit(f"{name} is missing or no tensor") from error
        heads, tokens = config.num_key_value_heads, data.shape[-2] if data.ndim == 3 else 0
        if data.shape != (heads, tokens, config.head_dim) or not 0 < tokens <= len(snapshot.ids):
            raise SnapshotUnfit(f"{name} has another shape")
        return data[None].to(self._model.device)

    def _run(self, one: SequenceSlice) -> npt.NDArray[np.float32] | None:
        ids = torch.tensor([list(one.ids)], device=self._model.device)
        sequence: TorchSequence = one.cache.store
        self._interruption.cancelled = one.cancelled
        sequence.broken = True
        try:
            kept = len(one.ids) if one.every_row else 1
            output = self._model(input_ids=ids, cache=sequence.cache, use_cache=True, logits_to_keep=kept)
        except _SliceCancelledError:
            return None
        finally:
            self._interruption.cancelled = None
        sequence.broken = False
        sequence.ids.extend(one.ids)
        if not one.want_logits:
            return None
        rows: npt.NDArray[np.float32] = output.logits[0].float().cpu().numpy()
        return rows if one.every_row else rows[-1]


def _token_bytes(loaded: LoadedModel) -> int:
    """Keys and values of one token in all layers."""
    config = loaded.config
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return int(numbers * loaded.model.kv_dtype.itemsize)
