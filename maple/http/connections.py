"""Connections: how many there may be, and how long a peer may keep one waiting.

Tornado has one timer for idle connections and headers together, none for a peer that stops reading, and no
cap. All three live here, at the socket, so that no handler needs to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import uuid
from collections.abc import Callable
from typing import Any

import structlog
from maple_protocols.errors import ErrorBody
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

from maple.http.services import Limits

log = structlog.get_logger(__name__)

FAREWELL_SECONDS = 0.5
MOST_FAREWELLS = 128
PEER_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class PatientStream(IOStream):
    """A connection that closes itself when its peer dawdles: slow headers, or an answer left unread.

    It also notices a peer that left behind bytes of its own: Tornado does not look at a socket again before
    the request after the current one is due, and its bytes, if only a stray line end, hide the end of file.
    """

    def __init__(self, connection: socket.socket, limits: Limits, on_close: Callable[[], None]) -> None:
        super().__init__(connection)
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._on_close: Callable[[], None] | None = on_close
        self._header_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._between_requests = False
        self._progress = 0.0
        self._fresh = True

    def expect_request(self) -> None:
        """Headers are due: at once on a new connection, else within so long of their first byte."""
        _cancel(self._watch_timer)
        if self._fresh or self._read_buffer_size:
            self._fresh = False
            self._arm_header_timer()
        else:
            self._between_requests = True

    def headers_complete(self) -> None:
        """A request has begun: from here on its own timers hold."""
        self._between_requests = False
        _cancel(self._header_timer)
        self._watch()

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """As IOStream does, and note that headers have begun."""
        count = super().read_from_fd(buf)
        if self._between_requests and count:
            self._between_requests = False
            self._arm_header_timer()
        return count

    def write_to_fd(self, data: memoryview) -> int:
        """As IOStream does, and note that the peer still reads."""
        if self._stall_timer is None:
            self._progress = self._loop.time()
            self._stall_timer = self._loop.call_later(self._limits.stall_seconds, self._check_stall)
        count = super().write_to_fd(data)
        self._progress = self._loop.time()
        return count

    def close(self, exc_info: Any = False) -> None:
        """As IOStream does, timers and the connection's count included."""
        _cancel(self._header_timer)
        _cancel(self._stall_timer)
        _cancel(self._watch_timer)
        super().close(exc_info)
        if self._on_close is not None:
            callback, self._on_close = self._on_close, None
            callback()

    def _arm_header_timer(self) -> None:
        self._header_timer = self._loop.call_later(self._limits.header_seconds, self.close)

    def _watch(self) -> None:
        self._watch_timer = self._loop.call_later(self._limits.watch_seconds, self._check_peer)

    def _check_peer(self) -> None:
        if self._read_buffer_size and _is_gone(self.socket):
            self.close()
        else:
            self._watch()

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self.writing():
            return
        left = self._progress + self._limits.stall_seconds - self._loop.time()
        if left <= 0:
            self.close()
        else:
            self._stall_timer = self._loop.call_later(left, self._check_stall)


def _is_gone(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, PEER_GONE)
    return bool(poll.poll(0))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Acceptor:
    """Hands new connections to the server, and turns them away with a 503 while ``most`` are open.

    A connection that is turned away costs a descriptor for half a second, so that its peer reads the answer
    instead of a reset, and no more than that; beyond MOST_FAREWELLS at a time it is closed at once.
    """

    def __init__(self, server: HTTPServer, limits: Limits, most: int) -> None:
        self._server = server
        self._limits = limits
        self._most = most
        self._open = 0
        self._farewells = 0
        self._full = False

    def accept(self, connection: socket.socket, address: Any) -> None:
        """Take one connection, as ``add_accept_handler`` passes it."""
        if self._open >= self._most:
            self._turn_away(connection)
            return
        self._full = False
        self._open += 1
        self._server.handle_stream(PatientStream(connection, self._limits, self._closed), address)

    def _closed(self) -> None:
        self._open -= 1

    def _turn_away(self, connection: socket.socket) -> None:
        if not self._full:
            self._full = True
            log.warning("http.connections_full", most=self._most)
        if self._farewells >= MOST_FAREWELLS:
            connection.close()
            return
        self._farewells += 1
        with contextlib.suppress(OSError):  # the peer may be gone already
            connection.setblocking(False)
            connection.send(_busy_answer())  # a fresh socket takes it whole
            connection.shutdown(socket.SHUT_WR)
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._end_farewell, connection)

    def _end_farewell(self, connection: socket.socket) -> None:
        self._farewells -= 1
        connection.close()


def _busy_answer() -> bytes:
    error = ErrorBody(message="too many connections", type="server_error", code="engine_overloaded")
    body = json.dumps(error.as_wire())
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
        f"X-Request-Id: {uuid.uuid4()}",
        "Retry-After: 5",
        "Connection: close",
    )
    return "\r\n".join((*head, "", body)).encode()
