"""Several choices in one answer, and the log probabilities of its text, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from maple_protocols.adapter import Done, Identity, OfChoice, Policy, Usage
from maple_protocols.ask import Ask, Conversation, RawText
from maple_protocols.errors import InvalidField
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import MAX_PROMPTS, CompletionsAdapter
from maple_protocols.openai.logprobs import TextScores, spelt
from maple_protocols.scored import ScoredContent, ScoredReasoning, TokenScore

IDENTITY = Identity(key="0123456789abcdef" * 2, created=1_789_460_000, model="maple-preview")
EXTENDED = Policy(vocabulary=100, level="extended")
DONE = Done(finish="stop", usage=Usage(prompt_tokens=3, completion_tokens=2))
LEAF = "🍁".encode()


def score(text: bytes, logprob: float | None = -0.5, shown: bytes | None = None) -> TokenScore:
    return TokenScore(
        token=text,
        shown=text if shown is None else shown,
        logprob=logprob,
        top=((b"other", -1.0), (text, -0.5)),
    )


THOUGHT = ScoredReasoning("Hm", (score(b"Hm"),))
SAID = ScoredContent("hi", (score(b"hi\n", shown=b"hi"),))
ENTRY = {
    "token": "hi\n",
    "logprob": -0.5,
    "bytes": [104, 105],
    "top_logprobs": [
        {"token": "other", "logprob": -1.0, "bytes": [111, 116, 104, 101, 114]},
        {"token": "hi\n", "logprob": -0.5, "bytes": [104, 105, 10]},
    ],
}


def chunks(adapter: ChatAdapter | CompletionsAdapter, ask: Ask, events: Sequence[Any]) -> list[Any]:
    encoder = adapter.encoder(ask, IDENTITY)
    return [frame.data for event in events for frame in encoder.event(event)]


def whole(adapter: ChatAdapter | CompletionsAdapter, ask: Ask, events: Sequence[Any]) -> Any:
    fold = adapter.fold(ask, IDENTITY)
    for event in events:
        fold.event(event)
    return fold.body()


def chat(**fields: Any) -> Ask:
    return Ask(prompt=Conversation(messages=()), **fields)


def completion(**fields: Any) -> Ask:
    return Ask(prompt=RawText("once"), **fields)


def test_entries_travel_with_their_text() -> None:
    """Of reasoning and of content apart; the bytes are those that the text has of the token."""
    thought, said, _ = chunks(ChatAdapter(), chat(scores=2), [THOUGHT, SAID, DONE])
    assert said["choices"][0]["logprobs"] == {"content": [ENTRY], "reasoning": None, "refusal": None}
    assert thought["choices"][0]["logprobs"]["content"] == []
    (choice,) = whole(ChatAdapter(), chat(scores=2), [THOUGHT, SAID, DONE])["choices"]
    assert choice["logprobs"]["content"] == [ENTRY]
    assert [entry["token"] for entry in choice["logprobs"]["reasoning"]] == ["Hm"]


def test_what_nothing_came_before_has_a_number_on_chat_too() -> None:
    """Chat never shows such a token; its shape has no null."""
    said = ScoredContent("a", (score(b"a", None),))
    (choice,) = whole(ChatAdapter(), chat(scores=0), [said, DONE])["choices"]
    assert choice["logprobs"]["content"][0]["logprob"] == 0.0


def test_top_logprobs_alone_is_refused() -> None:
    """It asks for nothing that could be given."""
    body = {"messages": [{"role": "user", "content": "hi"}], "top_logprobs": 2}
    with pytest.raises(InvalidField) as caught:
        ChatAdapter().structure(body, EXTENDED)
    assert caught.value.body.param == "top_logprobs"
    assert ChatAdapter().structure({**body, "logprobs": True}, EXTENDED).scores == 2


@pytest.mark.parametrize("logprobs", [6, -1, True, "2"])
def test_a_completion_takes_up_to_five(logprobs: object) -> None:
    """A number it is, and no more than the field's own."""
    with pytest.raises(InvalidField):
        CompletionsAdapter().structure({"prompt": "once", "logprobs": logprobs}, EXTENDED)
    assert CompletionsAdapter().structure({"prompt": "once", "logprobs": 5}, EXTENDED).scores == 5


