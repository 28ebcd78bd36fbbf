"""POST /v1/responses with ``store``, and the routes of stored responses, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

FIRST = Recording(match="first", pieces=("Hm.", "</think>", "One"))
SECOND = Recording(match="second", pieces=("</think>", "Two"))
BROKEN = Recording(match="broken", pieces=("</think>", "half"), finish="error")
CUT = Recording(match="cut", pieces=("</think>", "a", "b", "c"))


@pytest.fixture
def store_file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "responses.db"


@pytest.fixture
def keeping(serve: Serve, store_file: pathlib.Path) -> LiveServer:
    """A server with a store."""
    return serve(FIRST, SECOND, BROKEN, CUT, response_store=f"sqlite:{store_file}")


def respond(server: LiveServer, text: object, **fields: object) -> Any:
    answer = server.post("/v1/responses", {"input": text, "store": True, **fields})
    assert answer.status == 200, answer.body
    return answer.json


def streamed(server: LiveServer, text: str, **fields: object) -> Any:
    """The response that a stream's last event carries."""
    answer = server.post("/v1/responses", {"input": text, "store": True, "stream": True, **fields})
    return answer.events[-2]["response"]


def code(answer: Any) -> tuple[int, str]:
    return answer.status, answer.error["code"]


@pytest.mark.parametrize("ask", [respond, streamed])
def test_a_stored_response_can_be_got_again(keeping: LiveServer, ask: Any) -> None:
    """As it was answered, streamed or not, as soon as the client has it."""
    response = ask(keeping, "first")
    got = keeping.get(f"/v1/responses/{response['id']}")
    assert (got.status, got.json) == (200, response)
    head = keeping.request("HEAD", f"/v1/responses/{response['id']}")
    assert (head.status, head.body) == (200, b"")


def test_where_there_is_a_store_answers_are_kept_unless_store_is_false(keeping: LiveServer) -> None:
    """The next request of an SDK names the response: true is the default."""
    response = keeping.post("/v1/responses", {"input": "first"}).json
    assert response["store"] is True
    assert keeping.get(f"/v1/responses/{response['id']}").json == response
    response = keeping.post("/v1/responses", {"input": "first", "store": False}).json
    assert response["store"] is False
    assert code(keeping.get(f"/v1/responses/{response['id']}")) == (404, "not_found")


def test_a_cut_response_is_kept_and_a_failed_one_is_not(keeping: LiveServer) -> None:
    """Incomplete is an answer; a failure is not."""
    cut = respond(keeping, "cut", max_output_tokens=2)
    assert keeping.get(f"/v1/responses/{cut['id']}").json["status"] == "incomplete"
    failed = streamed(keeping, "broken")
    assert failed["status"] == "failed"
    assert code(keeping.get(f"/v1/responses/{failed['id']}")) == (404, "not_found")


def test_input_items_lists_what_was_sent(keeping: LiveServer) -> None:
    """In OpenAI's list shape, for one response and for a chain."""
    first = respond(keeping, "first")
    second = respond(keeping, "second", previous_response_id=first["id"])
    page = keeping.get(f"/v1/responses/{second['id']}/input_items?order=asc&limit=2").json
    assert (page["object"], page["has_more"], len(page["data"])) == ("list", True, 2)
    assert [item["type"] for item in page["data"]] == ["message", "reasoning"]
    rest = keeping.get(f"/v1/responses/{second['id']}/input_items?order=asc&after={page['last_id']}").json
    assert [item["content"][0]["text"] for item in rest["data"]] == ["One", "second"]
    assert rest["data"][0] == first["output"][1]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_a_bad_query_names_its_field(keeping: LiveServer, query: str, param: str) -> None:
    """400 invalid_parameter."""
    response = respond(keeping, "first")
    answer = keeping.get(f"/v1/responses/{response['id']}/input_items?{query}")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_parameter", param)


def test_a_stored_response_is_not_streamed(keeping: LiveServer) -> None:
    """Who asks for events is told so, and does not wait for them in JSON."""
    response = respond(keeping, "first")
    answer = keeping.get(f"/v1/responses/{response['id']}?stream=true")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "invalid_parameter",
        "stream",
    )
    assert keeping.get(f"/v1/responses/{response['id']}?stream=false&include=x").json == response


def test_previous_response_id_puts_the_earlier_exchange_before_the_input(keeping: LiveServer) -> None:
    """The prompt has as many tokens as if the client had sent it all."""
    first = respond(keeping, "first")
    second = respond(keeping, "second", previous_response_id=first["id"])
    by_hand = respond(
        keeping,
        [
            {"role": "user", "content": "first"},
            *first["output"],
            {"role": "user", "content": "second"},
        ],
    )
    assert second["usage"] == by_hand["usage"]
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > respond(keeping, "second")["usage"]["input_tokens"]


@pytest.mark.parametrize("name", ["resp_" + "0" * 32, "nonsense", "", "resp_\u0000", "x" * 10_000])
def test_an_unknown_previous_response_is_404(keeping: LiveServer, name: str) -> None:
    """Naming the field."""
    answer = keeping.post("/v1/responses", {"input": "first", "previous_response_id": name})
    assert (answer.status, answer.error["param"]) == (404, "previous_response_id")
    assert answer.error["code"] == "not_found"


