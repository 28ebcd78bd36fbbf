"""Kept answers over HTTP: going on from one, keeping a new one, and the routes that show and delete them."""

from __future__ import annotations

import asyncio
import re
from typing import cast

import attrs
import structlog
from maple_protocols.adapter import (
    Done,
    Identity,
    KeepingAdapter,
    Kept,
    Policy,
    TurnEvent,
)
from maple_protocols.ask import Ask
from maple_protocols.errors import InvalidField

from maple.http.api_operation import Operation, Operations, Refusals, json_of
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.refused import NotConfigured, ResponseUnknown
from maple.http.wire import encode_json
from maple.memory_store import AnswerStore
from maple.responses_store import StoreBroken, StoreBusy, StoreFull

log = structlog.get_logger(__name__)

STORE_VARIABLE = "MAPLE_RESPONSE_STORE"
KEEPING: Refusals = (ResponseUnknown, NotConfigured, StoreFull, StoreBroken)
"""What a request whose answer can be kept may run into, beyond the usual."""


async def continued(ask: Ask, adapter: KeepingAdapter | None, store: AnswerStore | None, owner: str) -> Ask:
    """``ask``, with the answer that it goes on from in front and what it refers to in place.

    Raises ResponseUnknown, NotConfigured, or the protocol's own RequestError.
    """
    if adapter is None or (ask.follows is None and not ask.references):
        return ask
    earlier = None if ask.follows is None else await _earlier(ask.follows, store, owner)
    kept = [] if store is None else [await store.get(owner, wanted) for wanted in ask.references]
    found = [each for each in kept if each is not None]
    return await asyncio.to_thread(adapter.continued, ask, earlier, found)


async def _earlier(wanted: str, store: AnswerStore | None, owner: str) -> Kept:
    if store is None:
        raise NotConfigured(STORE_VARIABLE)
    earlier = await store.get(owner, wanted)
    if earlier is None:
        raise ResponseUnknown(param="previous_response_id")
    return earlier


class Recorder:
    """Keeps one turn's answer, if that was asked for: before its client sees the end of it."""

    def __init__(
        self,
        ask: Ask,
        identity: Identity,
        adapter: KeepingAdapter | None,
        *,
        store: AnswerStore | None,
        owner: str,
    ) -> None:
        if ask.keep and store is None:
            raise NotConfigured(STORE_VARIABLE)
        self._ask = ask
        self._adapter = adapter
        self._fold = adapter.fold(ask, identity) if adapter is not None and ask.keep else None
        self._store = store
        self._owner = owner

    async def event(self, event: TurnEvent) -> None:
        """Take the next event; the last is when the answer is stored.

        Where the client insists, raises what the store does; an answer kept by default is worth more than the
        keeping of it.
        """
        if self._adapter is None or self._fold is None or self._store is None:
            return
        self._fold.event(event)
        if isinstance(event, Done):
            try:
                await self._store.put(self._owner, self._adapter.kept(self._ask, self._fold.body()))
            except (StoreFull, StoreBusy, StoreBroken) as error:
                if self._ask.must_keep:
                    raise
                log.warning("store.answer_not_kept", reason=type(error).__name__)


def query_of(handler: JsonHandler) -> dict[str, object]:
    """The last value of each name in the query; digits are an integer, except in ids."""
    given = handler.request.query_arguments.items()
    texts = {name: values[-1].decode(errors="replace") for name, values in given}
    return {
        name: int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) and name != "after" else text
        for name, text in texts.items()
    }


class _StoredHandler(JsonHandler):
    """What the routes of kept answers have in common."""

    def initialize(self, route: str, adapter: KeepingAdapter) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route)
        self.adapter = adapter

    def check(self, *groups: str) -> None:
        """Without a store these routes are off."""
        if self.services.store is None:
            raise NotConfigured(STORE_VARIABLE)

    @property
    def store(self) -> AnswerStore:
        """The store, which ``check`` has looked for."""
        return cast("AnswerStore", self.services.store)


class StoredHandler(_StoredHandler):
    """GET or DELETE one kept answer."""

    methods = ("GET", "HEAD", "DELETE")

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """Both methods."""
        adapter: KeepingAdapter = route.options["adapter"]
        refusals: Refusals = (ResponseUnknown, NotConfigured, StoreBroken)
        shown = Operation(
            summary="A stored response.",
            tag="Stored responses",
            answers={200: json_of(adapter.answers[route.pattern])},
            refusals=(InvalidField, *refusals),
            query=adapter.stored_query,
        )
        deleted = attrs.evolve(
            shown,
            summary="Forget a stored response.",
            answers={200: json_of(adapter.answers["deleted"])},
            refusals=refusals,
            query=None,
        )
        return {"get": shown, "delete": deleted}

    async def respond(self, *groups: str) -> None:
        """The answer as it was, or that it is gone."""
        wanted = groups[0]
        if self.request.method == "DELETE":
            if not await self.store.delete(self.owner, wanted):
                raise ResponseUnknown
            self.write(encode_json(self.adapter.deleted(wanted)))
            return
        kept = await self.store.get(self.owner, wanted)
        if kept is None:
            raise ResponseUnknown
        self.write(encode_json(self.adapter.stored(kept, query_of(self))))


class StoredItemsHandler(_StoredHandler):
    """GET a page of what came before a kept answer."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET, with the page's query."""
        adapter: KeepingAdapter = route.options["adapter"]
        page = Operation(
            summary="What came before a stored response.",
            tag="Stored responses",
            answers={200: json_of(adapter.answers[route.pattern])},
            refusals=(InvalidField, ResponseUnknown, NotConfigured, StoreBroken),
            query=adapter.items_query,
        )
        return {"get": page}

    async def respond(self, *groups: str) -> None:
        """As the query wants it."""
        kept = await self.store.get(self.owner, groups[0])
        if kept is None:
            raise ResponseUnknown
        self.write(encode_json(self.adapter.page(kept, query_of(self))))
