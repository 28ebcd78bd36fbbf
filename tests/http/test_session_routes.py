"""The session routes: names in every spelling, and bodies that nobody needs."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.http.conftest import Serve

UNSAFE = [
    "..%2F..%2Fetc",
    "%2e%2e",
    "..",
    ".hidden",
    "a%2Fb",
    "a/b",
    "../../etc",
    "a%5Cb",
    "a%00b",
    "a%0Ab",
    "a%20b",
    "%252e%252e%252fetc",
    "%c0%ae%c0%ae",
    "%ff",
    "caf%C3%A9",
    "a+b",
    "a:b",
    "x" * 129,
]


@pytest.mark.parametrize("session_id", UNSAFE)
@pytest.mark.parametrize("configured", [True, False])
def test_an_unsafe_id_is_refused_however_it_is_encoded(
    serve: Serve, tmp_path: pathlib.Path, session_id: str, configured: bool
) -> None:
    """400 at session_id, before anything looks at a disk."""
    server = serve(session_dir=tmp_path if configured else None)
    for method, action in (("POST", "save"), ("POST", "load"), ("GET", "manifest")):
        answer = server.request(method, f"/v1/sessions/{session_id}/{action}")
        assert answer.status == 400
        assert (answer.error["param"], answer.error["code"]) == ("session_id", "invalid_parameter")
    if "/" not in session_id:
        assert server.request("DELETE", f"/v1/sessions/{session_id}").error["param"] == "session_id"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("session_id", ["a", "_", "-a", "A.b-c_9", "a..b", "x" * 128, "%61bc"])
def test_a_good_id_is_merely_unknown(serve: Serve, tmp_path: pathlib.Path, session_id: str) -> None:
    """404 not_found, percent-encoded letters included."""
    server = serve(session_dir=tmp_path)
    answer = server.request("GET", f"/v1/sessions/{session_id}/manifest")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "not_found", None)
    assert server.request("DELETE", f"/v1/sessions/{session_id}/").status == 404


@pytest.mark.parametrize(
    ("body", "status"), [(None, 404), ({}, 404), ({"x": 1}, 404), (b"{nope", 400), (b"[]", 400)]
)
def test_a_body_is_not_needed_but_must_be_sound(
    serve: Serve, tmp_path: pathlib.Path, body: object, status: int
) -> None:
    """Saving and loading take nothing but the id."""
    assert serve(session_dir=tmp_path).request("POST", "/v1/sessions/abc/save", body).status == status
