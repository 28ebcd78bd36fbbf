"""continue_final_message: an assistant's last message goes on, in its content or in its reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASKED = {"role": "user", "content": "List three."}
SAID = {"role": "assistant", "content": "1. one\n2. "}
THOUGHT = {"role": "assistant", "content": None, "reasoning_content": "First I "}
LEVELS = pytest.mark.parametrize("api_level", ["reference", "extended"])


def goes_on(server: LiveServer, last: dict[str, Any], **fields: Any) -> Any:
    body = {"messages": [ASKED, last], "continue_final_message": True, **fields}
    return server.post(CHAT, body).json["choices"][0]["message"]


@LEVELS
def test_an_open_answer_goes_on_and_only_the_rest_comes_back(serve: Serve, api_level: str) -> None:
    """The prompt ends with the text as it was sent, its last space too; a newline of the answer's is not lost."""
    server = serve(Recording(pieces=("\nthree",)), api_level=api_level)
    assert goes_on(server, SAID) == {"role": "assistant", "content": "\nthree"}
    assert server.prompt().endswith("<|im_start|>assistant\n1. one\n2. ")


@LEVELS
def test_an_open_thought_goes_on_until_it_is_closed(serve: Serve, api_level: str) -> None:
    """With reasoning and no content the rest of the reasoning comes first, then the answer, trimmed as ever."""
    server = serve(Recording(pieces=("\ncount.", "</think>", "\n\nDone.")), api_level=api_level)
    message = goes_on(server, THOUGHT)
    assert (message["reasoning_content"], message["content"]) == ("\ncount.", "Done.")
    assert server.prompt().endswith("<|im_start|>assistant\n<think>\nFirst I ")


def test_with_reasoning_and_content_the_content_goes_on(serve: Serve) -> None:
    """The think block is closed in front of it."""
    server = serve(Recording(pieces=("x",)))
    assert goes_on(server, {**SAID, "reasoning_content": "r"})["content"] == "x"
    assert server.prompt().endswith("<think>\nr\n</think>\n\n1. one\n2. ")


def test_a_response_goes_on_likewise(serve: Serve) -> None:
    """Its last item is an assistant's message."""
    server = serve(Recording(pieces=("three",)))
    body = {"input": [ASKED, SAID], "continue_final_message": True}
    assert server.post(RESPONSES, body).json["output_text"] == "three"
    assert server.prompt().endswith("assistant\n1. one\n2. ")
    refused = server.post(RESPONSES, {"input": "hi", "continue_final_message": True})
    assert (refused.status, refused.error["param"]) == (400, "continue_final_message")


CALLED = {
    "role": "assistant",
    "content": "a",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([ASKED], {}, "continue_final_message"),
        ([ASKED, CALLED], {}, "continue_final_message"),
        ([ASKED, SAID], {"add_generation_prompt": True}, "add_generation_prompt"),
        ([ASKED, SAID], {"continue_final_message": 1}, "continue_final_message"),
    ],
)
def test_only_an_assistants_text_can_go_on(
    server: LiveServer, messages: list[Any], fields: dict[str, Any], param: str
) -> None:
    """Nothing else has an end to go on from, and a new answer's beginning would be in the way."""
    answer = server.post(CHAT, {"messages": messages, "continue_final_message": True, **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
    beside = {"continue_final_message": True, "add_generation_prompt": False}
    assert server.post(CHAT, {"messages": [ASKED, SAID], **beside}).status == 200
