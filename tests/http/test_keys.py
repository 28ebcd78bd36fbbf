"""Keys: which open the server, whose they are, and what a bad file does."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest

from maple.http.keys import Keyring, KeysUnusable
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

OPEN = ("/health", "/healthz", "/readyz")
CLOSED = ("/v1/models", "/v1/models/x", "/v1/stats", "/metrics")


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "keys"
    write(file, "alice:secret-a\n\n# a comment\n  bob:secret-b  \nsecret-c\n")
    return file


def write(file: pathlib.Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)


def test_without_keys_everyone_may_enter_as_nobody() -> None:
    """There is one owner, whose name is empty."""
    assert not Keyring.open(None, None).required


@pytest.mark.parametrize("key", ["", "  ", "\n"])
def test_a_blank_key_stops_the_start(key: str) -> None:
    """It would look like a protected server and be an open one."""
    with pytest.raises(KeysUnusable, match="blank"):
        Keyring.open(key, None)


def test_both_variables_at_once_stop_the_start(key_file: pathlib.Path) -> None:
    """Nobody could tell which one holds."""
    with pytest.raises(KeysUnusable, match="not both"):
        Keyring.open("secret", key_file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no key"),
        ("# only this\n\n", "holds no key"),
        ("a b c\n", "line 1"),
        ("good\nalice:\n", "line 2"),
        (":key\n", "line 1"),
        ("two words:key\n", "line 1"),
        ("alice:hunter2\nbob:hunter2\n", "two names"),
    ],
)
def test_a_key_file_that_makes_no_sense_stops_the_start(
    tmp_path: pathlib.Path, text: str, reason: str
) -> None:
    """Empty, or with a line that is neither a key nor name:key; no key is in the message."""
    write(tmp_path / "keys", text)
    with pytest.raises(KeysUnusable, match=reason) as caught:
        Keyring.open(None, tmp_path / "keys")
    assert "hunter2" not in str(caught.value)


def test_a_missing_key_file_stops_the_start(tmp_path: pathlib.Path) -> None:
    """And says so in one line, without the path."""
    with pytest.raises(KeysUnusable, match="cannot be read") as caught:
        Keyring.open(None, tmp_path / "nowhere")
    assert str(tmp_path) not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601, 0o666])
def test_a_key_file_that_others_can_reach_stops_the_start(key_file: pathlib.Path, mode: int) -> None:
    """A secret that everyone on the machine can read is none."""
    key_file.chmod(mode)
    with pytest.raises(KeysUnusable, match="other users"):
        Keyring.open(None, key_file)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (2**20 + 1)])
def test_a_key_file_that_is_no_text_or_too_large_stops_the_start(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    """Someone named the wrong file."""
    write(tmp_path / "keys", "")
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(KeysUnusable):
        Keyring.open(None, tmp_path / "keys")


def test_each_key_has_its_owner(key_file: pathlib.Path) -> None:
    """Named ones go by their name, a nameless one by a fingerprint that tells nothing of it."""
    keyring = Keyring.open(None, key_file)
    assert (keyring.owner(b"secret-a"), keyring.owner(b"secret-b")) == ("alice", "bob")
    nameless = keyring.owner(b"secret-c")
    assert nameless is not None
    assert nameless.startswith("key-")
    assert "secret" not in nameless
    assert {keyring.owner(wrong) for wrong in (b"", b"secret", b"secret-A", b"alice", b"\xff")} == {None}


def test_a_nameless_key_keeps_its_owner_when_its_line_moves(key_file: pathlib.Path) -> None:
    """What it owns must not fall to another."""
    keyring = Keyring.open(None, key_file)
    before = keyring.owner(b"secret-c")
    write(key_file, "secret-c\nsecret-d\n")
    keyring.reload()
    assert keyring.owner(b"secret-c") == before != keyring.owner(b"secret-d")


def test_one_owner_may_have_two_keys(tmp_path: pathlib.Path) -> None:
    """That is how a key is changed without a gap."""
    write(tmp_path / "keys", "alice:old\nalice:new\n")
    keyring = Keyring.open(None, tmp_path / "keys")
    assert keyring.owner(b"old") == keyring.owner(b"new") == "alice"


def test_a_key_of_any_letters_is_compared_as_bytes(tmp_path: pathlib.Path) -> None:
    """UTF-8, with or without a byte order mark."""
    (tmp_path / "keys").touch(mode=0o600)
    (tmp_path / "keys").write_bytes("\ufeffalice:schlüssel\n".encode())
    assert Keyring.open(None, tmp_path / "keys").owner("schlüssel".encode()) == "alice"


def test_reloading_takes_new_keys_and_drops_old_ones(key_file: pathlib.Path) -> None:
    """SIGHUP rereads the file."""
    keyring = Keyring.open(None, key_file)
    write(key_file, "carol:secret-d\n")
    keyring.reload()
    assert (keyring.owner(b"secret-a"), keyring.owner(b"secret-d")) == (None, "carol")


def test_a_bad_file_at_reload_changes_nothing(key_file: pathlib.Path, log_lines) -> None:
    """The old keys stay, and one log line says why, without a key in it."""
    keyring = Keyring.open(None, key_file)
    write(key_file, "broken line\n")
    keyring.reload()
    assert keyring.owner(b"secret-a") == "alice"
    (line,) = [line for line in log_lines() if line["event"] == "keys.reload_failed"]
    assert "broken" not in line["reason"]
    key_file.unlink()
    keyring.reload()
    assert keyring.owner(b"secret-a") == "alice"


def test_reloading_without_a_file_is_harmless() -> None:
    """SIGHUP comes for other reasons, too."""
    for keyring in (Keyring.open(None, None), Keyring.open("secret", None)):
        keyring.reload()
    assert keyring.owner(b"secret") == "default"


# Over HTTP.


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "BeArEr"])
def test_the_scheme_word_may_be_in_any_case(serve: Serve, scheme: str) -> None:
    """As HTTP says."""
    assert serve(api_key="secret").get("/v1/models", Authorization=f"{scheme} secret").status == 200


def test_which_routes_are_open_beside_a_key(serve: Serve) -> None:
    """Probes are; everything else, metrics and stats too, is not."""
    server = serve(api_key="secret")
    assert {server.get(path).status for path in OPEN} == {200}
    assert {server.get(path).status for path in CLOSED} == {401}
    assert {server.get(path, Authorization="Bearer secret").status for path in CLOSED} == {200}
    assert server.chat().status == 401
    assert server.request("DELETE", "/v1/sessions/abc").status == 401


def test_public_metrics_are_metrics_alone(serve: Serve) -> None:
    """MAPLE_METRICS_PUBLIC opens /metrics, not /v1/stats."""
    server = serve(api_key="secret", metrics_public=True)
    assert server.get("/metrics").status == 200
    assert server.get("/v1/stats").status == 401


def test_a_key_outside_ascii_works_over_http(serve: Serve) -> None:
    """Header bytes are taken as they came."""
    server = serve(api_key="schlüssel")
    request = (
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + "schlüssel".encode() + b"\r\n\r\n"
    )
    with server.send(request) as raw:
        assert server.read_answer(raw).status == 200


def test_the_owner_is_in_the_access_line_and_the_key_is_not(
    serve: Serve, key_file: pathlib.Path, log_lines
) -> None:
    """Operators see who, nobody sees with what."""
    server = serve(api_key_file=key_file)
    server.get("/v1/models", Authorization="Bearer secret-a")
    server.get("/v1/models", Authorization="Bearer wrong-one")
    server.settle()
    lines = [line for line in log_lines() if line["event"] == "http.request"]
    assert [(line["status"], line["owner"]) for line in lines] == [(200, "alice"), (401, "")]
    assert not [line for line in log_lines() if "secret" in str(line) or "wrong-one" in str(line)]


def test_jobs_belong_to_the_key_that_asked(serve: Serve, key_file: pathlib.Path) -> None:
    """The engine is told the owner, so that nothing is shared between two."""
    server = serve(Recording(pieces=tuple("abc"), delay_ms=50), api_key_file=key_file)
    raw = server.send(
        server.request_bytes(
            "/v1/chat/completions", server.chat_body(stream=True), Authorization="Bearer secret-b"
        )
    )
    with raw:
        server.read_until(raw, b"data:")
        owners = server.call(lambda: [job.owner for job in server.engine.jobs()])
        server.read_until(raw, b"[DONE]")
    assert owners == ["bob"]


def test_a_key_is_asked_for_before_anything_else_is_told(serve: Serve) -> None:
    """Without a key one learns neither whether the model is loaded nor whether a body was good."""
    server: LiveServer = serve(api_key="secret", loaded=False)
    assert server.chat().status == 401
    assert server.post("/v1/chat/completions", b"{nope").status == 401
    assert server.request("POST", "/v1/sessions/..%2f/save").status == 401
