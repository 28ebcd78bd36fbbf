"""What a protocol may say about HTTP itself: refusals in its own shape, and routes that do not generate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

import attrs

from maple_protocols.adapter import JsonObject, Policy, ServedModel
from maple_protocols.errors import ErrorBody

Framing = Literal["sse", "ndjson"]
"""Server-sent events, or a line of JSON for each frame; the second has no names of events and no comments."""


@attrs.frozen(kw_only=True)
class Reply:
    """A whole answer: ``body`` is JSON, or text that goes out as text/plain."""

    body: JsonObject | str
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Failure:
    """A refusal before it has a protocol's shape. ``tokens`` are those of a prompt that is too long, and the most
    that fit.
    """

    status: int
    error: ErrorBody
    headers: Mapping[str, str]
    request_id: str
    tokens: tuple[int, int] | None = None


@attrs.frozen(kw_only=True)
class Call:
    """A request to a route that does not generate. ``wanted`` is the pattern's group, decoded; ``query`` holds each
    name's last value; ``body`` is empty where none was sent.
    """

    method: str
    pattern: str
    wanted: str | None
    query: Mapping[str, str]
    body: Mapping[str, object]
    served: ServedModel
    policy: Policy


class Dialect(Protocol):
    """What adapters of every kind may have, any of it. Without it, errors have OpenAI's shape, answers
    no header of their own, bodies must be declared as JSON, and streams are server-sent events.
    """

    framing: ClassVar[Framing]
    any_content_type: ClassVar[bool]
    """Whether bodies are read as JSON whatever their Content-Type says."""
    count_path: ClassVar[str]
    """A generating protocol's POST route that counts prompts, which ``counts`` answers; ``Policy.counting`` is set."""
    greeting: ClassVar[str]
    """What GET / answers to clients that do not ask for a page."""

    def headers(self, request_id: str) -> Mapping[str, str]:
        """Headers that every answer of its routes carries, refusals included."""
        ...

    def refusal(self, failure: Failure) -> Reply:
        """What goes out in place of ``failure``: also for a wrong key, method or body, before ``structure``."""
        ...

    def counts(self, tokens: int) -> JsonObject:
        """The answer of ``count_path``."""
        ...


class RouteAdapter(Protocol):
    """A protocol's routes that do not generate; answered while the model loads, too.

    ``routes`` maps Tornado patterns with one group at most to their methods, GET, POST and DELETE. With
    ``header``, requests that carry a header of that name come here, also where another protocol serves the same path.
    """

    routes: ClassVar[Mapping[str, tuple[str, ...]]]
    header: ClassVar[str | None]

    def reply(self, call: Call) -> Reply:
        """Answer, in the loop's thread. Raises RequestError."""
        ...


class Bundle(Protocol):
    """A protocol of several adapters, of any kinds."""

    parts: ClassVar[tuple[object, ...]]
