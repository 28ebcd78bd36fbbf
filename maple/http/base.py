"""JsonHandler: what every route does before and around its own answer.

A handler answers one method (and HEAD where that is GET): Tornado's verbs all lead to ``respond``. The order
of checks is the contract's: path, method, host, key, then the route's own ``check``, then the body's type and
size. All of them come before a byte of the body is read, and what they refuse is answered at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

import structlog
from maple_protocols.errors import RequestError

from maple.errors import MapleError
from maple.http.body import BodyReader, SentBody
from maple.http.exchange import Exchange
from maple.http.origin import is_foreign_page, is_own_host, preflight_headers
from maple.http.refused import (
    BodyTimeout,
    HostNotAllowed,
    InvalidKey,
    OriginNotAllowed,
    PayloadTooLarge,
    TooManyConnections,
    UnsupportedMediaType,
)
from maple.prompt.encode import EncodedPrompt

T = TypeVar("T")

SMALL_BODY = 64 * 1024
"""The rest of a refused body that is worth reading for the sake of keeping the connection."""
QUICK_BODY = 16 * 1024
"""Up to here a body that is not compressed is read on the loop: milliseconds, whatever it holds."""
UNKNOWN_LENGTH = 1 << 62

_LENGTH = re.compile(r"[0-9]{1,18}")
_BEARER = re.compile(rb"bearer +(\S+) *", re.IGNORECASE)


class JsonHandler(Exchange):
    """Subclasses give ``respond``, and perhaps ``check``, ``methods`` and ``needs_key``."""

    needs_key: ClassVar[bool] = True
    is_probe: ClassVar[bool] = False
    """Whether this is answered even on connections beyond the cap."""

    def initialize(self, route: str, dialect: object = None) -> None:
        """As Exchange's."""
        super().initialize(route, dialect)
        self._body: BodyReader | None = None
        self._body_expected = False
        self._held = 0
        self.discarded_bytes = 0
        """What was read of a body that nobody wants."""
        self._timer: asyncio.TimerHandle | None = None

    async def respond(self, *groups: str) -> None:
        """Answer; the body is in. ``groups`` are the path's, percent-decoded."""
        raise NotImplementedError

    def check(self, *groups: str) -> None:
        """Look at the route's own conditions. Raises a MapleError or RequestError."""

    def open_to_all(self) -> bool:
        """Whether this route asks for no key although the server has one."""
        return not self.needs_key

    async def from_body(self, read: Callable[[bytes], T]) -> T:
        """What ``read`` makes of the inflated body, on a budgeted thread unless that is a matter of milliseconds.

        Raises BodyCorrupt, PayloadTooLarge, TooManyBodies, or whatever ``read`` does.
        """
        body = SentBody(b"", 0) if self._body is None else self._body.take()
        try:
            if body.inflate is None and len(body.data) <= QUICK_BODY:
                return read(body.data)
            return await self.maple.budget.run(self.account, lambda: read(self._inflated(body)))
        finally:
            self._free_body()

    async def prepare_prompt(self, work: Callable[[], EncodedPrompt]) -> EncodedPrompt:
        """Render and count a prompt on a budgeted thread. Raises TooManyBodies, or whatever ``work`` does."""
        prompt = await self.maple.budget.run(self.account, work)
        self.maple.budget.note_counted(len(prompt.ids))
        return prompt

    def _inflated(self, body: SentBody) -> bytes:
        data = body.plain()
        if body.inflate is not None:
            self.maple.budget.note_inflated(len(data))
        return data

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
            self.maple.budget.hold(self.account, len(chunk))
            self._held += len(chunk)
            self._body.feed(chunk)
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
        if self.stream.surplus:
            self.close_after()
            if not self.is_probe:
                raise TooManyConnections
        method, settings = self.request.method, self.services.settings
        if method not in self.methods and (method != "OPTIONS" or not self.methods):
            raise self.wrong_method()
        if not self.services.keyring.required and not is_own_host(
            self.request.host_name, settings.allowed_hosts
        ):
            raise HostNotAllowed(self.request.host)
        owner = self._key_owner()
        if method == "POST" and owner is None and is_foreign_page(self.request, settings.allowed_origins):
            raise OriginNotAllowed(self.request.headers.get("Origin", ""))
        if method != "OPTIONS":
            if owner is None and self.services.keyring.required and not self.open_to_all():
                raise InvalidKey
            self.owner = owner or ""
            self.check(*self.path_args)
        if self._body_expected:
            self._expect_body()

    def _key_owner(self) -> str | None:
        """The owner of the key that was sent; None for a wrong key, none, or a route that asks for none."""
        if not self.services.keyring.required or self.open_to_all():
            return None
        headers = self.request.headers
        bearer = _BEARER.fullmatch(headers.get("Authorization", "").encode("latin-1", "replace"))
        offered = [bearer[1]] if bearer else []
        if "X-Api-Key" in headers:
            offered.append(headers["X-Api-Key"].strip().encode("latin-1", "replace"))
        owners = [self.services.keyring.owner(key) for key in offered]
        return next((owner for owner in owners if owner is not None), None)

    def _expect_body(self) -> None:
        """Get ready to collect a POST's body; any other's is thrown away, if that is not too much of it."""
        headers, length = self.request.headers, self._declared_length()
        if self.request.method == "POST":
            media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if media_type != "application/json" and not getattr(self.dialect, "any_content_type", False):
                raise UnsupportedMediaType("the Content-Type must be application/json")
            limit = self.services.limits.body_bytes
            self._body = BodyReader(headers.get("Content-Encoding", ""), limit)
            if headers.get("Content-Length", "").isdigit() and length > limit:
                raise PayloadTooLarge(limit)
        elif length > SMALL_BODY:
            raise PayloadTooLarge(SMALL_BODY)
        timeout = self.services.settings.body_timeout
        self._start_timer(timeout, BodyTimeout(timeout))

    def _refuse_early(self, error: Exception) -> None:
        """Answer now, though the body may still be on its way.

        What arrives of it is thrown away for a while: closing at once would reset the connection, and the
        client might never read why. Who asked whether to send a body at all (Expect) is told by the answer.
        """
        self.released()
        self.answered_early = True
        self.refuse(error)
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
        self.discarded_bytes += count
        if self.discarded_bytes > self.services.limits.linger_bytes:
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
        self.maple.budget.let_go(self.account, self._held)
        self._held = 0
        self._body = None

    def _start_timer(self, seconds: float, error: Exception) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._refuse_early, error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
