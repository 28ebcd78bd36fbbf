"""Stop strings over a stream: held back while they may still match, cut at the leftmost match."""

from __future__ import annotations

import re
from collections.abc import Sequence


class _Needle:
    """One stop string and how much of it the text so far ends with (Knuth, Morris and Pratt's matching).

    The border table grows only as far as the text ever matched, so a long stop string costs nothing up front.
    """

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = [0]

    @property
    def complete(self) -> bool:
        return self.matched == len(self.text)

    def step(self, char: str) -> None:
        """Take one more character; not to be called once complete."""
        length = self.matched
        while length and self.text[length] != char:
            length = self._borders[length - 1]
        if self.text[length] == char:
            length += 1
        self.matched = length
        while len(self._borders) < length:
            self._grow()

    def _grow(self) -> None:
        borders, text = self._borders, self.text
        char = text[len(borders)]
        length = borders[-1]
        while length and text[length] != char:
            length = borders[length - 1]
        borders.append(length + 1 if text[length] == char else length)


class StopMatcher:
    """Cuts a text at the leftmost occurrence of any stop string, however the text arrives.

    ``feed`` returns what is certain: never any part of the occurrence at which the cut falls. A match that is
    complete is not final while another stop string that began before it may still complete; ``matched`` is True
    once it is. Each character is looked at once, and most of them not even by Python. ``behind`` is a text up to
    whose first end nothing is cut.
    """

    __slots__ = (
        "_active",
        "_behind",
        "_cut",
        "_first",
        "_held",
        "_needles",
        "_sent",
        "_tail",
        "matched",
        "word",
    )

    def __init__(self, stops: Sequence[str], behind: str | None = None) -> None:
        self.matched = False
        self.word: str | None = None
        """The stop string that begins first; final once ``matched``."""
        self._behind = behind
        self._tail = ""
        self._needles = [_Needle(stop) for stop in dict.fromkeys(stops)]
        firsts = "".join({re.escape(stop[0]) for stop in stops})
        self._first: re.Pattern[str] | None = re.compile(f"[{firsts}]") if firsts else None
        self._active: list[_Needle] = []
        self._held = ""
        self._sent = 0
        self._cut: int | None = None

    def feed(self, text: str) -> str:
        """Take more text; return the part of all text so far that is certain and was not returned before."""
        if self._first is None:
            return text
        if self.matched:
            return ""
        passed = text[: self._passed(text)] if self._behind else ""
        self._sent += len(passed)
        self._scan(self._first, text[len(passed) :])
        self._held += text[len(passed) :]
        return passed + self._release(self._certain())

    def skip(self, text: str) -> str:
        """Pass text on in which nothing is looked for; only before anything was."""
        if self._behind:
            self._passed(text)
        self._sent += len(text)
        return text

    def close(self) -> str:
        """The text is over: return what was held and is no part of a match. ``matched`` is final after this."""
        if self._cut is not None:
            self.matched = True
        return self._release(self._cut if self._cut is not None else self._sent + len(self._held))

    def _passed(self, text: str) -> int:
        """How many characters of ``text`` lie before the end of what must come first."""
        behind = self._behind or ""
        window = self._tail + text
        found = window.find(behind)
        if found < 0:
            self._tail = window[-(len(behind) - 1) :] if len(behind) > 1 else ""
            return len(text)
        self._behind = None
        return found + len(behind) - len(self._tail)

    def _scan(self, first: re.Pattern[str], text: str) -> None:
        offset = self._sent + len(self._held)
        position = 0
        while position < len(text) and not self.matched:
            if not self._active:
                start = first.search(text, position)
                if start is None:
                    break
                position = start.start()
            self._step(text[position], offset + position)
            position += 1

    def _step(self, char: str, index: int) -> None:
        end = index + 1
        live = self._needles if self._cut is None else self._active
        for needle in live:
            needle.step(char)
            if needle.complete:
                start = end - needle.matched
                if self._cut is None or start < self._cut:
                    self._cut, self.word = start, needle.text
        cut = end if self._cut is None else self._cut
        self._active = [needle for needle in live if end - needle.matched < cut]
        self.matched = self._cut is not None and not self._active

    def _certain(self) -> int:
        if self.matched and self._cut is not None:
            return self._cut
        longest = max((needle.matched for needle in self._active), default=0)
        return self._sent + len(self._held) - longest

    def _release(self, end: int) -> str:
        count = end - self._sent
        text, self._held = self._held[:count], self._held[count:]
        self._sent = end
        return text
