"""Tensors of mapped files as torch's."""

from __future__ import annotations

import torch

from maple.checkpoint.shards import MappedShards, TensorInfo


def tensor_of(files: MappedShards, info: TensorInfo) -> torch.Tensor:
    """A view of the mapped file, which must be mapped ``copy_on_write``; a copy where the file left it unaligned."""
    array = files.view(info)
    tensor = torch.from_numpy(array if array.flags.aligned else array.copy())
    return tensor.view(torch.bfloat16) if info.dtype == "BF16" else tensor
