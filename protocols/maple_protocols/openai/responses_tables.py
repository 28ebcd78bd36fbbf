"""What /v1/responses sends: its encoder builds these, and the API's description is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import attrs

from maple_protocols.openai.chat_tables import CompletionDetails, Created
from maple_protocols.rules import Doc
from maple_protocols.timings import Progress, Timings

ItemStatus = Literal["in_progress", "completed", "incomplete"]
FreeForm = Mapping[str, object]
Echoed = Annotated[str | None, Doc("Echoed.")]


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
class SummaryText:
    """Text of the reasoning, where a summary was asked for: all of it."""

    type: Literal["summary_text"]
    text: str


@attrs.frozen(kw_only=True)
class OutputReasoning:
    """What the model thought."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: tuple[SummaryText, ...]
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
    namespace: str | None = None


@attrs.frozen(kw_only=True)
class OutputCustomCall:
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | None = None


@attrs.frozen(kw_only=True)
class OutputShellCall:
    """A command for the client's own machine."""

    type: Literal["local_shell_call"]
    id: str
    status: ItemStatus
    call_id: str
    action: FreeForm


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall | OutputShellCall


@attrs.frozen(kw_only=True)
class InputDetails:
    """Where the prompt's tokens came from."""

    cached_tokens: Annotated[int, Doc("Prompt tokens whose state was reused.")]
    cache_write_tokens: Annotated[Literal[0], Doc("Nothing is charged for.")]


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
    """A response, with what was asked for and the values that were used."""

    id: str
    object: Literal["response"]
    created_at: Created
    completed_at: Annotated[int | None, Doc("Unix seconds; null unless it is complete.")]
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: tuple[OutputItem, ...]
    output_text: Annotated[str, Doc("The text of all messages.")]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: FreeForm
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None
    prompt_cache_key: Echoed
    reasoning: FreeForm
    safety_identifier: Echoed
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: FreeForm
    tool_choice: str | FreeForm
    tools: tuple[FreeForm, ...]
    top_logprobs: Literal[0]
    top_p: float
    truncation: Literal["disabled"]
    user: Echoed
    timings: Timings | None = None


@attrs.frozen(kw_only=True)
class ResponseEvent:
    """An event of a streamed response; what else it holds depends on its type."""

    type: str
    sequence_number: int
    prompt_progress: Progress | None = None


@attrs.frozen(kw_only=True)
class ResponseDeleted:
    """A stored response is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


@attrs.frozen(kw_only=True)
class ListedItem:
    """An item that came before a response; what else it holds depends on its type."""

    id: str
    type: str


@attrs.frozen(kw_only=True)
class ItemPage:
    """A page of items."""

    object: Literal["list"]
    data: tuple[ListedItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
