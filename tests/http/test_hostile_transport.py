"""Peers that are broken or worse: each is answered or closed, and holds neither slot nor memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import itertools
import resource
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil
import pytest
from maple_testing.guard import HANG_GUARD, LINEAR_GUARD

from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT = "/v1/chat/completions"
IMPATIENT = Limits(
    header_seconds=0.15, idle_seconds=0.3, stall_seconds=0.3, linger_seconds=0.3, ping_seconds=0.05
)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, log_lines) -> Iterator[None]:
    """Whatever a test did: no traceback was logged for it."""
    yield
    lines = log_lines()
    assert not [line for line in lines if "exception" in line or line["level"] in ("error", "critical")]


def assert_unharmed(server: LiveServer) -> None:
    """No slot, no request and no body is held, and the next client is served."""
    assert server.chat().status == 200
    server.settle()
    stats = server.engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert server.call(lambda: server.running.application.budget.held) == 0


# Slow headers.


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
def test_headers_that_do_not_come_are_waited_for_so_long(serve: Serve, sent: bytes) -> None:
    """From the first connection on, silent or not."""
    server = serve(limits=IMPATIENT)
    started = time.monotonic()
    with server.send(sent) as raw:
        assert server.read_to_end(raw) == b""
        assert time.monotonic() - started > 0.1
    assert_unharmed(server)


def test_a_header_that_drips_gets_no_more_time(serve: Serve) -> None:
    """The clock runs from the first byte, whatever follows."""
    server = serve(limits=IMPATIENT)
    with server.send(b"GET /healthz HTTP/1.1\r\n") as raw:
        raw.settimeout(0.02)
        closed = False
        for _ in range(1000):  # 20 seconds and more, in a header of no forbidden size
            with contextlib.suppress(TimeoutError):
                raw.sendall(b"X: y\r\n")
                closed = raw.recv(1) == b""
            if closed:
                break
        assert closed
    assert_unharmed(server)


def test_an_idle_connection_is_kept_for_longer_than_headers_may_take(serve: Serve) -> None:
    """Between requests the idle time holds, then the connection is closed without a word."""
    server = serve(limits=IMPATIENT)
    request = server.request_bytes("/healthz", b"", method="GET", Content_Type="")
    started = time.monotonic()  # before the answer: a busy machine may let us read it late
    with server.send(request) as raw:
        assert server.read_answer(raw).status == 200
        assert raw.recv(1) == b""
        assert time.monotonic() - started > 0.25


def test_slow_headers_of_a_later_request_are_slow_headers(serve: Serve) -> None:
    """A kept connection does not lend its idle time to a header that drips."""
    server = serve(limits=Limits(header_seconds=0.15, idle_seconds=2 * HANG_GUARD))
    request = server.request_bytes("/healthz", b"", method="GET", Content_Type="")
    with server.send(request) as raw:
        assert server.read_answer(raw).status == 200
        raw.sendall(b"GET /hea")
        assert raw.recv(1) == b""


def test_a_long_answer_is_not_mistaken_for_an_idle_connection(serve: Serve) -> None:
    """Neither timer runs while a request is being answered."""
    server = serve(Recording(pieces=("</think>", "late"), delay_ms=400), limits=IMPATIENT)
    assert server.chat().json["choices"][0]["message"]["content"] == "late"


# Slow bodies, and bodies that lie.


def test_a_slow_body_is_answered_and_closed(serve: Serve) -> None:
    """408 in our shape while the client is still dripping; it gets to read it."""
    server = serve(limits=IMPATIENT, body_timeout=0.2)
    started = time.monotonic()
    with server.send(HEAD + b"Content-Length: 100000\r\n\r\n{") as raw:
        answer = server.read_answer(raw)
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.headers["Connection"] == "close"
        assert time.monotonic() - started > 0.15
        raw.sendall(b" " * 100)
        assert raw.recv(1) == b""
    assert_unharmed(server)


def test_a_body_that_ends_early_is_no_request(serve: Serve) -> None:
    """Content-Length says 100, the client sends 10 and leaves: nothing runs."""
    server = serve()
    with server.send(HEAD + b"Content-Length: 100\r\n\r\n{") as raw:
        raw.shutdown(socket.SHUT_WR)
        assert server.read_to_end(raw) == b""
    assert server.engine.stats().prompt_tokens == 0
    assert_unharmed(server)


def test_a_body_longer_than_it_says_is_another_request(server: LiveServer) -> None:
    """The answer belongs to the declared part; what follows is not HTTP and ends the connection."""
    request = server.request_bytes(CHAT, server.chat_body())
    with server.send(request + b"surplus\r\n\r\n") as raw:
        answer = server.read_to_end(raw)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert_unharmed(server)


@pytest.mark.parametrize("length", [16 * 2**20 + 1, 10**15, 10**17])
def test_a_huge_length_is_refused_before_a_byte_is_sent(server: LiveServer, length: int) -> None:
    """413 from the header alone."""
    with server.send(HEAD + b"Content-Length: %d\r\n\r\n" % length) as raw:
        answer = server.read_answer(raw)
    assert (answer.status, answer.error["code"]) == (413, "payload_too_large")
    assert_unharmed(server)


# Chunked bodies.


def chunks(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_read(server: LiveServer, size: int) -> None:
    """However it is cut."""
    body = server.request_bytes(CHAT, server.chat_body()).partition(b"\r\n\r\n")[2]
    with server.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(body, size)) as raw:
        assert server.read_answer(raw).status == 200
    assert_unharmed(server)


@pytest.mark.parametrize("broken", [b"zz\r\n", b"-1\r\n", b"5\r\nabc\r\n\r\n", b"5\r\nabcdefgh", b"x" * 100])
def test_broken_chunks_get_a_bare_400(server: LiveServer, broken: bytes) -> None:
    """These are bytes that cannot be parsed as HTTP at all."""
    with server.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + broken) as raw:
        raw.shutdown(socket.SHUT_WR)
        assert server.read_to_end(raw) in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"")
    assert_unharmed(server)


def test_an_endless_chunked_body_is_cut_off(serve: Serve) -> None:
    """413 as soon as the cap is passed; the rest is thrown away for a moment, then the door closes."""
    server = serve(limits=Limits(body_bytes=100_000, linger_bytes=500_000, linger_seconds=5))
    with server.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as raw:
        part = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(4):
            raw.sendall(part)
        answer = server.read_answer(raw)
        assert (answer.status, answer.error["code"]) == (413, "payload_too_large")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            raw.sendall(part * 1000)
    assert_unharmed(server)


# Bombs.


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(b" " * 2**20) for _ in range(size // 2**20)) + packer.flush()


def empty_members(count: int) -> bytes:
    return gzip.compress(b"") * count


@pytest.mark.parametrize(("make", "size"), [(bomb, 256 * 2**20), (empty_members, 200_000)])
def test_a_gzip_bomb_is_defused(server: LiveServer, make: Callable[[int], bytes], size: int) -> None:
    """It inflates no further than the cap, in memory and in time."""
    packed = make(size)
    process = psutil.Process()
    gc.collect()
    before, started = process.memory_info().rss, time.process_time()
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = server.request("POST", CHAT, packed, headers)
    assert (answer.status, answer.error["code"]) in ((413, "payload_too_large"), (400, "invalid_json"))
    assert time.process_time() - started < LINEAR_GUARD
    assert process.memory_info().rss < before + 64 * 2**20
    assert_unharmed(server)


# Headers.


def test_a_header_of_17_kb_is_refused(server: LiveServer) -> None:
    """The connection is closed; 15 kB are still read, and no client needs more. Reading lines costs time."""
    request = server.request_bytes("/healthz", b"", method="GET", X_Large="x" * 17_000)
    with server.send(request) as raw:
        assert server.read_to_end(raw) == b""
    assert server.get("/healthz", X_Large="x" * 15_000).status == 200
    assert_unharmed(server)


def test_a_header_of_150_lines_is_refused(server: LiveServer) -> None:
    """The connection is closed before they are parsed, on which a stranger's time would be ours; 90 are read."""
    for lines, expected in ((90, b"HTTP/1.1 200 OK"), (150, b"")):
        request = server.request_bytes("/healthz", b"", method="GET", Content_Type="", Connection="close")
        with server.send(request[:-2] + b"a: b\r\n" * lines + b"\r\n") as raw:
            assert server.read_to_end(raw)[:15] == expected
    assert_unharmed(server)


