"""llama.cpp in a process and an environment of its own, asked one question at a time."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any, Self

from maple.bench.random_checkpoint import BenchFailed

WORKER = pathlib.Path(__file__).with_name("peer_worker.py")


class Peer:
    """Runs ``peer_worker.py`` with a Python that has xllamacpp and gguf; a context manager."""

    def __init__(
        self,
        python: str,
        model: pathlib.Path,
        config: Mapping[str, Any],
        *,
        threads: int,
        context: int,
        slots: int,
    ) -> None:
        """Start the worker, which first writes ``model``, random weights of that config, if it is not there."""
        options = {"threads": threads, "context": context, "slots": slots, "config": dict(config)}
        # The operator named this Python.
        self._process = subprocess.Popen(  # noqa: S603
            [python, str(WORKER), str(model), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.path = str(self._read().get("path", ""))
        except BenchFailed:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, by force if it does not end within half a minute."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def generate(self, prompt: int, tokens: int) -> tuple[float, float]:
        """Tokens a second of the prefill of a fresh prompt and of the decoding behind it."""
        answer = self._ask(prompt=prompt, tokens=tokens)
        return answer["prefill"], answer["decode"]

    def batch(self, sequences: int, prompt: int, tokens: int) -> float:
        """Tokens a second of several sequences decoding together."""
        return self._ask(sequences=sequences, prompt=prompt, tokens=tokens)["aggregate"]

    def _ask(self, **question: int) -> dict[str, float]:
        if self._process.stdin is None:
            raise BenchFailed("the peer has no input")
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed("the peer ended") from None
        return self._read()

    def _read(self) -> dict[str, float]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise BenchFailed("the peer ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchFailed(f"the peer failed: {' '.join(str(answer['error']).split())[:200]}")
        return answer
