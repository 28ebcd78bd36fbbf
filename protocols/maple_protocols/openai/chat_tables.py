"""What chat and completions send: their encoders build these, and the API's description is made from them."""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from maple_protocols.openai.logprobs import ChatLogprobs, TextLogprobs
from maple_protocols.rules import Doc
from maple_protocols.timings import Progress, Timings

Finish = Annotated[
    Literal["stop", "length", "tool_calls"],
    Doc("length if a limit cut the answer, else tool_calls if there is a call, else stop."),
]
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
    reasoning_content: str | None = None
    tool_calls: tuple[MadeCall, ...] = ()


@attrs.frozen(kw_only=True)
class ChatChoice:
    """An answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
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
    timings: Timings | None = None


@attrs.frozen(kw_only=True)
class MessageDelta:
    """What a chunk adds: the role, or reasoning, or content, or one call; nothing at the end."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[IndexedCall, ...] = ()


@attrs.frozen(kw_only=True)
class ChunkChoice:
    """What a chunk adds to one choice."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
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
    timings: Timings | None = None
    prompt_progress: Progress | None = None


@attrs.frozen(kw_only=True)
class TextChoice:
    """A choice; in a stream ``finish_reason`` is null until the last."""

    index: int
    text: str
    logprobs: TextLogprobs | None
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
    timings: Timings | None = None
    prompt_progress: Progress | None = None
