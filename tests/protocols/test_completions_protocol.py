"""The contract's completions paragraph, inwards and outwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_protocols.adapter import Done, Identity, NumberedCall, Policy, TurnEvent, Usage
from maple_protocols.ask import Ask, RawIds, RawText, SamplingWish
from maple_protocols.errors import ErrorBody, InvalidField
from maple_protocols.openai.completions import CompletionsAdapter

POLICY = Policy(vocabulary=100)
IDENTITY = Identity(key="0123456789abcdef" * 2, created=1_789_460_000, model="maple-preview")
DONE = Done(finish="length", usage=Usage(prompt_tokens=3, completion_tokens=2))


def ask(policy: Policy = POLICY, /, **fields: Any) -> Ask:
    return CompletionsAdapter().structure({"prompt": "once", **fields}, policy)


def refusal(policy: Policy = POLICY, /, **fields: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        ask(policy, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a <think>", RawText("a <think>")),
        (["a"], RawText("a")),
        ([5, 6, 7], RawIds((5, 6, 7))),
        ([0], RawIds((0,))),
        ([[99, 5]], RawIds((99, 5))),
    ],
)
def test_a_prompt_is_one_text_or_one_list_of_ids(prompt: object, found: object) -> None:
    """String, one-element list of string, flat list of ids, or one-element list of a list of ids."""
    assert ask(prompt=prompt).prompt == found


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        " \n\t",
        [],
        [""],
        [" "],
        [[]],
        ["a", "b"],
        ["a", 5],
        [5, "a"],
        [[5], [6]],
        [[5], 6],
        [[["a"]]],
        [["a"]],
        [1.0],
        [True],
        [None],
        5,
        {},
        [-1],
        [100],
        [[5, 100]],
        [2**70],
        "\ud83d",
        ["\ud83d"],
    ],
)
def test_every_refusal_blames_the_prompt(prompt: object) -> None:
    """Blank, empty, mixed, several, or ids outside the vocabulary: 400, param prompt."""
    assert refusal(prompt=prompt).param == "prompt"
    assert refusal(prompt=prompt).code is None


def test_a_prompt_is_required() -> None:
    """A body without a prompt says so."""
    with pytest.raises(InvalidField, match="prompt is required"):
        CompletionsAdapter().structure({}, POLICY)


def test_the_other_fields_are_those_of_chat() -> None:
    """Stream, stop, seed, max_tokens, sampling, session and user behave as on chat."""
    found = ask(
        model="m",
        stream=True,
        stream_options={"include_usage": True},
        stop="x",
        seed=1,
        max_tokens=5,
        max_completion_tokens=2,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        repetition_penalty=1.5,
        presence_penalty=1,
        frequency_penalty=1,
        session_id="s",
        user="u",
    )
    sampling = SamplingWish(temperature=0.0, top_p=0.5, top_k=0, repetition_penalty=1.5, seed=1)
    assert found == Ask(
        prompt=RawText("once"),
        model="m",
        sampling=sampling,
        max_tokens=2,
        stop=("x",),
        stream=True,
        include_usage=True,
        session_id="s",
    )
    assert ask(Policy(session_header="h")).session_id == "h"
    assert ask(Policy(session_header="/")).session_id is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True),
        ("suffix", "b"),
        ("suffix", 5),
        ("logprobs", 1),
        ("logprobs", 0),
        ("logprobs", True),
        ("n", 2),
        ("best_of", 2),
        ("best_of", True),
        ("stop", [1]),
        ("max_tokens", 0),
        ("temperature", 3),
        ("stream", "x"),
        ("user_id", None),
    ],
)
def test_what_is_not_offered_is_refused_by_name(field: str, value: object) -> None:
    """Echo true, suffix non-empty, logprobs, n ≠ 1, best_of ≠ 1: 400 with that param."""
    if value is None:
        assert ask(**{field: value}) == ask()
    else:
        assert refusal(**{field: value}).param == field


def test_refusable_fields_have_harmless_values() -> None:
    """Their defaults may be spelled out."""
    assert ask(echo=False, suffix="", logprobs=None, n=1, best_of=1) == ask()
    assert refusal(n=2).message == "n must be 1"


def test_unknown_fields_are_ignored_unless_strict() -> None:
    """As on chat."""
    assert ask(frobnicate=1) == ask()
    assert refusal(Policy(vocabulary=100, strict_fields="true"), frobnicate=1).code == "invalid_parameter"


def test_the_whole_answer() -> None:
    """Id cmpl-…, object text_completion, choice {index, text, logprobs: null, finish_reason}."""
    fold = CompletionsAdapter().fold(ask(), IDENTITY)
    for event in (ContentDelta("a"), ContentDelta("b"), DONE):
        fold.event(event)
    assert fold.body() == {
        "id": f"cmpl-{IDENTITY.key}",
        "object": "text_completion",
        "created": 1_789_460_000,
        "model": "maple-preview",
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def frames(events: list[TurnEvent], **fields: Any) -> list[Any]:
    encoder = CompletionsAdapter().encoder(ask(**fields), IDENTITY)
    middle = [frame for event in events for frame in encoder.event(event)]
    return [frame.data for frame in (*encoder.opening(), *middle, *encoder.closing())]


def test_the_stream_ends_with_an_empty_text_and_usage_if_asked() -> None:
    """Ends with a chunk of text "" and finish_reason, then usage if asked, then ``[DONE]``."""
    text, finish, done = frames([ContentDelta("a"), DONE], stream=True)
    assert text["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}]
    assert finish["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert done == "[DONE]"
    *_, usage, _ = frames([DONE], stream=True, stream_options={"include_usage": True})
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 5
    assert {usage["object"], text["object"]} == {"text_completion"}


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=5), max_size=8))
def test_the_stream_folds_to_the_whole_answer(pieces: list[str]) -> None:
    """Joined, the chunks are the non-stream answer."""
    events: list[TurnEvent] = [*map(ContentDelta, pieces), DONE]
    fold = CompletionsAdapter().fold(ask(), IDENTITY)
    for event in events:
        fold.event(event)
    *chunks, usage, _ = frames(events, stream=True, stream_options={"include_usage": True})
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
    assert fold.body() == {**usage, "choices": [choice]}


def test_a_failure_is_one_error_event() -> None:
    """A failure after the status line: one error event, then ``[DONE]``."""
    encoder = CompletionsAdapter().encoder(ask(), IDENTITY)
    error = ErrorBody(message="generation failed", type="server_error")
    assert [frame.data for frame in encoder.failure(error)] == [error.as_wire()]


def test_a_raw_prompts_turn_has_no_parsed_events() -> None:
    """Nothing is parsed here: reasoning or a call would be a mistake of the server's, not an empty answer."""
    adapter = CompletionsAdapter()
    with pytest.raises(TypeError):
        adapter.encoder(ask(), IDENTITY).event(ReasoningDelta("x"))
    with pytest.raises(TypeError):
        adapter.fold(ask(), IDENTITY).event(NumberedCall(index=0, id="c", name="f", arguments="{}"))
