"""POST /v1/responses, inwards: the field table, and the Ask made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast

import attrs
from typing_extensions import override

from maple_protocols.adapter import JsonObject, Kept, Policy
from maple_protocols.ask import Ask, Conversation, Message
from maple_protocols.errors import ErrorBody, RequestError
from maple_protocols.openai import fields
from maple_protocols.openai.chat_in import TemplateKwargs, own_variables, variables_check
from maple_protocols.openai.responses_items import Item, Items, conversation
from maple_protocols.openai.responses_kept import wire_items
from maple_protocols.openai.tools import (
    TOOL_CHOICE,
    ChosenTool,
    FunctionTool,
    ToolChoiceShape,
    ToolMode,
    ToolName,
    ToolParameters,
    check_choice,
    known_function_keys,
    nested,
    shown,
    specs,
)
from maple_protocols.rules import Doc, Length, Misfit, Schema, Shape, mapping
from maple_protocols.schema import schema_of
from maple_protocols.strict import Check, ignored, read, structure

CODE = "invalid_parameter"


class StoreNotConfigured(RequestError):
    """A response was to be stored, and the server has nowhere to put it."""

    status = 501

    @property
    def body(self) -> ErrorBody:
        """Says what would be needed."""
        message = "store needs a response store, and this server has none"
        return ErrorBody(message=message, type="server_error", param="store", code="not_configured")


@attrs.frozen(kw_only=True)
class FlatTool:
    """A tool in the flat shape of responses."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: ToolParameters = None


@attrs.frozen
class ToolShape(Shape):
    """A function, flat or nested as on chat. Comes out as a mapping in the nested shape."""

    @override
    def structure(self, value: object) -> Mapping[str, Any]:
        raw = mapping(value)
        if raw.get("function") is not None:
            read(FunctionTool, raw)
            return nested(raw)
        read(FlatTool, raw)
        return {"type": "function", "function": known_function_keys(raw)}

    @override
    def schema(self) -> Schema:
        return {"anyOf": [schema_of(FlatTool), schema_of(FunctionTool)]}


@attrs.frozen(kw_only=True)
class ReasoningWish:
    """How much to reason."""

    effort: Annotated[
        str | None, Length(most=64), Doc("none turns thinking off, any other word is echoed.")
    ] = None


@attrs.frozen(kw_only=True)
class TextFormat:
    """The form of the answer."""

    type: Literal["text"] = "text"


@attrs.frozen(kw_only=True)
class TextWish:
    """What the answer is to look like."""

    format: Annotated[TextFormat | None, Doc("Only plain text.")] = None


FlatToolChoice = Annotated[ToolMode | ChosenTool | None, ToolChoiceShape(flat=True), TOOL_CHOICE]


@attrs.frozen(kw_only=True)
class ResponsesRequest:
    """The body of POST /v1/responses, its fields in the order in which they are checked."""

    model: fields.Model = None
    input: Annotated[tuple[Item, ...], Items(), Doc("The prompt: text, a message, or items.")]
    instructions: Annotated[str | None, Doc("Becomes the leading system message.")] = None
    max_output_tokens: fields.MaxTokens = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    repetition_penalty: fields.RepetitionPenalty = None
    presence_penalty: fields.Penalty = None
    frequency_penalty: fields.Penalty = None
    seed: fields.Seed = None
    stop: fields.Stop = ()
    stream: fields.Stream = False
    tools: Annotated[
        tuple[Annotated[Mapping[str, Any], ToolShape()], ...], Doc("What the model may call.")
    ] = ()
    tool_choice: FlatToolChoice = None
    parallel_tool_calls: Annotated[bool, Doc("Echoed, without effect.")] = True
    reasoning: Annotated[ReasoningWish | None, Doc("Effort none turns thinking off.")] = None
    text: Annotated[TextWish | None, Doc("Plain text is the only format.")] = None
    metadata: Annotated[Mapping[str, object] | None, Doc("Echoed.")] = None
    user: fields.Unused = None
    session_id: fields.SessionId = None
    chat_template_kwargs: TemplateKwargs = None
    include_reasoning: fields.IncludeReasoning = None
    include: fields.Unused = None
    truncation: fields.Unused = None
    stream_options: fields.Unused = None
    prompt_cache_key: fields.Unused = None
    prompt_cache_retention: fields.Unused = None
    safety_identifier: fields.Unused = None
    service_tier: fields.Unused = None
    background: Annotated[Literal[False] | None, Doc("Responses are made at once.")] = None
    store: Annotated[bool, Doc("Keep the response; needs a response store.")] = False
    previous_response_id: Annotated[
        str | None, Doc("A stored response to go on from: its input and output come before this input.")
    ] = None


