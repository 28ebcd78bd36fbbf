"""What the HTTP stack itself costs: a server on the scripted engine in its own process, and a raw client.

    python benchmarks/stack/bench.py            # the figures
    python benchmarks/stack/bench.py --profile  # and where the server's time goes, by function
    python benchmarks/stack/bench.py --replicas 4   # once more with the engine on so many replicas, and the ratios

The server process is the real one (settings, adapters, parsers, tokenizer, access log); only the engine is
scripted, and more sequences may run at a time than a CPU model would take. Wall-clock figures need an idle
machine; the server's own processor time per unit of work does not, so that is printed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import pathlib
import platform
import pstats
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator

import psutil

STREAMS = 64
PIECES = 2000
PIECE = " word"
READY_SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", action="store_true", help="profile the server over the 64 streams")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument(
        "--replicas", type=int, default=0, help="compare with a cluster of this machine alone"
    )
    parser.add_argument("--serve", nargs=3, metavar=("SCRIPT", "PROFILE", "REPLICAS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        script, profile, replicas = options.serve
        serve(script, profile, int(replicas))
        return
    runs = [asyncio.run(measure(profile=options.profile))]
    if options.replicas:
        runs.append(asyncio.run(measure(profile=False, replicas=options.replicas)))
    print(json.dumps(runs) if options.json else report(*runs))


def report(local: dict[str, float | str], cluster: dict[str, float | str] | None = None) -> str:
    """A line a figure; with a cluster's, the ratio as well."""
    lines = []
    for name, value in local.items():
        other = (cluster or {}).get(name, "")
        both = isinstance(value, float | int) and isinstance(other, float | int) and value
        lines.append(f"{name:<48} {value!s:<12} {other!s:<12}" + (f" {other / value:.2f}" if both else ""))
    return "\n".join(lines)


# The server's side.


def serve(script: str, profile: str, replicas: int) -> None:
    from maple.app import serve as serve_maple
    from maple.configure import Configuration
    from maple.settings import Settings

    cluster = (
        {"engine": "ray", "ray_address": "local", "replicas": (replicas, replicas), "replica_cores": 0.01}
        if replicas
        else {}
    )
    settings = Settings(
        scripted=pathlib.Path(script),
        port=0,
        max_batch=STREAMS,
        max_queue_depth=STREAMS,
        log_format="json",
        **cluster,  # type: ignore[arg-type]
    )
    profiler = cProfile.Profile() if profile != "-" else None
    if profiler:
        profiler.enable()
    try:
        asyncio.run(serve_maple(Configuration(settings=settings, sources={})))
    finally:
        if profiler:
            profiler.disable()
            profiler.dump_stats(profile)


