"""docs/quickstart.md, followed from top to bottom: its files saved, its commands typed, its servers started."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import attrs
from maple_testing.guard import HANG_GUARD
from maple_testing.wire import free_port

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:8000"
SERVE = "python3 -m maple "
REAL_MODEL = "python3 -m maple --api-level extended\n"
"""The one command that is not followed here: it downloads gigabytes."""


@attrs.define
class Walk:
    """A reader in a folder, with the server that was started last."""

    start: StartServer
    folder: pathlib.Path
    address: str
    server: Server | None = None
    printed: dict[str, list[str]] = attrs.field(factory=dict)
    """Heading → what the commands under it printed, in order."""

    def follow(self, page: str) -> None:
        """Everything that the page shows, in its order."""
        for part in re.split(r"^## ", page.replace(ADDRESS, self.address), flags=re.MULTILINE):
            heading = part.partition("\n")[0]
            for language, name, text in BLOCK.findall(part):
                if name:
                    self._save(name, text)
                elif language == "bash":
                    self._type(heading, text)
                else:
                    assert text == REAL_MODEL

    def _save(self, name: str, text: str) -> None:
        """A new file, or one that the clone has and the page shows."""
        path = self.folder / name
        assert not path.exists() or path.read_text("utf-8") == text
        path.write_text(text, "utf-8")

    def _type(self, heading: str, text: str) -> None:
        last = text.rpartition("&&")[2].strip()
        if last.startswith(SERVE):
            self._serve(shlex.split(last.removeprefix(SERVE)))
        else:
            self.printed.setdefault(heading, []).append(self._run(text))

    def _serve(self, flags: list[str]) -> None:
        if self.server is not None:
            assert self.server.stop() == 0
        self.server = self.start("--port", self.address.rpartition(":")[2], *flags)

    def _run(self, command: str) -> str:
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            encoding="utf-8",
            timeout=HANG_GUARD,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout


def test_the_page_can_be_followed(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Each command does what the page says it does: answer, stream, tool, session over a restart, plugin."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    walk = Walk(start_server, tmp_path, f"127.0.0.1:{free_port()}")
    walk.follow(PAGE.read_text("utf-8"))

    (answer,) = walk.printed.pop("A first answer")
    message = json.loads(answer)["choices"][0]["message"]
    assert "391" in message["content"]
    assert message["reasoning_content"]

    raw, streamed = walk.printed.pop("A first stream")
    assert raw.endswith("data: [DONE]\n\n")
    assert streamed == message["reasoning_content"] + message["content"] + "\n"

    (told,) = walk.printed.pop("A tool, there and back")
    assert "sunny" in told

    before, after = walk.printed.pop("A conversation that outlives the server")
    assert "\n0 prompt tokens" in before
    assert "Ada" in after
    assert int(after.splitlines()[-1].split()[0]) > 0

    (called,) = walk.printed.pop("A format of your own")
    choice = json.loads(called)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": '{"city": "Lagos"}',
    }
    assert walk.printed == {}


def test_it_begins_as_the_readme_does() -> None:
    """The install line is the README's, which the newcomer's run types."""
    blocks = [text for language, _, text in BLOCK.findall(PAGE.read_text("utf-8")) if language == "bash"]
    assert f"```bash\n{blocks[0]}```" in (ROOT / "README.md").read_text("utf-8")
