"""POST /v1/responses, inwards: the field table, and the Ask made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import attrs

from maple_protocols.adapter import JsonObject, Kept, Policy
from maple_protocols.ask import Ask, Conversation, Message
from maple_protocols.errors import ErrorBody, InvalidField, RequestError
from maple_protocols.openai import fields
from maple_protocols.openai.chat_in import TemplateKwargs, own_variables, variables_check
from maple_protocols.openai.messages import UNREADABLE, unreadable_user
from maple_protocols.openai.response_tools import CallForm, Offered, Tools, named_apart, naming
from maple_protocols.openai.responses_items import Item, Items, Naming, conversation
from maple_protocols.openai.responses_kept import holders, resolved, wire_items
from maple_protocols.openai.thinking import Effort, effort
from maple_protocols.openai.tools import (
    TOOL_CHOICE,
    AllowedTools,
    Choice,
    ChosenTool,
    ToolChoiceShape,
    check_choice,
    is_shown,
    specs,
)
from maple_protocols.reading import drop, reading
from maple_protocols.rules import Doc, Length, Misfit
from maple_protocols.strict import Check, ignored, read, structure

CODE = "invalid_parameter"
SUMMARIES = ("auto", "concise", "detailed")


class StoreNotConfigured(RequestError):
    """A response was to be stored, and the server has nowhere to put it."""

    status = 501

    @property
    def body(self) -> ErrorBody:
        """Says what would be needed."""
        message = "store needs a response store, and this server has none"
        return ErrorBody(message=message, type="server_error", param="store", code="not_configured")


@attrs.frozen(kw_only=True)
class ReasoningWish:
    """How much to reason."""

    effort: Annotated[
        str | None, Length(most=64), Doc("none and minimal turn thinking off, any other word is echoed.")
    ] = None
    summary: Annotated[
        object, Doc("auto, concise or detailed: the reasoning comes as one summary part instead.")
    ] = None


@attrs.frozen(kw_only=True)
class TextFormat:
    """The form of the answer."""

    type: Literal["text", "json_object"] = "text"


@attrs.frozen(kw_only=True)
class TextWish:
    """What the answer is to look like."""

    format: Annotated[TextFormat | None, Doc("Plain text, or json_object, which has no effect.")] = None


FlatToolChoice = Annotated[Choice | None, ToolChoiceShape(flat=True), TOOL_CHOICE]


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
    tools: Annotated[tuple[Tools, ...], Doc("What the model may call.")] = ()
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
    client_metadata: fields.Unused = None
    access_programs: fields.Unused = None
    max_tool_calls: fields.Unused = None
    top_logprobs: fields.TopLogprobs = None
    prompt_cache_options: fields.Unused = None
    context_management: fields.Unused = None
    moderation: fields.Unused = None
    conversation: fields.Unused = None
    reasoning_effort: Effort = None
    background: Annotated[Literal[False] | None, Doc("Responses are made at once.")] = None
    store: Annotated[
        bool | None,
        Doc("Keep the response; needs a response store, and where there is one true is the default."),
    ] = None
    previous_response_id: Annotated[
        str | None, Doc("A stored response to go on from: its input and output come before this input.")
    ] = None


def responses_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask that ``body`` spells. Raises RequestError."""
    with reading(extended=policy.extended) as notes:
        request = structure(
            ResponsesRequest, body, refuse_unknown=refuse_unknown, code=CODE, checks=_checks(policy)
        )
        offered = named_apart(request.tools)
        forms = {tool.shown: tool.form for tool in offered}
        if _format(request) != "text":
            drop("text", "format")
        keep = policy.response_store if request.store is None else request.store
        prompt = _conversation(request, offered, naming(forms))
        return Ask(
            prompt=prompt,
            model=request.model,
            sampling=fields.sampling(request),
            max_tokens=fields.token_limit(request.max_output_tokens),
            stop=request.stop,
            stream=request.stream,
            include_reasoning=fields.shows_reasoning(request.include_reasoning, policy),
            session_id=fields.session(request.session_id, policy),
            echo=_echo(request, offered, keep=keep),
            call_forms=forms,
            keep=keep,
            must_keep=request.store is True,
            follows=request.previous_response_id,
            references=holders(request.input),
            items=wire_items(request.input),
            extended=policy.extended,
            ignored=(*ignored(ResponsesRequest, body), *notes.dropped),
        )


