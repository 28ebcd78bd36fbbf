"""Fixtures for the native kernels: the built library, random matrices with their exact values, the golden
model.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from maple.bench.random_checkpoint import FULL_SIZE, write_random
from maple.native import build
from maple.native import library as _library
from maple.native.model import ModelShape, ModelWeights, NativeModel, StepSlice
from maple.native.packing import Kind, PackedMatrix, Place, pack_affine4, pack_codes2, pack_dense
from maple.native.weights import NativeSource, load_weights

GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "golden"
EVALUATIONS = {
    "mlx-2bit": "mlx2bit.{}.exact",
    "bf16-stacked": "bf16.{}.fp64",
    "bf16-per-expert": "bf16.{}.fp64",
}

Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """The library, built when it is missing or older than its sources; without a compiler these tests have no
    subject.
    """
    library = pathlib.Path(_library.__file__).parent / build.LIBRARY_NAME
    newest = max(path.stat().st_mtime for path in build.sources())
    if library.exists() and library.stat().st_mtime >= newest:
        return
    try:
        build.build(library)
    except build.CompilerMissing as missing:
        if not library.exists():
            pytest.skip(str(missing))


def bf16_bits(values: Singles | Doubles) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to nearest even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: npt.NDArray[np.uint16]) -> Singles:
    """bf16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@attrs.frozen(kw_only=True, eq=False)
class Sample:
    """A packed matrix and the values it stands for, float64 [rows, cols]."""

    packed: PackedMatrix
    exact: Doubles


