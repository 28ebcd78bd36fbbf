"""The held-out evaluation through a server's HTTP API: ``python -m tools.sapling.evaluate_http
http://127.0.0.1:8000``.

Every question is one greedy POST to /v1/chat/completions; the sets and the grading are those of the offline
evaluation, or those of a file: ``--set FILE``, a JSON array of {kind, tools, messages, expect}.
Prints a table and, with --out, writes the figures as JSON. Exits with 1 when a kind misses its target.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from tools.sapling.conversation import Conversation, messages_before
from tools.sapling.grading import Answer, is_right
from tools.sapling.heldout import KINDS, TARGETS, heldout

_TIMEOUT = 300


@attrs.frozen
class Question:
    """Messages and tools as they go over the wire, and what a right reply has."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    expect: dict[str, Any]


def from_file(path: Path) -> dict[str, list[Question]]:
    """The questions of a file, by kind."""
    sets: dict[str, list[Question]] = {}
    for entry in json.loads(path.read_text("utf-8")):
        question = Question(entry["messages"], entry["tools"], entry["expect"])
        sets.setdefault(entry["kind"], []).append(question)
    return sets


def of_talk(talk: Conversation) -> Question:
    """The conversation's last question."""
    last = len(talk.exchanges) - 1
    return Question(_on_the_wire(messages_before(talk, last)), list(talk.tools), talk.exchanges[-1].expect)


def ask(base: str, question: Question, *, thinking: bool) -> Answer:
    """Sends a question and reads the reply. Raises ValueError when the server refuses."""
    address = urllib.parse.urlsplit(base)
    body: dict[str, Any] = {
        "messages": question.messages,
        "temperature": 0,
        "max_tokens": 400,
        "chat_template_kwargs": {"enable_thinking": thinking},
    }
    if question.tools:
        body["tools"] = question.tools
    connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}: {content}")
    return _answer(content, thinking=thinking)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A demo server of the installed package on a free port: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "maple", "--demo", "--port", str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def wait_until_ready(base: str, seconds: float = 120) -> None:
    """Returns once the model is loaded. Raises TimeoutError when it is not in time, or the server is not there."""
    address = urllib.parse.urlsplit(base)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.client.OK:
                return
        except ConnectionError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.5)
    raise TimeoutError(f"{base} is not ready after {seconds} s")


def _on_the_wire(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As an OpenAI client sends them: calls have ids, their arguments are JSON text."""
    sent = []
    for message in messages:
        calls = [
            {
                "id": f"call_{position}",
                "type": "function",
                "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
            }
            for position, call in enumerate(message.get("tool_calls", []))
        ]
        sent.append(
            {**message, "content": message["content"] or None, "tool_calls": calls} if calls else message
        )
    return sent


def _answer(content: dict[str, Any], *, thinking: bool) -> Answer:
    choice, usage = content["choices"][0], content["usage"]
    message = choice["message"]
    closed = not thinking or message["content"] is not None or bool(message.get("tool_calls"))
    spent = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return Answer(
        content=message["content"] or "",
        calls=tuple(
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ),
        reasoning_tokens=spent if closed else None,
    )


def evaluate(
    base: str, kind: str, questions: list[Question], *, thinking: bool, workers: int
) -> dict[str, Any]:
    """The figures of one kind."""
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        answers = list(pool.map(lambda question: ask(base, question, thinking=thinking), questions))
    right = sum(
        is_right(answer, question.expect) for answer, question in zip(answers, questions, strict=True)
    )
    closed = sum(answer.closed for answer in answers)
    count = len(questions)
    return {
        "kind": kind,
        "thinking": thinking,
        "asked": count,
        "right": round(100 * right / count, 1),
        "closed": round(100 * closed / count, 1),
        "target": TARGETS.get(kind) if thinking else None,
        "seconds": round(time.monotonic() - started, 1),
    }


def row(result: dict[str, Any]) -> str:
    """A line of the markdown table."""
    target = "" if result["target"] is None else f"≥ {result['target']}"
    thinking = "yes" if result["thinking"] else "no"
    return f"| {result['kind']} | {thinking} | {result['right']} | {target} | {result['closed']} |"


HEADER = "| kind | thinking | right, % | target | block closed in 256 tokens, % |\n|---|---|---|---|---|"


def _generated(kinds: Sequence[str], count: int) -> dict[str, list[Question]]:
    """The offline evaluation's questions; with a think block or without one they are the same."""
    return {kind: [of_talk(talk) for talk in heldout(kind, count)] for kind in kinds}


def main() -> int:
    """Parses the command line, asks everything, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "base", nargs="?", help="a server's address, without /v1; default: start `maple --demo`"
    )
    parser.add_argument("--count", type=int, default=200, help="questions of each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--set", type=Path, help="questions of a file instead of the generated ones")
    parser.add_argument("--workers", type=int, default=8, help="requests in flight")
    parser.add_argument(
        "--no-thinking", action="store_true", help="ask every kind with the think block closed, too"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sets = from_file(options.set) if options.set else _generated(options.kinds, options.count)
    results = []
    print(HEADER)
    with serving() if options.base is None else contextlib.nullcontext(options.base) as base:
        wait_until_ready(base)
        for thinking in (True, False) if options.no_thinking else (True,):
            for kind, questions in sets.items():
                results.append(evaluate(base, kind, questions, thinking=thinking, workers=options.workers))
                print(row(results[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    missed = [
        result["kind"]
        for result in results
        if result["target"] and (result["right"] < result["target"] or result["closed"] < 99)
    ]
    if missed:
        print("below target:", ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
