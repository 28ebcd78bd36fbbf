"""Keys and the response store of a real process: what stops its start, and what SIGHUP changes."""

from __future__ import annotations

import pathlib
import signal
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

HELLO = {"match": None, "pieces": ["</think>", "hi"], "finish": "stop"}


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("alice:first\nbob:second\n", encoding="utf-8")
    return file


def status(server: Server, key: str) -> int:
    return server.request("GET", "/v1/models", Authorization=f"Bearer {key}").status


def refused_start(start: StartServer, script: str, settings: dict[str, str], code: int) -> str:
    """The one line of a server that does not start."""
    server = start("--scripted", script, settings=settings, ready=False)
    server.expected_code = code
    assert server.process.wait(60) == code
    server.stop()
    (line,) = [line for line in server.lines if line.startswith("maple: ")]
    assert line == server.lines[-1]
    return line


def test_sighup_rereads_the_key_file(
    start_server: StartServer, write_script: Callable[..., str], key_file: pathlib.Path
) -> None:
    """New keys open, old ones do not; a bad file changes nothing and is logged."""
    server = start_server("--scripted", write_script(HELLO), settings={"MAPLE_API_KEY_FILE": str(key_file)})
    assert [status(server, key) for key in ("first", "second", "third")] == [200, 200, 401]
    key_file.write_text("alice:third\n", encoding="utf-8")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("keys.reloaded", keys=1)
    assert [status(server, key) for key in ("first", "second", "third")] == [401, 401, 200]
    key_file.chmod(0o644)
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("keys.reload_failed")
    assert status(server, "third") == 200
    assert "third" not in server.log


@pytest.mark.parametrize("settings", [{}, {"MAPLE_API_KEY": "first"}])
def test_sighup_is_harmless_without_a_file(
    start_server: StartServer, write_script: Callable[..., str], settings: dict[str, str]
) -> None:
    """The server goes on as before."""
    server = start_server("--scripted", write_script(HELLO), settings=settings)
    server.process.send_signal(signal.SIGHUP)
    assert status(server, "first") == 200
    assert server.process.poll() is None


def test_the_access_line_names_the_keys_owner(
    start_server: StartServer, write_script: Callable[..., str], key_file: pathlib.Path
) -> None:
    """By the name in the file."""
    server = start_server("--scripted", write_script(HELLO), settings={"MAPLE_API_KEY_FILE": str(key_file)})
    assert status(server, "second") == 200
    server.wait_for("http.request", owner="bob", status=200)


@pytest.mark.parametrize(
    ("settings", "content", "mode", "code"),
    [
        ({"MAPLE_API_KEY": " "}, None, 0o600, 2),
        ({"MAPLE_API_KEY": "a", "MAPLE_API_KEY_FILE": "{file}"}, "name:key\n", 0o600, 1),
        ({"MAPLE_API_KEY_FILE": "{file}"}, None, 0o600, 1),
        ({"MAPLE_API_KEY_FILE": "{file}"}, "", 0o600, 1),
        ({"MAPLE_API_KEY_FILE": "{file}"}, "name:key\n", 0o644, 1),
    ],
    ids=["blank", "both", "missing", "empty", "readable by others"],
)
def test_keys_that_make_no_sense_stop_the_start(
    start_server: StartServer,
    write_script: Callable[..., str],
    tmp_path: pathlib.Path,
    settings: dict[str, str],
    content: str | None,
    mode: int,
    code: int,
) -> None:
    """In one line that names the variable or the file, and no key."""
    file = tmp_path / "keyfile"
    if content is not None:
        file.write_text(content, encoding="utf-8")
        file.chmod(mode)
    given = {name: text.format(file=file) for name, text in settings.items()}
    line = refused_start(start_server, write_script(HELLO), given, code)
    assert "MAPLE_API_KEY" in line or "keyfile" in line
    assert "name:key" not in line


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("postgres:x", 2, "use sqlite:FILE"),
        ("sqlite:", 2, "use sqlite:FILE"),
        ("sqlite:{folder}/none/x.db", 1, "No such file or directory"),
        ("sqlite:{folder}", 1, "Is a directory"),
        ("sqlite:{folder}/diary", 1, "is not a sound SQLite database"),
        ("sqlite:{folder}/other.db", 1, "another program"),
    ],
)
def test_a_store_that_cannot_be_used_stops_the_start(
    start_server: StartServer,
    write_script: Callable[..., str],
    tmp_path: pathlib.Path,
    place: str,
    code: int,
    words: str,
) -> None:
    """In one line that names the variable and says why; the file is left as it was."""
    (tmp_path / "diary").write_text("Dear diary, this is no database." * 9, encoding="utf-8")
    database = sqlite3.connect(tmp_path / "other.db")
    database.execute("CREATE TABLE diary (entry TEXT)")
    database.close()
    before = (tmp_path / "diary").read_bytes(), (tmp_path / "other.db").read_bytes()
    settings = {"MAPLE_RESPONSE_STORE": place.format(folder=tmp_path)}
    line = refused_start(start_server, write_script(HELLO), settings, code)
    assert "MAPLE_RESPONSE_STORE" in line
    assert words in line
    assert ((tmp_path / "diary").read_bytes(), (tmp_path / "other.db").read_bytes()) == before


def test_stored_responses_outlive_the_process(
    start_server: StartServer, write_script: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    """Stopped and started again, the server has them, and goes on from them."""
    settings = {"MAPLE_RESPONSE_STORE": f"sqlite:{tmp_path}/responses.db"}
    script = write_script(HELLO)
    first = start_server("--scripted", script, settings=settings)
    made = first.request("POST", "/v1/responses", {"input": "hi", "store": True}).json
    assert first.stop() == 0
    assert (tmp_path / "responses.db").stat().st_mode & 0o777 == 0o600
    second = start_server("--scripted", script, settings=settings)
    assert second.request("GET", f"/v1/responses/{made['id']}").json == made
    going_on = {"input": "more", "previous_response_id": made["id"]}
    assert second.request("POST", "/v1/responses", going_on).json["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("shared", [False, True])
def test_reuse_never_crosses_keys(start_server: StartServer, key_file: pathlib.Path, shared: bool) -> None:
    """What one key's prompts left in the cache serves that key only, unless MAPLE_SHARED_PREFIX_CACHE is on."""
    settings = {"MAPLE_API_KEY_FILE": str(key_file), "MAPLE_SHARED_PREFIX_CACHE": str(shared).lower()}
    server = start_server("--demo", settings=settings)
    story = "A small server kept a long story for itself. " * 20
    body = {"messages": [{"role": "user", "content": story}], "max_tokens": 2, "temperature": 0}

    def cached(key: str) -> int:
        answer = server.request("POST", "/v1/chat/completions", body, Authorization=f"Bearer {key}")
        found: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached("first") == 0
    assert cached("first") > 0
    assert (cached("second") > 0) is shared
