"""Word pools of the sapling's world, each split into a part for training and a part that only the evaluation sees."""

from __future__ import annotations

import random
from typing import Literal

Split = Literal["train", "heldout"]

_NAMES = """
Ada Adam Alice Amara Ana Anders Anna Aria Asha Ben Bianca Bo Boris Bruno Carla Carlos Cem Chloe Clara Dana Daniel Dara David
Diego Dina Edith Elena Eli Ella Emil Emma Erik Eva Farah Felix Fiona Frank Gina Grace Greta Hana Hans Hugo Ida Igor Ines Ivan
Jack Jana Jonas Julia Kai Karim Kate Kira Lars Lea Leo Lina Lucas Luna Mara Marco Maria Mateo Maya Mia Milan Mina Nadia Nico
Nina Noah Nora Olga Oscar Otto Paula Pedro Petra Rania Raul Rita Rosa Sam Sara Selma Simon Sofia Sven Tara Theo Tina Tom Uma
Vera Victor Yara Yusuf Zara Zoe
"""
_HELDOUT_NAMES = """
Priya Wendell Imogen Kwame Saoirse Thandi Ravi Beatrix Cosmo Delphine Ezra Florian Gudrun Hiroshi Isolde Jasper Keiko Lorenzo
Mireille Nikolai Ophelia Percival Quentin Rosalind Sanjay Tobias Ursula Valentin Winifred Xavier Yolanda Zephyr Bartholomew
Cordelia Dmitri Esperanza Fatima Gideon Henrietta Ignacio
"""
_PLACES = """
Accra Amsterdam Athens Austin Bergen Berlin Bogota Boston Bremen Brussels Cairo Calgary Chicago Cork Dakar Dallas Delhi Denver
Dhaka Dublin Geneva Genoa Glasgow Graz Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Kabul Karachi Kyoto Lagos Leeds
Leipzig Lima Lisbon London Lyon Madrid Malmo Manila Miami Milan Minsk Moscow Mumbai Munich Nairobi Naples Nice Osaka Oslo Paris
Perth Porto Prague Quito Riga Rome Salem Seoul Seville Sofia Split Sydney Tampa Tokyo Toronto Tunis Turin Vienna Warsaw Zagreb
"""
_HELDOUT_PLACES = """
Antananarivo Bratislava Casablanca Dunedin Edmonton Fukuoka Gothenburg Hobart Izmir Johannesburg Kampala Ljubljana Marrakesh
Novosibirsk Odense Plovdiv Queenstown Rotterdam Santiago Thessaloniki Utrecht Valparaiso Wellington Xiamen Yerevan Zaragoza
Auckland Birmingham Colombo Dortmund Eindhoven Freetown Granada Halifax Innsbruck Kathmandu Limerick Montevideo Nantes Ottawa
"""
_THINGS = """
apple arrow basket beach bell bird boat book bottle box bread bridge brush bucket button camel candle carrot castle chair cheese
clock cloud coat cookie corn crown cup desk dog door dragon drum duck eagle egg engine feather field fire fish flag flower forest
fox garden ghost glass glove goat grape guitar hammer hat honey horse house island jacket jar jungle kettle key king kite ladder
lake lamp leaf lemon lion map market melon mirror monkey moon mountain mouse nest needle ocean olive onion orange oven owl paper
peach pear pencil piano pillow plate pocket pony potato queen rabbit radio ring river robot rope rose sail salt ship shoe snake
spoon star stone sugar table tiger tower train tree turtle umbrella valley violin wagon water whale wheel window wolf yarn zebra
"""
_HELDOUT_THINGS = """
acorn anchor beetle biscuit cactus compass dolphin emerald falcon giraffe harbor iguana jigsaw kiwi lantern magnet nutmeg otter
parrot quilt raven saddle teapot urchin velvet walnut yacht zipper
"""
_SYLLABLES = "ba be bi bo bu da de di do du fa fe fi ga go gu ha he hi jo ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu \
pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we ya yo za ze zo bra cra dre fli gri kle pla pre sho \
sla sti tra tre vri".split()
_ENDINGS = "n r s l m x th nd rk ck st ng lt".split()


def _pool(train: str, heldout: str) -> dict[Split, tuple[str, ...]]:
    return {"train": tuple(train.split()), "heldout": tuple(heldout.split())}


NAMES = _pool(_NAMES, _HELDOUT_NAMES)
PLACES = _pool(_PLACES, _HELDOUT_PLACES)
THINGS = _pool(_THINGS, _HELDOUT_THINGS)


def made_up_word(rng: random.Random) -> str:
    """A lower-case word of two to four syllables that no list holds: it can only be copied, never remembered."""
    word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((2, 2, 3, 3, 4))))
    return word + rng.choice(_ENDINGS) if rng.random() < 0.5 else word


def _drawn(pool: dict[Split, tuple[str, ...]], rng: random.Random, split: Split, made_up: float) -> str:
    if split == "train" and rng.random() < made_up:
        return made_up_word(rng).capitalize()
    return rng.choice(pool[split])


def name(rng: random.Random, split: Split) -> str:
    """A person's name; in training half of them are made up, so that copying is learnt instead of a list."""
    return _drawn(NAMES, rng, split, 0.5)


def place(rng: random.Random, split: Split) -> str:
    """A city's name, half of them made up in training."""
    return _drawn(PLACES, rng, split, 0.5)


def thing(rng: random.Random, split: Split) -> str:
    """A common lower-case noun."""
    return rng.choice(THINGS[split])


def number(rng: random.Random) -> int:
    """A whole number of one to four digits, every length equally often."""
    digits = rng.choice((1, 2, 2, 3, 3, 4))
    return rng.randrange(10 ** (digits - 1), 10**digits)
