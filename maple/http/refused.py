"""What is refused for what it is to HTTP, before any protocol looks at it."""

from __future__ import annotations

import attrs

from maple.errors import MapleError


class HttpError(MapleError):
    """A request that is refused for what it is to HTTP, before any protocol looks at it."""


@attrs.define(eq=False)
class RouteNotFound(HttpError):
    """No route has this path. ``near`` is the one that was likely meant."""

    path: str
    near: str | None


@attrs.define(eq=False)
class MethodNotAllowed(HttpError):
    """The route has other methods: ``allow`` is the header's text."""

    allow: str


@attrs.define(eq=False)
class HostNotAllowed(HttpError):
    """Without a key, a browser could be led here under another site's name."""

    host: str


@attrs.define(eq=False)
class OriginNotAllowed(HttpError):
    """A page of another site asks for something to be done. ``origin`` is that site, or empty."""

    origin: str


class InvalidKey(HttpError):
    """The key is missing or wrong."""


@attrs.define(eq=False)
class UnsupportedMediaType(HttpError):
    """The body is not JSON, or in an encoding that is not read. ``reason`` is a sentence."""

    reason: str


@attrs.define(eq=False)
class PayloadTooLarge(HttpError):
    """The body has more than ``limit`` bytes, as sent or as inflated."""

    limit: int


@attrs.define(eq=False)
class BodyTimeout(HttpError):
    """The body did not arrive within so many seconds."""

    seconds: float


class BodyCorrupt(HttpError):
    """The body cannot be inflated."""


class TooManyBodies(HttpError):
    """The bodies that are on their way fill the memory set aside for them, or the threads that read them."""


class TooManyConnections(HttpError):
    """The connection is beyond the cap, and what it asks for is no probe."""


@attrs.define(eq=False)
class ResponseUnknown(HttpError):
    """No such response is stored for this key. ``param`` is the field that named it, if one did."""

    param: str | None = None


class AnswerUnknown(HttpError):
    """No answer with this id is being made for this key."""


class NotThinking(HttpError):
    """The answer is not in a reasoning block that could be closed."""


@attrs.define(eq=False)
class NotConfigured(HttpError):
    """A route whose setting is off. ``variable`` turns it on."""

    variable: str


@attrs.define(eq=False)
class NotSupported(HttpError):
    """A route that is known and not served. ``reason`` is a sentence."""

    reason: str
