"""Exchange: one request and its answer, with what all have: an id, one shape for errors, an access line."""

from __future__ import annotations

import functools
import re
import uuid
from types import TracebackType
from typing import cast

import structlog
from maple_plugins.errors import ParserFailed
from maple_protocols.dialect import Failure, Reply
from tornado.http1connection import HTTP1Connection
from tornado.web import HTTPError, stream_request_body

from maple.engine.errors import PromptTooLong
from maple.errors import MapleError
from maple.http.application import DescribedHandler, MapleApplication
from maple.http.connections import PatientStream
from maple.http.errors import UNEXPECTED, refusal
from maple.http.origin import cors_headers, remote_address, remote_scheme
from maple.http.refused import MethodNotAllowed
from maple.http.rows import Refusal
from maple.http.services import Services
from maple.http.wire import encode_json
from maple.observe.logs import traceback_text
from maple.observe.tracing import RequestSpan

log = structlog.get_logger(__name__)

JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"
CLIENT_LEFT = 499
"""What is counted and logged for a client that did not wait for its answer."""

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def _plain(failure: Failure) -> Reply:
    """OpenAI's shape."""
    return Reply(status=failure.status, body=failure.error.as_wire(), headers=failure.headers)


@stream_request_body
class Exchange(DescribedHandler):
    """Tornado's handler with our headers, our errors and our log line; knows nothing of bodies and keys."""

    methods: tuple[str, ...] = ("GET", "HEAD")
    is_routine = False
    """Whether this is asked so often, for so little, that its access lines are debug's unless it is refused."""
    prompt_param: str | None = None
    dialect: object = None
    """The adapter whose headers and refusals this route has, where it is a protocol's (see ``Dialect``)."""

    def initialize(self, route: str, dialect: object = None) -> None:
        """Called by Tornado once the headers are in. ``route`` is the pattern, for labels and logs."""
        self.route = route
        self.dialect = dialect
        self._set_own_headers()
        self.owner = ""
        self.client_left = False
        self.answered_early = False
        """Whether the whole answer was sent while the body was still on its way."""
        self.settled = False
        """Whether the exchange is over and has been logged."""
        self._last_answer = False
        self.maple.request_opened(self)
        self.span = self._begin_span()

    def _begin_span(self) -> RequestSpan | None:
        """The request's trace span; None unless the server traces."""
        if self.services.tracing is None:
            return None
        method = self.request.method or ""
        return self.services.tracing.begin(
            method=method if method in self.SUPPORTED_METHODS else "_OTHER",
            route=self.route,
            headers=self.request.headers,
            request_id=self.request_id,
        )

    @property
    def maple(self) -> MapleApplication:
        """The application, as what it is."""
        return cast("MapleApplication", self.application)

    @property
    def services(self) -> Services:
        """All that a handler may use."""
        return self.maple.services

    @property
    def connection(self) -> HTTP1Connection:
        """The connection, as what it is."""
        return cast("HTTP1Connection", self.request.connection)

    @property
    def stream(self) -> PatientStream:
        """The connection's socket, as what it is."""
        return cast("PatientStream", self.connection.stream)

    @functools.cached_property
    def request_id(self) -> str:
        """The client's, where it is fit for a header and a log line, else a fresh one."""
        offered = self.request.headers.get("X-Request-Id", "")
        return offered if _REQUEST_ID.fullmatch(offered) else str(uuid.uuid4())

    @functools.cached_property
    def address(self) -> str:
        """The client's, as far as it is known."""
        peer, proxies = self.request.remote_ip or "", self.services.settings.trusted_proxies
        return remote_address(peer, self.request.headers, proxies)

    @property
    def account(self) -> str:
        """Who is charged for this request's work: the key's owner, or an address where there are no keys."""
        return self.owner if self.services.keyring.required else self.address

    def set_default_headers(self) -> None:
        """Set what every answer carries, errors included."""
        self.set_header("Server", "maple")
        self.set_header("Content-Type", JSON_TYPE)
        self.set_header("X-Request-Id", self.request_id)
        origin = self.request.headers.get("Origin")
        for name, value in cors_headers(origin, self.services.settings.allowed_origins).items():
            self.set_header(name, value)
        self._set_own_headers()

    def _set_own_headers(self) -> None:
        headers = getattr(self.dialect, "headers", None)
        for name, value in headers(self.request_id).items() if headers else ():
            self.set_header(name, value)

    def refusal_of(self, error: BaseException) -> Refusal:
        """The answer to any exception; those raised on purpose have their own."""
        if isinstance(error, HTTPError):  # Tornado's own, for methods that it has never heard of
            error = self.wrong_method() if error.status_code == 405 else error
        return refusal(error, prompt_param=self.prompt_param) or UNEXPECTED

    def wrong_method(self) -> MapleError:
        """What a method that this route lacks is refused with."""
        return MethodNotAllowed(", ".join(self.methods))

    def close_after(self) -> None:
        """Make this the connection's last answer, and say so; before headers are written."""
        self._last_answer = True
        self.set_header("Connection", "close")
        self.request.headers.pop("Connection", None)  # where Tornado would read a wish to keep it

    def refuse(self, error: BaseException) -> None:
        """Put an error into the answer, in the protocol's own shape; the answer is not finished by it."""
        reply = self._told(self.refusal_of(error), error)
        if "Connection" in reply.headers:
            self.close_after()
        self.set_header("Content-Length", len(self.write_reply(reply)))

    def _told(self, found: Refusal, error: BaseException) -> Reply:
        shape = getattr(self.dialect, "refusal", _plain)
        tokens = (error.got, error.limit) if isinstance(error, PromptTooLong) else None
        failure = Failure(
            status=found.status,
            error=found.body,
            headers=found.headers,
            request_id=self.request_id,
            tokens=tokens,
        )
        return cast("Reply", shape(failure))

    def write_reply(self, reply: Reply) -> bytes:
        """Write a whole answer; its content."""
        self.set_status(reply.status)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        if isinstance(reply.body, str) and "Content-Type" not in reply.headers:
            self.set_header("Content-Type", TEXT_TYPE)
        content = reply.body.encode() if isinstance(reply.body, str) else encode_json(reply.body)
        self.write(content)
        return content

    def write_error(self, status_code: int, **kwargs: object) -> None:
        """Answer an exception that left a handler."""
        raised = kwargs.get("exc_info")
        error = raised[1] if isinstance(raised, tuple) else None
        if isinstance(error, HTTPError):
            self.close_after()  # as Tornado will, since it did not get to read the body
        self.refuse(error if isinstance(error, BaseException) else HTTPError(status_code))
        self.finish()

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log what nobody meant to happen, with where it happened."""
        if value is None or refusal(value) is not None or isinstance(value, HTTPError):
            return
        at = {"request_id": self.request_id, "route": self.route}
        if isinstance(value, ParserFailed):
            log.error("parser.failed", parser=value.target, exception=traceback_text(value), **at)
        else:
            log.error("http.crash", exception=traceback_text(value), **at)

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """Path groups and query values may hold any bytes; what they must be is checked where it matters."""
        return value.decode(errors="replace")

    def compute_etag(self) -> str | None:
        """Answers that are made for one request are not worth a conditional one."""
        return None

    def on_finish(self) -> None:
        """The answer has been handed to the socket; close that where it was said to be the last."""
        self._settle(self.get_status())
        stream = self.connection.stream
        if self._last_answer and not stream.closed():
            stream.write(b"").add_done_callback(lambda _: stream.close())

    def on_connection_close(self) -> None:
        """The client left before its answer was complete."""
        super().on_connection_close()
        if not self.settled:
            self.client_left = True
            self._settle(self.get_status() if self.answered_early else CLIENT_LEFT)
            self.disconnected()

    def disconnected(self) -> None:
        """The client is gone: stop what is under way. Called once at most."""

    def released(self) -> None:
        """The exchange is over, one way or the other: let go of timers and memory."""

    def _settle(self, status: int) -> None:
        """Count and log the request, once."""
        if self.settled:
            return
        self.settled = True
        self.released()
        self.maple.request_closed(self)
        self.services.metrics.answered(self.route, status)
        if self.span is not None:
            self.span.end(status)
        proxies = self.services.settings.trusted_proxies
        peer, headers = self.request.remote_ip or "", self.request.headers
        tell = log.debug if self.is_routine and status < 400 else log.info
        tell(
            "http.request",
            request_id=self.request_id,
            method=self.request.method,
            route=self.route,
            status=status,
            ms=round(self.request.request_time() * 1000, 1),
            remote=self.address,
            scheme=remote_scheme(peer, headers, proxies),
            owner=self.owner,
        )
