"""JsonHandler: what every route has in common.

One handler answers one method (and HEAD where that is GET): Tornado's verbs all lead to ``respond``. The order of
checks is the contract's: path, method, host, key, then the route's own ``check``, then the body's type and size. All
of these come before a byte of the body is read, and what they refuse is answered at once.
"""

from __future__ import annotations

import asyncio
import functools
import re
import uuid
from types import TracebackType
from typing import ClassVar, cast

import structlog
from maple_protocols.errors import RequestError
from tornado.http1connection import HTTP1Connection
from tornado.web import HTTPError, RequestHandler, stream_request_body

from maple.errors import MapleError
from maple.http.application import MapleApplication
from maple.http.body import BodyReader
from maple.http.errors import (
    UNEXPECTED,
    BodyTimeout,
    HostNotAllowed,
    InvalidKey,
    MethodNotAllowed,
    PayloadTooLarge,
    Refusal,
    TooManyBodies,
    UnsupportedMediaType,
    refusal,
)
from maple.http.origin import cors_headers, is_own_host, preflight_headers, remote_address, remote_scheme
from maple.http.services import Services
from maple.http.wire import encode_json

log = structlog.get_logger(__name__)

JSON_TYPE = "application/json; charset=utf-8"
CLIENT_LEFT = 499
SMALL_BODY = 64 * 1024
"""The rest of a refused body that is worth reading for the sake of keeping the connection."""

UNKNOWN_LENGTH = 1 << 62

_LENGTH = re.compile(r"[0-9]{1,18}")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_BEARER = re.compile(rb"bearer +(\S+) *", re.IGNORECASE)


