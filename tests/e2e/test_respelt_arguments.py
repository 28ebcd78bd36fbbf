"""An agent's loop against the demo model, by a client that parses a call's arguments and writes them its own way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def respelt(message: dict[str, Any]) -> dict[str, Any]:
    """As JavaScript writes JSON: no spaces."""
    for call in message.get("tool_calls", ()):
        function = call["function"]
        function["arguments"] = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))
    return message


def test_respelt_arguments_keep_the_cache(demo_server: Server) -> None:
    """In three rounds of call, result and answer, each prompt is cached up to its last new message."""
    messages: list[dict[str, Any]] = []
    known = calls = 0
    for city in ("Berlin", "Oslo", "Rome"):
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        for new in ([{"role": "tool", "tool_call_id": "c", "content": "sunny"}], []):
            body = {"messages": messages, "tools": TOOLS, "temperature": 0}
            answer = demo_server.request("POST", "/v1/chat/completions", body).json
            usage = answer["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= known
            known = usage["prompt_tokens"] + usage["completion_tokens"] - 1  # the last id was never computed
            message = answer["choices"][0]["message"]
            calls += len(message.get("tool_calls", ()))
            messages += [respelt(message), *new]
    assert calls == 3
