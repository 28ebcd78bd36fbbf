"""Ids to text, one id at a time, with nothing lost and no half character sent.

A byte-level tokenizer's ids stand for bytes, so the text is those bytes decoded incrementally. The library's
own ``DecodeStream`` is not used: it holds invalid bytes for as long as they go on and has no way to give up its
tail, so the end of a text that stops inside a character would be lost.
"""

from __future__ import annotations

import codecs
import functools

import numpy
import numpy.typing
import tokenizers
from tokenizers import decoders


@functools.cache
def byte_of_character() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable Latin-1 stands for itself, the other bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


class TokenBytes:
    """The bytes that each id stands for; special ids stand for their own text. One serves all sequences.

    Raises ValueError for a tokenizer that is not byte-level. An id without a token stands for no bytes, as in
    the library's own decoding.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            raise ValueError("the tokenizer is not byte-level")  # noqa: TRY004 - the type is right, its content is not
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """All ids that have a token, ascending."""
        return numpy.sort(
            numpy.fromiter(self._tokenizer.get_vocab(with_added_tokens=True).values(), numpy.int64)
        )

    def _look_up(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""
        alphabet = byte_of_character()
        if all(character in alphabet for character in token):
            return bytes(alphabet[character] for character in token)
        return token.encode()


class Detokenizer:
    """One sequence's text: all it returns, joined, is the whole-sequence decode with special ids as text."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def feed(self, token_id: int) -> tuple[str, int]:
        """The text that this id makes certain, and the offset of the character with the id's first byte."""
        data = self._token_bytes[token_id]
        offset = self._characters
        held: bytes = self._decoder.getstate()[0]
        if held and data:
            before, after = (len(part.decode("utf-8", "replace")) for part in (held, held + data[:1]))
            offset += before if after > before else before - 1
        text = self._decoder.decode(data)
        self._characters += len(text)
        return text, offset

    def close(self) -> str:
        """The text has ended: one U+FFFD if it ends inside a character."""
        return self._decoder.decode(b"", final=True)
