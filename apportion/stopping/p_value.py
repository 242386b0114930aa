"""The p-value rule: stop when a one-sided binomial test finds the leader ahead of the runner-up.

Of the v_1 + v_2 votes for the two leading answers, the p-value is the probability that at least v_1 are for the leader
if both answers are equally likely. Sampling stops when the p-value is at most ``threshold``.

Reference: Lee et al. 2025, "ConSol", arXiv 2503.17587, Section 2.6, and the package consol 0.3.0, whose threshold is
0.05. Notes:

- The test is repeated with every sample, so ``threshold`` is not the rule's error rate.
- The p-value is P(p <= 1/2) under Beta(v_1, v_2 + 1). That is Adaptive-Consistency's Beta rule at confidence
  1 - threshold with one vote of the leader taken away.
"""

from dataclasses import dataclass
from typing import ClassVar

from apportion.checks import check_numbers
from apportion.stopping.base import CountRule
from apportion.stopping.votes import top_two
from apportion.types import Counts, Floats, Mask


@dataclass(frozen=True)
class PValue(CountRule):
    """Stops when the p-value of the leader against the runner-up is at most ``threshold``.

    Args:
        threshold: the p-value at which it stops.

    >>> from apportion.stopping import decide
    >>> decide(["42"] * 64, rule="p_value").samples
    5
    """

    threshold: float = 0.05

    name: ClassVar[str] = "p_value"

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0 < self.threshold < 0.5:
            raise ValueError(f"threshold must be above 0 and below 0.5, got {self.threshold}; 0.05 is usual")

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        return self.p_value(*top_two(votes)) <= self.threshold

    @staticmethod
    def p_value(first: Counts, second: Counts) -> Floats:
        """Return P(at least ``first`` of ``first + second`` votes) at 1/2 each, [...]; 1 if there are no votes."""
        from scipy import special  # noqa: PLC0415 - slow to import

        return special.bdtrc(first - 1.0, first + second, 0.5)
