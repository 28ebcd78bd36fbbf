"""Put a checkpoint's tensors into a ``MapleForCausalLM``, each in the form it is to be computed from."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from torch import nn

from maple.checkpoint.slots import Slot
from maple.torch_model.affine import AffineTensor
from maple.torch_model.configuration import MapleConfig
from maple.torch_model.convert import Weights
from maple.torch_model.modeling import MapleExperts, MapleForCausalLM
from maple.torch_model.packed import (
    AffineEmbedding,
    AffineHead,
    DenseMatrices,
    PackedExperts,
    PackedLinear,
    StoredEmbedding,
)
from maple.torch_model.ternary import TernaryTensor

Matrices = TernaryTensor | torch.Tensor


@attrs.frozen(kw_only=True)
class Form:
    """Where the model computes and with weights of which dtype; whether compact weights stay compact.

    ``head_dtype`` None keeps the head as it is stored.
    """

    device: torch.device
    dtype: torch.dtype
    packed: bool
    head_dtype: torch.dtype | None = None


def assemble(config: MapleConfig, weights: Iterable[tuple[Slot, Weights]], form: Form) -> MapleForCausalLM:
    """Build the model, in eval mode, from all of its tensors; each is dropped as soon as it has its place."""
    with torch.device("meta"):
        model = MapleForCausalLM(config)
    builder = _Builder(model, form)
    for slot, tensor in weights:
        builder.place(slot, tensor)
    if form.device.type == "cpu" and not form.packed and form.dtype != torch.float32:
        # The grouped matmul rounds every product to 16 bits; a CPU computes in fp32 about as fast.
        model.set_experts_implementation("eager")
    model.eval()
    return model


class _Builder:
    def __init__(self, model: MapleForCausalLM, form: Form) -> None:
        self._model = model
        self._form = form
        self._experts: dict[str, Matrices] = {}

    def place(self, slot: Slot, tensor: Weights) -> None:
        """Move one tensor to the device and install it under its slot's name."""
        parent, _, name = slot.name.rpartition(".")
        owner = self._model.get_submodule(parent)
        tensor = tensor.to(self._form.device)
        if slot.kind == "table":
            setattr(owner, name, self._head(tensor) if name == "lm_head" else self._embedding(tensor))
        elif isinstance(owner, MapleExperts) and not isinstance(tensor, AffineTensor):
            self._place_experts(parent, name, tensor)
        elif isinstance(tensor, TernaryTensor) and self._form.packed:
            setattr(owner, name, PackedLinear(tensor))
        else:
            # The router decides in fp32, so its weights are widened once and not at every token.
            dtype = torch.float32 if name == "gate" else self._form.dtype
            getattr(owner, name).weight = _parameter(_dense(tensor, dtype))

    def _place_experts(self, parent: str, name: str, tensor: Matrices) -> None:
        """Collect gate, up and down of a layer, then replace or fill its experts."""
        self._experts[name] = tensor
        if len(self._experts) < len(("gate", "up", "down")):
            return
        parts, self._experts = self._experts, {}
        mlp = self._model.get_submodule(parent.removesuffix(".experts"))
        if self._form.packed:
            kept = {key: _kept(part) for key, part in parts.items()}
            mlp.experts = PackedExperts(**kept, limit=self._model.config.swiglu_limit)
            return
        gate, up, down = (parts.pop(key) for key in ("gate", "up", "down"))
        gate_up = _dense(gate, self._form.dtype), _dense(up, self._form.dtype)
        mlp.experts.gate_up_proj = _parameter(torch.cat(gate_up, dim=1))
        mlp.experts.down_proj = _parameter(_dense(down, self._form.dtype))

    def _embedding(self, table: Weights) -> nn.Module:
        if self._form.packed and isinstance(table, AffineTensor):
            return AffineEmbedding(table, self._form.dtype)
        if self._form.packed and isinstance(table, torch.Tensor):
            return StoredEmbedding(table, self._form.dtype)
        embedding: nn.Module = nn.Embedding.from_pretrained(_dense(table, self._form.dtype))
        return embedding

    def _head(self, table: Weights) -> nn.Module:
        form = self._form
        if isinstance(table, AffineTensor) and form.packed and form.head_dtype is None:
            return AffineHead(table)
        head: nn.Module = self._model.lm_head
        if isinstance(table, AffineTensor):
            head.weight = _parameter(table.unrounded(form.head_dtype or form.dtype))
        else:
            stored = table.dtype if isinstance(table, torch.Tensor) else form.dtype
            head.weight = _parameter(_dense(table, form.head_dtype or stored))
        return head


def _dense(tensor: Weights, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if isinstance(tensor, torch.Tensor) else tensor.dense(dtype)


def _kept(tensor: Matrices) -> TernaryTensor | DenseMatrices:
    return DenseMatrices(tensor) if isinstance(tensor, torch.Tensor) else tensor


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
