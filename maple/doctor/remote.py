"""A server at an address, with whatever stands in front of it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence

import attrs

from maple.client import Refused, Remote, Unreachable
from maple.doctor.check import Finding
from maple.errors import CommandFailed

_QUESTION = {"role": "user", "content": "Count from one to forty in words."}
_TOKENS = 64
_FEWEST = 8
_AT_ONCE = 0.1
"""Events that came within this share of the whole time came at once: an engine spreads them over nearly all."""

_BURST = 5
"""Events that come together on average, from which on something collects them: an engine sends one at a time."""

_WAYS_OUT = {
    401: "set MAPLE_API_KEY to one of its keys",
    403: "on the server, set a key or list the name in MAPLE_ALLOWED_HOSTS",
    404: "give the address without a path, or with the one that the proxy puts before /v1",
    413: "raise the proxy's limit on bodies",
    502: "the proxy reaches no server: is it up, on the port that the proxy knows?",
    503: "wait until it has loaded or its queue is shorter; /health says more",
    504: "raise the proxy's time limit for reading",
}


def examine_url(url: str, key: str | None) -> Iterator[tuple[str, Finding]]:
    """Whether a Maple answers there, and whether its tokens arrive one by one. Raises UsageError."""
    remote = Remote(url, key, {"max_tokens": _TOKENS})
    server = _server(remote)
    yield "server", server
    if server.level == "good":
        yield "stream", _stream(remote)


def _server(remote: Remote) -> Finding:
    try:
        status, body = remote.get("/readyz")
    except Unreachable as error:
        advice = "is it running, is the address right, does a firewall or proxy let it through?"
        return Finding(level="bad", text=f"no answer from {error.host}: {error.reason}", advice=advice)
    try:
        answer = json.loads(body)
        named = f"{answer['service']} {answer['version']}, {answer['model']}: {answer['status']}"
    except (ValueError, KeyError, TypeError):
        advice = _WAYS_OUT.get(status, "give the address of a Maple server")
        return Finding(level="bad", text=f"what answers there ({status}) is no Maple server", advice=advice)
    if status != 200:
        return Finding(level="bad", text=named, advice="wait, or see /health for the reason")
    return Finding(level="good", text=named)


@attrs.frozen
class _Arrivals:
    """When each event of an answer arrived, in seconds from the request; ascending, at least one."""

    times: Sequence[float]

    @property
    def bursts(self) -> int:
        """How many times something arrived: gaps far below the mean one are none."""
        span = self.times[-1] - self.times[0]
        if span < _AT_ONCE * self.times[-1]:
            return 1
        mean = span / (len(self.times) - 1)
        return 1 + sum(later - earlier > mean / 2 for earlier, later in itertools.pairwise(self.times))

    @property
    def collected(self) -> bool:
        return self.bursts * _BURST < len(self.times)


def _stream(remote: Remote) -> Finding:
    """Twice, where the first answer was collected: it may have waited behind others."""
    try:
        arrivals = _listen(remote)
        if arrivals.collected:
            arrivals = _listen(remote)
    except Refused as error:
        advice = _WAYS_OUT.get(error.status, "")
        return Finding(level="bad", text=f"refused with {error.status}: {error.reason}", advice=advice)
    except CommandFailed as error:
        return Finding(level="bad", text=str(error), advice="look into the proxy's log and the server's")
    return _judge(arrivals)


def _listen(remote: Remote) -> _Arrivals:
    started = time.monotonic()
    times = [time.monotonic() - started for _ in remote.ask([_QUESTION])]
    return _Arrivals(times or [time.monotonic() - started])


def _judge(arrivals: _Arrivals) -> Finding:
    events, bursts, times = len(arrivals.times), arrivals.bursts, arrivals.times
    span = f"{events} events from {times[0]:.2f} s to {times[-1]:.2f} s after the request"
    if events < _FEWEST:
        return Finding(level="note", text=f"too short an answer to tell: {span}")
    if arrivals.collected:
        return Finding(
            level="bad",
            text=f"a proxy buffers: {span}, in {bursts} burst{'s' * (bursts > 1)}",
            advice="switch response buffering off for /v1/ (nginx: proxy_buffering off), or use deploy/nginx.conf",
        )
    return Finding(level="good", text=f"tokens arrive one by one: {span}")
