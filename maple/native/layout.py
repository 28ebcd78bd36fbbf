"""What a pack holds: every tensor of a Maple in the form that the kernels read, in the order of the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt

from maple.checkpoint.errors import LoadError
from maple.checkpoint.fields import FULL, PlainConfig
from maple.checkpoint.shards import Array
from maple.checkpoint.slots import model_slots
from maple.native.forms import Forms
from maple.native.model import SWIGLU_LIMIT, EmbeddingWeights, LayerWeights, ModelShape, ModelWeights
from maple.native.packing import BLOCK_ROWS, GROUP, Kind, PackedMatrix, block_count, matrix_bytes

_WIDEST_HEAD = 256
_MOST_COLUMNS = 32768
_NUMBERS: Mapping[str, npt.DTypeLike] = {
    "F32": np.float32,
    "BF16": np.uint16,
    "U32": np.uint32,
    "U8": np.uint8,
}


@attrs.frozen(kw_only=True)
class MatrixForm:
    """A packed matrix: its kind and size, ``count`` of them in a row."""

    kind: Kind
    rows: int
    cols: int
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return matrix_bytes(self.kind, self.rows, self.cols) * self.count


@attrs.frozen
class SlotRows:
    """Where a slot's rows lie in a packed matrix: in its blocks from ``first`` on, every ``step``-th."""

    slot: str
    first: int = 0
    step: int = 1


_EMBEDDINGS = (SlotRows("model.word_embeddings"),)


@attrs.frozen(kw_only=True)
class Part:
    """One tensor of a pack, and what it is made from.

    matrix: where its bytes are a packed matrix. field: of a table of 4-bit words, which of its three tensors.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[SlotRows, ...]
    matrix: MatrixForm | None = None
    field: Literal["weight", "scales", "biases"] = "weight"

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * np.dtype(_NUMBERS[self.dtype]).itemsize

    def view(self, data: Array) -> Array:
        """The part's bytes as its numbers in its shape."""
        return data.view(np.uint8).reshape(-1).view(np.dtype(_NUMBERS[self.dtype])).reshape(self.shape)


