"""How those tensors are held that a checkpoint or a setting may hold in different ways."""

from __future__ import annotations

import attrs

from maple.checkpoint.errors import LoadError
from maple.checkpoint.slots import Slot
from maple.checkpoint.spelling import Affine, Dense, Plan
from maple.native.packing import GROUP, Kind

_STORED = {"BF16": Kind.BF16, "F16": Kind.F32, "F32": Kind.F32}
"""Float32 holds every number of the two others."""


@attrs.frozen(kw_only=True)
class Forms:
    """How those tensors are held that a checkpoint or a setting may hold in different ways."""

    router: Kind
    embedding: Kind
    head: Kind

    @classmethod
    def of(cls, plan: Plan, head_dtype: str) -> Forms:
        """As a checkpoint stores them; ``head_dtype`` int8 narrows a head that is stored in bf16.

        Raises ``LoadError`` for a form that the kernels do not read.
        """
        stored = {slot.name: _stored(plan, slot) for slot in plan.sources if _is_plain(slot)}
        head = stored["lm_head"]
        if head is Kind.BF16 and head_dtype == "int8":
            head = Kind.INT8
        routers = {kind for name, kind in stored.items() if name.endswith(".mlp.gate")}
        router = Kind.F32 if Kind.F32 in routers else Kind.BF16
        return cls(router=router, embedding=stored["model.word_embeddings"], head=head)

    @classmethod
    def from_names(cls, names: object) -> Forms:
        """From a manifest's ``forms``; raises ``LoadError``."""
        fields = [field.name for field in attrs.fields(cls)]
        if not isinstance(names, dict) or sorted(names) != sorted(fields):
            raise LoadError("the pack's manifest does not say how its tensors are held")
        if not all(name in Kind.__members__ for name in names.values()):
            raise LoadError("the pack's manifest names a kind of tensor that is not known")
        return cls(**{field: Kind[name] for field, name in names.items()})

    def names(self) -> dict[str, str]:
        """For a manifest."""
        return {field.name: getattr(self, field.name).name for field in attrs.fields(type(self))}


def _is_plain(slot: Slot) -> bool:
    return slot.kind == "table" or slot.name.endswith(".mlp.gate")


def _stored(plan: Plan, slot: Slot) -> Kind:
    source = plan.sources[slot]
    if isinstance(source, Affine):
        if source.scales.shape[-1] * GROUP != slot.shape[-1]:
            raise LoadError(f"tensor {source.weight.name} is not in groups of {GROUP}")
        return Kind.AFFINE4
    if not isinstance(source, Dense):
        raise LoadError(f"tensor {slot.name}.weight is neither of floats nor in four bits")
    return _STORED[source.weight.dtype]
