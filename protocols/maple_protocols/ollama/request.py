"""POST /api/chat and /api/generate, inwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
from typing_extensions import override

from maple_protocols.adapter import Policy
from maple_protocols.ask import AnswerForm, Ask, Conversation, Message, Prompt, RawText, SamplingWish
from maple_protocols.openai import fields
from maple_protocols.openai.messages import ChatMessage, renewed
from maple_protocols.openai.tools import FunctionTool, nested, specs
from maple_protocols.reading import drop, reading
from maple_protocols.rules import (
    Doc,
    Inert,
    Length,
    Misfit,
    NotEmpty,
    Range,
    Schema,
    Shape,
    anything,
    mapping,
)
from maple_protocols.schema import schema_of
from maple_protocols.strict import ignored, read, structure

LATEST = ":latest"
IMAGES = "[image omitted: this model reads text only]"
_KNOWN = frozenset({"role", "content", "thinking", "tool_calls"})


@attrs.frozen
class OllamaMessage(Shape):
    """A message of chat, with its reasoning under ``thinking``."""

    @override
    def structure(self, value: object) -> Message:
        given = mapping(value)
        plain: dict[str, Any] = {key: each for key, each in given.items() if key in _KNOWN}
        plain["reasoning"] = plain.pop("thinking", None)
        found: ChatMessage = read(ChatMessage, renewed(plain))
        message = found.neutral()
        if not given.get("images"):
            return message
        drop("messages[].images")
        return attrs.evolve(message, content="\n".join(filter(None, (message.content, IMAGES))))

    @override
    def schema(self) -> Schema:
        return schema_of(ChatMessage)


@attrs.frozen
class FormatShape(Shape):
    """json for any object, or a schema; an empty string is none."""

    @override
    def structure(self, value: object) -> AnswerForm | None:
        if value == "":
            return None
        if value == "json":
            return AnswerForm(kind="object", param="format")
        if not isinstance(value, dict):
            raise Misfit("must be json or a JSON Schema")
        return AnswerForm(kind="schema", param="format", value=anything(value))

    @override
    def schema(self) -> Schema:
        return {"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}


@attrs.frozen(kw_only=True)
class Options:
    """How to sample; other options have no effect."""

    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    min_p: Annotated[float | None, Range(least=0, most=1)] = None
    seed: fields.Seed = None
    num_predict: Annotated[int | None, Doc("Most new tokens; none below 1.")] = None
    stop: fields.Stop = ()
    repeat_penalty: Annotated[float | None, Range(above=0)] = None
    presence_penalty: Annotated[float | None, Range(least=-2, most=2)] = None
    frequency_penalty: Annotated[float | None, Range(least=-2, most=2)] = None


@attrs.frozen
class OptionsShape(Shape):
    """Options, of which those without effect are noted."""

    @override
    def structure(self, value: object) -> Options:
        given = mapping(value)
        known = {field.name for field in attrs.fields(Options)}
        for name in given.keys() - known:
            drop("options", name)
        found: Options = read(Options, given)
        return found

    @override
    def schema(self) -> Schema:
        return schema_of(Options)


@attrs.frozen
class ThinkShape(Shape):
    """Whether to think, or how much."""

    @override
    def structure(self, value: object) -> bool | str:
        if not isinstance(value, bool | str):
            raise Misfit("must be true, false or an effort")
        return value

    @override
    def schema(self) -> Schema:
        return {"type": ["boolean", "string"]}


Model = Annotated[str, Length(least=1), Doc("The model's name; :latest may follow it.")]
Format = Annotated[AnswerForm | None, FormatShape(), Doc("json, or the answer's JSON Schema.")]
Sampled = Annotated[Options, OptionsShape(), Doc("How to sample.")]
Think = Annotated[bool | str | None, ThinkShape(), Doc("By default as the server has it.")]
Streamed = Annotated[bool, Doc("A line of JSON for each piece; else one object.")]
Inactive = Annotated[object, Inert(), Doc("Accepted, without effect.")]


@attrs.frozen(kw_only=True)
class ChatBody:
    """The body of POST /api/chat."""

    model: Model
    messages: Annotated[tuple[Annotated[Message, OllamaMessage()], ...], NotEmpty(), Doc("The conversation.")]
    tools: Annotated[tuple[FunctionTool, ...], Doc("Functions the model may call.")] = ()
    format: Format = None
    options: Sampled = Options()
    stream: Streamed = True
    think: Think = None
    keep_alive: Inactive = None
    logprobs: Inactive = None
    top_logprobs: Inactive = None


@attrs.frozen(kw_only=True)
class GenerateBody:
    """The body of POST /api/generate."""

    model: Model
    prompt: Annotated[str, Length(least=1), Doc("What to answer.")]
    system: Annotated[str | None, Doc("Instructions.")] = None
    raw: Annotated[bool, Doc("The prompt goes to the model as it is.")] = False
    format: Format = None
    options: Sampled = Options()
    stream: Streamed = True
    think: Think = None
    keep_alive: Inactive = None
    images: Inactive = None
    suffix: Inactive = None
    template: Inactive = None
    context: Inactive = None
    logprobs: Inactive = None
    top_logprobs: Inactive = None


def chat_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask of a chat. Raises InvalidField."""
    with reading(extended=True) as notes:
        found = structure(ChatBody, body, refuse_unknown=refuse_unknown)
        tools = tuple(map(nested, body.get("tools") or ()))
        prompt = Conversation(
            messages=found.messages, tools=tools, tool_specs=specs(tools), thinking=_thinking(found.think)
        )
        return _ask(found, prompt, policy, (*ignored(ChatBody, body), *notes.dropped))


def generate_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask of a single prompt. Raises InvalidField."""
    with reading(extended=True) as notes:
        found = structure(GenerateBody, body, refuse_unknown=refuse_unknown)
        said = Message(role="user", content=found.prompt)
        told = (Message(role="system", content=found.system),) if found.system else ()
        prompt: Prompt = RawText(found.prompt)
        if not found.raw:
            prompt = Conversation(messages=(*told, said), thinking=_thinking(found.think))
        return _ask(found, prompt, policy, (*ignored(GenerateBody, body), *notes.dropped))


def _ask(found: ChatBody | GenerateBody, prompt: Prompt, policy: Policy, vain: tuple[str, ...]) -> Ask:
    options = found.options
    limit = options.num_predict
    return Ask(
        prompt=prompt,
        model=found.model.removesuffix(LATEST),
        echo={"model": found.model},
        sampling=SamplingWish(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=None if options.top_k is None else max(0, options.top_k),
            min_p=options.min_p or 0.0,
            seed=options.seed,
            repetition_penalty=options.repeat_penalty or 1.0,
            presence=options.presence_penalty or 0.0,
            frequency=options.frequency_penalty or 0.0,
        ),
        max_tokens=None if limit is None or limit < 1 else limit,
        stop=options.stop,
        stream=found.stream,
        session_id=fields.session(None, policy),
        extended=True,
        form=found.format,
        effort=found.think if isinstance(found.think, str) else None,
        ignored=vain,
    )


def _thinking(think: bool | str | None) -> bool | None:
    return True if isinstance(think, str) else think
