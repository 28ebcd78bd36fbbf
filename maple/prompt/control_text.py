"""Keep client text apart from a template's own control strings, whatever the template does with either.

A control string is an added token of the tokenizer, such as ``<|im_end|>``: one id with a meaning. Before a
template runs, client text is sealed: a code point that valid text cannot hold is put where a control string
could begin or end. After it ran, only unsealed control strings are the template's own; the rest is tokenised
as text once the seals are out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import attrs
from tokenizers import AddedToken

SEAL = "\udfff"
"""A lone surrogate: requests that hold one are refused, and no UTF-8 file can hold one either."""

STAND_IN = "\N{REPLACEMENT CHARACTER}"
"""What a seal is shown as in text that must stay encodable and still hold no control string."""


NEVER = "(?!)"
"""A pattern that fits nowhere."""


@attrs.frozen
class Segment:
    """A stretch of a rendered prompt: a control token and its id, or text (without seals) and None."""

    text: str
    token: int | None = None


class ControlText:
    """The control strings of one tokenizer. Immutable, so it may be used from any thread.

    Added tokens of a single character or of white space only are ordinary text to templates, and are looked
    for in client text too. ``known_words`` are words that the template itself looks for, such as keys of a
    message: they are never sealed as a whole.
    """

    def __init__(self, added: Mapping[int, AddedToken], known_words: Set[str] = frozenset()) -> None:
        self._tokens = {token.content: (number, token) for number, token in added.items()}
        longest_first = sorted(added.values(), key=lambda token: len(token.content), reverse=True)
        control = [content for content in self._tokens if _is_control(content)]
        self.ids = frozenset(self._tokens[content][0] for content in control)
        self._own = _any_of(map(_matcher, longest_first))
        self._foreign = _any_of(_matcher(token) for token in longest_first if _is_control(token.content))
        self._openers = _any_of(map(_opener, control))
        self._closers = _any_of(map(_closer, control))
        cores = {core for content in control for core in _fragments_around_core(content)}
        self._cores = frozenset(cores - known_words)

    def seal(self, text: str) -> str:
        """Return ``text`` with seals, so that no part of it can be or complete a control string.

        Seals never touch the white space around the text, so templates can still strip it.
        """
        core = text.strip()
        if core in self._cores:
            return text.replace(core, core[0] + SEAL + core[1:], 1)
        return self._closers.sub(rf"{SEAL}\g<0>", self._openers.sub(rf"\g<0>{SEAL}", text))

    def seal_value(self, value: object) -> object:
        """Return a copy of JSON data, in plain dicts and lists, in which every string and key is sealed."""
        if isinstance(value, str):
            return self.seal(value)
        if isinstance(value, Mapping):
            return {self.seal(str(key)): self.seal_value(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.seal_value(item) for item in value]
        return value

    def segments(self, rendered: str) -> Iterator[Segment]:
        """Split a rendered prompt at the template's control strings, and around those of the client.

        Where two tokens begin at one place, the longer one is meant: the tokenizer's own rule.
        """
        end = 0
        for match in self._own.finditer(rendered):
            number, token = self._tokens[match[0]]
            before = rendered[end : match.start()]
            yield from self._text_segments(before.rstrip() if token.lstrip else before)
            yield Segment(match[0], number)
            end = match.end()
            if token.rstrip:
                end = _skip_blanks(rendered, end)
        yield from self._text_segments(rendered[end:])

    def shown(self, rendered: str) -> str:
        """A rendered prompt as text: without seals, and with a stand-in inside each control string of the client's."""
        return "".join(
            segment.text[0] + STAND_IN + segment.text[1:]
            if segment.token is None and self._foreign.fullmatch(segment.text)
            else segment.text
            for segment in self.segments(rendered)
        )

    def _text_segments(self, sealed: str) -> Iterator[Segment]:
        text = unseal(sealed)
        end = 0
        for match in self._foreign.finditer(text):
            yield from (Segment(part) for part in (text[end : match.start()], match[0]) if part)
            end = match.end()
        if end < len(text):
            yield Segment(text[end:])


def unseal(text: str) -> str:
    """Return ``text`` without seals."""
    return text.replace(SEAL, "")


def unseal_value(value: object) -> object:
    """Undo ``ControlText.seal_value``."""
    if isinstance(value, str):
        return unseal(value)
    if isinstance(value, dict):
        return {unseal_value(key): unseal_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unseal_value(item) for item in value]
    return value


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """The first of ``patterns`` that fits; none fits where there is none."""
    return re.compile("|".join(dict.fromkeys(patterns)) or NEVER)


def _skip_blanks(text: str, start: int) -> int:
    blanks = re.compile(r"\s*").match(text, start)
    return blanks.end() if blanks else start


def _is_control(content: str) -> bool:
    return len(content) > 1 and not content.isspace()


def _matcher(token: AddedToken) -> str:
    """A pattern for the places where the tokenizer would take ``token``, white space around it left out."""
    pattern = re.escape(token.content)
    return rf"(?<!\w){pattern}(?!\w)" if token.single_word else pattern


def _opener(content: str) -> str:
    """A pattern for the character that a seal follows.

    Punctuation is sealed wherever it stands: a template may drop or fold characters, and could so make a
    control string that the client's text did not hold yet.
    """
    first = re.escape(content[0])
    return f"{first}(?={re.escape(content[1:])})" if content[0].isalnum() else first


def _closer(content: str) -> str:
    """A pattern for the character that a seal precedes, on the same grounds."""
    return re.escape(content[-1]) if not content[-1].isalnum() else NEVER


def _fragments_around_core(content: str) -> Iterator[str]:
    """The parts of a control string that hold its word: ``think`` and ``/think`` of ``</think>``.

    A template that puts brackets around a client's word would complete these.
    """
    word = re.search(r"\w(?:.*\w)?", content, re.DOTALL)
    if word is None:
        return
    for start in range(word.start() + 1):
        for stop in range(word.end(), len(content) + 1):
            yield content[start:stop]
