"""What goes out, as tables, for the API's description. Tests hold real answers against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import attrs

from maple_protocols.rules import Doc

Finish = Annotated[
    Literal["stop", "length", "tool_calls"],
    Doc("length if a limit cut the answer, else tool_calls if there is a call, else stop."),
]
FreeForm = Mapping[str, object]
Created = Annotated[int, Doc("Unix seconds.")]


@attrs.frozen(kw_only=True)
class PromptDetails:
    """Where the prompt's tokens came from."""

    cached_tokens: Annotated[int, Doc("Prompt tokens whose state was reused.")]


@attrs.frozen(kw_only=True)
class CompletionDetails:
    """What the new tokens are."""

    reasoning_tokens: Annotated[int, Doc("Tokens sampled inside the reasoning.")]


@attrs.frozen(kw_only=True)
class TokenUsage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: Annotated[int, Doc("Every token sampled, reasoning and the end included.")]
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


@attrs.frozen(kw_only=True)
class MadeFunction:
    """The function that the model wants called."""

    name: str
    arguments: Annotated[str, Doc("JSON text of an object, as the model wrote it.")]


@attrs.frozen(kw_only=True)
class MadeCall:
    """A tool call."""

    id: str
    type: Literal["function"]
    function: MadeFunction


@attrs.frozen(kw_only=True)
class IndexedCall(MadeCall):
    """A tool call in a stream: always whole."""

    index: int


@attrs.frozen(kw_only=True)
class AnswerMessage:
    """What the model said."""

    role: Literal["assistant"]
    content: Annotated[str | None, Doc("null only where the whole answer was tool calls.")]
    reasoning_content: str = ""
    tool_calls: tuple[MadeCall, ...] = ()


@attrs.frozen(kw_only=True)
class ChatChoice:
    """The one choice."""

    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: Finish


@attrs.frozen(kw_only=True)
class ChatCompletion:
    """A chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: Created
    model: str
    choices: tuple[ChatChoice, ...]
    usage: TokenUsage


@attrs.frozen(kw_only=True)
class MessageDelta:
    """What a chunk adds: the role, or reasoning, or content, or one call; nothing at the end."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[IndexedCall, ...] = ()


@attrs.frozen(kw_only=True)
class ChunkChoice:
    """The one choice of a chunk."""

    index: int
    delta: MessageDelta
    logprobs: None
    finish_reason: Finish | None


@attrs.frozen(kw_only=True)
class ChatCompletionChunk:
    """A piece of a chat answer; the one with the usage has no choice."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Created
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: TokenUsage | None = None


@attrs.frozen(kw_only=True)
class TextChoice:
    """The one choice; in a stream ``finish_reason`` is null until the last."""

    index: int
    text: str
    logprobs: None
    finish_reason: Finish | None


@attrs.frozen(kw_only=True)
class TextCompletion:
    """A raw completion, or in a stream a piece of one."""

    id: str
    object: Literal["text_completion"]
    created: Created
    model: str
    choices: tuple[TextChoice, ...]
    usage: TokenUsage | None = None


@attrs.frozen(kw_only=True)
class ModelCard:
    """The served model."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Doc("A constant.")]
    owned_by: str
    max_model_len: Annotated[int | None, Doc("The window in tokens; null while the weights load.")]


@attrs.frozen(kw_only=True)
class ModelList:
    """All served models: one."""

    object: Literal["list"]
    data: tuple[ModelCard, ...]


ItemStatus = Literal["in_progress", "completed", "incomplete"]


@attrs.frozen(kw_only=True)
class OutputText:
    """Text of the answer."""

    type: Literal["output_text"]
    text: str
    annotations: tuple[object, ...]
    logprobs: tuple[object, ...]


@attrs.frozen(kw_only=True)
class OutputMessage:
    """What the model said."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: tuple[OutputText, ...]


@attrs.frozen(kw_only=True)
class ReasoningText:
    """Text of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


@attrs.frozen(kw_only=True)
class OutputReasoning:
    """What the model thought."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: tuple[object, ...]
    content: tuple[ReasoningText, ...]


@attrs.frozen(kw_only=True)
class OutputCall:
    """A tool call."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: Annotated[str, Doc("JSON text of an object, as the model wrote it.")]


@attrs.frozen(kw_only=True)
class InputDetails:
    """Where the prompt's tokens came from."""

    cached_tokens: Annotated[int, Doc("Prompt tokens whose state was reused.")]


@attrs.frozen(kw_only=True)
class ResponseUsage:
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int


@attrs.frozen(kw_only=True)
class IncompleteDetails:
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


@attrs.frozen(kw_only=True)
class ResponseFailure:
    """Why a response failed."""

    code: str
    message: str


@attrs.frozen(kw_only=True)
class Response:
    """A response, with what was asked for."""

    id: str
    object: Literal["response"]
    created_at: Created
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: tuple[OutputMessage | OutputReasoning | OutputCall, ...]
    output_text: Annotated[str, Doc("The text of all messages.")]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: FreeForm
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: FreeForm
    store: bool
    temperature: float | None
    text: FreeForm
    tool_choice: str | FreeForm
    tools: tuple[FreeForm, ...]
    top_p: float | None


@attrs.frozen(kw_only=True)
class ResponseEvent:
    """An event of a streamed response; what else it holds depends on its type."""

    type: str
    sequence_number: int


@attrs.frozen(kw_only=True)
class ResponseDeleted:
    """A stored response is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


@attrs.frozen(kw_only=True)
class ListedItem:
    """An item that came before a response."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]


@attrs.frozen(kw_only=True)
class ItemPage:
    """A page of items."""

    object: Literal["list"]
    data: tuple[ListedItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
