"""Expected hits: the prompts with at least one correct rollout, computed from exact success probabilities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion.allocators import Allocator
from apportion.types import Floats, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class Hits:
    """Expected number of prompts with at least one correct rollout. The standard error is 0 if it is exact."""

    expected: float
    standard_error: float = 0.0

    def gain(self, base: float) -> float:
        """Return how many more hits than ``base`` these are."""
        return self.expected - base

    def gain_interval(self, base: float) -> tuple[float, float]:
        """Return the 95% interval of the gain, by the normal approximation."""
        half = 1.96 * self.standard_error
        return self.expected - base - half, self.expected - base + half


def expected_hits(success: Floats, counts: ArrayLike) -> Hits:
    """Return the exact expected hits under ``counts`` [P], or their mean over the rows of [S, P].

    >>> expected_hits(np.array([0.5, 0.0]), [2, 5])
    Hits(expected=0.75, standard_error=0.0)
    """
    counts = np.atleast_2d(counts)
    if (counts == counts[0]).all():  # the mean of equal numbers may differ from them by rounding
        counts = counts[:1]
    return _mean((1 - (1 - success) ** counts).sum(1))


def expected_hits_under(success: Floats, allocator: Allocator, *, draws: int = 1000, seed: int = 0) -> Hits:
    """Return the expected hits under an allocator of at most two rounds, such as HORA.

    The outcomes of the first round are drawn ``draws`` times. The expectation over the second has a closed form.

    >>> from apportion import HORA
    >>> expected_hits_under(np.array([0.1, 0.9]), HORA(pre_rollouts=2, rollouts_per_prompt=4)).expected < 2
    True
    """
    rng = np.random.default_rng(seed)
    start = allocator.start([Prompt(str(q)) for q in range(len(success))])
    first = allocator.plan(start)
    hits = np.zeros(draws)
    right, wrong = Rollout(True), Rollout(False)
    for draw in range(draws):
        correct = rng.binomial(first.counts, success)
        batch = start.add(
            first, [[right] * int(c) + [wrong] * int(n - c) for c, n in zip(correct, first.counts, strict=True)]
        )
        second = allocator.plan(batch)
        if draw == 0 and allocator.plan(batch.add(second, [[wrong] * int(n) for n in second.counts])):
            raise ValueError(
                f"the allocator must end after two rounds, {type(allocator).__name__} asks for a third; simulate it"
            )
        hits[draw] = np.where(correct > 0, 1.0, 1 - (1 - success) ** second.counts).sum()
    return _mean(hits)


def _mean(values: Floats) -> Hits:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return Hits(float(values.mean()), float(error))
