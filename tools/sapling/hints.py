"""Deep supervision: what the states before the last two layers must know of tools, so that choosing one can form at all.

To choose a tool is to find a word of the question in a definition, whatever its capitals, and to go back to where that
tool's name begins. Neither half formed in 26 million tokens of learning from answers alone; asked for directly, both form
within one. The probes exist in training only.
"""

from __future__ import annotations

import re

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+")


@attrs.frozen
class Hints:
    """Targets for the states before the last two layers; ``positions`` [n] are flat: the definitions' tokens, then the user's."""

    positions: Tensor
    owners: Tensor  # [m, 2] for tokens inside of tools' definitions: where that tool's name's first two words begin
    mentioned: Tensor  # [n - m] for tokens of the user's: 1.0 in a word that a tool's name has too


@attrs.frozen
class Markers:
    """Tokens between the parts of a prompt: before a tool's name, between a name's words, right after a name, after the
    last definition, before what a user says, and the end of a turn; and every token's text.
    """

    tool: int = -1
    joint: int = -1
    after_name: tuple[int, ...] = ()
    end: int = -1
    user: int = -1
    end_of_turn: int = -1
    texts: tuple[str, ...] = ()


@attrs.define
class _Found:
    defined: list[int] = attrs.Factory(list)
    owners: list[tuple[int, int]] = attrs.Factory(list)
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
        torch.tensor(found.owners, dtype=torch.long).reshape(-1, 2),
        torch.tensor(found.mentioned),
    )


def _definitions(ids: list[int], offset: int, markers: Markers, found: _Found) -> None:
    owner: tuple[int, int] | None = None
    for position, token in enumerate(ids):
        if token == markers.tool:
            owner = _first_words(ids, position + 1, markers)
        elif token in (markers.end, markers.end_of_turn):
            owner = None
        elif owner is not None:
            found.defined.append(offset + position)
            found.owners.append(owner)


def _first_words(ids: list[int], start: int, markers: Markers) -> tuple[int, int]:
    """The first token of the name at ``start``, and that of its second word, or the first one again."""
    for position in range(start, len(ids) - 1):
        if ids[position] in markers.after_name:
            break
        if ids[position] == markers.joint:
            return ids[start], ids[position + 1]
    return ids[start], ids[start]


def _mentions(ids: list[int], offset: int, markers: Markers, found: _Found) -> None:
    names: list[int] = []
    naming, asked = False, -1
    for position, token in enumerate(ids):
        if token == markers.tool or token in markers.after_name:
            naming = token == markers.tool
            names.append(markers.joint)
        elif naming:
            names.append(token)
        if token == markers.user:
            asked = position + 1
        elif token == markers.end_of_turn:
            if asked >= 0 and names:
                _flag(ids[asked:position], offset + asked, _words(names, markers), markers, found)
            naming, asked = False, -1


def _words(ids: list[int], markers: Markers) -> frozenset[str]:
    """The words of two letters and more in some tokens, in lower case."""
    text = "".join(markers.texts[token] for token in ids)
    return frozenset(word.lower() for word in _WORD.findall(text) if len(word) > 1)


def _flag(ids: list[int], start: int, named: frozenset[str], markers: Markers, found: _Found) -> None:
    """Flags every token of every word that the names have too, whatever its capitals."""
    inside: set[int] = set()
    text, owners = "", []
    for position, token in enumerate(ids):
        text += markers.texts[token]
        owners += [position] * len(markers.texts[token])
    for word in _WORD.finditer(text):
        if word.group().lower() in named:
            inside.update(owners[word.start() : word.end()])
    found.asked += range(start, start + len(ids))
    found.mentioned += [float(position in inside) for position in range(len(ids))]


class Probes(nn.Module):
    """What reads the hints off the states before the last two layers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.owner = nn.Parameter(torch.zeros(hidden, hidden))
        self.mention = nn.Parameter(torch.zeros(hidden))
        self.bias = nn.Parameter(torch.zeros(()))
        self.second = nn.Parameter(torch.zeros(hidden, hidden))

    def forward(self, states: tuple[Tensor, Tensor], embedding: Tensor, hints: Hints, count: int) -> Tensor:
        """The loss over up to ``count`` of the definitions' tokens, spread evenly, and all of the user's.

        ``states`` are what the layer before the last one and the last one get, [n, hidden] float32 at the hints' positions;
        ``embedding`` is [vocabulary, hidden].
        """
        defined, asked = states[0][: len(hints.owners)], _normed(states[1][len(hints.owners) :])
        loss = 0.0 * (self.owner.sum() + self.second.sum() + self.mention.sum() + self.bias)
        if len(defined):
            chosen = torch.linspace(0, len(defined) - 1, min(count, len(defined))).long()
            read = _normed(defined[chosen]).bfloat16()
            words = embedding.detach().bfloat16().t()
            for weight, owners in zip((self.owner, self.second), hints.owners[chosen].unbind(1), strict=True):
                guessed = (read @ weight.bfloat16() @ words).float()
                loss = loss + 0.5 * functional.cross_entropy(guessed, owners)
        if len(asked):
            loss = loss + functional.binary_cross_entropy_with_logits(
                asked @ self.mention + self.bias, hints.mentioned
            )
        return loss


def _normed(states: Tensor) -> Tensor:
    """At the size in which layers read them: raw ones are large, and a few wrong guesses would drown the answers' loss."""
    return states * states.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
