"""BodyReader: every encoding, cut anywhere, with its caps."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import TYPE_CHECKING

import pytest

from maple.http.body import INFLATERS, MOST_GZIP_MEMBERS, BodyReader
from maple.http.refused import BodyCorrupt, PayloadTooLarge, UnsupportedMediaType

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer

TEXT = b'{"messages": [{"role": "user", "content": "' + bytes(range(97, 123)) * 40 + b'"}]}'


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED = {
    "": TEXT,
    "identity": TEXT,
    "gzip": gzip.compress(TEXT),
    "GZip": gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]),
    "deflate": zlib.compress(TEXT),
    " deflate ": raw_deflate(TEXT),
}


def read(encoding: str, data: bytes, *, limit: int = 1 << 20, step: int = 1 << 20) -> bytes:
    reader = BodyReader(encoding, limit)
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    return reader.take().plain()


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("step", [1, 2, 3, 17, 1000, 1 << 20])
def test_every_encoding_is_undone_however_it_is_cut(encoding: str, step: int) -> None:
    """Two gzip members and a bare deflate stream included."""
    assert read(encoding, PACKED[encoding], step=step) == TEXT


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "x-gzip", "gzip, gzip", "gzip,deflate", "*"])
def test_any_other_encoding_is_refused(encoding: str) -> None:
    """A list of encodings is another encoding."""
    with pytest.raises(UnsupportedMediaType):
        BodyReader(encoding, 100)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", " deflate "])
def test_a_truncated_stream_is_corrupt_wherever_it_ends(encoding: str) -> None:
    """At every single byte."""
    packed = PACKED[encoding]
    for end in range(1, len(packed)):
        with pytest.raises(BodyCorrupt):
            read(encoding, packed[:end])


@pytest.mark.parametrize("encoding", ["gzip", "deflate", " deflate "])
def test_bytes_after_the_stream_are_corrupt(encoding: str) -> None:
    """In the same chunk or in the next."""
    for step in (1, 1 << 20):
        with pytest.raises(BodyCorrupt):
            read(encoding, PACKED[encoding] + b"surplus", step=step)


def test_changed_bytes_are_corrupt_or_read_as_something_else_but_never_crash() -> None:
    """Ten thousand seeded flips: a known error or bytes, nothing else."""
    dice = random.Random(7)  # noqa: S311 -- seeded, no secret
    for _ in range(10_000):
        encoding = dice.choice(["gzip", "deflate"])
        packed = bytearray(PACKED[encoding])
        packed[dice.randrange(len(packed))] ^= 1 << dice.randrange(8)
        try:
            read(encoding, bytes(packed), limit=10_000)
        except (BodyCorrupt, PayloadTooLarge):
            continue


@pytest.mark.parametrize("encoding", PACKED)
def test_the_cap_holds_for_what_comes_out(encoding: str) -> None:
    """Exactly the limit passes; one byte less of it does not."""
    assert read(encoding, PACKED[encoding], limit=len(TEXT)) == TEXT
    with pytest.raises(PayloadTooLarge):
        read(encoding, PACKED[encoding], limit=len(TEXT) - 1)


def test_the_cap_holds_for_what_comes_in() -> None:
    """A stream that inflates to nothing still counts as sent."""
    nothing, last = b"\x00\x00\x00\xff\xff", b"\x01\x00\x00\xff\xff"
    packed = b"\x78\x01" + nothing * 100 + last + zlib.adler32(b"").to_bytes(4, "big")
    assert read("deflate", packed) == b""
    with pytest.raises(PayloadTooLarge):
        read("deflate", packed, limit=50)


def test_what_is_held_is_what_was_sent() -> None:
    """A bomb stays packed while it arrives, and is then inflated no further than the cap."""
    packed = gzip.compress(bytes(10**7))
    reader = BodyReader("gzip", 20_000)
    reader.feed(packed)
    assert reader.held == len(packed)
    inflate = INFLATERS["gzip"]
    assert inflate is not None
    assert len(inflate(packed, 1000)) == 1001
    with pytest.raises(PayloadTooLarge):
        reader.take().plain()


def test_gzip_members_are_counted() -> None:
    """So many and no more."""
    assert read("gzip", gzip.compress(b"a") * MOST_GZIP_MEMBERS) == b"a" * MOST_GZIP_MEMBERS
    with pytest.raises(BodyCorrupt):
        read("gzip", gzip.compress(b"a") * (MOST_GZIP_MEMBERS + 1))


def test_an_empty_body_is_empty_in_every_encoding() -> None:
    """No stream at all is not a broken one: it is no JSON either, which is said elsewhere."""
    assert {BodyReader(encoding, 10).take().plain() for encoding in PACKED} == {b""}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_request_is_answered(server: LiveServer, encoding: str) -> None:
    """Over the wire."""
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    assert server.request("POST", "/v1/chat/completions", PACKED[encoding], headers).status == 200


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_a_large_body_is_parsed_off_the_loop_and_answered(server: LiveServer, size: int) -> None:
    """What is too long for the model is refused for that, not for its size."""
    answer = server.chat("x" * size)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