def test_deleting_is_final(keeping: LiveServer) -> None:
    """Once 200, then 404 for everything; what went on from it still stands on its own."""
    first = respond(keeping, "first")
    second = respond(keeping, "second", previous_response_id=first["id"])
    path = f"/v1/responses/{first['id']}"
    gone = keeping.request("DELETE", path)
    assert (gone.status, gone.json) == (200, {"id": first["id"], "object": "response", "deleted": True})
    assert code(keeping.request("DELETE", path)) == (404, "not_found")
    assert code(keeping.get(path)) == (404, "not_found")
    assert code(keeping.get(f"{path}/input_items")) == (404, "not_found")
    respond(keeping, "first", previous_response_id=second["id"])


def test_responses_never_cross_keys(serve: Serve, store_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """To another key they do not exist: not to read, list, delete or go on from."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("me:mine\nyou:yours\n", "utf-8")
    server = serve(FIRST, api_key_file=keys, response_store=f"sqlite:{store_file}")
    mine, yours = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer yours"}
    response = server.post("/v1/responses", {"input": "first", "store": True}, mine).json
    path = f"/v1/responses/{response['id']}"
    for method, place in (("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)):
        assert code(server.request(method, place, headers=yours)) == (404, "not_found")
    going_on = {"input": "first", "previous_response_id": response["id"]}
    assert code(server.post("/v1/responses", going_on, yours)) == (404, "not_found")
    assert server.post("/v1/responses", going_on, mine).status == 200
    assert server.request("GET", path, headers=mine).json == response
    assert server.request("GET", path).status == 401


def test_responses_outlive_the_server(serve: Serve, store_file: pathlib.Path) -> None:
    """Another server on the same file has them."""
    response = respond(serve(FIRST, response_store=f"sqlite:{store_file}"), "first")
    again = serve(FIRST, response_store=f"sqlite:{store_file}", loaded=False)
    assert again.get(f"/v1/responses/{response['id']}").json == response


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/responses/resp_x", "/v1/responses/resp_x/input_items"])
def test_without_a_store_the_routes_are_off(server: LiveServer, method: str, path: str) -> None:
    """501 not_configured, naming the variable; the wrong method is 405 all the same."""
    answer = server.request(method, path)
    if path.endswith("items") and method == "DELETE":
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
        return
    assert (answer.status, answer.error["type"], answer.error["code"]) == (
        501,
        "server_error",
        "not_configured",
    )
    assert "MAPLE_RESPONSE_STORE" in answer.error["message"]


def test_without_a_store_store_true_is_501_and_a_previous_response_400(server: LiveServer) -> None:
    """Naming the field."""
    storing = server.post("/v1/responses", {"input": "hi", "store": True})
    assert (storing.status, storing.error["code"], storing.error["param"]) == (501, "not_configured", "store")
    going_on = server.post("/v1/responses", {"input": "hi", "previous_response_id": "resp_x"})
    assert (going_on.status, going_on.error["param"]) == (400, "previous_response_id")


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than one answer takes."""
    monkeypatch.setattr("maple.responses_file.LARGEST_BYTES", 40 * 1024)


def _break(store_file: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(store_file)) as database:
        database.execute("DROP TABLE responses")


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize(
    ("broken", "status", "error_code"), [(True, 500, None), (False, 507, "storage_full")]
)
def test_a_store_that_fails_is_told_and_leaks_nothing(
    keeping: LiveServer, store_file: pathlib.Path, broken: bool, status: int, error_code: str | None
) -> None:
    """507 where there is no room, 500 otherwise; in a stream the response fails in band."""
    if broken:
        _break(store_file)
    body = {"input": "first " + "x" * 20_000, "store": True}
    answer = keeping.post("/v1/responses", body)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (status, error_code, "server_error")
    assert "sql" not in answer.body.decode().lower()
    last = keeping.post("/v1/responses", {**body, "stream": True}).events[-2]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    keeping.until_idle()


def test_an_answer_is_not_lost_because_it_cannot_be_kept_by_default(
    keeping: LiveServer, store_file: pathlib.Path
) -> None:
    """Only who asks for it in so many words is told that the store failed; the log says it in any case."""
    _break(store_file)
    assert keeping.post("/v1/responses", {"input": "first"}).json["output_text"] == "One"


def test_the_loop_goes_on_while_the_store_waits(keeping: LiveServer, store_file: pathlib.Path) -> None:
    """Another process holds the file: probes are answered, and the answer comes once it lets go."""
    lock = sqlite3.connect(store_file)
    lock.execute("BEGIN IMMEDIATE")
    store = keeping.services.store
    assert store is not None
    pending = keeping.spawn(
        asyncio.to_thread(keeping.post, "/v1/responses", {"input": "first", "store": True})
    )
    keeping.until(lambda: keeping.engine.stats().generation_tokens >= 3)
    assert keeping.get("/healthz").status == 200
    assert not pending.done()
    lock.rollback()
    lock.close()
    assert pending.result(20).status == 200


def test_the_setting_is_checked_at_start(serve: Serve, tmp_path: pathlib.Path) -> None:
    """A path that cannot hold a file is one line."""
    from maple.responses_file import StoreUnusable

    with pytest.raises(StoreUnusable, match="No such file or directory"):
        serve(response_store=f"sqlite:{tmp_path}/none/x.db")
