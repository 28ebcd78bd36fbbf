"""What a pack holds: every tensor of a Maple in the form that the kernels read, in the order of the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from maple.checkpoint.errors import LoadError
from maple.checkpoint.fields import FULL, PlainConfig
from maple.checkpoint.slots import model_slots
from maple.native.forms import Forms
from maple.native.model import SWIGLU_LIMIT, EmbeddingWeights, LayerWeights, ModelShape, ModelWeights
from maple.native.packing import BLOCK_ROWS, GROUP, Kind, PackedMatrix, block_count, matrix_bytes

__all__ = ["Layout", "MatrixForm", "Part", "model_shape"]

Array = npt.NDArray[Any]
_NUMBERS: Mapping[str, npt.DTypeLike] = {
    "F32": np.float32,
    "BF16": np.uint16,
    "U32": np.uint32,
    "U8": np.uint8,
}


@attrs.frozen(kw_only=True)
class MatrixForm:
    """A packed matrix: its kind and size, `count` of them in a row."""

    kind: Kind
    rows: int
    cols: int
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return matrix_bytes(self.kind, self.rows, self.cols) * self.count


@attrs.frozen(kw_only=True)
class Part:
    """One tensor of a pack; `matrix` where its bytes are a packed matrix, `slots` what it was made from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slots: tuple[str, ...]
    matrix: MatrixForm | None = None

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
        made = {slot for part in parts for slot in part.slots}
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
            attention = f"{model}self_attn."
            experts = f"{model}mlp.experts."
            projections = tuple(f"{attention}{name}_proj" for name in "qkv")
            router = MatrixForm(kind=self.forms.router, rows=s.experts, cols=s.hidden)
            yield _matrix(f"{at}router", router, f"{model}mlp.gate")
            yield _matrix(f"{at}qkv", _ternary(queries + 2 * keys, s.hidden), *projections)
            yield _matrix(f"{at}output", _ternary(s.hidden, queries), f"{attention}o_proj")
            gate_up = _ternary(both, s.hidden, s.experts)
            yield _matrix(f"{at}gate_up", gate_up, f"{experts}gate", f"{experts}up")
            yield _matrix(f"{at}down", _ternary(s.hidden, s.expert_width, s.experts), f"{experts}down")
        head = MatrixForm(kind=self.forms.head, rows=s.vocabulary, cols=s.hidden)
        yield _matrix("head", head, "lm_head")

    def _tables(self) -> Iterator[Part]:
        s, kind = self.shape, self.forms.embedding
        dtype, last = {
            Kind.AFFINE4: ("U32", s.hidden // 8),
            Kind.BF16: ("BF16", s.hidden),
            Kind.F32: ("F32", s.hidden),
        }[kind]
        slots = ("model.word_embeddings",)
        yield Part(name="embedding", dtype=dtype, shape=(s.vocabulary, last), slots=slots)

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
                yield Part(name=f"layers.{i}.{name}", dtype="F32", shape=(size,), slots=(f"{model}{slot}",))
        yield Part(name="norm", dtype="F32", shape=(s.hidden,), slots=("model.norm",))

    def _table_scales(self) -> Iterator[Part]:
        s = self.shape
        if self.forms.embedding is Kind.AFFINE4:
            for name in ("scales", "biases"):
                shape = (s.vocabulary, s.hidden // GROUP)
                yield Part(name=f"embedding.{name}", dtype="BF16", shape=shape, slots=())


def _ternary(rows: int, cols: int, count: int = 1) -> MatrixForm:
    return MatrixForm(kind=Kind.TERNARY, rows=rows, cols=cols, count=count)


def _matrix(name: str, form: MatrixForm, *slots: str) -> Part:
    return Part(name=name, dtype="U8", shape=(form.nbytes,), slots=slots, matrix=form)


def model_shape(config: PlainConfig) -> ModelShape:
    """The kernels' geometry; raises `LoadError` for a Maple that they do not compute."""
    if config.swiglu_limit != SWIGLU_LIMIT:
        raise LoadError(f"swiglu_limit {config.swiglu_limit} is not the kernels' {SWIGLU_LIMIT}")
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
