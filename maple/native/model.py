"""A whole model in native code: one call runs one step for a mix of prefill chunks and decoding sequences."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from maple.native import library as _library
from maple.native.library import ABI_VERSION, PATHS, KernelError
from maple.native.packing import BLOCK_ROWS, GROUP, Kind, PackedMatrix, block_count

ActivationMode: TypeAlias = Literal["fp32", "int8", "int8x2"]
KvDtype: TypeAlias = Literal["f32", "f16", "bf16", "int8"]
Floats: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = Sequence[int] | npt.NDArray[np.int32]

KV_BLOCK_TOKENS = 64
_ACTIVATIONS = {"fp32": 0, "int8": 1, "int8x2": 2}
_KV_KINDS = {"f32": 0, "f16": 1, "bf16": 2, "int8": 3}
SWIGLU_LIMIT = 7.0  # part of the trained forward pass; no published config names it


@attrs.frozen(kw_only=True)
class ModelShape:
    """The geometry of a Maple. Units: columns, heads, tokens; ``full_layers[i]`` says whether layer i sees
    everything.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    window: int
    experts: int
    experts_per_token: int
    expert_width: int
    vocabulary: int
    full_layers: tuple[bool, ...]
    normalize_experts: bool = True
    qk_norm: bool = True
    eps: float = 1e-6
    rope_theta: float = 10000.0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.full_layers)


@attrs.frozen(kw_only=True, eq=False)
class LayerWeights:
    """One layer: norms as float32 [hidden] or [head_dim], q, k and v in one matrix, gate and up in
    alternating blocks.

    ``gate_up`` counts its rows in whole blocks (2 x the width rounded up to 16); ``router`` is bf16 or f32.
    """

    attention_norm: Floats
    mlp_norm: Floats
    q_norm: Floats | None
    k_norm: Floats | None
    qkv: PackedMatrix
    output: PackedMatrix
    router: PackedMatrix
    gate_up: PackedMatrix
    down: PackedMatrix


@attrs.frozen(kw_only=True, eq=False)
class EmbeddingWeights:
    """Row-major embeddings as stored: affine 4-bit words with bf16 scales and biases, bf16, or float32."""

    kind: Kind
    data: npt.NDArray[np.generic]
    scales: npt.NDArray[np.generic] | None = None
    biases: npt.NDArray[np.generic] | None = None


@attrs.frozen(kw_only=True, eq=False)
class ModelWeights:
    """All that a step reads."""

    embedding: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    final_norm: Floats
    head: PackedMatrix


@attrs.frozen(kw_only=True)
class StepSlice:
    """One sequence's part of a step.

    ``tokens`` stand at positions ``start``, ``start`` + 1, …; entry b of a block table holds positions 64 b … 64 b
    + 63 in the pool of the full layers (``blocks``) and of the sliding ones (``sliding_blocks``, whose entries
    before the window may be -1). ``logits`` asks for those of the last n tokens.
    """

    tokens: Ids
    start: int
    blocks: Ids
    sliding_blocks: Ids
    logits: int = 1


def _float32(values: Floats, size: int, what: str) -> Floats:
    array = np.ascontiguousarray(values, np.float32)
    if array.shape != (size,):
        raise KernelError(f"{what}: shape {array.shape} where ({size},) was expected")
    return array


def _int32(values: Ids) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, np.int32)


