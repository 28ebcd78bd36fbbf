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


def test_tool_markup_in_a_string_is_text(client: openai.OpenAI) -> None:
    """With a form and no tools, no tool parser looks into the answer."""
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "hi"}],
        extra_body={"structured_outputs": {"json": {"const": "<tool_call>"}}},
    )
    assert json.loads(answer.choices[0].message.content or "") == "<tool_call>"
    assert not answer.choices[0].message.tool_calls
