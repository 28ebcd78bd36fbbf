"""The same seed and request give the same text, alone or queued behind others."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

TIMES = 10
SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 16}


def text(server: Any, prompt: str = "What is 17 * 23?", **fields: object) -> str:
    """The whole answer, reasoning included."""
    message = server.chat(prompt, **SAMPLED, **fields).json["choices"][0]["message"]
    return f"{message.get('reasoning_content')}|{message['content']}"


def streamed(server: Any, **fields: object) -> str:
    """The same from a stream."""
    found = {"reasoning_content": "", "content": ""}
    for frame in server.chat("What is 17 * 23?", stream=True, **SAMPLED, **fields).events[:-1]:
        for key in found:
            found[key] += frame["choices"][0]["delta"].get(key) or ""
    return f"{found['reasoning_content']}|{found['content']}"


@pytest.fixture(scope="module")
def alone(golden_server: Any) -> str:
    """What seed 7 gives when nothing else is asked."""
    return text(golden_server, seed=7)


def test_alone(golden_server: Any, alone: str) -> None:
    """Ten times in a row, with other seeds in between."""
    for time in range(TIMES):
        text(golden_server, seed=1000 + time)
        assert text(golden_server, seed=7) == alone


def test_queued_behind_others(golden_server: Any, alone: str) -> None:
    """Ten times while other requests, seeded and not, wait before and after it."""
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for _ in range(TIMES):
            others = [pool.submit(text, golden_server, f"Something else, {n}.") for n in range(4)]
            same = pool.submit(text, golden_server, seed=7)
            later = [pool.submit(text, golden_server, seed=n) for n in range(3)]
            assert same.result() == alone
            for other in (*others, *later):
                other.result()


def test_streamed(golden_server: Any, alone: str) -> None:
    """A stream samples the same text."""
    assert streamed(golden_server, seed=7) == alone


def test_other_seeds_differ(golden_server: Any, alone: str) -> None:
    """Two seeds give two texts, and so do two requests without one."""
    assert text(golden_server, seed=8) != alone
    assert text(golden_server) != text(golden_server)


@pytest.mark.parametrize("seed", [-(2**63), -2, 0, 2**63 - 1])
def test_every_int64_but_minus_one_is_a_seed(golden_server: Any, seed: int) -> None:
    """The ends of the range work like any other seed."""
    assert text(golden_server, seed=seed) == text(golden_server, seed=seed)


def test_minus_one_asks_for_a_random_seed(golden_server: Any) -> None:
    """As clients mean it."""
    assert text(golden_server, seed=-1) != text(golden_server, seed=-1)


def test_greedy_needs_no_seed(golden_server: Any) -> None:
    """At temperature 0 the seed changes nothing."""
    greedy = {"temperature": 0, "max_tokens": 12}
    answers = [golden_server.chat("hi", **greedy, seed=seed).json["choices"][0] for seed in (1, 2, None)]
    assert answers[0] == answers[1] == answers[2]
