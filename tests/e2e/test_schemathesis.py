"""schemathesis reads /openapi.json and attacks every route of a real server on the scripted engine."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from maple_testing.guard import HANG_GUARD

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

EXCLUDED = {
    "positive_data_acceptance": (
        "JSON Schema takes 2.0 for an integer, and the contract does not; it cannot say that tool_choice "
        "must name one of the tools, token ids be in the vocabulary, or template variables be the template's"
    ),
}
"""Checks that contradict the contract, each with its reason. All others run."""

UNDESCRIBED = "^/(v1/embeddings$|api/)"
"""Embeddings are answered with 501 on purpose, which counts as a server's error. Ollama's routes have errors of their
own shape, and 501 for what is not served: Ollama's API page is their description."""

SCRIPT = ({"match": None, "pieces": ["Hm.", "</think>", "\n\nHello", " world"], "finish": "stop"},)
"""A busy machine's patience; a quiet one needs a fifth of it."""


@pytest.fixture
def attacked(start_server: StartServer, write_script: Callable[..., str], tmp_path: pathlib.Path) -> Server:
    """A server with a key, a session folder and a response store: no route is off."""
    (tmp_path / "sessions").mkdir()
    settings = {
        "MAPLE_API_KEY": "secret",
        "MAPLE_SESSION_DIR": str(tmp_path / "sessions"),
        "MAPLE_RESPONSE_STORE": f"sqlite:{tmp_path}/responses.db",
    }
    return start_server("--scripted", write_script(*SCRIPT), settings=settings)


def run(server: Server, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json"),
        *("--header", "Authorization: Bearer secret", "--checks", "all"),
        *("--exclude-checks", ",".join(EXCLUDED), "--exclude-path-regex", UNDESCRIBED),
        *("--phases", "coverage,fuzzing,stateful", "--max-examples", "10"),
        *("--continue-on-failure", "--no-color", "--seed", "6"),
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_GUARD)


def test_schemathesis_finds_nothing(attacked: Server, tmp_path: pathlib.Path) -> None:
    """Answers are as described, what is malformed is refused, and keys are asked for."""
    found = run(attacked, tmp_path)
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr
    assert "Stateful" in found.stdout
    assert "http.crash" not in attacked.log