@stream_request_body
class JsonHandler(RequestHandler):
    """A request, from its headers to its access line. Subclasses give ``respond`` and perhaps ``check``."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")
    methods: ClassVar[tuple[str, ...]] = ("GET", "HEAD")
    needs_key: ClassVar[bool] = True
    prompt_param: str | None = None

    def initialize(self, route: str) -> None:
        """Called by Tornado as the headers are in. ``route`` is the pattern, for labels and logs."""
        self.route = route
        self.owner = ""
        self.client_left = False
        self._body: BodyReader | None = None
        self._body_expected = False
        self._answered_early = False
        self._discarded = 0
        self._settled = False
        self._timer: asyncio.TimerHandle | None = None
        self.maple.request_opened()

    @property
    def maple(self) -> MapleApplication:
        """The application, as what it is."""
        return cast("MapleApplication", self.application)

    @property
    def services(self) -> Services:
        """All that this handler may use."""
        return self.maple.services

    @property
    def connection(self) -> HTTP1Connection:
        """The connection, as what it is."""
        return cast("HTTP1Connection", self.request.connection)

    @functools.cached_property
    def request_id(self) -> str:
        """The client's, where it is fit for a header and a log line, else a fresh one."""
        offered = self.request.headers.get("X-Request-Id", "")
        return offered if _REQUEST_ID.fullmatch(offered) else str(uuid.uuid4())

    async def respond(self, *groups: str) -> None:
        """Answer. ``groups`` are the path's, percent-decoded."""
        raise NotImplementedError

    def check(self, *groups: str) -> None:
        """The route's own conditions, before the body is looked at. Raises a MapleError or RequestError."""

    def open_to_all(self) -> bool:
        """Whether this route asks for no key although the server has one."""
        return not self.needs_key

    def disconnected(self) -> None:
        """The client is gone: stop what is under way. Called once at most."""

    # What Tornado calls.

    def set_default_headers(self) -> None:
        """Set what every answer carries, errors included."""
        self.set_header("Server", "maple")
        self.set_header("Content-Type", JSON_TYPE)
        self.set_header("X-Request-Id", self.request_id)
        origin = self.request.headers.get("Origin")
        for name, value in cors_headers(origin, self.services.settings.allowed_origins).items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Check everything but the body, and get ready to read that."""
        structlog.contextvars.bind_contextvars(request_id=self.request_id)
        headers = self.request.headers
        self._body_expected = "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"
        if headers.get("Expect", "").lower() == "100-continue":
            headers["Expect"] = "100-continue"  # Tornado looks for this spelling only
        try:
            self._check_all()
        except (MapleError, RequestError) as error:
            self._refuse_early(error)

    def data_received(self, chunk: bytes) -> None:
        """Take a part of the body, or throw it away once the request has been answered."""
        if self._answered_early or self._body is None:
            self._discard(len(chunk))
            return
        before = self._body.held
        try:
            self._body.feed(chunk)
            self.maple.bodies_bytes += self._body.held - before
            if self.maple.bodies_bytes > self.services.limits.bodies_bytes:
                raise TooManyBodies
        except MapleError as error:
            self._refuse_early(error)

    async def _run(self, *groups: str) -> None:
        """Every verb: the body is in."""
        self._stop_timer()
        if self._answered_early:
            self.finish()
        elif self.request.method == "OPTIONS":
            self._preflight()
        else:
            await self.respond(*groups)

    get = head = post = delete = patch = put = options = _run

    def write_error(self, status_code: int, **kwargs: object) -> None:
        """Write an exception that left a handler, in our shape."""
        raised = kwargs.get("exc_info")
        error = raised[1] if isinstance(raised, tuple) else None
        self._write_refusal(self.refusal_of(error) if error is not None else UNEXPECTED)
        self.finish()

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log what nobody meant to happen, with its traceback."""
        if value is not None and refusal(value) is None and not isinstance(value, HTTPError):
            log.error("http.crash", route=self.route, exc_info=value)

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """Percent-decoded path groups and query values may hold any bytes; what they must be is checked later."""
        return value.decode(errors="replace")

    def compute_etag(self) -> None:
        """No answer of this server is worth a conditional request."""

    def on_finish(self) -> None:
        """The answer has been handed to the socket."""
        self._settle(self.get_status())
        if self._headers.get("Connection") == "close" and not self.connection.stream.closed():
            self.connection.stream.write(b"").add_done_callback(lambda _: self.connection.stream.close())

    def on_connection_close(self) -> None:
        """The client left before its answer was complete."""
        super().on_connection_close()
        if not self._settled:
            self.client_left = True
            self._settle(self.get_status() if self._answered_early else CLIENT_LEFT)
            self.disconnected()

    # Refusals.

    def refusal_of(self, error: BaseException) -> Refusal:
        """The answer to any exception; those raised on purpose have their own."""
        if isinstance(error, HTTPError):
            return self._tornado_refusal(error)
        return refusal(error, prompt_param=self.prompt_param) or UNEXPECTED

    def _tornado_refusal(self, error: HTTPError) -> Refusal:
        """Tornado itself refuses methods that it has never heard of, and nothing else that gets this far."""
        wanted = self.wrong_method() if error.status_code == 405 else error
        return refusal(wanted) or UNEXPECTED

    def wrong_method(self) -> MapleError:
        """What a method that this route lacks is answered with."""
        return MethodNotAllowed(", ".join(self.methods))

    def _write_refusal(self, found: Refusal) -> None:
        self.set_status(found.status)
        for name, value in found.headers.items():
            self.set_header(name, value)
        self.write(encode_json(found.body.as_wire()))

    def _refuse_early(self, error: Exception) -> None:
        """Answer now, though the body may still be on its way.

        What arrives of it is thrown away for a while: closing at once would reset the connection, and the client
        might never read why. Who asked whether to send a body at all (Expect) is told by the answer itself.
        """
        self._stop_timer()
        self._answered_early = True
        self._free_body()
        self._write_refusal(self.refusal_of(error))
        if not self._body_expected:
            self.finish()
            return
        if "Expect" in self.request.headers or self._declared_length() > SMALL_BODY:
            self.set_header("Connection", "close")
        if "Expect" in self.request.headers:
            self.finish()
            return
        self.set_header("Content-Length", sum(map(len, self._write_buffer)))
        self.flush()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.services.limits.linger_seconds, self._hang_up)

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > self.services.limits.linger_bytes:
            self._hang_up()

    def _hang_up(self) -> None:
        """The rest of the body is not worth waiting for: Tornado closes a connection with an unread body."""
        if not self._finished:
            self.finish()

    def _declared_length(self) -> int:
        """The body's Content-Length; more than any limit where there is none, or none that counts."""
        declared = self.request.headers.get("Content-Length", "")
        return int(declared) if _LENGTH.fullmatch(declared) else UNKNOWN_LENGTH

    # Checks.

    def _check_all(self) -> None:
        settings = self.services.settings
        method = self.request.method
        if method not in self.methods and (method != "OPTIONS" or not self.methods):
            raise self.wrong_method()
        if not self.services.keyring.required and not is_own_host(
            self.request.host_name, settings.allowed_hosts
        ):
            raise HostNotAllowed(self.request.host)
        if method == "OPTIONS":
            return
        self._check_key()
        self.check(*self.path_args)
        if self._body_expected:
            self._expect_body()

    def _check_key(self) -> None:
        keyring = self.services.keyring
        if not keyring.required or self.open_to_all():
            return
        header = self.request.headers.get("Authorization", "").encode("latin-1", "replace")
        bearer = _BEARER.fullmatch(header)
        owner = keyring.owner(bearer[1]) if bearer else None
        if owner is None:
            raise InvalidKey
        self.owner = owner

    def _expect_body(self) -> None:
        headers = self.request.headers
        media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if self.request.method == "POST" and media_type != "application/json":
            raise UnsupportedMediaType("the Content-Type must be application/json")
        limit = self.services.limits.body_bytes
        reader = BodyReader(headers.get("Content-Encoding", ""), limit)
        if "Content-Length" in headers and self._declared_length() > limit:
            raise PayloadTooLarge(limit)
        self._body = reader
        timeout = self.services.settings.body_timeout
        self._timer = asyncio.get_running_loop().call_later(timeout, self._refuse_early, BodyTimeout(timeout))

    # The rest.

    def take_body(self) -> bytes:
        """The body, inflated. Raises BodyCorrupt."""
        if self._body is None:
            return b""
        held = self._body.held
        data = self._body.take()
        self.maple.bodies_bytes -= held
        self._body = None
        return data

    def _free_body(self) -> None:
        if self._body is not None:
            self.maple.bodies_bytes -= self._body.held
            self._body = None

    def _preflight(self) -> None:
        self.set_status(204)
        headers = self.request.headers
        if "Access-Control-Allow-Origin" in self._headers and "Access-Control-Request-Method" in headers:
            wanted = headers.get("Access-Control-Request-Headers", "")
            for name, value in preflight_headers(", ".join(self.methods), wanted).items():
                self.set_header(name, value)
        self.finish()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, status: int) -> None:
        """Count and log the request, once."""
        if self._settled:
            return
        self._settled = True
        self._stop_timer()
        self._free_body()
        self.maple.request_closed()
        self.services.metrics.answered(self.route, status)
        proxies = self.services.settings.trusted_proxies
        peer, headers = self.request.remote_ip or "", self.request.headers
        log.info(
            "http.request",
            request_id=self.request_id,
            method=self.request.method,
            route=self.route,
            status=status,
            ms=round(self.request.request_time() * 1000, 1),
            remote=remote_address(peer, headers, proxies),
            scheme=remote_scheme(peer, headers, proxies),
            owner=self.owner,
        )
