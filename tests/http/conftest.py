"""A real server on a real port for every test: scripted engine, real adapters, parsers and tokenizer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import io
import json
import pathlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import attrs
import pytest
import tokenizers
from maple_plugins.registry import reasoning_parser, tool_parser
from maple_protocols.anthropic.adapter import AnthropicModels, MessagesAdapter
from maple_protocols.kinds import served
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.models import ModelsAdapter
from maple_protocols.openai.responses import ResponsesAdapter
from maple_testing.guard import HANG_GUARD
from maple_testing.wire import Answer, chat_body

from maple.app import open_store, turn_defaults
from maple.engine.admission import QueueLimits
from maple.engine.api import Job, Ticket
from maple.http.keys import Keyring
from maple.http.server import RunningServer, listen
from maple.http.services import HttpSettings, Limits, Services
from maple.observe import logs
from maple.observe.metrics import Metrics
from maple.observe.tracing import Tracing
from maple.prompt.encode import PromptEncoder
from maple.prompt.pool import PromptPool
from maple.scripted.engine import ScriptedEngine, scripted_served
from maple.scripted.script import Recording
from maple.settings import Settings
from maple.signing import signer
from maple.turn_parsers import ParserPair
from maple.turns import Turns

T = TypeVar("T")

HELLO = Recording(pieces=("Thinking.", "</think>", "\n\nHello", " world", "!"))


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request on an open connection."""
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = dict(headers or {})
    if body is not None and "Content-Type" not in given:
        given["Content-Type"] = "application/json"
    connection.request(method, path, sent, {name: value for name, value in given.items() if value})
    response = connection.getresponse()
    return Answer.of(response)


