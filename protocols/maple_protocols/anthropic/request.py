"""POST /v1/messages, inwards: the field table, and the Ask made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import attrs
from maple_plugins.parser import ToolSpec

from maple_protocols.adapter import Policy
from maple_protocols.anthropic.content import SystemShape, Turn, holds_nothing_to_read
from maple_protocols.anthropic.wishes import (
    FORMAT,
    Choice,
    ChoiceShape,
    OutputConfig,
    OutputShape,
    Thinking,
    ThinkingShape,
    Tool,
    ToolShape,
)
from maple_protocols.ask import AnswerForm, Ask, Conversation, Ending, ForcedCalls, Message, SamplingWish
from maple_protocols.errors import InvalidField
from maple_protocols.openai import fields
from maple_protocols.openai.messages import UNREADABLE
from maple_protocols.reading import drop, reading
from maple_protocols.rules import (
    Doc,
    Inert,
    Length,
    Misfit,
    NotEmpty,
    Range,
)
from maple_protocols.strict import Check, ignored, read, structure

NO_LIMIT = 2**62
"""The limit of a request that is only counted, which has none."""

Inactive = Annotated[object, Inert(), Doc("Accepted, without effect.")]


@attrs.frozen(kw_only=True)
class MessagesRequest:
    """The body of POST /v1/messages, its fields in the order in which they are checked."""

    model: Annotated[str, Length(least=1), Doc("The model's name.")]
    max_tokens: Annotated[int, Range(least=1), Doc("The most tokens of the answer, thinking included.")]
    messages: Annotated[tuple[Turn, ...], NotEmpty(), Doc("The conversation so far.")]
    system: Annotated[str | None, SystemShape(), Doc("Instructions: text, or blocks of it.")] = None
    tools: Annotated[tuple[Annotated[Tool | None, ToolShape()], ...], Doc("What the model may call.")] = ()
    tool_choice: Annotated[Choice | None, ChoiceShape(), Doc("any and tool force calls.")] = None
    thinking: Annotated[Thinking | None, ThinkingShape(), Doc("By default as the server has it.")] = None
    output_config: Annotated[
        OutputConfig | None,
        OutputShape(),
        Doc("effort, and a format with the schema that the answer has to have."),
    ] = None
    output_format: Annotated[AnswerForm | None, FORMAT, Doc("Another name of output_config.format.")] = None
    stop_sequences: fields.Stop = ()
    temperature: Annotated[float | None, Range(least=0, most=1), Doc("0 is greedy.")] = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    metadata: Annotated[Mapping[str, Any] | None, Doc("user_id may name the session.")] = None
    stream: fields.Stream = False
    return_progress: fields.ReturnProgress = False
    timings: fields.WithTimings = None
    service_tier: Inactive = None
    cache_control: Inactive = None
    container: Inactive = None
    context_management: Inactive = None
    mcp_servers: Inactive = None
    inference_geo: Inactive = None
    speed: Inactive = None
    diagnostics: Inactive = None
    user_profile_id: Inactive = None
    workspace_id: Inactive = None
    fallbacks: Inactive = None
    thread: Inactive = None
    compaction: Inactive = None
    billing_policy: Inactive = None


def messages_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask that ``body`` spells. Raises InvalidField."""
    whole = {"max_tokens": NO_LIMIT, **body} if policy.counting else body
    with reading(extended=True) as notes:
        found = structure(MessagesRequest, whole, refuse_unknown=refuse_unknown, checks=_CHECKS)
        prompt = _conversation(found)
        return Ask(
            prompt=prompt,
            model=found.model,
            sampling=SamplingWish(temperature=found.temperature, top_p=found.top_p, top_k=found.top_k),
            max_tokens=found.max_tokens,
            stop=found.stop_sequences,
            stream=found.stream,
            include_reasoning=policy.include_reasoning and (found.thinking is None or found.thinking.shown),
            progress=found.return_progress and found.stream,
            timings=found.timings is True,
            thinking_budget=None if found.thinking is None else found.thinking.budget,
            effort=None if found.output_config is None else found.output_config.effort,
            form=(found.output_config and found.output_config.form) or found.output_format,
            forced_calls=_forced(found),
            session_id=_session(found, policy),
            extended=True,
            ignored=(*ignored(MessagesRequest, body), *_vain(found), *notes.dropped),
        )


