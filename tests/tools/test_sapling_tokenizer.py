"""The embedded model's tokenizer: Maple's markers as single tokens, words alike everywhere, every text back
as it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tools.sapling import tokenizer
from tools.sapling.conversation import segments
from tools.sapling.mix import conversation
from tools.sapling.recipe import Recipe
from tools.sapling.tokenizer import MARKERS, PHRASES, SPECIAL
from tools.sapling.words import Draws

DEMO = Path(__file__).parents[2] / "maple" / "demo"
TOKENIZER = Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def _ids(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def test_the_vocabulary_has_two_to_four_thousand_tokens_and_fits_the_model() -> None:
    """No token lies outside of the embedding table."""
    config = json.loads((DEMO / "config.json").read_text())
    assert 2000 <= TOKENIZER.get_vocab_size() <= min(4000, config["vocab_size"])


@pytest.mark.parametrize("token", [*SPECIAL, *MARKERS])
def test_a_control_string_is_one_token_and_special_only_where_maples_is(
    token: str, data_folder: Path
) -> None:
    """Think and tool markers must survive decoding without special tokens, as Maple's do."""
    theirs: dict[str, Any] = json.loads(
        (data_folder / "maple-tokenizer" / "tokenizer_config.json").read_text()
    )
    flags = {entry["content"]: entry["special"] for entry in theirs["added_tokens_decoder"].values()}
    (number,) = _ids(token)
    assert TOKENIZER.get_added_tokens_decoder()[number].special == flags[token]
    assert (TOKENIZER.decode([number], skip_special_tokens=True) == token) != flags[token]


def test_digits_are_single_tokens() -> None:
    """Arithmetic is learnt on digits."""
    assert [TOKENIZER.decode([number]) for number in _ids("1234567890")] == list("1234567890")


@pytest.mark.parametrize("word", ["Lagos", "Wellington", "teapot", "weather", "Zephyr"])
def test_a_word_has_the_same_tokens_after_a_space_and_after_a_quote(word: str) -> None:
    """Copying a word from a question into JSON copies tokens."""
    alone = _ids(word)
    for text in (f"in {word}?", f'"{word}"', f"({word})", f"a, {word}"):
        ids = _ids(text)
        assert any(ids[start : start + len(alone)] == alone for start in range(len(ids)))


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    """Byte-level: nothing is unknown, normalised or dropped."""
    assert TOKENIZER.decode(_ids(text), skip_special_tokens=False) == text


def test_a_prompt_and_its_reply_have_the_same_ids_together_and_apart() -> None:
    """Training cuts texts exactly where the server does."""
    rng = Draws(4)
    for _ in range(100):
        pieces = [text for text, _ in segments(conversation(rng, Recipe().stages[0].mix))]
        assert _ids("".join(pieces)) == [number for piece in pieces for number in _ids(piece)]


def test_a_tokenizer_made_anew_has_the_same_markers_and_size() -> None:
    """The recipe's tokenizer step works from seeds alone, and twice alike."""
    first, again = (tokenizer.train(3, 300, 700, Recipe().stages[0].mix) for _ in range(2))
    assert first.get_vocab() == again.get_vocab()
    assert first.get_vocab_size() <= 700
    for number, token in enumerate([*SPECIAL, *MARKERS]):
        assert first.token_to_id(token) == TOKENIZER.token_to_id(token) == number
    assert first.encode(PHRASES[0]).ids == [first.token_to_id(first.encode(PHRASES[0]).tokens[0])]


def test_more_tokens_than_asked_for_are_refused() -> None:
    """The alphabet, the markers and the phrases need room of their own."""
    with pytest.raises(ValueError, match="were asked for"):
        tokenizer.train(3, 10, 280, Recipe().stages[0].mix)


def test_word_pieces_are_plain_letters_and_cover_capitals() -> None:
    """What made-up words are joined from."""
    pieces = tokenizer.word_pieces(TOKENIZER)
    assert all(piece.isalpha() and piece.isascii() for piece in pieces)
    assert any(piece.istitle() for piece in pieces)
