"""Real servers in their own processes: ``python -m maple`` on a free port, its log and its end."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD
from maple_testing.wire import Answer, chat_body, environment_without


class Client:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_GUARD)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send ``body`` (bytes as they are, anything else as JSON) and read the whole answer."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if body is not None else {}
        self._connection.request(method, path, sent, {**given, **(headers or {})})
        response = self._connection.getresponse()
        return Answer.of(response)

    def chat(self, text: str, **fields: object) -> Answer:
        """Ask for a chat completion with one user message."""
        return self.request("POST", "/v1/chat/completions", chat_body(text, **fields))


class Server:
    """A server process. Its output is read as it appears, so that tests can wait for log events."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.expected_code = 0
        self._told = False
        self._output = process.stdout
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self._output:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log's JSON lines."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def wait_for(self, *names: str, count: int = 1, **facts: object) -> dict[str, Any]:
        """The ``count``-th log line of one of those events with those facts, as soon as it is there."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.events if line["event"] in names and facts.items() <= line.items()]

        with self._news:
            here = self._news.wait_for(
                lambda: len(found()) >= count or not self.reader.is_alive(), timeout=HANG_GUARD
            )
        matches = found()
        assert here, f"no {names} {facts} in the log:\n{self.log}"
        assert len(matches) >= count, f"ended without {names} {facts}:\n{self.log}"
        return matches[count - 1]

    @functools.cached_property
    def port(self) -> int:
        return int(self.wait_for("server.listening")["port"])

    @property
    def base_url(self) -> str:
        """What the openai SDK is given."""
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self) -> Client:
        return Client(self.port)

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        with self.client() as client:
            return client.request(
                method, path, body, {key.replace("_", "-"): v for key, v in headers.items()}
            )

    def chat(self, text: str, **fields: object) -> Answer:
        with self.client() as client:
            return client.chat(text, **fields)

    @contextlib.contextmanager
    def raw(self, path: str, body: object) -> Iterator[socket.socket]:
        """A connection on which one request has been sent, and nothing read yet."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_GUARD) as connection:
            connection.sendall(head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
            yield connection

    def stats(self) -> dict[str, Any]:
        """The counts of /v1/stats."""
        counts: dict[str, Any] = self.request("GET", "/v1/stats?format=json").json
        return counts

    def wait_for_stats(self, **facts: int) -> dict[str, Any]:
        """Ask for the counts again and again until they are so."""
        return self._ask_until("/v1/stats?format=json", facts)

    def wait_for_health(self, status: str) -> Answer:
        """Ask for the health until it is so; returns the last answer."""
        self._ask_until("/health", {"status": status})
        return self.request("GET", "/health")

    def _ask_until(self, path: str, facts: Mapping[str, object]) -> dict[str, Any]:
        deadline = time.monotonic() + HANG_GUARD
        with self.client() as client:
            while not facts.items() <= (found := client.request("GET", path).json).items():
                assert time.monotonic() < deadline, f"{facts} never came about: {found}"
        return dict(found)

    def tell(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, once: a second one would cut a drain short."""
        if not self._told and self.process.poll() is None:
            self.process.send_signal(number)
        self._told = True

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.tell(number)
        code = self.process.wait(timeout=HANG_GUARD)
        self.reader.join(timeout=HANG_GUARD)
        self._output.close()
        return code


def _environment(settings: Mapping[str, str], cache: pathlib.Path) -> dict[str, str]:
    """Our own variables without MAPLE_ ones, and what a test sets."""
    fixed = {
        "MAPLE_CACHE_DIR": str(cache),
        "MAPLE_TORCH_THREADS": "1",  # the models are tiny, and the machine has other work
        "MAPLE_LOG_FORMAT": "json",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",
    }
    return {**environment_without("MAPLE_"), **fixed, **settings}


def _start(flags: Sequence[str], settings: Mapping[str, str], folder: pathlib.Path) -> Server:
    engine = shlex.split(os.environ.get("SERVER_ENGINE_FLAGS", ""))  # tox -e cluster: the same on replicas
    if engine:
        engine += ["--deployment", f"test-{uuid.uuid4().hex[:8]}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "maple", "--port", "0", *flags, *engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env=_environment(settings, folder / "cache"),
    )
    return Server(process)


def _finish(servers: Sequence[Server]) -> None:
    """Stop what still runs. Every server has to end as it should, and without a traceback."""
    for server in servers:
        server.tell()
    codes = [server.stop() for server in servers]
    for server, code in zip(servers, codes, strict=True):
        assert code == server.expected_code, server.log
        assert "Traceback" not in server.log, server.log


StartServer = Callable[..., Server]


@pytest.fixture(scope="session", autouse=True)
def ended_by_sigterm() -> Iterator[None]:
    """A test run that is told to end ends its servers too, as it does on ctrl-C."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _starter(folder: pathlib.Path) -> Iterator[StartServer]:
    servers: list[Server] = []

    def start(*flags: str, ready: bool = True, settings: Mapping[str, str] | None = None) -> Server:
        server = _start(flags, settings or {}, folder)
        servers.append(server)
        if ready:
            server.wait_for("server.ready")
        return server

    try:
        yield start
    finally:
        try:
            _finish(servers)
        finally:
            for server in servers:
                server.process.kill()


@pytest.fixture
def start_server(tmp_path: pathlib.Path) -> Iterator[StartServer]:
    """``start_server(*flags, settings={...}, ready=True)``: a server that ends, checked, with the test."""
    with _starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def start_session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """The same for servers that many tests share; stopped and checked when all tests are done."""
    with _starter(tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture(scope="session")
def demo_server(start_session_server: StartServer) -> Server:
    """The model that comes with the package."""
    return start_session_server("--demo")


@pytest.fixture(scope="session")
def golden_server(start_session_server: StartServer, golden_folder: pathlib.Path) -> Server:
    """A random model, which hardly ever ends its text by itself; on torch, slow enough to be left midway."""
    return start_session_server("--model-path", str(golden_folder / "mlx-2bit"), "--dtype", "float32")


@pytest.fixture
def write_script(tmp_path: pathlib.Path) -> Callable[..., str]:
    """``write_script(line, …)``: a file for --scripted; returns its path."""

    def write(*lines: Mapping[str, object]) -> str:
        path = tmp_path / "script.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return str(path)

    return write
