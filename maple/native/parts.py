"""From a checkpoint's plan to the parts of a pack, one after another, each checked on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs

from maple.checkpoint.errors import LoadError
from maple.checkpoint.folder import Checkpoint
from maple.checkpoint.progress import LoadTracker
from maple.checkpoint.shards import Array, MappedShards, TensorInfo
from maple.checkpoint.spelling import FLOATS, Affine, Dense, GroupWords, PerExpert, Source, Words
from maple.checkpoint.values import as_bf16, as_float32, require_finite
from maple.native.layout import Layout, MatrixForm, Part
from maple.native.library import KernelError
from maple.native.packing import (
    Kind,
    PackedMatrix,
    Place,
    pack_affine4,
    pack_codes2,
    pack_dense,
    pack_ternary,
)
from maple.native.pages import read_ahead


class NotForKernels(LoadError):
    """A Maple that only the torch path computes, such as one whose rows are not all ternary."""


def packed_parts(
    checkpoint: Checkpoint, layout: Layout, tracker: LoadTracker, *, threads: int
) -> Iterator[tuple[str, Array]]:
    """Yield every part of ``layout`` in its order; the source's pages are given back after each.

    Every row is checked: a ternary one holds -a, 0 and a alone, and nothing is NaN or infinite. Raises
    ``LoadError`` naming the tensor, ``NotForKernels`` for a row or dtype that only torch computes, and
    ``LoadCancelled``.
    """
    packer = _Packer(checkpoint, threads)
    parts = list(layout.parts.values())
    packer.read_ahead(parts[0])
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if following is not None:
            packer.read_ahead(following)
        yield part.name, packer.make(part, tracker)


def require_narrow_scales(checkpoint: Checkpoint) -> None:
    """Raise what packing would raise for scales in a wider dtype; those in bf16, most of all, are not read."""
    files = MappedShards(checkpoint.shards)
    for source in checkpoint.plan.sources.values():
        for name in ("alpha", "scales", "biases"):
            info: TensorInfo | None = getattr(source, name, None)
            if info is not None and info.dtype != "BF16":
                _bf16_scales(info, files.view(info))


class _Packer:
    def __init__(self, checkpoint: Checkpoint, threads: int) -> None:
        self._plan = checkpoint.plan
        self._slots = {slot.name: slot for slot in checkpoint.plan.sources}
        self._files = MappedShards(checkpoint.shards)
        self._threads = threads

    def read_ahead(self, part: Part) -> None:
        """Have the system read what a part will be made from, while another is made."""
        read_ahead(self._files.view(info) for info in self._infos(part))

    def make(self, part: Part, tracker: LoadTracker) -> Array:
        """The bytes of one part."""
        form = part.matrix
        made = self._stored(part) if form is None or form.kind is not Kind.TERNARY else self._rows(part, form)
        for info in self._infos(part):
            tracker.advance(info)
        self._files.release()
        return made

    def _infos(self, part: Part) -> Iterator[TensorInfo]:
        for rows in part.rows:
            yield from self._plan.parts(self._slots[rows.slot])

    # -- norms, router, tables

    def _stored(self, part: Part) -> Array:
        """A part that is made from one slot and is not packed in rows of two bits."""
        slot = self._slots[part.rows[0].slot]
        match self._plan.sources[slot], part.matrix:
            case Dense() as source, None:
                numbers = self._finite(source.weight)
                return as_float32(source.weight, numbers) if part.dtype == "F32" else numbers
            case Dense() as source, MatrixForm() as form:
                numbers = self._finite(source.weight)
                exact = numbers if source.weight.dtype == "BF16" else as_float32(source.weight, numbers)
                return pack_dense(exact, (form.rows, form.cols), form.kind, threads=self._threads).data
            case Affine() as source, None:
                return (
                    self._files.view(source.weight)
                    if part.field == "weight"
                    else self._scales(getattr(source, part.field))
                )
            case Affine() as source, MatrixForm() as form:
                words, scales, biases = (
                    self._files.view(source.weight),
                    self._scales(source.scales),
                    self._scales(source.biases),
                )
                return pack_affine4(words, scales, biases, (form.rows, form.cols), threads=self._threads).data
        raise NotForKernels(f"tensor {slot.name}.weight is stored as no norm, router or table is")

    def _finite(self, info: TensorInfo) -> Array:
        numbers = self._files.view(info)
        require_finite(info, numbers)
        return numbers

    def _scales(self, info: TensorInfo) -> Array:
        return _bf16_scales(info, self._files.view(info))

    # -- ternary matrices

    def _rows(self, part: Part, form: MatrixForm) -> Array:
        packed = PackedMatrix.empty(form.kind, form.rows, form.cols, form.count)
        for rows in part.rows:
            source = self._plan.sources[self._slots[rows.slot]]
            self._pack(source, Place(into=packed, first=rows.first, step=rows.step))
        return packed.data

    def _pack(self, source: Source, place: Place) -> None:
        match source:
            case Words():
                self._pack_words(source, self._scales(source.alpha), place)
            case GroupWords():
                self._pack_words(source, self._row_alpha(source), place)
            case Dense():
                self._pack_floats(source.weight, source.rows, place)
            case PerExpert():
                for i, info in enumerate(source.weights):
                    self._pack_floats(info, None, attrs.evolve(place, matrix=i))
            case Affine():
                raise NotForKernels(
                    f"tensor {source.weight.name} is a table in four bits where rows were expected"
                )

    def _pack_words(self, source: Words | GroupWords, alpha: Array, place: Place) -> None:
        words = self._files.view(source.weight)
        scales = _cut(alpha[..., None], source.rows)
        for i, matrices in _runs(_cut(words, source.rows)):
            count, rows, width = matrices.shape
            with self._named(source.weight):
                pack_codes2(
                    matrices,
                    scales.reshape(-1, rows)[i : i + count],
                    (count, rows, width * 16),
                    attrs.evolve(place, matrix=place.matrix + i),
                    threads=self._threads,
                )

    def _row_alpha(self, source: GroupWords) -> Array:
        """Scales in groups must agree along the row, and each bias be its scale's negative."""
        scales, biases = self._scales(source.scales), self._scales(source.biases)
        if (scales != scales[..., :1]).any() or ((biases ^ 0x8000) != scales).any():
            raise NotForKernels(
                f"tensor {source.weight.name}: its groups are not ternary with one scale a row"
            )
        return scales[..., 0].copy()

    def _pack_floats(self, info: TensorInfo, rows: tuple[int, int] | None, place: Place) -> None:
        for i, matrices in _runs(_cut(self._files.view(info), rows), apart=info.dtype != "BF16"):
            with self._named(info):
                bits = as_bf16(info, matrices)
                if bits is None:
                    raise KernelError(f"dtype {info.dtype} holds weights that bf16 does not hold exactly")
                count, height, width = matrices.shape
                pack_ternary(
                    bits,
                    (count, height, width),
                    attrs.evolve(place, matrix=place.matrix + i),
                    threads=self._threads,
                )

    @contextlib.contextmanager
    def _named(self, info: TensorInfo) -> Iterator[None]:
        """Name the tensor whose rows the kernels refuse; where they are not even finite, say that."""
        try:
            yield
        except KernelError as error:
            if info.dtype in FLOATS:
                self._finite(info)
            raise NotForKernels(f"tensor {info.name}: {error}") from error


def _bf16_scales(info: TensorInfo, scales: Array) -> Array:
    """Scales or biases as the kernels hold them; raises ``NotForKernels`` where bf16 does not hold them exactly."""
    require_finite(info, scales)
    narrow = as_bf16(info, scales)
    if narrow is None:
        raise NotForKernels(
            f"tensor {info.name} has dtype {info.dtype} and a scale that bf16 does not hold exactly"
        )
    return narrow


def _cut(stack: Array, rows: tuple[int, int] | None) -> Array:
    """The rows of one projection out of a fused tensor [..., rows, columns], as a view."""
    return stack if rows is None else stack[..., slice(*rows), :]


def _runs(stack: Array, *, apart: bool = False) -> Iterator[tuple[int, Array]]:
    """Matrices [count, rows, columns] that lie together, and the index of the first.

    One by one where rows were cut out of each, or where converting all at once would take much memory.
    """
    matrices = stack.reshape(-1, *stack.shape[-2:])
    if matrices.flags.c_contiguous and not apart:
        yield 0, matrices
        return
    for i in range(len(matrices)):
        yield i, matrices[i : i + 1]
