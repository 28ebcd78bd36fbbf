"""A fleet on paper: the front's own routing over 1 to 1,000 replicas whose steps take what was measured.

    python benchmarks/cluster/simulate.py                         # agents' conversations, drawn from a seed
    python benchmarks/cluster/simulate.py --trace arrivals.jsonl  # {"at", "conversation", "new", "output"} a line
    python benchmarks/cluster/simulate.py --svg benchmarks/fleet.svg

Replicas are simulated, not processes: each decodes its sequences and computes one prompt at a time, at the rates of
``--machine`` (docs/performance.md: alone and eight at a time, prompt tokens a second). What is real is the code that
chooses a replica. Assumed: no time on the network, turns of a conversation follow each other after the last answer
and a pause, a replica keeps so many tokens of prefixes, a front spends so many microseconds on a piece.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
import time
from collections import deque

import attrs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from maple.cluster.routing import PIECE, Candidate, Held, chain, choose  # noqa: E402

FLEETS = (1, 4, 16, 64, 250, 1000)
CHUNK = 256
"""Prompt tokens a step."""


@attrs.frozen(kw_only=True)
class Machine:
    """Tokens a second: ``alone`` and ``eight`` are decoded by one and by eight sequences, ``prompt`` computed."""

    alone: float
    eight: float
    prompt: float
    slots: int = 8
    kept: int = 200_000

    def step(self, sequences: int) -> float:
        """Seconds of a step that decodes so many sequences."""
        first, last = 1 / self.alone, 8 / self.eight
        return first + (last - first) / 7 * (sequences - 1) if sequences else 0.0


MACHINES = {
    "avx2": Machine(alone=90.6, eight=122, prompt=262),
    "avx512vbmi": Machine(alone=119, eight=248, prompt=697),
}


@attrs.define(eq=False)
class Turn:
    """A request: its prompt's ids are the conversation's so far."""

    at: float
    conversation: int
    new: int
    output: int
    prompt: int = 0
    cached: int = 0
    first: float = 0.0
    hashes: tuple[int, ...] = ()


@attrs.define(eq=False)
class Decoding:
    """A turn whose prompt is through, and the tokens that are left of its answer."""

    turn: Turn
    left: float


@attrs.define(eq=False)
class Replica:
    """One machine as a fluid: between two events every sequence advances at a constant rate."""

    machine: Machine
    held: Held
    waiting: deque[tuple[Turn, float]] = attrs.field(factory=deque)
    decoding: list[Decoding] = attrs.field(factory=list)
    now: float = 0.0
    version: int = 0
    served: int = 0

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.decoding)

    def _rates(self) -> tuple[float, float]:
        """Prompt tokens a second, and tokens a second of each sequence."""
        step = self.machine.step(len(self.decoding))
        seconds = step + (CHUNK / self.machine.prompt if self._computing else 0.0)
        return (CHUNK / seconds if self._computing else 0.0), (1 / seconds if self.decoding else 0.0)

    @property
    def _computing(self) -> bool:
        return bool(self.waiting) and len(self.decoding) < self.machine.slots

    def advance(self, now: float) -> list[Turn]:
        """Let time pass; the turns that ended. A first token comes when its prompt is through."""
        prompt_rate, rate = self._rates()
        passed, self.now = now - self.now, now
        for one in self.decoding:
            one.left -= passed * rate
        ended = [one for one in self.decoding if one.left <= 1e-6]
        self.decoding = [one for one in self.decoding if one.left > 1e-6]
        if prompt_rate:
            turn, left = self.waiting[0]
            left -= passed * prompt_rate
            if left <= 1e-6:
                self.waiting.popleft()
                turn.first = now
                self.decoding.append(Decoding(turn, float(turn.output)))
            else:
                self.waiting[0] = (turn, left)
        return [one.turn for one in ended]

    def next_event(self) -> float:
        """When something ends, as things are."""
        prompt_rate, rate = self._rates()
        times = [one.left / rate for one in self.decoding]
        if prompt_rate:
            times.append(self.waiting[0][1] / prompt_rate)
        return self.now + max(0.0, min(times)) if times else float("inf")


def drawn(replicas: int, seconds: float, machine: Machine, share: float, seed: int) -> list[list[Turn]]:
    """Conversations of agents: a first prompt of thousands of tokens, then short turns on top of it."""
    dice = random.Random(seed)
    per_turn = 300 / machine.eight * machine.slots / 8 + 700 / machine.prompt
    rate = share * replicas / (per_turn * 6)
    conversations, at = [], 0.0
    while (at := at + dice.expovariate(rate)) < seconds:
        turns = [Turn(at, len(conversations), dice.randint(1000, 6000), dice.randint(50, 400))]
        for _ in range(dice.randint(2, 8)):
            pause = dice.expovariate(1 / 10)
            turns.append(Turn(pause, len(conversations), dice.randint(50, 500), dice.randint(50, 500)))
        conversations.append(turns)
    return conversations


def recorded(file: pathlib.Path) -> list[list[Turn]]:
    """A trace's turns by conversation; those behind the first wait as long as they did in the trace."""
    found: dict[str, list[Turn]] = {}
    last: dict[str, float] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        name = str(row["conversation"])
        at = row["at"] - last.get(name, 0.0)
        last[name] = row["at"]
        turns = found.setdefault(name, [])
        turns.append(Turn(at, len(found) - 1, row["new"], row["output"]))
    return list(found.values())


