"""Reading a request's body: capped as sent and as inflated, with gzip and deflate undone as it arrives."""

from __future__ import annotations

import zlib
from typing import Protocol

from maple.http.errors import BodyCorrupt, PayloadTooLarge, UnsupportedMediaType

MOST_GZIP_MEMBERS = 64
"""A member may hold nothing: a body of a million of them is an attack on the processor, not a mistake."""

_GZIP = zlib.MAX_WBITS | 16
_RAW_DEFLATE = -zlib.MAX_WBITS


class Inflater(Protocol):
    """Undoes one Content-Encoding."""

    def feed(self, data: bytes, room: int) -> bytes:
        """What ``data`` inflates to, cut at ``room`` + 1 bytes. Raises BodyCorrupt."""
        ...

    def close(self) -> None:
        """The body is complete. Raises BodyCorrupt where the compressed stream is not."""
        ...


class Identity:
    """No encoding at all."""

    def feed(self, data: bytes, room: int) -> bytes:
        """The data itself."""
        return data

    def close(self) -> None:
        """Nothing can be missing."""


class Gzip:
    """One gzip member or a few, back to back."""

    def __init__(self) -> None:
        self._members = 1
        self._stream = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes, room: int) -> bytes:
        """As Inflater's."""
        found = bytearray()
        while data and len(found) <= room:
            if self._stream.eof:
                self._next_member()
            found += _inflated(self._stream, data, room + 1 - len(found))
            data = self._stream.unused_data
        return bytes(found)

    def close(self) -> None:
        """As Inflater's."""
        if not self._stream.eof:
            raise BodyCorrupt

    def _next_member(self) -> None:
        self._members += 1
        if self._members > MOST_GZIP_MEMBERS:
            raise BodyCorrupt
        self._stream = zlib.decompressobj(_GZIP)


class Deflate:
    """The zlib format that the name stands for, or the bare stream that some clients send under it."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()
        self._begun = False

    def feed(self, data: bytes, room: int) -> bytes:
        """As Inflater's."""
        if not self._begun:
            self._begun = True
            if data[0] & 0x0F != zlib.DEFLATED:
                self._stream = zlib.decompressobj(_RAW_DEFLATE)
        found = _inflated(self._stream, data, room + 1)
        if self._stream.unused_data:
            raise BodyCorrupt
        return found

    def close(self) -> None:
        """As Inflater's."""
        if not self._stream.eof:
            raise BodyCorrupt


INFLATERS: dict[str, type[Identity | Gzip | Deflate]] = {
    "": Identity,
    "identity": Identity,
    "gzip": Gzip,
    "deflate": Deflate,
}


class BodyReader:
    """Collects one body. ``limit`` bytes at most, both as sent and as inflated."""

    def __init__(self, encoding: str, limit: int) -> None:
        """Raises UnsupportedMediaType for an encoding that is not read."""
        word = encoding.strip().lower()
        if word not in INFLATERS:
            raise UnsupportedMediaType("the Content-Encoding must be identity, gzip or deflate")
        self.received = 0
        self._limit = limit
        self._inflater: Inflater = INFLATERS[word]()
        self._data = bytearray()

    @property
    def held(self) -> int:
        """How many bytes are in memory."""
        return len(self._data)

    def feed(self, chunk: bytes) -> None:
        """Take what has arrived. Raises PayloadTooLarge or BodyCorrupt."""
        self.received += len(chunk)
        self._data += self._inflater.feed(chunk, self._limit - len(self._data))
        if max(self.received, len(self._data)) > self._limit:
            raise PayloadTooLarge(self._limit)

    def take(self) -> bytes:
        """The whole body, which this object then lets go of. Raises BodyCorrupt."""
        if self.received:
            self._inflater.close()
        data, self._data = bytes(self._data), bytearray()
        return data


def _inflated(stream: zlib._Decompress, data: bytes, most: int) -> bytes:
    try:
        return stream.decompress(data, most)
    except zlib.error:
        raise BodyCorrupt from None