@contextlib.contextmanager
def server(folder: pathlib.Path, *, profile: bool, replicas: int) -> Iterator[tuple[int, psutil.Process]]:
    script, log, stats = folder / "script.jsonl", folder / "log", folder / "profile"
    lines = [
        {"match": "short", "pieces": ["Fine.", "</think>", "\n\n", "ok"]},
        {"match": "real", "pieces": ["Fine.", "</think>", *[PIECE] * 500], "delay_ms": 10},
        {"match": "paced", "pieces": ["Fine.", "</think>", *[PIECE] * PIECES], "delay_ms": 0.001},
        {"match": None, "pieces": ["Fine.", "</think>", *[PIECE] * PIECES]},
    ]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [
        sys.executable,
        __file__,
        "--serve",
        str(script),
        str(stats) if profile else "-",
        str(replicas),
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        yield wait_for_port(log), psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(READY_SECONDS)
    if profile:
        pstats.Stats(str(stats)).sort_stats("tottime").print_stats(35)


def wait_for_port(log: pathlib.Path) -> int:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        events = {}
        for line in log.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                events[json.loads(line)["event"]] = json.loads(line)
        if "server.ready" in events:
            return int(events["server.listening"]["port"])
        time.sleep(0.05)
    raise TimeoutError(log.read_text()[-2000:])


# The client's side: as little work as possible, so that the server is what is measured.


def request(text: str, *, stream: bool) -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": stream}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


LONG = request("long", stream=True)
PACED = request("paced", stream=True)
"""A piece a turn of the loop, as a model gives them: nothing can be gathered into one write."""
SHORT_STREAM = request("short", stream=True)
SHORT = request("short", stream=False)


class Client(asyncio.Protocol):
    """One connection; counts bytes and waits for an end marker."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.first = 0.0
        self.events = 0
        self.marker = b""
        self.done: asyncio.Future[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self.first:
            self.first = time.perf_counter()
        self.received += data
        if self.received.endswith(self.marker) and not self.done.done():
            self.done.set_result(None)

    async def ask(self, data: bytes, marker: bytes) -> float:
        """Send, wait for the end, and return the seconds to the first byte."""
        self.received.clear()
        self.first, self.marker = 0.0, marker
        self.done = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        self.transport.write(data)
        await self.done
        return self.first - started


STREAM_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
ANSWER_END = b"}}}"


@contextlib.asynccontextmanager
async def clients(port: int, count: int) -> AsyncIterator[list[Client]]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Client, "127.0.0.1", port) for _ in range(count)]
    try:
        yield [client for _, client in made]
    finally:
        for transport, _ in made:
            transport.close()


async def measure(*, profile: bool, replicas: int = 0) -> dict[str, float | str]:
    figures: dict[str, float | str] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load average": round(os.getloadavg()[0], 1),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        server(pathlib.Path(folder), profile=profile, replicas=replicas) as (port, process),
    ):
        if not profile:
            figures |= await first_bytes(port)
            figures |= await streams(port, process, 1, LONG, "at once")
            figures |= await streams(port, process, 1, PACED, "one by one")
        figures |= await streams(port, process, STREAMS, LONG, "at once")
        figures |= await streams(port, process, STREAMS, PACED, "one by one")
        if not profile:
            figures |= await steady(port)
            for count in (1, 16):
                figures |= await answers(port, process, count)
    return figures


async def first_bytes(port: int) -> dict[str, float]:
    async with clients(port, 1) as (client,):
        for _ in range(20):
            await client.ask(SHORT_STREAM, STREAM_END)
        times = sorted([await client.ask(SHORT_STREAM, STREAM_END) for _ in range(300)])
    return {
        "first byte of a stream, median ms": round(statistics.median(times) * 1000, 2),
        "first byte of a stream, 99th percentile ms": round(times[-3] * 1000, 2),
    }


async def streams(
    port: int, process: psutil.Process, count: int, wanted: bytes, how: str
) -> dict[str, float]:
    async with clients(port, count) as made:
        await made[0].ask(SHORT_STREAM, STREAM_END)
        started, busy = time.perf_counter(), cpu_seconds(process)
        await asyncio.gather(*(client.ask(wanted, STREAM_END) for client in made))
        seconds, busy = time.perf_counter() - started, cpu_seconds(process) - busy
        events = sum(client.received.count(b"data: {") for client in made)
    if events < PIECES * count:
        raise RuntimeError(f"{events} events came of {PIECES * count} pieces")
    name = f"{count} stream{'s' * (count > 1)}, pieces {how}"
    return {
        f"{name}, a second": round(PIECES * count / seconds),
        f"{name}, server CPU us each": round(busy / PIECES / count * 1e6, 1),
    }


async def steady(port: int) -> dict[str, float]:
    """A stream at a model's pace, 100 pieces a second."""
    async with clients(port, 1) as (client,):
        started = time.perf_counter()
        await client.ask(request("real", stream=True), STREAM_END)
        return {"a stream of 100 pieces a second, a second": round(500 / (time.perf_counter() - started), 1)}


async def answers(port: int, process: psutil.Process, count: int) -> dict[str, float]:
    async def repeat(client: Client, times: int) -> None:
        for _ in range(times):
            await client.ask(SHORT, ANSWER_END)

    total = 1600
    async with clients(port, count) as made:
        await asyncio.gather(*(repeat(client, 5) for client in made))
        started, busy = time.perf_counter(), cpu_seconds(process)
        await asyncio.gather(*(repeat(client, total // count) for client in made))
        seconds, busy = time.perf_counter() - started, cpu_seconds(process) - busy
    return {
        f"short answers a second, {count} client(s)": round(total / seconds),
        f"short answers, {count} client(s), server CPU ms": round(busy / total * 1e3, 2),
    }


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
