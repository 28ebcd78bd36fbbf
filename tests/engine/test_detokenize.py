"""Ids to text: every byte sent once, and no half character."""

from __future__ import annotations

import pathlib

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from maple.engine.detokenize import Detokenizer, TokenBytes

MAPLE_SIZE = 151_669
TRICKY = (
    "naïve 日本語 👩‍👩‍👧 🍁🍁 e\u0301 \u200d\u202e\x00 ﷽ 𝔘𝔫𝔦 \ufffd <think>x</think> <|im_end|>\r\n\t  end"
)


@pytest.fixture(scope="module")
def tokenizer(maple_tokenizer_folder: pathlib.Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(maple_tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def token_bytes(tokenizer: tokenizers.Tokenizer) -> TokenBytes:
    return TokenBytes(tokenizer)


@pytest.fixture(scope="module")
def byte_ids(token_bytes: TokenBytes) -> list[int]:
    """The id of each single byte, by byte."""
    found = {token_bytes[token_id]: token_id for token_id in range(256)}
    return [found[bytes([byte])] for byte in range(256)]


def whole(tokenizer: tokenizers.Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def streamed(token_bytes: TokenBytes, ids: list[int]) -> tuple[str, list[int]]:
    detokenizer = Detokenizer(token_bytes)
    fed = [detokenizer.feed(token_id) for token_id in ids]
    return "".join(text for text, _ in fed) + detokenizer.close(), [offset for _, offset in fed]


@settings(max_examples=200)
@given(st.lists(st.integers(0, MAPLE_SIZE + 200), max_size=40))
def test_any_ids_stream_to_their_whole_decode(
    tokenizer: tokenizers.Tokenizer, token_bytes: TokenBytes, ids: list[int]
) -> None:
    """Random ids, special ones and ids without a token included, give the text of decoding them at once."""
    assert streamed(token_bytes, ids)[0] == whole(tokenizer, ids)


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from([*b"\xf0\x9f\x8d\x81\xe2\x82\xac\xc3\xed\xa0\x80\xff\xf4\x90a", 0x00]), max_size=12
    )
)
def test_invalid_bytes_stream_to_their_whole_decode(
    tokenizer: tokenizers.Tokenizer, token_bytes: TokenBytes, byte_ids: list[int], data: list[int]
) -> None:
    """Truncated, overlong, surrogate and stray bytes give the same replacements as decoding at once."""
    ids = [byte_ids[byte] for byte in data]
    text, offsets = streamed(token_bytes, ids)
    assert text == whole(tokenizer, ids) == bytes(data).decode("utf-8", "replace")
    assert offsets == [offset_of_byte(data, index) for index in range(len(data))]


def offset_of_byte(data: list[int], index: int) -> int:
    """The character that this byte belongs to, from decoding what ends before it and what ends with it."""
    up_to, with_it = (bytes(data[: index + more]).decode("utf-8", "replace") for more in (0, 1))
    return len(with_it) - 1 if len(with_it) > len(up_to) else len(up_to) - 1


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_any_text_survives(tokenizer: tokenizers.Tokenizer, token_bytes: TokenBytes, text: str) -> None:
    """Encoding a text and streaming its ids gives the normalised text back."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert streamed(token_bytes, ids)[0] == whole(tokenizer, ids)


def test_tricky_characters_arrive_whole(tokenizer: tokenizers.Tokenizer, token_bytes: TokenBytes) -> None:
    """Emoji sequences, combining marks and control characters come through, never half a character."""
    ids = tokenizer.encode(TRICKY, add_special_tokens=False).ids
    detokenizer = Detokenizer(token_bytes)
    texts = [detokenizer.feed(token_id)[0] for token_id in ids]
    assert "".join(texts) == whole(tokenizer, ids)
    assert "".join(texts).count("\ufffd") == 1  # the one in the text itself
    assert detokenizer.close() == ""


def test_offsets_point_at_where_each_ids_text_begins(
    tokenizer: tokenizers.Tokenizer, token_bytes: TokenBytes
) -> None:
    """An id's offset is the length of the text before it; inside a character, that character's."""
    ids = tokenizer.encode("We add.\n</think>\n\n391 🍁", add_special_tokens=False).ids
    text, offsets = streamed(token_bytes, ids)
    assert text[offsets[ids.index(151668)] :].startswith("</think>")
    assert offsets == [len(whole(tokenizer, ids[:n]).rstrip("\ufffd")) for n in range(len(ids))]


def test_an_incomplete_tail_becomes_one_replacement(token_bytes: TokenBytes, byte_ids: list[int]) -> None:
    """Three bytes of a four-byte character are held, then become one U+FFFD when the text ends."""
    detokenizer = Detokenizer(token_bytes)
    assert [detokenizer.feed(byte_ids[byte])[0] for byte in b"a\xf0\x9f\x8d"] == ["a", "", "", ""]
    assert detokenizer.close() == "\ufffd"


def test_special_ids_are_text(token_bytes: TokenBytes) -> None:
    """A special id that is not the end gives its own text, as decoding without skipping does."""
    assert streamed(token_bytes, [151644, 151657, 151668])[0] == "<|im_start|><tool_call></think>"


def test_all_ids_with_a_token_are_known(token_bytes: TokenBytes) -> None:
    """Maple's ids with a token are 0 to 151668 without a hole."""
    assert token_bytes.ids().tolist() == list(range(MAPLE_SIZE))


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    """Only byte-level tokenizers can be streamed by bytes; another is a clear error."""
    with pytest.raises(ValueError, match="not byte-level"):
        TokenBytes(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")))
