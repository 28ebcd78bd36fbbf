"""A client that leaves: its job is dropped at once, at every stage, and counted once."""

from __future__ import annotations

import asyncio
import gc
import pathlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import psutil
import pytest
from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask, Prompt
from maple_protocols.openai.chat import ChatAdapter

from maple.engine.admission import QueueLimits
from maple.http.services import Limits
from maple.prompt.encode import EncodedPrompt, PromptEncoder
from maple.prompt.pool import POOL_THREADS, PromptPool
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

ENDLESS = Recording(pieces=tuple("abcdefghij" * 1000), delay_ms=10)
SLOW_START = Recording(pieces=("x",), delay_ms=3_000_000)
CHAT = "/v1/chat/completions"


def reset(raw: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def leave(raw: socket.socket) -> None:
    raw.close()


def hang_up_halfway(raw: socket.socket) -> None:
    """Close the sending side only: nothing more will be asked, so nobody is there."""
    raw.shutdown(socket.SHUT_WR)


def counts(server: LiveServer) -> tuple[int, int, int]:
    stats = server.engine.stats()
    return stats.running, stats.waiting, stats.cancelled


@pytest.mark.parametrize("go", [leave, reset, hang_up_halfway])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("recording", [ENDLESS, SLOW_START], ids=["decode", "before the first token"])
def test_leaving_frees_the_slot_and_is_counted_once(serve: Serve, recording, stream: bool, go) -> None:
    """While tokens come and before the first; streaming or not; however the connection ends."""
    server = serve(recording)
    with server.send(server.request_bytes(CHAT, server.chat_body(stream=stream))) as raw:
        server.until(lambda: server.engine.stats().running == 1)
        go(raw)
        server.until_idle()
        server.settle()
    assert counts(server) == (0, 0, 1)
    assert server.metric('maple_requests_total{route="/v1/chat/completions",status="499"}') == 1
    assert server.metric("maple_requests_cancelled_total") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_costs_no_slot_and_no_prefill(serve: Serve, stream: bool) -> None:
    """A waiter that goes is dropped; the one that runs is not disturbed."""
    server = serve(ENDLESS, queue=QueueLimits(slots=1, depth=1))
    with server.open_stream() as first:
        server.read_until(first, b"data:")
        with server.send(server.request_bytes(CHAT, server.chat_body("no", stream=stream))):
            server.until(lambda: server.engine.stats().waiting == 1)
            prompt_tokens = server.engine.stats().prompt_tokens
        server.until(lambda: server.engine.stats().waiting == 0)
        assert counts(server) == (1, 0, 1)
        assert server.engine.stats().prompt_tokens == prompt_tokens
        assert server.read_until(first, b"data:")


def test_leaving_after_the_status_line_in_the_queue(serve: Serve) -> None:
    """A long wait has sent headers and pings; going then is noticed as well."""
    server = serve(ENDLESS, queue=QueueLimits(slots=1, depth=1), limits=Limits(ping_seconds=0.05))
    with server.open_stream() as first:
        server.read_until(first, b"data:")
        with server.open_stream() as second:
            server.read_until(second, b": ping")
        server.until(lambda: server.engine.stats().waiting == 0)
        assert counts(server) == (1, 0, 1)


class Deliberate(ChatAdapter):
    """A protocol that takes its time over a body."""

    path = "/v1/deliberate"

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        self.begun.set()
        assert self.go_on.wait(20)
        return super().structure(body, policy)


def test_leaving_while_a_large_body_is_being_read_starts_nothing(serve: Serve) -> None:
    """It is parsed on another thread, which cannot be stopped; what it finds is dropped."""
    adapter = Deliberate()
    server = serve(ENDLESS, adapters=(adapter,))
    body = server.chat_body(metadata={"large": "x" * 100_000})
    with server.send(server.request_bytes("/v1/deliberate", body)):
        assert adapter.begun.wait(20)
    server.settle()
    adapter.go_on.set()
    server.until(lambda: len(asyncio.all_tasks()) == 2)  # the server's own and this one
    assert counts(server) == (0, 0, 0)
    assert server.engine.stats().prompt_tokens == 0


class Pensive(PromptEncoder):
    """An encoder that takes its time over a prompt."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self, prompt: Prompt, *, thinking: bool, limit: int) -> EncodedPrompt:
        self.begun.set()
        assert self.go_on.wait(20)
        return super().encode(prompt, thinking=thinking, limit=limit)


@pytest.fixture
def pensive(golden_folder: pathlib.Path) -> Iterator[Pensive]:
    """Goes on at the end of the test at the latest."""
    encoder = Pensive(golden_folder / "mlx-2bit")
    yield encoder
    encoder.go_on.set()


@pytest.mark.parametrize("go", [leave, reset, hang_up_halfway])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_the_prompt_is_tokenised_is_counted_once(
    serve: Serve, pensive: Pensive, stream: bool, go: Callable[[socket.socket], None]
) -> None:
    """The pool cannot stop; its ids are dropped, no job is made of them, and nothing counts a second time."""
    server = serve(ENDLESS)
    server.call(lambda: setattr(server.services.turns, "prompts", PromptPool(pensive)))
    with server.send(server.request_bytes(CHAT, server.chat_body(stream=stream))) as raw:
        assert pensive.begun.wait(20)
        go(raw)
        server.settle()
    pensive.go_on.set()
    server.until(lambda: len(asyncio.all_tasks()) == 2)  # the server's own and this one
    server.services.turns.prompts.close()
    assert counts(server) == (0, 0, 1)
    assert server.engine.stats().prompt_tokens == 0
    assert server.metric("maple_requests_cancelled_total") == 1
    assert server.get("/v1/stats?format=json").json["cancelled"] == 1
    assert server.metric('maple_requests_total{route="/v1/chat/completions",status="499"}') == 1


def test_the_access_line_of_a_client_that_left_says_so(serve: Serve, log_lines) -> None:
    """Status 499, once, and no traceback."""
    server = serve(ENDLESS)
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
    server.until_idle()
    server.settle()
    lines = log_lines()
    assert [line["status"] for line in lines if line["event"] == "http.request"] == [499]
    assert not [line for line in lines if "exception" in line]


def test_an_answer_that_was_finished_in_time_is_not_a_cancellation(server: LiveServer) -> None:
    """Closing after the end is what clients do."""
    assert server.chat().status == 200
    assert server.chat(stream=True).status == 200
    server.settle()
    assert counts(server) == (0, 0, 0)


def test_200_clients_that_leave_cost_nothing_that_stays(serve: Serve) -> None:
    """Memory, threads, descriptors, tasks and timers are where they were."""
    server = serve(ENDLESS, queue=QueueLimits(slots=4, depth=16))
    process = psutil.Process()

    def visit(number: int) -> None:
        with server.send(server.request_bytes(CHAT, server.chat_body(stream=number % 2 == 0))) as raw:
            server.until(lambda: server.engine.stats().running >= 1)
            (reset if number % 3 == 0 else leave)(raw)
        server.until_idle()

    def held() -> tuple[int, int, int]:
        pool = sum(thread.name.startswith("maple-prompt") for thread in threading.enumerate())
        assert pool <= POOL_THREADS  # it grows to its size as it is used
        return threading.active_count() - pool, process.num_fds(), len(asyncio.all_tasks())

    def no_more_than(then: tuple[int, int, int]) -> bool:
        return all(now <= earlier for now, earlier in zip(held(), then, strict=True))

    for number in range(50):
        visit(number)
    server.settle()
    server.until(lambda: not server.running.connections)
    before, memory = server.call(held), _memory(process)
    for number in range(200):
        visit(number)
    server.until(lambda: no_more_than(before))
    assert _memory(process) <= memory + 4 * 2**20
    assert counts(server) == (0, 0, 250)


def _memory(process: psutil.Process) -> int:
    gc.collect()
    return process.memory_info().rss


@pytest.mark.parametrize("extra", [b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"x" * 20_000])
@pytest.mark.parametrize("go", [leave, reset, hang_up_halfway])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_is_noticed_behind_bytes_that_nobody_has_read(
    serve: Serve, stream: bool, go: Callable[[socket.socket], None], extra: bytes
) -> None:
    """A client that has sent more than its request, a stray line end or the next one, can still be missed."""
    server = serve(SLOW_START)
    request = server.request_bytes(CHAT, server.chat_body(stream=stream))
    with server.send(request + extra) as raw:
        server.until(lambda: server.engine.stats().running == 1)
        go(raw)
        server.until_idle()
        server.settle()
    assert counts(server) == (0, 0, 1)