# Expect.


@pytest.mark.parametrize("spelling", ["100-continue", "100-Continue"])
def test_a_client_that_asks_first_is_told_to_go_on(server: LiveServer, spelling: str) -> None:
    """The body is read after an interim answer."""
    head, _, body = server.request_bytes(CHAT, server.chat_body(), Expect=spelling).partition(b"\r\n\r\n")
    with server.send(head + b"\r\n\r\n") as raw:
        assert server.read_until(raw, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        raw.sendall(body)
        assert server.read_answer(raw).status == 200
    assert_unharmed(server)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (CHAT, {"Content_Length": "99999999"}, 413),
        (CHAT, {"Content_Type": "text/plain"}, 415),
        (CHAT, {"Host": "evil.example"}, 403),
        ("/nowhere", {}, 404),
        ("/healthz", {}, 405),
    ],
)
def test_a_client_that_asks_first_is_told_no(
    server: LiveServer, path: str, headers: dict[str, str], status: int
) -> None:
    """A request that is refused for its headers gets no 100, just the refusal, and the connection ends."""
    head, _, _ = server.request_bytes(
        path, server.chat_body(), **{"Expect": "100-continue", **headers}
    ).partition(b"\r\n\r\n")
    with server.send(head + b"\r\n\r\n") as raw:
        answer = server.read_answer(raw)
        assert answer.status == status
        assert answer.headers["Connection"] == "close"
        assert server.read_to_end(raw) == b""
    assert_unharmed(server)


