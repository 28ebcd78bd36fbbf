"""Marker search and newline trimming over text that arrives in pieces: what every parser stands on."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import attrs


@attrs.frozen
class Found:
    """One step of a search.

    ``before`` is text that is certain to hold no marker, ``marker`` the marker that follows it (None: none
    yet), and ``end`` the position in the fed piece from which to read on. ``before`` may begin in an earlier
    piece.
    """

    before: str
    marker: str | None
    end: int


@attrs.frozen
class _Markers:
    pattern: re.Pattern[str]
    prefixes: frozenset[str]
    starts: frozenset[str]
    reach: int


@functools.cache
def _compiled(markers: tuple[str, ...]) -> _Markers:
    for marker in markers:
        for other in markers:
            if other != marker and other in marker[:-1]:
                raise ValueError(f"marker {other!r} lies inside {marker!r}")
    return _Markers(
        pattern=re.compile("|".join(map(re.escape, markers))),
        prefixes=frozenset(marker[:size] for marker in markers for size in range(1, len(marker))),
        starts=frozenset(marker[0] for marker in markers),
        reach=max(map(len, markers)) - 1,
    )


class MarkerSearch:
    """Finds the first of some markers in text cut anywhere.

    Holds back the longest end of the text that may yet become a marker: less than the longest marker. No
    marker may lie inside another, save as its end.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = _compiled(tuple(markers))
        self._held = ""

    @property
    def held(self) -> str:
        """The text held back: the beginning of some marker, or nothing."""
        return self._held

    def feed(self, text: str, at: int = 0) -> Found:
        """Search ``text`` from ``at``, as the continuation of everything fed before."""
        held, self._held = self._held, ""
        if not held:
            return self._search(text, at)
        reach = self._markers.reach
        window = held + text[at : at + reach]
        match = self._markers.pattern.search(window)
        if match is not None:
            return Found(window[: match.start()], match.group(), at + match.end() - len(held))
        if len(text) - at <= reach:
            return self._search(window, 0, end=len(text))
        found = self._search(text, at)
        return Found(held + found.before, found.marker, found.end)

    def close(self) -> str:
        """Return what was held: it is text after all."""
        held, self._held = self._held, ""
        return held

    def _search(self, text: str, at: int, *, end: int | None = None) -> Found:
        match = self._markers.pattern.search(text, at)
        if match is not None:
            return Found(text[at : match.start()], match.group(), match.end())
        cut = len(text) - self._partial(text, at)
        self._held = text[cut:]
        return Found(text[at:cut], None, len(text) if end is None else end)

    def _partial(self, text: str, at: int) -> int:
        """Length of the longest end of the text that begins some marker."""
        size = min(len(text) - at, self._markers.reach)
        if self._markers.starts.isdisjoint(text[len(text) - size :]):
            return 0
        while size and text[-size:] not in self._markers.prefixes:
            size -= 1
        return size


class EdgeTrim:
    """Trims newlines next to a block, and keeps all others.

    Newlines are held until it is known whether text or a block follows; those directly after an edge are
    dropped. With ``keeps_line`` one of those dropped stays where there is text on both sides of a block.
    """

    def __init__(self, *, at_edge: bool, keeps_line: bool = False) -> None:
        self._at_edge = at_edge
        self._newlines = 0
        self._keeps_line = keeps_line
        self._dropped = False
        self._any_text = False

    @property
    def at_edge(self) -> bool:
        """Whether nothing but newlines came since the last edge."""
        return self._at_edge

    def text(self, text: str) -> str:
        """Take text and return what of it, and of the newlines held, is certain to stay."""
        body = text.lstrip("\n") if self._at_edge else text
        self._dropped = self._dropped or len(body) < len(text)
        kept = body.rstrip("\n")
        if not kept:
            self._newlines += len(body)
            return ""
        line = self._keeps_line and self._dropped and self._any_text
        certain = "\n" * (self._newlines + line) + kept
        self._newlines = len(body) - len(kept)
        self._at_edge, self._dropped, self._any_text = False, False, True
        return certain

    def edge(self) -> None:
        """A block stands here: drop the newlines before it, and those to come."""
        self._dropped = self._dropped or self._newlines > 0
        self._newlines = 0
        self._at_edge = True

    def close(self) -> str:
        """Return the newlines still held: no block follows them."""
        newlines, self._newlines = self._newlines, 0
        return "\n" * newlines