def test_lists_of_a_completion() -> None:
    """Offsets count characters from the text's beginning, also where a token has a part of one."""
    scores = (score(b"a", None), score(LEAF[:3]), score(LEAF[3:]), score(b"b"))
    events = [ScoredContent("a🍁", scores[:3]), ScoredContent("b", scores[3:]), DONE]
    (choice,) = whole(CompletionsAdapter(), completion(scores=1), events)["choices"]
    assert choice["logprobs"]["tokens"] == ["a", "bytes:\\xf0\\x9f\\x8d", "bytes:\\x81", "b"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][3] == {"other": -1.0, "b": -0.5}
    streamed = [
        chunk["choices"][0]["logprobs"]
        for chunk in chunks(CompletionsAdapter(), completion(scores=1), events)
    ]
    assert streamed[0]["text_offset"] + streamed[1]["text_offset"] == [0, 1, 1, 2]
    assert streamed[2] is None


def test_a_tokens_spelling() -> None:
    """Text where it is text."""
    assert spelt("ß".encode()) == "ß"
    assert spelt(b"\xe2\x80") == "bytes:\\xe2\\x80"
    assert TextScores().of(()).tokens == ()


INTERLEAVED = [
    OfChoice(1, SAID),
    OfChoice(0, ScoredContent("yes")),
    OfChoice(1, DONE),
    OfChoice(0, Done(finish="length", usage=Usage(prompt_tokens=3, completion_tokens=1))),
    DONE,
]


@pytest.mark.parametrize(("adapter", "ask"), [(ChatAdapter(), chat), (CompletionsAdapter(), completion)])
def test_choices_interleave(adapter: ChatAdapter | CompletionsAdapter, ask: Any) -> None:
    """A chunk has one choice; together they are the whole answer, whose usage is the turn's."""
    sent = chunks(adapter, ask(choices=2, include_usage=True), INTERLEAVED)
    assert [chunk["choices"][0]["index"] for chunk in sent[:-1]] == [1, 0, 1, 0]
    assert (sent[-1]["choices"], sent[-1]["usage"]["completion_tokens"]) == ([], 2)
    answer = whole(adapter, ask(choices=2), INTERLEAVED)
    assert [(one["index"], one["finish_reason"]) for one in answer["choices"]] == [(0, "length"), (1, "stop")]
    texts = [one["text"] if "text" in one else one["message"]["content"] for one in answer["choices"]]
    assert texts == ["yes", "hi"]
    assert answer["usage"]["completion_tokens"] == 2


def test_without_a_wish_for_usage_the_turns_end_is_silent() -> None:
    """Each choice has had its own."""
    for adapter, ask in ((ChatAdapter(), chat), (CompletionsAdapter(), completion)):
        assert len(chunks(adapter, ask(choices=2), INTERLEAVED)) == 4


def test_several_prompts_are_the_extended_levels() -> None:
    """Up to sixteen; the reference has one, and says so."""
    adapter = CompletionsAdapter()
    assert adapter.structure({"prompt": ["a", [5, 6]]}, EXTENDED).answers == 2
    for policy, prompt in ((Policy(vocabulary=100), ["a", "b"]), (EXTENDED, ["a"] * (MAX_PROMPTS + 1))):
        with pytest.raises(InvalidField) as caught:
            adapter.structure({"prompt": prompt}, policy)
        assert caught.value.body.param == "prompt"


def test_no_tokens_beside_an_echo_alone() -> None:
    """Scoring a prompt needs no answer; an answer of nothing is no wish."""
    adapter = CompletionsAdapter()
    assert adapter.structure({"prompt": "a", "max_tokens": 0, "echo": True}, EXTENDED).max_tokens == 0
    with pytest.raises(InvalidField) as caught:
        adapter.structure({"prompt": "a", "max_tokens": 0}, EXTENDED)
    assert caught.value.body.message == "max_tokens must be at least 1"