# Early refusals.


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (CHAT, {}, 413),
        (CHAT, {"Content_Type": "text/plain"}, 415),
        (CHAT, {"Authorization": "Bearer wrong"}, 401),
        ("/v1/v1/chat/completions", {}, 404),
        ("/healthz", {}, 405),
    ],
)
def test_an_early_refusal_reaches_a_client_that_is_still_sending(
    serve: Serve, path: str, headers: dict[str, str], status: int
) -> None:
    """20 MB are under way: the client that sends all of it before it reads gets its answer, not a reset."""
    server = serve(api_key="secret")
    content = b" " * (20 * 2**20)
    request = server.request_bytes(path, content, **{"Authorization": "Bearer secret", **headers})
    with server.send(request) as raw:
        answer = server.read_answer(raw)
    assert answer.status == status
    assert answer.headers["Connection"] == "close"


def test_a_small_refused_body_does_not_cost_the_connection(server: LiveServer) -> None:
    """The rest of it is read, and the next request goes over the same connection."""
    refused = server.request_bytes("/nowhere", b"x" * 1000)
    with server.send(refused + server.request_bytes(CHAT, server.chat_body())) as raw:
        answers = server.read_until(raw, b'"usage"')
    assert answers.startswith(b"HTTP/1.1 404 ")
    assert b"HTTP/1.1 200 OK" in answers


# Pipelining.


def test_pipelined_requests_are_answered_in_order(server: LiveServer) -> None:
    """Ten at once on one connection; each answer carries its own request's id."""
    sent = b"".join(
        server.request_bytes(CHAT, server.chat_body(), X_Request_Id=f"n{number}") for number in range(10)
    )
    with server.send(sent) as raw:
        found = b""
        while found.count(b'"usage"') < 10:
            found += raw.recv(65536)
    ids = [line[14:] for line in found.split(b"\r\n") if line.startswith(b"X-Request-Id: ")]
    assert ids == [b"n%d" % number for number in range(10)]
    assert_unharmed(server)


def test_a_flood_of_pipelined_requests_waits_outside(serve: Serve) -> None:
    """While one is answered, the others stay in the socket: the server does not read ahead."""
    server = serve(Recording(pieces=("</think>", "late"), delay_ms=300))
    many = server.request_bytes(CHAT, server.chat_body("x" * 10_000)) * 2000
    with server.connect() as raw:
        raw.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < len(many):
                sent += raw.send(many[sent:])
        server.until(lambda: server.engine.stats().running == 1)
        held = server.call(lambda: max(each.held_bytes for each in server.running.connections))
        assert held <= 2**18
    server.until_idle()


# A client that stops reading.


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_stops_reading_is_dropped(serve: Serve, stream: bool) -> None:
    """Nothing can be written for stall_seconds: the job is cancelled and the connection closed."""
    server = serve(Recording(pieces=("</think>", *("x" * 10_000 for _ in range(3000)))), limits=IMPATIENT)
    with server.send(server.request_bytes(CHAT, server.chat_body(stream=stream))) as raw:
        raw.recv(1)
        server.settle()
        server.until(lambda: not server.running.connections)
    assert server.chat("x", max_tokens=1).status == 200
    server.settle()
    assert server.engine.stats().running == 0


def test_a_client_that_reads_slowly_is_not_dropped(serve: Serve) -> None:
    """Time runs from the last byte taken, not from the first that waited."""
    limits = Limits(stall_seconds=1)
    server = serve(Recording(pieces=("</think>", *("x" * 10_000 for _ in range(1000)))), limits=limits)
    with server.connect() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        raw.sendall(server.request_bytes(CHAT, server.chat_body(stream=True)))
        found, started = bytearray(), time.monotonic()
        while b"[DONE]" not in found[-40:]:
            found += raw.recv(500_000)
            if time.monotonic() - started < 2 * limits.stall_seconds:
                time.sleep(0.05)
    assert found.count(b"x" * 10_000) > 950


# Many connections.


