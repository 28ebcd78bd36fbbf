"""A request's body: collected as it was sent, inflated later, and both within the cap.

Nothing is inflated while a body arrives: that is work, and it is done by whoever reads the body, on a thread of
the budget's (see ``budget``), for clients that may ask for it. By hand, since Tornado would inflate at once.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

import attrs
from maple_protocols.json import parse_body

from maple.engine.errors import PromptTooLong
from maple.http.refused import BodyCorrupt, PayloadTooLarge, UnsupportedMediaType

MOST_GZIP_MEMBERS = 64
"""A member may hold nothing: a body of a million of them is an attack on the processor, not a mistake."""
VALUES_A_TOKEN = 4
FREE_VALUES = 10_000
"""A body may hold so many JSON values, and VALUES_A_TOKEN for each token of a prompt beside them."""

_GZIP = zlib.MAX_WBITS | 16
_RAW_DEFLATE = -zlib.MAX_WBITS
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def _gunzipped(data: bytes, room: int) -> bytes:
    """One gzip member or a few, back to back; at most ``room`` + 1 bytes of them."""
    found = bytearray()
    for _ in range(MOST_GZIP_MEMBERS):
        stream = zlib.decompressobj(_GZIP)
        found += _inflated(stream, data, room + 1 - len(found))
        data = stream.unused_data
        if len(found) > room or (stream.eof and not data):
            return bytes(found)
        if not stream.eof:
            break
    raise BodyCorrupt


def _undeflated(data: bytes, room: int) -> bytes:
    """The zlib format that the name stands for, or the bare stream that some clients send under it."""
    bare = data[0] & 0x0F != zlib.DEFLATED
    stream = zlib.decompressobj(_RAW_DEFLATE if bare else zlib.MAX_WBITS)
    found = _inflated(stream, data, room + 1)
    if len(found) <= room and (stream.unused_data or not stream.eof):
        raise BodyCorrupt
    return found


def _inflated(stream: zlib._Decompress, data: bytes, most: int) -> bytes:
    try:
        return stream.decompress(data, most)
    except zlib.error:
        raise BodyCorrupt from None


INFLATERS: dict[str, Callable[[bytes, int], bytes] | None] = {
    "": None,
    "identity": None,
    "gzip": _gunzipped,
    "deflate": _undeflated,
}


@attrs.frozen
class SentBody:
    """A whole body as it was sent. ``inflate`` is None where it was not compressed."""

    data: bytes
    limit: int
    inflate: Callable[[bytes, int], bytes] | None = None

    def plain(self) -> bytes:
        """What was meant; takes as long as inflating does. Raises BodyCorrupt or PayloadTooLarge."""
        if self.inflate is None or not self.data:
            return self.data
        found = self.inflate(self.data, self.limit)
        if len(found) > self.limit:
            raise PayloadTooLarge(self.limit)
        return found


class BodyReader:
    """Collects one body. ``limit`` bytes at most, both as sent and as inflated."""

    def __init__(self, encoding: str, limit: int) -> None:
        """Raises UnsupportedMediaType for an encoding that is not read."""
        word = encoding.strip().lower()
        if word not in INFLATERS:
            raise UnsupportedMediaType("the Content-Encoding must be identity, gzip or deflate")
        self._limit = limit
        self._inflate = INFLATERS[word]
        self._data = bytearray()

    @property
    def held(self) -> int:
        """How many bytes are in memory."""
        return len(self._data)

    def feed(self, chunk: bytes) -> None:
        """Take what has arrived. Raises PayloadTooLarge."""
        self._data += chunk
        if len(self._data) > self._limit:
            raise PayloadTooLarge(self._limit)

    def take(self) -> SentBody:
        """The whole body, which this object then lets go of."""
        data, self._data = bytes(self._data), bytearray()
        return SentBody(data, self._limit, self._inflate)


def prompt_object(data: bytes, most: int) -> dict[str, object]:
    """The object of a body that becomes a prompt of at most ``most`` tokens.

    Raises PromptTooLong where more messages or tools are listed than that, or more values of any kind than could
    ever belong to such a prompt: before they cost anything. Raises InvalidJson.
    """
    room = VALUES_A_TOKEN * most + FREE_VALUES
    if _marks(data) > room and (values := _marks(_STRING.sub(b"", data))) > room:
        raise PromptTooLong(limit=most, got=values // VALUES_A_TOKEN)
    found = parse_body(data)
    longest = max((len(value) for value in found.values() if isinstance(value, list)), default=0)
    if longest > most:
        raise PromptTooLong(limit=most, got=longest)
    return found


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
