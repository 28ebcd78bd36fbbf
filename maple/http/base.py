"""JsonHandler: what every route does before and around its own answer.

A handler answers one method (and HEAD where that is GET): Tornado's verbs all lead to ``respond``. The order
of checks is the contract's: path, method, host, key, then the route's own ``check``, then the body's type and
size. All of them come before a byte of the body is read, and what they refuse is answered at once.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

import structlog
from maple_protocols.errors import RequestError

from maple.errors import MapleError
from maple.http.body import BodyReader
from maple.http.errors import (
    BodyTimeout,
    HostNotAllowed,
    InvalidKey,
    PayloadTooLarge,
    TooManyBodies,
    UnsupportedMediaType,
)
from maple.http.exchange import Exchange
from maple.http.origin import is_own_host, preflight_headers

SMALL_BODY = 64 * 1024
"""The rest of a refused body that is worth reading for the sake of keeping the connection."""
UNKNOWN_LENGTH = 1 << 62

_LENGTH = re.compile(r"[0-9]{1,18}")
_BEARER = re.compile(rb"bearer +(\S+) *", re.IGNORECASE)


class JsonHandler(Exchange):
    """Subclasses give ``respond``, and perhaps ``check``, ``methods`` and ``needs_key``."""

    needs_key: ClassVar[bool] = True

    def initialize(self, route: str) -> None:
        """As Exchange's."""
        super().initialize(route)
        self._body: BodyReader | None = None
        self._body_expected = False
        self._accounted = 0
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None

    async def respond(self, *groups: str) -> None:
        """Answer; the body is in. ``groups`` are the path's, percent-decoded."""
        raise NotImplementedError

    def check(self, *groups: str) -> None:
        """Look at the route's own conditions. Raises a MapleError or RequestError."""

    def open_to_all(self) -> bool:
        """Whether this route asks for no key although the server has one."""
        return not self.needs_key

    def take_body(self) -> bytes:
        """The body, inflated; it is held here no longer. Raises BodyCorrupt."""
        reader = self._body
        self._free_body()
        return b"" if reader is None else reader.take()

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
        if self.answered_early or self._body is None:
            self._discard(len(chunk))
            return
        try:
            self._body.feed(chunk)
            self._account(self._body.held)
            if self.maple.bodies_bytes > self.services.limits.bodies_bytes:
                raise TooManyBodies
        except MapleError as error:
            self._refuse_early(error)

    async def _run(self, *groups: str) -> None:
        self._stop_timer()
        if self.answered_early:
            self.finish()
        elif self.request.method == "OPTIONS":
            self._preflight()
        else:
            await self.respond(*groups)

    get = head = post = delete = patch = put = options = _run

    def released(self) -> None:
        """As Exchange's."""
        self._stop_timer()
        self._free_body()

    def _check_all(self) -> None:
        method, settings = self.request.method, self.services.settings
        if method not in self.methods and (method != "OPTIONS" or not self.methods):
            raise self.wrong_method()
        if not self.services.keyring.required and not is_own_host(
            self.request.host_name, settings.allowed_hosts
        ):
            raise HostNotAllowed(self.request.host)
        if method != "OPTIONS":
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
        if headers.get("Content-Length", "").isdigit() and self._declared_length() > limit:
            raise PayloadTooLarge(limit)
        self._body = reader
        timeout = self.services.settings.body_timeout
        self._start_timer(timeout, BodyTimeout(timeout))

    def _refuse_early(self, error: Exception) -> None:
        """Answer now, though the body may still be on its way.

        What arrives of it is thrown away for a while: closing at once would reset the connection, and the
        client might never read why. Who asked whether to send a body at all (Expect) is told by the answer.
        """
        self.released()
        self.answered_early = True
        self.write_refusal(self.refusal_of(error))
        asked_first = "Expect" in self.request.headers
        if self._body_expected and (asked_first or self._declared_length() > SMALL_BODY):
            self.close_after()
        if asked_first:
            self.finish()
        if asked_first or not self._body_expected:
            return  # without a body, the verb finishes: sooner would cost the connection
        self.flush()
        self._timer = asyncio.get_running_loop().call_later(
            self.services.limits.linger_seconds, self._hang_up
        )

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > self.services.limits.linger_bytes:
            self._hang_up()

    def _hang_up(self) -> None:
        """The rest of the body is not worth waiting for: Tornado closes a connection with an unread body."""
        if not self.settled:
            self.finish()

    def _preflight(self) -> None:
        self.set_status(204)
        headers = self.request.headers
        if "Access-Control-Allow-Origin" in self._headers and "Access-Control-Request-Method" in headers:
            wanted = headers.get("Access-Control-Request-Headers", "")
            for name, value in preflight_headers(", ".join(self.methods), wanted).items():
                self.set_header(name, value)

    def _declared_length(self) -> int:
        """The body's Content-Length; more than any limit where there is none, or an absurd one."""
        declared = self.request.headers.get("Content-Length", "")
        return int(declared) if _LENGTH.fullmatch(declared) else UNKNOWN_LENGTH

    def _free_body(self) -> None:
        self._account(0)
        self._body = None

    def _account(self, held: int) -> None:
        self.maple.bodies_bytes += held - self._accounted
        self._accounted = held

    def _start_timer(self, seconds: float, error: Exception) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._refuse_early, error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
