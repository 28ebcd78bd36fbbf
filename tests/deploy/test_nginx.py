"""The shipped nginx site in a real nginx, in front of two real servers."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from maple_testing.guard import HANG_GUARD, until
from maple_testing.wire import free_port

if TYPE_CHECKING:
    from tests.deploy.conftest import Answer, Door, Launcher, Replica

LIMIT = 16 * 1024 * 1024
SLOW = {"match": "slowly", "pieces": ["</think>", *(f"{number} " for number in range(40))], "delay_ms": 50}
ENDLESS = {"match": "endless", "pieces": ["</think>", *["word "] * 2000], "delay_ms": 50}
MAIN = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
worker_processes 1;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


@attrs.frozen
class Nginx:
    """nginx with the shipped site: its port, and what it logs."""

    door: Door
    folder: pathlib.Path

    def wait_for(self, text: str) -> None:
        """Read the access log again and again until that is in it."""
        until(lambda: text in (self.folder / "access.log").read_text(), text)


def replaced(text: str, old: str, new: str) -> str:
    """The one place where the site has to be adapted, which must be there."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def write_site(site: str, folder: pathlib.Path, port: int, replicas: tuple[int, int]) -> pathlib.Path:
    """The shipped site with another port, other servers and another log; all else is as it ships."""
    for old, new in (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("server 127.0.0.1:8000 ", f"server 127.0.0.1:{replicas[0]} "),
        ("server 127.0.0.1:8001 ", f"server 127.0.0.1:{replicas[1]} "),
        ("/var/log/nginx/maple.log", f"{folder}/access.log"),
    ):
        site = replaced(site, old, new)
    (folder / "site.conf").write_text(site)
    main = folder / "nginx.conf"
    main.write_text(MAIN.format(folder=folder, user="user root;" if os.geteuid() == 0 else ""))
    return main


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD):
        return True
    return False


StartNginx = Callable[..., Nginx]


@pytest.fixture(scope="module")
def start_nginx(
    deploy_folder: pathlib.Path, make_door: Callable[[int], Door], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartNginx]:
    """``start_nginx(door, door)``: the site in front of those two."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    site = (deploy_folder / "nginx.conf").read_text()
    with contextlib.ExitStack() as stack:

        def start(one: Door, other: Door) -> Nginx:
            folder = tmp_path_factory.mktemp("nginx")
            port = free_port()
            main = write_site(site, folder, port, (one.port, other.port))
            command = [program, "-c", str(main), "-e", str(folder / "start.log")]
            checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr
            assert "warn" not in checked.stderr
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            until(lambda: accepts(port) or process.poll() is not None)
            assert process.poll() is None, (folder / "error.log").read_text()
            return Nginx(make_door(port), folder)

        yield start


def hello(name: str) -> dict[str, object]:
    return {"match": None, "pieces": ["</think>", name]}


@pytest.fixture(scope="module")
def replicas(launch_shared: Launcher) -> tuple[Replica, Replica]:
    """Two servers that say their own name."""
    return launch_shared(SLOW, ENDLESS, hello("one")), launch_shared(SLOW, ENDLESS, hello("two"))


@pytest.fixture(scope="module")
def nginx(start_nginx: StartNginx, replicas: tuple[Replica, Replica]) -> Nginx:
    return start_nginx(*replicas)


@pytest.fixture(scope="module")
def door(nginx: Nginx) -> Door:
    """The port of nginx."""
    return nginx.door


def session_of(door: Door, name: str) -> str:
    """A session id whose requests go to that replica."""
    return next(session for n in range(200) if door.chat("who", session=(session := f"s{n}")).text == name)


def arrivals(door: Door) -> list[float]:
    """When each token of the slow answer arrived, in seconds from the request."""
    started = time.monotonic()
    with door.stream("slowly") as response:
        return [time.monotonic() - started for line in response if b'"content":"' in line][1:]


def test_tokens_pass_one_by_one(door: Door, replicas: tuple[Replica, Replica]) -> None:
    """As far apart as from the server itself: nothing is collected on the way."""
    direct, proxied = arrivals(replicas[0]), arrivals(door)
    gaps = [[b - a for a, b in itertools.pairwise(times)] for times in (direct, proxied)]
    medians = [statistics.median(one) for one in gaps]
    assert len(proxied) == len(direct) == 40
    assert proxied[0] < proxied[-1] / 4
    assert medians[0] / 3 < medians[1] < medians[0] * 3, medians


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_is_noticed_through_nginx(
    door: Door, replicas: tuple[Replica, Replica], stream: bool
) -> None:
    """The server cancels and its slot is free, also where nothing had been sent yet."""
    session = session_of(door, "one")
    cancelled = replicas[0].stats()["cancelled"]
    body = door.chat_body("endless", stream=stream)
    with door.open("POST", "/v1/chat/completions", body, X_Session_Id=session) as connection:
        replicas[0].wait_for_stats(running=1)
        if stream:
            assert connection.getresponse().readline().startswith(b"data: ")
    replicas[0].wait_for_stats(running=0, cancelled=cancelled + 1)


def test_a_body_of_the_limit_passes_and_one_byte_more_is_refused(door: Door) -> None:
    """By the same number, status, code and words on both sides of nginx."""
    head = b'{"messages":[{"role":"user","content":"hi"}],"metadata":{"pad":"'
    whole = head + b"x" * (LIMIT - len(head) - 3) + b'"}}'
    assert len(whole) == LIMIT
    assert door.request("POST", "/v1/chat/completions", whole).status == 200
    refused = door.request("POST", "/v1/chat/completions", whole + b" ", X_Request_Id="too-much")
    assert refused.status == 413
    assert refused.error["code"] == "payload_too_large"
    assert refused.headers["X-Request-Id"] == "too-much"


def test_nginx_and_the_server_refuse_a_large_body_alike(
    door: Door, replicas: tuple[Replica, Replica]
) -> None:
    """A client cannot tell which of them it was."""
    body = b'"' + b"x" * LIMIT + b'"'
    assert door.request("POST", "/v1/completions", body).error == refusal_of(replicas[0], body)


def refusal_of(server: Replica, body: bytes) -> Any:
    """What the server itself says to a body that it refuses by its announced length."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_GUARD) as raw:
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        response = http.client.HTTPResponse(raw)
        response.begin()
        assert response.status == 413
        return json.loads(response.read())["error"]


