"""One streamed answer, read with the standard library alone."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs

from maple.commands.parsing import CommandFailed, UsageError

__all__ = ["Delta", "Message", "Remote"]

Message = Mapping[str, str]

_SILENCE = 60.0
"""Seconds without a byte after which a server is given up; it sends a comment every 10 s."""

_LONGEST_LINE = 1 << 22


@attrs.frozen(kw_only=True)
class Delta:
    """What one event adds. ``tokens`` is set by the last one, which counts them."""

    reasoning: str = ""
    content: str = ""
    call: str = ""
    tokens: int | None = None


class Remote:
    """A server's chat route. Every failure is a CommandFailed of one line; nothing is sent until asked."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url must be an http or https address, not {url[:64]!r}")
        try:
            self._port = parts.port
        except ValueError as error:
            raise UsageError(f"--url has no usable port: {url[:64]!r}") from error
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", "User-Agent": "maple-chat"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def ask(self, messages: Sequence[Message]) -> Generator[Delta, None, None]:
        """Stream the answer. Closing the iterator closes the connection, which ends the generation."""
        connection = self._connection()
        try:
            response = self._send(connection, messages)
            yield from _deltas(response)
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(
                f"no answer from {self._host}: {error}; is it running? (maple chat --demo starts one)"
            ) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=_SILENCE, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=_SILENCE)

    def _send(
        self, connection: http.client.HTTPConnection, messages: Sequence[Message]
    ) -> http.client.HTTPResponse:
        body = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", f"{self._path}/v1/chat/completions", json.dumps(body), self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise CommandFailed(_refusal(response.status, response.read(_LONGEST_LINE)))
        return response


def _refusal(status: int, body: bytes) -> str:
    try:
        text = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = "no error of ours: is this a Maple server?"
    advice = " (set MAPLE_API_KEY)" if status == 401 else ""
    return f"the server refused with {status}: {text}{advice}"


def _deltas(response: http.client.HTTPResponse) -> Iterator[Delta]:
    while line := response.readline(_LONGEST_LINE):
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
    calls = [call["function"] for call in delta.get("tool_calls") or ()]
    return Delta(
        reasoning=delta.get("reasoning_content") or "",
        content=delta.get("content") or "",
        call="\n".join(f"{call['name']}({call['arguments']})" for call in calls),
    )
