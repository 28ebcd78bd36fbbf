"""Stored responses: their input as items again, and pages of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, cast

import attrs

from maple_protocols.adapter import JsonObject, Kept
from maple_protocols.ask import Ask
from maple_protocols.errors import ECHO_LIMIT, ErrorBody, InvalidField, RequestError
from maple_protocols.openai.messages import EarlierCall
from maple_protocols.openai.responses_items import (
    AgentItem,
    AssistantItem,
    CallItem,
    CallOutputItem,
    CustomCallItem,
    CustomOutputItem,
    Item,
    ReasoningItem,
    ReferenceItem,
    ShellCallItem,
    ShellOutputItem,
    ToolItem,
)
from maple_protocols.rules import Doc, Range

CODE = "invalid_parameter"
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
}
_KEY = re.compile(r"\w+_(?:in)?([0-9a-f]{32})[0-9a-f]{4,}")
"""The id of every item holds that of the response that it was kept with."""


@attrs.define(eq=False)
class ItemNotFound(RequestError):
    """A referenced item is not kept, or no longer."""

    id: str
    status = 404

    @property
    def body(self) -> ErrorBody:
        """Names the item."""
        return ErrorBody(
            message=f"Item with id {self.id[:ECHO_LIMIT]!r} not found",
            type="invalid_request_error",
            param="input",
            code="not_found",
        )


def holders(items: Iterable[Item]) -> tuple[str, ...]:
    """The ids of the responses that the referenced items were kept with. Raises ItemNotFound for no such id."""
    return tuple(dict.fromkeys(_holder(item.id) for item in items if isinstance(item, ReferenceItem)))


def _holder(item_id: str) -> str:
    found = _KEY.fullmatch(item_id)
    if found is None:
        raise ItemNotFound(item_id)
    return f"resp_{found[1]}"


def resolved(items: Iterable[Mapping[str, object]], found: Iterable[Kept]) -> Iterator[JsonObject]:
    """``items`` with what they refer to in place of references. Raises ItemNotFound."""
    kept = {
        str(item["id"]): item
        for each in found
        for item in (*each.items, *cast("list[JsonObject]", each.body["output"]))
    }
    for item in items:
        wanted = str(item.get("id"))
        if item["type"] != "item_reference":
            yield dict(item)
        elif wanted not in kept:
            raise ItemNotFound(wanted)
        else:
            yield kept[wanted]


def wire_items(items: Iterable[Item]) -> tuple[JsonObject, ...]:
    """Items in the shapes that OpenAI lists them in; they read back as the same conversation."""
    return tuple(map(_wire, items))


def _wire(item: Item) -> JsonObject:
    match item:
        case ReasoningItem():
            summary, content = _part("summary_text", item.summary), _part("reasoning_text", item.content)
            return {"type": item.type, "status": "completed", "summary": summary, "content": content}
        case CallItem() | CustomCallItem() | ShellCallItem():
            return {"type": item.type, "status": "completed", "call_id": _id(item.call_id), **_called(item)}
        case CallOutputItem() | CustomOutputItem() | ShellOutputItem():
            return {
                "type": item.type,
                "status": "completed",
                "call_id": _id(item.call_id),
                "output": item.output,
            }
        case ToolItem():
            output = CallOutputItem(
                type="function_call_output", call_id=item.tool_call_id, output=item.content
            )
            return _wire(output)
        case AssistantItem():
            return _message(item.role, _part("output_text", item.content.text)) | _chat_extras(item)
        case ReferenceItem():
            return {"type": item.type, "id": item.id}
        case AgentItem():
            return _message("user", _part("input_text", item.content))
        case _:
            return _message(item.role, _part("input_text", item.content))


def _message(role: str, content: list[JsonObject]) -> JsonObject:
    return {"type": "message", "role": role, "status": "completed", "content": content}


def _id(given: object) -> str:
    return given if isinstance(given, str) else ""


def _called(item: CallItem | CustomCallItem | ShellCallItem) -> JsonObject:
    if isinstance(item, ShellCallItem):
        return {"action": dict(item.action)}
    space: JsonObject = {} if item.namespace is None else {"namespace": item.namespace}
    if isinstance(item, CustomCallItem):
        return {"name": item.name, "input": item.input, **space}
    return {"name": item.name, "arguments": _arguments(item.arguments), **space}


def _part(kind: str, content: str) -> list[JsonObject]:
    extras: JsonObject = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return [{"type": kind, "text": content, **extras}] if content else []


def _arguments(arguments: str | Mapping[str, object]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _chat_extras(item: AssistantItem) -> JsonObject:
    """What a message in the chat shape has beside its content."""
    extras = {
        "reasoning_content": item.reasoning_content or item.reasoning or item.content.reasoning,
        "tool_calls": [_chat_call(call) for call in item.tool_calls],
    }
    return {key: value for key, value in extras.items() if value}


def _chat_call(call: EarlierCall) -> JsonObject:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {"type": "function", "function": function}


def keep(ask: Ask, body: JsonObject) -> Kept:
    """The response with all that came before it; items that are new get ids of their own."""
    key = str(body["id"]).removeprefix("resp_")
    items = [
        {"id": f"{PREFIXES[str(item['type'])]}_in{key}{index:04x}", **item}
        for index, item in enumerate(ask.items)
    ]
    return Kept(id=str(body["id"]), created=cast("int", body["created_at"]), items=tuple(items), body=body)


@attrs.frozen(kw_only=True)
class StoredQuery:
    """The query of GET /v1/responses/{id}."""

    stream: Annotated[Literal["false"], Doc("A stored response is read whole.")] = "false"


@attrs.frozen(kw_only=True)
class ItemsQuery:
    """The query of GET /v1/responses/{id}/input_items."""

    limit: Annotated[int, Range(least=1, most=100), Doc("Items on a page.")] = 20
    order: Annotated[Literal["asc", "desc"], Doc("From the first item on, or from the last.")] = "desc"
    after: Annotated[str | None, Doc("The id of the item that the page begins after.")] = None


def item_page(kept: Kept, wish: ItemsQuery) -> JsonObject:
    """The page that a query asks for. Raises InvalidField."""
    items = kept.items if wish.order == "asc" else kept.items[::-1]
    begin = _place_after(items, wish.after)
    shown = items[begin : begin + wish.limit]
    return {
        "object": "list",
        "data": list(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": begin + wish.limit < len(items),
    }


def _place_after(items: tuple[JsonObject, ...], after: str | None) -> int:
    if after is None:
        return 0
    for index, item in enumerate(items):
        if item["id"] == after:
            return index + 1
    raise InvalidField(param="after", message="after must be the id of one of the items", code=CODE)
