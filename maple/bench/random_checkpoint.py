"""A Maple of random weights in the published 2-bit spelling: its text is noise, its sizes are real."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import attrs
import numpy as np
import numpy.typing as npt

from maple.errors import MapleError

FULL_SIZE: Mapping[str, Any] = {
    "architectures": ["MapleForCausalLM"],
    "model_type": "maple",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 128000,
    "sliding_window": 512,
    "layer_types": ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(24)],
    "eos_token_id": 151645,
    "pad_token_id": 151643,
}
"""Maple-Preview's own config."""

_GROUP = 64
_STRETCH = 4 << 20
# Bytes of four two-bit codes, none of which is the unused 3.
_FOUR_CODES = np.array([a | b << 2 | c << 4 | d << 6 for a, b, c, d in np.ndindex(3, 3, 3, 3)], np.uint8)

Bytes = npt.NDArray[np.uint8]


class BenchFailed(MapleError):
    """The measurement could not be made; the message is one line."""


@attrs.frozen
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[int], Bytes]  # of so many bytes

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (4 if self.dtype == "U32" else 2)


def write_random(
    folder: pathlib.Path, config: Mapping[str, Any] = FULL_SIZE, *, progress: Callable[[int, int], None]
) -> pathlib.Path:
    """Write a checkpoint folder, streaming; one that is there already is left as it is.

    ``progress`` gets the bytes written and all bytes. Raises BenchFailed where the disk is too small, OSError.
    """
    weights = folder / "model.safetensors"
    if weights.exists():
        return folder
    tensors = list(_tensors(config, np.random.default_rng(0)))
    total = sum(tensor.nbytes for tensor in tensors)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < total * 1.05:
        raise BenchFailed(f"a random model takes {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
    (folder / "config.json").write_text(json.dumps(dict(config)))
    partial = weights.with_name(".model.safetensors.partial")
    with partial.open("wb") as file:
        _write(file, tensors, lambda done: progress(done, total))
    partial.rename(weights)
    return folder


def _write(file: BinaryIO, tensors: list[_Tensor], report: Callable[[int], None]) -> None:
    header: dict[str, object] = {}
    at = 0
    for one in tensors:
        header[one.name] = {
            "dtype": one.dtype,
            "shape": one.shape,
            "data_offsets": [at, at + one.nbytes],
        }
        at += one.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    done = 0
    for one in tensors:
        file.write(one.fill(one.nbytes).data)
        done += one.nbytes
        report(done)


def _tensors(config: Mapping[str, Any], rng: np.random.Generator) -> Iterator[_Tensor]:
    hidden, width, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    head, vocabulary = config["head_dim"], config["vocab_size"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield from _table("model.word_embeddings", vocabulary, hidden, 0.1, rng)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield _constant(f"{layer}{name}.weight", (hidden,), 1.0)
        for name in ("q_norm", "k_norm"):
            yield _constant(f"{attention}{name}.weight", (head,), 1.0)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield from _ternary(f"{attention}{name}_proj", (rows, hidden), rng)
        yield from _ternary(f"{attention}o_proj", (hidden, queries), rng)
        router = experts, hidden
        yield _Tensor(f"{mlp}gate.weight", "BF16", router, lambda size: _normal(size, 0.05, rng))
        for name in ("gate", "up"):
            yield from _ternary(f"{mlp}switch_mlp.{name}_proj", (experts, width, hidden), rng)
        yield from _ternary(f"{mlp}switch_mlp.down_proj", (experts, hidden, width), rng)
    yield _constant("model.norm.weight", (hidden,), 1.0)
    yield from _table("lm_head", vocabulary, hidden, 0.01, rng)


def _ternary(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[_Tensor]:
    """Two-bit words, and a scale a row that keeps the products near the size of their input."""

    def codes(size: int) -> Bytes:
        stretch = _FOUR_CODES[rng.integers(0, len(_FOUR_CODES), min(size, _STRETCH))]
        return np.resize(np.roll(stretch, int(rng.integers(stretch.size))), size)

    yield _Tensor(f"{name}.weight", "U32", (*shape[:-1], shape[-1] // 16), codes)
    yield _constant(f"{name}.row_alpha", shape[:-1], 1.2 / math.sqrt(shape[-1]))


def _table(name: str, rows: int, cols: int, scale: float, rng: np.random.Generator) -> Iterator[_Tensor]:
    groups = rows, cols // _GROUP
    yield _Tensor(
        f"{name}.weight", "U32", (rows, cols // 8), lambda size: rng.integers(0, 256, size, np.uint8)
    )
    yield _constant(f"{name}.scales", groups, scale)
    yield _constant(f"{name}.biases", groups, -7.5 * scale)


def _constant(name: str, shape: tuple[int, ...], value: float) -> _Tensor:
    return _Tensor(
        name, "BF16", shape, lambda size: _bf16(np.full(size // 2, value, np.float32)).view(np.uint8)
    )


def _normal(size: int, deviation: float, rng: np.random.Generator) -> Bytes:
    return _bf16(rng.standard_normal(size // 2, np.float32) * np.float32(deviation)).view(np.uint8)


def _bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves, cut instead of rounded: good enough for noise."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
