"""GET /v1/slots, /slots, /props, /version, and the route for embeddings: what other servers' tools look at."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from maple.engine.admission import QueueLimits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    import pathlib

    from tests.http.conftest import LiveServer, Serve

SLOW = Recording(pieces=tuple("abcdefghij" * 100), delay_ms=20)
SECRET = "a-word-of-the-prompt"


def test_own_requests_are_shown_by_what_they_do(serve: Serve) -> None:
    """One decodes, one waits; no word of either. The list of slots shows the first alone."""
    server = serve(SLOW, queue=QueueLimits(slots=1))
    with server.open_stream(SECRET) as first, server.open_stream(SECRET):
        server.read_until(first, b'_content":"a"')
        server.until(lambda: server.engine.stats().waiting == 1)
        answer, slots = server.get("/v1/slots"), server.get("/slots")
    running, waiting = answer.json["data"]
    assert (running["state"], waiting["state"]) == ("decode", "queued")
    assert running["prompt"]["total"] == running["prompt"]["processed"] == len(server.engine.last_prompt)
    assert running["generated"] > 0
    assert running["tokens_per_second"] > 0
    assert (waiting["generated"], waiting["prompt"]["processed"]) == (0, 0)
    assert set(running) == {"id", "state", "age_s", "prompt", "generated", "tokens_per_second"}
    assert answer.json["total_slots"] == 1
    [slot] = slots.json
    assert (slot["id"], slot["is_processing"], slot["request"]["id"]) == (0, True, running["id"])
    assert SECRET.encode() not in answer.body + slots.body


def test_other_keys_requests_are_counts(serve: Serve, tmp_path: pathlib.Path) -> None:
    """Neither their ids nor their sizes are told."""
    keys = tmp_path / "keys"
    keys.write_text("ann:key-of-ann-1234567890\nbob:key-of-bob-1234567890\n")
    keys.chmod(0o600)
    server = serve(SLOW, queue=QueueLimits(slots=1), api_key_file=keys)
    body, bearers = server.chat_body(stream=True), ("key-of-ann-1234567890", "key-of-bob-1234567890")
    with contextlib.ExitStack() as held:
        for bearer in (bearers[0], bearers[0], bearers[1]):
            raw = held.enter_context(server.connect())
            raw.sendall(server.request_bytes("/v1/chat/completions", body, Authorization=f"Bearer {bearer}"))
        server.until(lambda: len(server.engine.jobs()) == 3)
        seen = server.get("/v1/slots", Authorization=f"Bearer {bearers[1]}").json
        [slot] = server.get("/slots", Authorization=f"Bearer {bearers[1]}").json
    assert [one["state"] for one in seen["data"]] == ["queued"]
    assert seen["others"] == {"running": 1, "waiting": 1}
    assert slot["is_processing"]
    assert "request" not in slot
    assert server.get("/v1/slots").status == 401


def test_what_is_served_is_told_in_llama_servers_words(serve: Serve) -> None:
    """The window, the defaults, the template that prompts are rendered with; no folder of this machine."""
    server = serve(temperature=0.25, top_p=0.5, top_k=7, max_new_tokens=99)
    props = server.get("/props").json
    served = server.engine.served
    assert served is not None
    defaults = props["default_generation_settings"]
    assert defaults["n_ctx"] == served.max_model_len
    assert defaults["params"] == {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "n_predict": 99}
    assert props["chat_template"] == (served.folder / "chat_template.jinja").read_text("utf-8")
    assert (props["total_slots"], props["model_path"]) == (server.engine.slots, "maple-tiny")
    assert props["eos_token"] == "<|im_end|>"
    assert props["modalities"] == {"vision": False, "audio": False}


def test_versions_and_embeddings(server: LiveServer, serve: Serve) -> None:
    """The version is the server's own. Embeddings are refused for good, whatever the state of the model."""
    assert server.get("/version").json == {"version": "1.2.3"}
    for one in (server, serve(loaded=False)):
        refused = one.post("/v1/embeddings", {"input": "a"})
        assert (refused.status, refused.error["code"]) == (501, "not_supported")
        assert refused.headers["x-should-retry"] == "false"
