"""Tables of four-bit codes with a scale and a bias per group of columns: MLX's embeddings and head."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch

CODE_BITS = 4
_BLOCK_ROWS = 512  # rows expanded at a time, so that the scratch stays in cache


@attrs.frozen(eq=False)
class AffineTensor:
    """A matrix w[r, k] = scale[r, g] * code[r, k] + bias[r, g] with g = k // group.

    Rows that are looked up have product and sum rounded to the dtype of the scales, as MLX's ``dequantize`` has
    them. A product with the matrix rounds no weight, as MLX's own with one vector does not.

    codes: uint8 [rows, in / 2], two codes a byte, the one of the lower index in the lower bits: the bytes of
    MLX's little-endian 32-bit words; scales, biases: floating [rows, in / group].
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

    def to(self, device: torch.device | str) -> AffineTensor:
        """The same table on ``device``."""
        return AffineTensor(self.codes.to(device), self.scales.to(device), self.biases.to(device))

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Dense rows [..., in] of ids [...]."""
        flat = ids.flatten()
        part = AffineTensor(self.codes[flat], self.scales[flat], self.biases[flat])
        return part.dense(dtype).view(*ids.shape, -1)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense matrix [rows, in], of rows that are looked up."""
        return self._expanded(dtype, self.scales.dtype)

    def unrounded(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense matrix [rows, in], of a product; rounded once where ``dtype`` is narrower than fp32."""
        return self._expanded(dtype, torch.float32)

    def _expanded(self, dtype: torch.dtype, computed: torch.dtype) -> torch.Tensor:
        out = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        for rows, halves in self._halves(computed):
            out[rows] = halves.transpose(-1, -2).flatten(-2)
        return out

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., in]`` times this matrix, transposed, in fp32 [..., rows]."""
        permuted = x.float().unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        out = torch.empty((*x.shape[:-1], self.shape[0]), dtype=torch.float32, device=x.device)
        for rows, halves in self._halves(torch.float32):
            out[..., rows] = torch.nn.functional.linear(permuted, halves.flatten(-2))
        return out

    def _halves(self, computed: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
        """Blocks of rows and their weights [rows, 2, in / 2]: the even columns, then the odd ones.

        Interleaving them costs as much as all the rest, so whoever can permutes the activations instead. A
        block is valid until the next one is asked for: fresh memory for each would be faulted in by the
        kernel every time. ``computed`` is what product and sum are each rounded to.
        """
        groups, width = self.scales.shape[1], self.codes.shape[1]
        shape = (min(_BLOCK_ROWS, self.shape[0]), 2, width)
        codes = torch.empty(shape, dtype=torch.uint8, device=self.codes.device)
        weights = torch.empty(shape, dtype=computed, device=self.codes.device)
        for start in range(0, self.shape[0], _BLOCK_ROWS):
            rows = slice(start, min(start + _BLOCK_ROWS, self.shape[0]))
            block = slice(0, rows.stop - start)
            torch.bitwise_and(self.codes[rows], 15, out=codes[block, 0])
            torch.bitwise_right_shift(self.codes[rows], 4, out=codes[block, 1])
            weights[block] = codes[block]
            grouped = weights[block].unflatten(-1, (groups, -1))
            grouped.mul_(self.scales[rows, None, :, None]).add_(self.biases[rows, None, :, None])
            yield rows, weights[block]
