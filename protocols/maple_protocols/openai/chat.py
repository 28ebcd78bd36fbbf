"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from maple_protocols.adapter import Encoder, Fold, Identity, Policy
from maple_protocols.ask import Ask
from maple_protocols.openai.chat_in import ChatRequest, chat_ask
from maple_protocols.openai.chat_out import ChatEncoder, ChatFold
from maple_protocols.openai.chat_tables import ChatCompletion, ChatCompletionChunk


class ChatAdapter:
    """OpenAI's chat completions, with ``reasoning_content`` beside the content."""

    path: ClassVar[str] = "/v1/chat/completions"
    prompt_param: ClassVar[str] = "messages"
    request: ClassVar[type] = ChatRequest
    closed: ClassVar[bool] = False
    counted: ClassVar[str | None] = "chat.completion.input_tokens"
    controlled: ClassVar[str | None] = "chat.completion.control"
    answers: ClassVar[Mapping[str, type]] = {"whole": ChatCompletion, "event": ChatCompletionChunk}

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of ChatRequest. Raises InvalidField."""
        return chat_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Chunks for one turn."""
        return ChatEncoder(ask, identity)

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole answer of one turn."""
        return ChatFold(ask, identity)
