"""Clients that leave: the slot is free within one token's time, once counted, and nothing stays behind."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import pathlib
import socket
import struct
from typing import Any

import psutil
import pytest
from maple_testing.guard import until

DECODE = {"max_tokens": 3000, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 7}
LONG_PROMPT = "All work and no play makes Jack a dull boy. " * 60
CLIENTS = 200
GROWTH = 24 << 20
"""Bytes of resident memory that two hundred clients may cost: arenas settle, nothing is kept a client."""

Body = dict[str, Any]


def body(text: str, *, stream: bool, **fields: object) -> Body:
    return {"messages": [{"role": "user", "content": text}], "stream": stream, **fields}


def reset(connection: socket.socket) -> None:
    """Close with a reset instead of a goodbye."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def wait_for_tokens(server: Any, before: dict[str, int], tokens: int) -> None:
    """Wait until that many more have been generated."""
    server.wait_for_stats(running=1)
    while (now := server.stats())["generation_tokens"] < before["generation_tokens"] + tokens:
        assert now["running"] == 1, "it ended by itself"


@pytest.fixture
def scripted(start_server: Any, write_script: Any) -> Any:
    """One slot; every answer takes minutes, a token each quarter of a second."""
    return start_server("--scripted", write_script({"pieces": ["x"] * 1000, "delay_ms": 250}))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abort", [True, False], ids=["reset", "close"])
def test_leaving_during_decode(scripted: Any, stream: bool, abort: bool) -> None:
    """The slot is free again, and the cancellation counted once."""
    with scripted.raw("/v1/chat/completions", body("hi", stream=stream)) as connection:
        scripted.wait_for_stats(running=1)
        if stream:
            assert b"200 OK" in connection.recv(65536)
        if abort:
            reset(connection)
    counts = scripted.wait_for_stats(running=0)
    assert counts["generation_tokens"] < 100, "it went on"
    assert (counts["cancelled"], counts["waiting"]) == (1, 0)
    scripted.wait_for("http.request", status=499)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue(scripted: Any, stream: bool) -> None:
    """A waiter that leaves is dropped while the one before it goes on, and is never started."""
    with scripted.raw("/v1/chat/completions", body("first", stream=True)) as first:
        scripted.wait_for_stats(running=1)
        with scripted.raw("/v1/chat/completions", body("second", stream=stream)):
            scripted.wait_for_stats(running=1, waiting=1)
        counts = scripted.wait_for_stats(running=1, waiting=0)
        assert counts["cancelled"] == 1
        prompts = counts["prompt_tokens"]
        assert first.recv(65536)
    counts = scripted.wait_for_stats(running=0, cancelled=2)
    assert counts["prompt_tokens"] == prompts


def test_the_next_in_line_gets_the_slot(scripted: Any) -> None:
    """When the running client leaves, the one that waits is admitted."""
    with scripted.raw("/v1/chat/completions", body("first", stream=True)):
        scripted.wait_for_stats(running=1)
        second = scripted.raw("/v1/chat/completions", body("second", stream=True))
        connection = second.__enter__()
        scripted.wait_for_stats(running=1, waiting=1)
    assert b"200 OK" in connection.recv(65536)
    second.__exit__(None, None, None)
    assert scripted.wait_for_stats(running=0, waiting=0)["cancelled"] == 2


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_prefill(golden_server: Any, stream: bool) -> None:
    """A client that leaves while its prompt is read costs no token of output."""
    before = golden_server.stats()
    with golden_server.raw("/v1/chat/completions", body(LONG_PROMPT, stream=stream, max_tokens=1000)):
        golden_server.wait_for_stats(running=1)
    after = golden_server.wait_for_stats(running=0, cancelled=before["cancelled"] + 1)
    assert after["generation_tokens"] == before["generation_tokens"]
    assert golden_server.chat("still there?", max_tokens=1).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_a_model_during_decode(golden_server: Any, stream: bool) -> None:
    """Decoding stops within a token of the client's leaving."""
    before = golden_server.stats()
    with golden_server.raw("/v1/chat/completions", body("hi", stream=stream, **DECODE)):
        wait_for_tokens(golden_server, before, 4)
    after = golden_server.wait_for_stats(running=0)
    assert after["cancelled"] == before["cancelled"] + 1
    assert golden_server.stats()["generation_tokens"] == after["generation_tokens"]


def leave_during_prefill(server: Any, *, stream: bool) -> int:
    """Leave while the prompt is read; returns how many clients left, as all of these do."""
    with server.raw("/v1/chat/completions", body(LONG_PROMPT, stream=stream)):
        server.wait_for_stats(running=1)
    return 1


def leave_during_decode(server: Any, *, stream: bool) -> int:
    """Leave by a reset after some tokens."""
    before = server.stats()
    with server.raw("/v1/chat/completions", body("hi", stream=stream, **DECODE)) as connection:
        wait_for_tokens(server, before, 2)
        reset(connection)
    return 1


def leave_the_queue(server: Any, *, stream: bool) -> int:
    """Leave while another runs, which leaves next."""
    with server.raw("/v1/chat/completions", body(LONG_PROMPT, stream=True)):
        server.wait_for_stats(running=1)
        with server.raw("/v1/chat/completions", body("hi", stream=stream)):
            server.wait_for_stats(running=1, waiting=1)
    return 2


WAYS = [
    functools.partial(leave, stream=stream)
    for stream in (True, False)
    for leave in (leave_during_prefill, leave_during_decode, leave_the_queue)
]


def let_leave(server: Any, clients: int) -> int:
    """At least that many clients, each of whom finds an idle server and leaves it in one of the ways."""
    left = 0
    for leave in itertools.cycle(WAYS):
        server.wait_for_stats(running=0, waiting=0)
        left += leave(server)
        if left >= clients:
            return left
    raise AssertionError("a cycle does not end")


def footprint(server: Any) -> tuple[int, int, int]:
    """Threads, descriptors and resident bytes of a server with one client, who asks for this."""
    process = psutil.Process(server.process.pid)
    with server.client() as client:
        until(lambda: _is_idle(client.request("GET", "/v1/stats?format=json").json, process))
        return process.num_threads(), process.num_fds(), process.memory_info().rss


def _is_idle(counts: dict[str, int], process: psutil.Process) -> bool:
    connections = [c for c in process.net_connections() if c.status == psutil.CONN_ESTABLISHED]
    return counts["running"] == counts["waiting"] == 0 and len(connections) == 1


def test_many_leavers_leave_nothing_behind(start_server: Any, golden_folder: pathlib.Path) -> None:
    """Two hundred clients that leave at every stage cost no thread, no descriptor and no memory."""
    # On torch: the native kernels are done before anyone can leave.
    server = start_server("--model-path", str(golden_folder / "mlx-2bit"), "--dtype", "float32")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # so that the server's own pools are full
        for answer in [pool.submit(server.chat, "hi", max_tokens=1) for _ in range(40)]:
            assert answer.result().status in (200, 503)
    let_leave(server, 24)
    threads, descriptors, memory = footprint(server)
    cancelled = server.stats()["cancelled"]
    left = let_leave(server, CLIENTS)
    after = footprint(server)
    assert after[0] <= threads
    assert after[1] <= descriptors
    assert after[2] < memory + GROWTH
    assert server.stats()["cancelled"] == cancelled + left
    assert server.chat("still there?", max_tokens=1).status == 200
