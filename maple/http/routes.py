"""The route table: the only place where paths and handlers meet."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import cast

from maple_protocols.adapter import Adapter, GenerationAdapter, StoredAdapter

from maple.errors import MapleError
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.errors import RouteNotFound
from maple.http.exchange import JSON_TYPE
from maple.http.generate import GenerateHandler
from maple.http.listing import ListingHandler
from maple.http.openapi import document
from maple.http.operations import MetricsHandler, StatsHandler
from maple.http.pages import INDEX, FrontHandler, Page, PageHandler, page_routes
from maple.http.probes import HealthHandler, LivenessHandler, ReadinessHandler
from maple.http.services import Services
from maple.http.sessions import SessionActionHandler, SessionDeleteHandler, SessionManifestHandler
from maple.http.stored import StoredHandler, StoredItemsHandler
from maple.http.wire import encode_json

PACKAGE = pathlib.Path(__file__).parent.parent


class UnknownRouteHandler(JsonHandler):
    """Every path without a route, whatever the method."""

    methods = ()

    def wrong_method(self) -> MapleError:
        """No method is right."""
        return RouteNotFound(self.request.path, self.maple.nearest(self.request.path))


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
)


def routes(services: Services) -> tuple[Route, ...]:
    """The server's own routes, then those of the protocols in their order, then the pages."""
    description = {INDEX: Page(content=b"", media_type=JSON_TYPE)}
    table = (
        *FIXED,
        *(route for adapter in services.adapters for route in _protocol_routes(adapter)),
        Route(
            pattern="/openapi.json",
            handler=PageHandler,
            options={"pages": description},
            summary="This description.",
        ),
        *page_routes("/docs", PACKAGE / "reference", "The page that shows this description"),
        *(_chat_page() if services.settings.ui else ()),
    )
    description[INDEX] = Page(content=encode_json(document(table, services)), media_type=JSON_TYPE)
    return table


def _chat_page() -> Iterator[Route]:
    yield Route(pattern="/", handler=FrontHandler)
    yield from page_routes("/ui", PACKAGE / "ui", "The chat page")


def _protocol_routes(adapter: Adapter) -> Iterator[Route]:
    if hasattr(adapter, "structure"):
        path = cast("GenerationAdapter", adapter).path
        yield Route(pattern=path, handler=GenerateHandler, options={"adapter": adapter})
        return
    if hasattr(adapter, "items_path"):
        stored = cast("StoredAdapter", adapter)
        yield Route(pattern=stored.path, handler=StoredHandler, options={"adapter": stored})
        yield Route(pattern=stored.items_path, handler=StoredItemsHandler, options={"adapter": stored})
        return
    for path in adapter.paths:
        yield Route(pattern=path, handler=ListingHandler, options={"adapter": adapter})
