"""Log probabilities over HTTP, from the embedded model."""

from __future__ import annotations

import json
from typing import Any

import pytest

SCORED = {"logprobs": True, "top_logprobs": 3, "temperature": 0.8, "seed": 5, "max_tokens": 120}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def server(start_session_server: Any) -> Any:
    return start_session_server("--demo", "--api-level", "extended")


def shown(entries: list[Any]) -> str:
    return bytes(byte for entry in entries for byte in entry["bytes"]).decode()


def streamed(server: Any, text: str, **fields: object) -> tuple[list[Any], list[Any], str]:
    """Entries of content and of reasoning, and the content."""
    content: list[Any] = []
    reasoning: list[Any] = []
    texts = []
    for event in server.chat(text, stream=True, **fields).events[:-1]:
        (choice,) = event["choices"]
        delta, found = choice["delta"], choice["logprobs"] or {"content": [], "reasoning": None}
        assert shown(found["content"]) == delta.get("content", "")
        assert shown(found["reasoning"] or []) == delta.get("reasoning_content", "")
        content += found["content"]
        reasoning += found["reasoning"] or []
        texts.append(delta.get("content", ""))
    return content, reasoning, "".join(texts)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    "text", ["What is 7 + 5?", "What is the weather in Oslo?", "Say a word in Greek 🍁."]
)
def test_the_entries_are_the_text(server: Any, text: str, thinking: bool) -> None:
    """Joined they are the message, reasoning apart, calls left out; a stream has the same ones."""
    fields = {**SCORED, "enable_thinking": thinking, "tools": [TOOL]}
    (choice,) = server.chat(text, **fields).json["choices"]
    found = choice["logprobs"]
    assert shown(found["content"]) == (choice["message"]["content"] or "")
    assert shown(found["reasoning"] or []) == choice["message"].get("reasoning_content", "")
    assert found["refusal"] is None
    content, reasoning, said = streamed(server, text, **fields)
    assert (content, reasoning) == (found["content"], found["reasoning"] or [])
    assert said == (choice["message"]["content"] or "")
    for entry in (*content, *reasoning):
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert tops[:3] == sorted(tops[:3], reverse=True)
        assert len(tops) in (3, 4)
        assert {"token": entry["token"], "logprob": entry["logprob"]}.items() <= max(
            entry["top_logprobs"], key=lambda top: top["token"] == entry["token"]
        ).items()


def test_they_are_the_models_own(server: Any) -> None:
    """Whatever bias, penalties and temperature have done: a banned token stays the likeliest of them."""
    fields: dict[str, Any] = {"enable_thinking": False, "logprobs": True, "top_logprobs": 1, "max_tokens": 1}
    free = server.chat("What is 7 + 5?", temperature=0, **fields).json["choices"][0]["logprobs"]["content"][0]
    (token_id,) = server.request("POST", "/tokenize", {"content": free["token"]}).json["tokens"]
    bias = {str(token_id): -100}
    held = server.chat("What is 7 + 5?", temperature=2, logit_bias=bias, **fields).json["choices"][0]
    (entry,) = held["logprobs"]["content"]
    assert entry["top_logprobs"][0] == free["top_logprobs"][0]
    assert entry["token"] != free["token"]
    assert entry["logprob"] <= free["logprob"]


def test_without_top_logprobs_there_are_none(server: Any) -> None:
    """And without log probabilities the choice has null, and no entry anywhere."""
    (choice,) = server.chat("hi", logprobs=True, max_tokens=4).json["choices"]
    entries = [*choice["logprobs"]["content"], *(choice["logprobs"]["reasoning"] or [])]
    assert entries
    assert all(entry["top_logprobs"] == [] for entry in entries)
    assert server.chat("hi", max_tokens=4).json["choices"][0]["logprobs"] is None


def test_reasoning_that_is_stripped_has_no_entries(server: Any) -> None:
    """They would give it away."""
    answer = server.chat("What is 7 + 5?", include_reasoning=False, **SCORED).json["choices"][0]
    assert answer["logprobs"]["reasoning"] is None


def complete(server: Any, prompt: object, **fields: object) -> Any:
    return server.request("POST", "/v1/completions", {"prompt": prompt, **fields})


@pytest.mark.parametrize("count", [0, 2])
def test_a_completion_has_its_lists(server: Any, count: int) -> None:
    """Tokens joined are the text, offsets are where they begin; a stream's chunks have the same in all."""
    fields = {"logprobs": count, "max_tokens": 40, "temperature": 0.9, "seed": 3}
    (choice,) = complete(server, "The 🍁 tree: ", **fields).json["choices"]
    lists = choice["logprobs"]
    assert len({len(one) for one in lists.values()}) == 1
    for token, offset, logprob, top in zip(
        lists["tokens"], lists["text_offset"], lists["token_logprobs"], lists["top_logprobs"], strict=True
    ):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)
        assert len(top) in ((1,) if count == 0 else (2, 3))
        assert logprob in top.values()
    whole: dict[str, list[Any]] = {name: [] for name in lists}
    for event in complete(server, "The 🍁 tree: ", stream=True, **fields).events[:-1]:
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            whole[name] += values
    assert whole == lists


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_a_wrong_wish_is_named(server: Any, fields: dict[str, object], param: str) -> None:
    """top_logprobs alone asks for nothing that could be given."""
    assert server.chat("hi", **fields).error["param"] == param
    assert complete(server, "hi", logprobs=6).error["param"] == "logprobs"


def test_no_number_is_infinite(server: Any) -> None:
    """What cannot come has -9999, for JSON knows no infinity."""
    answer = server.chat("hi", logprobs=True, top_logprobs=20, max_tokens=4)
    json.loads(answer.body, parse_constant=pytest.fail)


def test_echo_puts_the_prompt_in_front(server: Any) -> None:
    """Text and log probabilities, the first null; a stream and several prompts alike."""
    fields = {"echo": True, "logprobs": 1, "max_tokens": 6, "temperature": 0}
    prompts = ["What is 7 + 5? 🍁", "The tree"]
    plain = complete(server, prompts, max_tokens=6, temperature=0).json["choices"]
    answer = complete(server, prompts, **fields).json
    chunks = complete(server, prompts, stream=True, **fields).events[:-1]
    for index, (choice, without) in enumerate(zip(answer["choices"], plain, strict=True)):
        assert choice["text"] == prompts[index] + without["text"]
        lists = choice["logprobs"]
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        assert None not in lists["token_logprobs"][1:]
        assert "".join(lists["tokens"]) == choice["text"] or "bytes:" in "".join(lists["tokens"])
        assert lists["text_offset"][0] == 0
        own = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in own) == choice["text"]
        streamed = [value for one in own if one["logprobs"] for value in one["logprobs"]["text_offset"]]
        assert streamed == lists["text_offset"]


def test_a_prompt_is_scored_without_an_answer(server: Any) -> None:
    """``max_tokens: 0`` beside echo; alone it is refused, as at the reference level."""
    answer = complete(server, "What is 7 + 5?", echo=True, logprobs=0, max_tokens=0).json
    assert answer["choices"][0]["text"] == "What is 7 + 5?"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    refused = complete(server, "hi", max_tokens=0)
    assert (refused.status, refused.error["message"]) == (400, "max_tokens must be at least 1")


def test_a_stop_string_in_the_prompt_stops_nothing(server: Any) -> None:
    answer = complete(server, "What is 7 + 5?", echo=True, stop=["is"], max_tokens=4).json["choices"][0]
    assert answer["text"].startswith("What is 7 + 5?")
