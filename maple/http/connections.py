"""Connections: how many there may be, which of them give way, and how long a peer may keep one waiting.

Tornado has one timer for idle connections and headers together, none for a peer that stops reading, no cap, and a
traceback for each connection that no descriptor is left for. All that lives here, at the socket, so that no handler
needs to know.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import OrderedDict
from typing import Any

import structlog
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, StreamClosedError

from maple.http.services import Limits

log = structlog.get_logger(__name__)

MOST_SURPLUS = 128
"""Connections beyond the cap that may ask one thing, lest a full server look dead to a probe."""
ACCEPTED_AT_ONCE = 4
"""Connections that are accepted before other work has its turn: a stream's next piece, above all."""
COMPLAINT_SECONDS = 60.0
PEER_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class PatientStream(IOStream):
    """A connection that closes itself when its peer dawdles: slow headers, or an answer left unread.

    It also notices a peer that left behind bytes of its own: Tornado does not look at a socket again before
    the request after the current one is due, and its bytes, if only a stray line end, hide the end of file.
    """

    def __init__(
        self, connection: socket.socket, limits: Limits, acceptor: Acceptor, *, surplus: bool = False
    ) -> None:
        super().__init__(connection)
        self.surplus = surplus
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._acceptor = acceptor
        self._header_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._between_requests = False
        self._progress = 0.0
        self._fresh = True

    @property
    def held_bytes(self) -> int:
        """What of it is in memory: read and not yet taken, or written and not yet sent."""
        return self._read_buffer_size + len(self._write_buffer)

    def expect_request(self) -> None:
        """Headers are due: at once on a new connection, else within so long of their first byte."""
        _cancel(self._watch_timer)
        self._acceptor.idle(self)
        if self._fresh or self._read_buffer_size:
            self._fresh = False
            self._arm_header_timer()
        else:
            self._between_requests = True

    def headers_complete(self) -> None:
        """A request has begun: from here on its own timers hold."""
        self._between_requests = False
        self._acceptor.busy(self)
        _cancel(self._header_timer)
        self._watch()

    async def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> bytes:
        """As IOStream does, for headers, and hang up where they have too many lines: each costs time to parse."""
        found = await super().read_until_regex(regex, max_bytes)
        if found.count(b"\n") > self._limits.header_lines:
            self.close()
            raise StreamClosedError
        return found

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
        self._acceptor.closed(self)

    def _arm_header_timer(self) -> None:
        limits = self._limits
        seconds = limits.surplus_seconds if self.surplus else limits.header_seconds
        self._header_timer = self._loop.call_later(seconds, self.close)

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
    """Accepts connections, and chooses which may stay once there are ``most``.

    For a new one the connection that has been idle for longest is closed. Where none is idle, a few more are let
    in all the same, marked ``surplus``: they have a moment to ask, one answer to get, and of all but a probe that
    answer is a 503. So a probe is answered however many there are.
    """

    def __init__(self, server: HTTPServer, limits: Limits, most: int) -> None:
        self._server = server
        self._limits = limits
        self._most = most
        self._open: set[PatientStream] = set()
        self._idle: OrderedDict[PatientStream, None] = OrderedDict()
        self._listeners: list[socket.socket] = []
        self._complained: dict[str, float] = {}

    @property
    def open(self) -> frozenset[PatientStream]:
        """The connections that are open."""
        return frozenset(self._open)

    def listen(self, listeners: list[socket.socket]) -> None:
        """Accept from sockets that listen, on the running loop."""
        self._listeners = listeners
        self._resume()

    def close(self) -> None:
        """Accept no more, and stop listening. Idempotent."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners = []

    def idle(self, stream: PatientStream) -> None:
        """The connection waits for its client's next request; Tornado says so of closed ones, too."""
        if stream in self._open:
            self._idle[stream] = None

    def busy(self, stream: PatientStream) -> None:
        """A request has begun on it."""
        self._idle.pop(stream, None)

    def closed(self, stream: PatientStream) -> None:
        """It is no more."""
        self._idle.pop(stream, None)
        self._open.discard(stream)

    def _resume(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it was reset before its turn came
            except OSError as error:
                self._pause(error)
                return
            self._admit(connection, address)

    def _pause(self, error: OSError) -> None:
        """No descriptor or memory is left: whoever knocks waits in the backlog until one may be."""
        self._complain("http.accepting_paused", reason=os.strerror(error.errno or 0))
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
        loop.call_later(self._limits.pause_seconds, self._resume)
        self._close_longest_idle()

    def _admit(self, connection: socket.socket, address: Any) -> None:
        if len(self._open) >= self._most:
            self._complain("http.connections_full", most=self._most)
            self._close_longest_idle()
        surplus = len(self._open) >= self._most
        if len(self._open) >= self._most + MOST_SURPLUS:
            connection.close()
            return
        stream = PatientStream(connection, self._limits, self, surplus=surplus)
        self._open.add(stream)
        self._server.handle_stream(stream, address)

    def _close_longest_idle(self) -> None:
        if self._idle:
            next(iter(self._idle)).close()

    def _complain(self, event: str, **facts: object) -> None:
        """Log it, once a minute: strangers decide how often it happens."""
        now = asyncio.get_running_loop().time()
        if now >= self._complained.get(event, 0.0):
            self._complained[event] = now + COMPLAINT_SECONDS
            log.warning(event, **facts)
