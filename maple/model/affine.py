"""Tables quantised to four bits with a scale and a bias per group of columns, as MLX writes embeddings and head."""

from __future__ import annotations

import attrs
import torch

__all__ = ["CODE_BITS", "AffineTensor"]

CODE_BITS = 4
_BLOCK_ROWS = 512  # rows expanded at a time, so that the scratch stays in cache


@attrs.frozen(eq=False)
class AffineTensor:
    """A matrix w[r, k] = scale[r, g] * code[r, k] + bias[r, g] with g = k // group.

    codes: uint8 [rows, in / 2], two codes a byte, the one of the lower index in the lower bits: the bytes of MLX's
    little-endian 32-bit words; scales, biases: floating [rows, in / group].
    """

    codes: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the dense matrix, [rows, in]."""
        return self.codes.shape[0], self.codes.shape[1] * 2

    @property
    def nbytes(self) -> int:
        """Bytes held by codes, scales and biases."""
        return self.codes.nbytes + self.scales.nbytes + self.biases.nbytes

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Dense rows [..., in] of ids [...], computed in fp32 and rounded once."""
        codes = self.codes[ids].unsqueeze(-1)
        wide = torch.cat((codes & 15, codes >> 4), dim=-1).flatten(-2).float()
        grouped = wide.unflatten(-1, (self.scales.shape[-1], -1))
        dense = grouped * self.scales[ids].float().unsqueeze(-1) + self.biases[ids].float().unsqueeze(-1)
        return dense.flatten(-2).to(dtype)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense matrix [rows, in], expanded a block of rows at a time."""
        out = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        for block in torch.arange(self.shape[0], device=self.codes.device).split(_BLOCK_ROWS):
            out[block[0] : block[-1] + 1] = self.rows(block, dtype)
        return out

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """`x [..., in]` times this matrix, transposed, in fp32 [..., rows].

        The biases meet the sum of x over each group, so that only the scales touch every weight.
        """
        groups = self.scales.shape[1]
        wide = x.float()
        sums = wide.unflatten(-1, (groups, -1)).sum(-1)
        halves = wide.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        out = torch.empty((*x.shape[:-1], self.shape[0]), dtype=torch.float32, device=x.device)
        for start in range(0, self.shape[0], _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            product = torch.nn.functional.linear(halves, self._scaled_halves(block, groups))
            out[..., block] = product + torch.nn.functional.linear(sums, self.biases[block].float())
        return out

    def _scaled_halves(self, block: slice, groups: int) -> torch.Tensor:
        """scale * code, fp32 [rows, in], the even columns before the odd ones."""
        codes = self.codes[block]
        wide = torch.empty((codes.shape[0], 2, codes.shape[1]), dtype=torch.float32, device=codes.device)
        wide[:, 0] = codes & 15
        wide[:, 1] = codes >> 4
        scales = self.scales[block].float()[:, None, :, None]
        return wide.view(codes.shape[0], 2, groups, -1).mul_(scales).view(codes.shape[0], -1)
