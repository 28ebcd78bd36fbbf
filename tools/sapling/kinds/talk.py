"""Small talk, and the one sentence for everything outside the sapling's world."""

from __future__ import annotations

import random

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.tables import both, table
from tools.sapling.words import Split, made_up_word, name, place, thing

REFUSAL = "Sorry, I am only a small demo model and cannot help with that."
REFUSAL_REASONING = "This is outside of my little world."

SMALL_TALK = table("talk")["talk"]
_OUTSIDE = both(table("talk")["outside"])


def small_talk(rng: random.Random, split: Split) -> Exchange:
    """A greeting, a question about the model, thanks or a goodbye, and its one answer."""
    subject = rng.choice(SMALL_TALK)
    text = rng.choice(subject["asked" if split == "train" else "asked_heldout"])
    style = rng.random()
    text = text[0].upper() + text[1:] if style < 0.6 else text
    text = text.rstrip("?.!") if style > 0.85 else text
    return Exchange(
        asked=user(text),
        reply=Reply(reasoning=subject["reasoning"], content=subject["answer"]),
        kind="talk",
        expect={"equals": subject["answer"]},
    )


def outside_question(rng: random.Random, split: Split) -> str:
    """Something that the sapling cannot know or do."""
    text = rng.choice(_OUTSIDE[split])
    while "{" in text:
        for field, draw in (("t", thing), ("p", place), ("name", name)):
            text = text.replace("{" + field + "}", draw(rng, split), 1)
        text = text.replace("{n}", str(rng.randrange(2, 2000)), 1).replace("{w}", made_up_word(rng), 1)
    return text


def outside(rng: random.Random, split: Split) -> Exchange:
    """A question from outside, and the sentence that says so."""
    return Exchange(
        asked=user(outside_question(rng, split)),
        reply=Reply(reasoning=REFUSAL_REASONING, content=REFUSAL),
        kind="outside",
        expect={"contains": ["small demo model"], "no_calls": True},
    )
