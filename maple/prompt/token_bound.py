"""How few ids a text can possibly become: refuses hopeless prompts without tokenising them.

Bytes over the longest token would not do: Maple has one of 128 spaces, and 8 MB of digits that it lets through
keep a tokenizer busy for 20 seconds.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders

from maple.engine.detokenize import byte_of_character

SHRINKAGE = 4
"""Normalisation to NFC never makes text this many times shorter."""

_ROUNDING = 1e-6


class TokenBound:
    """Lower bounds on the number of ids, from a tokenizer's vocabulary. Immutable.

    A token that holds a byte is no longer than the longest token with such a byte, so every byte of a text
    costs at least one over that length, and the sum over the text is at most the number of its ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._lengths: dict[int, int] = {}
        for spelt, length in _longest_tokens(tokenizer):
            for byte in spelt:
                self._lengths[byte] = max(self._lengths.get(byte, 1), length)
        self.longest = max(self._lengths.values(), default=1)
        """Bytes of the longest token."""
        self._composes = tokenizer.normalizer is not None

    def least(self, text: str) -> int:
        """The fewest ids that ``text`` can become."""
        if self._composes and not unicodedata.is_normalized("NFC", text):
            text = unicodedata.normalize("NFC", text)
        data = text.encode()
        cost = math.fsum(data.count(byte) / self._lengths.get(byte, self.longest) for byte in set(data))
        return math.ceil(cost - _ROUNDING)


def _longest_tokens(tokenizer: Tokenizer) -> Iterator[tuple[bytes, int]]:
    """Characters of the vocabulary as bytes, each with the bytes of the longest token that has it."""
    byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
    spelling = byte_of_character() if byte_level else {}
    longest: dict[str, int] = {}
    for token in tokenizer.get_vocab(with_added_tokens=False):
        length = len(token) if byte_level else len(token.encode())
        for character in token:
            if longest.get(character, 0) < length:
                longest[character] = length
    for character, length in longest.items():
        yield bytes([spelling[character]]) if character in spelling else character.encode(), length
    for added in tokenizer.get_added_tokens_decoder().values():  # these are plain text in every vocabulary
        yield added.content.encode(), len(added.content.encode())
