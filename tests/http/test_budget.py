"""The budget for work before admission: who is charged, how much, whose turn it is, and what strangers get: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from maple.engine.admission import QueueLimits
from maple.http.base import JsonHandler
from maple.http.budget import Budget
from maple.http.refused import TooManyBodies
from maple.http.services import Limits
from maple.observe.metrics import Metrics
from maple.scripted.engine import ScriptedEngine, scripted_served

if TYPE_CHECKING:
    import pathlib
    import socket

    from tests.http.conftest import LiveServer, Serve

CHAT = "/v1/chat/completions"
BOMB = gzip.compress(b'{"messages": [' + b" " * (16 * 2**20 - 100) + b"]}")


@pytest.fixture
def keyed(serve: Serve, tmp_path: pathlib.Path) -> LiveServer:
    """A server with two keys, that may hold 100 kB of bodies, and 40 kB of each."""
    file = tmp_path / "keys"
    file.write_text("ada:one\nbob:two\n")
    file.chmod(0o600)
    return serve(api_key_file=file, limits=Limits(bodies_bytes=100_000, bodies_bytes_each=40_000))


def _discarded(server: LiveServer) -> list[int]:
    handlers = server.running.application.under_way
    return [handler.discarded_bytes for handler in handlers if isinstance(handler, JsonHandler)]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("OPTIONS", CHAT, {}, 204),
        ("GET", "/healthz", {}, 200),
        ("GET", "/openapi.json", {}, 200),
        ("GET", "/nowhere", {}, 404),
        ("POST", "/healthz", {}, 405),
        ("POST", CHAT, {}, 401),
        ("POST", CHAT, {"Authorization": "Bearer wrong"}, 401),
        ("POST", CHAT, {"Origin": "https://evil.example"}, 403),
        ("POST", "/v1/sessions/a/save", {}, 401),
        ("DELETE", "/v1/sessions/a", {}, 401),
    ],
)
def test_for_a_stranger_no_byte_of_a_body_is_kept_and_none_inflated(
    keyed: LiveServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """Whatever he calls it: 16 KB that unfold to 16 MiB cost what 16 KB of anything do."""
    head = {"Content-Encoding": "gzip", "Content-Length": str(len(BOMB) + 1), **headers}
    sent = keyed.request_bytes(path, BOMB, method=method, **{k.replace("-", "_"): v for k, v in head.items()})
    with keyed.send(sent) as raw:  # one byte is missing: the body is on its way for as long as he likes
        keyed.until(lambda: any(_discarded(keyed)))
        assert keyed.call(lambda: keyed.running.application.budget.held) == 0
        raw.sendall(b"x")
        assert keyed.read_answer(raw).status == status
    keyed.settle()
    assert keyed.metric("maple_inflated_bytes_total") == 0
    assert keyed.metric("maple_preparation_refused_total") == 0


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE"])
def test_only_a_post_has_a_body(server: LiveServer, method: str) -> None:
    """Of any other a little is thrown away for the connection's sake; much of it is refused from the header."""
    answer = server.request(method, "/v1/models" if method != "DELETE" else "/v1/sessions/a", b"x" * 70_000)
    assert answer.status in (413, 501)
    assert server.request("GET", "/v1/models", b"x" * 60_000).status == 200


def _part_of_a_body(server: LiveServer, key: str) -> socket.socket:
    head = server.request_bytes(CHAT, b"", Authorization=f"Bearer {key}", Content_Length="30001")
    return server.send(head + b" " * 30_000)


def test_one_key_cannot_hold_all_the_memory(keyed: LiveServer) -> None:
    """Bodies that never end fill their own key's part: another's are read, and small ones of nobody's are held."""
    budget = keyed.running.application.budget
    with contextlib.ExitStack() as stack:
        stack.enter_context(_part_of_a_body(keyed, "one"))
        keyed.until(lambda: budget.held == 30_000)
        answer = keyed.read_answer(stack.enter_context(_part_of_a_body(keyed, "one")))
        assert (answer.status, answer.error["code"]) == (503, "engine_overloaded")
        body = keyed.chat_body("hi", metadata={"x": "y" * 30_000})
        assert keyed.post(CHAT, body, {"Authorization": "Bearer two"}).status == 200
    keyed.until(lambda: budget.held == 0)
    assert keyed.metric("maple_preparation_refused_total") == 1


