"""The torch model's store: a cache a sequence, and ended ones kept so that later prompts can start from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import attrs
import torch

from maple.engine.errors import PromptTooLong
from maple.engine.kv.cache import CacheLimits, Wait
from maple.engine.kv.prefix_tree import BLOCK, SessionKey, common_length
from maple.torch_model.kv_layers import KVCache

SLACK = 1.3
"""Buffers grow by a quarter: what a sequence takes beyond its tokens, at most, short ones excepted."""


@attrs.define(eq=False, kw_only=True)
class TorchSequence:
    """The computed ``ids`` of one sequence with their keys and values; ``broken`` where a pass was cut short."""

    domain: str
    prompt: Sequence[int]
    cache: KVCache
    reserved: int = 0
    session: SessionKey | None = None
    ids: list[int] = attrs.Factory(list)
    broken: bool = False

    @property
    def length(self) -> int:
        """Tokens computed."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Memory, spare capacity included."""
        return self.cache.nbytes


class TorchCache:
    """Opens and keeps sequences within a budget; the engine's thread alone uses it.

    ``make`` makes an empty cache. What is found of a prompt is copied, so sequences share nothing; an ended
    one that the prompt continues is taken as it is.
    """

    def __init__(
        self, make: Callable[[], KVCache], *, token_bytes: int, budget: int, limits: CacheLimits
    ) -> None:
        self.evictions = 0
        self.budget = budget
        self._make = make
        self._token_bytes = max(1, int(token_bytes * SLACK))
        self._limits = limits
        self._open: set[TorchSequence] = set()
        self._kept: OrderedDict[TorchSequence, None] = OrderedDict()
        self._sessions: dict[SessionKey, TorchSequence] = {}

    @property
    def longest(self) -> int:
        """The longest sequence that fits into the budget, in tokens."""
        return self.budget // self._token_bytes

    @property
    def nbytes(self) -> int:
        """Memory of open and kept sequences."""
        return sum(one.nbytes for one in (*self._open, *self._kept))

    @property
    def blocks(self) -> int:
        """Memory in use, in blocks of 64 tokens."""
        return sum(-(-one.length // BLOCK) for one in (*self._open, *self._kept))

    def open(
        self, owner: str, prompt: Sequence[int], longest: int, *, reuse: bool = True
    ) -> TorchSequence | Wait:
        """A sequence of up to ``longest`` tokens that has all there is of the prompt but its last id.

        Without ``reuse`` it has nothing.
        """
        need = max(longest, len(prompt)) * self._token_bytes
        if need > self.budget:
            raise PromptTooLong(limit=self.longest, got=max(longest, len(prompt)))
        domain, prompt = self._limits.domain(owner), tuple(prompt)
        source, length = self._find(domain, prompt, len(prompt) - 1) if reuse else (None, 0)
        if reuse and self._is_computed_by_another(domain, prompt, length):
            return Wait.PREFIX
        if self._reserved + need > self.budget:
            return Wait.MEMORY
        self._make_room(self.budget - self._reserved - need, spare=source)
        sequence = self._begin(source, length, domain=domain, prompt=prompt, reserved=need)
        self._open.add(sequence)
        return sequence

    @property
    def sessions(self) -> int:
        """Sessions of which something is kept."""
        return len(self._sessions)

    def session_ids(self, session: SessionKey) -> Sequence[int]:
        """The session's ids, as far as they are kept."""
        kept = self._sessions.get(session)
        return kept.ids if kept is not None else ()

    def close(self, sequence: TorchSequence, *, keep: bool, session: SessionKey | None = None) -> None:
        """The sequence has ended; once is enough, twice is harmless."""
        if sequence not in self._open:
            return
        self._open.discard(sequence)
        if keep and not sequence.broken and sequence.length:
            self.keep(sequence, session)

    def keep(self, sequence: TorchSequence, session: SessionKey | None) -> None:
        """Keep a sequence for reuse, in place of shorter ones that it continues and that no other session has."""
        sequence.session = session
        if session is not None:
            self._sessions[session] = sequence
        covered = [
            one
            for one in self._kept
            if one.domain == sequence.domain
            and one.session in (None, session)
            and common_length(one.ids, sequence.ids, len(one.ids)) == len(one.ids)
        ]
        for one in covered:
            self._drop(one)
        self._kept[sequence] = None
        self._make_room(min(self._limits.prefix_bytes, self.budget - self._reserved))

    def find(self, owner: str, ids: Sequence[int]) -> tuple[TorchSequence | None, int]:
        """The sequence that shares most with ``ids``, and how many."""
        return self._find(self._limits.domain(owner), tuple(ids), len(ids))

    def forget_session(self, session: SessionKey) -> bool:
        """Drop what is kept of the session; whether there was any."""
        kept = [one for one in self._kept if one.session == session]
        for one in kept:
            self._drop(one)
        return bool(kept)

    def _drop(self, sequence: TorchSequence) -> None:
        del self._kept[sequence]
        if sequence.session is not None and self._sessions.get(sequence.session) is sequence:
            del self._sessions[sequence.session]

    @property
    def _reserved(self) -> int:
        return sum(one.reserved for one in self._open)

    def _begin(
        self,
        source: TorchSequence | None,
        length: int,
        *,
        domain: str,
        prompt: tuple[int, ...],
        reserved: int,
    ) -> TorchSequence:
        if source is None:
            cache = self._make()
        elif source in self._kept and source.length == length:
            self._drop(source)
            cache = source.cache
        else:
            cache = copied(source.cache, length, self._make)
        if source is not None and source in self._kept:
            self._kept.move_to_end(source)
        return TorchSequence(
            domain=domain, prompt=prompt, cache=cache, reserved=reserved, ids=list(prompt[:length])
        )

    def _find(self, domain: str, ids: Sequence[int], limit: int) -> tuple[TorchSequence | None, int]:
        best, length = None, 0
        for one in (*self._kept, *self._open):
            if one.domain == domain and not one.broken:
                common = common_length(tuple(one.ids), ids, limit)
                if common > length and one.cache.shortest <= common <= one.cache.length:
                    best, length = one, common
        return best, length

    def _is_computed_by_another(self, domain: str, prompt: Sequence[int], there: int) -> bool:
        for one in self._open:
            if one.domain == domain and one.length < len(one.prompt) and not one.broken:
                common = common_length(one.prompt, prompt, len(prompt) - 1)
                worth = 1 if one.prompt == prompt else BLOCK
                if one.length < common and common - there >= worth:
                    return True
        return False

    def _make_room(self, limit: int, spare: TorchSequence | None = None) -> None:
        """Drop kept sequences, the longest unused first, until the rest take at most ``limit`` bytes."""
        kept = sum(one.nbytes for one in self._kept)
        for one in _but(self._kept, spare):
            if kept <= limit:
                return
            self._drop(one)
            kept -= one.nbytes
            self.evictions += 1


def _but(sequences: Iterable[TorchSequence], spare: TorchSequence | None) -> list[TorchSequence]:
    return [one for one in sequences if one is not spare]


def copied(cache: KVCache, length: int, make: Callable[[], KVCache]) -> KVCache:
    """The first ``length`` tokens of a cache that can be cut to them, in memory of their own."""
    new = make()
    for old, layer in zip(cache.layers, new.layers, strict=True):
        begin = old.start
        fill_layer(layer, old.keys[:, :, : length - begin], old.values[:, :, : length - begin], begin)
    return new


def fill_layer(layer: object, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
    """Give an empty layer copies of these keys and values, from position ``start`` on."""
    layer.lazy_initialization(keys, values)  # type: ignore[attr-defined]
    layer.keys, layer.values = keys.clone(), values.clone()  # type: ignore[attr-defined]
    layer.start, layer.length = start, start + keys.shape[-2]  # type: ignore[attr-defined]
