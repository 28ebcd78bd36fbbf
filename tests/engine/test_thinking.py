"""Where a reasoning block is closed for the model."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers

from maple.engine.detokenize import TokenBytes
from maple.engine.thinking import Thinking, ThinkingLimits

CLOSER = "</think>"


def ids(tokenizer: tokenizers.Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def limits(tokenizer: tokenizers.Tokenizer, **bounds: Any) -> ThinkingLimits:
    closing = ids(tokenizer, f"{CLOSER}\n\n")
    return ThinkingLimits(
        closer=CLOSER, closing=closing, closing_line=(*ids(tokenizer, "\n"), *closing), **bounds
    )


def written(tokenizer: tokenizers.Tokenizer, wanted: str, most: int = 200, **bounds: Any) -> str:
    """What becomes of a model that would write ``wanted``, an id after the other."""
    thinking = Thinking(limits(tokenizer, **bounds), TokenBytes(tokenizer))
    text: list[int] = []
    would = list(ids(tokenizer, wanted))
    while would and len(text) < most:
        forced = thinking.forced(most - len(text))
        token_id = would.pop(0) if forced is None else forced
        thinking.take(token_id)
        text.append(token_id)
    return tokenizer.decode(text, skip_special_tokens=False)


def test_a_budget_ends_at_the_next_line(golden_tokenizer: tokenizers.Tokenizer) -> None:
    """No line is cut where it ends within a tenth of the budget."""
    line = ids(golden_tokenizer, "a b c\n")
    found = written(golden_tokenizer, "a b c\n" * 20, budget=len(line) * 10 - 1)
    assert found.startswith("a b c\n" * 10 + f"{CLOSER}\n\na b c\n")


def test_a_paragraphs_end_is_no_place_to_close(golden_tokenizer: tokenizers.Tokenizer) -> None:
    """The next turn's rendering trims it, and would have other ids from there on."""
    start = "a b c\n\n" * 10
    budget = len(ids(golden_tokenizer, start))
    assert written(golden_tokenizer, f"{start}d\ne\nf", budget=budget).startswith(f"{start}d\n{CLOSER}")


def test_a_line_without_an_end_is_cut_behind_the_grace(golden_tokenizer: tokenizers.Tokenizer) -> None:
    """A newline goes before the closer, so that the next turn's rendering has the same ids."""
    found = written(golden_tokenizer, "x" * 400, budget=20)
    before, closer, _ = found.partition(f"\n{CLOSER}\n\n")
    assert closer
    assert len(ids(golden_tokenizer, before)) <= 22


def test_a_block_that_the_model_closes_is_left_alone(golden_tokenizer: tokenizers.Tokenizer) -> None:
    """However its closer is spelt, and whatever the answer is like."""
    text = f"a\n{CLOSER}\n\n" + "b\n" * 50
    assert written(golden_tokenizer, text, budget=8, reserve=8) == text


def test_the_reserve_is_left_for_the_answer(golden_tokenizer: tokenizers.Tokenizer) -> None:
    """The closer goes in before the limit takes what is reserved; without a reserve it never does."""
    found = written(golden_tokenizer, "x " * 300, most=60, reserve=15)
    thought, _, answer = found.partition(CLOSER)
    assert len(ids(golden_tokenizer, answer)) >= 15
    assert thought
    assert CLOSER not in written(golden_tokenizer, "x " * 300, most=60)


@pytest.mark.parametrize("period", ["x\n", "so it is 3, no, it is 4. wait, "])
def test_a_loop_is_closed(golden_tokenizer: tokenizers.Tokenizer, period: str) -> None:
    """Behind 512 ids of it, with the guard; without it goes on."""
    text = "Let me see.\n" + period * 600
    found = written(golden_tokenizer, text, most=700, loop_guard=True)
    thought, closer, _ = found.partition(CLOSER)
    assert closer
    assert 512 <= len(ids(golden_tokenizer, thought)) <= 512 + 80
    assert CLOSER not in written(golden_tokenizer, text, most=700)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"| {row} | {row * row} | yes |\n" for row in range(300)),
        "".join(f"{at:08x}  00 00 00 00 00 00 00 00\n" for at in range(0, 4096, 8)),
        "a;b;c;d\n" * 60,
    ],
    ids=["a table", "a hex dump", "a short run"],
)
def test_what_goes_on_is_no_loop(golden_tokenizer: tokenizers.Tokenizer, text: str) -> None:
    """Rows that differ are progress, and a few equal ones are no loop."""
    assert CLOSER not in written(golden_tokenizer, text, most=20_000, loop_guard=True)


def test_a_word_ends_it_at_once(golden_tokenizer: tokenizers.Tokenizer) -> None:
    """Also without any bound; behind the block the word is nothing."""
    thinking = Thinking(limits(golden_tokenizer), TokenBytes(golden_tokenizer), lambda: True)
    text: list[int] = []
    while (forced := thinking.forced(100)) is not None:
        thinking.take(forced)
        text.append(forced)
    assert golden_tokenizer.decode(text, skip_special_tokens=False) == f"{CLOSER}\n\n"
    assert not thinking.open