def test_a_request_id_is_in_both_logs_and_the_answer(nginx: Nginx, replicas: tuple[Replica, Replica]) -> None:
    """The client's own; where it sent none, one of nginx's."""
    given = nginx.door.chat("who", session=session_of(nginx.door, "one"), X_Request_Id="trace-42")
    made = nginx.door.chat("who", session=session_of(nginx.door, "one"))
    for answer, pattern in ((given, "trace-42"), (made, "[0-9a-f]{32}")):
        request_id = answer.headers["X-Request-Id"]
        assert re.fullmatch(pattern, request_id)
        replicas[0].wait_for("http.request", request_id=request_id)
        nginx.wait_for(f"request_id={request_id} ")


def test_the_servers_refusals_pass_as_they_are(door: Door, replicas: tuple[Replica, Replica]) -> None:
    """Statuses and bodies of the server, none of nginx's pages."""
    for method, path, body in (
        ("GET", "/nowhere", None),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/chat/completions", b"{"),
        ("POST", "/v1/chat/completions", b'{"messages": []}'),
        ("POST", "/v1/sessions/x/save", b"{}"),
    ):
        direct, proxied = replicas[0].request(method, path, body), door.request(method, path, body)
        assert (proxied.status, proxied.error) == (direct.status, direct.error)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/" + "x" * 9000, {}, 414), ("/v1/models", {"X-Long": "x" * 9000}, 400)],
    ids=["address", "header"],
)
def test_what_nginx_refuses_has_the_servers_shape(
    door: Door, path: str, headers: dict[str, Any], status: int
) -> None:
    """JSON with all four keys."""
    answer = door.request("GET", path, **headers)
    assert (answer.status, answer.error["type"]) == (status, "invalid_request_error")


UNREADABLE = {
    b"GET /%%zz HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"GET /../.. HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"GET /v1/models HTTP/1.1\r\n\r\n": 400,
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n": 400,
    b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n": 400,
    b"nonsense\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200): 400,
    b"TRACE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n": 405,
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n": 501,
    b"GET /v1/models HTTP/7.1\r\nHost: x\r\n\r\n": 505,
}


