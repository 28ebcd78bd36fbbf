"""From a clone to a first answer and to a parser plugin in use, by the commands in README.md and no others."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import attrs
import pytest
from maple_testing.guard import HANG_GUARD

ROOT = pathlib.Path(__file__).parents[2]
ADDRESS = "127.0.0.1:8000"
OURS = re.compile(r"^(MAPLE|PYTHON|TOX|COV|VIRTUAL_ENV|PIP_CONSTRAINT|PIP_REQUIRE|PYTEST)")
"""Variables of a test run, which a newcomer does not have."""

pytestmark = pytest.mark.slow


@attrs.frozen
class Readme:
    """The commands and samples of README.md, found by what they do."""

    text: str

    def block(self, language: str, words: str) -> str:
        """The one fenced block of a language that holds some words."""
        blocks: list[str] = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", self.text)
        (found,) = [block for block in blocks if words in block]
        return found

    def command(self, words: str) -> str:
        """The one command in running text that holds some words."""
        prose = re.sub(r"(?ms)^```.*?^```$", "", self.text)
        (found,) = [code for code in re.findall(r"`([^`]+)`", prose) if words in code]
        return " ".join(found.split())


@attrs.frozen
class Newcomer:
    """Somebody in a fresh clone."""

    clone: pathlib.Path
    environment: dict[str, str]

    def type(self, command: str) -> str:
        """What a command prints; it has to succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.clone,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=2 * HANG_GUARD,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Type a command that ends in a server, and give its address once it is ready. Ctrl-C ends it."""
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.clone,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,  # a terminal's ctrl-C reaches everything that the command started
        )
        guard = threading.Timer(2 * HANG_GUARD, os.killpg, (process.pid, signal.SIGKILL))
        guard.start()
        try:
            yield f"127.0.0.1:{_port_of_ready(process)}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            rest, _ = process.communicate()
            guard.cancel()
        assert "Traceback" not in rest


def _port_of_ready(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    lines = []
    port = 0
    for line in process.stdout:
        lines.append(line)
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "server.listening":
            port = event["port"]
        if event.get("event") == "server.ready":
            return port
    raise AssertionError("the server ended:\n" + "".join(lines))


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    """A clone of what is committed; gone afterwards, as it takes gigabytes."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository, so there is nothing to clone")
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(home / "clone")], check=True)
        inherited = {name: value for name, value in os.environ.items() if not OURS.match(name)}
        own = {
            # of the environment that the first command makes, once it is there
            "PATH": os.pathsep.join(
                [str(home / "clone/.venv/bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "MAPLE_PORT": "0",  # the README's may be taken
            "MAPLE_CACHE_DIR": str(home / "cache"),
        }
        yield Newcomer(home / "clone", {**inherited, **own})


def test_a_newcomer_gets_an_answer_and_serves_a_plugin(newcomer: Newcomer) -> None:
    """Install, serve, ask by curl and by the SDK; then test the sample parser, serve it, and see it at work."""
    readme = Readme((newcomer.clone / "README.md").read_text("utf-8"))
    curl = readme.block("bash", "curl")
    with newcomer.serving(readme.block("bash", "--demo")) as address:
        answer = json.loads(newcomer.type(curl.replace(ADDRESS, address)))
        assert "391" in answer["choices"][0]["message"]["content"]
        newcomer.type(f"python3 -m {readme.command('pip install openai')}")
        sample = readme.block("python", "from openai").replace(ADDRESS, address)
        (newcomer.clone / "sample.py").write_text(sample, "utf-8")
        assert "391" in newcomer.type("python3 sample.py")

    assert "14 passed" in newcomer.type(readme.command("pytest examples/"))
    with newcomer.serving(readme.command("--demo --tool-parser")) as address:
        answer = json.loads(newcomer.type(curl.replace(ADDRESS, address)))
        assert "391" in answer["choices"][0]["message"]["content"]
    with newcomer.serving(readme.command("--scripted examples/")) as address:
        choice = json.loads(newcomer.type(curl.replace(ADDRESS, address)))["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_a_contributor_runs_one_test(newcomer: Newcomer) -> None:
    """By the two commands of CONTRIBUTING.md."""
    page = Readme((newcomer.clone / "CONTRIBUTING.md").read_text("utf-8"))
    assert "passed" in newcomer.type(page.block("bash", "[test]"))
