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

from tools.sapling.conversation import segments
from tools.sapling.mix import conversation
from tools.sapling.recipe import Recipe
from tools.sapling.tokenizer import MARKERS, SPECIAL
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
        pieces = [text for text, _ in segments(conversation(rng, Recipe().mix))]
        assert _ids("".join(pieces)) == [number for piece in pieces for number in _ids(piece)]


def test_the_tokenizer_is_the_one_that_the_recipe_makes() -> None:
    """The shipped vocabulary comes from seeds, not from a file that nobody can remake."""
    from tools.sapling import tokenizer

    recipe = Recipe()
    made = tokenizer.train(
        recipe.seed, recipe.tokenizer_conversations, recipe.shape.vocabulary, recipe.tokenizer_mix
    )
    assert made.get_vocab() == TOKENIZER.get_vocab()
