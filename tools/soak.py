"""A mixed load on a real server, and what it leaves behind: memory, descriptors, threads, blocks, and log.

    python tools/soak.py --seconds 1200 --report soak.svg
    python tools/soak.py --rounds 3

Chats of which a fifth is left midway, hostile bodies with and without a key, sessions that are saved, loaded and
deleted, stored responses, SIGHUPs, a folder that somebody keeps locked, and a disk that is full. The exit code is 1
where something was not given back.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import gzip
import http.client
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator

import attrs

MIB = 1 << 20
KEYS = {"ada": "one", "bob": "two"}
BOMB = gzip.compress(b'{"messages": [' + b" " * (16 * MIB - 100) + b"]}")
FULL_BYTES = 64 * 1024
"""No file may grow beyond this while the disk is full."""
PATIENCE = 600.0


@attrs.frozen
class Sample:
    """What the server holds at a moment."""

    at: float
    memory: int
    descriptors: int
    threads: int
    blocks: int


class Server:
    """The server under load; its log is read, counted and searched for tracebacks."""

    def __init__(self, folder: pathlib.Path) -> None:
        keys = folder / "keys"
        keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
        keys.chmod(0o600)
        self.sessions = folder / "sessions"
        settings = {
            "MAPLE_API_KEY_FILE": keys,
            "MAPLE_SESSION_DIR": self.sessions,
            "MAPLE_RESPONSE_STORE": f"sqlite:{folder / 'responses.db'}",
            "MAPLE_CACHE_DIR": folder / "cache",
            "MAPLE_MAX_BATCH": 4,
            "MAPLE_KV_CACHE_MB": 64,
            "MAPLE_PREFIX_CACHE_MB": 16,
            "MAPLE_METRICS_PUBLIC": "true",
            "MAPLE_LOG_FORMAT": "json",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "maple", "--demo", "--port", "0"],
            stderr=subprocess.PIPE,
            env={**os.environ, **{name: str(value) for name, value in settings.items()}},
        )
        self.log_bytes = 0
        self.tracebacks: list[str] = []
        self.port = 0
        self._ready = threading.Event()
        threading.Thread(target=self._read_log, daemon=True).start()
        if not self._ready.wait(PATIENCE) or self.process.poll() is not None:
            raise SystemExit("the server did not start")

    def _read_log(self) -> None:
        for line in self.process.stderr or ():
            self.log_bytes += len(line)
            if b"Traceback" in line or b'"exception"' in line:
                self.tracebacks.append(line.decode())
            if b'"server.listening"' in line:
                self.port = json.loads(line)["port"]
            if b'"server.ready"' in line:
                self._ready.set()
        self._ready.set()

    @contextlib.contextmanager
    def asked(
        self, method: str, path: str, body: bytes | None = None, key: str | None = "one", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """A request whose status line has come."""
        given = {"Authorization": f"Bearer {key}"} if key else {}
        given |= {"Content-Type": "application/json"} if body is not None else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(
                method, path, body, given | {k.replace("_", "-"): v for k, v in headers.items()}
            )
            yield connection.getresponse()

    def status(self, method: str, path: str, body: object = None, **more: str | None) -> int:
        """The status of a whole answer. ``body``: bytes as they are, anything else as JSON."""
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with self.asked(method, path, sent, **more) as response:  # type: ignore[arg-type]  # a header is never None
            response.read()
            return response.status

    def metrics(self) -> dict[str, float]:
        """The samples without labels."""
        with self.asked("GET", "/metrics", key=None) as response:
            text = response.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(maple_\w+) (\S+)$", text, re.MULTILINE)}

    def sample(self, began: float) -> Sample:
        """As of now."""
        folder = pathlib.Path(f"/proc/{self.process.pid}")
        held = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", (folder / "status").read_text(), re.MULTILINE))
        return Sample(
            at=time.monotonic() - began,
            memory=int(held["VmRSS"]) << 10,
            descriptors=len(list((folder / "fd").iterdir())),
            threads=int(held["Threads"]),
            blocks=int(self.metrics()["maple_kv_blocks"]),
        )

    def until_idle(self) -> None:
        """Return once nothing runs, waits, or is held."""
        names = (
            "requests_running",
            "requests_waiting",
            "body_bytes",
            "preparation_threads",
            "preparation_waiting",
        )
        deadline = time.monotonic() + PATIENCE
        while any((found := self.metrics())[f"maple_{name}"] for name in names):
            if time.monotonic() > deadline:
                raise SystemExit(f"never idle: {found}")
            time.sleep(0.05)


class Load:
    """One client that does a bit of everything, by a seed; it counts what it was answered."""

    def __init__(self, server: Server, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self._server = server
        self._dice = random.Random(seed)

    def round(self) -> None:
        """Each kind once, in an order of its own."""
        kinds = [
            self.chat,
            self.chat,
            self.chat,
            self.chat,
            self.leave,
            self.store,
            self.session,
            self.hostile,
        ]
        self._dice.shuffle(kinds)
        for kind in kinds:
            self._note(kind.__name__, kind())

    def chat(self) -> int:
        """A whole answer."""
        return self._server.status("POST", "/v1/chat/completions", self._body(), key=self._key())

    def leave(self) -> int:
        """A stream that is read for a moment."""
        body = json.dumps(self._body(stream=True, max_tokens=400)).encode()
        with self._server.asked("POST", "/v1/chat/completions", body, key=self._key()) as response:
            response.read(self._dice.randrange(1, 400))
            return response.status

    def store(self) -> int:
        """A response that is kept, continued, read and forgotten."""
        key = self._key()
        body = json.dumps({"input": "hello", "store": True, "max_output_tokens": 8}).encode()
        with self._server.asked("POST", "/v1/responses", body, key=key) as response:
            answer = json.loads(response.read())
        if response.status != http.HTTPStatus.OK:
            return response.status
        path = f"/v1/responses/{answer['id']}"
        self._server.status("GET", path, key=key)
        return self._server.status("DELETE", path, key=key)

    def session(self) -> int:
        """A conversation that is saved, loaded and, at times, deleted."""
        key, name = self._key(), f"s{self._dice.randrange(6)}"
        self._server.status("POST", "/v1/chat/completions", self._body(session_id=name), key=key)
        found = [
            self._server.status("POST", f"/v1/sessions/{name}/{act}", key=key) for act in ("save", "load")
        ]
        if not self._dice.randrange(3):
            found.append(self._server.status("DELETE", f"/v1/sessions/{name}", key=key))
        return max(found)

    def hostile(self) -> int:
        """A body that means no good, of a stranger or of a key."""
        key = self._dice.choice([None, *KEYS.values()])
        many = json.dumps(self._body(messages=[{"role": "user", "content": "a"}] * 30_000)).encode()
        body, headers = self._dice.choice(
            [
                (BOMB, {"Content_Encoding": "gzip"}),
                (gzip.compress(many), {"Content_Encoding": "gzip"}),
                (b"[" * 100_000, {}),
                (os.urandom(10_000), {"Content_Encoding": "gzip"}),
                (many, {}),
            ]
        )
        return self._server.status("POST", "/v1/chat/completions", body, key=key, **headers)

    def _note(self, kind: str, status: int) -> None:
        self.answers[f"{kind} {status}"] += 1

    def _key(self) -> str:
        return self._dice.choice(list(KEYS.values()))

    def _body(self, **fields: object) -> dict[str, object]:
        words = " ".join(
            self._dice.choices(["maple", "tree", "leaf", "what", "is"], k=self._dice.randrange(1, 60))
        )
        return {"messages": [{"role": "user", "content": words}], "max_tokens": 12, **fields}


def disturb(server: Server, turn: int) -> None:
    """Something that operators meet, by turns: keys reread, a session's folder kept for a while, a full disk."""
    server.process.send_signal(signal.SIGHUP)
    folders = list(server.sessions.glob("*/*"))
    if turn % 2 and folders:
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(folders[turn % len(folders)], os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX)
            time.sleep(1)
            os.close(folder)
    if not turn % 3:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, unlimited[1]))
        time.sleep(1)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)


