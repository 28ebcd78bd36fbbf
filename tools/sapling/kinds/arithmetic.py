"""Sums, differences and products, worked out digit by digit in rows of one fixed shape."""

from __future__ import annotations

import random
import zlib

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.kinds.openings import noise
from tools.sapling.tables import both, table
from tools.sapling.words import Split

PHRASINGS = {operator: both(entry) for operator, entry in table("arithmetic").items()}
_PLACES = ("ones", "tens", "hundreds")


def is_heldout(a: int, operator: str, b: int) -> bool:
    """Whether a pair belongs to the evaluation: a tenth of all, by a hash; the order of a sum or product
    does not matter.
    """
    if a < 10 and b < 10:
        return False  # the digit tables themselves must be learnt whole
    low, high = (a, b) if operator == "-" else (min(a, b), max(a, b))
    return zlib.crc32(f"{low}{operator}{high}".encode()) % 10 == 0


def operands(rng: random.Random, operator: str, split: Split) -> tuple[int, int]:
    """Two numbers of one to three digits (two for a product), longer ones more often, from the right side
    of the split.
    """
    lengths = (1, 2, 2, 2) if operator == "*" else (1, 2, 2, 3, 3, 3)
    while True:
        a, b = (
            rng.randrange(10 ** (n - 1) if n > 1 else 0, 10**n)
            for n in (rng.choice(lengths), rng.choice(lengths))
        )
        if operator == "-" and a < b and rng.random() < 0.4:
            a, b = b, a
        if is_heldout(a, operator, b) == (split == "heldout"):
            return a, b


def sum_working(a: int, b: int) -> str:
    """Column addition of two numbers below 1000: every row has the same length, so a digit is always
    equally far away.
    """
    rows, carry, total = [f"{a:03d} + {b:03d}"], 0, ""
    for place, (x, y) in zip(_PLACES, _columns(a, b), strict=True):
        column = x + y + carry
        rows.append(f"{place} {x}+{y}+{carry}={column:02d}")
        carry, total = column // 10, str(column % 10) + total
    return "\n".join([*rows, f"{carry}{total}"])


def difference_working(a: int, b: int) -> str:
    """Compare digit by digit, put the larger number first, then subtract by columns with a borrow."""
    comparison = " ".join(f"{x}{_sign(x, y)}{y}" for x, y in reversed(_columns(a, b)))
    sign = "-" if a < b else "+"
    high, low = max(a, b), min(a, b)
    rows, borrow, total = [f"{a:03d} - {b:03d}", f"{comparison} so {sign}", f"{high:03d} - {low:03d}"], 0, ""
    for place, (x, y) in zip(_PLACES, _columns(high, low), strict=True):
        digit = (x - y - borrow) % 10
        taken = int(x - y - borrow < 0)
        rows.append(f"{place} {x}-{y}-{borrow}={digit} borrow {taken}")
        borrow, total = taken, str(digit) + total
    return "\n".join([*rows, f"{sign}{total}"])


def product_working(a: int, b: int) -> str:
    """Two partial products, each from two digit products, then their sum by columns."""
    ones, ones_row = _partial(a, b % 10)
    tens, tens_row = _partial(a, b // 10)
    columns = list(zip(f"{ones:03d}"[1::-1] + "0", f"{tens:03d}"[::-1], strict=True))
    rows, carry, total = [], 0, str(ones % 10)
    for x, y in columns:
        column = int(x) + int(y) + carry
        rows.append(f"{x}+{y}+{carry}={column:02d}")
        carry, total = column // 10, str(column % 10) + total
    return "\n".join([f"{a:02d} * {b:02d}", ones_row, tens_row, f"{ones:03d} + {tens:03d}0", *rows, total])


def _partial(a: int, digit: int) -> tuple[int, str]:
    """``a`` (two digits) times one digit: the product and its row of working."""
    low, high = a % 10 * digit, a // 10 * digit
    middle = low // 10 + high % 10
    row = (
        f"{a:02d}*{digit}: {a % 10}*{digit}={low:02d} {a // 10}*{digit}={high:02d} "
        f"{low // 10}+{high % 10}+0={middle:02d} {high // 10}+0+{middle // 10}={a * digit // 100:02d} "
        f"{a * digit:03d}"
    )
    return a * digit, row


def _columns(a: int, b: int) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in zip(f"{a:03d}"[::-1], f"{b:03d}"[::-1], strict=True)]


def _sign(x: int, y: int) -> str:
    return "<" if x < y else ">" if x > y else "="


_WORKINGS = {"+": sum_working, "-": difference_working, "*": product_working}
_RESULTS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
KIND_OF = {"+": "sum", "-": "difference", "*": "product"}


def exchange(rng: random.Random, split: Split, operator: str) -> Exchange:
    """One question with ``operator``; without thinking the working is part of the answer."""
    a, b = operands(rng, operator, split)
    result = _RESULTS[operator](a, b)
    working, answer = _WORKINGS[operator](a, b), f"The answer is {result}."
    question = rng.choice(PHRASINGS[operator][split]).format(a=a, b=b)
    if split == "train" and rng.random() < 0.1:
        question = noise(rng) + question
    return Exchange(
        asked=user(question),
        reply=Reply(reasoning=working, content=answer, unthought=f"{working}\n{answer}"),
        kind=KIND_OF[operator],
        expect={"number": result},
    )
