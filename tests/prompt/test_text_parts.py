"""A long text in parts has the ids of the whole."""

from __future__ import annotations

import json
import pathlib

import hypothesis
import hypothesis.strategies as st
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from maple import text_parts
from maple.text_parts import TextTokenizer

# What Maple's words begin and end with, and what is composed, joined, folded or dropped by other normalisers.
PIECES = (
    "word", "don't", "I'LL", "'s", "a", "Z", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "1", "42", ".", "...",
    ")(", "e\u0301", "\u0301", "\u00e9", "\u4e2d\u6587", "\u1100\u1161",
    "\U0001f600", "\u200d", "\ufb01", "<|im_end|>", "_",
)  # fmt: skip


@pytest.fixture(scope="module")
def maple(maple_tokenizer_folder: pathlib.Path) -> Tokenizer:
    """Maple-Preview's tokenizer."""
    return Tokenizer.from_file(str(maple_tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def text_tokenizer(maple: Tokenizer) -> TextTokenizer:
    """The one under test."""
    return TextTokenizer(maple)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut at nearly every word."""
    monkeypatch.setattr(text_parts, "_PART", 3)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids without parts; no added token may be found in the text."""
    plain = Tokenizer(tokenizer.model)
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    ids: list[int] = plain.encode(text, add_special_tokens=False).ids
    return ids


@hypothesis.given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=60))
@hypothesis.settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_any_text(
    small_parts: None, maple: Tokenizer, text_tokenizer: TextTokenizer, pieces: list[str]
) -> None:
    """Whatever stands beside the cuts, and wherever they fall."""
    text = "".join(pieces)
    assert text_tokenizer.ids(text) == whole(maple, text)


def test_a_long_text_is_cut(maple: Tokenizer, text_tokenizer: TextTokenizer) -> None:
    """Ten thousand characters are several parts, between words, and nothing of them is lost."""
    words = [
        w[1:] for w in maple.get_vocab() if w.startswith("\u0120") and w[1:].isascii() and w[1:].isalpha()
    ]
    text = " ".join(sorted(words)[:2000])
    parts = list(text_parts._parts(text))
    assert len(parts) >= 8
    assert "".join(parts) == text
    assert all(part[0] == " " and part[1].isalpha() for part in parts[1:])
    assert text_tokenizer.ids(text) == whole(maple, text)


def test_a_text_without_words_stays_whole(maple: Tokenizer, text_tokenizer: TextTokenizer) -> None:
    """Where there is no cut there is one part."""
    text = "1234567890" * 500
    assert list(text_parts._parts(text)) == [text]
    assert text_tokenizer.ids(text) == whole(maple, text)


def test_other_tokenizers_are_left_alone(maple: Tokenizer) -> None:
    """Only Maple's words are known to stand apart; a normaliser or pre-tokeniser of another kind is not looked into."""
    assert text_parts._takes_words_apart(maple)
    model = json.loads(maple.to_str())
    others = [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": model["pre_tokenizer"]["pretokenizers"][1]},
    ]
    for other in others:
        tokenizer = Tokenizer(maple.model)
        changed = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **other}))
        assert not text_parts._takes_words_apart(changed), other
    spaces = Tokenizer(maple.model)
    spaces.normalizer, spaces.pre_tokenizer = normalizers.NFC(), pre_tokenizers.Metaspace()
    assert not text_parts._takes_words_apart(spaces)
