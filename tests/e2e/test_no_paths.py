"""No answer over HTTP tells where on the machine anything lies."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

import maple

Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: pathlib.Path) -> Ask:
    """One request, whose answer is looked through for the folders that a server is told of or runs in."""
    package = pathlib.Path(maple.__file__).parent
    places = {tmp_path, pathlib.Path.home(), pathlib.Path(sys.prefix), package, package.parent}
    told = [f"{place}/" for place in (*places, tempfile.gettempdir())]

    def ask(server: Any, method: str, path: str, body: object = None) -> Any:
        answer = server.request(method, path, body)
        everything = answer.body.decode() + str(answer.headers)
        assert [place for place in told if place in everything] == [], (method, path)
        return answer

    return ask


def every_get(server: Any) -> list[str]:
    """The paths of the server's own description that answer GET, an x for each part that varies."""
    paths = server.request("GET", "/openapi.json").json["paths"]
    found = [path for path, methods in paths.items() if "get" in methods]
    return ["/".join("x" if part.startswith("{") else part for part in path.split("/")) for path in found]


@pytest.fixture
def folder(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A model in a folder that a server must not tell of."""
    return pathlib.Path(shutil.copytree(golden_folder / "mlx-2bit", tmp_path / "models" / "maple-small"))


def test_neither_what_is_served_nor_what_fails_tells_a_path(
    start_server: Any, ask: Ask, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Every GET route, then sessions and stored responses whose files are damaged, missing or no files."""
    settings = {
        "MAPLE_MODEL_PATH": str(folder),
        "MAPLE_SESSION_DIR": str(tmp_path / "sessions"),
        "MAPLE_RESPONSE_STORE": f"sqlite:{tmp_path / 'responses.db'}",
        "MAPLE_API_LEVEL": "extended",
    }
    server = start_server(settings=settings)
    server.wait_for_health("ok")
    paths = every_get(server)
    assert {"/health", "/props", "/v1/stats", "/slots", "/v1/models"} <= set(paths)
    for path in (*paths, "/v1/stats?format=json", "/nowhere"):
        ask(server, "GET", path)
    server.chat("hi", max_tokens=4, session_id="s")
    assert ask(server, "POST", "/v1/sessions/s/save").status == 200
    for saved in (tmp_path / "sessions").rglob("*.safetensors"):
        saved.write_bytes(b"none")
    assert ask(server, "POST", "/v1/sessions/s/load").status == 422
    assert ask(server, "GET", "/v1/sessions/none/manifest").status == 404
    shutil.rmtree(tmp_path / "sessions")
    (tmp_path / "sessions").write_bytes(b"")
    assert ask(server, "POST", "/v1/sessions/s/save").status >= 500
    with contextlib.closing(sqlite3.connect(tmp_path / "responses.db")) as database:
        database.execute("DROP TABLE responses")
    assert ask(server, "POST", "/v1/responses", {"input": "hi", "store": True}).status == 500


@pytest.mark.parametrize("fault", ["missing", "truncated"])
def test_a_model_that_cannot_be_loaded_tells_no_path(
    start_server: Any, ask: Ask, folder: pathlib.Path, fault: str
) -> None:
    """Neither its own answers nor the refusals of others."""
    if fault == "missing":
        shutil.rmtree(folder)
    else:
        (folder / "model.safetensors").write_bytes(b"\x10")
    server = start_server("--model-path", str(folder), ready=False)
    assert server.wait_for_health("error").status == 503
    for path in every_get(server):
        ask(server, "GET", path)
    assert ask(server, "POST", "/v1/chat/completions", {"messages": []}).status == 503
