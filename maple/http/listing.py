"""One handler for every protocol that tells about the served model."""

from __future__ import annotations

from maple_protocols.adapter import ListingAdapter, Policy
from maple_protocols.errors import ModelNotFound

from maple.http.api_operation import JSON, Operation, Operations, first_sentence, json_of
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.wire import encode_json


class ListingHandler(JsonHandler):
    """GET to one of a ListingAdapter's paths; answered while the model loads, too."""

    def initialize(self, route: str, adapter: ListingAdapter) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route, adapter)
        self.adapter = adapter

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET, as the adapter's table for this path has it."""
        adapter: ListingAdapter = route.options["adapter"]
        kind = getattr(adapter, "answers", {}).get(route.pattern)
        operation = Operation(
            summary=first_sentence(kind or type(adapter)),
            tag="Models",
            answers={200: json_of(kind) if kind else {JSON: {"type": "object"}}},
            refusals=(ModelNotFound,) if route.parameter else (),
        )
        return {"get": operation}

    async def respond(self, *groups: str) -> None:
        """The list, or the card of the id in the path."""
        wanted = groups[0] if groups else None
        self.write(encode_json(self.adapter.answer(self.services.served_model, wanted)))
