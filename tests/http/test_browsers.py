"""Pages of other sites, rebound names, and proxies: who may use the server, and whose address is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tornado.httputil import HTTPHeaders

from maple.http.origin import is_own_host, remote_address, remote_scheme
from maple.http.services import HttpSettings
from maple.settings import Settings

if TYPE_CHECKING:
    import pathlib

    from tests.http.conftest import LiveServer, Serve

PAGE = "https://app.example"
CHAT = "/v1/chat/completions"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


def cors(answer) -> set[str]:
    return {name for name in answer.headers if name.startswith("Access-Control-")}


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_no_page_of_another_site_may_use_the_server_by_default(server: LiveServer, method: str) -> None:
    """No CORS header of any kind, and a preflight that allows nothing."""
    body = server.chat_body() if method == "POST" else None
    answer = server.request(method, CHAT if method != "GET" else "/v1/models", body, PREFLIGHT)
    assert cors(answer) == set()


@pytest.mark.parametrize("setting", [PAGE, PAGE + "/", PAGE.upper(), "*"])
def test_an_allowed_page_may_read_answers_and_errors(serve: Serve, setting: str) -> None:
    """The origin is named, our headers are exposed, and credentials are never allowed."""
    server = serve(allowed_origins=(setting, "https://other.example"))
    for answer in (server.get("/v1/models", Origin=PAGE), server.get("/nowhere", Origin=PAGE)):
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert answer.headers["Access-Control-Expose-Headers"] == "X-Request-Id, Retry-After, X-Maple-Ignored"
        assert "Access-Control-Allow-Credentials" not in answer.headers
        assert answer.headers["Vary"] == "Origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://app.example", "https://app.example.evil", "null"]
)
def test_any_other_page_may_not(serve: Serve, origin: str) -> None:
    """The origin must be equal as a whole; caches are told that it matters."""
    answer = serve(allowed_origins=(PAGE,)).get("/v1/models", Origin=origin)
    assert cors(answer) == set()
    assert answer.headers["Vary"] == "Origin"


def test_a_preflight_needs_no_key_and_names_methods_and_headers(serve: Serve) -> None:
    """Browsers send it without credentials. 204, no body, no Content-Type."""
    answer = serve(allowed_origins=(PAGE,), api_key="secret").request("OPTIONS", CHAT, headers=PREFLIGHT)
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (204, b"", None)
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert answer.headers["Access-Control-Allow-Methods"] == "POST"
    assert answer.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert int(answer.headers["Access-Control-Max-Age"]) > 0
    assert answer.headers["X-Request-Id"]


def test_a_preflight_does_not_echo_nonsense(serve: Serve) -> None:
    """Only what could be header names comes back."""
    headers = {**PREFLIGHT, "Access-Control-Request-Headers": "x<script>"}
    answer = serve(allowed_origins=(PAGE,)).request("OPTIONS", CHAT, headers=headers)
    assert "Access-Control-Allow-Headers" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:8000",
        "192.168.1.7",
        "[::1]",
        "[::1]:8000",
        "[fe80::1]",
        "maple.internal",
        "MAPLE.internal:80",
    ],
)
def test_addresses_localhost_and_allowed_hosts_are_ours(serve: Serve, host: str) -> None:
    """With any port, in any case."""
    assert serve(allowed_hosts=("Maple.Internal",)).get("/healthz", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.localhost.example:80", "127.0.0.1.nip.io", "maple"],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/metrics"])
def test_any_other_name_is_refused_while_there_is_no_key(server: LiveServer, host: str, path: str) -> None:
    """A page that rebinds its own name to this machine is told no, on every route and preflight."""
    for method in ("GET", "OPTIONS"):
        answer = server.request(method, path, headers={"Host": host})
        assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("path", ["/", "/ui", "/docs"])
def test_a_browser_that_comes_by_another_name_is_told_what_to_set(server: LiveServer, path: str) -> None:
    """In a page that runs nothing; a program gets the error as ever."""
    answer = server.get(path, Host="maple.lan:8000", Accept="text/html,*/*")
    page = answer.body.decode()
    assert (answer.status, answer.headers["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert "--allowed-hosts maple.lan<" in page
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert server.get(path, Host="maple.lan").error["code"] == "host_not_allowed"


def test_with_a_key_the_name_does_not_matter(serve: Serve) -> None:
    """A rebound page has no key."""
    server = serve(api_key="secret")
    assert server.get("/healthz", Host="maple.example").status == 200
    assert server.get("/v1/models", Host="maple.example", Authorization="Bearer secret").status == 200


def test_a_client_of_http_1_0_may_leave_the_host_out(server: LiveServer) -> None:
    """Such clients are no browsers."""
    with server.send(b"GET /healthz HTTP/1.0\r\n\r\n") as raw:
        assert server.read_answer(raw).status == 200


@pytest.mark.parametrize("name", ["", ".", "localhos", "1.2.3", "0x7f.1", "127.1"])
def test_what_is_neither_name_nor_address_is_not_ours(name: str) -> None:
    """Spellings of addresses that only some resolvers take are names."""
    assert not is_own_host(name, ())


FOREIGN = [
    {"Origin": PAGE},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"},
    {"Origin": "https://127.0.0.1", "Host": "127.0.0.1:80"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": PAGE, "Sec-Fetch-Site": "same-site"},
]
OWN = [
    {},
    {"Origin": "http://127.0.0.1", "Host": "127.0.0.1"},
    {"Origin": "http://localhost:8000", "Host": "LOCALHOST:8000"},
    {"Origin": "https://localhost", "Host": "localhost:443"},
    {"Origin": "http://localhost", "Host": "localhost:80"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin"},
]


@pytest.mark.parametrize("path", ["/v1/sessions/x/save", "/v1/sessions/x/load", CHAT])
@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_site_cannot_have_anything_done(
    serve: Serve, tmp_path: pathlib.Path, path: str, headers: dict[str, str]
) -> None:
    """A POST without a body needs no preflight, so the answer is a 403 whether the page may read it or not."""
    answer = serve(session_dir=tmp_path).request("POST", path, headers=headers)
    assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("headers", OWN)
def test_its_own_pages_and_those_that_are_no_pages_can(server: LiveServer, headers: dict[str, str]) -> None:
    """No Origin, the Host's own, or a browser that says it is nobody else's."""
    assert server.post(CHAT, server.chat_body(), headers).status == 200


def test_a_page_with_a_key_or_a_listed_one_can(serve: Serve) -> None:
    """Who has the key was meant to; without it the page hears of itself, not of the key."""
    server = serve(api_key="secret")
    key = {"Authorization": "Bearer secret"}
    assert server.post(CHAT, server.chat_body(), {"Origin": PAGE, **key}).status == 200
    assert server.post(CHAT, server.chat_body(), {"Origin": PAGE}).error["code"] == "origin_not_allowed"
    assert server.post(CHAT, server.chat_body(), {"Host": "evil.example"}).status == 401
    assert serve(allowed_origins=(PAGE,)).post(CHAT, server.chat_body(), {"Origin": PAGE}).status == 200
    assert serve(allowed_origins=("*",)).post(CHAT, server.chat_body(), {"Origin": "null"}).status == 200


# Proxies.

PROXIES = HttpSettings.of(Settings(trust_proxy=("10.0.0.0/8", "::1"))).trusted_proxies


@pytest.mark.parametrize(
    ("peer", "forwarded", "believed"),
    [
        ("10.1.2.3", "1.1.1.1, 2.2.2.2", "2.2.2.2"),
        ("10.1.2.3", "2001:db8::1", "2001:db8::1"),
        ("::1", "2.2.2.2", "2.2.2.2"),
        ("::ffff:10.1.2.3", "2.2.2.2", "2.2.2.2"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "2.2.2.2, not-an-address", "10.1.2.3"),
        ("9.9.9.9", "2.2.2.2", "9.9.9.9"),
        ("", "2.2.2.2", ""),
    ],
)
def test_only_the_last_hop_from_a_listed_proxy_is_believed(peer: str, forwarded: str, believed: str) -> None:
    """Everything before it, and everything from others, anybody could have written."""
    headers = HTTPHeaders({"X-Forwarded-For": forwarded})
    assert remote_address(peer, headers, PROXIES) == believed


@pytest.mark.parametrize(
    ("peer", "proto", "scheme"),
    [
        ("10.1.2.3", "https", "https"),
        ("10.1.2.3", "https, HTTPS", "https"),
        ("10.1.2.3", "https, http", "http"),
        ("10.1.2.3", "gopher", "http"),
        ("9.9.9.9", "https", "http"),
    ],
)
def test_the_scheme_is_believed_from_a_listed_proxy_only(peer: str, proto: str, scheme: str) -> None:
    """And it is http or https, nothing else."""
    assert remote_scheme(peer, HTTPHeaders({"X-Forwarded-Proto": proto}), PROXIES) == scheme


@pytest.mark.parametrize(
    ("proxies", "address"), [((), "127.0.0.1"), (("127.0.0.0/8",), "2.2.2.2"), (("10.0.0.0/8",), "127.0.0.1")]
)
def test_the_access_line_shows_the_believed_address(
    serve: Serve, log_lines, proxies: tuple[str, ...], address: str
) -> None:
    """MAPLE_TRUST_PROXY, over the wire."""
    server = serve(trust_proxy=proxies)
    server.get("/healthz", X_Forwarded_For="1.1.1.1, 2.2.2.2")
    server.settle()
    assert [line["remote"] for line in log_lines() if line["event"] == "http.request"] == [address]
