"""What HTTP adds to the engine: the real server in a process of its own, asked over loopback.

Both sides stream the same greedy answers to the same prompts, in turn, and keep nothing of one prompt for the next.
How long a prefill took is the server's own word for that very request: it is in the request's span.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from maple_protocols.ask import Conversation, Message
from rig import Run, engine, job, run
from spans import Collector, collecting
from tokenizers import Tokenizer

from maple.engine.worker import ThreadedEngine
from maple.prompt.encode import PromptEncoder

READY_SECONDS = 120
PLAIN_WORD = re.compile("Ġ[a-z]{3,9}")


class Prompts:
    """Random words of one token each, as many as make a prompt of the wanted length."""

    def __init__(self, folder: pathlib.Path) -> None:
        vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
        self._words = sorted(token[1:] for token in vocabulary if PLAIN_WORD.fullmatch(token))
        self._encoder = PromptEncoder(folder)
        self._chance = random.Random(0)

    def text(self, tokens: int) -> str:
        """A message that is ``tokens`` ids long once the chat template is around it."""
        words = self._chance.choices(self._words, k=tokens)
        return " ".join(words[: 2 * tokens - len(self.ids(" ".join(words)))])

    def ids(self, text: str) -> tuple[int, ...]:
        conversation = Conversation(messages=(Message(role="user", content=text),))
        return self._encoder.encode(conversation, thinking=True, limit=1 << 20).ids


@attrs.frozen(kw_only=True)
class Server:
    """A server that is ready, and the words of its log for what it runs on."""

    port: int
    dtype: str

    async def ask(self, text: str, tokens: int, request_id: str) -> Run:
        """Stream one chat completion. The clock starts with the request, on a connection that is there."""
        fields = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        message = {"role": "user", "content": text}
        body = json.dumps({"messages": [message], "max_tokens": tokens, **fields}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        kept = Run()
        writer.write(head.encode() + body)
        while (line := await reader.readline()) != b"data: [DONE]\n":
            if not line:
                raise SystemExit(f"{request_id} was not answered")
            if line.startswith(b"data: "):
                note(kept, json.loads(line.removeprefix(b"data: ")))
        writer.close()
        return kept


def note(kept: Run, chunk: dict[str, Any]) -> None:
    """Keep what a chunk brings, and when."""
    now = time.perf_counter()
    if chunk.get("usage"):
        kept.tokens = chunk["usage"]["completion_tokens"]
    for choice in chunk["choices"]:
        text = choice["delta"].get("reasoning_content") or choice["delta"].get("content")
        if text:
            kept.pieces.append((now, text))
        if choice["finish_reason"]:
            kept.ended = now


@contextlib.contextmanager
def serving(options: argparse.Namespace, collector: Collector) -> Iterator[Server]:
    """Start, wait until it is ready, stop: by then its spans have been sent."""
    command = [sys.executable, "-P", "-m", "maple", "--model-path", options.model, "--port", "0"]
    command += ["--torch-threads", str(options.threads), "--kv-cache-mb", str(options.kv_mb)]
    command += ["--prefix-cache-mb", "0", "--log-format", "json"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAPLE_", "OTEL_"))
    }
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, stdout=sink, stderr=sink, env=environment | collector.environment()
            )
        try:
            yield ready(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_SECONDS)


def ready(process: subprocess.Popen[bytes], log: pathlib.Path) -> Server:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        events = {line["event"]: line for line in lines}
        if "server.ready" in events:
            return Server(port=events["server.listening"]["port"], dtype=events["model.loaded"]["dtype"])
        time.sleep(0.05)
    raise SystemExit(f"the server did not become ready: {log.read_text()[-2000:]}")


async def http(options: argparse.Namespace) -> dict[str, Any]:
    """Streams on both sides, and first tokens, each beyond its own prefill."""
    sizes = options.sizes
    async with engine(options, slots=1, prefix_mb=0, endless=False) as on:
        if on.served is None:
            raise SystemExit("the engine has no model")
        prompts = Prompts(on.served.folder)
        with collecting() as collector, serving(options, collector) as server:
            await server.ask(prompts.text(64), 4, "warm")
            streaming = await streams(on, server, prompts, options)
            runs: dict[int, dict[str, Run]] = {tokens: {} for tokens in sizes.answers}
            for number, tokens in itertools.product(range(options.rounds), sizes.answers):
                name = f"first-{tokens}-{number}"
                runs[tokens][name] = await server.ask(prompts.text(tokens), 1, name)
    found = {str(tokens): first_tokens(each, collector) for tokens, each in runs.items()}
    return {"server": server.dtype, "streaming": streaming, "first_token": found}


async def streams(
    on: ThreadedEngine, server: Server, prompts: Prompts, options: argparse.Namespace
) -> dict[str, Any]:
    """The same prompts on both sides in turn. A round counts if both began with the same text and are as long."""
    tokens, pairs = options.sizes.streamed, []
    for number in range(options.rounds):
        text = prompts.text(options.sizes.context)
        ours = await run(on, job(list(prompts.ids(text)), tokens))
        theirs = await server.ask(text, tokens, f"stream-{number}")
        begins = [one.pieces[0][1] for one in (ours, theirs) if one.pieces]
        if ours.tokens == theirs.tokens > 1 and len(begins) == 2 and begins[0] == begins[1]:
            pairs.append((ours, theirs))
    if not pairs:
        raise SystemExit("no answer was the same on both sides")
    rates = [(arrival_rate(ours), arrival_rate(theirs)) for ours, theirs in pairs]
    return {
        "engine_tokens_per_s": statistics.median(one for one, _ in rates),
        "http_tokens_per_s": statistics.median(other for _, other in rates),
        "ratio": statistics.median(other / one for one, other in rates),
        "rounds": rates,
        "tokens": [ours.tokens for ours, _ in pairs],
        "engine_gap_ms": gaps([ours for ours, _ in pairs]),
        "http_gap_ms": gaps([theirs for _, theirs in pairs]),
    }


def arrival_rate(of: Run) -> float:
    """Tokens a second between the first text and the end, both as they arrived."""
    return (of.tokens - 1) / (of.ended - of.pieces[0][0])


def gaps(of: Sequence[Run]) -> dict[str, float]:
    """Between two pieces of text."""
    between = [
        1000 * (later - earlier) for one in of for (earlier, _), (later, _) in itertools.pairwise(one.pieces)
    ]
    return {"median": statistics.median(between), "worst": max(between)}


def first_tokens(runs: dict[str, Run], collector: Collector) -> dict[str, Any]:
    """From the request to its first text, less the prefill that the server measured for it."""
    prefills = [collector.prefill_seconds[name] for name in runs]
    firsts = [one.answered - one.begun for one in runs.values()]
    beyond = [1000 * (first - prefill) for first, prefill in zip(firsts, prefills, strict=True)]
    return {
        "http_s": statistics.median(firsts),
        "prefill_s": statistics.median(prefills),
        "beyond_prefill_ms": statistics.median(beyond),
        "each_ms": beyond,
    }
