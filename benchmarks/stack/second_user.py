"""What a second user costs the first: the gaps between the tokens of a stream, alone and beside another's request.

    python benchmarks/stack/second_user.py                          # on the embedded model
    python benchmarks/stack/second_user.py --model-path FOLDER      # any flags of the server's

The second comes once the first has 32 tokens, and stays to its end. Cases take turns, round by round; a gap is
the time between two events as they arrive over loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from maple.chat.child import own_server

TOKENS = 1536
JOINS_AT = 32
CASES = {"alone": None, "beside a question of 32 tokens": 32, "beside a prompt of 2,048 tokens": 2048}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    options, flags = parser.parse_known_args()
    with own_server([*(flags or ["--demo"]), "--max-batch", "2"]) as url:
        gaps: dict[str, list[list[float]]] = {name: [] for name in CASES}
        for _ in range(options.rounds + 1):
            for name, prompt in CASES.items():
                gaps[name].append(first_user(url, prompt))
    print(f"{'':<34}{'tokens/s':>10}{'longest gap':>14}")
    for name, (_, *rounds) in gaps.items():  # the first round warms up
        rate = statistics.median(len(one) / sum(one) for one in rounds)
        longest = statistics.median(map(max, rounds))
        print(f"{name:<34}{rate:>10.1f}{longest * 1000:>11.1f} ms")


def first_user(url: str, prompt: int | None) -> list[float]:
    """The gaps, in seconds, from the token on at which the second user comes."""
    stream = tokens(url, prompt=64, most=TOKENS)
    arrivals = [next(stream) for _ in range(JOINS_AT)]
    if prompt is None:
        arrivals += stream
    else:
        second = threading.Thread(
            target=list, args=(tokens(url, prompt=prompt, most=4 * TOKENS, until=stream),)
        )
        second.start()
        arrivals += stream
        second.join()
    behind = arrivals[JOINS_AT - 1 :]
    return [later - earlier for earlier, later in itertools.pairwise(behind)]


def tokens(url: str, *, prompt: int, most: int, until: Iterator[float] | None = None) -> Iterator[float]:
    """When each token of a random prompt's answer arrives; leaves once the generator ``until`` has ended."""
    ids = [random.randrange(300, 2000) for _ in range(prompt)]
    body = {"prompt": ids, "max_tokens": most, "ignore_eos": True, "stream": True, "temperature": 0}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                yield time.perf_counter()
            if until is not None and getattr(until, "gi_frame", None) is None:
                return


if __name__ == "__main__":
    main()