def ternary_sample(rows: int, cols: int, seed: int) -> Sample:
    """Random codes and row scales; the first row is all zeros and the second has a scale of zero."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, (rows, cols), np.uint32)
    codes[0] = 1
    alpha = bf16_bits(rng.uniform(0.01, 3.0, rows).astype(np.float32))
    if rows > 1:
        alpha[1] = 0
    words = (codes.reshape(rows, cols // 16, 16) << (2 * np.arange(16, dtype=np.uint32))).sum(
        -1, dtype=np.uint32
    )
    packed = PackedMatrix.empty(Kind.TERNARY, rows, cols)
    pack_codes2(words, alpha, (1, rows, cols), Place(into=packed))
    exact = (codes.astype(np.float64) - 1) * bf16_values(alpha).astype(np.float64)[:, None]
    return Sample(packed=packed, exact=exact)


def affine4_sample(rows: int, cols: int, seed: int) -> Sample:
    """Random codes, scales and biases."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (rows, cols), np.uint32)
    scales = bf16_bits(rng.uniform(0.001, 0.2, (rows, cols // 64)).astype(np.float32))
    biases = bf16_bits(rng.uniform(-2, 1, (rows, cols // 64)).astype(np.float32))
    return affine4_of(codes, scales, biases)


def affine4_of(
    codes: npt.NDArray[np.uint32], scales: npt.NDArray[np.uint16], biases: npt.NDArray[np.uint16]
) -> Sample:
    """Weights scale * code + bias, which nothing rounds; the scales and biases as bf16 bits."""
    rows, cols = codes.shape
    words = (codes.reshape(rows, cols // 8, 8) << (4 * np.arange(8, dtype=np.uint32))).sum(
        -1, dtype=np.uint32
    )
    packed = pack_affine4(words, scales, biases, (rows, cols))
    scale, bias = (bf16_values(bits).astype(np.float64).repeat(64, 1) for bits in (scales, biases))
    exact = scale * codes + bias
    return Sample(packed=packed, exact=exact)


@pytest.fixture
def every_scale() -> Sample:
    """A row for each of the 128 fractions of a bf16 scale: positive without a bias, and negative with one."""
    rng = np.random.default_rng(9)
    codes = rng.integers(0, 16, (128, 128), np.uint32)
    scales = np.empty((128, 2), np.uint16)
    scales[:, 0] = 0x3E00 + np.arange(128)  # from 0.125
    scales[:, 1] = 0xBD80 + np.arange(128)  # to -0.25, over two powers of two
    biases = np.zeros((128, 2), np.uint16)
    biases[:, 1] = bf16_bits(rng.uniform(-1, 1, 128).astype(np.float32))
    return affine4_of(codes, scales, biases)


def dense_sample(kind: Kind, rows: int, cols: int, seed: int) -> Sample:
    """Random bf16 weights as they are, as int8 with a scale a row, or random f32."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, cols)).astype(np.float32)
    if kind is Kind.F32:
        return Sample(packed=pack_dense(values, (rows, cols), kind), exact=values.astype(np.float64))
    bits = bf16_bits(values)
    exact = bf16_values(bits).astype(np.float64)
    if kind is Kind.INT8:
        largest = np.abs(bf16_values(bits)).max(1, keepdims=True)
        codes = np.rint(bf16_values(bits) * (np.float32(127) / largest))
        exact = codes.astype(np.float64) * (largest / np.float32(127))
    return Sample(packed=pack_dense(bits, (rows, cols), kind), exact=exact)


@pytest.fixture
def sample_of() -> Callable[[Kind, int, int], Sample]:
    """Make a random matrix of a kind and shape."""

    def make(kind: Kind, rows: int, cols: int) -> Sample:
        seed = rows * 7919 + cols
        if kind is Kind.TERNARY:
            return ternary_sample(rows, cols, seed)
        return (
            affine4_sample(rows, cols, seed) if kind is Kind.AFFINE4 else dense_sample(kind, rows, cols, seed)
        )

    return make


@pytest.fixture
def linear() -> Callable[..., Singles]:
    """``linear(matrix, x, activations, path)``: the product that the kernels make of it, float32 [tokens,
    rows].
    """
    import ctypes

    def product(matrix: PackedMatrix, x: Singles, activations: str, path: str) -> Singles:
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty((x.shape[0], matrix.rows), np.float32)
        mode = ("fp32", "int8", "int8x2").index(activations)
        given = matrix.as_struct()
        function = _library.default_library().maple_linear
        _library.call(
            function,
            ctypes.byref(given),
            x.ctypes.data,
            x.shape[0],
            out.ctypes.data,
            mode,
            _library.PATHS.index(path),
        )
        return out

    return product


@pytest.fixture(scope="session")
def paths() -> tuple[str, ...]:
    """Every path that this processor can run."""
    return _library.paths_of(_library.default_library())


@attrs.frozen(kw_only=True, eq=False)
class Golden:
    """The golden model in one spelling, and what it must answer."""

    shape: ModelShape
    weights: ModelWeights
    prompts: list[list[int]]
    logits: list[Singles]
    greedy_prompt: int
    continuation: list[int]

    def model(self, **options: object) -> NativeModel:
        """A model with 64 KV blocks in each pool."""
        settings = {"threads": 2, "kv_blocks": 64, "max_tokens": 256, **options}
        return NativeModel(self.shape, self.weights, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def golden_of() -> Callable[[str], Golden]:
    """The golden model by the name of its folder, read once."""
    tensors = load_file(GOLDEN / "golden.safetensors") | load_file(GOLDEN.parent / "exact_head.safetensors")
    prompts = json.loads((GOLDEN / "prompts.json").read_text())
    known: dict[str, Golden] = {}

    def get(spelling: str) -> Golden:
        if spelling not in known:
            loaded = load_weights(
                NativeSource(source=str(GOLDEN / spelling)), progress=lambda _: None, cancelled=lambda: False
            )
            known[spelling] = Golden(
                shape=loaded.shape,
                weights=loaded.weights,
                prompts=prompts["prompts"],
                logits=[tensors[EVALUATIONS[spelling].format(i)] for i in range(len(prompts["prompts"]))],
                greedy_prompt=prompts["greedy"]["prompt"],
                continuation=prompts["greedy"]["continuation"],
            )
        return known[spelling]

    return get


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A random Maple whose every matrix has sixteen blocks or more, of columns that fill no group of lookups."""
    config = {
        **FULL_SIZE,
        "vocab_size": 512,
        "hidden_size": 320,
        "moe_intermediate_size": 144,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "sliding_window": 70,
        "layer_types": ["sliding_attention", "full_attention"],
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    return write_random(tmp_path_factory.mktemp("wide"), config, progress=lambda done, total: None)


@attrs.define
class Conversation:
    """One sequence of a test: where its blocks are and how far it has come."""

    blocks: list[int]
    sliding: list[int]
    length: int = 0

    def slice(self, tokens: Sequence[int], logits: int) -> StepSlice:
        """The next part of the sequence."""
        part = StepSlice(
            tokens=tokens, start=self.length, blocks=self.blocks, sliding_blocks=self.sliding, logits=logits
        )
        self.length += len(tokens)
        return part


@pytest.fixture
def sequences() -> Callable[[int], list[Conversation]]:
    """Sequences of up to four blocks whose KV blocks are scattered over the pools."""

    def make(count: int) -> list[Conversation]:
        order = np.random.default_rng(count).permutation(64)
        return [
            Conversation(
                blocks=[int(b) for b in order[4 * i : 4 * i + 4]],
                sliding=[int(b) for b in order[::-1][4 * i : 4 * i + 4]],
            )
            for i in range(count)
        ]

    return make
