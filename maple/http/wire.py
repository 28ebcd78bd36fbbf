"""Bytes on the wire: JSON and server-sent events.

By hand: no library for events keeps line ends that only some clients see out of their data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import attrs
from maple_protocols.adapter import Frame
from maple_protocols.dialect import Framing

IGNORED_BYTES = 512
PING = b": ping\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""JSON lets these stand; some clients split their input at them as at a newline."""


def json_text(value: object) -> str:
    """Compact JSON that holds no character at which anyone ends a line."""
    text = _encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def encode_json(value: object) -> bytes:
    """``json_text`` as UTF-8; half a surrogate pair, which has no UTF-8, is spelled as JSON's own escape."""
    return json_text(value).encode(errors="backslashreplace")


def ignored_header(paths: Iterable[str]) -> str:
    """Distinct paths, comma-separated, cut with an ellipsis behind ``IGNORED_BYTES`` bytes; ASCII paths only.

    The ellipsis goes out as UTF-8, whose bytes Tornado takes for Latin-1.
    """
    listed = ",".join(dict.fromkeys(paths))
    if len(listed) <= IGNORED_BYTES:
        return listed
    return listed[:IGNORED_BYTES] + "…".encode().decode("latin-1")


def json_line(frame: Frame) -> str:
    """One line of JSON, or of text that goes out as it is."""
    return (frame.data if isinstance(frame.data, str) else json_text(frame.data)) + "\n"


def frame_text(frame: Frame) -> str:
    """One server-sent event."""
    data = frame.data if isinstance(frame.data, str) else json_text(frame.data)
    return f"data: {data}\n\n" if frame.event is None else f"event: {frame.event}\ndata: {data}\n\n"


@attrs.frozen
class Wire:
    """How frames go out: their media type, the bytes of one, and what breaks a silence that means nothing."""

    media_type: str
    text: Callable[[Frame], str]
    ping: bytes


FRAMINGS: Mapping[Framing, Wire] = {
    "sse": Wire("text/event-stream; charset=utf-8", frame_text, PING),
    "ndjson": Wire("application/x-ndjson", json_line, b""),
}
