"""What strangers take from a client with a key: its stream beside 2,000 connections and floods of every kind.

    python benchmarks/stack/strangers.py --seconds 20

The server has the first of the machine's cores to itself, strangers share the second with the client, which goes
before them; the script sends a piece every 10 ms. The exit code is 1 where the stream keeps less than 60 % of its
pieces, its first byte takes 200 ms, or the 99th percentile of /healthz 100 ms.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import cast

import attrs

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
from attack import ATTACKS, SMALL, plain

CONNECTIONS = 2000
AT_ONCE = 32
"""Connections that flood; the others are held, each with half a request."""
HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
COMES_BACK = 1.0
"""Seconds after which a held connection that was closed is made anew."""
SETTLED = 2.0
"""Seconds after which all strangers have knocked at least once."""
CORES = sorted(os.sched_getaffinity(0))[:2]
LEAST_PIECES, MOST_FIRST, MOST_PROBE = 0.6, 0.2, 0.1
PATIENCE = 60.0


@attrs.frozen
class Figures:
    """One stream and the probes beside it: pieces a second, and seconds."""

    pieces: float
    first: float
    probes: list[float]

    @property
    def probe(self) -> float:
        """The 99th percentile."""
        return statistics.quantiles(self.probes, n=100)[-1]

    def __str__(self) -> str:
        return (
            f"{self.pieces:6.1f} pieces a second, first byte {self.first * 1000:6.1f} ms, "
            f"/healthz {self.probe * 1000:6.1f} ms at the 99th percentile of {len(self.probes)}"
        )


def pinned(core: int, *words: str, nice: int = 0) -> list[str]:
    """A Python command on one core."""
    return ["taskset", "-c", str(core), "nice", "-n", str(nice), sys.executable, *words]


@contextlib.contextmanager
def server() -> Iterator[int]:
    """A scripted server with a key, on the first core: its port."""
    with tempfile.TemporaryDirectory() as folder:
        script, log = pathlib.Path(folder) / "script.jsonl", pathlib.Path(folder) / "log"
        script.write_text(json.dumps({"match": None, "pieces": [" x"] * 20_000, "delay_ms": 10}) + "\n")
        command = pinned(CORES[0], "-P", "-m", "maple", "--port", "0", "--scripted", str(script))
        settings = {
            "MAPLE_API_KEY": "secret",
            "MAPLE_LOG_FORMAT": "json",
            "MAPLE_MAX_NEW_TOKENS_LIMIT": "30000",
        }
        with (
            log.open("w") as stderr,
            subprocess.Popen(command, stderr=stderr, env={**os.environ, **settings}) as process,
        ):
            while not (
                (found := re.search(r'"port": (\d+)', log.read_text())) and "server.ready" in log.read_text()
            ):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            yield int(found[1])
            process.kill()


@contextlib.contextmanager
def strangers(port: int) -> Iterator[None]:
    """A process on the second core that holds connections and floods, until the end of the block."""
    command = pinned(CORES[-1], __file__, "--flood", str(port), nice=19)
    with subprocess.Popen(command) as process:
        time.sleep(SETTLED)
        yield
        process.kill()


def flood(port: int) -> None:
    """Hold and flood until killed."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 2 * CONNECTIONS), limit))
    requests = [one.request for one in (*ATTACKS, plain("POST", SMALL))]
    selector, turn = selectors.DefaultSelector(), 0
    late: collections.deque[float] = collections.deque()

    def join(request: bytes) -> None:
        raw = socket.socket()
        raw.setblocking(False)
        raw.connect_ex(("127.0.0.1", port))
        selector.register(raw, selectors.EVENT_WRITE, request)

    for number in range(CONNECTIONS):
        join(HALF if number >= AT_ONCE else requests[number % len(requests)])
    while True:
        for key, event in selector.select(0.01):
            raw, request = cast("socket.socket", key.fileobj), key.data
            ended = False
            with contextlib.suppress(BlockingIOError):
                try:
                    if event & selectors.EVENT_WRITE:
                        raw.send(request)
                        selector.modify(raw, selectors.EVENT_READ, request)
                    else:
                        ended = bool(raw.recv(65536)) or True
                except OSError:
                    ended = True
            if ended:  # answered, closed or refused: another takes its place
                selector.unregister(raw)
                raw.close()
                turn += request is not HALF
                if request is HALF:
                    late.append(time.monotonic() + COMES_BACK)
                else:
                    join(requests[turn % len(requests)])
        while late and late[0] < time.monotonic():
            late.popleft()
            join(HALF)


def stream(port: int, seconds: float) -> tuple[float, float]:
    """Pieces a second of a stream, and how long its first byte took, the connection included."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 20_000})
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise SystemExit(f"the stream was refused: {response.status} {response.read()!r}")
    response.readline()
    first, pieces = time.perf_counter() - began, 0
    while time.perf_counter() - began < seconds:
        pieces += response.readline().startswith(b"data:")
    connection.close()
    return pieces / (time.perf_counter() - began - first), first


def probe(port: int, ended: threading.Event) -> list[float]:
    """Seconds of a /healthz on a connection of its own, 20 times a second."""
    found = []
    while not ended.wait(0.05):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/healthz")
        if connection.getresponse().status == http.HTTPStatus.OK:
            found.append(time.perf_counter() - began)
        connection.close()
    return found


def measured(port: int, seconds: float) -> Figures:
    """A stream of so many seconds and the probes beside it."""
    ended, probes = threading.Event(), []
    thread = threading.Thread(target=lambda: probes.extend(probe(port, ended)))
    thread.start()
    try:
        pieces, first = stream(port, seconds)
    finally:
        ended.set()
        thread.join()
    return Figures(pieces, first, probes)


def main() -> int:
    """0 where the client keeps what it must."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flood", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        flood(options.flood)
    os.sched_setaffinity(0, {CORES[-1]})
    with server() as port:
        alone = measured(port, options.seconds)
        print(f"alone      {alone}", flush=True)
        with strangers(port):
            beside = measured(port, options.seconds)
        print(f"strangers  {beside}")
    print(f"kept       {beside.pieces / alone.pieces:.0%} of its pieces")
    kept = beside.pieces >= LEAST_PIECES * alone.pieces
    return 0 if kept and beside.first < MOST_FIRST and beside.probe < MOST_PROBE else 1


if __name__ == "__main__":
    sys.exit(main())