class Layout:
    """The parts of a model of one shape, by name, in the order of the file.

    Matrices come first, so that all of them are aligned without padding: their sizes are multiples of 64.
    """

    def __init__(self, config: PlainConfig, forms: Forms) -> None:
        self.shape = model_shape(config)
        self.forms = forms
        slots = {slot.name for slot in model_slots(config)}
        parts = [*self._matrices(), *self._tables(), *self._norms(), *self._table_scales()]
        self.parts = {part.name: part for part in parts}
        made = {rows.slot for part in parts for rows in part.rows}
        if made != slots:
            raise LoadError(f"the kernels know no {min(made ^ slots)}")

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    def bind(self, arrays: Mapping[str, Array]) -> ModelWeights:
        """The kernels' weights over arrays by part; their memory is kept alive."""
        norms = {name: part.view(arrays[name]) for name, part in self.parts.items() if part.dtype == "F32"}
        layers = [self._layer(f"layers.{i}.", norms, arrays) for i in range(self.shape.layers)]
        return ModelWeights(
            embedding=EmbeddingWeights(
                kind=self.forms.embedding,
                data=arrays["embedding"],
                scales=arrays.get("embedding.scales"),
                biases=arrays.get("embedding.biases"),
            ),
            layers=tuple(layers),
            final_norm=norms["norm"],
            head=self._packed("head", arrays),
        )

    def _layer(self, at: str, norms: Mapping[str, Array], arrays: Mapping[str, Array]) -> LayerWeights:
        return LayerWeights(
            attention_norm=norms[f"{at}attention_norm"],
            mlp_norm=norms[f"{at}mlp_norm"],
            q_norm=norms[f"{at}q_norm"],
            k_norm=norms[f"{at}k_norm"],
            qkv=self._packed(f"{at}qkv", arrays),
            output=self._packed(f"{at}output", arrays),
            router=self._packed(f"{at}router", arrays),
            gate_up=self._packed(f"{at}gate_up", arrays),
            down=self._packed(f"{at}down", arrays),
        )

    def _packed(self, name: str, arrays: Mapping[str, Array]) -> PackedMatrix:
        form = self.parts[name].matrix
        if form is None:
            raise KeyError(name)
        return PackedMatrix(
            kind=form.kind, rows=form.rows, cols=form.cols, count=form.count, data=arrays[name]
        )

    def _matrices(self) -> Iterator[Part]:
        s = self.shape
        queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        both = 2 * block_count(s.expert_width) * BLOCK_ROWS
        for i in range(s.layers):
            at, model = f"layers.{i}.", f"model.layers.{i}."
            attention, experts = f"{model}self_attn.", f"{model}mlp.experts."
            q, k, v = (
                SlotRows(f"{attention}{name}_proj", first // BLOCK_ROWS)
                for name, first in (("q", 0), ("k", queries), ("v", queries + keys))
            )
            gate, up = SlotRows(f"{experts}gate", 0, 2), SlotRows(f"{experts}up", 1, 2)
            router = MatrixForm(kind=self.forms.router, rows=s.experts, cols=s.hidden)
            yield _matrix(f"{at}router", router, SlotRows(f"{model}mlp.gate"))
            yield _matrix(f"{at}qkv", _ternary(queries + 2 * keys, s.hidden), q, k, v)
            yield _matrix(f"{at}output", _ternary(s.hidden, queries), SlotRows(f"{attention}o_proj"))
            yield _matrix(f"{at}gate_up", _ternary(both, s.hidden, s.experts), gate, up)
            down = _ternary(s.hidden, s.expert_width, s.experts)
            yield _matrix(f"{at}down", down, SlotRows(f"{experts}down"))
        head = MatrixForm(kind=self.forms.head, rows=s.vocabulary, cols=s.hidden)
        yield _matrix("head", head, SlotRows("lm_head"))

    def _tables(self) -> Iterator[Part]:
        s, kind = self.shape, self.forms.embedding
        dtype, last = {
            Kind.AFFINE4: ("U32", s.hidden // 8),
            Kind.BF16: ("BF16", s.hidden),
            Kind.F32: ("F32", s.hidden),
        }[kind]
        yield Part(name="embedding", dtype=dtype, shape=(s.vocabulary, last), rows=_EMBEDDINGS)

    def _norms(self) -> Iterator[Part]:
        s = self.shape
        for i in range(s.layers):
            model = f"model.layers.{i}."
            for name, slot, size in (
                ("attention_norm", "input_layernorm", s.hidden),
                ("mlp_norm", "post_attention_layernorm", s.hidden),
                ("q_norm", "self_attn.q_norm", s.head_dim),
                ("k_norm", "self_attn.k_norm", s.head_dim),
            ):
                yield _norm(f"layers.{i}.{name}", size, f"{model}{slot}")
        yield _norm("norm", s.hidden, "model.norm")

    def _table_scales(self) -> Iterator[Part]:
        s = self.shape
        if self.forms.embedding is Kind.AFFINE4:
            shape = (s.vocabulary, s.hidden // GROUP)
            yield Part(name="embedding.scales", dtype="BF16", shape=shape, rows=_EMBEDDINGS, field="scales")
            yield Part(name="embedding.biases", dtype="BF16", shape=shape, rows=_EMBEDDINGS, field="biases")


def _ternary(rows: int, cols: int, count: int = 1) -> MatrixForm:
    return MatrixForm(kind=Kind.TERNARY, rows=rows, cols=cols, count=count)


def _matrix(name: str, form: MatrixForm, *rows: SlotRows) -> Part:
    return Part(name=name, dtype="U8", shape=(form.nbytes,), rows=rows, matrix=form)


def _norm(name: str, size: int, slot: str) -> Part:
    return Part(name=name, dtype="F32", shape=(size,), rows=(SlotRows(slot),))


def model_shape(config: PlainConfig) -> ModelShape:
    """The kernels' geometry; raises ``LoadError`` for a Maple that they do not compute."""
    if config.swiglu_limit != SWIGLU_LIMIT:
        raise LoadError(f"swiglu_limit {config.swiglu_limit} is not the kernels' {SWIGLU_LIMIT}")
    if config.head_dim % BLOCK_ROWS or config.head_dim > _WIDEST_HEAD:
        raise LoadError(f"head_dim {config.head_dim} is no multiple of {BLOCK_ROWS} up to {_WIDEST_HEAD}")
    for name, columns in (
        ("hidden_size", config.hidden_size),
        ("moe_intermediate_size", config.moe_intermediate_size),
        ("num_attention_heads times head_dim", config.num_attention_heads * config.head_dim),
    ):
        if columns > _MOST_COLUMNS:
            raise LoadError(f"{name} {columns} is more than the kernels' {_MOST_COLUMNS}")
    return ModelShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rotary_dim=config.rotary_dim,
        window=config.sliding_window,
        experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        expert_width=config.moe_intermediate_size,
        vocabulary=config.vocab_size,
        full_layers=tuple(kind == FULL for kind in config.layer_types),
        eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
    )
