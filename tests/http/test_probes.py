"""GET /health, /healthz and /readyz, in every state of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maple.http.services import model_label
from maple.scripted.script import Recording

if TYPE_CHECKING:
    import pathlib

    from tests.http.conftest import LiveServer, Serve

HEALTH_KEYS = [
    "status",
    "model",
    "model_path",
    "device",
    "dtype",
    "attention",
    "load_seconds",
    "queue_depth",
    "active",
    "version",
    "error",
]


def test_health_when_all_is_well(server: LiveServer) -> None:
    """The reference's ten keys, and error."""
    answer = server.get("/health")
    assert answer.status == 200
    assert list(answer.json) == HEALTH_KEYS
    assert (answer.json["status"], answer.json["model"], answer.json["error"]) == (
        "ok",
        "maple-preview",
        None,
    )
    assert (answer.json["model_path"], answer.json["version"]) == ("maple-tiny", "1.2.3")


def test_health_while_loading_is_200(serve: Serve) -> None:
    """An orchestrator must not kill a server that loads; what is not known yet is null."""
    answer = serve(loaded=False).get("/health")
    assert (answer.status, answer.json["status"]) == (200, "loading")
    assert {answer.json[key] for key in ("device", "dtype", "attention", "load_seconds", "error")} == {None}


def test_a_load_tells_how_far_it_is(serve: Serve) -> None:
    """Until the model is there /health and /v1/stats have one key more, and Retry-After is the time left."""
    server = serve(loaded=False)
    gauge = server.engine.loading
    gauge.report("packing", 0, 4_000)
    gauge.report("packing", 1_000, 4_000)
    told = {"phase": "packing", "done": 1_000, "total": 4_000}
    health, stats = server.get("/health").json, server.get("/v1/stats?format=json").json
    assert list(health) == [*HEALTH_KEYS, "loading"]
    assert health["loading"] == stats["loading"] == told
    assert "packing 1000/4000" in server.get("/v1/stats").body.decode()
    left = gauge.seconds_left
    answer = server.chat()
    assert answer.error["code"] == "model_loading"
    assert left is not None
    assert int(answer.headers["Retry-After"]) >= 1
    assert "loading" not in serve().get("/v1/stats?format=json").json


def test_health_after_a_failed_load_is_503_with_one_line(serve: Serve) -> None:
    """The process lives on to tell why."""
    server = serve(loaded=False)
    server.call(lambda: server.services.turns.fail("tokenizer.json: broken"))
    answer = server.get("/health")
    assert (answer.status, answer.json["status"], answer.json["error"]) == (
        503,
        "error",
        "tokenizer.json: broken",
    )


def test_health_counts_who_runs_and_who_waits(serve: Serve) -> None:
    """As of now."""
    server = serve(Recording(pieces=tuple("abcdefghij" * 10), delay_ms=20))
    with server.open_stream() as first:
        server.read_until(first, b"data:")
        with server.open_stream():
            server.until(lambda: server.engine.stats().waiting == 1)
            health = server.get("/health").json
            assert (health["active"], health["queue_depth"]) == (1, 1)


@pytest.mark.parametrize("state", ["loading", "ready", "failed", "draining"])
def test_liveness_is_always_ok(serve: Serve, state: str) -> None:
    """The process answers: no more is asked."""
    answer = _in(state, serve).get("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok", "service": "maple"})


@pytest.mark.parametrize(
    ("state", "status"), [("loading", 503), ("ready", 200), ("failed", 503), ("draining", 503)]
)
def test_readiness_tells_the_state_and_who_answers(serve: Serve, state: str, status: int) -> None:
    """The identity is the same in each."""
    answer = _in(state, serve).get("/readyz")
    assert answer.status == status
    assert answer.json == {
        "status": state,
        "service": "maple",
        "model": "maple-preview",
        "model_path": "maple-tiny",
        "version": "1.2.3",
    }


def _in(state: str, serve: Serve) -> LiveServer:
    server = serve(Recording(pieces=("x",), delay_ms=2000), loaded=state in ("ready", "draining"))
    if state == "failed":
        server.call(lambda: server.services.turns.fail("broken"))
    if state == "draining":
        server.hold(server.open_stream())  # keeps the drain from ending
        server.until(lambda: server.engine.stats().running == 1)
        server.spawn(server.running.drain(30))
        server.until(lambda: server.engine.draining)
    return server


@pytest.mark.parametrize("hub_id", ["deepgrove/maple-preview", "maple"])
def test_a_hub_id_is_shown_as_it_is(hub_id: str) -> None:
    """It is no secret."""
    assert model_label(hub_id) == hub_id


def test_of_a_folder_only_the_last_name_is_shown(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is, whether or not it is there, and however it was spelled."""
    (tmp_path / "sub" / "weights").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    spellings = (f"{tmp_path}/sub/weights", "sub/weights", "./sub/weights/", "/nowhere/weights", "~/weights")
    assert {model_label(spelling) for spelling in spellings} == {"weights"}
