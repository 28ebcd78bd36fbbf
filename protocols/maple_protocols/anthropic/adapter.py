"""POST /v1/messages and /v1/messages/count_tokens, and GET /v1/models for Anthropic's clients."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import ClassVar

from maple_protocols.adapter import Encoder, Fold, Identity, JsonObject, Policy, ServedModel
from maple_protocols.anthropic import errors
from maple_protocols.anthropic.answer import MessagesEncoder, MessagesFold
from maple_protocols.anthropic.request import MessagesRequest, messages_ask
from maple_protocols.ask import Ask
from maple_protocols.dialect import Call, Failure, Reply
from maple_protocols.errors import InvalidField, ModelNotFound
from maple_protocols.openai.models import names_model

PAGE = 20
LARGEST_PAGE = 1000


class _Anthropic:
    """What every route of the protocol does alike."""

    def headers(self, request_id: str) -> Mapping[str, str]:
        """The id under Anthropic's name too."""
        return {"request-id": request_id}

    def refusal(self, failure: Failure) -> Reply:
        """Anthropic's shape."""
        return errors.reply(failure)


class MessagesAdapter(_Anthropic):
    """Anthropic's messages: text, thinking and tools."""

    path: ClassVar[str] = "/v1/messages"
    count_path: ClassVar[str] = "/v1/messages/count_tokens"
    prompt_param: ClassVar[str] = "messages"
    request: ClassVar[type] = MessagesRequest
    closed: ClassVar[bool] = False

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of MessagesRequest. Raises InvalidField."""
        return messages_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Events of one turn."""
        return MessagesEncoder(ask, identity)

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole message of one turn."""
        return MessagesFold(ask, identity)

    def counts(self, tokens: int) -> JsonObject:
        """How long a prompt is."""
        return {"input_tokens": tokens}


class AnthropicModels(_Anthropic):
    """The served model and its other names, for clients that send an anthropic-version."""

    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {"/v1/models": ("GET",), "/v1/models/(.+)": ("GET",)}
    header: ClassVar[str] = "anthropic-version"

    def reply(self, call: Call) -> Reply:
        """A page of the list, or the card of one. Raises ModelNotFound or InvalidField."""
        names = (call.served.id, *call.served.aliases)
        if call.wanted is None:
            return Reply(body=_page([_card(call.served, name) for name in names], call.query))
        if call.served.strict and not any(names_model(call.wanted, name) for name in names):
            raise ModelNotFound(call.wanted)
        known = next((name for name in names if names_model(call.wanted, name)), call.served.id)
        return Reply(body=_card(call.served, known))


def _page(cards: list[JsonObject], query: Mapping[str, str]) -> JsonObject:
    ids = [str(card["id"]) for card in cards]
    first = ids.index(query["after_id"]) + 1 if query.get("after_id") in ids else 0
    end = ids.index(query["before_id"]) if query.get("before_id") in ids else len(ids)
    limit = _limit(query.get("limit", str(PAGE)))
    shown = cards[first:end][-limit:] if "before_id" in query else cards[first:end][:limit]
    return {
        "data": shown,
        "has_more": len(cards[first:end]) > limit,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def _limit(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 5 and 1 <= int(word) <= LARGEST_PAGE):
        raise InvalidField(param="limit", message=f"limit must be an integer from 1 to {LARGEST_PAGE}")
    return int(word)


def _card(served: ServedModel, name: str) -> JsonObject:
    created = datetime.datetime.fromtimestamp(served.created, datetime.UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": served.max_model_len,
        "max_tokens": served.max_tokens,
        "capabilities": None,
    }


class MessagesProtocol:
    """All of Anthropic's routes."""

    parts: ClassVar[tuple[object, ...]] = (MessagesAdapter(), AnthropicModels())