def _conversation(request: ResponsesRequest, tools: Iterable[Offered], names: Naming) -> Conversation:
    shown = tuple(tool.tool for tool in tools if is_shown(tool.form.name, request.tool_choice))
    settings = request.chat_template_kwargs or {}
    messages = _messages(request.instructions, request.input, names)
    _check_readable(messages, request.input)
    return Conversation(
        messages=messages,
        tools=shown,
        tool_specs=specs(shown),
        thinking=_thinking(request, settings),
        template_variables=own_variables(settings),
    )


def _thinking(request: ResponsesRequest, settings: Mapping[str, object]) -> bool | None:
    """The first word that is there: the template's own switch, reasoning.effort, reasoning_effort."""
    switch = settings.get("enable_thinking")
    if isinstance(switch, bool):
        return switch
    inner = request.reasoning.effort if request.reasoning else None
    return next(iter((*effort(inner), *effort(request.reasoning_effort))), None)


def _check_readable(messages: Sequence[Message], items: Sequence[Item]) -> None:
    if unreadable_user(messages) is not None:
        raise InvalidField(param="input", message=f"input {UNREADABLE}", code=CODE)
    if not items:
        raise InvalidField(param="input", message="input must hold an item that can be read", code=CODE)


def _messages(instructions: object, items: Iterable[Item], names: Naming) -> tuple[Message, ...]:
    leading = (Message(role="system", content=str(instructions)),) if instructions else ()
    return (*leading, *conversation(items, names))


def continued_ask(ask: Ask, earlier: Kept | None, found: Iterable[Kept]) -> Ask:
    """``ask`` with an earlier exchange before its own input, and with the items that it refers to.

    Instructions and tools are the new ones. Raises ItemNotFound.
    """
    before = () if earlier is None else (*earlier.items, *cast("list[JsonObject]", earlier.body["output"]))
    items = tuple(resolved((*before, *ask.items), found))
    with reading(extended=True):  # what was kept has been looked at before
        read_items = read(Annotated[tuple[Item, ...], Items()], list(items))
    prompt = cast("Conversation", ask.prompt)
    names = naming(cast("Mapping[str, CallForm]", ask.call_forms))
    messages = _messages(ask.echo["instructions"], read_items, names)
    return attrs.evolve(ask, prompt=attrs.evolve(prompt, messages=messages), items=items)


def _echo(request: ResponsesRequest, tools: Iterable[Offered], *, keep: bool) -> JsonObject:
    """The request as its response repeats it, in the flat shapes of this route."""
    reasoning = request.reasoning or ReasoningWish()
    summary = reasoning.summary if reasoning.summary in SUMMARIES else None
    return {
        "instructions": request.instructions,
        "max_output_tokens": None
        if request.max_output_tokens == fields.NO_LIMIT
        else request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": dict(request.metadata or {}),
        "parallel_tool_calls": request.parallel_tool_calls,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": summary},
        "service_tier": "default",
        "store": keep,
        "temperature": request.temperature,
        "text": {"format": {"type": _format(request)}},
        "tool_choice": _echoed_choice(request.tool_choice),
        "tools": [tool.echo for tool in tools],
        "top_logprobs": 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        **{
            name: _words(getattr(request, name)) for name in ("prompt_cache_key", "safety_identifier", "user")
        },
    }


def _format(request: ResponsesRequest) -> str:
    return request.text.format.type if request.text and request.text.format else "text"


def _words(given: object) -> str | None:
    return given if isinstance(given, str) else None


def _echoed_choice(choice: Choice | None) -> str | JsonObject:
    match choice:
        case ChosenTool():
            return {"type": choice.type, "name": choice.name}
        case AllowedTools():
            named = [{"type": "function", "name": name} for name in sorted(choice.names)]
            return {"type": "allowed_tools", "mode": choice.mode, "tools": named}
    return choice or "auto"


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


def _check_choice(choice: Choice, earlier: Mapping[str, Any]) -> None:
    check_choice(choice, [tool.form.name for group in earlier.get("tools", ()) for tool in group])
