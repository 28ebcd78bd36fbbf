"""A loaded model with room for one long sequence and a batch of short ones, and its stopwatch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from maple.native.library import default_library
from maple.native.model import KV_BLOCK_TOKENS, ActivationMode, NativeModel, StepSlice
from maple.native.weights import NativeWeights

Ids = npt.NDArray[np.int32]


@attrs.frozen(kw_only=True)
class Workload:
    """What is measured, in tokens: contexts to decode behind, prompts to prefill, sequences of a batch."""

    contexts: tuple[int, ...] = (128, 4096)
    prompts: tuple[int, ...] = (128, 512, 4096)
    batch: int = 8
    batch_context: int = 128
    decoded: int = 24
    chunk: int = 512
    rounds: int = 3

    @classmethod
    def quick(cls) -> Workload:
        """Numbers small enough for the embedded model and for a test."""
        return cls(contexts=(32, 256), prompts=(32, 256), batch_context=32, decoded=8, rounds=1)

    def short(self) -> Workload:
        """Without what takes minutes: contexts and prompts up to 1,024 tokens."""
        contexts, prompts = (tuple(n for n in sizes if n <= 1024) for sizes in (self.contexts, self.prompts))
        return attrs.evolve(self, contexts=contexts, prompts=prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(*self.contexts, *self.prompts) + 2 * self.decoded


class Rig:
    """Runs steps of the kernels and times them; the ids are random, from a seed."""

    def __init__(
        self,
        loaded: NativeWeights,
        work: Workload,
        *,
        threads: int,
        activations: ActivationMode,
        path: str | None = None,
    ) -> None:
        long = -(-work.longest // KV_BLOCK_TOKENS)
        short = -(-(work.batch_context + 2 * work.decoded) // KV_BLOCK_TOKENS)
        self.loaded = loaded
        self.model = NativeModel(
            loaded.shape,
            loaded.weights,
            threads=threads,
            activations=activations,
            path=path,
            kv_blocks=long + work.batch * short,
            max_tokens=max(work.chunk, work.batch, work.batch_context),
        )
        self._work = work
        self._long = np.arange(long, dtype=np.int32)
        self._short = [
            np.arange(long + short * i, long + short * (i + 1), dtype=np.int32) for i in range(work.batch)
        ]
        self._rng = np.random.default_rng(0)

    def fill_batch(self) -> None:
        """Prefill the batch's sequences, with different prompts."""
        for blocks in self._short:
            self._run(self._ids(self._work.batch_context), blocks)

    def prefill(self, tokens: int) -> float:
        """Tokens a second for a prompt, its last logits included."""
        ids = self._ids(tokens)
        begun = time.perf_counter()
        self._run(ids, self._long)
        return tokens / (time.perf_counter() - begun)

    def decode(self, context: int) -> float:
        """Tokens a second of greedy decoding behind a context that was prefilled before."""
        token = 5
        begun = time.perf_counter()
        for i in range(self._work.decoded):
            token = int(self.model.step([_slice([token], context + i, self._long)])[0].argmax())
        return self._work.decoded / (time.perf_counter() - begun)

    def batch(self) -> float:
        """Tokens a second of all the batch's sequences together."""
        tokens = self._ids(self._work.batch)
        begun = time.perf_counter()
        for i in range(self._work.decoded):
            slices = [
                _slice([int(token)], self._work.batch_context + i, blocks)
                for token, blocks in zip(tokens, self._short, strict=True)
            ]
            tokens = self.model.step(slices).argmax(1).astype(np.int32)
        return self._work.decoded * self._work.batch / (time.perf_counter() - begun)

    def head(self) -> float:
        """Tokens a second of the head alone: what one layer with it takes, less what the layer takes."""
        shape = attrs.evolve(self.loaded.shape, full_layers=self.loaded.shape.full_layers[:1])
        weights = attrs.evolve(self.loaded.weights, layers=self.loaded.weights.layers[:1])
        model = NativeModel(
            shape,
            weights,
            threads=self.model.threads,
            activations=self.model.activations,
            path=self.model.path,
            kv_blocks=1,
            max_tokens=1,
        )
        first = self._long[:1]
        seconds: tuple[list[float], list[float]] = ([], [])
        for i in range(2 * self._work.decoded):
            begun = time.perf_counter()
            model.step([_slice([5], 0, first, logits=i % 2)])
            seconds[i % 2].append(time.perf_counter() - begun)
        model.close()
        without, with_head = (statistics.median(times) for times in seconds)
        return 1 / max(with_head - without, 1e-9)

    def head_bytes(self) -> float:
        """Bytes that the head reads for a token."""
        return float(self.loaded.layout.parts["head"].nbytes)

    def read_rate(self) -> float:
        """Bytes a second that the threads read from memory: experts of the first layers in turn."""
        read, best = default_library().maple_read_all, 0.0
        for layer in self.loaded.weights.layers[:4]:
            data = layer.gate_up.data
            begun = time.perf_counter()
            read(data.ctypes.data, data.size, self.model.threads)
            best = max(best, data.size / (time.perf_counter() - begun))
        return best

    def token_bytes(self, context: int) -> float:
        """Bytes that one decoded token reads: dense parts, its experts, the head, keys and values."""
        shape, parts = self.loaded.shape, self.loaded.layout.parts
        total = self.head_bytes()
        for i in range(shape.layers):
            dense = sum(parts[f"layers.{i}.{name}"].nbytes for name in ("router", "qkv", "output"))
            total += dense + self._expert_bytes(i) * shape.experts_per_token
        per_token = [
            self.model.kv_block_bytes(sliding=sliding) / KV_BLOCK_TOKENS for sliding in (False, True)
        ]
        return total + per_token[0] * context + per_token[1] * min(context, shape.window)

    def batch_bytes(self) -> float:
        """Bytes of a step of the batch, with as many experts as independent choices touch."""
        shape, work = self.loaded.shape, self._work
        untouched = (1 - shape.experts_per_token / shape.experts) ** work.batch
        more = shape.experts * (1 - untouched) - shape.experts_per_token
        one, without = self.token_bytes(work.batch_context), self.token_bytes(0)
        experts = sum(self._expert_bytes(i) for i in range(shape.layers))
        return without + (one - without) * work.batch + experts * more

    def _expert_bytes(self, layer: int) -> float:
        parts = self.loaded.layout.parts
        both = parts[f"layers.{layer}.gate_up"].nbytes + parts[f"layers.{layer}.down"].nbytes
        return both / self.loaded.shape.experts

    def _ids(self, count: int) -> Ids:
        return self._rng.integers(0, self.loaded.shape.vocabulary, count, np.int32)

    def _run(self, ids: Ids, blocks: Ids) -> None:
        for start in range(0, len(ids), self._work.chunk):
            part = ids[start : start + self._work.chunk]
            last = start + len(part) == len(ids)
            self.model.step([_slice(part, start, blocks, logits=int(last))])


def _slice(ids: Sequence[int] | Ids, start: int, blocks: Ids, logits: int = 1) -> StepSlice:
    return StepSlice(tokens=ids, start=start, blocks=blocks, sliding_blocks=blocks, logits=logits)
