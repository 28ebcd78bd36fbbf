"""Answers of the embedded model that are held to a form, through the official SDK."""

from __future__ import annotations

import concurrent.futures
import json
import random
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

KINDS: tuple[dict[str, Any], ...] = (
    {"type": "boolean"},
    {"enum": ["red", "green", 3, None]},
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "string", "maxLength": 6},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
)
SCHEMAS = 40


@pytest.fixture(scope="module")
def client(start_session_server: Any) -> openai.OpenAI:
    server = start_session_server("--demo", "--api-level", "extended", "--max-batch", "8")
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


class Verdict(pydantic.BaseModel):
    """What the SDK turns into a schema and back."""

    right: bool
    colour: Literal["red", "green"]


def some_schema(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)  # noqa: S311
    names = draw.sample("abcdefg", draw.randint(1, 4))
    properties = {name: draw.choice(KINDS) for name in names}
    required = draw.sample(names, draw.randint(0, len(names)))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def ask(client: openai.OpenAI, seed: int, **fields: Any) -> tuple[str, str]:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": some_schema(seed)}}
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": f"What is {seed} + 4?"}],
        response_format=form,
        max_tokens=300,
        seed=seed,
        extra_body={"enable_thinking": bool(seed % 2)},
        **fields,
    )
    if not fields.get("stream"):
        return answer.choices[0].message.content, answer.choices[0].finish_reason
    chunks = [chunk for chunk in answer if chunk.choices]
    return "".join(one.choices[0].delta.content or "" for one in chunks), chunks[-1].choices[0].finish_reason


def test_the_sdk_parses_what_it_asks_for(client: openai.OpenAI) -> None:
    """chat.completions.parse and responses.parse, thinking or not."""
    for thinking in (True, False):
        parsed = client.chat.completions.parse(
            model="any",
            messages=[{"role": "user", "content": "Is 3 + 4 = 7?"}],
            response_format=Verdict,
            extra_body={"enable_thinking": thinking},
        )
        assert isinstance(parsed.choices[0].message.parsed, Verdict)
    assert isinstance(
        client.responses.parse(model="any", input="Is 3 + 4 = 7?", text_format=Verdict).output_parsed, Verdict
    )


def test_every_answer_that_ends_is_valid_and_the_one_it_is_alone(client: openai.OpenAI) -> None:
    """Random schemas, thinking on and off: eight at a time as alone, streamed as whole."""
    alone = [ask(client, seed) for seed in range(SCHEMAS)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: ask(client, seed, stream=bool(seed % 3)), range(SCHEMAS)))
    assert together == alone
    ended = [(seed, text) for seed, (text, finish) in enumerate(alone) if finish == "stop"]
    assert len(ended) >= SCHEMAS // 2
    for seed, text in ended:
        jsonschema.validate(json.loads(text), some_schema(seed))


@pytest.mark.parametrize(
    ("form", "fits"),
    [
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"regex": "[a-c]{3}"}, lambda text: len(text) == 3 and set(text) <= set("abc")),
        ({"grammar": 'start: "x" ("y" | "z")'}, lambda text: text in ("xy", "xz")),
        ({"json": {"const": [None, {}]}}, lambda text: json.loads(text) == [None, {}]),
    ],
    ids=["choice", "regex", "grammar", "json"],
)
def test_structured_outputs(client: openai.OpenAI, form: dict[str, Any], fits: Any) -> None:
    """VLLM's field, on chat and on completions."""
    extra = {"structured_outputs": form}
    chat = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "hi"}], extra_body=extra
    )
    assert fits(chat.choices[0].message.content)
    raw = client.completions.create(model="any", prompt="hi", extra_body=extra, max_tokens=60)
    assert raw.choices[0].finish_reason == "stop"
    assert fits(raw.choices[0].text)


def test_thinking_does_not_end_the_text_before_the_answer(client: openai.OpenAI) -> None:
    """Even where nothing is likelier than its end: what ends with stop fits the form."""
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "hi"}],
        logit_bias={"0": 99, "2": 99},
        max_tokens=200,
        extra_body={
            "structured_outputs": {"choice": ["yes", "no"]},
            "thinking_token_budget": 8,
        },
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content in ("yes", "no")