def request_bytes(path: str, body: object, method: str = "POST", **headers: str) -> bytes:
    """A whole request as it goes over the wire; headers given as "" are left out."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(content))}
    head |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + content


def read_answer(raw: socket.socket) -> Answer:
    """The next answer on a raw connection."""
    response = http.client.HTTPResponse(raw)
    response.begin()
    return Answer.of(response)


def read_to_end(raw: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as the end."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while chunk := raw.recv(65536):
            found += chunk
    return bytes(found)


def read_until(raw: socket.socket, marker: bytes) -> bytes:
    """What arrives up to and including a marker, and perhaps more."""
    found = bytearray()
    looked = 0
    while found.find(marker, looked) < 0:
        looked = max(0, len(found) - len(marker))
        chunk = raw.recv(65536)
        assert chunk, f"closed before {marker!r}: {bytes(found[-1000:])!r}"
        found += chunk
    return bytes(found)


class ListeningEngine(ScriptedEngine):
    """The scripted engine, which remembers its last job."""

    last_job: Job
    last_prompt: tuple[int, ...] = ()

    def submit(self, job: Job) -> Ticket:
        self.last_job, self.last_prompt = job, job.prompt_ids
        return super().submit(job)


class LiveServer:
    """A server on its own thread and loop, and a client for it."""

    chat_body = staticmethod(chat_body)
    request_bytes = staticmethod(request_bytes)
    ask = staticmethod(ask)
    read_answer = staticmethod(read_answer)
    read_to_end = staticmethod(read_to_end)
    read_until = staticmethod(read_until)

    def __init__(self, services: Services, settings: Settings) -> None:
        self.services = services
        self._settings = settings
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._held = contextlib.ExitStack()
        self._stop: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self.running: RunningServer
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="live-server")
        self._thread.start()
        self._ready.result(HANG_GUARD)

    @property
    def engine(self) -> ListeningEngine:
        engine = self.services.turns.engine
        assert isinstance(engine, ListeningEngine)
        return engine

    @property
    def port(self) -> int:
        return self.running.port

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            self.running = listen(self.services, self._settings)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        await self._stop.wait()
        await self.running.close()
        await self.engine.close()

    def close(self) -> None:
        self._held.close()
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(HANG_GUARD)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's loop."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop, to its end."""
        return self.spawn(work).result(HANG_GUARD)

    def spawn(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def until(self, condition: Callable[[], bool]) -> None:
        """Return once something is true on the server's loop."""

        async def poll() -> None:
            async with asyncio.timeout(HANG_GUARD):
                while not condition():  # noqa: ASYNC110 -- nothing tells of what is waited for
                    await asyncio.sleep(0.002)

        self.wait(poll())

    def until_idle(self) -> None:
        """Return once no job runs or waits."""
        self.until(lambda: self.engine.stats().running + self.engine.stats().waiting == 0)

    def settle(self) -> None:
        """Return once every request has been answered, counted and logged."""
        self.wait(self.running.application.settled(HANG_GUARD))

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_GUARD)

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own. ``body``: bytes as they are, anything else as JSON."""
        with contextlib.closing(self.connection()) as connection:
            return ask(connection, method, path, body, headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={name.replace("_", "-"): v for name, v in headers.items()})

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    def prompt(self) -> str:
        """The last prompt that the engine was given, as text."""
        served = self.engine.served
        assert served is not None
        tokenizer = tokenizers.Tokenizer.from_file(str(served.folder / "tokenizer.json"))
        return tokenizer.decode(self.engine.last_prompt, skip_special_tokens=False)

    def chat(self, text: str = "hi", **fields: object) -> Answer:
        return self.post("/v1/chat/completions", chat_body(text, **fields))

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_GUARD)

    def open_stream(self, text: str = "hi", **fields: object) -> socket.socket:
        """A raw connection on which a streaming request has been sent."""
        raw = self.connect()
        raw.sendall(request_bytes("/v1/chat/completions", chat_body(text, stream=True, **fields)))
        return raw

    def send(self, data: bytes) -> socket.socket:
        """A raw connection on which these bytes have been sent."""
        raw = self.connect()
        raw.sendall(data)
        return raw

    def hold(self, raw: socket.socket) -> None:
        """Keep a raw connection open until the server is closed."""
        self._held.callback(raw.close)

    def metric(self, sample: str) -> float:
        """The value of one sample line of /metrics, 0 where there is none."""
        lines = self.services.metrics.exposition().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} ")), 0.0)


@pytest.fixture(scope="session")
def prompt_encoder(golden_folder: pathlib.Path) -> PromptEncoder:
    return PromptEncoder(golden_folder / "mlx-2bit")


Serve = Callable[..., LiveServer]
ADAPTERS: tuple[type, ...] = (
    AnthropicModels,
    ChatAdapter,
    CompletionsAdapter,
    MessagesAdapter,
    ModelsAdapter,
    ResponsesAdapter,
)


@pytest.fixture
def serve(prompt_encoder: PromptEncoder, golden_folder: pathlib.Path) -> Iterator[Serve]:
    """Start servers: recordings, ``tracing``, ``limits``, ``queue``, ``loaded``, ``adapters``, any setting by name."""
    with contextlib.ExitStack() as stack:

        def start(
            *recordings: Recording,
            limits: Limits | None = None,
            queue: QueueLimits | None = None,
            loaded: bool = True,
            adapters: tuple[object, ...] = (),
            tracing: Tracing | None = None,
            **settings: Any,
        ) -> LiveServer:
            pool = PromptPool(prompt_encoder)
            stack.callback(pool.close)
            parts = _services(
                Settings(port=0, **settings),
                recordings or (HELLO,),
                folder=golden_folder / "mlx-2bit",
                limits=limits or Limits(),
                queue=queue or QueueLimits(),
                adapters=(*adapters, *(kind() for kind in ADAPTERS)),
            )
            parts = attrs.evolve(parts, tracing=tracing)
            if parts.store is not None:
                stack.callback(parts.store.close)
            if loaded:
                parts.turns.engine.start()
                parts.turns.prompts = pool
            live = LiveServer(parts, Settings(port=0, **settings))
            stack.callback(live.close)
            return live

        yield start


def _services(
    settings: Settings,
    recordings: tuple[Recording, ...],
    *,
    folder: pathlib.Path,
    limits: Limits,
    queue: QueueLimits,
    adapters: tuple[object, ...],
) -> Services:
    engine = ListeningEngine(recordings, served=scripted_served(folder), limits=queue)
    parsers = ParserPair(
        reasoning=reasoning_parser(settings.reasoning_parser), tools=tool_parser(settings.tool_parser)
    )
    return Services(
        settings=HttpSettings.of(settings),
        turns=Turns(engine, parsers, turn_defaults(settings), signer(None)),
        protocols=tuple(map(served, adapters)),
        keyring=Keyring.open(settings.api_key, settings.api_key_file),
        metrics=Metrics(engine, version="1.2.3"),
        version="1.2.3",
        model_path="maple-tiny",
        limits=limits,
        store=open_store(settings),
    )


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    """A server with everything by default, that always says hello."""
    return serve()


@pytest.fixture(autouse=True)
def log_lines() -> Callable[[], list[dict[str, Any]]]:
    """Logging as in production, JSON lines, kept: call it for the lines so far."""
    kept = io.StringIO()
    logs.configure(level="debug", format="json", stream=kept)
    return lambda: [json.loads(line) for line in kept.getvalue().splitlines()]
