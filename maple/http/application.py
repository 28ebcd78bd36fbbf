"""Tornado's application with our routing, and what its handlers share."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import attrs
from maple_protocols.adapter import Policy
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest
from tornado.routing import PathMatches, Rule, URLSpec
from tornado.web import Application, RequestHandler

from maple.http.api_operation import Operations
from maple.http.budget import Budget
from maple.http.connections import PatientStream
from maple.http.running_answers import RunningAnswers
from maple.http.services import Services


class UnderWay(Protocol):
    """A request that is being answered, and whose it is."""

    @property
    def request_id(self) -> str:
        """As its answer names it."""
        ...

    @property
    def owner(self) -> str:
        """The name of the key that it was sent with."""
        ...


class DescribedHandler(RequestHandler):
    """A handler that can say what its routes offer."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """What ``route`` offers, for the API's description. ``policy`` is the deployment's."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class Route:
    """One path. ``pattern`` is Tornado's, with one group at most; ``options`` go to the handler's
    ``initialize``. ``summary`` is for the API's description, where the handler alone does not tell.
    """

    pattern: str
    handler: type[DescribedHandler]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    summary: str = ""
    header: str | None = None
    """A request header without which the route is none, so that a later one of the same path is looked at."""

    @property
    def template(self) -> str:
        """The pattern for people and labels: ``/v1/models/{id}``."""
        return re.sub(r"\([^)]*\)", "{id}", self.pattern)

    @property
    def parameter(self) -> str | None:
        """The regular expression of the pattern's group, if it has one."""
        found = re.search(r"\(([^)]*)\)", self.pattern)
        return found and found[1]

    @property
    def rule(self) -> Rule:
        """The route as Tornado takes it."""
        options = {"route": self.template, **self.options}
        if self.header is None:
            return URLSpec(self.pattern, self.handler, options)
        return Rule(_WithHeader(self.pattern, self.header), self.handler, options)


class _WithHeader(PathMatches):
    """A path, where a header comes along."""

    def __init__(self, pattern: str, header: str) -> None:
        super().__init__(pattern)
        self._header = header

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """As PathMatches's."""
        return super().match(request) if self._header in request.headers else None


class MapleApplication(Application):
    """Routes requests, knows those under way, and keeps the budget for what they need before a slot."""

    def __init__(self, services: Services, routes: Sequence[Route], unknown: type[RequestHandler]) -> None:
        self.services = services
        self.routes = tuple(routes)
        self.budget = Budget(services.limits, services.metrics)
        self._under_way: set[UnderWay] = set()
        self.answers = RunningAnswers()
        self._idle = asyncio.Event()
        self._idle.set()
        super().__init__(
            [route.rule for route in routes],
            default_handler_class=unknown,
            default_handler_args={"route": "unmatched"},
        )

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Route a request whose headers have arrived. One trailing slash is ignored."""
        cast("PatientStream", cast("HTTP1Connection", request.connection).stream).headers_complete()
        if len(request.path) > 1:
            request.path = request.path.removesuffix("/")
        return super().find_handler(request, **kwargs)

    def log_request(self, handler: RequestHandler) -> None:
        """Nothing: handlers write their own access line, also for clients that left."""

    def request_opened(self, exchange: UnderWay) -> None:
        """A handler was made."""
        self._under_way.add(exchange)
        self._idle.clear()

    def request_closed(self, exchange: UnderWay) -> None:
        """A handler has answered, or lost its client."""
        self._under_way.discard(exchange)
        if not self._under_way:
            self._idle.set()

    @property
    def under_way(self) -> frozenset[UnderWay]:
        """The exchanges that are being answered."""
        return frozenset(self._under_way)

    def own_ids(self, owner: str) -> frozenset[str]:
        """The ids of the owner's requests under way."""
        return frozenset(each.request_id for each in self._under_way if each.owner == owner)

    async def settled(self, seconds: float) -> None:
        """Return when no request is under way, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return

    def nearest(self, path: str) -> str | None:
        """The route that an unknown path was likely meant for."""
        if not path.isascii() or len(path) > 200:
            return None
        words = [word for word in path.split("/") if word]
        while words and words[0] in ("v1", "api", "openai"):
            del words[0]
        for guess in ("/".join(["", "v1", *words]), "/".join(["", *words])):
            if any(re.fullmatch(route.pattern, guess) for route in self.routes):
                return guess
        near = difflib.get_close_matches(path, [route.template for route in self.routes], n=1, cutoff=0.8)
        return near[0] if near else None
