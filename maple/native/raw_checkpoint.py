"""The parts of a checkpoint's safetensors files in the kernels' layout, without torch or Transformers.

All spellings of the weights are known: bf16 rows (experts stacked or one tensor each) and the 2-bit export
(row_alpha or grouped scales, fused projections).
"""

from __future__ import annotations

import json
import math
import mmap
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from maple.native.library import KernelError
from maple.native.model import EmbeddingWeights, Floats, ModelShape
from maple.native.packing import (
    BLOCK_ROWS,
    Kind,
    PackedMatrix,
    Place,
    block_count,
    pack_affine4,
    pack_codes2,
    pack_dense,
    pack_ternary,
)

HeadDtype: TypeAlias = Literal["auto", "int8", "bf16"]
Array: TypeAlias = npt.NDArray[Any]

_ITEM = {"BF16": np.uint16, "F32": np.float32, "U32": np.uint32, "U8": np.uint8, "F16": np.float16}
_HEADER_LIMIT = 100 << 20


@attrs.frozen(kw_only=True, eq=False)
class StoredTensor:
    """A tensor in a mapped file: its dtype as safetensors spells it (bf16 as its bits) and a view of its
    bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array


class StoredTensors(Mapping[str, StoredTensor]):
    """The tensors of a folder's safetensors files, mapped; nothing is read before it is used."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Open every file (those of the index where there is one); KernelError for a file that is not
        safetensors.
        """
        self._maps: list[mmap.mmap] = []
        self._tensors: dict[str, StoredTensor] = {}
        index = folder / "model.safetensors.index.json"
        if index.exists():
            listed = set(json.loads(index.read_text())["weight_map"].values())
            # The approximate head that some exports carry is not ours to use.
            names = sorted(name for name in listed if "flashhead" not in name)
        else:
            names = ["model.safetensors"]
        for name in names:
            if pathlib.PurePath(name).name != name:
                raise KernelError(f"{index}: {name!r} is not a file name")
            self._open(folder / name)

    def _open(self, path: pathlib.Path) -> None:
        with path.open("rb") as file:
            area = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(area)
        size = int.from_bytes(area[:8], "little")
        if size > min(_HEADER_LIMIT, len(area) - 8):
            raise KernelError(f"{path}: not a safetensors file")
        header = json.loads(area[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            item = np.dtype(_ITEM.get(entry["dtype"], np.uint8))
            shape = tuple(entry["shape"])
            if (
                entry["dtype"] not in _ITEM
                or end - begin != math.prod(shape) * item.itemsize
                or 8 + size + end > len(area)
            ):
                raise KernelError(
                    f"{path}: tensor {name} has dtype {entry['dtype']}, shape {shape}, {end - begin} bytes"
                )
            data = np.frombuffer(area, np.uint8, end - begin, 8 + size + begin)
            self._tensors[name] = StoredTensor(name=name, dtype=entry["dtype"], shape=shape, data=data)

    def release(self) -> None:
        """Give the pages read so far back to the system; they come again from the file when needed."""
        for area in self._maps:
            area.madvise(mmap.MADV_DONTNEED)

    def __getitem__(self, name: str) -> StoredTensor:
        """The tensor of that name."""
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """All names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """How many."""
        return len(self._tensors)


