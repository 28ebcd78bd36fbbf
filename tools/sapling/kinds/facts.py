"""A few dozen facts, each asked in many ways; some phrasings and openings belong to the evaluation alone."""

from __future__ import annotations

import random

import attrs

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.words import Split

_CAPITALS = (
    "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Portugal Lisbon, Japan Tokyo, Egypt Cairo, Norway Oslo, Greece Athens, "
    "Austria Vienna, Poland Warsaw, Ireland Dublin, Peru Lima, Cuba Havana, Kenya Nairobi, Canada Ottawa, China Beijing, "
    "Russia Moscow, Sweden Stockholm, Finland Helsinki, Hungary Budapest, Belgium Brussels, Denmark Copenhagen, Thailand Bangkok"
)
_COLOURS = (
    "the sky blue, grass green, snow white, coal black, a banana yellow, blood red, an orange orange, chocolate brown, a lemon yellow, "
    "a tomato red, milk white, an elephant grey, a carrot orange, a frog green, a flamingo pink"
)
_COUNTS = (
    "minutes/an hour 60, seconds/a minute 60, hours/a day 24, days/a week 7, months/a year 12, days/a year 365, weeks/a year 52, "
    "metres/a kilometre 1000, centimetres/a metre 100, millimetres/a centimetre 10, grams/a kilogram 1000, eggs/a dozen 12, "
    "years/a century 100, years/a decade 10, legs/a spider 8, legs/a dog 4, sides/a triangle 3, sides/a square 4, wheels/a bicycle 2, "
    "letters/the alphabet 26"
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@attrs.frozen
class Topic:
    """Facts of one form: subject → answer, the sentence that states one, and how it is asked."""

    facts: dict[str, str]
    statement: str
    asked: tuple[str, ...]
    asked_heldout: tuple[str, ...]


def _pairs(text: str) -> dict[str, str]:
    return {subject: answer for subject, answer in (entry.strip().rsplit(" ", 1) for entry in text.split(","))}


def _around(names: list[str], step: int) -> dict[str, str]:
    return {name: names[(position + step) % len(names)] for position, name in enumerate(names)}


TOPICS: dict[str, Topic] = {
    "capital": Topic(
        _pairs(_CAPITALS),
        "The capital of {s} is {a}.",
        ("what is the capital of {s}?", "what's the capital of {s}?", "which city is the capital of {s}?", "name the capital of {s}.",
         "tell me the capital of {s}.", "the capital of {s}?", "capital of {s}?", "what is {s}'s capital?", "what is the capital city of {s}?",
         "I need the capital of {s}.", "what city is {s}'s capital?", "give me the capital of {s}."),
        ("which is the capital city of {s}?", "{s}'s capital?", "name {s}'s capital city.", "I want to know the capital of {s}."),
    ),
    "colour": Topic(
        _pairs(_COLOURS),
        "The colour of {s} is {a}.",
        ("what colour is {s}?", "what is the colour of {s}?", "which colour is {s}?", "what's the colour of {s}?", "tell me the colour of {s}.",
         "what color is {s}?", "what is the color of {s}?", "name the colour of {s}.", "{s} has what colour?", "which colour does {s} have?"),
        ("what colour does {s} have?", "the colour of {s}?", "give me the color of {s}.", "which color is {s}?"),
    ),
    "count": Topic(
        _pairs(_COUNTS),
        "The number of {n} in {u} is {a}.",
        ("how many {n} are in {u}?", "how many {n} are there in {u}?", "how many {n} does {u} have?", "how many {n} make {u}?",
         "{u} has how many {n}?", "what is the number of {n} in {u}?", "tell me how many {n} {u} has.", "how many {n} in {u}?",
         "count of {n} in {u}?"),
        ("the number of {n} in {u}?", "tell me how many {n} are in {u}.", "how many {n} has {u}?", "I want to know how many {n} are in {u}."),
    ),
    "next_day": Topic(
        _around(DAYS, 1),
        "The day after {s} is {a}.",
        ("what day comes after {s}?", "which day comes after {s}?", "what is the day after {s}?", "which day follows {s}?",
         "what day is after {s}?", "tell me the day after {s}.", "if today is {s}, what day is tomorrow?", "the day after {s}?",
         "today is {s}. What is tomorrow?", "what comes after {s}?"),
        ("which day is after {s}?", "what day follows {s}?", "name the day after {s}.", "today is {s}. What day is tomorrow?"),
    ),
    "previous_day": Topic(
        _around(DAYS, -1),
        "The day before {s} is {a}.",
        ("what day comes before {s}?", "which day comes before {s}?", "what is the day before {s}?", "what day is before {s}?",
         "tell me the day before {s}.", "if today is {s}, what day was yesterday?", "the day before {s}?", "what comes before {s}?",
         "today is {s}. What was yesterday?"),
        ("which day is before {s}?", "name the day before {s}.", "today is {s}. What day was yesterday?"),
    ),
    "next_month": Topic(
        _around(MONTHS, 1),
        "The month after {s} is {a}.",
        ("what month comes after {s}?", "which month comes after {s}?", "what is the month after {s}?", "which month follows {s}?",
         "what month is after {s}?", "tell me the month after {s}.", "the month after {s}?", "what comes after {s}?"),
        ("which month is after {s}?", "what month follows {s}?", "name the month after {s}."),
    ),
    "previous_month": Topic(
        _around(MONTHS, -1),
        "The month before {s} is {a}.",
        ("what month comes before {s}?", "which month comes before {s}?", "what is the month before {s}?", "what month is before {s}?",
         "tell me the month before {s}.", "the month before {s}?", "what comes before {s}?"),
        ("which month is before {s}?", "name the month before {s}.", "I want to know the month before {s}."),
    ),
    "month_days": Topic(
        {month: str(days) for month, days in zip(MONTHS, _MONTH_DAYS, strict=True)},
        "The number of days in {s} is {a}.",
        ("how many days are in {s}?", "how many days does {s} have?", "how many days are there in {s}?", "{s} has how many days?",
         "what is the number of days in {s}?", "tell me how many days {s} has.", "how many days in {s}?"),
        ("the number of days in {s}?", "tell me how many days are in {s}.", "how many days has {s}?"),
    ),
}
_OPENINGS: dict[Split, tuple[str, ...]] = {
    "train": ("", "", "", "", "Please: ", "Hi, ", "Hello! ", "Do you know: ", "I forgot: ", "Tell me, ", "One question: ", "Quick: ", "Hey, "),
    "heldout": ("", "", "Good morning, ", "Question: ", "Say, "),
}


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
    opening = rng.choice(_OPENINGS[split])
    question = question if opening and rng.random() < 0.6 else question[0].upper() + question[1:]
    if rng.random() < 0.1:
        question = question.rstrip("?.")
    return opening + question
