"""POST /v1/responses, inwards: the field table, and the Ask made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, cast

import attrs

from maple_protocols.adapter import JsonObject, Kept, Policy
from maple_protocols.ask import Ask, Conversation, Message
from maple_protocols.errors import ErrorBody, InvalidField, RequestError
from maple_protocols.openai import fields
from maple_protocols.openai.chat_in import OPEN_MUST, own_variables, variables_check
from maple_protocols.openai.messages import UNREADABLE, unreadable_user
from maple_protocols.openai.responses_conversation import Naming, conversation
from maple_protocols.openai.responses_echo import echoed
from maple_protocols.openai.responses_items import Item, Items
from maple_protocols.openai.responses_kept import holders, resolved, wire_items
from maple_protocols.openai.responses_request import ResponsesRequest
from maple_protocols.openai.responses_tools import CallForm, Offered, named_apart, naming
from maple_protocols.openai.thinking import effort, effort_word, first_budget
from maple_protocols.openai.tools import (
    Choice,
    check_choice,
    forced,
    is_shown,
    specs,
    strict_in_vain,
)
from maple_protocols.reading import drop, reading
from maple_protocols.rules import Misfit
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


def responses_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask that ``body`` spells. Raises RequestError."""
    with reading(extended=policy.extended) as notes:
        request = structure(
            ResponsesRequest, body, refuse_unknown=refuse_unknown, code=CODE, checks=_checks(policy)
        )
        offered = named_apart(request.tools)
        forms = {tool.shown: tool.form for tool in offered}
        form = request.text.format if request.text else None
        if form is not None and not policy.extended:
            drop("text", "format")
        keep = policy.response_store if request.store is None else request.store
        prompt = _conversation(request, offered, naming(forms))
        calls = forced(request.tool_choice, body.get("tools"), request.parallel_tool_calls)
        return Ask(
            prompt=prompt,
            model=request.model,
            sampling=fields.sampling(request),
            max_tokens=fields.token_limit(request.max_output_tokens),
            stop=request.stop,
            stream=request.stream,
            include_reasoning=fields.shows_reasoning(request.include_reasoning, policy),
            progress=request.return_progress and request.stream,
            timings=fields.shows_timings(request.timings, policy),
            session_id=fields.session(request.session_id, policy),
            echo=echoed(request, offered, keep=keep),
            call_forms=forms,
            keep=keep,
            must_keep=request.store is True,
            follows=request.previous_response_id,
            references=holders(request.input),
            items=wire_items(request.input),
            extended=policy.extended,
            thinking_budget=_budget(request) or None,
            effort=effort_word(
                request.reasoning.effort if request.reasoning else None, request.reasoning_effort
            ),
            forced_calls=calls,
            form=form if policy.extended else None,
            ignored=(
                *ignored(ResponsesRequest, body),
                *strict_in_vain(calls, body.get("tools")),
                *notes.dropped,
            ),
        )


def _conversation(request: ResponsesRequest, tools: Iterable[Offered], names: Naming) -> Conversation:
    shown = tuple(tool.tool for tool in tools if is_shown(tool.form.name, request.tool_choice))
    settings = request.chat_template_kwargs or {}
    messages = _messages(request.instructions, request.input, names)
    _check_readable(messages, request.input)
    if request.continue_final_message and (messages[-1].role != "assistant" or messages[-1].tool_calls):
        param = "continue_final_message"
        raise InvalidField(param=param, message=f"{param} {OPEN_MUST}", code=CODE)
    return Conversation(
        messages=messages,
        tools=shown,
        tool_specs=specs(shown),
        thinking=_thinking(request, settings),
        ending="open" if request.continue_final_message else "answer",
        template_variables=own_variables(settings),
    )


def _thinking(request: ResponsesRequest, settings: Mapping[str, object]) -> bool | None:
    """The first word that is there: the template's own switch, a budget, reasoning.effort, reasoning_effort."""
    switch = settings.get("enable_thinking")
    if isinstance(switch, bool):
        return switch
    if (most := _budget(request)) is not None:
        return most > 0
    inner = request.reasoning.effort if request.reasoning else None
    return next(iter((*effort(inner), *effort(request.reasoning_effort))), None)


def _budget(request: ResponsesRequest) -> int | None:
    inner = request.reasoning.max_tokens if request.reasoning else None
    return first_budget(request.thinking_token_budget, request.thinking_budget_tokens, inner)


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


def _checks(policy: Policy) -> dict[str, Check]:
    def check_store(store: bool, _: Mapping[str, Any]) -> None:
        if store and not policy.response_store:
            raise StoreNotConfigured

    def check_previous(_: str, __: Mapping[str, Any]) -> None:
        if not policy.response_store:
            raise Misfit("needs a response store, and this server has none")

    return {
        "tool_choice": _check_choice,
        "logit_bias": fields.bias_check(policy),
        "min_tokens": fields.check_least,
        "chat_template_kwargs": variables_check(policy),
        "store": check_store,
        "previous_response_id": check_previous,
    }


def _check_choice(choice: Choice, earlier: Mapping[str, Any]) -> None:
    check_choice(choice, [tool.form.name for group in earlier.get("tools", ()) for tool in group])
