"""Native CPU kernels: a whole step of Maple in C++, with the instruction set chosen at run time.

`available()` says whether and how they run here; `NativeModel` binds packed weights and runs steps; the
`pack_*` functions bring matrices into the kernels' layout, and `checkpoint` finds them in a folder. No torch is
imported.
"""

from __future__ import annotations

from maple.kernels._library import KernelError, KernelInfo, Unavailable, available
from maple.kernels.native import (
    KV_BLOCK_TOKENS,
    EmbeddingWeights,
    LayerWeights,
    ModelShape,
    ModelWeights,
    NativeModel,
    StepSlice,
)
from maple.kernels.packing import (
    Kind,
    PackedMatrix,
    Place,
    pack_affine4,
    pack_codes2,
    pack_dense,
    pack_ternary,
)

__all__ = [
    "KV_BLOCK_TOKENS",
    "EmbeddingWeights",
    "KernelError",
    "KernelInfo",
    "Kind",
    "LayerWeights",
    "ModelShape",
    "ModelWeights",
    "NativeModel",
    "PackedMatrix",
    "Place",
    "StepSlice",
    "Unavailable",
    "available",
    "pack_affine4",
    "pack_codes2",
    "pack_dense",
    "pack_ternary",
]
