"""Starting and stopping: loads that fail, a drain, signals, settings, and the port."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
SLOW = {"pieces": ["x"] * 10, "delay_ms": 100}


def read_all(connection: socket.socket) -> bytes:
    found = bytearray()
    while chunk := connection.recv(65536):
        found += chunk
    return bytes(found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_finishes_what_runs(start_server: Any, write_script: Any, number: int) -> None:
    """The stream under way ends whole, newcomers are refused, and the exit code is 0."""
    server = start_server("--scripted", write_script(SLOW))
    with server.raw(CHAT, BODY) as connection:
        first = connection.recv(65536)
        server.process.send_signal(number)
        server.wait_for("server.draining")
        refused = server.request("POST", CHAT, BODY)
        assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
        assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("5", "close")
        ready = server.request("GET", "/readyz")
        assert (ready.status, ready.json["status"]) == (503, "draining")
        assert server.request("GET", "/healthz").status == 200
        whole = first + read_all(connection)
    assert whole.count(b'"reasoning_content":"') == 10
    assert b'"finish_reason":"stop"' in whole
    assert b"data: [DONE]\n\n" in whole
    assert server.process.wait(timeout=HANG_GUARD) == 0


def test_a_drain_has_an_end(start_server: Any, write_script: Any) -> None:
    """What does not finish in time is told so in band; the exit code is still 0."""
    server = start_server(
        "--scripted", write_script({"pieces": ["x"] * 999, "delay_ms": 500}), "--drain-timeout", "1"
    )
    with server.raw(CHAT, BODY) as connection:
        connection.recv(65536)
        server.process.send_signal(signal.SIGTERM)
        rest = read_all(connection)
    assert b'"code":"shutting_down"' in rest
    assert b"data: [DONE]\n\n" in rest
    assert b'"finish_reason":"' not in rest
    assert server.process.wait(timeout=HANG_GUARD) == 0
    assert server.wait_for("server.stopped")["complete"] is False


def test_waiting_requests_are_served_in_a_drain(start_server: Any, write_script: Any) -> None:
    """A request that was taken before the signal is answered, though it has to wait."""
    server = start_server("--scripted", write_script(SLOW))
    with server.raw(CHAT, BODY) as first, server.raw(CHAT, {**BODY, "stream": False}) as second:
        server.wait_for_stats(running=1, waiting=1)
        server.process.send_signal(signal.SIGTERM)
        assert b"[DONE]" in read_all(first)
        assert b'"finish_reason":"stop"' in read_all(second)
    assert server.process.wait(timeout=HANG_GUARD) == 0


def test_a_second_signal_ends_at_once(write_script: Any, start_server: Any) -> None:
    """Whoever cannot wait for the drain sends the signal again."""
    server = start_server("--scripted", write_script({"pieces": ["x"] * 999, "delay_ms": 500}))
    with server.raw(CHAT, BODY) as connection:
        connection.recv(65536)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("server.draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=HANG_GUARD) == 1
    server.expected_code = 1


def test_a_signal_while_loading(start_server: Any, golden_folder: pathlib.Path) -> None:
    """A server that still loads stops cleanly too."""
    server = start_server("--model-path", str(golden_folder / "mlx-2bit"), ready=False)
    server.wait_for("server.listening")
    assert server.request("GET", "/healthz").status == 200
    assert server.stop() == 0


def _truncate(folder: pathlib.Path) -> None:
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4096])


def _without_a_layer(folder: pathlib.Path) -> None:
    _change_config(folder, num_hidden_layers=5)


def _another_shape(folder: pathlib.Path) -> None:
    _change_config(folder, hidden_size=256)


def _another_model(folder: pathlib.Path) -> None:
    _change_config(folder, model_type="llama", architectures=["LlamaForCausalLM"])


def _no_config(folder: pathlib.Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: pathlib.Path) -> None:
    (folder / "config.json").write_text("{")


def _no_tokenizer(folder: pathlib.Path) -> None:
    (folder / "tokenizer.json").unlink()


def _broken_template(folder: pathlib.Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")


def _gone(folder: pathlib.Path) -> None:
    shutil.rmtree(folder)


def _change_config(folder: pathlib.Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SPOILED = {
    "missing folder": _gone,
    "truncated shard": _truncate,
    "layers that are not there": _without_a_layer,
    "wrong shape": _another_shape,
    "another model": _another_model,
    "no config": _no_config,
    "broken config": _broken_config,
    "no tokenizer": _no_tokenizer,
    "broken template": _broken_template,
}


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path, golden_folder: pathlib.Path) -> pathlib.Path:
    """A copy of the golden checkpoint that a test may spoil."""
    return shutil.copytree(golden_folder / "mlx-2bit", tmp_path / "checkpoint", copy_function=shutil.copyfile)


@pytest.mark.parametrize("name", SPOILED)
def test_a_load_that_fails(start_server: Any, checkpoint: pathlib.Path, name: str) -> None:
    """The process lives on, says in one line what is wrong, and refuses generation with a 503."""
    SPOILED[name](checkpoint)
    server = start_server("--model-path", str(checkpoint), ready=False)
    server.wait_for("engine.load_failed", "server.tokenizer_unusable")
    health = server.wait_for_health("error")
    assert (health.status, health.json["status"]) == (503, "error")
    assert health.json["error"]
    assert "\n" not in health.json["error"]
    assert str(checkpoint.parent) not in health.body.decode()
    ready = server.request("GET", "/readyz")
    assert (ready.status, ready.json["status"]) == (503, "failed")
    for stream in (True, False):
        refused = server.chat("hi", stream=stream)
        assert (refused.status, refused.json["error"]["code"]) == (503, "model_failed")
        assert refused.json["error"]["type"] == "server_error"
        assert "Retry-After" not in refused.headers
    assert server.request("GET", "/v1/models").status == 200
    assert server.process.poll() is None


def test_a_template_that_does_not_take_everything(start_server: Any, checkpoint: pathlib.Path) -> None:
    """What a template refuses is the client's error, what it breaks on the server's; no text of either is logged."""
    (checkpoint / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ m.content | int(m.content.nothing.at_all) }}{% endfor %}"
    )
    server = start_server("--model-path", str(checkpoint))
    refused = server.request("POST", CHAT, {"messages": [{"role": "system", "content": "x"}]})
    assert (refused.status, refused.json["error"]["param"]) == (400, "messages")
    assert "no system role" in refused.json["error"]["message"]
    broken = server.chat("secret words", stream=True)
    assert (broken.status, broken.json["error"]["type"]) == (500, "server_error")
    assert server.wait_for("prompt.template_failed")["reason"] == "UndefinedError in line 1"
    assert "secret" not in server.log


def test_while_loading(start_server: Any, golden_folder: pathlib.Path) -> None:
    """Until the weights are there, generation is refused with a time to come back, and the rest answers."""
    server = start_server("--model-path", str(golden_folder / "mlx-2bit"), ready=False)
    health = server.request("GET", "/health")
    refused = server.chat("hi")
    assert (health.status, health.json["status"]) == (200, "loading")
    assert (refused.status, refused.json["error"]["code"]) == (503, "model_loading")
    assert int(refused.headers["Retry-After"]) >= 1  # an estimate, once something has been read
    assert server.request("GET", "/v1/models").status == 200
    server.wait_for("server.ready")
    assert server.request("GET", "/health").json["status"] == "ok"
    assert server.chat("hi", max_tokens=1).status == 200


def run_maple(*words: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "maple", *words], capture_output=True, text=True, cwd=folder)


def test_a_port_in_use(start_server: Any, write_script: Callable[..., str], tmp_path: pathlib.Path) -> None:
    """One line and exit code 1."""
    script = write_script(SLOW)
    server = start_server("--scripted", script)
    second = run_maple("--scripted", script, "--port", str(server.port), folder=tmp_path)
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    assert str(server.port) in second.stderr


def test_folders_of_the_same_names(start_server: Any, write_script: Any, tmp_path: pathlib.Path) -> None:
    """A user's own plugins and protocols, as folder, package or module, do not get in the way."""
    script = write_script({"pieces": ["r</think>hello"]})
    trap = "raise RuntimeError('a module of the current folder was imported')\n"
    for name in ("plugins", "protocols"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(trap)
        (tmp_path / f"{name}.py").write_text(trap)
    server = start_server("--scripted", script, settings={"PYTHONSAFEPATH": ""})
    assert server.chat("hi").json["choices"][0]["message"]["content"] == "hello"


def test_a_second_signal_after_the_drain(start_server: Any, write_script: Any) -> None:
    """An impatient supervisor does not turn a clean end into a failure."""
    server = start_server("--scripted", write_script(SLOW))
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("server.stopped")
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    assert server.process.returncode == 0


def ignores(process: subprocess.Popen[str], number: int) -> bool:
    """Whether a process ignores a signal, as Linux tells."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text("utf-8")
    mask = re.search(r"^SigIgn:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_hanging_up_from_the_first_line_on(
    start_server: Any, write_script: Any, tmp_path: pathlib.Path
) -> None:
    """SIGHUP is harmless before there are keys, and afterwards rereads them."""
    keys = tmp_path / "keys"
    keys.write_text("one:first\n")
    keys.chmod(0o600)
    server = start_server(
        "--scripted", write_script(SLOW), ready=False, settings={"MAPLE_API_KEY_FILE": str(keys)}
    )
    sent = 0
    while not any(event["event"] == "server.listening" for event in server.events):
        if sent or ignores(server.process, signal.SIGHUP):
            server.process.send_signal(signal.SIGHUP)
            sent += 1
        assert server.process.poll() is None
    assert sent > 0
    keys.write_text("two:second\n")
    before = sum(event["event"] == "keys.reloaded" for event in server.events)
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("keys.reloaded", count=before + 1)
    assert server.request("GET", "/v1/models", Authorization="Bearer second").status == 200


def test_a_log_that_nobody_reads(write_script: Any, tmp_path: pathlib.Path) -> None:
    """The pipe is full, and requests are answered and SIGTERM obeyed all the same."""
    with subprocess.Popen(
        [sys.executable, "-m", "maple", "--scripted", write_script(SLOW), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MAPLE_LOG_FORMAT": "json"},
    ) as process:
        assert process.stderr is not None
        events = map(json.loads, process.stderr)
        port = next(event["port"] for event in events if event["event"] == "server.listening")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_GUARD)
        for _ in range(2000):
            connection.request("GET", "/nowhere/" + "x" * 100)
            assert connection.getresponse().read()
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        dropped = re.search(r"^maple_log_lines_dropped_total (\S+)$", metrics, re.MULTILINE)
        assert dropped is not None
        assert float(dropped[1]) > 0
        connection.close()
        process.terminate()
        assert process.wait(timeout=HANG_GUARD) == 0


def test_a_closed_stderr(write_script: Any, tmp_path: pathlib.Path) -> None:
    """``2>&-`` is a server without a log."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = shlex.join([sys.executable, "-m", "maple", "--scripted", write_script(SLOW), "--port", str(port)])
    with subprocess.Popen(["sh", "-c", f"exec {words} 2>&-"], cwd=tmp_path) as process:
        while process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_GUARD)
            with contextlib.suppress(ConnectionError), contextlib.closing(connection):
                connection.request("GET", "/healthz")
                assert connection.getresponse().status == 200
                process.terminate()
                process.wait(timeout=HANG_GUARD)
    assert process.returncode == 0


