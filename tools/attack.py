"""What a stranger's requests cost the server: processor time beside that of a refused POST of the same bytes.

    python tools/attack.py

Each attack is sent to a server with a key, without that key. The last column is what counts: no keyless request may
cost more than three times a keyless POST of plain JSON that is answered 401.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import attrs

REQUESTS = 300
MOST_TIMES = 3.0
BOMB = gzip.compress(bytes(16 << 20))
SMALL = b'{"messages": [{"role": "user", "content": "hi"}]}'
TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Attack:
    """A request, over and over: ``lines`` are its first line and headers beyond Host."""

    name: str
    lines: tuple[str, ...]
    body: bytes = b""

    @property
    def request(self) -> bytes:
        """As it goes over the wire."""
        length = (f"Content-Length: {len(self.body)}",) if self.body else ()
        return "\r\n".join((*self.lines, "Host: localhost", *length, "", "")).encode() + self.body


def plain(name: str, body: bytes, *extra: str) -> Attack:
    """The POST that others are measured by."""
    return Attack(
        name, ("POST /v1/chat/completions HTTP/1.1", "Content-Type: application/json", *extra), body
    )


ATTACKS = (
    plain("POST, gzip of 16 MiB", BOMB, "Content-Encoding: gzip"),
    Attack(
        "OPTIONS, gzip of 16 MiB", ("OPTIONS /v1/chat/completions HTTP/1.1", "Content-Encoding: gzip"), BOMB
    ),
    Attack("GET /healthz, gzip of 16 MiB", ("GET /healthz HTTP/1.1", "Content-Encoding: gzip"), BOMB),
    Attack(
        "GET /openapi.json, gzip of 16 MiB", ("GET /openapi.json HTTP/1.1", "Content-Encoding: gzip"), BOMB
    ),
    Attack("GET unknown path, 404", (f"GET /{'v1/' * 60}chat HTTP/1.1",), b"x" * 100),
    plain("POST, wrong key of 4,000 letters", SMALL, f"Authorization: Bearer {'k' * 4000}"),
    plain("POST, 1,500 header lines", SMALL, *("a: b" for _ in range(1500))),
    plain("POST from another page", SMALL, "Origin: https://evil.example"),
    Attack("POST /v1/sessions/x/save", ("POST /v1/sessions/x/save HTTP/1.1",), b""),
    Attack("GET /healthz", ("GET /healthz HTTP/1.1",)),
    Attack("GET /v1/stats", ("GET /v1/stats HTTP/1.1",)),
    Attack("GET /ui", ("GET /ui HTTP/1.1",)),
)


@contextlib.contextmanager
def server() -> Iterator[tuple[int, int]]:
    """A scripted server with a key: its process id and port."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "script.jsonl"
        script.write_text('{"match": null, "pieces": ["x"]}\n')
        command = [sys.executable, "-P", "-m", "maple", "--port", "0", "--scripted", str(script)]
        environment = {
            **os.environ,
            "MAPLE_API_KEY": "secret",
            "MAPLE_LOG_FORMAT": "json",
            "MAPLE_LOG_LEVEL": "info",
        }
        log = pathlib.Path(folder) / "log"
        with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
            while not (found := re.search(r'"port": (\d+)', log.read_text())):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
            yield process.pid, int(found[1])
            process.terminate()


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def cost(pid: int, port: int, attack: Attack) -> tuple[float, str]:
    """Milliseconds of the server's processor time for one such request, and what it was answered."""
    before = processor_seconds(pid)
    for _ in range(REQUESTS):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(attack.request)
            status = raw.recv(65536)[9:12].decode()
    return (processor_seconds(pid) - before) / REQUESTS * 1000, status


def table(measure: Callable[[Attack], tuple[float, str]]) -> bool:
    """Print a line an attack; whether all stay within bounds."""
    fine = True
    print(f"{'attack':36} {'bytes':>7} {'status':>6} {'ms':>7} {'times a 401':>12}")
    for attack in ATTACKS:
        spent, status = measure(attack)
        sent = len(attack.request)
        base, _ = measure(plain("", b" " * max(2, sent - 120)))
        times = spent / base
        fine = fine and times <= MOST_TIMES
        print(f"{attack.name:36} {sent:7} {status:>6} {spent:7.2f} {times:12.2f}", flush=True)
    return fine


def main() -> int:
    """0 where no attack costs more than it may."""
    with server() as (pid, port):
        cost(pid, port, plain("", SMALL))
        return 0 if table(lambda attack: cost(pid, port, attack)) else 1


if __name__ == "__main__":
    sys.exit(main())
