"""Text to ids, word by word where that is known to give the ids of the whole.

A conversation is tokenised anew at every turn, and a thousand words take milliseconds in which nothing else of the
request can go on, most of all when they are read from memory again because a prefill went through every cache. Maple's
tokenizer looks at each word by itself, so words that were met before are looked up, and a text of many new ones goes to
it in parts side by side. Every other tokenizer gets its text whole.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import cast

from tokenizers import Tokenizer
from tokenizers.models import BPE, Model

__all__ = ["TextTokenizer"]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Maple's tokenizer takes for words."""

_ASCII_WORD = re.compile(
    r"'(?i:s|t|re|ve|m|ll|d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
"""The same in text of ASCII alone."""

_CUT = re.compile("(?<=[A-Za-z])(?= [A-Za-z])")
"""A space between two letters begins a word, whatever is around them."""

_PART = 1000
"""Characters, at least, of a part of a text."""

_MEETING = 4
"""How many words of a text cost as much as one that is met by itself."""

_VOCABULARY_WORD = re.compile("Ġ?[A-Za-z][a-z]*")
"""As byte-level vocabularies spell a word and the space before it."""

_MOST_KNOWN = 1 << 17
_LONGEST_KNOWN = 32
_AT_ONCE = 2000

Ids = tuple[int, ...]


class TextTokenizer:
    """The ids of text without control tokens. Thread safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Share the vocabulary, the normaliser and the pre-tokeniser, but know no added token."""
        self._tokenizer = _with_model(tokenizer, tokenizer.model)
        self._separable = _takes_words_apart(tokenizer)
        self._known: dict[str, Ids] = {}  # only ever grows

    def learn_vocabulary(self) -> None:
        """Meet the words that are tokens themselves: tenths of a second, in any thread."""
        if self._separable:
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
            words = [token.replace("Ġ", " ") for token in vocabulary if _VOCABULARY_WORD.fullmatch(token)]
            for first in range(0, len(words), _AT_ONCE):
                self._meet(words[first : first + _AT_ONCE])

    def ids(self, text: str) -> list[int]:
        """The ids of ``text``: those that the tokenizer gives for it as a whole."""
        if not self._separable:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        words = list(_words(text))
        found = list(map(self._known.get, words))
        if None in found:
            strange = list({word: None for word, ids in zip(words, found, strict=True) if ids is None})
            if len(strange) * _MEETING > len(words):
                return self._side_by_side(text)
            new = self._meet(strange)
            found = [new[word] if ids is None else ids for word, ids in zip(words, found, strict=True)]
        return list(itertools.chain.from_iterable(cast("list[Ids]", found)))

    def _side_by_side(self, text: str) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(list(_parts(text)), add_special_tokens=False)
        return [number for encoding in encodings for number in encoding.ids]

    def _meet(self, words: Sequence[str]) -> dict[str, Ids]:
        """The ids of each word; those that are short are known from now on, as long as there is room."""
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        new = {word: tuple(encoding.ids) for word, encoding in zip(words, encodings, strict=True)}
        room = _MOST_KNOWN - len(self._known)
        short = [word for word in words if len(word) <= _LONGEST_KNOWN]
        self._known.update((word, new[word]) for word in short[: max(room, 0)])
        return new


def _words(text: str) -> Iterator[str]:
    """Words, and for parts that are not ASCII the part."""
    for part in [text] if text.isascii() else _parts(text):
        if part.isascii():
            yield from _ASCII_WORD.findall(part)
        else:
            yield part


def _parts(text: str) -> Iterator[str]:
    """Parts of a thousand characters and what is left of a word, each but the first with the space before it."""
    begin = 0
    while cut := _CUT.search(text, begin + _PART):
        yield text[begin : cut.start()]
        begin = cut.start()
    yield text[begin:]


def _with_model(tokenizer: Tokenizer, model: Model) -> Tokenizer:
    """What is done to text before ``model``, and nothing else of the tokenizer's."""
    plain = Tokenizer(model)
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    return plain


def _takes_words_apart(tokenizer: Tokenizer) -> bool:
    """Whether words stand for themselves: Maple's, and no normaliser that looks across a space."""
    stages = json.loads(_with_model(tokenizer, BPE()).to_str())  # without the vocabulary's megabytes
    match stages["pre_tokenizer"]:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return words == _WORDS and stages["normalizer"] in (None, {"type": "NFC"})
    return False
