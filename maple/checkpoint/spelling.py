"""Under which names and in which forms a checkpoint may hold the tensors of a Maple."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

from maple.checkpoint.errors import LoadError
from maple.checkpoint.fields import MapleFields
from maple.checkpoint.shards import FLASHHEAD, TensorInfo
from maple.checkpoint.slots import Slot, model_slots

FLOATS = ("BF16", "F16", "F32")
_WORD_CODES = 16  # two-bit codes in a 32-bit word
_TABLE_CODES = 8  # four-bit codes in a 32-bit word
_IGNORED = re.compile(rf"\.mlp\.gate\.expert_bias$|{FLASHHEAD}")


@attrs.frozen(kw_only=True)
class Dense:
    """A float tensor; ``rows`` cuts a projection out of a fused one, in its second to last dimension."""

    weight: TensorInfo
    rows: tuple[int, int] | None = None


@attrs.frozen(kw_only=True)
class PerExpert:
    """One float tensor an expert."""

    weights: tuple[TensorInfo, ...]


@attrs.frozen(kw_only=True)
class Words:
    """Two-bit words with one scale a row."""

    weight: TensorInfo
    alpha: TensorInfo
    rows: tuple[int, int] | None = None


@attrs.frozen(kw_only=True)
class GroupWords:
    """Two-bit words with a scale and a bias per group of columns."""

    weight: TensorInfo
    scales: TensorInfo
    biases: TensorInfo
    rows: tuple[int, int] | None = None


@attrs.frozen(kw_only=True)
class Affine:
    """Four-bit words with a scale and a bias per group of columns."""

    weight: TensorInfo
    scales: TensorInfo
    biases: TensorInfo


Source = Dense | PerExpert | Words | GroupWords | Affine


@attrs.frozen(kw_only=True)
class Plan:
    """Where each slot of the model comes from, in the model's order."""

    sources: Mapping[Slot, Source]

    def parts(self, slot: Slot) -> tuple[TensorInfo, ...]:
        """The checkpoint's tensors behind one slot."""
        source = self.sources[slot]
        if isinstance(source, PerExpert):
            return source.weights
        fields = attrs.asdict(source, recurse=False).values()
        return tuple(part for part in fields if isinstance(part, TensorInfo))


def resolve(config: MapleFields, tensors: Mapping[str, TensorInfo]) -> Plan:
    """Find every slot of the model among a checkpoint's tensors.

    Raises ``LoadError`` naming the first tensor that is missing, misshapen, of a dtype that does not fit, or
    surplus.
    """
    finder = _Finder(tensors)
    plan = Plan(sources={slot: finder.source(slot) for slot in model_slots(config)})
    finder.check_surplus()
    return plan


class _Finder:
    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = tensors
        self._used: set[str] = set()

    def source(self, slot: Slot) -> Source:
        if slot.fused is not None and f"{slot.fused[0]}.weight" in self._tensors:
            base, rows, total = slot.fused
            shape = (*slot.shape[:-2], total, slot.shape[-1])
            return self._matrix(slot, f"{base}.weight", shape, rows)
        for name in _names(slot):
            if name in self._tensors:
                return self._matrix(slot, name, slot.shape, None)
        if len(slot.shape) == 3:
            return self._per_expert(slot)
        raise LoadError(f"tensor {slot.name}.weight is missing")

    def check_surplus(self) -> None:
        for name in self._tensors:
            if name not in self._used and not _IGNORED.search(name):
                raise LoadError(f"tensor {name} is not part of a Maple of this shape")

    def _matrix(self, slot: Slot, name: str, shape: tuple[int, ...], rows: tuple[int, int] | None) -> Source:
        info = self._tensors[name]
        if info.dtype != "U32":
            return Dense(weight=self._take(name, shape, FLOATS), rows=rows)
        if slot.kind == "dense":
            raise LoadError(f"tensor {name} is quantised, which no Maple stores so")
        base = name.removesuffix(".weight")
        if slot.kind == "table":
            return self._affine(base, shape)
        return self._words(base, name, shape, rows)

    def _affine(self, base: str, shape: tuple[int, ...]) -> Affine:
        groups = self._groups(f"{base}.scales", shape)
        return Affine(
            weight=self._take(
                f"{base}.weight", _divide_last(f"{base}.weight", shape, _TABLE_CODES), ("U32",)
            ),
            scales=self._take(f"{base}.scales", (*shape[:-1], groups), FLOATS),
            biases=self._take(f"{base}.biases", (*shape[:-1], groups), FLOATS),
        )

    def _words(self, base: str, name: str, shape: tuple[int, ...], rows: tuple[int, int] | None) -> Source:
        weight = self._take(name, _divide_last(name, shape, _WORD_CODES), ("U32",))
        if f"{base}.row_alpha" in self._tensors:
            return Words(weight=weight, alpha=self._take(f"{base}.row_alpha", shape[:-1], FLOATS), rows=rows)
        if f"{base}.scales" not in self._tensors:
            raise LoadError(f"tensor {base}.row_alpha is missing")
        groups = self._groups(f"{base}.scales", shape)
        return GroupWords(
            weight=weight,
            scales=self._take(f"{base}.scales", (*shape[:-1], groups), FLOATS),
            biases=self._take(f"{base}.biases", (*shape[:-1], groups), FLOATS),
            rows=rows,
        )

    def _groups(self, name: str, shape: tuple[int, ...]) -> int:
        """How many groups of columns a row has, from the scales themselves."""
        info = self._tensors.get(name)
        if info is None:
            raise LoadError(f"tensor {name} is missing")
        groups = info.shape[-1] if info.shape else 0
        if groups < 1 or shape[-1] % groups or shape[-1] // groups % 2:
            raise LoadError(
                f"tensor {name} has {groups} groups a row, which do not divide {shape[-1]} columns"
            )
        return groups

    def _per_expert(self, slot: Slot) -> PerExpert:
        experts, matrix = slot.shape[0], slot.shape[1:]
        base, projection = slot.name.rsplit(".", 1)
        names = [f"{base}.{e}.{projection}_proj.weight" for e in range(experts)]
        return PerExpert(weights=tuple(self._take(name, matrix, FLOATS) for name in names))

    def _take(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> TensorInfo:
        info = self._tensors.get(name)
        if info is None:
            raise LoadError(f"tensor {name} is missing")
        if info.shape != shape:
            raise LoadError(f"tensor {name} has shape {list(info.shape)} where {list(shape)} was expected")
        if info.dtype not in dtypes:
            raise LoadError(f"tensor {name} has dtype {info.dtype} where {' or '.join(dtypes)} was expected")
        self._used.add(name)
        return info


def _names(slot: Slot) -> Iterator[str]:
    if len(slot.shape) < 3:
        yield f"{slot.name}.weight"
        return
    base, projection = slot.name.rsplit(".", 1)
    yield f"{base.removesuffix('.experts')}.switch_mlp.{projection}_proj.weight"
    yield f"{base}.{projection}_proj.weight"
    yield f"{base}.{projection}_proj"


def _divide_last(name: str, shape: tuple[int, ...], by: int) -> tuple[int, ...]:
    if shape[-1] % by:
        raise LoadError(f"tensor {name} packs {shape[-1]} columns into words of {by}")
    return (*shape[:-1], shape[-1] // by)
