"""What messages hold: blocks, in order, as messages of the neutral form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import attrs
from typing_extensions import override

from maple_protocols.ask import CalledTool, Message, Role
from maple_protocols.openai.parts import Omitted, TextParts, joined
from maple_protocols.reading import drop
from maple_protocols.rules import Misfit, Schema, Shape, each, free_form, mapping, one_of, text

BILLING = "x-anthropic-billing-header:"
"""A system block that begins so changes with every request; the prompt's prefix would be lost with it."""
ROLES = ("user", "assistant", "system")
_PLACE = "messages[].content[]"
_PARTS = TextParts(place=_PLACE)
_BLOCKS: Schema = {
    "type": "array",
    "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}},
}


@attrs.frozen
class Dropped:
    """A block that the model is not shown."""


@attrs.frozen
class Thought:
    """Earlier thinking."""

    text: str


@attrs.frozen
class Result:
    """What a tool answered."""

    text: str


Block = str | Dropped | Thought | Result | CalledTool


@attrs.frozen
class SystemShape(Shape):
    """Instructions: a string, or text blocks, which become paragraphs."""

    @override
    def structure(self, value: object) -> str:
        if isinstance(value, str):
            return text(value)
        if not isinstance(value, list):
            raise Misfit("must be a string or a list of text blocks")
        texts = each(value, _system_text)
        kept = texts[1:] if texts and texts[0].startswith(BILLING) else texts
        return "\n\n".join(filter(None, kept))

    @override
    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, _BLOCKS]}


@attrs.frozen
class TurnShape(Shape):
    """One message, as the one or several of the neutral form that its blocks come to."""

    @override
    def structure(self, value: object) -> tuple[Message, ...]:
        found = mapping(value)
        role = found.get("role")
        if role not in ROLES:
            raise Misfit(one_of(ROLES), "role")
        if found.get("content") is None:
            raise Misfit("is required", "content")
        try:
            blocks = _blocks(found["content"])
        except Misfit as misfit:
            raise misfit.under("content") from None
        if role == "assistant":
            return (_assistant(blocks),)
        return _in_order("user" if role == "user" else "system", blocks)

    @override
    def schema(self) -> Schema:
        content: Schema = {"anyOf": [{"type": "string"}, _BLOCKS]}
        return {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": list(ROLES)}, "content": content},
        }


Turn = Annotated[tuple[Message, ...], TurnShape()]


def _blocks(value: object) -> tuple[Block, ...]:
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list):
        raise Misfit("must be a string or a list of blocks")
    return each(value, _block)


def _block(value: object) -> Block:
    found = mapping(value)
    kind = found.get("type")
    if not isinstance(kind, str):
        raise Misfit("must be a string" if "type" in found else "is required", "type")
    if kind in _MEDIA:
        return _PARTS.loose({"type": kind})
    if kind not in _READERS:
        drop(_PLACE, kind)
        return Dropped()
    return _READERS[kind](found)


def _said(block: Mapping[str, object]) -> str:
    return _field(block, "text")


def _thought(block: Mapping[str, object]) -> Thought:
    return Thought(_field(block, "thinking"))


def _called(block: Mapping[str, object]) -> CalledTool:
    try:
        given = free_form({} if block.get("input") is None else block["input"])
    except Misfit as misfit:
        raise misfit.under("input") from None
    return CalledTool(name=_field(block, "name"), arguments=given)


def _result(block: Mapping[str, object]) -> Result:
    try:
        content = _result_text(block.get("content"))
    except Misfit as misfit:
        raise misfit.under("content") from None
    return Result(f"Error: {content}" if block.get("is_error") is True else content)


def _result_text(content: object) -> str:
    if isinstance(content, list):
        return joined(each(content, _result_part))
    return _PARTS.structure(content)


def _result_part(part: object) -> str:
    found = part if isinstance(part, dict) else {}
    if found.get("type") == "search_result":
        return "\n".join([text(found.get("title", "")), _result_text(found.get("content"))])
    if found.get("type") == "text":
        return _said(found)
    return _PARTS.loose({"type": str(found.get("type", "part"))})


_MEDIA = frozenset({"image", "document"})
_READERS: Mapping[str, Callable[[Mapping[str, object]], Block]] = {
    "text": _said,
    "thinking": _thought,
    "redacted_thinking": lambda _: Dropped(),
    "tool_use": _called,
    "tool_result": _result,
}


def _field(block: Mapping[str, object], name: str) -> str:
    if block.get(name) is None:
        raise Misfit("is required", name)
    try:
        return text(block[name])
    except Misfit as misfit:
        raise misfit.under(name) from None


def _system_text(block: object) -> str:
    found = _block(block)
    return found if isinstance(found, str) else ""


def _assistant(blocks: Iterable[Block]) -> Message:
    """Earlier calls and thinking stand beside the text, whose place among them the model does not see."""
    found = tuple(blocks)
    thoughts = [block.text for block in found if isinstance(block, Thought)]
    return Message(
        role="assistant",
        content=joined(block for block in found if isinstance(block, str)),
        reasoning="\n".join(thoughts) or None,
        tool_calls=tuple(block for block in found if isinstance(block, CalledTool)),
    )


def _in_order(role: Role, blocks: Iterable[Block]) -> tuple[Message, ...]:
    """Texts and results in the order in which they stand; neighbouring texts are one message."""
    found: list[Message] = []
    texts: list[str] = []

    def flush() -> None:
        if said := joined(texts):
            found.append(Message(role=role, content=said))
        texts.clear()

    for block in blocks:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Result):
            flush()
            found.append(Message(role="tool", content=block.text))
    flush()
    return tuple(found) or (Message(role=role, content=""),)


def holds_nothing_to_read(messages: Iterable[Message]) -> bool:
    """Whether all that a message came to are words in the place of what the model cannot read."""
    return all(isinstance(message.content, Omitted) for message in messages)
