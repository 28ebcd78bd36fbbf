"""Marker search and newline trimming."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maple_plugins.spans import EdgeTrim, MarkerSearch

MARKERS = ("<a>", "</a>", "<abb", ">>")


def _search_all(pieces: list[str], markers: tuple[str, ...]) -> list[str]:
    """Texts and markers in turn, by feeding the pieces one after another."""
    search = MarkerSearch(markers)
    found, text = [], ""
    for piece in pieces:
        at = 0
        while at < len(piece):
            step = search.feed(piece, at)
            at = step.end
            text += step.before
            if step.marker is not None:
                found += [text, step.marker]
                text = ""
    return [*found, text + search.close()]


def _cut(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(st.text("<>/ab", max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_search_finds_what_a_search_of_the_whole_text_finds(text: str, cuts: list[int]) -> None:
    """Markers are found leftmost first, whatever the cuts."""
    assert _search_all(_cut(text, cuts), MARKERS) == re.split("(<a>|</a>|<abb|>>)", text)


@given(st.text("<>/ab", max_size=40))
def test_search_holds_only_the_beginning_of_a_marker(text: str) -> None:
    """What is held back begins some marker, and is shorter than it."""
    search = MarkerSearch(MARKERS)
    for char in text:
        search.feed(char)
        assert search.held == "" or any(
            marker.startswith(search.held) and marker != search.held for marker in MARKERS
        )


def test_search_reads_on_from_a_position() -> None:
    """Only the text from the given position counts."""
    found = MarkerSearch(["<a>"]).feed("<a>x<a>y", 3)
    assert (found.before, found.marker, found.end) == ("x", "<a>", 7)


def test_held_text_is_text_once_the_text_is_over() -> None:
    """Closing a search releases the beginning of a marker, once."""
    search = MarkerSearch(["<tool_call>"])
    search.feed("x<tool")
    assert (search.held, search.close(), search.close()) == ("<tool", "<tool", "")


def test_a_marker_inside_another_is_refused() -> None:
    """A search that would have to guess between two markers cannot be made."""
    with pytest.raises(ValueError, match="marker 'b' lies inside 'abc'"):
        MarkerSearch(["abc", "b"])


def test_a_marker_that_ends_another_is_fine() -> None:
    """The longer marker begins first, so there is nothing to guess."""
    assert _search_all(list("x</a>y>z"), ("</a>", ">")) == ["x", "</a>", "y", ">", "z"]


@given(
    st.lists(st.one_of(st.none(), st.text("\nab ", max_size=4)), max_size=12), st.booleans(), st.booleans()
)
def test_trimming_drops_newlines_next_to_edges_only(
    parts: list[str | None], at_edge: bool, keeps_line: bool
) -> None:
    """None stands for a block: newlines beside it go but for one, if wanted, between texts; all others stay."""
    trim = EdgeTrim(at_edge=at_edge, keeps_line=keeps_line)
    sent = "|" if at_edge else ""
    for part in parts:
        if part is None:
            trim.edge()
            sent += "|"
        else:
            sent += trim.text(part)
    marked = ("|" if at_edge else "") + "".join("|" if part is None else part for part in parts)
    trimmed = re.sub(r"\n*\|\n*", "|", marked)
    sent += trim.close()
    if keeps_line:
        assert sent.replace("|", "").replace("\n", "") == trimmed.replace("|", "").replace("\n", "")
        between = (found[0] for found in re.finditer(r"(?<=[^|\n])[\n|]*\|[\n|]*(?=[^|\n])", marked))
        assert sent.count("\n") - trimmed.count("\n") == sum("\n" in gap for gap in between)
    else:
        assert sent == trimmed


def test_no_newline_is_sent_before_text_follows() -> None:
    """Newlines wait for what comes, however many there are."""
    trim = EdgeTrim(at_edge=False)
    assert [trim.text("a\n"), trim.text("\n\n"), trim.text("b"), trim.close()] == ["a", "", "\n\n\nb", ""]


def test_an_edge_lasts_until_text_comes() -> None:
    """Newlines after an edge are dropped piece by piece."""
    trim = EdgeTrim(at_edge=True)
    assert (trim.text("\n\n"), trim.at_edge) == ("", True)
    assert (trim.text("\n a"), trim.at_edge) == (" a", False)
