"""Conversations as data, and their exact text in Maple's chat template, cut into what is given and what is
learnt.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import attrs
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = Path(__file__).parents[2] / "maple" / "demo" / "chat_template.jinja"
CLOSED_THINKING = "\n</think>\n\n"

Message = dict[str, Any]


@attrs.frozen
class Call:
    """One tool call: the function's name and its arguments in the order they are written."""

    name: str
    arguments: dict[str, Any]


@attrs.frozen(kw_only=True)
class Reply:
    """What the assistant should say. ``unthought`` is the content for a closed block, where it differs."""

    reasoning: str
    content: str = ""
    calls: tuple[Call, ...] = ()
    unthought: str | None = None


@attrs.frozen(kw_only=True)
class Exchange:
    """What comes in (one user message or some tool results) and the reply; ``expect`` is what a grader looks
    for.
    """

    asked: tuple[Message, ...]
    reply: Reply
    kind: str = ""
    expect: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Conversation:
    """A system prompt, tools and exchanges. Replies from ``learnt_from`` on are learnt; ``thinking`` is about
    the last one.
    """

    exchanges: tuple[Exchange, ...]
    system: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    learnt_from: int = 0
    thinking: bool = True


def user(text: str) -> tuple[Message, ...]:
    """One user message."""
    return ({"role": "user", "content": text},)


@cache
def _template() -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text())


def prompt_text(
    messages: list[Message], tools: tuple[dict[str, Any], ...] = (), *, thinking: bool = True
) -> str:
    """The text that the model is given for these messages, as the server makes it (closed block when not
    thinking).
    """
    text: str = _template().render(messages=messages, tools=list(tools) or None, add_generation_prompt=True)
    return text if thinking else text + CLOSED_THINKING


def completion_text(reply: Reply, *, thinking: bool) -> str:
    """The text that the model should emit after the prompt, up to and with the end marker."""
    calls = "\n".join(
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {_arguments(call, raw=True)}}}\n</tool_call>'
        for call in reply.calls
    )
    content = reply.content if thinking or reply.unthought is None else reply.unthought
    answer = "\n".join(part for part in (content, calls) if part)
    return (f"{reply.reasoning}\n</think>\n\n{answer}" if thinking else answer) + "<|im_end|>"


def message_of(reply: Reply, *, reasoning: bool, raw_arguments: bool = False) -> Message:
    """The reply as a message of the history, with or without its reasoning."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call, raw=raw_arguments)},
            }
            for call in reply.calls
        ]
    return message


def _arguments(call: Call, *, raw: bool) -> Any:
    return json.dumps(call.arguments, ensure_ascii=False) if raw else call.arguments


def messages_before(talk: Conversation, turn: int) -> list[Message]:
    """The history that the reply of exchange ``turn`` sees; only learnt replies keep their reasoning in it."""
    messages: list[Message] = [] if talk.system is None else [{"role": "system", "content": talk.system}]
    for position, exchange in enumerate(talk.exchanges[: turn + 1]):
        messages += exchange.asked
        if position < turn:
            messages.append(message_of(exchange.reply, reasoning=position >= talk.learnt_from))
    return messages


def segments(talk: Conversation) -> list[tuple[str, bool]]:
    """The whole text in order as (text, learnt): prompts are given, completions are learnt."""
    pieces: list[tuple[str, bool]] = []
    done = ""
    last = len(talk.exchanges) - 1
    for turn in range(talk.learnt_from, last + 1):
        thinking = talk.thinking or turn != last
        prompt = prompt_text(messages_before(talk, turn), talk.tools, thinking=thinking)
        if not prompt.startswith(done):
            raise ValueError("the template does not keep the learnt text of an earlier turn")
        completion = completion_text(talk.exchanges[turn].reply, thinking=thinking)
        pieces += [(prompt[len(done) :], False), (completion, True)]
        done = prompt + completion
    return pieces
