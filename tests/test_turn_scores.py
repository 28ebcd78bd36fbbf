"""Which score travels with which text, whatever the parsers make of it."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta
from maple_plugins.kit import ParserCase
from maple_plugins.parser import ParserContext
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.think import ThinkParser
from maple_protocols.scored import ScoredContent, TokenScore, scores_of

from maple.engine.scores import Score
from maple.turn_scores import ScoredText

CASES = [
    ParserCase.from_json(line)
    for line in (pathlib.Path(__file__).parent / "data/cases/parser.jsonl").read_text("utf-8").splitlines()
]


def chain(case: ParserCase) -> Chain:
    context = ParserContext(in_reasoning=case.in_reasoning, tools=case.tools)
    return Chain(ThinkParser(context), MapleToolParser(context))


def tokens_of(data: bytes, random_: random.Random) -> list[Score]:
    """The bytes as tokens of one to six bytes; their numbers stand for log probabilities."""
    tokens: list[Score] = []
    while data:
        size = random_.randint(1, 6)
        tokens.append(Score(data[:size], -float(len(tokens))))
        data = data[size:]
    return tokens


def run(
    text: ScoredText,
    raw: str,
    tokens: Sequence[Score],
    random_: random.Random,
    finish: ModelFinish = "stop",
) -> list[ParserEvent]:
    """Every event of a text that comes in pieces, no score later than the first of its text."""
    events: list[ParserEvent] = []
    left = list(tokens)
    told = 0
    while raw:
        size = random_.randint(1, 9)
        piece, raw = raw[:size], raw[size:]
        told -= len(piece.encode())
        ready = []
        while left and told < 0:
            told += len(left[0].token)
            ready.append(left.pop(0))
        events += text.feed(piece, ready)
    return [*events, *text.feed("", left), *text.close(finish)]


def joined(events: Iterable[ParserEvent]) -> list[object]:
    """Neighbouring deltas of a kind as one, and all else as it is."""
    found: list[object] = []
    for event in events:
        if not isinstance(event, ReasoningDelta | ContentDelta):
            found.append(event)
            continue
        kind = "reasoning" if isinstance(event, ReasoningDelta) else "content"
        last = found[-1] if found else None
        if isinstance(last, tuple) and last[0] == kind:
            found[-1] = (kind, last[1] + event.text)
        else:
            found.append((kind, event.text))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_text_is_made_of_its_tokens(case: ParserCase) -> None:
    """However the text is cut into tokens and pieces: the events are the parsers' own, and each delta's text is what
    its scores show, which is one entry a token, in order.
    """
    plain = chain(case)
    wanted = joined([*plain.feed(case.raw), *plain.close(case.finish)])
    for seed in range(20):
        random_ = random.Random(seed)  # noqa: S311 - cuts, no secrets
        tokens = tokens_of(case.raw.encode(), random_)
        events = run(ScoredText(chain(case)), case.raw, tokens, random_, case.finish)
        assert joined(events) == wanted
        for event in events:
            if isinstance(event, ReasoningDelta | ContentDelta):
                entries = scores_of(event)
                assert b"".join(one.shown for one in entries) == event.text.encode()
                assert all(one.shown in one.token for one in entries)
                numbers = [-(one.logprob or 0) for one in entries]
                assert numbers == sorted(set(numbers))


BEGINNINGS = st.sampled_from([b"a", b"\xed", b"\xa0", b"\xf0\x90", b"\xe2\x80", b"\x80", b"\xff", b"\xc3"])
"""Bytes that begin a character, end one, or can do neither: of them come the replacements that span several."""


@given(
    data=st.binary(max_size=40) | st.lists(BEGINNINGS, max_size=8).map(b"".join), seed=st.integers(0, 2**32)
)
def test_bytes_that_are_no_text_are_shown_as_what_stands_for_them(data: bytes, seed: int) -> None:
    """The replacement character belongs to the token with the first of the bytes that it replaces."""
    random_ = random.Random(seed)  # noqa: S311 - cuts, no secrets
    raw = data.decode("utf-8", "replace")
    events = run(ScoredText(None), raw, tokens_of(data, random_), random_)
    shown = b"".join(
        one.shown for event in events if isinstance(event, ContentDelta) for one in scores_of(event)
    )
    assert shown == raw.encode()


def test_a_score_goes_out_once_with_all_that_is_shown_of_its_token() -> None:
    """A delta waits for the rest of a token; what a stop string has cut off is not waited for beyond the end."""
    text = ScoredText(None)
    first, second = Score(b"a b", -1.0, ((b"x", -0.5),)), Score(b"c STOP", -2.0)
    assert text.feed("a ", [first]) == []
    assert text.feed("b", [second]) == [
        ScoredContent("a b", (TokenScore(token=b"a b", shown=b"a b", logprob=-1.0, top=((b"x", -0.5),)),))
    ]
    assert text.feed("c ", []) == []
    assert text.close("stop") == [
        ScoredContent("c ", (TokenScore(token=b"c STOP", shown=b"c ", logprob=-2.0),))
    ]


def test_text_that_comes_without_scores_is_not_held() -> None:
    """A recording has no model behind it."""
    text = ScoredText(None)
    assert text.feed("ab", []) == [ScoredContent("ab")]
