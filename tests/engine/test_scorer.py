"""How likely an id was: the logarithm of its softmax over the ids that have a token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tokenizers

from maple.engine.allowed import Allowed
from maple.engine.detokenize import TokenBytes
from maple.engine.scorer import Scorer
from maple.engine.scores import LEAST


@pytest.fixture(scope="module")
def token_bytes(golden_tokenizer: tokenizers.Tokenizer) -> TokenBytes:
    return TokenBytes(golden_tokenizer)


def test_scores_are_of_the_softmax_without_ids_that_have_no_token(token_bytes: TokenBytes) -> None:
    """The likeliest come first, of equals the lower id, and the id itself last where it is none of them."""
    logits = np.array([2.0, 5.0, 9.0, 5.0, 1.0, 7.0], np.float32)  # 2 has no token, 5 lies beyond the last
    scorer = Scorer(2, Allowed.from_ids(np.array([0, 1, 3, 4])), token_bytes)
    base = math.log(math.exp(2) + 2 * math.exp(5) + math.exp(1))
    found = scorer.score(logits, 0)
    assert found.token == token_bytes[0]
    assert found.logprob == pytest.approx(2 - base, abs=1e-6)
    assert [token for token, _ in found.top] == [token_bytes[one] for one in (1, 3, 0)]
    assert [value for _, value in found.top] == pytest.approx([5 - base, 5 - base, 2 - base], abs=1e-6)
    assert [token for token, _ in scorer.score(logits, 3).top] == [token_bytes[1], token_bytes[3]]


def test_minus_infinity_is_a_number(token_bytes: TokenBytes) -> None:
    """And so is whatever else cannot be said; nothing is asked for beside it, nothing given."""
    scorer = Scorer(0, Allowed.from_ids(np.arange(3)), token_bytes)
    assert scorer.score(np.array([0, 1, -np.inf], np.float32), 2).logprob == LEAST
    assert scorer.score(np.array([0, np.nan, 1], np.float32), 0).logprob == LEAST
    assert scorer.score(np.zeros(3, np.float32), 2).top == ()


def test_large_vocabularies_lose_no_digits(token_bytes: TokenBytes) -> None:
    """Within 1e-5 of double precision over 151,936 ids."""
    logits = np.random.default_rng(0).standard_normal(151_936).astype(np.float32) * 8
    exact = logits.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    scorer = Scorer(0, Allowed.from_ids(np.arange(len(logits))), token_bytes)
    assert scorer.score(logits, 7).logprob == pytest.approx(exact[7], abs=1e-5)
