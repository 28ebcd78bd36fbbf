"""Calls as output items: in the shape of the tool that was offered, under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs

from maple_protocols.adapter import JsonObject, NumberedCall
from maple_protocols.openai.responses_tables import OutputCall, OutputCustomCall, OutputShellCall
from maple_protocols.openai.responses_tools import CallForm, custom_input, shell_action

CallItem = OutputCall | OutputCustomCall | OutputShellCall


def call_item(call: NumberedCall, forms: Mapping[str, object], key: str) -> CallItem:
    """The completed item. ``forms`` are the ask's; a name that they lack is a function's."""
    form = cast("CallForm", forms.get(call.name, CallForm(name=call.name)))
    match form.kind:
        case "custom":
            return OutputCustomCall(
                type="custom_tool_call",
                id=f"ctc_{key}",
                status="completed",
                call_id=call.id,
                name=form.name,
                input=custom_input(call.arguments),
                namespace=form.namespace,
            )
        case "local_shell":
            return OutputShellCall(
                type="local_shell_call",
                id=f"lsh_{key}",
                status="completed",
                call_id=call.id,
                action=shell_action(call.arguments),
            )
        case _:
            return OutputCall(
                type="function_call",
                id=f"fc_{key}",
                status="completed",
                call_id=call.id,
                name=form.name,
                arguments=call.arguments,
                namespace=form.namespace,
            )


def call_events(item: CallItem, index: int) -> list[JsonObject]:
    """The item begins empty, is filled at once, and is done."""
    place: JsonObject = {"item_id": item.id, "output_index": index}
    done: JsonObject = {"type": "response.output_item.done", "output_index": index, "item": item}
    filled: list[JsonObject] = []
    match item:
        case OutputCall():
            begun: CallItem = attrs.evolve(item, status="in_progress", arguments="")
            name = "response.function_call_arguments"
            filled = [
                {"type": f"{name}.delta", **place, "delta": item.arguments},
                {"type": f"{name}.done", **place, "arguments": item.arguments, "name": item.name},
            ]
        case OutputCustomCall():
            begun = attrs.evolve(item, status="in_progress", input="")
            name = "response.custom_tool_call_input"
            filled = [
                {"type": f"{name}.delta", **place, "delta": item.input},
                {"type": f"{name}.done", **place, "input": item.input},
            ]
        case _:
            begun = attrs.evolve(item, status="in_progress")
    return [{"type": "response.output_item.added", "output_index": index, "item": begun}, *filled, done]
