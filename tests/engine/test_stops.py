"""Stop strings: cut at the earliest match, with no prefix of one sent."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
from maple_testing.guard import LINEAR_GUARD

from maple.engine.stops import StopMatcher


def cut_at_leftmost(text: str, stops: list[str]) -> tuple[str, bool]:
    """What the matcher must leave of a whole text, said in the simplest way."""
    starts = [start for stop in stops if (start := text.find(stop)) >= 0]
    return (text[: min(starts)], True) if starts else (text, False)


def play(pieces: list[str], stops: list[str], behind: str | None = None) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops, behind)
    sent = []
    for piece in pieces:
        sent.append(matcher.feed(piece))
        if matcher.matched:
            break
    return [*sent, matcher.close()], matcher.matched


letters = st.text("ab", min_size=1, max_size=6)


@given(st.lists(st.text("abc", max_size=5), max_size=12), st.lists(letters, max_size=4))
def test_every_way_of_cutting_the_text_leaves_what_the_whole_text_leaves(
    pieces: list[str], stops: list[str]
) -> None:
    """However text arrives, what is sent is the text before the leftmost occurrence of any stop string."""
    sent, matched = play(pieces, stops)
    assert ("".join(sent), matched) == cut_at_leftmost("".join(pieces), stops)


@given(st.lists(st.text("abc", max_size=5), max_size=12), st.lists(letters, max_size=4), letters)
def test_nothing_is_cut_before_what_must_come_first(pieces: list[str], stops: list[str], behind: str) -> None:
    """Up to the end of the first ``behind`` all text is sent; from there on the text is cut as any other."""
    text = "".join(pieces)
    before, found, after = text.partition(behind)
    cut, matched = cut_at_leftmost(after, stops)
    sent, was_matched = play(pieces, stops, behind)
    assert ("".join(sent), was_matched) == (before + found + cut, matched)


@given(st.lists(st.text("abc", max_size=5), max_size=12), st.lists(letters, min_size=1, max_size=4))
def test_what_is_sent_never_shrinks_whatever_follows(pieces: list[str], stops: list[str]) -> None:
    """What was sent is a prefix of the answer to every continuation, a match right there included."""
    matcher = StopMatcher(stops)
    sent, text = "", ""
    for piece in pieces:
        sent += matcher.feed(piece)
        text += piece
        for stop in stops:
            for length in range(len(stop) + 1):
                continued, _ = cut_at_leftmost(text + stop[length:], stops)
                assert continued.startswith(sent)


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_any_characters_may_be_stop_strings(text: str, stops: list[str]) -> None:
    """Characters that mean something in patterns are taken as they are."""
    sent, matched = play(list(text), stops)
    assert ("".join(sent), matched) == cut_at_leftmost(text, stops)


def test_text_that_cannot_start_a_stop_string_is_not_held() -> None:
    """Only a proper prefix of a stop string is ever held back."""
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed("hello\n") == "hello"
    assert matcher.feed("world") == "\nworld"
    assert matcher.feed("\n\nUser") == ""
    assert matcher.close() == "\n\nUser"
    assert not matcher.matched


def test_a_match_waits_for_an_earlier_one_that_may_still_complete() -> None:
    """The leftmost occurrence wins even when another one is complete first."""
    matcher = StopMatcher(["abcd", "c"])
    assert [(matcher.feed(piece), matcher.matched) for piece in ("xabc", "d")] == [("x", False), ("", True)]
    assert matcher.close() == ""


def test_a_match_stands_when_the_earlier_one_fails() -> None:
    """A complete match is cut at once the stop string that began before it can no longer complete."""
    matcher = StopMatcher(["abcd", "c"])
    assert matcher.feed("xabc") + matcher.feed("x") == "xab"
    assert matcher.matched


def test_text_after_the_match_is_dropped() -> None:
    """Nothing follows the cut, in the same piece or later."""
    matcher = StopMatcher(["END"])
    assert matcher.feed("one END two") == "one "
    assert matcher.feed("three") == ""
    assert matcher.close() == ""


def test_sixteen_long_stop_strings_cost_little_over_a_long_answer() -> None:
    """Text that keeps almost matching 16 stop strings of 1,000 characters costs microseconds a character."""
    stops = ["a" * (999 - n) + "b" * (n + 1) for n in range(16)]
    pieces = ["aaaa"] * 8_000
    started = time.process_time()
    sent, matched = play(pieces, stops)
    assert time.process_time() - started < LINEAR_GUARD
    assert not matched
    assert "".join(sent) == "a" * 32_000
