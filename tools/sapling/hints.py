"""Deep supervision: what the states before the last two layers must know of tools, so that choosing one can form at all.

To choose a tool is to find a word of the question in a definition and to go back to where that tool's name begins. Neither
half formed in 26 million tokens of learning from answers alone; asked for directly, both form within one. The probes exist
in training only.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional


@attrs.frozen
class Hints:
    """Targets for the states before the last two layers; `positions` [n] are flat: the definitions' tokens, then the user's."""

    positions: Tensor
    owners: Tensor  # for tokens inside of tools' definitions: the first token of that tool's name
    mentioned: Tensor  # for tokens of the user's: 1.0 where a tool's name has that token too


@attrs.frozen
class Markers:
    """Tokens between the parts of a prompt: before a tool's name, between a name's words, right after a name, after the
    last definition, before what a user says, and the end of a turn.
    """

    tool: int = -1
    joint: int = -1
    after_name: tuple[int, ...] = ()
    end: int = -1
    user: int = -1
    end_of_turn: int = -1


@attrs.define
class _Found:
    defined: list[int] = attrs.Factory(list)
    owners: list[int] = attrs.Factory(list)
    asked: list[int] = attrs.Factory(list)
    mentioned: list[float] = attrs.Factory(list)


def hints(samples: list[list[int]], markers: Markers) -> Hints:
    """The targets for samples that follow each other in one flat row."""
    found, offset = _Found(), 0
    for ids in samples:
        _definitions(ids, offset, markers, found)
        _mentions(ids, offset, markers, found)
        offset += len(ids)
    return Hints(
        torch.tensor(found.defined + found.asked, dtype=torch.long),
        torch.tensor(found.owners, dtype=torch.long),
        torch.tensor(found.mentioned),
    )


def _definitions(ids: list[int], offset: int, markers: Markers, found: _Found) -> None:
    owner: int | None = None
    for position, token in enumerate(ids):
        if token == markers.tool:
            owner = ids[position + 1]
        elif token in (markers.end, markers.end_of_turn):
            owner = None
        elif owner is not None:
            found.defined.append(offset + position)
            found.owners.append(owner)


def _mentions(ids: list[int], offset: int, markers: Markers, found: _Found) -> None:
    named: set[int] = set()
    naming = asking = False
    for position, token in enumerate(ids):
        if token == markers.tool:
            naming = True
        elif token in markers.after_name:
            naming = False
        elif naming and token != markers.joint:
            named.add(token)
        if token == markers.user:
            asking = True
        elif token == markers.end_of_turn:
            asking = naming = False
        elif asking and named:
            found.asked.append(offset + position)
            found.mentioned.append(float(token in named))


class Probes(nn.Module):
    """What reads the hints off the states before the last two layers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.owner = nn.Parameter(torch.zeros(hidden, hidden))
        self.mention = nn.Parameter(torch.zeros(hidden))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, states: tuple[Tensor, Tensor], embedding: Tensor, hints: Hints, count: int) -> Tensor:
        """The loss over up to `count` of the definitions' tokens, spread evenly, and all of the user's.

        `states` are what the layer before the last one and the last one get, [n, hidden] float32 at the hints' positions;
        `embedding` is [vocabulary, hidden].
        """
        defined, asked = states[0][: len(hints.owners)], states[1][len(hints.owners) :]
        loss = 0.0 * (self.owner.sum() + self.mention.sum() + self.bias)
        if len(defined):
            chosen = torch.linspace(0, len(defined) - 1, min(count, len(defined))).long()
            guessed = defined[chosen].bfloat16() @ self.owner.bfloat16() @ embedding.detach().bfloat16().t()
            loss = loss + functional.cross_entropy(guessed.float(), hints.owners[chosen])
        if len(asked):
            loss = loss + functional.binary_cross_entropy_with_logits(
                asked @ self.mention + self.bias, hints.mentioned
            )
        return loss
