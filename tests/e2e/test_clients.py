"""docs/clients.md: each sample runs as it is printed, and what the settings table promises holds."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from maple_testing.guard import HANG_GUARD

from maple.settings import Settings

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
SAMPLES = PAGE.partition("\n## Agents\n")[0]  # agents have tests of their own
BLOCKS = {
    name or language: text
    for language, name, text in re.findall(r"(?ms)^```(\w*) ?(\S*)\n(.*?)^```$", SAMPLES)
}
ADDRESS = "127.0.0.1:8000"
OPENAI_JS = "openai@7.59.0"
THOUGHT = "thought: \\S(?s:.)*answer: .*391"
STREAMED = "\n.*391.*\n$"
EXPECTED = {
    "openai_python.py": THOUGHT + "(?s:.)*" + STREAMED,
    "anthropic_python.py": "answer: .*391(?s:.)*" + STREAMED,
    "ollama_python.py": THOUGHT + "(?s:.)*" + STREAMED,
    "openai_javascript.mjs": THOUGHT + "(?s:.)*" + STREAMED,
    "langchain_sample.py": "391.*\n(?s:.)*sunny",
    "litellm_sample.py": THOUGHT + "(?s:.)*" + STREAMED,
    "agents_sample.py": "sunny",
}
"""What a sample prints, at the least."""


@pytest.fixture(scope="session")
def node_folder() -> pathlib.Path:
    """A folder with the openai package for JavaScript, kept between runs."""
    folder = ROOT / ".pytest_cache" / OPENAI_JS.replace("@", "-")
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    if not (folder / "node_modules" / "openai" / "package.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            "npm",
            "install",
            "--prefix",
            str(folder),
            "--no-save",
            "--no-audit",
            "--no-fund",
            OPENAI_JS,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def sample_folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path, sample: str) -> pathlib.Path:
    """Where a sample lies: Node looks for packages beside the file, Python does not."""
    return request.getfixturevalue("node_folder") if sample.endswith(".mjs") else tmp_path


def run(*words: str) -> str:
    """What a command prints, which must succeed without a word on stderr."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # as the page advises
    done = subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", timeout=HANG_GUARD)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_block_is_covered_here() -> None:
    """A new sample needs to be told what it should print."""
    assert set(BLOCKS) == {"bash", *EXPECTED}


@pytest.mark.parametrize("sample", EXPECTED)
def test_the_sample_runs(demo_server: Server, sample_folder: pathlib.Path, sample: str) -> None:
    """With the package that its section names, against a real model: answers, streams and tool calls."""
    file = sample_folder / sample
    file.write_text(BLOCKS[sample].replace(ADDRESS, f"127.0.0.1:{demo_server.port}"), "utf-8")
    printed = run("node" if sample.endswith(".mjs") else sys.executable, str(file))
    assert re.search(EXPECTED[sample], printed), printed


def test_the_curl_sample_runs(demo_server: Server) -> None:
    """Typed in as it stands."""
    command = BLOCKS["bash"].replace(ADDRESS, f"127.0.0.1:{demo_server.port}")
    answer = json.loads(run("bash", "-euo", "pipefail", "-c", command))
    assert "391" in answer["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def default_server(start_session_server: StartServer) -> Server:
    """With everything by default but the engine."""
    return start_session_server("--scripted", str(ROOT / "examples" / "shout.jsonl"))


def test_the_table_has_the_defaults(default_server: Server) -> None:
    """The model's name is the listed one; the limits are the settings'."""
    (card,) = default_server.request("GET", "/v1/models").json["data"]
    assert f"| model | `{card['id']}`" in PAGE
    assert f"| {Settings().max_prompt_tokens:,} prompt tokens by default" in PAGE
    assert f"| {Settings().max_new_tokens:,} tokens where" in PAGE


def test_any_key_and_any_model_do(default_server: Server) -> None:
    """Where the server has no key and is not strict about the model."""
    answer = default_server.request(
        "POST",
        "/v1/chat/completions",
        {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]},
        Authorization="Bearer whatever",
    )
    assert (answer.status, answer.json["model"]) == (200, "gpt-x")


def test_a_base_url_with_the_version_twice_is_told(default_server: Server) -> None:
    """The 404 names the route that was meant."""
    answer = default_server.request("POST", "/v1/v1/chat/completions", {"messages": []})
    assert answer.status == 404
    assert "did you mean" in answer.json["error"]["message"]


def test_the_extra_field_turns_thinking_off(demo_server: Server) -> None:
    """As the table gives it."""
    (field,) = re.findall(r'"chat_template_kwargs": (\{.*?\})', PAGE)
    answer = demo_server.chat("What is 2 + 3?", chat_template_kwargs=json.loads(field))
    message: Any = answer.json["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert "5" in message["content"]
