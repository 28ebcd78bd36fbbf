"""The listening server: Tornado's, with our own caps and timers around it."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from typing import cast

import attrs
import structlog
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPMessageDelegate
from tornado.netutil import bind_sockets

from maple.errors import MapleError
from maple.http.application import MapleApplication
from maple.http.connections import MOST_SURPLUS, Acceptor, PatientStream
from maple.http.routes import UnknownRouteHandler, routes
from maple.http.services import Services
from maple.settings import Settings

log = structlog.get_logger(__name__)

SPARE_DESCRIPTORS = MOST_SURPLUS + 256
"""Descriptors kept beside the connections: for those beyond their cap, and for weights, sessions, logs and the like."""
BACKLOG = 1024
"""Connections that may wait to be accepted: a burst should not have to knock twice."""
NO_LIMIT = 1 << 62
"""Tornado's own cap on bodies would answer with a bare 400: ours is applied while the body is read."""


@attrs.define(eq=False, str=False)
class AddressUnusable(MapleError):
    """The server cannot listen there. ``reason`` is the operating system's."""

    host: str
    port: int
    reason: str

    def __str__(self) -> str:
        way_out = "; another server may be there: stop it, or choose another with --port" if self.port else ""
        return f"cannot listen on {self.host or '*'} port {self.port}: {self.reason}{way_out}"


class RunningServer:
    """A server that listens. Use it on the event loop that started it."""

    def __init__(self, application: MapleApplication, server: HTTPServer, most: int) -> None:
        self.application = application
        self.server = server
        self._acceptor = Acceptor(server, application.services.limits, most)
        self._purging: asyncio.Task[None] | None = None
        self.port = 0
        """The port, also where the settings asked for any free one."""

    @property
    def connections(self) -> frozenset[PatientStream]:
        """Those that are open."""
        return self._acceptor.open

    def start(self, sockets: list[socket.socket]) -> None:
        """Begin to accept connections on sockets that already listen."""
        self.port = sockets[0].getsockname()[1]
        store = self.application.services.store
        if store is not None:
            self._purging = asyncio.get_running_loop().create_task(store.keep_purging())
        self._acceptor.listen(sockets)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - it reports instead of raising
        """Refuse new generations, let the others end, then stop listening.

        Returns False if some were cut off after ``timeout`` seconds. Until the end the listener stays open,
        so that probes and latecomers get an answer.
        """
        services = self.application.services
        complete = await services.turns.engine.drain(timeout)
        await self.application.settled(services.limits.settle_seconds)
        self._acceptor.close()
        return complete

    async def close(self) -> None:
        """Stop listening and close every connection, whatever is under way."""
        self._acceptor.close()
        if self._purging is not None:
            self._purging.cancel()
        await self.server.close_all_connections()
        self.application.budget.close()


class _Server(HTTPServer):
    """Tornado's server, which also tells a connection when it is between two requests."""

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        stream = cast("PatientStream", cast("HTTP1Connection", request_conn).stream)
        stream.expect_request()
        return super().start_request(server_conn, request_conn)


def listen(services: Services, settings: Settings) -> RunningServer:
    """Listen on the settings' host and port. Call on the running loop. Raises AddressUnusable."""
    limits = services.limits
    application = MapleApplication(services, routes(services), UnknownRouteHandler)
    server = _Server(
        application,
        idle_connection_timeout=limits.idle_seconds,
        max_header_size=limits.header_bytes,
        max_body_size=NO_LIMIT,
    )
    running = RunningServer(application, server, _affordable(settings.max_connections))
    try:
        running.start(bind_sockets(settings.port, settings.host, backlog=BACKLOG))
    except OSError as error:
        reason = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
        raise AddressUnusable(settings.host, settings.port, reason) from None
    return running


def _affordable(wanted: int) -> int:
    """How many connections the descriptors allow: the process's limit is raised towards ``wanted`` first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    affordable = max(soft - SPARE_DESCRIPTORS, soft // 2)
    log.warning("http.few_descriptors", connections=affordable, wanted=wanted, descriptors=soft)
    return affordable
