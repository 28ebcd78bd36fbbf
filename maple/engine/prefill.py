"""How a step's budget of tokens is shared among the prompts that are being computed."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from maple.engine.runner import PrefillLimits


@attrs.frozen
class Prompt:
    """``left`` tokens are to be computed, from position ``start`` on."""

    start: int
    left: int


@attrs.define
class PrefillShares:
    """The shortest first, so that a short prompt never waits for a long one; the longest never below a third.

    Length counts in whole budgets, and of equals the first goes first: prompts alike are answered as they came.
    Slices end at multiples of the chunk, so thirds come out over several steps: what the longest was not given is
    kept as ``credit``, in thirds of tokens.
    """

    limits: PrefillLimits
    credit: int = 0

    def of(self, prompts: Sequence[Prompt]) -> list[int]:
        """Tokens of each prompt in the next step, in the order given, which is that of their arrival."""
        sizes = [0] * len(prompts)
        steps = [one.left // self.limits.budget for one in prompts]
        order = sorted(range(len(prompts)), key=steps.__getitem__)
        budget = self.limits.budget
        if len(order) > 1:
            longest = steps.index(max(steps))
            self.credit = min(self.credit + budget, 3 * max(budget, self.limits.chunk))
            sizes[longest] = self._slice(prompts[longest], min(budget, self.credit // 3))
            self.credit -= 3 * sizes[longest]
        else:
            self.credit = 0
        for index in order:
            one = prompts[index]
            rest = Prompt(one.start + sizes[index], one.left - sizes[index])
            sizes[index] += self._slice(rest, budget - sum(sizes))
        if order and not any(sizes):  # a chunk is more than the budget: one is run all the same
            sizes[order[0]] = self._slice(prompts[order[0]], self.limits.chunk)
        return sizes

    def _slice(self, prompt: Prompt, most: int) -> int:
        """The longest slice that ends at a multiple of the chunk, or at the prompt's end."""
        if prompt.left <= most:
            return prompt.left
        return max(0, (prompt.start + most) // self.limits.chunk * self.limits.chunk - prompt.start)
