"""One streamed answer, read with the standard library alone."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs

from maple.errors import CommandFailed, UsageError

Message = Mapping[str, Any]
"""A message as the chat route takes it."""

_SILENCE = 60.0
"""Seconds without a byte after which a server is given up; it sends a comment every 10 s."""

_LONGEST_LINE = 1 << 22


@attrs.define(eq=False, str=False)
class Unreachable(CommandFailed):
    """There is no answer to be had from ``host``. ``reason`` is the system's."""

    host: str
    reason: str

    def __str__(self) -> str:
        return f"no answer from {self.host}: {self.reason}; is it running? (maple chat --demo starts one)"


@attrs.define(eq=False, str=False)
class Refused(CommandFailed):
    """The server answered with an error. ``reason`` is its message."""

    status: int
    reason: str

    def __str__(self) -> str:
        advice = " (set MAPLE_API_KEY)" if self.status == 401 else ""
        return f"the server refused with {self.status}: {self.reason}{advice}"


@attrs.frozen
class Call:
    """A tool that the model wants to be called; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"

    def wire(self) -> Message:
        """As ``tool_calls`` of an assistant's message holds it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@attrs.frozen(kw_only=True)
class Delta:
    """What one event adds; nothing, where it only shows that the server is there.

    ``tokens`` is set by the last one, which counts them.
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    tokens: int | None = None


class Remote:
    """A server. Every failure is a CommandFailed of one line; nothing is sent until asked.

    ``options`` are further fields of every request, such as ``tools``.
    """

    def __init__(self, url: str, key: str | None, options: Mapping[str, object] | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url must be an http or https address, not {url[:64]!r}")
        try:
            self._port = parts.port
        except ValueError as error:
            raise UsageError(f"--url has no usable port: {url[:64]!r}") from error
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._options = dict(options or {})
        self._headers = {"Content-Type": "application/json", "User-Agent": "maple-chat"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def ask(
        self, messages: Sequence[Message], options: Mapping[str, object] | None = None
    ) -> Generator[Delta, None, None]:
        """Stream the answer; ``options`` are this request's alone.

        Closing the iterator closes the connection, which ends the generation.
        """
        connection = self._connection()
        try:
            response = self._send(connection, messages, options or {})
            yield from _deltas(response)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a small answer, whatever the status is."""
        connection = self._connection()
        try:
            connection.request("GET", f"{self._path}{path}", headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read(_LONGEST_LINE)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def read(self, path: str, allowed: Collection[int] = (200,)) -> Any:
        """The JSON of a small answer. Raises Refused for another status, CommandFailed where it is none of ours."""
        status, body = self.get(path)
        if status not in allowed:
            raise Refused(status, _reason(body))
        try:
            return json.loads(body)
        except ValueError as error:
            raise CommandFailed("the server's answer is not JSON: is this a Maple server?") from error

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(self._host, str(error) or type(error).__name__)

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=_SILENCE, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=_SILENCE)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        messages: Sequence[Message],
        options: Mapping[str, object],
    ) -> http.client.HTTPResponse:
        fixed = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({**self._options, **options, **fixed})
        connection.request("POST", f"{self._path}/v1/chat/completions", body, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Refused(response.status, _reason(response.read(_LONGEST_LINE)))
        return response


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no error of ours: is this a Maple server?"


def _deltas(response: http.client.HTTPResponse) -> Iterator[Delta]:
    while line := response.readline(_LONGEST_LINE):
        if line.startswith(b":"):
            yield Delta()
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return
        try:
            event = json.loads(line[6:])
        except ValueError as error:
            raise CommandFailed("the server sent an event that is not JSON") from error
        yield _delta(event)
    raise CommandFailed("the stream broke off before its end")


def _delta(event: Mapping[str, Any]) -> Delta:
    if "error" in event:
        raise CommandFailed(str(event["error"]["message"]))
    if usage := event.get("usage"):
        return Delta(tokens=usage["completion_tokens"])
    delta = event["choices"][0]["delta"] if event["choices"] else {}
    return Delta(
        reasoning=delta.get("reasoning_content") or "",
        content=delta.get("content") or "",
        calls=tuple(_call(call) for call in delta.get("tool_calls") or ()),
    )


def _call(call: Mapping[str, Any]) -> Call:
    return Call(call["id"], call["function"]["name"], call["function"]["arguments"])