def test_a_lock_that_somebody_keeps_stops_neither_others_nor_the_end(
    start_server: Any, tmp_path: pathlib.Path
) -> None:
    """A save and a manifest of one session hang in its folder's lock; another's do not, and SIGTERM ends all."""
    sessions = tmp_path / "sessions"
    server = start_server("--demo", "--session-dir", str(sessions), "--drain-timeout", "1")
    for name in ("stuck", "other"):
        assert server.chat("hi", session_id=name, max_tokens=2).status == 200
        assert server.request("POST", f"/v1/sessions/{name}/save").status == 200
    folder = os.open(next(sessions.glob("*/stuck")), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            asked = [("POST", "/v1/sessions/stuck/save"), ("GET", "/v1/sessions/stuck/manifest")]
            answers = [threads.submit(server.request, *each) for each in asked]
            assert server.request("POST", "/v1/sessions/other/save").status == 200
            assert server.request("GET", "/v1/sessions/other/manifest").status == 200
            assert {each.result().status for each in answers} == {503}
            last = threads.submit(server.request, "GET", "/v1/sessions/stuck/manifest")
            server.wait_for_stats(running=0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=HANG_GUARD) in (0, 1)
            last.exception()
    finally:
        os.close(folder)
    server.expected_code = server.process.returncode


def test_systemd_hears_of_the_start_the_middle_and_the_end(
    start_server: Any, write_script: Any, tmp_path: pathlib.Path
) -> None:
    """READY once the port answers, WATCHDOG while nothing is stuck, STOPPING with the drain."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(HANG_GUARD)
        server = start_server("--scripted", write_script(SLOW), settings={"NOTIFY_SOCKET": str(address)})
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        server.process.send_signal(signal.SIGTERM)
        while manager.recv(100) != b"STOPPING=1":
            continue


def test_a_bus_error_is_told(start_server: Any, write_script: Any) -> None:
    """What reads a mapped file that was cut short meets one: the process ends, and says where it was."""
    server = start_server("--scripted", write_script(SLOW))
    server.process.send_signal(signal.SIGBUS)
    server.expected_code = server.process.wait(timeout=HANG_GUARD)
    server.reader.join(HANG_GUARD)
    assert server.expected_code == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in server.log
    assert "maple" in server.log.partition("Bus error")[2]