def test_a_form_that_lets_nothing_more_come_ends_the_answer(client: openai.OpenAI) -> None:
    """Though more tokens were wanted: it is whole, and no id is left that both allow."""
    for wanted in ({"min_tokens": 30}, {"ignore_eos": True}):
        extra = {"structured_outputs": {"choice": ["yes", "no"]}, **wanted}
        raw = client.completions.create(model="any", prompt="hi", extra_body=extra, max_tokens=60)
        assert raw.choices[0].text in ("yes", "no")
        assert raw.choices[0].finish_reason == "stop"


def test_a_form_that_is_too_much_for_its_matcher_is_cut_or_refused(client: openai.OpenAI) -> None:
    """Never an error, never a stop that does not fit, and those beside it go on."""
    extra = {"structured_outputs": {"regex": "(?:a?){500}a{500}"}}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        beside = pool.submit(ask, client, 4)
        for _ in range(2):
            try:
                raw = client.completions.create(model="any", prompt="hi", extra_body=extra, max_tokens=60)
                assert raw.choices[0].finish_reason == "length"
            except openai.BadRequestError as refused:
                assert refused.param == "structured_outputs.regex"  # noqa: PT017 -- which of the two is the library's
        assert beside.result() == ask(client, 4)


def test_tool_markup_in_a_string_is_text(client: openai.OpenAI) -> None:
    """With a form and no tools, no tool parser looks into the answer."""
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "hi"}],
        extra_body={"structured_outputs": {"json": {"const": "<tool_call>"}}},
    )
    assert json.loads(answer.choices[0].message.content or "") == "<tool_call>"
    assert not answer.choices[0].message.tool_calls


def tool(name: str, *, strict: bool = False) -> Any:
    kinds = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": kinds, "strict": strict}}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_forced_calls_are_made_whatever_is_asked(client: openai.OpenAI, thinking: bool, stream: bool) -> None:
    """Required: some tool; named: that one; strict: by its schema; not parallel: a single one. Nothing beside them."""
    named = {"type": "function", "function": {"name": "look"}}
    for choice, names in (("required", {"look", "other"}), (named, {"look"})):
        for seed in range(6):
            create: Any = client.chat.completions.create
            answer = create(
                model="any",
                messages=[{"role": "user", "content": f"What is {seed} + 4?"}],
                tools=[tool("look", strict=True), tool("other", strict=True)],
                tool_choice=choice,
                parallel_tool_calls=False,
                seed=seed,
                stream=stream,
                extra_body={"enable_thinking": thinking},
            )
            message = [
                (call.function.name, json.loads(call.function.arguments), finish)
                for call, finish in (_streamed(answer) if stream else _whole(answer))
            ]
            assert len(message) == 1
            name, arguments, finish = message[0]
            assert (name in names, arguments["n"] in (1, 2), finish) == (True, True, "tool_calls")


def _whole(answer: Any) -> list[tuple[Any, str]]:
    (choice,) = answer.choices
    assert choice.message.content is None
    return [(call, choice.finish_reason) for call in choice.message.tool_calls]


def _streamed(answer: Any) -> list[tuple[Any, str]]:
    deltas = [chunk.choices[0] for chunk in answer if chunk.choices]
    assert not any(one.delta.content for one in deltas)
    return [(call, deltas[-1].finish_reason) for one in deltas for call in one.delta.tool_calls or ()]


def test_forced_calls_on_responses(client: openai.OpenAI) -> None:
    """The same by the flat shape."""
    flat = {"type": "function", **tool("look")["function"], "strict": True}
    create: Any = client.responses.create
    answer = create(
        model="any", input="What is 3 + 4?", tools=[flat], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(call.arguments)["n"] in (1, 2)


def test_a_parser_that_tells_no_form_cannot_be_forced(start_session_server: Any) -> None:
    """A 400 that names it."""
    server = start_session_server("--demo", "--api-level", "extended", "--tool-parser", "mistral")
    answer = server.chat("hi", tools=[tool("look")], tool_choice="required")
    assert (answer.status, answer.error["param"]) == (400, "tool_choice")
    assert "MistralToolParser" in answer.error["message"]


def test_a_ban_does_not_break_a_form(client: openai.OpenAI) -> None:
    """Where every id that the form allows is banned, the form is kept all the same."""
    answer = client.chat.completions.create(
        model="maple",
        messages=[{"role": "user", "content": "hi"}],
        logit_bias={str(token): -100 for token in range(1024)},
        extra_body={"enable_thinking": False, "structured_outputs": {"choice": ["yes"]}},
    )
    assert answer.choices[0].message.content == "yes"