class Fleet:
    """Replicas, the front's queue before them, and the events that are to come."""

    def __init__(self, count: int, machine: Machine, conversations: list[list[Turn]]) -> None:
        self.machine = machine
        self.replicas = {str(index): Replica(machine, Held(machine.kept // PIECE)) for index in range(count)}
        self.done: list[Turn] = []
        self.choosing = 0.0
        self._queue: deque[Turn] = deque()
        self._rest = [deque(turns) for turns in conversations]
        self._ids: list[list[int]] = [[] for _ in conversations]
        self._dice = random.Random(7)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Turn | tuple[Replica, int]]] = []
        for each in self._rest:
            self._await_next(each[0].conversation, 0.0)

    def play(self) -> None:
        """To the end."""
        while self._events:
            now, _, event = heapq.heappop(self._events)
            if isinstance(event, Turn):
                self._arrive(event, now)
            elif event[1] == event[0].version:
                self._advance(event[0], now)
            else:
                continue
            self._route(now)

    def _await_next(self, conversation: int, now: float) -> None:
        if self._rest[conversation]:
            turn = self._rest[conversation].popleft()
            heapq.heappush(self._events, (now + turn.at, next(self._order), turn))

    def _say(self, conversation: int, count: int) -> None:
        self._ids[conversation] += [self._dice.getrandbits(17) for _ in range(count)]

    def _arrive(self, turn: Turn, now: float) -> None:
        self._say(turn.conversation, turn.new)
        ids = self._ids[turn.conversation]
        turn.at, turn.prompt, turn.hashes = now, len(ids), chain("owner", ids)
        self._queue.append(turn)

    def _advance(self, replica: Replica, now: float) -> None:
        for turn in replica.advance(now):
            self.done.append(turn)
            self._say(turn.conversation, turn.output)
            self._await_next(turn.conversation, now)
        replica.version += 1
        if (at := replica.next_event()) != float("inf"):
            heapq.heappush(self._events, (at, next(self._order), (replica, replica.version)))

    def _route(self, now: float) -> None:
        while self._queue:
            turn, began = self._queue[0], time.perf_counter()
            candidates = {
                name: Candidate(load=one.load, slots=self.machine.slots, held=one.held)
                for name, one in self.replicas.items()
            }
            name = choose(candidates, turn.hashes)
            self.choosing += time.perf_counter() - began
            if name is None:
                return
            self._queue.popleft()
            replica = self.replicas[name]
            self._advance(replica, now)
            turn.cached = min(replica.held.match(turn.hashes) * PIECE, turn.prompt - 1)
            replica.held.add(turn.hashes)
            replica.served += 1
            replica.waiting.append((turn, float(turn.prompt - turn.cached)))
            self._advance(replica, now)


def figures(fleet: Fleet, front_us: float) -> dict[str, float]:
    """What a fleet did; fronts are as many as its pieces and its choices keep busy."""
    done, count = fleet.done, len(fleet.replicas)
    firsts = sorted(turn.first - turn.at for turn in done)
    end = max(turn.first for turn in done)
    pieces = sum(turn.output for turn in done) / end
    before = sum(turn.prompt - turn.new for turn in done)
    work = pieces * front_us / 1e6 + fleet.choosing / end
    return {
        "replicas": count,
        "turns": len(done),
        "first token p50 s": statistics.median(firsts),
        "first token p99 s": firsts[int(len(firsts) * 0.99)],
        "prefix reused %": 100 * sum(turn.cached for turn in done) / max(1, before),
        "most over mean": max(one.served for one in fleet.replicas.values()) / (len(done) / count),
        "pieces a second": pieces,
        "choice us": fleet.choosing / len(done) * 1e6,
        "fronts": math.ceil(work),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machine", default="avx512vbmi", choices=MACHINES)
    parser.add_argument("--seconds", type=float, default=600, help="arrivals are drawn for so long")
    parser.add_argument("--share", type=float, default=0.6, help="of what the fleet can do")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleets", type=int, nargs="+", default=FLEETS)
    parser.add_argument(
        "--front-us", type=float, default=150, help="a front's processor time a piece, microseconds"
    )
    parser.add_argument("--trace", type=pathlib.Path, help="play this on every fleet instead")
    parser.add_argument("--svg", type=pathlib.Path, help="draw first tokens by fleet")
    given = parser.parse_args()
    machine = MACHINES[given.machine]
    rows = []
    for count in given.fleets:
        conversations = (
            recorded(given.trace)
            if given.trace
            else drawn(count, given.seconds, machine, given.share, given.seed)
        )
        fleet = Fleet(count, machine, conversations)
        fleet.play()
        row = figures(fleet, given.front_us)
        rows.append(row)
        if len(rows) == 1:
            print(" | ".join(row))
        print(
            " | ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()),
            flush=True,
        )
    if given.svg:
        given.svg.write_text(picture(rows))


def picture(rows: list[dict[str, float]]) -> str:
    """Seconds to the first token by fleet, median and 99th percentile, as bars."""
    most = max(row["first token p99 s"] for row in rows)
    parts = []
    for index, row in enumerate(rows):
        for shift, (name, colour) in enumerate((("p50", "#3b6ea5"), ("p99", "#d08c2f"))):
            seconds, x = row[f"first token {name} s"], 70 + index * 90 + shift * 32
            height = 200 * seconds / most
            box = f'x="{x}" y="{240 - height:.1f}" width="28" height="{height:.1f}"'
            parts.append(f'<rect {box} fill="{colour}"/>')
            parts.append(_text(x + 14, 234 - height, f"{seconds:.1f}"))
        parts.append(_text(100 + index * 90, 258, f"{row['replicas']}"))
    width = 90 * len(rows) + 80
    parts.append(_text(width / 2, 280, "replicas: seconds to the first token, median and 99th percentile"))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="290"'
    return f'{opening} font-family="sans-serif" font-size="11">{"".join(parts)}</svg>\n'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.1f}" text-anchor="middle">{words}</text>'


if __name__ == "__main__":
    main()
