"""Every recorded model output through the whole stack: streams fold to the whole answer.

The end-to-end tests do the same for every single cut and every parser.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from maple.engine.admission import QueueLimits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Serve

CASES = [
    json.loads(line)
    for line in (pathlib.Path(__file__).parents[1] / "data/cases/parser.jsonl").read_text().splitlines()
]
CHAT = "/v1/chat/completions"


def cuts(raw: str) -> Iterator[tuple[str, ...]]:
    """Whole, one character at a time, and ten seeded random cuts."""
    yield (raw,)
    yield tuple(raw)
    dice = random.Random(11)  # noqa: S311 -- seeded, no secret
    for _ in range(10):
        places = sorted(dice.sample(range(1, len(raw)), dice.randint(0, min(9, len(raw) - 1))))
        yield tuple(raw[a:b] for a, b in zip([0, *places], [*places, len(raw)], strict=True))


def fold(events: list[Any]) -> dict[str, Any]:
    """A stream's message and finish reason, put together as a client does."""
    assert events[-1] == "[DONE]"
    message: dict[str, Any] = {"reasoning": None, "content": "", "tool_calls": []}
    finish = None
    for event in events[:-1]:
        choice = event["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        if "reasoning_content" in delta:
            message["reasoning"] = (message["reasoning"] or "") + delta["reasoning_content"]
        message["tool_calls"] += [_call(call) for call in delta.get("tool_calls", ())]
        finish = choice["finish_reason"] or finish
    message["content"] = message["content"] or (None if message["tool_calls"] else "")
    return {"message": message, "finish": finish}


def whole(answer: Any) -> dict[str, Any]:
    """A whole answer's message and finish reason, in the same form."""
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [_call(call) for call in message.get("tool_calls", ())]
    found = {
        "reasoning": message.get("reasoning_content"),
        "content": message["content"],
        "tool_calls": calls,
    }
    return {"message": found, "finish": choice["finish_reason"]}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}


def expected(case: dict[str, Any]) -> dict[str, Any]:
    finish = case["model_finish"]
    if finish == "stop" and case["tool_calls"]:
        finish = "tool_calls"
    return {"message": {key: case[key] for key in ("reasoning", "content", "tool_calls")}, "finish": finish}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_an_output_gives_one_message_however_it_is_cut_and_sent(serve: Serve, case: dict[str, Any]) -> None:
    """Streamed and whole."""
    ways = list(dict.fromkeys(cuts(case["raw"])))
    recordings = [
        Recording(match=f"cut {number}.", pieces=pieces, finish=case["model_finish"])
        for number, pieces in enumerate(ways)
    ]
    server = serve(*recordings, queue=QueueLimits(slots=4))
    with contextlib.closing(server.connection()) as connection:
        for number, way in enumerate(ways):
            for stream in (True, False):
                kwargs = {"enable_thinking": case["in_reasoning"]}
                body = server.chat_body(f"cut {number}.", stream=stream, chat_template_kwargs=kwargs)
                answer = server.ask(connection, "POST", CHAT, body)
                assert answer.status == 200
                found = fold(answer.events) if stream else whole(answer.json)
                assert found == expected(case), (way, stream)
