"""Thinking that ends, on the embedded model."""

from __future__ import annotations

from typing import Any

import pytest

QUESTIONS = [f"What is {first} * {second}?" for first in (17, 23, 48, 91) for second in (19, 37)]


@pytest.fixture(scope="module")
def server(start_session_server: Any) -> Any:
    return start_session_server("--demo", "--api-level", "extended")


@pytest.mark.parametrize("budget", [1, 16, 64])
def test_every_answer_has_content(server: Any, budget: int) -> None:
    """And no more reasoning than the budget, a tenth and the newline before the closer."""
    for question in QUESTIONS:
        answer = server.chat(question, thinking_token_budget=budget, temperature=0, max_tokens=600).json
        details = answer["usage"]["completion_tokens_details"]
        assert answer["choices"][0]["message"]["content"]
        assert details["reasoning_tokens"] <= budget + budget // 10 + 1


def test_words_and_aliases_bound_too(server: Any) -> None:
    """thinking_budget_tokens, an effort by MAPLE_REASONING_EFFORT, and reasoning.max_tokens of responses."""
    free = server.chat(QUESTIONS[0], temperature=0).json["usage"]["completion_tokens_details"]
    assert free["reasoning_tokens"] > 64
    told = server.chat(QUESTIONS[0], temperature=0, reasoning_effort="low").json["usage"]
    assert told["completion_tokens_details"] == free
    short = server.chat(QUESTIONS[0], temperature=0, thinking_budget_tokens=16).json["usage"]
    assert short["completion_tokens_details"]["reasoning_tokens"] <= 18
    off = server.chat(QUESTIONS[0], temperature=0, thinking_token_budget=0).json["choices"][0]["message"]
    assert "reasoning_content" not in off
    response = server.request(
        "POST", "/v1/responses", {"input": QUESTIONS[0], "temperature": 0, "reasoning": {"max_tokens": 16}}
    ).json
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] <= 18


def test_the_next_turn_finds_the_closed_block_in_the_cache(server: Any) -> None:
    """The closer's ids are those that the template renders."""
    messages = [{"role": "user", "content": QUESTIONS[1]}]
    first = server.chat("", messages=messages, thinking_token_budget=20, temperature=0).json
    spoken = first["choices"][0]["message"]
    messages += [
        {"role": "assistant", **{key: spoken[key] for key in ("content", "reasoning_content")}},
    ]
    again = server.chat("", messages=messages, continue_final_message=True, max_tokens=1, temperature=0).json
    usage = first["usage"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= (
        usage["prompt_tokens"] + usage["completion_tokens_details"]["reasoning_tokens"] + 2
    )


def test_a_small_limit_leaves_room_for_the_answer(server: Any, start_session_server: Any) -> None:
    """At the extended level a quarter of it at most; at the reference level nothing is kept."""
    answer = server.chat(QUESTIONS[0], temperature=0, max_tokens=40).json
    assert answer["choices"][0]["message"]["content"]
    plain = start_session_server("--demo").chat(QUESTIONS[0], temperature=0, max_tokens=40).json
    assert not plain["choices"][0]["message"]["content"]


def test_a_parser_that_tells_no_closer_cannot_be_bounded(start_session_server: Any, tmp_path: Any) -> None:
    """A 400 that names it; a reserve alone asks for nothing."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from maple_plugins.parsers.think import ThinkParser\n"
        "class Mine:\n"
        "    markers = ThinkParser.markers\n"
        "    def __init__(self, context): self._inner = ThinkParser(context)\n"
        "    def feed(self, text): return self._inner.feed(text)\n"
        "    def close(self, finish): return self._inner.close(finish)\n"
        "    @property\n"
        "    def reasoning_end(self): return self._inner.reasoning_end\n"
        "    @classmethod\n"
        "    def prompt_ends_inside(cls, prompt): return ThinkParser.prompt_ends_inside(prompt)\n"
    )
    server = start_session_server("--demo", "--api-level", "extended", "--reasoning-parser", f"{file}:Mine")
    refused = server.chat("hi", thinking_token_budget=5)
    assert (refused.status, refused.error["param"]) == (400, "thinking_token_budget")
    assert "Mine" in refused.error["message"]
    assert server.chat("hi", max_tokens=20).status == 200


def test_reasoning_in_circles_is_closed(server: Any) -> None:
    """A model that says one thing alone stops thinking at 512 tokens of it, before the reserve closes the block."""
    (word,) = server.request("POST", "/tokenize", {"prompt": " so"}).json["tokens"]
    answer = server.chat(QUESTIONS[0], temperature=0, max_tokens=800, logit_bias={str(word): 100}).json
    assert 512 <= answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 514
    assert answer["choices"][0]["message"]["content"]
