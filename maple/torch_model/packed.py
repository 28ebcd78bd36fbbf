"""Modules in place of dense ones that keep their weights as stored: 2-bit, 4-bit, or another dtype."""

from __future__ import annotations

from typing import Protocol

import attrs
import torch
from torch import nn

from maple.torch_model.affine import AffineTensor
from maple.torch_model.routing import clamped_swiglu, sum_of_experts
from maple.torch_model.ternary import TernaryTensor


class Matrices(Protocol):
    """What an expert layer needs of a stack of matrices, packed or not."""

    def __getitem__(self, index: int) -> Matrices: ...

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., in]`` times the matrix [out, in], transposed, in fp32."""
        ...


@attrs.frozen(eq=False)
class DenseMatrices:
    """The fallback for a tensor that is not ternary: kept as it came, converted when it is used."""

    weight: torch.Tensor

    def __getitem__(self, index: int) -> DenseMatrices:
        return DenseMatrices(self.weight[index])

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., in]`` times this matrix, transposed, in fp32."""
        return nn.functional.linear(x.float(), self.weight.float())


class _Holder(nn.Module):
    """Keeps stacks of matrices in buffers, so that ``.to(device)`` and memory accounting see them."""

    compact = True
    packed_tensors = 0

    def hold(self, name: str, matrices: TernaryTensor | DenseMatrices) -> None:
        parts = attrs.asdict(matrices, recurse=False)
        for field, tensor in parts.items():
            self.register_buffer(f"{name}_{field}", tensor)
        self.packed_tensors += isinstance(matrices, TernaryTensor)

    def held(self, name: str) -> Matrices:
        if hasattr(self, f"{name}_codes"):
            return TernaryTensor(getattr(self, f"{name}_codes"), getattr(self, f"{name}_alpha"))
        return DenseMatrices(getattr(self, f"{name}_weight"))


class PackedLinear(_Holder):
    """A bias-free linear layer over a packed matrix [out, in]."""

    def __init__(self, matrix: TernaryTensor | DenseMatrices) -> None:
        super().__init__()
        self.hold("matrix", matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to fp32 [..., out]."""
        return self.held("matrix").linear(x)


class PackedExperts(_Holder):
    """The experts of one layer; those that tokens chose are unpacked, once for all tokens of an expert."""

    def __init__(
        self,
        *,
        gate: TernaryTensor | DenseMatrices,
        up: TernaryTensor | DenseMatrices,
        down: TernaryTensor | DenseMatrices,
        limit: float,
    ) -> None:
        super().__init__()
        self.limit = limit
        self.hold("gate", gate)
        self.hold("up", up)
        self.hold("down", down)

    def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape, for expert ids and weights [tokens, k]."""
        gates, ups, downs = self.held("gate"), self.held("up"), self.held("down")

        def run(expert: int, rows: torch.Tensor) -> torch.Tensor:
            gated = clamped_swiglu(gates[expert].linear(rows), ups[expert].linear(rows), self.limit)
            return downs[expert].linear(gated)

        return sum_of_experts(run, x, experts, weights)


class StoredEmbedding(nn.Module):
    """An embedding kept in the checkpoint's dtype that answers in the activations' dtype."""

    compact = True

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.weight: torch.Tensor
        self.answer_dtype = dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [...] to rows [..., hidden]."""
        return nn.functional.embedding(ids, self.weight).to(self.answer_dtype)


class _Affine(nn.Module):
    compact = True

    def __init__(self, table: AffineTensor) -> None:
        super().__init__()
        self.codes: torch.Tensor
        self.scales: torch.Tensor
        self.biases: torch.Tensor
        for name in ("codes", "scales", "biases"):
            self.register_buffer(name, getattr(table, name))

    @property
    def table(self) -> AffineTensor:
        return AffineTensor(self.codes, self.scales, self.biases)


class AffineEmbedding(_Affine):
    """An embedding of 4-bit rows, each expanded when it is looked up."""

    def __init__(self, table: AffineTensor, dtype: torch.dtype) -> None:
        super().__init__(table)
        self.answer_dtype = dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [...] to rows [..., hidden]."""
        return self.table.rows(ids, self.answer_dtype)


class AffineHead(_Affine):
    """A head of 4-bit rows, expanded block by block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] to fp32 logits [..., vocabulary]."""
        return self.table.linear(x)
