"""The route table: the only place where paths and handlers meet."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from maple_protocols.adapter import Policy
from maple_protocols.kinds import Served

from maple.errors import MapleError
from maple.http.api_operation import Operations
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.control import ControlHandler
from maple.http.counting import CountHandler
from maple.http.exchange import JSON_TYPE
from maple.http.generate import GenerateHandler
from maple.http.listing import ListingHandler
from maple.http.openapi import document
from maple.http.operations import MetricsHandler, StatsHandler
from maple.http.pages import INDEX, FrontHandler, Page, PageHandler, page_routes
from maple.http.plain import PlainHandler
from maple.http.probes import HealthHandler, LivenessHandler, ReadinessHandler
from maple.http.props import EmbeddingsHandler, PropsHandler, VersionHandler
from maple.http.refused import RouteNotFound
from maple.http.services import Services
from maple.http.sessions import SessionActionHandler, SessionDeleteHandler, SessionManifestHandler
from maple.http.slots import ServerSlotsHandler, SlotsHandler
from maple.http.stored import StoredHandler, StoredItemsHandler
from maple.http.tokens import TOKEN_ROUTES
from maple.http.wire import encode_json

PACKAGE = pathlib.Path(__file__).parent.parent


class UnknownRouteHandler(JsonHandler):
    """Every path without a route, whatever the method."""

    methods = ()

    def wrong_method(self) -> MapleError:
        """No method is right."""
        return RouteNotFound(self.request.path, self.maple.nearest(self.request.path))


class AbsentHandler(UnknownRouteHandler):
    """A path that is known not to be served, whatever the routes around it."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """None."""
        return {}

    def wrong_method(self) -> MapleError:
        """There is no other route that could be meant."""
        return RouteNotFound(self.request.path, None)


FIXED = (
    Route(pattern="/health", handler=HealthHandler),
    Route(pattern="/healthz", handler=LivenessHandler),
    Route(pattern="/readyz", handler=ReadinessHandler),
    Route(pattern="/metrics", handler=MetricsHandler),
    Route(pattern="/v1/stats", handler=StatsHandler),
    # A session's id may hold slashes here only to be refused as an id, and not as a path that does not exist.
    Route(pattern="/v1/sessions/(.+)/save", handler=SessionActionHandler),
    Route(pattern="/v1/sessions/(.+)/load", handler=SessionActionHandler),
    Route(pattern="/v1/sessions/(.+)/manifest", handler=SessionManifestHandler),
    Route(pattern="/v1/sessions/([^/]+)", handler=SessionDeleteHandler),
    *TOKEN_ROUTES,
    Route(pattern="/v1/slots", handler=SlotsHandler),
    Route(pattern="/slots", handler=ServerSlotsHandler),
    Route(pattern="/props", handler=PropsHandler),
    Route(pattern="/version", handler=VersionHandler),
    Route(pattern="/v1/embeddings", handler=EmbeddingsHandler),
)

TAKEN = (*(route.pattern for route in FIXED), "/", "/openapi.json", "/docs(/.*)?", "/ui(/.*)?")
"""The paths that no protocol may have."""


def routes(services: Services) -> tuple[Route, ...]:
    """The server's own routes, then those of the protocols in their order, then the pages."""
    description = {INDEX: Page(content=b"", media_type=JSON_TYPE)}
    own = [route for served in services.protocols for route in _protocol_routes(served)]
    table = (
        *FIXED,
        *sorted(own, key=lambda route: route.header is None),
        Route(
            pattern="/openapi.json",
            handler=PageHandler,
            options={"pages": description},
            summary="This description.",
        ),
        *page_routes("/docs", PACKAGE / "reference", "The page that shows this description"),
        *_front(services),
    )
    description[INDEX] = Page(content=encode_json(document(table, services)), media_type=JSON_TYPE)
    return table


def _front(services: Services) -> Iterator[Route]:
    found = (getattr(served.adapter, "greeting", None) for served in services.protocols)
    greeting = next(filter(None, found), None)
    if services.settings.ui or greeting is not None:
        options = {"greeting": greeting, "page": services.settings.ui}
        yield Route(pattern="/", handler=FrontHandler, options=options)
    if services.settings.ui:
        yield from page_routes("/ui", PACKAGE / "ui", "The chat page")


def _protocol_routes(served: Served) -> Iterator[Route]:
    if served.generation is not None:
        options = {"adapter": served.generation, "keeping": served.keeping}
        yield Route(pattern=served.generation.path, handler=GenerateHandler, options=options)
        if served.count_path is not None:
            yield Route(
                pattern=served.count_path, handler=CountHandler, options={"adapter": served.generation}
            )
        if served.control_path is not None:
            yield Route(
                pattern=served.control_path, handler=ControlHandler, options={"adapter": served.generation}
            )
    if served.keeping is not None:
        # SDKs ask for it. It would be a stored response's id, and its 405 another route's.
        yield Route(pattern=f"{served.keeping.path}/compact", handler=AbsentHandler)
        stored = {"adapter": served.keeping}
        yield Route(pattern=served.keeping.stored_path, handler=StoredHandler, options=stored)
        yield Route(pattern=served.keeping.items_path, handler=StoredItemsHandler, options=stored)
    if served.listing is not None:
        for path in served.listing.paths:
            yield Route(pattern=path, handler=ListingHandler, options={"adapter": served.listing})
    if served.routes is not None:
        for path in served.routes.routes:
            told = {"adapter": served.routes, "pattern": path}
            yield Route(pattern=path, handler=PlainHandler, options=told, header=served.header)
