"""The chat page and the front door: what is served, under which headers, and what is not."""

from __future__ import annotations

import hashlib
import pathlib
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

UI = pathlib.Path(__file__).parents[2] / "maple" / "ui"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def test_the_front_door_sends_browsers_to_the_page(server: LiveServer) -> None:
    """A redirect without a body."""
    answer = server.get("/")
    assert (answer.status, answer.headers["Location"], answer.body) == (302, "/ui", b"")
    assert "Content-Type" not in answer.headers


def test_the_page_is_html(server: LiveServer) -> None:
    """The file as it is in the package."""
    answer = server.get("/ui")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == (UI / "index.html").read_bytes()


def test_a_page_with_a_slash_is_found_where_its_links_work(server: LiveServer) -> None:
    """Its links are relative: from /ui/ they would lead nowhere, also below a proxy's prefix."""
    answer = server.get("/ui/?theme=dark")
    assert (answer.status, answer.headers["Location"]) == (302, "../ui")


SERVED = sorted(
    path.relative_to(UI).as_posix()
    for path in UI.rglob("*.*")
    if path.name not in ("index.html", "NOTICE.md")
)


@pytest.mark.parametrize("file", SERVED)
def test_every_file_of_the_page_is_served_as_its_type(server: LiveServer, file: str) -> None:
    """Scripts, styles and pictures."""
    types = {
        ".js": "text/javascript; charset=utf-8",
        ".mjs": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
    }
    answer = server.get(f"/ui/{file}")
    assert (answer.status, answer.body) == (200, (UI / file).read_bytes())
    assert answer.headers["Content-Type"] == types[pathlib.Path(file).suffix]


@pytest.mark.parametrize("path", ["/ui", "/ui/app.js", "/ui/style.css"])
def test_pages_go_out_under_a_strict_policy(server: LiveServer, path: str) -> None:
    """No inline code, no other site, no frame, no guessing of types."""
    headers = server.get(path).headers
    assert headers["Content-Security-Policy"] == POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_a_page_that_the_client_has_is_not_sent_again(server: LiveServer) -> None:
    """By its ETag; the client asks each time, so that an upgrade shows at once."""
    first = server.get("/ui")
    again = server.get("/ui", If_None_Match=first.headers["Etag"])
    assert (first.headers["Cache-Control"], again.status, again.body) == ("no-cache", 304, b"")
    assert server.get("/ui", If_None_Match='"another"').status == 200


def test_head_tells_what_get_would_send(server: LiveServer) -> None:
    """The same headers, nothing else."""
    got, head = server.get("/ui/app.js"), server.request("HEAD", "/ui/app.js")
    names = ("Content-Type", "Content-Length", "Etag", "Content-Security-Policy")
    assert (head.status, head.body) == (200, b"")
    assert [head.headers[name] for name in names] == [got.headers[name] for name in names]


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing.js",
        "/ui/index.html",
        "/ui/../settings.py",
        "/ui/..%2fsettings.py",
        "/ui/%2e%2e/settings.py",
        "/ui/....//settings.py",
        "/ui/..\\settings.py",
        "/ui//etc/passwd",
        "/ui/app.js%00",
        "/ui/app.js/x",
        "/ui/%61pp.js",
    ],
)
def test_nothing_else_can_be_read(server: LiveServer, path: str) -> None:
    """A name that is not in the table has no route: it never becomes a path on the disk."""
    answer = server.get(path)
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_pages_are_only_read(server: LiveServer, method: str) -> None:
    """With the exact Allow."""
    answer = server.request(method, "/ui")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/app.js"])
def test_pages_are_open_beside_a_key(serve: Serve, path: str) -> None:
    """They hold no data; the page asks for the key itself."""
    assert serve(api_key="secret").get(path).status in (200, 302)


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/app.js"])
def test_without_the_ui_there_are_no_such_paths(serve: Serve, path: str) -> None:
    """MAPLE_UI=false."""
    answer = serve(ui=False).get(path)
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")


def test_what_others_wrote_is_as_they_published_it(server: LiveServer) -> None:
    """Every vendored file has a row with its licence and the sum of its bytes."""
    notice = (UI / "vendor" / "NOTICE.md").read_text("utf-8")
    rows = re.findall(r"^\| (\S+) \| \S+ \| [\d.]+ \| (\S+) \| \S+ \| `(\w+)` \|$", notice, re.MULTILINE)
    found = {name: hashlib.sha256(server.get(f"/ui/vendor/{name}").body).hexdigest() for name, _, _ in rows}
    assert found == {name: digest for name, _, digest in rows}
    assert {f"vendor/{name}" for name in found} == {name for name in SERVED if "/" in name}
    assert {licence for _, licence, _ in rows} <= {"MIT", "BSD-3-Clause"}