def test_2000_connections(serve: Serve) -> None:
    """1,024 are kept, the longest idle giving way to new ones; a kept one is served; then all is as before."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _descriptors(5000))
    server, process = serve(limits=Limits(header_seconds=60)), psutil.Process()
    server.chat()
    gc.collect()
    memory, descriptors = process.memory_info().rss, process.num_fds()
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(server.connect()) for _ in range(2000)]
        server.until(lambda: len(server.running.connections) == 1024)
        assert [server.read_to_end(raw) for raw in raws[:976]] == [b""] * 976
        request = server.request_bytes("/healthz", b"", method="GET", Content_Type="")
        raws[976].sendall(request)
        assert server.read_answer(raws[976]).status == 200
        assert server.get("/v1/models").status == 200
        assert process.memory_info().rss < memory + 96 * 2**20
    server.until(lambda: not server.running.connections)
    server.until(lambda: process.num_fds() <= descriptors)
    assert_unharmed(server)


def test_a_server_full_of_busy_connections_answers_probes_and_nothing_else(serve: Serve) -> None:
    """A liveness probe that failed would have a healthy server killed; others read a 503, and are closed."""
    server = serve(Recording(pieces=tuple("abcdefghij" * 100), delay_ms=20), max_connections=4)
    with contextlib.ExitStack() as stack:
        server.read_until(stack.enter_context(server.open_stream()), b"data:")
        for _ in range(3):
            stack.enter_context(server.send(HEAD + b"Content-Length: 100\r\n\r\n{"))
        server.until(lambda: len(server.running.connections) == 4)
        server.until(lambda: len(server.running.application.under_way) == 4)
        for path in ("/healthz", "/readyz", "/health"):
            answer = server.get(path)
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        answer = server.get("/v1/models")
        assert (answer.status, answer.error["code"]) == (503, "engine_overloaded")
        assert answer.headers["Retry-After"] == "5"
        with server.connect() as silent:
            assert server.read_to_end(silent) == b""
    server.until_idle()


def test_without_descriptors_accepting_pauses_and_says_so_once(serve: Serve, log_lines) -> None:
    """No traceback for each knock: those who knock wait, and are served when a descriptor is free again."""
    server = serve(limits=Limits(pause_seconds=0.05))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    server.get("/healthz")
    waiting = [socket.socket() for _ in range(20)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() // 2, limits[1]))
        for raw in waiting:
            raw.connect(("127.0.0.1", server.port))
        server.until(lambda: any(line["event"] == "http.accepting_paused" for line in log_lines()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for raw in waiting:
        raw.sendall(server.request_bytes("/healthz", b"", method="GET", Content_Type=""))
        raw.settimeout(20)
        assert server.read_answer(raw).status == 200
        raw.close()
    assert sum(line["event"] == "http.accepting_paused" for line in log_lines()) == 1
    assert_unharmed(server)


def _descriptors(wanted: int) -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"this test needs {wanted} descriptors"
    return max(soft, wanted), hard


def test_a_connection_that_resets_at_once_is_no_error(server: LiveServer) -> None:
    """Port scanners do that."""
    for _ in range(20):
        raw = server.connect()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
    assert_unharmed(server)


def test_large_bodies_together_stay_within_their_memory(serve: Serve) -> None:
    """Many clients that each send most of a body are refused once the sum is too much."""
    server = serve(limits=Limits(body_bytes=100_000, bodies_bytes=250_000))
    with contextlib.ExitStack() as stack:
        raws = [
            stack.enter_context(server.send(HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 90_000))
            for _ in range(3)
        ]
        server.until(lambda: server.running.application.budget.held == 180_000)
        answer = next(server.read_answer(raw) for raw in itertools.cycle(raws) if _readable(raw))
    assert (answer.status, answer.error["code"]) == (503, "engine_overloaded")
    server.until(lambda: server.running.application.budget.held == 0)
    assert_unharmed(server)


def _readable(raw: socket.socket) -> bool:
    raw.settimeout(0.5)
    try:
        return raw.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return False


def test_a_crowd_at_the_door_takes_turns_with_other_work(serve: Serve) -> None:
    """Between two turns of the loop a few connections are accepted, however many knock."""
    server = serve()
    turns: list[int] = []
    with contextlib.ExitStack() as stack:

        def count() -> None:
            turns.append(len(server.running.connections))
            if turns[-1] < 200:
                asyncio.get_running_loop().call_soon(count)

        async def knock() -> None:
            for _ in range(200):  # they wait in the backlog while the loop is here
                stack.enter_context(server.connect())
            count()

        server.wait(knock())
        server.until(lambda: bool(turns) and turns[-1] == 200)
    assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= 4
    server.until(lambda: not server.running.connections)
