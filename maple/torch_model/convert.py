"""From a checkpoint's tensors to the model's: packed where the rows allow it, dense where they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import structlog
import torch

from maple.checkpoint.errors import LoadError
from maple.checkpoint.progress import LoadTracker
from maple.checkpoint.shards import MappedShards, TensorInfo
from maple.checkpoint.slots import Slot
from maple.checkpoint.spelling import Affine, Dense, GroupWords, PerExpert, Plan, Source, Words
from maple.checkpoint.values import as_bf16, require_finite
from maple.torch_model import ternary
from maple.torch_model.affine import AffineTensor
from maple.torch_model.mapped import tensor_of
from maple.torch_model.ternary import TernaryTensor

Weights = TernaryTensor | AffineTensor | torch.Tensor

log = structlog.get_logger(__name__)


class Converter:
    """Reads a plan's tensors one by one; those of the source are dropped before the next is read.

    Two-bit words and tables are views of the mapped file; everything else owns its memory. With ``pack`` false,
    float tensors stay dense. ``ready`` holds what was made from the same files before; then those files have
    been scanned before, too, and are not again.
    """

    def __init__(
        self,
        files: MappedShards,
        tracker: LoadTracker,
        *,
        pack: bool,
        ready: Mapping[str, Weights] | None = None,
    ) -> None:
        self._files = files
        self._tracker = tracker
        self._pack_floats = pack
        self._ready = ready or {}
        self._verify = ready is None

    def convert(self, plan: Plan) -> Iterator[tuple[Slot, Weights]]:
        """Yield the model's tensors in its order.

        Raises ``LoadError`` naming a tensor that holds NaN, infinity or the unused two-bit code, and
        ``LoadCancelled``.
        """
        for slot, source in plan.sources.items():
            yield slot, self._ready[slot.name] if slot.name in self._ready else self._one(slot, source)
            for part in plan.parts(slot):
                self._tracker.advance(part)
            self._files.release()

    def _read(self, info: TensorInfo) -> torch.Tensor:
        return tensor_of(self._files, info)

    def _one(self, slot: Slot, source: Source) -> Weights:
        match source:
            case Dense():
                return self._dense(slot, source)
            case PerExpert():
                return self._per_expert(slot, source)
            case Words():
                return self._words(source)
            case GroupWords():
                return self._group_words(source)
            case Affine():
                return self._affine(source)

    def _dense(self, slot: Slot, source: Dense) -> Weights:
        weight = _cut(self._read(source.weight), source.rows)
        packed = self._pack(source.weight, weight) if slot.kind == "ternary" else None
        if packed is not None:
            return packed
        self._require_finite(source.weight)
        return weight if slot.kind == "table" else weight.clone()

    def _per_expert(self, slot: Slot, source: PerExpert) -> Weights:
        """Pack expert after expert into one stack; the first that is not ternary leaves all of them dense."""
        stack = TernaryTensor.empty(slot.shape)
        for i, info in enumerate(source.weights):
            packed = self._pack(info, self._read(info))
            if packed is None:
                return self._dense_experts(slot, source)
            stack[i] = packed
            self._tracker.advance(info)
            self._files.release()
        return stack

    def _dense_experts(self, slot: Slot, source: PerExpert) -> torch.Tensor:
        stack = torch.empty(slot.shape, dtype=self._read(source.weights[0]).dtype)
        for i, info in enumerate(source.weights):
            self._require_finite(info)
            stack[i] = self._read(info)
            self._tracker.advance(info)
        return stack

    def _words(self, source: Words) -> TernaryTensor:
        words, alpha = self._read(source.weight), self._scales(source.alpha)
        rows = slice(None) if source.rows is None else slice(*source.rows)
        return self._checked(source.weight, ternary.from_words(_cut(words, source.rows), alpha[..., rows]))

    def _group_words(self, source: GroupWords) -> Weights:
        parts = self._read(source.weight), self._scales(source.scales), self._scales(source.biases)
        words, scales, biases = (_cut(part, source.rows) for part in parts)
        alpha = scales[..., 0].contiguous()
        tensor = self._checked(source.weight, ternary.from_words(words, alpha))
        if torch.equal(biases, -scales) and bool((scales == alpha.unsqueeze(-1)).all()):
            return tensor
        log.warning("model.dense", tensor=source.weight.name, reason="group scales of a row differ")
        return _ungrouped(tensor, scales, biases)

    def _affine(self, source: Affine) -> AffineTensor:
        words, scales, biases = (
            self._read(source.weight),
            self._scales(source.scales),
            self._scales(source.biases),
        )
        return AffineTensor(words.view(torch.uint8), scales, biases)

    def _pack(self, info: TensorInfo, weight: torch.Tensor) -> TernaryTensor | None:
        if not self._pack_floats:
            return None
        try:
            return ternary.pack(weight)
        except ternary.NotTernaryError as error:
            log.warning("model.dense", tensor=info.name, row=error.row, reason="row is not ternary")
            return None
        except ternary.NonFiniteWeightError as error:
            raise LoadError(f"tensor {info.name} holds NaN or infinity") from error

    def _require_finite(self, info: TensorInfo) -> None:
        if self._verify:
            require_finite(info, self._files.view(info))

    def _scales(self, info: TensorInfo) -> torch.Tensor:
        """Finite scales or biases; those in a wider dtype that bf16 holds exactly become bf16.

        Weights are rounded to the dtype of their scales, so the same numbers must not mean different weights.
        """
        self._require_finite(info)
        if info.dtype == "BF16":
            return self._read(info)
        narrow = as_bf16(info, self._files.view(info))
        return self._read(info) if narrow is None else torch.from_numpy(narrow).view(torch.bfloat16)

    def _checked(self, info: TensorInfo, tensor: TernaryTensor) -> TernaryTensor:
        row = ternary.check_codes(tensor) if self._verify else None
        if row is not None:
            raise LoadError(f"tensor {info.name} holds the code 3, which stands for no weight, in row {row}")
        return tensor


def _cut(weight: torch.Tensor, rows: tuple[int, int] | None) -> torch.Tensor:
    """The rows of one projection of a fused tensor, as a view."""
    return weight if rows is None else weight[..., slice(*rows), :]


def _ungrouped(tensor: TernaryTensor, scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Dense rows, scale * code + bias, in the scales' dtype, one leading matrix at a time."""
    if len(tensor.shape) == 3:
        parts = zip(range(tensor.shape[0]), scales, biases, strict=True)
        return torch.stack([_ungrouped(tensor[i], s, b) for i, s, b in parts])
    ones = torch.ones_like(tensor.alpha, dtype=torch.float32)
    codes = TernaryTensor(tensor.codes, ones).dense(torch.float32) + 1
    grouped = codes.unflatten(-1, (scales.shape[-1], -1))
    dense = grouped * scales.float().unsqueeze(-1) + biases.float().unsqueeze(-1)
    flat: torch.Tensor = dense.flatten(-2)
    return flat.to(scales.dtype)
