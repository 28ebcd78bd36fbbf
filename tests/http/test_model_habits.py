"""What models write beside the format, on the routes that parse it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def message(server: LiveServer, **fields: Any) -> Any:
    """The whole answer's message, which the stream folds to."""
    whole = server.chat("go", temperature=0, **fields).json["choices"][0]["message"]
    deltas = [
        event["choices"][0]["delta"]
        for event in server.chat("go", temperature=0, stream=True, **fields).events
        if event != "[DONE]" and event["choices"]
    ]
    assert "".join(delta.get("content") or "" for delta in deltas) == (whole["content"] or "")
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls == [call["function"] for call in whole.get("tool_calls", ())]
    return whole


def called(member: str) -> Recording:
    return Recording(pieces=(f'</think><tool_call>{{"name": "look", {member}}}</tool_call>',))


@pytest.mark.parametrize("parser", ["maple", "hermes"])
def test_arguments_under_another_name_reach_the_tool(serve: Serve, parser: str) -> None:
    """An object under parameters is what the tool is called with; flat members leave the block as text."""
    server = serve(called('"arguments": {}, "parameters": {"x": 1}'), tool_parser=parser)
    (call,) = message(server, tools=TOOLS)["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"x": 1}'}
    text = message(serve(called('"x": 1'), tool_parser=parser), tools=TOOLS)
    assert text["content"] == '<tool_call>{"name": "look", "x": 1}</tool_call>'
