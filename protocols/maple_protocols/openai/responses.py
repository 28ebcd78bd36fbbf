"""/v1/responses: the making of one, and what became of those that were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from maple_protocols.adapter import Encoder, Fold, Identity, JsonObject, Kept, Policy
from maple_protocols.answers import as_json
from maple_protocols.ask import Ask
from maple_protocols.openai.responses_in import CODE, continued_ask, responses_ask
from maple_protocols.openai.responses_kept import ItemsQuery, StoredQuery, item_page, keep
from maple_protocols.openai.responses_out import ResponsesEncoder, ResponsesFold
from maple_protocols.openai.responses_request import ResponsesRequest
from maple_protocols.openai.responses_tables import ItemPage, Response, ResponseDeleted, ResponseEvent
from maple_protocols.strict import structure


class ResponsesAdapter:
    """OpenAI's responses for text and function tools."""

    path: ClassVar[str] = "/v1/responses"
    prompt_param: ClassVar[str] = "input"
    request: ClassVar[type] = ResponsesRequest
    closed: ClassVar[bool] = True
    counted: ClassVar[str | None] = "response.input_tokens"
    controlled: ClassVar[str | None] = None
    stored_path: ClassVar[str] = f"{path}/([^/]+)"
    items_path: ClassVar[str] = f"{stored_path}/input_items"
    stored_query: ClassVar[type] = StoredQuery
    items_query: ClassVar[type] = ItemsQuery
    answers: ClassVar[Mapping[str, type]] = {
        "whole": Response,
        "event": ResponseEvent,
        "deleted": ResponseDeleted,
        stored_path: Response,
        items_path: ItemPage,
    }

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of ResponsesRequest. Raises RequestError."""
        return responses_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Events for one turn."""
        return ResponsesEncoder(ask, identity)

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole response of one turn."""
        return ResponsesFold(ask, identity)

    def continued(self, ask: Ask, earlier: Kept | None, found: Sequence[Kept] = ()) -> Ask:
        """The earlier input and output, then the new input. Raises ItemNotFound for a reference."""
        return continued_ask(ask, earlier, found)

    def kept(self, ask: Ask, body: JsonObject) -> Kept:
        """The response, and its input as items that have ids."""
        return keep(ask, body)

    def stored(self, kept: Kept, query: Mapping[str, object]) -> JsonObject:
        """The response as it was."""
        structure(StoredQuery, query, refuse_unknown=False, code=CODE)
        return kept.body

    def deleted(self, wanted: str) -> JsonObject:
        """The id, and that it is gone."""
        answer: JsonObject = as_json(ResponseDeleted(id=wanted, object="response", deleted=True))
        return answer

    def page(self, kept: Kept, query: Mapping[str, object]) -> JsonObject:
        """A list in OpenAI's shape; the last item comes first unless the order is asc."""
        return item_page(kept, structure(ItemsQuery, query, refuse_unknown=False, code=CODE))
