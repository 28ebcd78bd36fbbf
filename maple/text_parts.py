"""Text to ids, a long text in parts side by side.

A conversation is tokenised anew at every turn, and a thousand words take milliseconds in which nothing else of the
request can go on. Parts that are cut between two words have the same ids as the whole, provided that the tokenizer
looks at each word by itself; that is known of Maple's, and every other tokenizer gets its text whole.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from tokenizers import Tokenizer
from tokenizers.models import BPE

__all__ = ["TextTokenizer"]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Maple's tokenizer takes for words: a space between two letters begins one, whatever is around them."""

_CUT = re.compile("(?<=[A-Za-z])(?= [A-Za-z])")
_PART = 1000
"""Characters of a part at least: enough to be worth handing to another thread."""


class TextTokenizer:
    """The ids of text without control tokens. Thread safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Share the vocabulary, the normaliser and the pre-tokeniser, but know no added token."""
        self._tokenizer = Tokenizer(tokenizer.model)
        self._tokenizer.normalizer = tokenizer.normalizer
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        self._separable = _takes_words_apart(tokenizer)

    def ids(self, text: str) -> list[int]:
        """The ids of ``text``, the same whether or not it was taken in parts."""
        if not self._separable or len(text) < 2 * _PART:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        encodings = self._tokenizer.encode_batch_fast(list(_parts(text)), add_special_tokens=False)
        return list(itertools.chain.from_iterable(encoding.ids for encoding in encodings))


def _parts(text: str) -> Iterator[str]:
    """Parts of a thousand characters and what is left of a word, each but the first with the space before it."""
    begin = 0
    while cut := _CUT.search(text, begin + _PART):
        yield text[begin : cut.start()]
        begin = cut.start()
    yield text[begin:]


def _takes_words_apart(tokenizer: Tokenizer) -> bool:
    """Whether a cut between words cannot show: Maple's words, and no normaliser that looks across a space."""
    small = Tokenizer(BPE())
    small.normalizer, small.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    stages = json.loads(small.to_str())
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