def responses_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask that ``body`` spells. Raises InvalidField or StoreNotConfigured."""
    request = structure(
        ResponsesRequest,
        body,
        refuse_unknown=refuse_unknown,
        code=CODE,
        checks=_checks(policy),
    )
    return Ask(
        prompt=_conversation(request),
        model=request.model,
        sampling=fields.sampling(request),
        max_tokens=request.max_output_tokens,
        stop=request.stop,
        stream=request.stream,
        include_reasoning=fields.shows_reasoning(request.include_reasoning, policy),
        session_id=fields.session(request.session_id, policy, CODE),
        echo=_echo(request),
        keep=request.store,
        follows=request.previous_response_id,
        items=wire_items(request.input),
        extended=policy.extended,
        ignored=ignored(ResponsesRequest, body),
    )


def _conversation(request: ResponsesRequest) -> Conversation:
    offered = shown(request.tools, request.tool_choice)
    settings = request.chat_template_kwargs or {}
    silent = request.reasoning is not None and request.reasoning.effort == "none"
    return Conversation(
        messages=_messages(request.instructions, request.input),
        tools=offered,
        tool_specs=specs(offered),
        thinking=settings.get("enable_thinking", False if silent else None),
        template_variables=own_variables(settings),
    )


def _messages(instructions: object, items: Iterable[Item]) -> tuple[Message, ...]:
    leading = (Message(role="system", content=str(instructions)),) if instructions else ()
    return (*leading, *conversation(items))


def continued_ask(ask: Ask, earlier: Kept) -> Ask:
    """``ask`` with an earlier exchange before its own input; instructions and tools are the new ones."""
    items = (*earlier.items, *cast("list[JsonObject]", earlier.body["output"]), *ask.items)
    read_items = read(Annotated[tuple[Item, ...], Items()], [dict(item) for item in items])
    prompt = cast("Conversation", ask.prompt)
    messages = _messages(ask.echo["instructions"], read_items)
    return attrs.evolve(ask, prompt=attrs.evolve(prompt, messages=messages), items=items)


def _echo(request: ResponsesRequest) -> JsonObject:
    """The request as its response repeats it, in the flat shapes of this route."""
    effort = request.reasoning.effort if request.reasoning else None
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": dict(request.metadata or {}),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": effort, "summary": None},
        "store": request.store,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": _echoed_choice(request.tool_choice),
        "tools": [_echoed_tool(tool["function"]) for tool in request.tools],
        "top_p": request.top_p,
    }


def _echoed_choice(choice: ToolMode | ChosenTool | None) -> str | JsonObject:
    return {"type": "function", "name": choice.name} if isinstance(choice, ChosenTool) else choice or "auto"


def _echoed_tool(function: Mapping[str, Any]) -> JsonObject:
    """Strict is always false: it is what the server does."""
    optional = {"description": None, "parameters": None}
    return {"type": "function", **optional, **function, "strict": False}


def _checks(policy: Policy) -> dict[str, Check]:
    def check_store(store: bool, _: Mapping[str, Any]) -> None:
        if store and not policy.response_store:
            raise StoreNotConfigured

    def check_previous(_: str, __: Mapping[str, Any]) -> None:
        if not policy.response_store:
            raise Misfit("needs a response store, and this server has none")

    return {
        "tool_choice": _check_choice,
        "chat_template_kwargs": variables_check(policy),
        "store": check_store,
        "previous_response_id": check_previous,
    }


def _check_choice(choice: ToolMode | ChosenTool, earlier: Mapping[str, Any]) -> None:
    check_choice(choice, [tool["function"]["name"] for tool in earlier.get("tools", ())])
