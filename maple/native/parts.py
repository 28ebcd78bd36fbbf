"""From a checkpoint of any spelling to the parts of a pack, one after another, each checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from maple.checkpoint.errors import LoadError
from maple.checkpoint.folder import Checkpoint
from maple.checkpoint.progress import LoadTracker
from maple.checkpoint.shards import TensorInfo
from maple.checkpoint.slots import Slot
from maple.native.layout import Layout, Part
from maple.native.library import KernelError
from maple.native.pages import read_ahead
from maple.native.raw_checkpoint import Reader, StoredTensors

__all__ = ["NotForKernels", "packed_parts"]

Array = npt.NDArray[Any]
_BLOCK = 1 << 22
# Bits of the exponent: all of them set means NaN or infinity.
_EXPONENT = {"BF16": (np.uint16, 0x7F80), "F16": (np.uint16, 0x7C00), "F32": (np.uint32, 0x7F800000)}


class NotForKernels(LoadError):
    """A Maple that only the torch path computes, such as one whose rows are not all ternary."""


def packed_parts(
    checkpoint: Checkpoint, layout: Layout, tracker: LoadTracker, *, threads: int
) -> Iterator[tuple[str, Array]]:
    """Yield every part of `layout` in its order; the source's pages are given back after each.

    Every row is checked: a ternary one holds -a, 0 and a alone, and nothing is NaN or infinite. Raises
    `LoadError` naming the tensor, `NotForKernels` for a row or dtype that only torch computes, and
    `LoadCancelled`.
    """
    packer = _Packer(checkpoint, layout, tracker, threads)
    parts = list(layout.parts.values())
    packer.read_ahead(parts[0])
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if following is not None:
            packer.read_ahead(following)
        yield part.name, packer.make(part)


class _Packer:
    def __init__(self, checkpoint: Checkpoint, layout: Layout, tracker: LoadTracker, threads: int) -> None:
        self._plan = checkpoint.plan
        self._slots = {slot.name: slot for slot in checkpoint.plan.sources}
        self._layout = layout
        self._tracker = tracker
        self._tensors = StoredTensors(checkpoint.folder)
        self._reader = Reader(self._tensors, layout.shape, threads)

    def read_ahead(self, part: Part) -> None:
        """Have the system read what a part will be made from, while another is made."""
        read_ahead(
            self._tensors[info.name].data
            for name in part.slots
            for info in self._plan.parts(self._slots[name])
        )

    def make(self, part: Part) -> Array:
        """The bytes of one part."""
        slots = [self._slots[name] for name in part.slots]
        for slot in slots:
            self._require_finite(slot)
        try:
            made = self._make(part)
        except KernelError as e:
            for slot in slots:
                self._require_finite(slot, everything=True)
            raise NotForKernels(f"tensor {_name(part)}: {e}") from e
        for slot in slots:
            for info in self._plan.parts(slot):
                self._tracker.advance(info)
        self._tensors.release()
        return made

    def _make(self, part: Part) -> Array:
        stem, _, last = part.name.rpartition(".")
        if part.dtype == "F32" and part.name != "embedding":
            return self._reader.floats(f"{part.slots[0]}.weight")
        makers: dict[str, Callable[[], Array]] = {
            "head": lambda: (
                self._reader.head("int8" if self._layout.forms.head.name == "INT8" else "auto").data
            ),
            "embedding": lambda: self._reader.embedding().data,
            "embedding.scales": lambda: _present(self._reader.embedding().scales),
            "embedding.biases": lambda: _present(self._reader.embedding().biases),
        }
        if part.name in makers:
            return makers[part.name]()
        model = f"model.{stem}."
        attention, mlp = f"{model}self_attn.", f"{model}mlp."
        reader = self._reader
        in_layer: dict[str, Callable[[], Array]] = {
            "router": lambda: (
                reader.dense(reader.tensor(f"{mlp}gate.weight"), self._layout.shape.experts, "auto").data
            ),
            "qkv": lambda: reader.qkv(attention).data,
            "output": lambda: reader.output(attention).data,
            "gate_up": lambda: reader.gate_up(mlp).data,
            "down": lambda: reader.down(mlp).data,
        }
        return in_layer[last]()

    def _require_finite(self, slot: Slot, *, everything: bool = False) -> None:
        """Check a slot's float tensors; the rows of a ternary one are checked as they are packed."""
        for info in self._plan.parts(slot):
            if info.dtype in _EXPONENT and (everything or not _is_packed(slot, info)):
                self._check_finite(info)

    def _check_finite(self, info: TensorInfo) -> None:
        dtype, exponent = _EXPONENT[info.dtype]
        data = self._tensors[info.name].data.view(np.uint8)
        for begin in range(0, data.size, _BLOCK):
            bits = np.frombuffer(data[begin : begin + _BLOCK], dtype)
            if ((bits & exponent) == exponent).any():
                raise LoadError(f"tensor {info.name} holds NaN or infinity")


def _is_packed(slot: Slot, info: TensorInfo) -> bool:
    return (
        slot.kind == "ternary" and len(info.shape) >= len(slot.shape) - 1 and info.shape[-1] == slot.shape[-1]
    )


def _present(array: Array | None) -> Array:
    if array is None:
        raise KernelError("a table has no scales")
    return array


def _name(part: Part) -> str:
    return part.slots[0] if part.slots else part.name
