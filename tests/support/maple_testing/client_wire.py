"""What clients send: a wire that remembers it, and what is left of it without its content."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import attrs

from maple_testing.guard import HANG_GUARD

_WORDS = frozenset(
    {"type", "role", "tool_choice", "effort", "summary", "verbosity", "include", "truncation", "service_tier"}
    | {"status", "reasoning_effort", "syntax"}
)
_SCHEMAS = frozenset({"parameters", "schema"})


@attrs.frozen
class Sent:
    """One request of a client."""

    method: str
    path: str
    body: Any


class Recorder:
    """Listens on a port of its own, passes every byte on, and keeps those of the client."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[bytearray] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def requests(self) -> list[Sent]:
        """What was sent so far, connection by connection."""
        return [sent for data in self._connections for sent in _requests(bytes(data))]

    def close(self) -> None:
        """Take no further connection, and wait for the end of all: client or server must be gone."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        for thread in self._threads:
            thread.join(HANG_GUARD)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._carry, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _carry(self, client: socket.socket) -> None:
        kept = bytearray()
        self._connections.append(kept)
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            back = threading.Thread(target=_pump, args=(server, client, bytearray()))
            back.start()
            _pump(client, server, kept)
            back.join(HANG_GUARD)


def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            kept += chunk
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _requests(data: bytes) -> Iterator[Sent]:
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body, data = _unchunked(rest)
        else:
            length = int(headers.get("content-length", 0))
            body, data = rest[:length], rest[length:]
        method, path, _ = first.split(" ")
        yield Sent(method, path, json.loads(body) if body else None)


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            return body, data


def skeleton(body: Any, name: str = "") -> Any:
    """Texts become "text" but for kinds, schemas an empty one, and of list items that look the same one stays."""
    if isinstance(body, dict):
        if name in _SCHEMAS:
            return {"type": "object"}
        return {key: skeleton(value, key) for key, value in body.items()}
    if isinstance(body, list):
        items = [skeleton(item, name) for item in body]
        return [item for index, item in enumerate(items) if item not in items[:index]]
    if isinstance(body, str):
        return body if name in _WORDS else "{}" if name == "arguments" else "text"
    return body
