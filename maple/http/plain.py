"""One handler for every protocol's routes that do not generate."""

from __future__ import annotations

from maple_protocols.adapter import Policy
from maple_protocols.dialect import Call, RouteAdapter
from maple_protocols.errors import InvalidField
from maple_protocols.json import parse_body

from maple.http.api_operation import BODY, JSON, Operation, Operations, first_sentence
from maple.http.application import Route
from maple.http.base import JsonHandler


class PlainHandler(JsonHandler):
    """A RouteAdapter's methods on one of its paths."""

    def initialize(  # type: ignore[override]  # Tornado passes each route its own keywords
        self, route: str, adapter: RouteAdapter, pattern: str
    ) -> None:
        """Called by Tornado with the route's options."""
        super().initialize(route, adapter)
        self.adapter = adapter
        self.pattern = pattern
        methods = adapter.routes[pattern]
        self.methods = (*methods, "HEAD") if "GET" in methods else methods

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """Its methods; what they take and answer is the protocol's own."""
        adapter: RouteAdapter = route.options["adapter"]
        methods = adapter.routes[route.options["pattern"]]
        return {method.lower(): _operation(adapter, sends=method == "POST") for method in methods}

    async def respond(self, *groups: str) -> None:
        """What the protocol says."""
        sent = self.request.method == "POST"
        body = await self.from_body(parse_body) if sent and self._body_expected else {}
        call = Call(
            method=str(self.request.method),
            pattern=self.pattern,
            wanted=groups[0] if groups else None,
            query={name: self.get_query_argument(name) for name in self.request.query_arguments},
            body=body,
            served=self.services.served_model,
            policy=self.services.settings.policy,
        )
        self.write_reply(self.adapter.reply(call))


def _operation(adapter: RouteAdapter, *, sends: bool) -> Operation:
    return Operation(
        summary=first_sentence(type(adapter)),
        tag="Protocols",
        answers={200: {JSON: {"type": "object"}}},
        refusals=(*BODY, InvalidField) if sends else (),
        request={"type": "object"} if sends else None,
    )