def test_without_keys_the_part_is_an_addresss(serve: Serve) -> None:
    """As a trusted proxy names it."""
    limits = Limits(bodies_bytes=100_000, bodies_bytes_each=40_000)
    server = serve(limits=limits, trust_proxy=("127.0.0.1",))
    budget = server.running.application.budget

    def send(address: str) -> socket.socket:
        head = server.request_bytes(CHAT, b"", Content_Length="30001", X_Forwarded_For=address)
        return server.send(head + b" " * 30_000)

    with send("192.0.2.1"), send("192.0.2.2"):
        server.until(lambda: budget.held == 60_000)
        with send("192.0.2.1") as third:
            assert server.read_answer(third).status == 503


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "a"}] * 70_000},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}] * 70_000},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]},
        {"messages": [{"role": "user", "content": "a"}], "metadata": {"x": [[]] * 300_000}},
        {"messages": [{"role": "user", "content": "a", "tool_calls": [{}] * 400_000}]},
    ],
    ids=["messages", "tools", "parts", "metadata", "calls"],
)
def test_more_items_than_the_window_has_tokens_are_refused_while_they_are_counted(
    server: LiveServer, fields: dict[str, object]
) -> None:
    """A few KB of gzip: nothing of it is structured, rendered or tokenised."""
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = server.request("POST", CHAT, gzip.compress(json.dumps(fields).encode()), headers)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert server.metric("maple_structured_items_total") == 0
    assert server.metric("maple_counted_tokens_total") == 0


def test_text_full_of_commas_is_text(serve: Serve) -> None:
    """Only values count, not the characters of strings."""
    server = serve(max_prompt_tokens=1000)
    body = server.chat_body("hi", metadata={"a": ',[{"\\' * 20_000})
    assert server.post(CHAT, body).status == 200


# Turns.


def budget_of(golden_folder: pathlib.Path, **limits: Any) -> Budget:
    engine = ScriptedEngine((), served=scripted_served(golden_folder / "mlx-2bit"), limits=QueueLimits())
    return Budget(Limits(**limits), Metrics(engine, version="1"))


def test_accounts_take_turns_and_none_has_every_thread(golden_folder: pathlib.Path) -> None:
    """A hundred of one account and then one of another: that one begins at once, and a third account's next."""
    began: list[str] = []
    three = threading.Barrier(4, timeout=20)
    gate = threading.Event()

    def work(name: str) -> str:
        began.append(name)
        if len(began) <= 3:
            three.wait()
        assert gate.wait(20)
        return name

    async def main() -> None:
        budget = budget_of(golden_folder)
        tasks = [asyncio.create_task(budget.run("many", lambda: work("many"))) for _ in range(100)]
        await asyncio.sleep(0)  # they ask for their turns
        others = ("few", "third", "third")
        tasks += [asyncio.create_task(budget.run(name, functools.partial(work, name))) for name in others]
        await asyncio.to_thread(three.wait)
        assert sorted(began) == ["few", "many", "many"]
        assert budget.waiting == 100
        gate.set()
        assert len(await asyncio.gather(*tasks)) == 103
        assert began.index("third") <= 5
        budget.close()

    asyncio.run(main())


def test_who_leaves_while_waiting_or_working_gives_everything_back(golden_folder: pathlib.Path) -> None:
    """The thread stays the account's until the work that nobody waits for has ended."""
    gate = threading.Event()

    async def main() -> None:
        budget = budget_of(golden_folder, prepare_threads=2, prepare_threads_each=1)
        working = asyncio.create_task(budget.run("a", lambda: gate.wait(20)))
        waiting = [asyncio.create_task(budget.run("a", lambda: None)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in (working, waiting[0], waiting[2]):
            task.cancel()
        await asyncio.gather(working, waiting[0], waiting[2], return_exceptions=True)
        assert budget.waiting == 1
        assert not waiting[1].done()
        gate.set()
        await waiting[1]
        assert await budget.run("a", lambda: "free") == "free"
        budget.close()

    asyncio.run(main())


def test_a_turn_that_does_not_come_is_a_503(golden_folder: pathlib.Path) -> None:
    """The wait is bounded, and what waited is gone."""
    gate = threading.Event()

    async def main() -> None:
        budget = budget_of(golden_folder, prepare_threads=1, prepare_threads_each=1, prepare_seconds=0.01)
        working = asyncio.create_task(budget.run("a", lambda: gate.wait(20)))
        await asyncio.sleep(0)
        with pytest.raises(TooManyBodies):
            await budget.run("b", lambda: None)
        assert budget.waiting == 0
        gate.set()
        await working
        budget.close()

    asyncio.run(main())
