"""What runs the model: a step over slices of several sequences, and how such a runner comes to be loaded.

Importing this module does not import torch; that happens in the engine's thread, inside the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from maple.engine.api import Served
from maple.engine.detokenize import TokenBytes
from maple.engine.kv.cache import CacheHandle, KvSnapshot, Wait
from maple.engine.kv.outside import BlockSource
from maple.engine.kv.prefix_tree import SessionKey
from maple.engine.sampling import SampleRows, choose_ids

SCORED_ROWS = 64
"""The most rows of a prompt that a step gives logits of: a whole vocabulary's each."""


@attrs.frozen(kw_only=True, eq=False)
class SequenceSlice:
    """The next ``ids`` of one sequence, at positions ``start`` and up; the cache holds all before ``start``.

    ``want_logits``: whether the logits after the last of them are needed, or with ``every_row`` those after each of
    them, of which there are few (``SCORED_ROWS``). ``cancelled`` may be asked at any time, from the runner's thread;
    once it says yes, nobody wants the result.
    """

    cache: CacheHandle[Any]
    ids: Sequence[int]
    start: int
    want_logits: bool
    every_row: bool = False
    cancelled: Callable[[], bool]


class Runner(Protocol):
    """A model that runs sequences step by step. All of it is called on the engine's thread."""

    @property
    def kv_bytes(self) -> int:
        """Memory that keys and values take."""
        ...

    @property
    def kv_blocks(self) -> int:
        """The same, in blocks."""
        ...

    @property
    def evictions(self) -> int:
        """Kept prefixes that were dropped for room, so far."""
        ...

    @property
    def kv_format(self) -> str:
        """What a snapshot's bytes mean; another format's are of no use here."""
        ...

    @property
    def sessions(self) -> int:
        """Sessions of which something is kept."""
        ...

    def open(
        self, owner: str, prompt_ids: Sequence[int], longest: int = 0, *, reuse: bool = True
    ) -> CacheHandle[Any] | Wait:
        """A place for a new sequence of up to ``longest`` tokens, with what is there of its prompt.

        At least the last id is left to be computed, and without ``reuse`` all are. Raises PromptTooLong where it could
        never fit.
        """
        ...

    def step(self, slices: Sequence[SequenceSlice]) -> Sequence[npt.NDArray[np.float32] | None]:
        """Run the slices, one a sequence; a row of logits [V], or all rows [ids, V], for each that wants it, else None.

        A sequence's row depends on nothing but its own ids and how they were sliced. A slice that was
        cancelled may be left unfinished; its row is None, and its sequence can only be closed. Whatever is
        raised concerns all of these sequences: their caches are of no more use.
        """
        ...

    def reserve(self, cache: CacheHandle[Any], length: int) -> bool:
        """Whether there is memory for so many tokens of the sequence; they have it from then on."""
        ...

    def close(self, cache: CacheHandle[Any], *, keep: bool = True, session: SessionKey | None = None) -> None:
        """The sequence has ended; what it computed may be kept for reuse, unless it is not to be trusted.

        ``session`` goes on from there.
        """
        ...

    def resident(self, owner: str, ids: Sequence[int]) -> int:
        """How many of the first ids a prompt that continues them would find computed."""
        ...

    def session_ids(self, session: SessionKey) -> Sequence[int]:
        """The session's ids, as far as they are kept."""
        ...

    def forget_session(self, session: SessionKey, running: Sequence[CacheHandle[Any]] = ()) -> bool:
        """Drop what is kept of the session and of no other; whether there was any.

        ``running`` are its own sequences, which go on.
        """
        ...

    def snapshot(self, owner: str, ids: Sequence[int]) -> KvSnapshot | None:
        """A copy of what is there of the ids; None where nothing is."""
        ...

    def restore(self, owner: str, snapshot: KvSnapshot, session: SessionKey | None = None) -> int | Wait:
        """Keep a snapshot of this ``kv_format`` for reuse, as the session's: how many ids are resident now.

        MEMORY where running sequences leave no room. Raises SnapshotUnfit, and nothing is kept then.
        """
        ...


@attrs.frozen(kw_only=True)
class PrefillLimits:
    """How much of prompts a step may run.

    A prompt is run in slices that end at multiples of ``chunk`` tokens, several chunks at a time if they fit into
    the step's ``budget`` of tokens for all prompts; at least one is run. A runner whose rows depend on how its
    slices are cut has a budget of one chunk.
    """

    chunk: int = 256
    budget: int = 256


@attrs.frozen(kw_only=True, eq=False)
class LoadedEngine:
    """Everything the engine's thread needs once a model is loaded."""

    runner: Runner
    served: Served
    token_bytes: TokenBytes
    token_ids: npt.NDArray[np.int64]
    """The ids that may be sampled, ascending: those that have a token and a logit."""
    prefill: PrefillLimits = PrefillLimits()
    """What suits the runner."""
    choose: SampleRows = choose_ids
    """Chooses the next ids of a step's rows."""
    slots: int = 1
    """How many sequences should run together, where nobody says otherwise."""
    rotted: Callable[[], bool] = lambda: False
    """Whether the weights' file has changed under the model, and was put away: loading makes it anew. Reads it all."""
    blocks: BlockSource | None = None
    """The runner's blocks, where it has some that can be kept outside of memory."""


class Loader(Protocol):
    """Loads in the calling thread, which is the engine's."""

    def __call__(self, cancelled: Callable[[], bool]) -> LoadedEngine:
        """Raise ModelFailed with one line fit for /health; anything at all once ``cancelled`` says yes."""
        ...