def soak(server: Server, *, seconds: float, rounds: int, clients: int) -> tuple[list[Sample], Counter[str]]:
    """Load the server for so long, or for so many rounds; samples from after the first round on."""
    loads = [Load(server, seed) for seed in range(clients)]
    began, samples, turn = time.monotonic(), [], 0
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        while turn < rounds or time.monotonic() - began < seconds:
            under_way = [pool.submit(load.round) for load in loads]
            disturb(server, turn)
            for each in under_way:
                each.result()
            server.until_idle()
            samples.append(server.sample(began))
            turn += 1
    return samples, sum((load.answers for load in loads), Counter())


def faults(server: Server, samples: list[Sample], answers: Counter[str]) -> Iterator[str]:
    """What was not given back, against the first third of the samples."""
    first = samples[: max(1, len(samples) // 3)]
    last, slack = samples[-1], {"memory": 192 * MIB, "descriptors": 16, "threads": 16}
    for name, more in slack.items():
        most = max(getattr(sample, name) for sample in first) + more
        if getattr(last, name) > most:
            yield f"{name}: {getattr(last, name)} are more than {most}"
    if server.log_bytes > 4096 * (sum(answers.values()) + 100) * 2:
        yield f"the log has {server.log_bytes} bytes"
    if server.tracebacks:
        yield f"{len(server.tracebacks)} tracebacks, the first: {server.tracebacks[0][:2000]}"
    if odd := [answer for answer in answers if answer.endswith(" 500")]:
        yield f"answers that nobody meant: {odd}"
    server.process.send_signal(signal.SIGTERM)
    if (code := server.process.wait(PATIENCE)) != 0:
        yield f"exit code {code}"


def picture(samples: list[Sample]) -> str:
    """The samples as an SVG picture: a line each, from nothing to its largest value."""
    width, height, names = 900, 90, ("memory", "descriptors", "threads", "blocks")
    end = max(samples[-1].at, 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height * len(names)}" font-size="12">'
    ]
    for row, name in enumerate(names):
        values = [getattr(sample, name) for sample in samples]
        top, base = max(*values, 1), (row + 1) * height - 10
        points = " ".join(
            f"{sample.at / end * width:.1f},{base - value / top * (height - 30):.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        label = f"{name}: first {values[0]:,}, most {top:,}, last {values[-1]:,}"
        parts.append(f'<text x="4" y="{row * height + 14}">{label}</text>')
        parts.append(f'<polyline points="{points}" fill="none" stroke="#b3541e" stroke-width="1.5"/>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """0 where everything was given back."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--report", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder))
        try:
            samples, answers = soak(
                server, seconds=options.seconds, rounds=options.rounds, clients=options.clients
            )
            found = list(faults(server, samples, answers))
        finally:
            server.process.kill()
    for answer, count in sorted(answers.items()):
        print(f"{answer:16} {count}")
    print(f"{len(samples)} rounds, {server.log_bytes} bytes of log, first {samples[0]}, last {samples[-1]}")
    if options.report:
        options.report.write_text(picture(samples))
    for fault in found:
        print(f"NOT GIVEN BACK: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
