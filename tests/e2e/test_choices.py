"""Several answers to one request, over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any

import openai
import pytest

SEEDED = {"temperature": 1.0, "seed": 11, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(start_session_server: Any) -> Any:
    return start_session_server("--demo", "--api-level", "extended", "--max-batch", "4")


@pytest.fixture(scope="module")
def narrow(start_session_server: Any) -> Any:
    """One runs at a time, and nothing may wait."""
    return start_session_server(
        "--demo", "--api-level", "extended", "--max-batch", "1", "--max-queue-depth", "0"
    )


def complete(server: Any, prompt: object, **fields: object) -> Any:
    return server.request("POST", "/v1/completions", {"prompt": prompt, **SEEDED, **fields})


def messages(answer: Any) -> list[Any]:
    return [choice["message"] for choice in answer["choices"]]


@pytest.mark.parametrize("count", [2, 8])
def test_choice_0_is_the_answer_alone(server: Any, narrow: Any, count: int) -> None:
    """The others draw for themselves, and the same again; with one slot they come one after another."""
    alone = server.chat("Name a tree.", **SEEDED).json
    answer = server.chat("Name a tree.", n=count, **SEEDED).json
    assert [choice["index"] for choice in answer["choices"]] == list(range(count))
    assert messages(answer)[0] == messages(alone)[0]
    assert len({str(message) for message in messages(answer)}) > 1
    assert messages(narrow.chat("Name a tree.", n=count, **SEEDED).json) == messages(answer)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert alone["usage"]["completion_tokens"] < usage["completion_tokens"] <= count * 24


@pytest.mark.parametrize("which", ["server", "narrow"])
def test_a_stream_interleaves_and_is_the_whole(
    request: pytest.FixtureRequest, server: Any, which: str
) -> None:
    """All roles first, in order, also of choices that wait; each chunk has one choice; usage comes once."""
    whole = server.chat("Name a tree.", n=4, logprobs=True, **SEEDED).json
    server = request.getfixturevalue(which)
    events = server.chat(
        "Name a tree.", n=4, stream=True, stream_options={"include_usage": True}, logprobs=True, **SEEDED
    ).events
    *chunks, usage, _ = events
    assert [chunk["choices"][0]["index"] for chunk in chunks[:4]] == [0, 1, 2, 3]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in chunks[:4])
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == (
        [],
        whole["usage"]["completion_tokens"],
    )
    for index, wanted in enumerate(whole["choices"]):
        own = [chunk["choices"][0] for chunk in chunks[4:] if chunk["choices"][0]["index"] == index]
        for key in ("content", "reasoning_content"):
            assert "".join(one["delta"].get(key, "") for one in own) == (wanted["message"].get(key) or "")
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [wanted["finish_reason"]]
        told = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert told == wanted["logprobs"]["content"]
    assert len(chunks) > 4 + 4
    if which == "server":
        order = [chunk["choices"][0]["index"] for chunk in chunks[4:]]
        assert order != sorted(order)


def test_the_sdk_reads_choices(server: Any) -> None:
    """Its own accumulating stream fails on a first chunk of a choice without a role."""
    question: Any = [{"role": "user", "content": "Name a tree."}]
    with (
        openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") as client,
        client.chat.completions.stream(model="m", messages=question, n=3, seed=11) as stream,
    ):
        final = stream.get_final_completion()
    assert [choice.index for choice in final.choices] == [0, 1, 2]


def test_several_prompts_are_answered_prompt_by_prompt(server: Any) -> None:
    """Each as it would be alone, texts and ids alike; usage adds the prompts up."""
    ids = server.request("POST", "/tokenize", {"content": "The tree"}).json["tokens"]
    prompts = ["Once upon", ids, "A"]
    answer = complete(server, prompts, n=2).json
    alone = [complete(server, prompt, n=2).json for prompt in prompts]
    texts = [choice["text"] for one in alone for choice in one["choices"]]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for key in ("prompt_tokens", "completion_tokens"):
        assert answer["usage"][key] == sum(one["usage"][key] for one in alone)
    streamed = [""] * 6
    for event in complete(server, prompts, n=2, stream=True).events[:-1]:
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", [10**9]]}, "prompt"),
    ],
)
def test_more_than_is_served_is_refused(server: Any, body: dict[str, object], param: str) -> None:
    answer = server.request("POST", "/v1/completions", {"prompt": "a", **body})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_client_that_leaves_takes_all_choices_along(server: Any) -> None:
    """Those that run and those that wait."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = {"prompt": "Once", "n": 8, "stream": True, "ignore_eos": True, "max_tokens": 4000}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().read(200)
    server.wait_for_stats(running=4, waiting=4)
    connection.close()
    server.wait_for_stats(running=0, waiting=0)
