"""Fixtures that every part of the test suite may use."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import lzma
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog
import tokenizers
from maple_testing.guard import HANG_GUARD

ScriptedServer = Callable[..., contextlib.AbstractContextManager[int]]

DATA = pathlib.Path(__file__).parent / "data"


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and so would every program that it starts here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Coroutine tests run on a fresh event loop each, so that no task or timer outlives its test unseen."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(function).parameters}
    asyncio.run(asyncio.wait_for(function(**arguments), HANG_GUARD))
    return True


@pytest.fixture(scope="session", autouse=True)
def _plain_logs() -> None:
    """Tracebacks without the colours and locals that take a second to render."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, renderer])


@pytest.fixture(scope="session")
def data_folder() -> pathlib.Path:
    """tests/data: the handed cases, golden checkpoints and tokenizer, never edited."""
    return DATA


@pytest.fixture(scope="session")
def golden_folder() -> pathlib.Path:
    """The small random Maple: one folder a spelling, each with its own 512-token tokenizer."""
    return DATA / "golden"


@pytest.fixture(scope="session")
def golden_tokenizer(golden_folder: pathlib.Path) -> tokenizers.Tokenizer:
    """The golden checkpoints' tokenizer: 512 ids, 0 and 2 end a text."""
    return tokenizers.Tokenizer.from_file(str(golden_folder / "mlx-2bit" / "tokenizer.json"))


@pytest.fixture(scope="session")
def maple_tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Maple-Preview's own tokenizer.json, tokenizer_config.json and chat_template.jinja, unpacked once a session."""
    packed = DATA / "maple-tokenizer"
    folder = tmp_path_factory.mktemp("tokenizer") / "maple-preview"
    folder.mkdir()
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(packed / name, folder / name)
    with lzma.open(packed / "tokenizer.json.xz") as source, (folder / "tokenizer.json").open("wb") as target:
        shutil.copyfileobj(source, target)
    return folder


@pytest.fixture(scope="session")
def scripted_server() -> ScriptedServer:
    """``scripted_server(script, *flags, environment=…, folder=…)``: the port of a server that is ready, for a while."""

    @contextlib.contextmanager
    def start(
        script: pathlib.Path, *flags: str, environment: Mapping[str, str], folder: pathlib.Path
    ) -> Iterator[int]:
        with subprocess.Popen(
            [sys.executable, "-m", "maple", "--port", "0", *flags, "--scripted", str(script)],
            stderr=subprocess.PIPE,
            env={**environment, "MAPLE_LOG_FORMAT": "json"},
            cwd=folder,
            text=True,
        ) as process:
            assert process.stderr is not None
            events = (json.loads(line) for line in process.stderr)
            port = next(int(event["port"]) for event in events if event["event"] == "server.listening")
            assert any(event["event"] == "server.ready" for event in events)
            yield port
            process.terminate()
            process.stderr.read()

    return start
