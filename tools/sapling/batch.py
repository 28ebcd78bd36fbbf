"""Samples of unequal length as one flat row of tokens, with a plan of how to group them for attention."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from tools.sapling.hints import Hints, Markers, hints

ROUND = 64
NOT_LEARNT = -100
NO_MARKERS = Markers()
_ROUND_LENGTH = 16


@attrs.frozen
class Group:
    """Samples of like length, next to each other in the flat row: where they start, and how they fill a
    padded block.
    """

    start: int
    end: int
    padded: Tensor  # [samples, longest] positions in the group's part of the row; padding repeats position 0
    filled: Tensor  # [end − start] positions in the flattened padded block


@attrs.frozen
class Batch:
    """Flat tokens [n], their positions within their samples [n], groups, and what is learnt."""

    ids: Tensor
    positions: Tensor
    groups: tuple[Group, ...]
    learnt: Tensor  # indices into the row whose next token is learnt, filled up with 0 to a multiple of ROUND
    targets: Tensor  # those next tokens, filled up with NOT_LEARNT
    hints: Hints


def make_batch(
    samples: list[tuple[list[int], list[bool]]], groups: int = 4, markers: Markers = NO_MARKERS
) -> Batch:
    """Packs (ids, learnt flags) samples; a flag says that the token itself is to be predicted."""
    ordered = sorted(samples, key=lambda sample: len(sample[0]))
    ids = [token for sample, _ in ordered for token in sample]
    learnt, targets, offset = [], [], 0
    for sample, flags in ordered:
        for position in range(1, len(sample)):
            if flags[position]:
                learnt.append(offset + position - 1)
                targets.append(sample[position])
        offset += len(sample)
    missing = -len(learnt) % ROUND
    lengths = [len(sample) for sample, _ in ordered]
    return Batch(
        torch.tensor(ids),
        torch.cat([torch.arange(length) for length in lengths]),
        tuple(_grouped(lengths, groups)),
        torch.tensor(learnt + [0] * missing, dtype=torch.long),
        torch.tensor(targets + [NOT_LEARNT] * missing, dtype=torch.long),
        hints([sample for sample, _ in ordered], markers),
    )


def _grouped(lengths: list[int], count: int) -> list[Group]:
    groups, start, taken = [], 0, 0
    for part in range(count):
        end = len(lengths) * (part + 1) // count
        members, taken = lengths[taken:end], end
        if not members:
            continue
        longest = -(-max(members) // _ROUND_LENGTH) * _ROUND_LENGTH
        padded = torch.zeros(len(members), longest, dtype=torch.long)
        filled, offset = [], 0
        for row, length in enumerate(members):
            padded[row, :length] = torch.arange(offset, offset + length)
            filled.append(torch.arange(row * longest, row * longest + length))
            offset += length
        groups.append(Group(start, start + offset, padded, torch.cat(filled)))
        start += offset
    return groups
