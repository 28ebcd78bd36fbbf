"""The field table of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import attrs

from maple_protocols.openai import fields, forms
from maple_protocols.openai.chat_in import TemplateKwargs
from maple_protocols.openai.responses_items import Item, Items
from maple_protocols.openai.responses_tools import Tools
from maple_protocols.openai.thinking import Budget, Effort
from maple_protocols.openai.tools import (
    TOOL_CHOICE,
    Choice,
    ToolChoiceShape,
)
from maple_protocols.rules import Doc, Length


@attrs.frozen(kw_only=True)
class ReasoningWish:
    """How much to reason."""

    effort: Annotated[
        str | None, Length(most=64), Doc("none and minimal turn thinking off, any other word is echoed.")
    ] = None
    summary: Annotated[
        object, Doc("auto, concise or detailed: the reasoning comes as one summary part instead.")
    ] = None
    max_tokens: Budget = None


@attrs.frozen(kw_only=True)
class TextWish:
    """What the answer is to look like."""

    format: forms.TextFormat = None


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
    text: Annotated[TextWish | None, Doc("What the answer is to be.")] = None
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
    top_logprobs: fields.NoTopLogprobs = None
    prompt_cache_options: fields.Unused = None
    context_management: fields.Unused = None
    moderation: fields.Unused = None
    conversation: fields.Unused = None
    reasoning_effort: Effort = None
    thinking_token_budget: Budget = None
    thinking_budget_tokens: Budget = None
    background: Annotated[Literal[False] | None, Doc("Responses are made at once.")] = None
    store: Annotated[
        bool | None,
        Doc("Keep the response; needs a response store, and where there is one true is the default."),
    ] = None
    previous_response_id: Annotated[
        str | None, Doc("A stored response to go on from: its input and output come before this input.")
    ] = None
    logit_bias: fields.Bias = ()
    min_p: fields.MinP = None
    min_tokens: fields.MinTokens = None
    stop_token_ids: fields.StopTokenIds = ()
    ignore_eos: fields.IgnoreEos = False
    return_progress: fields.ReturnProgress = False
    timings: fields.WithTimings = None
    continue_final_message: fields.ContinueFinal = False
