"""POST /v1/chat/completions, inwards: the field table, and the Ask made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
from typing_extensions import override

from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask, Conversation, Ending
from maple_protocols.errors import InvalidField
from maple_protocols.openai import fields, forms
from maple_protocols.openai.messages import (
    UNREADABLE,
    AnyMessage,
    AssistantMessage,
    ChatMessage,
    unreadable_user,
)
from maple_protocols.openai.thinking import Budget, Effort, ThinkingWord, budget, effort_word, wanted
from maple_protocols.openai.tools import (
    Choice,
    FunctionTool,
    ToolChoice,
    check_choice,
    forced,
    is_shown,
    nested,
    specs,
    strict_in_vain,
)
from maple_protocols.reading import reading
from maple_protocols.rules import (
    Doc,
    Misfit,
    NotEmpty,
    Schema,
    Shape,
    boolean,
    free_form,
)
from maple_protocols.strict import Check, ignored, structure


@attrs.frozen
class TemplateSettings(Shape):
    """enable_thinking, a bool, and variables of the template's own. Keys with null are left out."""

    @override
    def structure(self, value: object) -> Mapping[str, object]:
        given = {key: setting for key, setting in free_form(value).items() if setting is not None}
        if "enable_thinking" in given:
            try:
                boolean(given["enable_thinking"])
            except Misfit as misfit:
                raise misfit.under("enable_thinking") from None
        return given

    @override
    def schema(self) -> Schema:
        return {"type": "object", "properties": {"enable_thinking": {"type": "boolean"}}}


TemplateKwargs = Annotated[
    Mapping[str, Any] | None,
    TemplateSettings(),
    Doc("enable_thinking false closes the think block at once; other keys must be the template's own."),
]


@attrs.frozen(kw_only=True)
class ChatRequest:
    """The body of POST /v1/chat/completions, its fields in the order in which they are checked."""

    model: fields.Model = None
    messages: Annotated[
        tuple[Annotated[ChatMessage, AnyMessage()], ...], NotEmpty(), Doc("The conversation so far.")
    ]
    tools: Annotated[tuple[FunctionTool, ...], Doc("Functions the model may call.")] = ()
    tool_choice: ToolChoice = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    max_completion_tokens: fields.MaxTokens = None
    max_tokens: fields.MaxTokens = None
    stop: fields.Stop = ()
    seed: fields.Seed = None
    stream: fields.Stream = False
    stream_options: fields.Streaming = None
    repetition_penalty: fields.RepetitionPenalty = None
    chat_template_kwargs: TemplateKwargs = None
    include_reasoning: fields.IncludeReasoning = None
    presence_penalty: fields.Penalty = None
    frequency_penalty: fields.Penalty = None
    user: fields.Unused = None
    metadata: fields.Unused = None
    store: fields.Unused = None
    service_tier: fields.Unused = None
    parallel_tool_calls: fields.Unused = None
    enable_thinking: ThinkingWord = None
    thinking: ThinkingWord = None
    think: ThinkingWord = None
    reasoning: ThinkingWord = None
    reasoning_effort: Effort = None
    thinking_token_budget: Budget = None
    thinking_budget_tokens: Budget = None
    verbosity: fields.Unused = None
    prompt_cache_key: fields.Unused = None
    safety_identifier: fields.Unused = None
    logit_bias: fields.Bias = ()
    modalities: fields.Unused = None
    top_logprobs: fields.TopLogprobs = None
    session_id: fields.SessionId = None
    n: fields.Choices = None
    logprobs: fields.Logprobs = False
    response_format: forms.ResponseFormat = None
    structured_outputs: forms.StructuredOutputs = None
    min_p: fields.MinP = None
    min_tokens: fields.MinTokens = None
    stop_token_ids: fields.StopTokenIds = ()
    ignore_eos: fields.IgnoreEos = False
    return_progress: fields.ReturnProgress = False
    timings: fields.WithTimings = None
    continue_final_message: fields.ContinueFinal = False
    add_generation_prompt: Annotated[
        bool | None,
        Doc("false leaves out what an answer begins with; only that beside continue_final_message."),
    ] = None


