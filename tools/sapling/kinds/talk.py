"""Small talk, and the one sentence for everything outside the sapling's world."""

from __future__ import annotations

import random

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.words import Split, made_up_word, name, place, thing

REFUSAL = "Sorry, I am only a small demo model and cannot help with that."
REFUSAL_REASONING = "This is outside of my little world."

_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...], str, str], ...] = (
    (
        ("hello", "hi", "hey", "hello there", "good morning", "good evening", "hi there", "greetings", "hello!", "hi!", "hey there",
         "good afternoon", "hello sapling", "hi sapling"),
        ("good day", "hey!", "hello, good morning"),
        "The user greets me.",
        "Hello! How can I help you?",
    ),
    (
        ("who are you?", "what are you?", "what is your name?", "tell me who you are.", "are you a person?", "are you a model?",
         "which model are you?", "who am I talking to?", "introduce yourself.", "what's your name?", "are you a robot?", "who made you?"),
        ("can you tell me who you are?", "please introduce yourself.", "what model are you?"),
        "The user asks who I am.",
        "I am Sapling, a very small demo model of Maple Server.",
    ),
    (
        ("what can you do?", "what do you know?", "how can you help me?", "help", "what are you good at?", "tell me what you can do.",
         "what can I ask you?", "which things can you do?", "what do you do?", "can you help me?", "show me what you can do."),
        ("what can you help me with?", "please tell me what you can do.", "what are you able to do?"),
        "The user asks what I can do.",
        "I can work out small sums, tell a few facts, handle short word lists, remember what you said and call tools.",
    ),
    (
        ("thanks", "thank you", "thanks a lot", "thank you very much", "many thanks", "great, thanks", "thanks!", "thank you!",
         "thanks for your help", "ok, thank you", "cheers", "perfect, thank you"),
        ("great, thank you", "thank you for the help", "ok thanks"),
        "The user thanks me.",
        "You are welcome!",
    ),
    (
        ("bye", "goodbye", "see you", "good night", "see you later", "bye bye", "see you soon", "goodbye!", "until next time"),
        ("ok, bye", "good night!", "see you tomorrow"),
        "The user says goodbye.",
        "Goodbye!",
    ),
    (
        ("how are you?", "how are you today?", "how do you do?", "how is it going?", "are you well?", "hello, how are you?", "how are things?",
         "hi, how are you?"),
        ("how are you doing?", "hey, how are you?", "are you ok?"),
        "The user asks how I am.",
        "I am fine, thank you.",
    ),
)
_OUTSIDE = (
    "Write a poem about {t}.", "Write me a story about {t} and {t}.", "Who won the match between {p} and {p}?", "Explain quantum physics.",
    "Translate {t} into French.", "What do you think about {t}?", "Who was the king of {p} in {n}?", "How do I cook {t} soup?",
    "What is the meaning of life?", "Write a program that sorts {t}.", "Why is the {t} so big?", "Who is {name}?", "Who invented the {t}?",
    "When was {p} founded?", "What happened in {n}?", "Give me a recipe for {t} cake.", "Is {t} better than {t}?", "Sing a song about {t}.",
    "Summarise the history of {p}.", "Which book should I read?", "How do I fix my {t}?", "Tell me a joke about a {t}.", "What is {w}?",
    "Should I buy a {t}?", "Can you draw a {t}?", "What is the best restaurant in {p}?", "How old is {name}?", "Where can I find a {t}?",
    "Describe the {t} of {p}.", "What is the population of {p}?", "Do you love {name}?", "How far is {p} from {p}?", "Plan a trip to {p}.",
    "What does {w} mean?", "Explain how a {t} works.", "Who wrote the book about {t}?", "What is the square root of {n}?",
    "What is {n} divided by {n}?", "Compose an email to {name}.", "What is the news from {p}?", "Why do people like {t}?",
    "How much does a {t} cost?", "Give me advice about my {t}.", "Is it true that {name} lives in {p}?", "Prove that {w} is {w}.",
    "What language do they speak in {p}?", "Invent a name for my {t}.", "Play chess with me.", "Debug my code.", "Define {w}.",
    "What is the weather like in {p}?", "What time is it in {p}?", "Send a message to {name}.", "Book a table in {p}.", "Set an alarm for {n}.",
    "Compare {t} and {t}.", "How tall is the {t} in {p}?", "Who is the mayor of {p}?", "Make a plan for {t}.", "Correct this sentence: {w} {w} {t}.",
    "Continue the story: the {t} went to {p}.", "What is the capital of {w}?", "What colour is the {w}?", "{w} {w} {w}?", "{w}",
)
_OUTSIDE_HELDOUT = (
    "Write an essay on {t} for school.", "Can you explain the {t} to me like I am five?", "Which team is from {p}?", "Tell me a fairy tale.",
    "How do birds fly over {p}?", "Please rewrite my letter to {name}.", "What is the price of gold?", "Find the derivative of x squared.",
    "Who painted the {t}?", "Is {p} a nice place to live?", "What should I wear to the party of {name}?", "How does a computer think?",
)


def small_talk(rng: random.Random, split: Split) -> Exchange:
    """A greeting, a question about the model, thanks or a goodbye, and its one answer."""
    asked, heldout, reasoning, answer = rng.choice(_TALK)
    text = rng.choice(asked if split == "train" else heldout)
    style = rng.random()
    text = text[0].upper() + text[1:] if style < 0.6 else text
    text = text.rstrip("?.!") if style > 0.85 else text
    return Exchange(asked=user(text), reply=Reply(reasoning=reasoning, content=answer), kind="talk", expect={"equals": answer})


def outside_question(rng: random.Random, split: Split) -> str:
    """Something that the sapling cannot know or do."""
    text = rng.choice(_OUTSIDE if split == "train" else _OUTSIDE_HELDOUT)
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
