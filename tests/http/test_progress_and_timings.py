"""return_progress and timings: how far a request is, and where its time went, on three routes."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from maple.engine.admission import QueueLimits
from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}
ROUTES = pytest.mark.parametrize("path", BODIES)
TIMINGS = {
    *("queue_ms", "cache_n", "prompt_n", "prompt_ms", "prompt_per_second"),
    *("predicted_n", "predicted_ms", "predicted_per_second", "draft_n", "draft_accepted_n"),
}
PROGRESS = {"state", "position", "total", "cached", "processed", "time_ms"}


def events(server: LiveServer, path: str, **fields: Any) -> list[Any]:
    body = server.post(path, {**BODIES[path], "stream": True, **fields}).body.decode()
    lines = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def timed(event: dict[str, Any]) -> Any:
    return event.get("response", event).get("timings")


@ROUTES
def test_an_answer_tells_where_its_time_went(serve: Serve, path: str) -> None:
    """Where it is asked to: whole, and in the event that ends the stream; rates are quotients of their neighbours."""
    server = serve(Recording(pieces=("</think>", "a", "b"), delay_ms=20))
    whole = server.post(path, {**BODIES[path], "timings": True}).json
    found, usage = whole["timings"], whole["usage"]
    assert set(found) == TIMINGS
    names = (
        ("input_tokens", "output_tokens")
        if path == "/v1/responses"
        else ("prompt_tokens", "completion_tokens")
    )
    assert [found["prompt_n"] + found["cache_n"], found["predicted_n"]] == [usage[name] for name in names]
    assert math.isclose(
        found["predicted_per_second"] * found["predicted_ms"], 1000 * found["predicted_n"], rel_tol=0.01
    )
    assert (found["draft_n"], found["draft_accepted_n"]) == (0, 0)
    streamed = [timed(event) for event in events(server, path, timings=True)]
    assert set(streamed[-1]) == TIMINGS
    assert not any(streamed[:-1])


@ROUTES
def test_the_extended_level_tells_it_unasked_and_the_reference_does_not(serve: Serve, path: str) -> None:
    """False is a word at either."""
    extended, reference = serve(api_level="extended"), serve()
    assert set(extended.post(path, BODIES[path]).json["timings"]) == TIMINGS
    assert "timings" not in extended.post(path, {**BODIES[path], "timings": False}).json
    assert "timings" not in reference.post(path, BODIES[path]).json
    assert not any(timed(event) for event in events(reference, path))


@ROUTES
def test_a_stream_tells_of_its_wait_and_of_its_prompt(serve: Serve, path: str) -> None:
    """Its place in the queue while another has the slot; the whole prompt right before the first text."""
    queue, often = QueueLimits(slots=1), Limits(progress_seconds=0.01)
    long = Recording(match="hold", pieces=("</think>", *"abcdefgh"), delay_ms=50)
    server = serve(long, Recording(pieces=("</think>", "Zebra")), queue=queue, limits=often)
    with server.open_stream("hold") as first:
        server.read_until(first, b"data:")
        told = events(server, path, return_progress=True)
    progress = [event["prompt_progress"] for event in told if "prompt_progress" in event]
    assert all(set(one) == PROGRESS for one in progress)
    assert [progress[0][name] for name in ("state", "position", "processed", "cached")] == ["queued", 1, 0, 0]
    assert progress[-1]["state"] == "prefill"
    assert progress[-1]["processed"] == progress[-1]["total"] > 0
    times = [one["time_ms"] for one in progress]
    assert times == sorted(times)
    last = max(index for index, event in enumerate(told) if "prompt_progress" in event)
    assert not any("Zebra" in json.dumps(event) for event in told[:last])


@ROUTES
def test_progress_changes_nothing_else_of_a_stream(server: LiveServer, path: str) -> None:
    """A wait too short to tell of still has its one event, without text; a whole answer has none."""
    plain, told = events(server, path), events(server, path, return_progress=True)
    rest = [event for event in told if "prompt_progress" not in event]
    assert len(told) - len(rest) >= 1
    assert [event.get("type", event.get("choices")) for event in rest] == [
        event.get("type", event.get("choices")) for event in plain
    ]
    assert "prompt_progress" not in server.post(path, {**BODIES[path], "return_progress": True}).json


def test_the_chunk_is_one_empty_delta(server: LiveServer) -> None:
    """So that clients which know nothing of progress pass over it; the role comes first all the same."""
    first, second, *_ = events(server, "/v1/chat/completions", return_progress=True)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]


@ROUTES
@pytest.mark.parametrize("field", ["return_progress", "timings"])
def test_both_are_booleans(server: LiveServer, path: str, field: str) -> None:
    """Anything else is refused by its name."""
    answer = server.post(path, {**BODIES[path], field: 1})
    assert (answer.status, answer.error["param"]) == (400, field)


@ROUTES
def test_obfuscation_may_be_asked_for_in_vain(server: LiveServer, path: str) -> None:
    """OpenAI's own clients send the wish; a stream is the same with it."""
    plain = [event.get("type", event.get("choices")) for event in events(server, path)]
    told = events(server, path, stream_options={"include_obfuscation": True})
    assert [event.get("type", event.get("choices")) for event in told] == plain
