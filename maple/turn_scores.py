"""Whose score goes with which text: the parsers' deltas, cut so that each token's score travels with its text."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import attrs
from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta
from maple_protocols.scored import ScoredContent, ScoredReasoning, TokenScore

from maple.engine.scores import Score

_SCORED: dict[type[ReasoningDelta | ContentDelta], type[ScoredReasoning | ScoredContent]] = {
    ReasoningDelta: ScoredReasoning,
    ContentDelta: ScoredContent,
}


@attrs.define(eq=False)
class _Token:
    """``left`` of its bytes are in no character yet; ``last`` is the place of the character with its last one."""

    score: Score
    left: int
    last: int = -1


_Share = tuple[tuple[_Token, bytes], ...]
"""Which bytes of which tokens a character is made of."""


class _Characters:
    """The raw text by its tokens: what each character is made of, from the first that may still be asked for."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending: list[tuple[_Token, int]] = []
        self._shares: deque[_Share] = deque()
        self._first = 0

    def add(self, score: Score) -> None:
        """The next token."""
        token = _Token(score, len(score.token))
        for byte in score.token:
            self._pending.append((token, byte))
            if self._decoder.decode(bytes((byte,))):
                self._take_first(len(self._pending) - len(self._decoder.getstate()[0]))

    def share(self, place: int) -> _Share:
        """What the character there is made of; those before are forgotten. Nothing where no token has it."""
        while self._first < place and self._shares:
            self._shares.popleft()
            self._first += 1
        if self._first == place and not self._shares:  # the text has ended inside a character
            self._take_first(len(self._pending))
        return self._shares[0] if self._shares and self._first == place else ()

    def _take_first(self, count: int) -> None:
        """So many pending bytes are whole characters, or none."""
        for char, size in _spans(bytes(byte for _, byte in self._pending[:count])):
            self._take(char, size)

    def _take(self, char: str, size: int) -> None:
        """``size`` pending bytes are a character; one that is no character goes to the first of their tokens."""
        taken, self._pending = self._pending[:size], self._pending[size:]
        place, shares = self._first + len(self._shares), dict[_Token, bytes]()
        for token, byte in taken:
            shares[token] = shares.get(token, b"") + bytes((byte,))
            token.left -= 1
            token.last = place
        if b"".join(shares.values()) != char.encode():
            shares = {taken[0][0]: char.encode()}
        self._shares.append(tuple(shares.items()))


def _spans(data: bytes) -> Iterator[tuple[str, int]]:
    """Characters with the number of their bytes; what stands for bytes that are none, as decoding replaces them."""
    while data:
        try:
            good, bad = data.decode(), 0
        except UnicodeDecodeError as error:
            good, bad = data[: error.start].decode(), error.end - error.start
        yield from ((char, len(char.encode())) for char in good)
        if bad:
            yield "\N{REPLACEMENT CHARACTER}", bad
        data = data[len(good.encode()) + bad :]


class ScoredText:
    """A chain (None: its text is the answer) whose deltas carry the scores of their tokens.

    Its characters are fed one by one, which shows where in the raw text those that come out have stood: as far back
    as need be from the one that let them out. A delta waits for the rest of its last token, so that a score goes out
    once, with all that its text has of it. What a parser made up has no score.
    """

    def __init__(self, chain: Chain | None) -> None:
        self._chain = chain
        self._characters = _Characters()
        self._raw = ""
        self._origin = 0
        """Where ``_raw`` begins."""
        self._begin = 0
        """Behind the last character that came out."""
        self._kind: type[ReasoningDelta | ContentDelta] = ContentDelta
        self._held: list[tuple[str, _Share]] = []
        self._events: list[ParserEvent] = []

    def feed(self, text: str, scores: Sequence[Score]) -> list[ParserEvent]:
        """Take more text, and the scores of the ids that it is made of, or of later ones too."""
        for score in scores:
            self._characters.add(score)
        self._raw, self._origin = self._raw[self._begin - self._origin :] + text, self._begin
        for place, char in enumerate(text, self._end - len(text)):
            self._take(self._chain.feed(char) if self._chain else (ContentDelta(char),), place + 1)
        self._send(len(self._held) - self._waiting())
        return self._taken()

    def close(self, finish: ModelFinish) -> list[ParserEvent]:
        """End the text: everything that was held."""
        self._take(self._chain.close(finish) if self._chain else (), self._end)
        self._send(len(self._held))
        return self._taken()

    @property
    def _end(self) -> int:
        return self._origin + len(self._raw)

    def _taken(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _take(self, events: Iterable[ParserEvent], end: int) -> None:
        """What came out with the character before ``end``."""
        deltas = [one for one in events if isinstance(one, ReasoningDelta | ContentDelta)]
        shares = iter(self._shares_of("".join(one.text for one in deltas), end))
        for event in events:
            if not isinstance(event, ReasoningDelta | ContentDelta):
                self._send(len(self._held))
                self._events.append(event)
                continue
            if not isinstance(event, self._kind):
                self._send(len(self._held))
                self._kind = type(event)
            self._held.extend(zip(event.text, shares, strict=False))

    def _shares_of(self, text: str, end: int) -> list[_Share]:
        """What each character of ``text`` is made of, where it stands last before ``end``."""
        places: list[int] = []
        for char in reversed(text):
            found = self._raw.rfind(char, self._begin - self._origin, end - self._origin)
            end = end if found < 0 else self._origin + found
            places.append(-1 if found < 0 else end)
        places.reverse()
        shares = [() if place < 0 else self._characters.share(place) for place in places]
        self._begin = max(self._begin, max(places, default=-1) + 1)
        return shares

    def _waiting(self) -> int:
        """How many characters at the end wait for the rest of a token, or belong to one that does."""
        waiting, tokens = 0, set[_Token]()
        for _, share in reversed(self._held):
            own = {token for token, _ in share}
            if not waiting:
                own = {token for token in own if token.left or token.last >= self._begin}
            elif tokens.isdisjoint(own):
                break
            if not own:
                break
            tokens |= {token for token, _ in share}
            waiting += 1
        return waiting

    def _send(self, count: int) -> None:
        """The first characters held are a delta."""
        sent, self._held = self._held[:count], self._held[count:]
        if not sent:
            return
        shown: dict[_Token, bytes] = {}
        for _, share in sent:
            for token, data in share:
                shown[token] = shown.get(token, b"") + data
        scores = tuple(
            TokenScore(token=token.score.token, shown=data, logprob=token.score.logprob, top=token.score.top)
            for token, data in shown.items()
        )
        self._events.append(_SCORED[self._kind]("".join(char for char, _ in sent), scores))
