"""HTTP as a client sees it, and servers' processes as they are started."""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Answer:
    """One whole HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @classmethod
    def of(cls, response: http.client.HTTPResponse) -> Answer:
        """What is left to read of a response."""
        return cls(status=response.status, headers=response.headers, body=response.read())

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """A chat answer's content."""
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def error(self) -> Any:
        """The error object, whose shape is checked on the way."""
        assert self.headers["Content-Type"] == "application/json; charset=utf-8"
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The ``data:`` events of a stream; the last, ``[DONE]``, stays a string."""
        lines = self.body.decode().split("\n")
        datas = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]


def chat_body(text: str = "hi", **fields: object) -> dict[str, object]:
    """A chat request of one user message."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def free_port() -> int:
    """A port that nobody listened on a moment ago; for programs that cannot choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def environment_without(*prefixes: str) -> dict[str, str]:
    """Our own variables, but for those that begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
