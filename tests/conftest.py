"""Fixtures that every part of the test suite may use."""

from __future__ import annotations

import contextlib
import json
import lzma
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

ScriptedServer = Callable[..., contextlib.AbstractContextManager[int]]

DATA = pathlib.Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data_folder() -> pathlib.Path:
    """tests/data: the handed cases, golden checkpoints and tokenizer, never edited."""
    return DATA


@pytest.fixture(scope="session")
def golden_folder() -> pathlib.Path:
    """The small random Maple: one folder a spelling, each with its own 512-token tokenizer."""
    return DATA / "golden"


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