def chat_ask(body: Mapping[str, Any], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask that ``body`` spells. Raises InvalidField."""
    with reading(extended=policy.extended) as notes:
        request = structure(ChatRequest, body, refuse_unknown=refuse_unknown, checks=_checks(policy))
        calls = forced(request.tool_choice, body.get("tools"), body.get("parallel_tool_calls"))
        return Ask(
            prompt=_conversation(request, body),
            model=request.model,
            sampling=fields.sampling(request),
            max_tokens=fields.token_limit(request.max_completion_tokens, request.max_tokens),
            stop=request.stop,
            stream=request.stream,
            include_usage=fields.wants_usage(request.stream, request.stream_options),
            include_reasoning=fields.shows_reasoning(request.include_reasoning, policy),
            progress=request.return_progress and request.stream,
            timings=fields.shows_timings(request.timings, policy),
            session_id=fields.session(request.session_id, policy),
            extended=policy.extended,
            thinking_budget=budget(request),
            effort=effort_word(request.reasoning, request.reasoning_effort, request.think),
            forced_calls=calls,
            form=(request.structured_outputs or request.response_format) if policy.extended else None,
            scores=_scores(request),
            choices=request.n or 1,
            ignored=(
                *ignored(ChatRequest, body),
                *strict_in_vain(calls, body.get("tools")),
                *notes.dropped,
            ),
        )


def _conversation(request: ChatRequest, body: Mapping[str, Any]) -> Conversation:
    messages = tuple(message.neutral() for message in request.messages)
    if (index := unreadable_user(messages)) is not None:
        param = f"messages[{index}].content"
        raise InvalidField(param=param, message=f"{param} {UNREADABLE}")
    settings = request.chat_template_kwargs or {}
    tools = (
        tool for tool in body.get("tools") or () if is_shown(tool["function"]["name"], request.tool_choice)
    )
    offered = tuple(map(nested, tools))
    return Conversation(
        messages=messages,
        tools=offered,
        tool_specs=specs(offered),
        thinking=wanted(settings, request),
        ending=_ending(request),
        template_variables=own_variables(settings),
    )


def _scores(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidField(param="top_logprobs", message="top_logprobs needs logprobs, which must be true")
    return (request.top_logprobs or 0) if request.logprobs else None


def _ending(request: ChatRequest) -> Ending:
    if request.continue_final_message:
        return "open"
    return "closed" if request.add_generation_prompt is False else "answer"


def own_variables(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The template's own variables among ``chat_template_kwargs``."""
    return {key: value for key, value in settings.items() if key != "enable_thinking"}


def variables_check(policy: Policy) -> Check:
    """Refuses every variable that the template does not read, so that none reaches the rendering call."""

    def check(settings: Mapping[str, object], _: Mapping[str, Any]) -> None:
        for key in own_variables(settings):
            if key not in policy.template_variables:
                raise Misfit("is not a variable of the chat template", key)

    return check


OPEN_MUST = "needs a last message that is the assistant's, without tool calls"
"""What continue_final_message is refused with."""


def _checks(policy: Policy) -> dict[str, Check]:
    return {
        "tool_choice": _check_choice,
        "logit_bias": fields.bias_check(policy),
        "min_tokens": fields.check_least,
        "chat_template_kwargs": variables_check(policy),
        "continue_final_message": _check_open,
        "add_generation_prompt": _check_begun,
    }


def _check_open(wanted: bool, earlier: Mapping[str, Any]) -> None:
    last = earlier["messages"][-1]
    if wanted and not (isinstance(last, AssistantMessage) and not last.tool_calls):
        raise Misfit(OPEN_MUST)


def _check_begun(wanted: bool, earlier: Mapping[str, Any]) -> None:
    if wanted and earlier.get("continue_final_message"):
        raise Misfit("must be false beside continue_final_message")


def _check_choice(choice: Choice, earlier: Mapping[str, Any]) -> None:
    check_choice(choice, [tool.function.name for tool in earlier.get("tools", ())])