def _floats(tensor: StoredTensor) -> Floats:
    if tensor.dtype == "BF16":
        bits = np.frombuffer(tensor.data.tobytes(), np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    values = np.frombuffer(tensor.data.tobytes(), _ITEM[tensor.dtype])
    return values.astype(np.float32).reshape(tensor.shape)


@attrs.frozen(kw_only=True)
class _Source:
    """One projection as stored: `count` matrices of rows x cols, bf16 rows or 2-bit words with row scales."""

    tensor: StoredTensor
    alpha: Array | None
    count: int
    rows: int
    cols: int

    def pack(self, place: Place, threads: int, rows: slice | None = None, matrix: int | None = None) -> None:
        """Pack all matrices, or `rows` of one."""
        shape, data, alpha = (self.count, self.rows, self.cols), self.tensor.data, self.alpha
        if rows is not None:
            one, first = self.rows * (matrix or 0) + rows.start, rows.stop - rows.start
            shape = (1, first, self.cols)
            data = data.reshape(self.count * self.rows, -1)[one : one + first].reshape(-1)
            alpha = None if alpha is None else alpha[2 * one : 2 * (one + first)]
        if alpha is None:
            pack_ternary(data, shape, place, threads=threads)
        else:
            pack_codes2(data, alpha, shape, place, threads=threads)


class Reader:
    """Finds a checkpoint's tensors under any of their spellings and packs them."""

    def __init__(self, tensors: StoredTensors, shape: ModelShape, threads: int) -> None:
        self.tensors, self.shape, self.threads = tensors, shape, threads

    def tensor(self, *names: str) -> StoredTensor:
        """The tensor under the first of the names that is there."""
        for name in names:
            if name in self.tensors:
                return self.tensors[name]
        raise KernelError(f"the checkpoint has no {names[0]}")

    def floats(self, name: str) -> Floats:
        """A small tensor as float32, flat."""
        return _floats(self.tensor(name)).reshape(-1)

    def find(self, *names: str) -> _Source | None:
        """A projection under the first of the names that is there."""
        for name in names:
            for spelling in (f"{name}.weight", name):
                if spelling in self.tensors:
                    return self._source(name, self.tensors[spelling])
        return None

    def _source(self, name: str, tensor: StoredTensor) -> _Source:
        *lead, rows, last = tensor.shape
        count = math.prod(lead)
        if tensor.dtype == "BF16":
            return _Source(tensor=tensor, alpha=None, count=count, rows=rows, cols=last)
        if tensor.dtype != "U32":
            raise KernelError(f"{tensor.name}: dtype {tensor.dtype} is neither bf16 nor 2-bit words")
        return _Source(
            tensor=tensor, alpha=self._alpha(name, count * rows), count=count, rows=rows, cols=last * 16
        )

    def _alpha(self, name: str, rows: int) -> Array:
        """Row scales; grouped ones must agree along the row and have bias = -scale."""
        if f"{name}.row_alpha" in self.tensors:
            return self.tensors[f"{name}.row_alpha"].data
        scales = self.tensor(f"{name}.scales").data.view(np.uint8).tobytes()
        biases = self.tensor(f"{name}.biases").data.tobytes()
        s = np.frombuffer(scales, np.uint16).reshape(rows, -1)
        b = np.frombuffer(biases, np.uint16).reshape(rows, -1)
        if (s != s[:, :1]).any() or ((b ^ 0x8000) != s).any():
            raise KernelError(f"{name}: its groups are not ternary with one scale a row")
        return np.ascontiguousarray(s[:, 0]).view(np.uint8)

    # -- parts of a layer

    def qkv(self, prefix: str) -> PackedMatrix:
        """Query, key and value projections, one below the other."""
        s = self.shape
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        packed = PackedMatrix.empty(Kind.TERNARY, q + 2 * kv, s.hidden)
        if (fused := self.find(f"{prefix}qkv_proj")) is not None:
            self._fits(fused, 1, q + 2 * kv, s.hidden)
            fused.pack(Place(into=packed), self.threads)
            return packed
        first = 0
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            source = self._required(f"{prefix}{name}")
            self._fits(source, 1, rows, s.hidden)
            source.pack(Place(into=packed, first=first // BLOCK_ROWS), self.threads)
            first += rows
        return packed

    def output(self, prefix: str) -> PackedMatrix:
        """The attention's output projection."""
        s = self.shape
        source = self._required(f"{prefix}o_proj")
        self._fits(source, 1, s.hidden, s.heads * s.head_dim)
        packed = PackedMatrix.empty(Kind.TERNARY, s.hidden, s.heads * s.head_dim)
        source.pack(Place(into=packed), self.threads)
        return packed

    def gate_up(self, prefix: str) -> PackedMatrix:
        """All experts' gate and up projections, in alternating blocks."""
        s = self.shape
        blocks = block_count(s.expert_width)
        packed = PackedMatrix.empty(Kind.TERNARY, 2 * blocks * BLOCK_ROWS, s.hidden, s.experts)
        fused = self.find(f"{prefix}switch_mlp.up_gate_proj")
        if fused is None:
            self._experts(prefix, "gate_proj", packed, 0, 2, s.expert_width)
            self._experts(prefix, "up_proj", packed, 1, 2, s.expert_width)
            return packed
        self._fits(fused, s.experts, 2 * s.expert_width, s.hidden)
        for expert in range(s.experts):
            for first, begin in ((1, 0), (0, s.expert_width)):  # the up rows come first
                place = Place(into=packed, first=first, step=2, matrix=expert)
                fused.pack(place, self.threads, slice(begin, begin + s.expert_width), expert)
        return packed

    def down(self, prefix: str) -> PackedMatrix:
        """All experts' down projections."""
        s = self.shape
        packed = PackedMatrix.empty(Kind.TERNARY, s.hidden, s.expert_width, s.experts)
        self._experts(prefix, "down_proj", packed, 0, 1, s.hidden)
        return packed

    def _experts(
        self, prefix: str, name: str, packed: PackedMatrix, first: int, step: int, rows: int
    ) -> None:
        stacked = self.find(f"{prefix}switch_mlp.{name}", f"{prefix}experts.{name}")
        if stacked is not None:
            self._fits(stacked, self.shape.experts, rows, packed.cols)
            stacked.pack(Place(into=packed, first=first, step=step), self.threads)
            return
        for expert in range(self.shape.experts):
            one = self._required(f"{prefix}experts.{expert}.{name}")
            self._fits(one, 1, rows, packed.cols)
            one.pack(Place(into=packed, first=first, step=step, matrix=expert), self.threads)

    def _required(self, name: str) -> _Source:
        source = self.find(name)
        if source is None:
            raise KernelError(f"the checkpoint has no {name}")
        return source

    def _fits(self, source: _Source, count: int, rows: int, cols: int) -> None:
        if (source.count, source.rows, source.cols) != (count, rows, cols):
            got = f"{source.count} x {source.rows} x {source.cols}"
            raise KernelError(f"{source.tensor.name}: {got} where {count} x {rows} x {cols} was expected")

    # -- embeddings and head

    def dense(self, tensor: StoredTensor, rows: int, dtype: HeadDtype) -> PackedMatrix:
        """A float matrix of `rows` times the hidden size; `int8` narrows bf16."""
        shape = (rows, self.shape.hidden)
        if tensor.shape != shape:
            raise KernelError(f"{tensor.name}: shape {tensor.shape} where {shape} was expected")
        if tensor.dtype == "BF16":
            kind = Kind.INT8 if dtype == "int8" else Kind.BF16
            return pack_dense(tensor.data, shape, kind, threads=self.threads)
        return pack_dense(_floats(tensor), shape, Kind.F32, threads=self.threads)

    def head(self, dtype: HeadDtype) -> PackedMatrix:
        """The output head; four-bit weights stay as they are."""
        tensor, shape = self.tensor("lm_head.weight"), (self.shape.vocabulary, self.shape.hidden)
        if tensor.dtype != "U32":
            return self.dense(tensor, shape[0], dtype)
        scales, biases = (self.tensor(f"lm_head.{part}").data for part in ("scales", "biases"))
        return pack_affine4(tensor.data, scales, biases, shape, threads=self.threads)

    def embedding(self) -> EmbeddingWeights:
        """The embeddings, views of the mapped file."""
        tensor = self.tensor("model.word_embeddings.weight", "model.embed_tokens.weight")
        if tensor.dtype != "U32":
            kind = {"BF16": Kind.BF16, "F32": Kind.F32}[tensor.dtype]
            return EmbeddingWeights(kind=kind, data=tensor.data)
        stem = tensor.name.removesuffix("weight")
        scales, biases = (self.tensor(f"{stem}{part}").data for part in ("scales", "biases"))
        return EmbeddingWeights(kind=Kind.AFFINE4, data=tensor.data, scales=scales, biases=biases)
