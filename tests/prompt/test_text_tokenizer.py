"""Word by word, a text has the ids of the whole."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Iterator

import hypothesis
import hypothesis.strategies as st
import pytest
from maple_protocols.ask import RawText
from maple_testing.guard import HANG_GUARD
from structlog.testing import capture_logs
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from maple.prompt import text_tokenizer
from maple.prompt.encode import PromptEncoder, PromptPool
from maple.prompt.text_tokenizer import TextTokenizer

# What Maple's words begin and end with, and what is composed, joined, folded or dropped by other normalisers.
PIECES = (
    "word", "don't", "I'LL", "'s", "a", "Z", " ", "  ", "\n", "\r\n", "\t", "\v", "\x1c", "\x00", "\x7f", "1", "42",
    ".", "...", ")(", "_", "<|im_end|>", "https://a.b/c?d=e",
)  # fmt: skip
OTHERS = (
    "\u00a0", "\u3000", "\u0085", "\u017f", "e\u0301", "\u0301", "\u00e9", "\u4e2d\u6587", "\u1100\u1161", "\U0001f600",
    "\u200d", "\ufb01", "\u00bd", "\u2163", "\u201cquoted\u201d", "\u2014",
)  # fmt: skip
ASCII = st.one_of(st.sampled_from(PIECES), st.text(st.characters(max_codepoint=127), max_size=4))
ANY = st.one_of(ASCII, st.sampled_from(OTHERS), st.text(max_size=4))


@pytest.fixture(scope="module")
def maple(maple_tokenizer_folder: pathlib.Path) -> Tokenizer:
    """Maple-Preview's tokenizer."""
    return Tokenizer.from_file(str(maple_tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def ready(maple: Tokenizer) -> TextTokenizer:
    """The one under test, which has met the vocabulary."""
    tokenizer = TextTokenizer(maple)
    tokenizer.learn_vocabulary()
    return tokenizer


@pytest.fixture(scope="module")
def small_parts() -> Iterator[None]:
    """A cut at nearly every word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_tokenizer, "_PART", 3)
        yield


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of the text in one piece; no added token may be found in it."""
    plain = Tokenizer(tokenizer.model)
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    ids: list[int] = plain.encode(text, add_special_tokens=False).ids
    return ids


@hypothesis.given(st.lists(ASCII, max_size=60))
@hypothesis.settings(max_examples=500, deadline=None)
def test_any_ascii_text(maple: Tokenizer, ready: TextTokenizer, pieces: list[str]) -> None:
    """Every word is one of Maple's words, control characters and runs of spaces included."""
    text = "".join(pieces)
    assert ready.ids(text) == whole(maple, text)


@hypothesis.given(st.lists(ANY, max_size=60))
@hypothesis.settings(max_examples=500, deadline=None)
def test_any_text(small_parts: None, maple: Tokenizer, ready: TextTokenizer, pieces: list[str]) -> None:
    """Whatever stands beside the cuts, and wherever they fall."""
    text = "".join(pieces)
    assert ready.ids(text) == whole(maple, text)


def test_every_known_word_has_its_own_ids(maple: Tokenizer, ready: TextTokenizer) -> None:
    """What was met beforehand is what the tokenizer says: thousands of words, most of them one token."""
    words = [word for word in ready._known if word.startswith(" ")]
    assert len(words) > 20_000
    assert sum(len(ready._known[word]) == 1 for word in words) > 20_000
    text = "".join(words[:5000])
    assert ready.ids(text) == whole(maple, text)


def test_a_long_text_that_is_not_ascii_is_cut(maple: Tokenizer, ready: TextTokenizer) -> None:
    """Ten thousand characters are several parts, between words, and nothing of them is lost."""
    text = "caf\u00e9 " + "the quick brown fox " * 500
    parts = list(text_tokenizer._parts(text))
    assert len(parts) >= 8
    assert "".join(parts) == text
    assert all(part[0] == " " and part[1].isalpha() for part in parts[1:])
    assert ready.ids(text) == whole(maple, text)


def test_a_text_without_words_stays_whole() -> None:
    """Where there is no cut there is one part."""
    text = "\u4e2d1234567890" * 500
    assert list(text_tokenizer._parts(text)) == [text]


def strange(count: int) -> str:
    """As many words that are in no vocabulary, each among five times the same."""
    words = (f" q{chr(97 + i % 26)}x{chr(97 + i // 26 % 26)}z" for i in range(count))
    return "".join(f"{word} and the rest of it" for word in words)


def test_strange_words_are_met_once(maple: Tokenizer) -> None:
    """Where few are new they are known afterwards; a text of nothing else goes to the tokenizer as it is."""
    tokenizer = TextTokenizer(maple)
    text = strange(300)
    new = "".join(f" q{chr(97 + i % 26)}y{chr(97 + i // 26)}" for i in range(600))
    for unmet in (new, text, text):
        assert tokenizer.ids(unmet) == whole(maple, unmet)
    assert len(tokenizer._known) == 305
    assert " qaxaz" in tokenizer._known


def test_what_is_known_is_bounded(maple: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client fills the memory with words: neither with many nor with long ones."""
    monkeypatch.setattr(text_tokenizer, "_MOST_KNOWN", 100)
    tokenizer = TextTokenizer(maple)
    text = "y" * 500 + strange(300)
    for _ in range(2):
        assert tokenizer.ids(text) == whole(maple, text)
        assert len(tokenizer._known) == 100
    assert max(map(len, tokenizer._known)) <= 32


def test_threads_may_share_it(maple: Tokenizer) -> None:
    """Eight threads meet the same new words at once."""
    tokenizer = TextTokenizer(maple)
    text = strange(500)
    wanted, answers = whole(maple, text), []
    threads = [threading.Thread(target=lambda: answers.append(tokenizer.ids(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [wanted] * 8


def test_other_tokenizers_are_left_alone(maple: Tokenizer) -> None:
    """Only Maple's words are known to stand apart; a normaliser or pre-tokeniser of another kind is not looked into."""
    assert text_tokenizer._takes_words_apart(maple)
    stages = json.loads(maple.to_str())
    others = [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": stages["pre_tokenizer"]["pretokenizers"][1]},
    ]
    small = json.loads(Tokenizer(maple.model).to_str())
    for other in others:
        changed = Tokenizer.from_str(json.dumps({**small, **other}))
        assert not text_tokenizer._takes_words_apart(changed), other


def test_a_tokenizer_that_joins_words_gets_its_text_whole(maple: Tokenizer) -> None:
    """One whose words are lines has other ids for a line than for its words."""
    lines = Tokenizer(maple.model)
    lines.normalizer, lines.pre_tokenizer = normalizers.NFC(), pre_tokenizers.Metaspace()
    tokenizer = TextTokenizer(lines)
    tokenizer.learn_vocabulary()
    text = "the quick brown fox " * 300
    assert tokenizer.ids(text) == whole(lines, text) != whole(maple, text)


def test_the_pool_meets_the_vocabulary_by_itself(maple_tokenizer_folder: pathlib.Path) -> None:
    """Nobody waits for it."""
    encoder = PromptEncoder(maple_tokenizer_folder)
    pool = PromptPool(encoder)
    try:
        assert encoder.encode(RawText(text="hi"), thinking=True, limit=10).text == "hi"
        deadline = time.monotonic() + HANG_GUARD
        while " about" not in encoder._text._known:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        pool.close()


def test_a_failure_to_warm_is_logged(golden_encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are encoded all the same."""

    def fail(self: TextTokenizer) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(TextTokenizer, "learn_vocabulary", fail)
    with capture_logs() as logs:
        pool = PromptPool(golden_encoder)
        deadline = time.monotonic() + HANG_GUARD
        while not logs and time.monotonic() < deadline:
            time.sleep(0.01)
        pool.close()
    assert [line["event"] for line in logs] == ["prompt.warming_failed"]
