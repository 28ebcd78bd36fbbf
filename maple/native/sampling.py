"""Choosing ids by the kernels, all rows of a step side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from maple.engine.sampling import SampleRow
from maple.native.library import Sampling
from maple.native.model import NativeModel

Array = npt.NDArray[np.generic]


class NativeSampling:
    """The ``SampleRows`` of a model's kernels."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model

    def __call__(self, rows: Sequence[SampleRow]) -> list[int]:
        """An id for each row, −1 where the logits allow none."""
        kept: list[Array] = []  # what the structures point into
        found = (Sampling * len(rows))(*(_structure(row, kept) for row in rows))
        if rows:
            self._model.sample(found, len(rows), rows[0].limit)
        return [one.chosen for one in found]


def _structure(row: SampleRow, kept: list[Array]) -> Sampling:
    def address(values: object, dtype: type[np.generic]) -> int | None:
        array = np.ascontiguousarray(values, dtype)
        kept.append(array)
        return array.ctypes.data if array.size else None

    sampling = row.sampling
    return Sampling(
        logits=address(row.logits, np.float32),
        mask=None if row.mask is None else address(row.mask, np.uint32),
        seen=address(row.seen, np.int32),
        counted=address(row.counted, np.int32),
        counts=address(row.counts, np.int32),
        biased=address(row.biased, np.int32),
        bias=address(row.bias, np.float32),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence,
        frequency=sampling.frequency,
        fraction=row.fraction,
        top_k=min(sampling.top_k, 2**31 - 1),
        seen_count=len(row.seen),
        counted_count=len(row.counted),
        bias_count=len(row.biased),
        chosen=-1,
    )
