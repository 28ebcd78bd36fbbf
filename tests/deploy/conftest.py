"""Real servers in processes of their own, for what stands in front of or around them."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest
from maple_testing.guard import HANG_GUARD, until
from maple_testing.wire import Answer, chat_body, environment_without

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="session")
def deploy_folder() -> pathlib.Path:
    """The files as they ship."""
    return DEPLOY


def chat_bytes(text: str, **fields: object) -> bytes:
    return json.dumps(chat_body(text, **fields)).encode()


@attrs.frozen
class Door:
    """A port on this machine that speaks HTTP: a server's own, or nginx's in front of it."""

    port: int

    chat_body = staticmethod(chat_bytes)

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Iterator[http.client.HTTPConnection]:
        """A connection on which a request has been sent, and nothing read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_GUARD)
        kind = {"Content-Type": "application/json"} if body is not None else {}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, body, {**kind, **given})
            yield connection

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        with self.open(method, path, body, **headers) as connection:
            response = connection.getresponse()
            return Answer.of(response)

    def chat(self, text: str, session: str = "", **headers: str) -> Answer:
        named = {"X-Session-Id": session} if session else {}
        return self.request("POST", "/v1/chat/completions", chat_bytes(text), **named, **headers)

    @contextlib.contextmanager
    def stream(self, text: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """A streamed chat whose status line has arrived."""
        body = chat_bytes(text, stream=True)
        with self.open("POST", "/v1/chat/completions", body, **headers) as connection:
            response = connection.getresponse()
            assert response.status == 200
            yield response

    def stats(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.request("GET", "/v1/stats?format=json").json
        return counts

    def wait_for_stats(self, **facts: int) -> None:
        """Ask for the counts again and again until they are so."""
        until(lambda: facts.items() <= self.stats().items(), f"{facts} never came about")


@pytest.fixture(scope="session")
def make_door() -> type[Door]:
    """``make_door(port)``"""
    return Door


@attrs.frozen(kw_only=True)
class Replica(Door):
    """A server process."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log's JSON lines."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def wait_for(self, event: str, **facts: object) -> None:
        """Read the log again and again until that event, with those facts, is in it."""
        deadline = time.monotonic() + HANG_GUARD
        wanted = {"event": event, **facts}.items()
        while not any(wanted <= line.items() for line in self.events):
            assert time.monotonic() < deadline, self.log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.05)


def _ready_port(log: pathlib.Path, process: subprocess.Popen[bytes]) -> int:
    """The port that the log names, once it says that the server is ready."""
    deadline = time.monotonic() + HANG_GUARD
    while '"server.ready"' not in (text := log.read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return int(next(line["port"] for line in lines if line["event"] == "server.listening"))


class Launcher:
    """Starts servers that play recordings, and stops them all."""

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._count = 0

    def __call__(
        self,
        *recordings: Mapping[str, object],
        flags: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        **settings: str,
    ) -> Replica:
        """Start one that plays recordings, or is told by ``flags`` what to run.

        ``wrapper`` is a command that runs another, in front of the server's own.
        """
        self._count += 1
        home = self._folder
        script = home / f"recordings-{self._count}.jsonl"
        script.write_text("".join(json.dumps(recording) + "\n" for recording in recordings))
        log = home / f"server-{self._count}.log"
        told = [*(flags or ("--scripted", str(script))), "--port", "0"]
        inherited = environment_without("MAPLE_")
        fixed = {"MAPLE_LOG_FORMAT": "json", "MAPLE_CACHE_DIR": str(home / "cache"), "PYTHONSAFEPATH": "1"}
        process = self._stack.enter_context(
            subprocess.Popen(
                [*wrapper, sys.executable, "-m", "maple", *told],
                stdout=self._stack.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
                cwd=home,
                env={**inherited, **fixed, **settings},
            )
        )
        self._stack.callback(process.terminate)
        return Replica(_ready_port(log, process), process=process, log=log)


@pytest.fixture(scope="module")
def launch_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """``launch(recording, …, MAPLE_X="…")`` for servers that a module's tests share."""
    with contextlib.ExitStack() as stack:
        yield Launcher(tmp_path_factory.mktemp("servers"), stack)


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Iterator[Launcher]:
    """The same for servers of one test."""
    with contextlib.ExitStack() as stack:
        yield Launcher(tmp_path, stack)


Launch = Callable[..., Replica]
