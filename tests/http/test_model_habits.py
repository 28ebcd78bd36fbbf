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


CALL = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_markup_is_text_where_no_tool_was_offered(serve: Serve, fields: dict[str, Any]) -> None:
    """Extended: the answer is what the model wrote. Reference: markup is a call whether or not tools were listed."""
    played = Recording(pieces=("</think>\n\nWrite\n", CALL, "\nto call."))
    extended = message(serve(played, api_level="extended"), **fields)
    assert (extended["content"], extended.get("tool_calls")) == (f"Write\n{CALL}\nto call.", None)
    reference = message(serve(played), **fields)
    assert (reference["content"], len(reference["tool_calls"])) == ("Writeto call.", 1)


@pytest.mark.parametrize("around", [("\n\n", "\n"), ("\n", ""), ("", "\n\n")])
def test_a_newline_stays_between_texts_around_a_call(serve: Serve, around: tuple[str, str]) -> None:
    """Extended: words before and after a call do not run into each other. Reference: every newline is trimmed."""
    before, after = around
    played = Recording(pieces=("</think>\n\nOne", before, CALL, "\n", CALL, after, "two\n"))
    assert message(serve(played, api_level="extended"), tools=TOOLS)["content"] == "One\ntwo\n"
    assert message(serve(played), tools=TOOLS)["content"] == "Onetwo\n"
    alone = Recording(pieces=("</think>", CALL, "\ntwo\n", CALL))
    assert message(serve(alone, api_level="extended"), tools=TOOLS)["content"] == "two"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_stop_strings_apply_behind_the_reasoning(serve: Serve, path: str) -> None:
    """Extended: a stop string that the model thinks of ends nothing. Reference: it leaves an empty answer."""
    played = Recording(pieces=("I stop at END", ", I think.</thi", "nk>\n\nThis is the E", "ND, not this."))

    def texts(level: str) -> tuple[str, str]:
        body = {"stop": ["END", "k>"], "temperature": 0, "messages": [], "input": "go"}
        body["messages"] = [{"role": "user", "content": "go"}]
        del body["input" if path.startswith("/v1/chat") else "messages"]
        answer = serve(played, api_level=level).post(path, body).json
        if path.startswith("/v1/chat"):
            told = answer["choices"][0]["message"]
            return told["reasoning_content"], told["content"]
        return answer["output"][0]["content"][0]["text"], answer["output_text"]

    assert texts("extended") == ("I stop at END, I think.", "This is the ")
    assert texts("reference") == ("I stop at ", "")


def test_stop_strings_apply_at_once_where_nothing_is_thought(serve: Serve) -> None:
    """Thinking off, and raw prompts: the whole text is looked through at both levels."""
    server = serve(Recording(pieces=("A </think> B", " END")), api_level="extended")
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert message(server, stop=["think>"], **off)["content"] == "A </"
    raw = server.post("/v1/completions", {"prompt": "go", "stop": "B"})
    assert raw.json["choices"][0]["text"] == "A </think> "
