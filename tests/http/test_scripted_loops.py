"""A script can play a whole tool loop, and reports what a prefix cache would hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CALL = '</think>\n\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def choice(server: LiveServer, *messages: dict[str, Any]) -> Any:
    body = {"messages": messages, "tools": TOOLS, "temperature": 0}
    return server.post("/v1/chat/completions", body).json["choices"][0]


def test_a_loop_is_played_by_its_results(serve: Serve) -> None:
    """A line on "tool" answers a result only while it is the newest message; "user" goes on as ever."""
    server = serve(
        Recording(match="sunny", on="tool", pieces=("</think>It is sunny.",)),
        Recording(match="weather", pieces=(CALL,)),
        Recording(match="thanks", on="any", pieces=("</think>Welcome.",)),
    )
    asked = user("the weather?")
    assert choice(server, asked)["finish_reason"] == "tool_calls"
    told = choice(server, asked, CALLED, result("sunny"))["message"]["content"]
    assert told == "It is sunny."
    said = {"role": "assistant", "content": told}
    assert (
        choice(server, asked, CALLED, result("sunny"), said, user("thanks"))["message"]["content"]
        == "Welcome."
    )
    assert choice(server, asked, CALLED, result("rain"))["finish_reason"] == "tool_calls"


def test_a_loop_is_played_by_its_length(serve: Serve) -> None:
    """A line with a turn answers just the conversation with so many results."""
    server = serve(
        Recording(turn=2, on="tool", pieces=("</think>Done.",)), Recording(on="any", pieces=(CALL,))
    )
    history = [user("go")]
    for _ in range(2):
        assert choice(server, *history)["finish_reason"] == "tool_calls"
        history += [CALLED, result("more")]
    assert choice(server, *history)["message"]["content"] == "Done."


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_what_an_earlier_prompt_shares_is_cached(serve: Serve, tmp_path: Any, route: str) -> None:
    """The longest common prefix with an earlier prompt of the same key, in whole blocks of 64 ids, never all."""
    keys = tmp_path / "keys"
    keys.write_text("ada:a-key\nbob:b-key\n")
    keys.chmod(0o600)
    server = serve(api_key_file=keys)

    def cached(text: str, key: str = "a-key") -> tuple[int, int]:
        body = {"prompt": text} if route == "/v1/completions" else {"messages": [user(text)]}
        usage = server.post(route, body, {"Authorization": f"Bearer {key}"}).json["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    text = " ".join(f"word{number}" for number in range(300))
    assert cached(text)[0] == 0
    assert cached(text, "b-key")[0] == 0
    again, total = cached(text)
    assert again == (total - 1) // 64 * 64 > 64
    longer, total = cached(text + " and more of it" * 40)
    assert again - 64 <= longer < total
    assert longer % 64 == 0
    assert cached("another" + text)[0] == 0
