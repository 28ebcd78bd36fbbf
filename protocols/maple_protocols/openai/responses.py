"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from maple_protocols.adapter import Encoder, Fold, Identity, JsonObject, Kept, Policy
from maple_protocols.ask import Ask
from maple_protocols.openai.described import Response, ResponseEvent
from maple_protocols.openai.responses_in import ResponsesRequest, continued_ask, responses_ask
from maple_protocols.openai.responses_kept import keep
from maple_protocols.openai.responses_out import ResponsesEncoder, ResponsesFold


class ResponsesAdapter:
    """OpenAI's responses for text and function tools."""

    name: ClassVar[str] = "responses"
    path: ClassVar[str] = "/v1/responses"
    prompt_param: ClassVar[str] = "input"
    request: ClassVar[type] = ResponsesRequest
    closed: ClassVar[bool] = True
    answers: ClassVar[Mapping[str, type]] = {"whole": Response, "event": ResponseEvent}

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of ResponsesRequest. Raises RequestError."""
        return responses_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Events for one turn."""
        return ResponsesEncoder(ask, identity)

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole response of one turn."""
        return ResponsesFold(ask, identity)

    def continued(self, ask: Ask, earlier: Kept) -> Ask:
        """The earlier input and output, then the new input."""
        return continued_ask(ask, earlier)

    def kept(self, ask: Ask, body: JsonObject) -> Kept:
        """The response, and its input as items that have ids."""
        return keep(ask, body)
