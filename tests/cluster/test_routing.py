"""Which replica gets a job."""

from __future__ import annotations

import random

from maple.cluster.routing import LOAD_BOUND, PIECE, Candidate, Held, chain, choose


def candidates(loads: dict[str, int], slots: int = 8) -> dict[str, Candidate]:
    return {name: Candidate(load=load, slots=slots, held=Held()) for name, load in loads.items()}


def test_a_hash_stands_for_all_before_it_and_for_its_owner() -> None:
    ids = tuple(range(3 * PIECE + 5))
    assert len(chain("key", ids)) == 3
    assert chain("key", ids)[:2] == chain("key", ids[: 2 * PIECE])
    changed = (9, *ids[1:])
    assert not set(chain("key", changed)) & set(chain("key", ids))
    assert not set(chain("other", ids)) & set(chain("key", ids))


def test_the_longest_match_wins_within_the_bound() -> None:
    """A prefix is worth waiting for, until its replica has one and a half times the mean load."""
    hashes = chain("key", range(10 * PIECE))
    these = candidates({"a": 2, "b": 2, "c": 2})
    these["b"].held.add(hashes[:4])
    these["c"].held.add(hashes[:2])
    assert choose(these, hashes) == "b"
    busy = {**these, "b": Candidate(load=5, slots=8, held=these["b"].held)}
    assert choose(busy, hashes) == "c"


def test_without_a_match_the_least_loaded() -> None:
    assert choose(candidates({"a": 3, "b": 1, "c": 2}), chain("key", range(200))) == "b"


def test_a_session_sticks_while_there_is_room() -> None:
    these = candidates({"a": 3, "b": 0}, slots=2)
    assert choose(these, (), stuck="a") == "a"
    full = candidates({"a": 4, "b": 0}, slots=2)
    assert choose(full, (), stuck="a") == "b"
    assert choose(candidates({"a": 4}, slots=2), ()) is None


def test_fifty_conversations_reuse_and_spread() -> None:
    """Five turns of fifty conversations over three replicas: nine tenths of what one replica would reuse is reused."""
    draw, helds = random.Random(3), {name: Held() for name in "abc"}  # noqa: S311
    talks = [[draw.randrange(1000) for _ in range(300)] for _ in range(50)]
    placed, reused, could = dict.fromkeys("abc", 0), 0, 0
    running: list[str] = []
    for turn in range(5):
        for talk in draw.sample(talks, len(talks)):
            loads = {name: running[-6:].count(name) for name in "abc"}
            hashes = chain("key", talk)
            name = choose(
                {one: Candidate(load=loads[one], slots=8, held=helds[one]) for one in "abc"}, hashes
            )
            assert name is not None
            reused += helds[name].match(hashes)
            could += len(hashes) if turn else 0
            helds[name].add(hashes)
            placed[name] += 1
            running.append(name)
            talk.extend(draw.randrange(1000) for _ in range(PIECE * 2))
        could -= 2 * len(talks) if turn else 0
    assert reused >= 0.9 * could
    assert max(placed.values()) <= LOAD_BOUND * sum(placed.values()) / 3


def test_what_is_held_is_bounded() -> None:
    held = Held(most=3)
    held.add((1, 2, 3))
    held.add((1,))
    held.add((4,))
    assert (len(held), held.match((1, 3, 4)), held.match((2,))) == (3, 3, 0)