@pytest.mark.parametrize("sent", UNREADABLE, ids=lambda sent: repr(sent[:24]))
def test_what_nginx_cannot_read_has_it_too(door: Door, sent: bytes) -> None:
    """Neither a 500 nor a page of nginx's; with a request id by which its log can be searched."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=HANG_GUARD) as raw:
        raw.sendall(sent)
        response = http.client.HTTPResponse(raw)
        response.begin()
        body = json.loads(response.read())
    assert response.status == UNREADABLE[sent]
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert response.headers["X-Request-Id"]
    assert set(body["error"]) == {"message", "type", "param", "code"}


def test_a_page_of_the_site_is_its_own_and_anothers_is_not(door: Door) -> None:
    """The server hears the host and port that the browser used."""
    body = door.chat_body("who")
    own, foreign = f"http://127.0.0.1:{door.port}", "https://evil.example"
    assert door.request("POST", "/v1/chat/completions", body, Origin=own).status == 200
    assert door.request("POST", "/v1/chat/completions", body, Origin=foreign).status == 403


def test_a_conversation_stays_with_its_replica(door: Door) -> None:
    """By its session; without one, by the key and address. Conversations spread over the replicas."""
    homes = {f"s{n}": door.chat("who", session=f"s{n}").text for n in range(24)}
    assert set(homes.values()) == {"one", "two"}
    for session, home in homes.items():
        assert door.chat("who again", session=session).text == home
    keys = [f"Bearer key-{n}" for n in range(24)]
    chosen = collections.Counter(
        frozenset(door.chat("who", Authorization=key).text for _ in range(2)) for key in keys
    )
    assert set(chosen) == {frozenset({"one"}), frozenset({"two"})}


def test_the_chat_page_works_behind_nginx(door: Door) -> None:
    """With its policy and its parts."""
    page = door.request("GET", "/ui")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert door.request("GET", "/ui/app.js").headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_a_replica_that_dies_takes_only_its_begun_answers_along(
    launch: Launcher, start_nginx: StartNginx
) -> None:
    """Killed mid-load: the answer that had begun ends at once, unfinished; what waited is answered."""
    slots = {"MAPLE_MAX_BATCH": "1"}
    doomed, other = (launch(SLOW, ENDLESS, hello(name), **slots) for name in ("one", "two"))
    door = start_nginx(doomed, other).door
    session = session_of(door, "one")
    with (
        door.stream("endless", X_Session_Id=session) as begun,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        assert begun.readline().startswith(b"data: ")
        waiting = [pool.submit(door.chat, "who", session) for _ in range(4)]
        doomed.wait_for_stats(running=1, waiting=4)
        doomed.process.send_signal(signal.SIGKILL)
        with pytest.raises(http.client.IncompleteRead):
            begun.read()
        assert [answer.result().text for answer in waiting] == ["two"] * 4
    assert door.chat("who", session).text == "two"
    other.process.kill()
    other.process.wait()
    gone = door.chat("who", session)
    assert (gone.status, gone.error["code"], gone.headers["Retry-After"]) == (502, "unreachable", "5")


def test_a_restart_of_one_replica_is_not_felt(launch: Launcher, start_nginx: StartNginx) -> None:
    """What it has begun it finishes while it drains; what comes meanwhile, and afterwards, goes to the other."""
    leaving, staying = (launch(SLOW, hello(name), MAPLE_MAX_BATCH="4") for name in ("one", "two"))
    door = start_nginx(leaving, staying).door
    session = session_of(door, "one")
    with door.stream("slowly", X_Session_Id=session) as begun:
        assert begun.readline().startswith(b"data: ")
        leaving.process.send_signal(signal.SIGTERM)
        leaving.wait_for("server.draining")
        assert door.chat("who", session).text == "two"
        assert begun.read().endswith(b"data: [DONE]\n\n")
    assert leaving.process.wait(timeout=HANG_GUARD) == 0
    assert door.chat("who", session).text == "two"


def test_one_address_has_a_limit_of_connections(door: Door) -> None:
    """Beyond it: 503 in the server's shape, to try again later. Those that are open are not touched."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(128):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=HANG_GUARD))
            raw.sendall(head + b"Content-Length: 100\r\n\r\n")
        refused = next(answer for answer in (door.chat("who") for _ in range(200)) if answer.status != 200)
        assert (refused.status, refused.error["code"]) == (503, "engine_overloaded")
        assert refused.headers["Retry-After"] == "5"
    until(lambda: door.chat("who").status == 200)


def test_a_full_replica_hands_on_and_two_full_ones_say_so(launch: Launcher, start_nginx: StartNginx) -> None:
    """503 of one goes to the next; of both, to the client as it is. None is shunned afterwards."""
    slots = {"MAPLE_MAX_BATCH": "1", "MAPLE_MAX_QUEUE_DEPTH": "0"}
    one, two = (launch(ENDLESS, hello(name), **slots) for name in ("one", "two"))
    door = start_nginx(one, two).door
    session = session_of(door, "one")
    with door.stream("endless", X_Session_Id=session):
        one.wait_for_stats(running=1)
        assert door.chat("who", session).text == "two"
        with door.stream("endless", X_Session_Id=session):
            two.wait_for_stats(running=1)
            full: Answer = door.chat("who", session)
            assert (full.status, full.error["code"]) == (503, "engine_overloaded")
            assert full.headers["Retry-After"] == "5"
    one.wait_for_stats(running=0)
    two.wait_for_stats(running=0)
    assert door.chat("who", session).text == "one"
