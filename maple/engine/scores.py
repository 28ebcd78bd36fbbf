"""What is told of an id's probability: plain data, which the engine's face has."""

from __future__ import annotations

import attrs

LEAST = -9999.0
"""What stands for −∞, which JSON cannot say."""


@attrs.frozen
class Score:
    """The natural logarithm of an id's probability, and of the likeliest ids', in descending order.

    ``logprob`` is None where nothing came before the id. Tokens are the bytes that ids stand for. Where the id is none
    of the likeliest it comes after them, if any were asked for.
    """

    token: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()
