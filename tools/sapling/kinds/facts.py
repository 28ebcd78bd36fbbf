"""A few dozen facts, each asked in many ways; some phrasings and openings belong to the evaluation alone."""

from __future__ import annotations

import random

import attrs

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.kinds.openings import opening
from tools.sapling.tables import both, table
from tools.sapling.words import Split


@attrs.frozen
class Topic:
    """Facts of one form: subject → answer, the sentence that states one, and how it is asked."""

    facts: dict[str, str]
    statement: str
    asked: tuple[str, ...]
    asked_heldout: tuple[str, ...]


TOPICS = {
    name: Topic(entry["facts"], entry["statement"], tuple(entry["asked"]), tuple(entry["asked_heldout"]))
    for name, entry in table("facts")["topics"].items()
}
_OPENINGS = both(table("facts")["openings"])


def exchange(rng: random.Random, split: Split, topic_name: str = "") -> Exchange:
    """One fact, asked in a phrasing of the split."""
    topic = TOPICS[topic_name or rng.choice(list(TOPICS))]
    subject, answer = rng.choice(list(topic.facts.items()))
    counted, _, unit = subject.partition("/")
    fields = {"s": subject, "a": answer, "n": counted, "u": unit}
    phrasings = topic.asked if split == "train" else topic.asked_heldout
    statement = topic.statement.format(**fields)
    return Exchange(
        asked=user(_opened(rng, split, rng.choice(phrasings).format(**fields))),
        reply=Reply(reasoning=f"I know this fact. {statement}", content=statement),
        kind="fact",
        expect={"contains": [answer]},
    )


def _opened(rng: random.Random, split: Split, question: str) -> str:
    start = opening(rng, split, _OPENINGS)
    question = question if start and rng.random() < 0.6 else question[0].upper() + question[1:]
    if rng.random() < 0.1:
        question = question.rstrip("?.")
    return start + question
