"""What a message holds: text, parts of text, and what stands in for parts that the model cannot read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated

import attrs
from typing_extensions import override

from maple_protocols.reading import drop, is_extended, safe_name, unserved
from maple_protocols.rules import Misfit, Schema, Shape, anything, each, text

_MEDIA = {
    "image": "image",
    "audio": "audio",
    "video": "video",
    "file": "file",
    "document": "file",
    "resource": "file",
}
_MEDIUM = re.compile("|".join(_MEDIA))
_TEXT_KEYS = ("text", "refusal", "output_text", "content")


class Omitted(str):
    """Text that stands in for parts of which none was text."""

    __slots__ = ()


@attrs.frozen
class TextParts(Shape):
    """A string, null (""), or a list of parts whose text is joined with nothing between.

    At the extended level any JSON: what the model cannot read is replaced by a few words and reported under
    ``place``.
    """

    types: tuple[str, ...] = ("text",)
    place: str = "messages[]"

    @override
    def structure(self, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, list):
            return joined(each(value, self.part))
        if isinstance(value, str):
            return text(value)
        if not is_extended():
            raise unserved("must be a string or a list of text parts")
        return self.loose(value) if isinstance(value, dict) and "type" in value else json_text(value)

    def part(self, part: object) -> str:
        """One part's text, or what stands in for it."""
        if isinstance(part, dict) and part.get("type") in self.types:
            if is_extended() and not isinstance(part.get("text"), str):
                return self.loose(part)
            try:
                return text(part.get("text"))
            except Misfit as misfit:
                raise misfit.under("text") from None
        if not is_extended():
            raise unserved("must be a text part; the model reads text only")
        return self.loose(part)

    def loose(self, part: object) -> str:
        """The text that any part has, under whatever key; else a few words in its place."""
        if not isinstance(part, dict):
            return text(part) if isinstance(part, str) else "" if part is None else json_text(part)
        resource = part.get("resource")
        for holder in (part, resource if isinstance(resource, dict) else {}):
            for key in _TEXT_KEYS:
                if isinstance(holder.get(key), str):
                    return text(holder[key])
        return self._omitted(str(part.get("type", "part")))

    def _omitted(self, kind: str) -> Omitted:
        medium = _MEDIUM.search(kind)
        name = _MEDIA[medium[0]] if medium else safe_name(kind).replace("?", "part")
        drop(self.place, name)
        return Omitted(f"[{name} omitted: this model reads text only]")

    @override
    def schema(self) -> Schema:
        part: Schema = {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"enum": list(self.types)}, "text": {"type": "string"}},
        }
        return {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": part}]}


@attrs.frozen
class Said:
    """What an assistant said, and what it thought before, where the same list held both."""

    text: str = ""
    reasoning: str = ""


@attrs.frozen
class AssistantParts(Shape):
    """As TextParts, with refusals, and with thinking, which is told apart."""

    texts: TextParts = TextParts(("text", "output_text", "input_text"))

    @override
    def structure(self, value: object) -> Said:
        if not isinstance(value, list):
            return Said(self.texts.structure(value))
        thoughts: list[str] = []
        return Said(
            joined(each(value, lambda part: self._said(part, thoughts))), "\n".join(filter(None, thoughts))
        )

    def _said(self, part: object, thoughts: list[str]) -> str:
        """The text of one part; thinking goes to ``thoughts``."""
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            return self.texts.part(part)
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            return text(part["refusal"])
        if kind not in _THOUGHTS:
            return self.texts.part(part)
        found = next((part[key] for key in _THOUGHTS[kind] if isinstance(part.get(key), str)), None)
        if found is None:
            drop(self.texts.place, kind)
        else:
            thoughts.append(text(found))
        return ""

    @override
    def schema(self) -> Schema:
        return self.texts.schema()


_THOUGHTS: dict[str, tuple[str, ...]] = {
    "thinking": ("thinking", "text"),
    "reasoning": ("text", "reasoning"),
    "reasoning_text": ("text",),
    "redacted_thinking": (),
    "redacted_reasoning": (),
}
"""Parts that are no text of the answer, and the keys of what they hold."""

Content = Annotated[str, TextParts()]
AssistantContent = Annotated[Said, AssistantParts()]


def joined(pieces: Iterable[str]) -> str:
    """All pieces; Omitted if that is all that they are."""
    found = [piece for piece in pieces if piece]
    whole = "".join(found)
    return Omitted(whole) if found and all(isinstance(piece, Omitted) for piece in found) else whole


def json_text(value: object) -> str:
    """Any JSON as text. Raises Misfit for a lone surrogate in it."""
    return json.dumps(anything(value), ensure_ascii=False)
