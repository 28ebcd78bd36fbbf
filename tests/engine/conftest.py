"""Toy language models, dressed as engines."""

from __future__ import annotations

import pathlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from maple_testing.engine import greedy_job

from maple.engine.api import Job, Served
from maple.engine.detokenize import TokenBytes
from maple.engine.kv.cache import CacheHandle, KvSnapshot, Wait
from maple.engine.kv.prefix_tree import SessionKey
from maple.engine.runner import LoadedEngine, SequenceSlice

EOS = 2
VOCABULARY = 512


@attrs.define(eq=False)
class ToyStore:
    """The ids themselves stand for their keys and values."""

    ids: list[int] = attrs.Factory(list)

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.ids)


class ToyRunner:
    """A language model of one line: logits are drawn from a generator seeded with all ids so far.

    It holds the scheduler to the runner's contract, and records the sizes of every step's slices. ``prefix``
    are prompt ids that a new sequence finds computed already.
    """

    def __init__(self, prefix: Sequence[int] = ()) -> None:
        self.opened: list[CacheHandle[ToyStore]] = []
        self.steps: list[list[tuple[int, int]]] = []
        self._prefix = list(prefix)

    @property
    def kv_bytes(self) -> int:
        return sum(handle.store.nbytes for handle in self.opened)

    @property
    def kv_blocks(self) -> int:
        return len(self.opened)

    @property
    def evictions(self) -> int:
        return 0

    @property
    def kv_format(self) -> str:
        return "toy"

    def open(
        self, owner: str, prompt_ids: Sequence[int], longest: int = 0, *, reuse: bool = True
    ) -> CacheHandle[ToyStore] | Wait:
        found = self._prefix if reuse else []
        handle = CacheHandle(ToyStore(list(found)), reused=len(found))
        self.opened.append(handle)
        return handle

    def step(self, slices: Sequence[SequenceSlice]) -> list[npt.NDArray[np.float32] | None]:
        self.steps.append([(one.start, len(one.ids)) for one in slices])
        return [self._run(one) for one in slices]

    @property
    def sessions(self) -> int:
        return 0

    def reserve(self, cache: CacheHandle[Any], length: int) -> bool:
        return True

    def close(self, cache: CacheHandle[Any], *, keep: bool = True, session: SessionKey | None = None) -> None:
        self.opened.remove(cache)

    def resident(self, owner: str, ids: Sequence[int]) -> int:
        return 0

    def session_ids(self, session: SessionKey) -> Sequence[int]:
        return ()

    def forget_session(self, session: SessionKey, running: Sequence[CacheHandle[Any]] = ()) -> bool:
        return False

    def snapshot(self, owner: str, ids: Sequence[int]) -> KvSnapshot | None:
        return None

    def restore(self, owner: str, snapshot: KvSnapshot, session: SessionKey | None = None) -> int | Wait:
        return Wait.MEMORY

    def _run(self, one: SequenceSlice) -> npt.NDArray[np.float32] | None:
        assert one.ids
        assert one.start == one.cache.store.length
        one.cache.store.ids.extend(one.ids)
        if one.every_row:
            ends = range(one.start + 1, one.cache.store.length + 1)
            return np.stack([self.logits(one.cache.store.ids[:end]) for end in ends])
        return self.logits(one.cache.store.ids) if one.want_logits else None

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        seed = zlib.crc32(np.array(ids).tobytes())
        return (np.random.default_rng(seed).standard_normal(VOCABULARY) * 3).astype(np.float32)


class EndlessRunner(ToyRunner):
    """Never ends a sequence by itself, however late a job is cancelled."""

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        row = super().logits(ids)
        row[EOS] = -np.inf
        return row


class DictatedRunner(ToyRunner):
    """Makes every sequence continue with the given ids, in turn."""

    def __init__(self, *ids: int) -> None:
        super().__init__()
        self._dictated = ids
        self.prompt_tokens = 1

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        row = np.zeros(VOCABULARY, np.float32)
        row[self._dictated[len(ids) - self.prompt_tokens]] = 1
        return row


@pytest.fixture(scope="session")
def load_toy(
    golden_folder: pathlib.Path, golden_tokenizer: tokenizers.Tokenizer
) -> Callable[..., LoadedEngine]:
    """Dress a toy runner as a loaded engine."""
    token_bytes = TokenBytes(golden_tokenizer)
    served = Served(
        folder=golden_folder / "mlx-2bit",
        vocabulary=VOCABULARY,
        max_model_len=4096,
        eos_token_ids=(EOS,),
        generation_defaults={},
        device="cpu",
        dtype="toy",
        attention="toy",
        load_seconds=0.0,
    )

    def load(runner: ToyRunner) -> LoadedEngine:
        return LoadedEngine(
            runner=runner, served=served, token_bytes=token_bytes, token_ids=np.arange(VOCABULARY)
        )

    return load


@pytest.fixture(scope="session")
def toy_runner() -> type[ToyRunner]:
    return ToyRunner


@pytest.fixture(scope="session")
def endless_runner() -> type[EndlessRunner]:
    return EndlessRunner


@pytest.fixture(scope="session")
def dictated_runner() -> type[DictatedRunner]:
    return DictatedRunner


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    """A job with short defaults: greedy, up to eight ids."""
    return greedy_job
