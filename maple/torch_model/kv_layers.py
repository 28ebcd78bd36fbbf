"""The KV cache of one sequence: appended chunk by chunk, cut back to any length it still covers.

The caches that Transformers ships keep only ``window - 1`` keys on a sliding layer, so a sequence can never be
cut back behind its window. These layers keep more, and show attention no more than it may see.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from maple.checkpoint.fields import SLIDING
from maple.torch_model.configuration import MapleConfig

# Positions: the least a buffer grows by, and by how much a bounded history may overshoot.
_GROWTH = 256


class CannotTruncateError(ValueError):
    """The cache was asked for a length that it no longer covers; ``shortest`` is the least it can be cut to."""

    def __init__(self, length: int, shortest: int) -> None:
        super().__init__(f"cannot cut the cache to {length} tokens: it covers {shortest} and more")
        self.length = length
        self.shortest = shortest


class KVLayer(CacheLayerMixin):  # type: ignore[misc] # untyped base
    """Keys and values [batch, KV heads, capacity, head dim] of one layer, positions ``start .. length - 1``
    filled.

    ``window`` is None on a full layer. ``history`` bounds how many positions behind the window a sliding layer
    keeps for being cut back; None keeps all.
    """

    is_croppable = True

    def __init__(self, window: int | None = None, history: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.history = history
        self.start = 0
        self.length = 0

    @property
    def is_sliding(self) -> bool:
        """Whether attention sees only a window of this layer."""
        return self.window is not None

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers, spare capacity included."""
        return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0

    @property
    def shortest(self) -> int:
        """The least length this layer can be cut back to."""
        return 0 if self.start == 0 or self.window is None else self.start + self.window - 1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take batch size, heads, dims, dtype and device from the first chunk."""
        self.device = key_states.device
        self.keys = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_empty((*value_states.shape[:2], 0, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append a chunk [batch, KV heads, tokens, head dim]; returns views of what its queries may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first = self._first_visible()
        self._make_room(key_states.shape[-2])
        begin, end = self.length - self.start, self.length - self.start + key_states.shape[-2]
        self.keys[:, :, begin:end] = key_states
        self.values[:, :, begin:end] = value_states
        self.length += key_states.shape[-2]
        visible = slice(first - self.start, end)
        return self.keys[:, :, visible], self.values[:, :, visible]

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on; raises ``CannotTruncateError``."""
        if not 0 <= length <= self.length or length < self.shortest:
            raise CannotTruncateError(length, self.shortest)
        self.length = length
        if length == 0:
            self.start = 0

    def get_seq_length(self) -> int:
        """Tokens seen so far, wherever the window is."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and first position of the keys that the next ``update`` returns."""
        first = self._first_visible()
        return self.length + query_length - first, first

    def get_max_length(self) -> int:
        """-1: there is no limit."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last ``-tokens_to_remove`` positions: the sign is Transformers' own."""
        self.truncate(self.length - abs(tokens_to_remove))

    def reset(self) -> None:
        """Forget everything and free the buffers."""
        del self.keys, self.values
        self.is_initialized = False
        self.start = self.length = 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence of the batch ``repeats`` times."""
        if self.is_initialized:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the sequences ``indices`` of the batch."""
        if self.is_initialized:
            self.keys, self.values = self.keys[indices], self.values[indices]

    def _first_visible(self) -> int:
        """The first position that the next query sees: itself and the ``window - 1`` before it."""
        return 0 if self.window is None else max(0, self.length - self.window + 1)

    def _make_room(self, tokens: int) -> None:
        keep_from = self._oldest_wanted()
        needed = self.length + tokens - self.start
        if needed <= self.keys.shape[-2] and keep_from - self.start <= _GROWTH:
            return
        stored = slice(keep_from - self.start, self.length - self.start)
        needed -= keep_from - self.start
        self.keys = _moved(self.keys, stored, needed)
        self.values = _moved(self.values, stored, needed)
        self.start = keep_from

    def _oldest_wanted(self) -> int:
        if self.history is None or self.window is None:
            return self.start
        return max(self.start, self._first_visible() - self.history)


def _moved(buffer: torch.Tensor, stored: slice, needed: int) -> torch.Tensor:
    """A buffer with room for ``needed`` positions and some more, ``stored`` moved to its front."""
    capacity = needed + max(_GROWTH, (stored.stop - stored.start) // 4)
    larger = buffer.new_empty((*buffer.shape[:2], capacity, buffer.shape[3]))
    larger[:, :, : stored.stop - stored.start] = buffer[:, :, stored]
    return larger


class KVCache(Cache):  # type: ignore[misc] # untyped base
    """One ``KVLayer`` a decoder layer; also a Transformers ``Cache``, so that ``generate`` takes it."""

    layers: list[KVLayer]

    def __init__(self, layers: list[KVLayer]) -> None:
        super().__init__(layers=layers)

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self.layers[0].length

    @property
    def shortest(self) -> int:
        """The least length that ``truncate`` takes."""
        return max(layer.shortest for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def truncate(self, length: int) -> None:
        """Cut every layer back to ``length`` tokens, or none at all: raises ``CannotTruncateError``."""
        if not self.shortest <= length <= self.length:
            raise CannotTruncateError(length, self.shortest)
        for layer in self.layers:
            layer.truncate(length)


def new_cache(config: MapleConfig, *, history: int | None = None) -> KVCache:
    """An empty cache for one sequence of ``config``'s model.

    ``history`` bounds how far behind its window a sliding layer can be cut back, in tokens, and with it what a
    long sequence costs; None keeps everything.
    """
    windows = (config.sliding_window if kind == SLIDING else None for kind in config.layer_types)
    return KVCache([KVLayer(window, history) for window in windows])
