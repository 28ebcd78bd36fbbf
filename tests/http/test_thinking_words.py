"""How much to think: the words for it, which of them counts, and the bounds that the engine is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"input": "hi"},
}
OFF, ON = (False, None), (True, None)


def asked(server: LiveServer, path: str, **fields: Any) -> tuple[bool, int | None]:
    """Whether the model thinks, and at most how long."""
    answer = server.post(path, {**BODIES[path], **fields})
    assert answer.status == 200, answer.body
    bounds = server.engine.last_job.thinking
    return server.prompt().endswith("<think>\n"), None if bounds is None else bounds.budget


@pytest.mark.parametrize(
    ("word", "reference", "extended"),
    [
        ("none", OFF, OFF),
        ("minimal", OFF, OFF),
        ("low", ON, (True, 512)),
        ("medium", ON, (True, 2048)),
        ("high", ON, ON),
        ("xhigh", ON, ON),
    ],
)
def test_an_effort_is_a_bound_at_the_extended_level(
    serve: Serve, word: str, reference: Any, extended: Any
) -> None:
    """None and minimal turn thinking off at both; on chat, and on responses under both of its names."""
    for level, wanted in (("reference", reference), ("extended", extended)):
        server = serve(api_level=level)
        assert asked(server, CHAT, reasoning_effort=word) == wanted
        assert asked(server, RESPONSES, reasoning={"effort": word}) == wanted
        assert asked(server, RESPONSES, reasoning_effort=word) == wanted


def test_efforts_are_a_setting(serve: Serve) -> None:
    """Words that it does not name bound nothing."""
    server = serve(api_level="extended", reasoning_effort=("high=99",))
    assert asked(server, CHAT, reasoning_effort="high") == (True, 99)
    assert asked(server, CHAT, reasoning_effort="low") == ON


WORDS: list[tuple[dict[str, Any], Any]] = [
    ({"chat_template_kwargs": {"enable_thinking": False}}, OFF),
    ({"enable_thinking": True}, ON),
    ({"thinking": {"type": "disabled"}}, OFF),
    ({"thinking_token_budget": 70}, (True, 70)),
    ({"reasoning": {"effort": "none"}}, OFF),
    ({"reasoning_effort": "low"}, (True, 512)),
]
"""One word of each kind, in the order of precedence, and what it says alone."""


@pytest.mark.parametrize("first", range(len(WORDS)))
def test_the_first_word_that_is_there_counts(serve: Serve, first: int) -> None:
    """Whatever else is said behind it; but a budget bounds what a switch turns on."""
    server = serve(api_level="extended")
    fields: dict[str, Any] = {}
    for word, _ in reversed(WORDS[first:]):
        fields |= word
    on, budget = WORDS[first][1]
    if on and first < 3:
        budget = 70
    assert asked(server, CHAT, **fields) == (on, budget)


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens"])
def test_a_budget_is_taken_at_both_levels(serve: Serve, name: str) -> None:
    """0 is a closed block, less is refused; the ids that close are the closer's own and an empty line's."""
    server = serve()
    for path, body in BODIES.items():
        assert asked(server, path, **{name: 0}) == OFF
        assert asked(server, path, **{name: 7}) == (True, 7)
        refused = server.post(path, {**body, name: -1})
        assert (refused.status, refused.error["param"]) == (400, name)
    assert asked(server, RESPONSES, reasoning={"max_tokens": 7}) == (True, 7)
    bounds = server.engine.last_job.thinking
    assert bounds is not None
    assert server.post("/detokenize", {"tokens": bounds.closing}).json["content"] == "</think>\n\n"
    assert len(bounds.closing) == 1 + len(server.post("/tokenize", {"prompt": "\n\n"}).json["tokens"])


@pytest.mark.parametrize(
    ("settings", "most", "reserve"),
    [
        ({}, 4000, None),
        ({"api_level": "extended"}, 4000, 512),
        ({"api_level": "extended"}, 100, 25),
        ({"answer_reserve": 10}, 100, 10),
        ({"api_level": "extended", "answer_reserve": 0, "loop_guard": "false"}, 100, None),
    ],
)
def test_reasoning_leaves_room_for_the_answer(
    serve: Serve, settings: Any, most: int, reserve: int | None
) -> None:
    """So many tokens by the setting or the level, a quarter of the limit at most."""
    server = serve(**settings)
    asked(server, CHAT, max_tokens=most)
    bounds = server.engine.last_job.thinking
    assert (bounds.reserve if bounds else None) == reserve


@pytest.mark.parametrize(
    ("settings", "guarded"),
    [
        ({}, False),
        ({"loop_guard": "true"}, True),
        ({"api_level": "extended"}, True),
        ({"api_level": "extended", "loop_guard": "false"}, False),
    ],
)
def test_loops_are_looked_for_where_that_is_set(serve: Serve, settings: Any, guarded: bool) -> None:
    """At the extended level unless it is turned off."""
    server = serve(**settings)
    asked(server, CHAT)
    bounds = server.engine.last_job.thinking
    assert (bounds is not None and bounds.loop_guard) == guarded
