"""What a response repeats of its request."""

from __future__ import annotations

from collections.abc import Iterable

from maple_protocols.adapter import JsonObject
from maple_protocols.openai import fields
from maple_protocols.openai.responses_request import ReasoningWish, ResponsesRequest
from maple_protocols.openai.responses_tools import Offered
from maple_protocols.openai.tools import AllowedTools, Choice, ChosenTool

SUMMARIES = ("auto", "concise", "detailed")


def echoed(request: ResponsesRequest, tools: Iterable[Offered], *, keep: bool) -> JsonObject:
    """The request as its response repeats it, in the flat shapes of this route."""
    reasoning = request.reasoning or ReasoningWish()
    summary = reasoning.summary if reasoning.summary in SUMMARIES else None
    wish = fields.sampling(request)
    return {
        "instructions": request.instructions,
        "max_output_tokens": fields.token_limit(request.max_output_tokens),
        "max_tool_calls": None,
        "metadata": dict(request.metadata or {}),
        "parallel_tool_calls": request.parallel_tool_calls,
        "presence_penalty": wish.presence,
        "frequency_penalty": wish.frequency,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": summary},
        "service_tier": "default",
        "store": keep,
        "temperature": request.temperature,
        "text": {"format": _echoed_format(request)},
        "tool_choice": _echoed_choice(request.tool_choice),
        "tools": [tool.echo for tool in tools],
        "top_logprobs": 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        **{
            name: _words(getattr(request, name)) for name in ("prompt_cache_key", "safety_identifier", "user")
        },
    }


def _echoed_format(request: ResponsesRequest) -> JsonObject:
    form = request.text.format if request.text else None
    return {"type": "text"} if form is None else dict(form.spelt)


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