def _vain(found: MessagesRequest) -> Iterator[str]:
    """What is taken and bounds nothing."""
    if found.tool_choice is not None and found.tool_choice.single and _forced(found) is None:
        yield "tool_choice.disable_parallel_tool_use"
    if _forced(found) is None and any(tool is not None and tool.strict for tool in found.tools):
        yield "tools[].strict"


def _forced(found: MessagesRequest) -> ForcedCalls | None:
    choice = found.tool_choice
    if choice is None or choice.kind not in ("any", "tool"):
        return None
    strict = frozenset(tool.name for tool in found.tools if tool is not None and tool.strict)
    return ForcedCalls(single=choice.single, strict=strict)


def _is_shown(name: str, choice: Choice | None) -> bool:
    return choice is None or (choice.kind != "none" and choice.name in (None, name))


def _conversation(found: MessagesRequest) -> Conversation:
    newest = next((turn for turn in reversed(found.messages) if turn[0].role != "assistant"), None)
    if newest is not None and holds_nothing_to_read(newest):
        index = len(found.messages) - 1 - found.messages[::-1].index(newest)
        param = f"messages[{index}].content"
        raise InvalidField(param=param, message=f"{param} {UNREADABLE}")
    messages, ending, thinking = _ended([message for turn in found.messages for message in turn], found)
    if found.system:
        messages = [Message(role="system", content=found.system), *messages]
    offered = [tool for tool in found.tools if tool is not None and _is_shown(tool.name, found.tool_choice)]
    return Conversation(
        messages=tuple(messages),
        tools=tuple(tool.nested for tool in offered),
        tool_specs=tuple(ToolSpec(tool.name, tool.schema) for tool in offered),
        thinking=thinking,
        ending=ending,
    )


def _ended(messages: list[Message], found: MessagesRequest) -> tuple[list[Message], Ending, bool | None]:
    """The messages, whether the last is a prefill, and whether to think then."""
    wish = None if found.thinking is None else found.thinking.on
    last = messages[-1]
    if last.role != "assistant":
        return messages, "answer", wish
    where = f"messages[{len(found.messages) - 1}].content"
    if last.tool_calls:
        raise InvalidField(param=where, message=f"{where} must not end in tool_use; its result must follow")
    if last.content != last.content.rstrip():
        raise InvalidField(
            param=where, message=f"{where}: final assistant content cannot end with trailing whitespace"
        )
    if not last.content and last.reasoning is None:
        return messages[:-1], "answer", wish
    return messages, "open", not last.content


def _session(found: MessagesRequest, policy: Policy) -> str | None:
    """The first name for the session that is fit to be one."""
    user = str((found.metadata or {}).get("user_id", ""))
    named: Mapping[str, str | None] = {
        "X-Session-Id": policy.session_header,
        "X-Claude-Code-Session-Id": policy.headers.get("x-claude-code-session-id"),
        "metadata.user_id": _session_of(user),
    }
    for source, name in named.items():
        if name is None:
            continue
        try:
            fit: str = read(fields.SessionId, name)
        except Misfit:
            drop(source)
        else:
            return fit
    return None


def _session_of(user: str) -> str | None:
    if "_session_" in user:
        return user.partition("_session_")[2]
    try:
        told = json.loads(user)
    except ValueError:
        return None
    name = told.get("session_id") if isinstance(told, dict) else None
    return name if isinstance(name, str) else None


def _check_choice(choice: Choice, earlier: Mapping[str, Any]) -> None:
    names = {tool.name for tool in earlier.get("tools", ()) if tool is not None}
    if choice.name is not None and choice.name not in names:
        raise Misfit("must name one of the tools", "name")
    if choice.kind == "any" and not names:
        raise Misfit("must be auto or none where there are no tools", "type")


def _check_thinking(thinking: Thinking, earlier: Mapping[str, Any]) -> None:
    if thinking.budget is not None and thinking.budget >= earlier["max_tokens"]:
        raise Misfit("must be less than max_tokens", "budget_tokens")


_CHECKS: Mapping[str, Check] = {"tool_choice": _check_choice, "thinking": _check_thinking}