class NativeModel:
    """A model bound to its weights, its KV pools and its threads.

    One step at a time; the interpreter's lock is released meanwhile. The weights' buffers are kept alive. A
    sequence's logits are bit-identical whatever its neighbours, its chunking and the number of threads. A
    token whose input is not finite gets NaN logits, and so do later tokens that attend to it; no other
    sequence is touched.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: ModelWeights,
        *,
        threads: int,
        activations: ActivationMode = "int8x2",
        kv_dtype: KvDtype | None = None,
        kv_blocks: int,
        sliding_kv_blocks: int | None = None,
        max_tokens: int = 512,
        path: str | None = None,
    ) -> None:
        """Bind; ``kv_dtype`` None is f32 with fp32 activations and f16 otherwise, ``path`` None the processor's
        best.

        ``max_tokens`` bounds the tokens of one step, all slices together. Raises KernelError when a buffer does
        not fit the shape or ``path`` cannot run here.
        """
        self.shape = shape
        self.activations: ActivationMode = activations
        self.kv_dtype: KvDtype = kv_dtype or ("f32" if activations == "fp32" else "f16")
        self.threads, self.max_tokens = threads, max_tokens
        self.kv_blocks = kv_blocks
        self.sliding_kv_blocks = kv_blocks if sliding_kv_blocks is None else sliding_kv_blocks
        self._library = _library.default_library()
        self._weights = weights
        self._busy = threading.Lock()
        self._padded_vocabulary = block_count(shape.vocabulary) * BLOCK_ROWS
        if path is not None and path not in PATHS:
            raise KernelError(f"unknown path {path!r}: one of {', '.join(PATHS)}")
        self._context = self._create(weights, -1 if path is None else PATHS.index(path))
        self.path: str = path or _library.paths_of(self._library)[0]

    def _create(self, weights: ModelWeights, path: int) -> int:
        shape, keep = self.shape, []
        if len(weights.layers) != shape.layers:
            raise KernelError(f"{len(weights.layers)} layers of weights for {shape.layers}")

        def norm(values: Floats | None, size: int, what: str) -> int | None:
            if values is None:
                return None
            keep.append(_float32(values, size, what))
            return int(keep[-1].ctypes.data)

        layers = (_library.Layer * shape.layers)()
        for i, layer in enumerate(weights.layers):
            layers[i] = _library.Layer(
                norm(layer.attention_norm, shape.hidden, f"layer {i} attention norm"),
                norm(layer.mlp_norm, shape.hidden, f"layer {i} mlp norm"),
                norm(layer.q_norm if shape.qk_norm else None, shape.head_dim, f"layer {i} q norm"),
                norm(layer.k_norm if shape.qk_norm else None, shape.head_dim, f"layer {i} k norm"),
                *(m.as_struct() for m in (layer.qkv, layer.output, layer.router, layer.gate_up, layer.down)),
                int(shape.full_layers[i]),
            )
        config, embedding, head = (
            self.config_struct(),
            self._embedding(weights.embedding),
            weights.head.as_struct(),
        )
        error = ctypes.create_string_buffer(_library.ERROR_BYTES)
        context = self._library.maple_create(
            ctypes.byref(config), layers, ctypes.byref(embedding),
            norm(weights.final_norm, shape.hidden, "final norm"), ctypes.byref(head), path, error,
        )  # fmt: skip
        if not context:
            raise KernelError(error.value.decode(errors="replace"))
        return int(context)

    def config_struct(self) -> _library.Config:
        """What the library is told of the shape."""
        s = self.shape
        return _library.Config(
            ABI_VERSION, s.layers, s.hidden, s.heads, s.kv_heads, s.head_dim, s.rotary_dim, s.window,
            s.experts, s.experts_per_token, s.expert_width, s.vocabulary, int(s.normalize_experts), s.eps,
            s.rope_theta, SWIGLU_LIMIT, _ACTIVATIONS[self.activations], _KV_KINDS[self.kv_dtype],
            self.threads, self.max_tokens, self.kv_blocks, self.sliding_kv_blocks,
        )  # fmt: skip

    def _embedding(self, embedding: EmbeddingWeights) -> _library.Embedding:
        parts = [embedding.data, embedding.scales, embedding.biases]
        if not all(part is None or part.flags.c_contiguous for part in parts):
            raise KernelError("embedding buffers must be contiguous")
        data, scales, biases = (None if part is None else part.ctypes.data for part in parts)
        groups = self.shape.vocabulary * self.shape.hidden // GROUP * 2
        if any(part is not None and part.nbytes != groups for part in parts[1:]):
            raise KernelError("embedding scales and biases must be bf16 [vocabulary, hidden / 64]")
        return _library.Embedding(
            data,
            scales,
            biases,
            embedding.data.nbytes,
            groups,
            int(embedding.kind),
            self.shape.vocabulary,
            self.shape.hidden,
        )

    def step(self, slices: Sequence[StepSlice]) -> Floats:
        """Run one step and return the wanted logits, float32 [rows, vocabulary], slice after slice.

        Raises KernelError before anything is changed when a slice does not fit (tokens, positions, blocks),
        or when another thread is in a step.
        """
        rows = sum(part.logits for part in slices)
        logits = np.empty((rows, self._padded_vocabulary), np.float32)
        given, keep = (_library.Slice * len(slices))(), []
        for i, part in enumerate(slices):
            tokens, blocks, sliding = _int32(part.tokens), _int32(part.blocks), _int32(part.sliding_blocks)
            if blocks.size != sliding.size:
                raise KernelError(f"slice {i}: {blocks.size} blocks, {sliding.size} sliding blocks")
            keep += [tokens, blocks, sliding]
            addresses = (each.ctypes.data for each in keep[-3:])
            given[i] = _library.Slice(*addresses, tokens.size, part.start, blocks.size, part.logits)
        if not self._busy.acquire(blocking=False):
            raise KernelError("a step is running: a model takes one at a time")
        try:
            _library.call(self._library.maple_step, self._handle(), given, len(slices), logits.ctypes.data)
        finally:
            self._busy.release()
        return logits[:, : self.shape.vocabulary]

    def phase_chunks(self, position: int) -> dict[str, int]:
        """How many chunks each phase of a step of one token at ``position`` is cut into for the threads."""
        names = ("qkv", "sliding attention", "full attention", "output", "router", "gate_up", "down", "head")
        config, counts = self.config_struct(), (ctypes.c_int32 * len(names))()
        self._library.maple_phase_chunks(ctypes.byref(config), position, int(self._weights.head.kind), counts)
        return dict(zip(names, counts, strict=True))

    def sample(self, rows: ctypes.Array[_library.Sampling], count: int, limit: int) -> None:
        """Set what is ``chosen`` of each row, from the first ``limit`` ids."""
        with self._busy:
            _library.call(self._library.maple_sample, self._handle(), rows, count, limit)

    def kv_block(self, block: int, *, sliding: bool) -> npt.NDArray[np.uint8]:
        """The bytes of a KV block, writable and shared with the model; not to be used after ``close``."""
        handle = self._handle()
        size = int(self._library.maple_kv_block_bytes(handle, int(sliding)))
        address = self._library.maple_kv_block(handle, int(sliding), block)
        if not address:
            raise KernelError(f"no KV block {block}")
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def kv_block_bytes(self, *, sliding: bool) -> int:
        """Bytes of one block of 64 tokens in the pool of the sliding or of the full layers."""
        return int(self._library.maple_kv_block_bytes(self._handle(), int(sliding)))

    def _handle(self) -> int:
        if not self._context:
            raise KernelError("the model is closed")
        return self._context

    def close(self) -> None:
        """Free the KV pools and stop the threads; safe to call twice."""
        with self._busy:
            context, self._context = self._context, 0
            if context:
                self._library.maple_destroy(context)

    def __enter__(self) -> NativeModel:
        """Enter a block that closes the model at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
