"""Stored responses: their input as items again, and pages of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, cast

import attrs

from maple_protocols.adapter import JsonObject, Kept
from maple_protocols.ask import Ask
from maple_protocols.errors import InvalidField
from maple_protocols.openai.messages import EarlierCall
from maple_protocols.openai.responses_items import (
    AssistantItem,
    CallItem,
    CallOutputItem,
    Item,
    ReasoningItem,
    ToolItem,
)
from maple_protocols.rules import Doc, Range

CODE = "invalid_parameter"
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def wire_items(items: Iterable[Item]) -> tuple[JsonObject, ...]:
    """Items in the shapes that OpenAI lists them in; they read back as the same conversation."""
    return tuple(map(_wire, items))


def _wire(item: Item) -> JsonObject:
    match item:
        case ReasoningItem():
            return {
                "type": "reasoning",
                "summary": _part("summary_text", item.summary),
                "content": _part("reasoning_text", item.content),
            }
        case CallItem():
            arguments = _arguments(item.arguments)
            return {
                "type": item.type,
                "call_id": item.call_id if isinstance(item.call_id, str) else "",
                "name": item.name,
                "arguments": arguments,
            }
        case CallOutputItem():
            return {"type": item.type, "call_id": item.call_id, "output": item.output}
        case ToolItem():
            return {"type": "function_call_output", "call_id": item.tool_call_id, "output": item.content}
        case AssistantItem():
            said: JsonObject = {"type": "message", "role": item.role, "status": "completed"}
            return said | {"content": _part("output_text", item.content)} | _chat_extras(item)
        case _:
            return {
                "type": "message",
                "role": item.role,
                "status": "completed",
                "content": _part("input_text", item.content),
            }


def _part(kind: str, content: str) -> list[JsonObject]:
    extras: JsonObject = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return [{"type": kind, "text": content, **extras}] if content else []


def _arguments(arguments: str | Mapping[str, object]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _chat_extras(item: AssistantItem) -> JsonObject:
    """What a message in the chat shape has beside its content."""
    extras = {
        "reasoning_content": item.reasoning_content or item.reasoning,
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
