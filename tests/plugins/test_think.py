"""The think parser."""

from __future__ import annotations

import pytest
from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ModelFinish, ReasoningDelta
from maple_plugins.fold import Message
from maple_plugins.kit import ParserCase, replay, single_splits
from maple_plugins.parser import ParserContext, ReasoningParser
from maple_plugins.parsers.none import NoTools
from maple_plugins.parsers.think import ThinkParser


def _split(raw: str, *, inside: bool = True, finish: ModelFinish = "stop") -> tuple[str | None, str | None]:
    case = ParserCase(name=raw, raw=raw, in_reasoning=inside, finish=finish)
    messages = {
        replay(case, pieces, reasoning=ThinkParser) for pieces in ([raw], list(raw), *single_splits(raw))
    }
    (message,) = messages
    return message.reasoning, message.content


@pytest.mark.parametrize(
    ("raw", "reasoning", "content"),
    [
        ("<think><think>r</think>a", "<think>r", "a"),
        ("\n\n<think>\n\nr</think>a", "r", "a"),
        (" <think>r</think>a", " <think>r", "a"),
        ("r<think>s</think>a", "r<think>s", "a"),
        ("<think></think>a", None, "a"),
        ("r</think></think>a", "r", "</think>a"),
        ("r</think>\n\n</think>\n", "r", "</think>\n"),
        ("r\n\n\ns\n\n</think>\n\n\na\n\nb\n", "r\n\n\ns", "a\n\nb\n"),
        ("\r\nr\r\n</think>\r\na", "\r\nr\r", "\r\na"),
        (" \n</think>", " ", ""),
        ("r</think", "r</think", ""),
        ("r\n</", "r\n</", ""),
        ("<thin", "<thin", ""),
        ("r\n\n", "r", ""),
        ("\n\n", None, ""),
    ],
)
def test_reasoning_is_split_from_the_answer(raw: str, reasoning: str | None, content: str) -> None:
    """The latch, the opening marker and the newlines, for a text that starts inside the block."""
    assert _split(raw) == (reasoning, content)
    assert _split(raw, finish="length") == (reasoning, content)


@pytest.mark.parametrize("raw", ["<think>\nr\n</think>\n\nx", "</think>x", "x</think>\n", "<"])
def test_with_thinking_off_all_is_answer(raw: str) -> None:
    """A prompt that closed the block leaves no marker with a meaning."""
    assert _split(raw, inside=False) == (None, raw)


@pytest.mark.parametrize(
    ("raw", "end"),
    [("ab</think>c", 2), ("</think>", 0), ("<think>\nr\n</think>", 10), ("ab\n</th</think>\nc</think>", 7)],
)
def test_reasoning_end_counts_what_came_before_the_closing_marker(raw: str, end: int) -> None:
    """Dropped markers and newlines count too, since the tokens that spelt them were sampled."""
    for pieces in ([raw], list(raw), *single_splits(raw)):
        chain = Chain(ThinkParser(ParserContext(in_reasoning=True)), NoTools(ParserContext()))
        assert chain.reasoning_end is None
        for piece in pieces:
            chain.feed(piece)
        assert chain.reasoning_end == end


def test_reasoning_end_stays_open_with_the_block() -> None:
    """Without a closing marker there is no end, not even when the text is over."""
    parser = ThinkParser(ParserContext(in_reasoning=True))
    parser.feed("r</think")
    parser.close("length")
    assert parser.reasoning_end is None


def test_reasoning_end_is_0_with_thinking_off() -> None:
    """The answer starts at once."""
    parser = ThinkParser(ParserContext(in_reasoning=False))
    parser.feed("x</think>")
    assert parser.reasoning_end == 0


def test_text_flows_while_it_is_certain() -> None:
    """Nothing waits but newlines and the beginning of a marker."""
    parser = ThinkParser(ParserContext(in_reasoning=True))
    fed = [
        list(parser.feed(piece))
        for piece in ("\nWe ", "add.\n", "\nSo", " </thi", "s</think>\n", "\n3", "91\n")
    ]
    assert fed == [
        [ReasoningDelta("We ")],
        [ReasoningDelta("add.")],
        [ReasoningDelta("\n\nSo")],
        [ReasoningDelta(" ")],
        [ReasoningDelta("</this")],
        [ContentDelta("3")],
        [ContentDelta("91\n")],
    ]
    assert list(parser.close("stop")) == []


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<think>\nold\n</think>\nx<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<think>\nold\n</think>\nx<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_the_last_marker_of_a_prompt_says_whether_it_ends_inside(prompt: str, inside: bool) -> None:
    """Earlier turns keep their own blocks, which are closed."""
    assert ThinkParser.prompt_ends_inside(prompt) is inside


def test_it_is_a_reasoning_parser() -> None:
    """The run-time check of the contract holds, with a context of any kind."""
    assert isinstance(ThinkParser(ParserContext()), ReasoningParser)
    assert replay(ParserCase(name="empty", raw=""), [], reasoning=ThinkParser) == Message(
        reasoning=None, content=""
    )
