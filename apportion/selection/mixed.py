"""Prompts whose group is likely to be mixed: only a mixed group has a group-relative gradient.

Under p ~ Beta(a, b) a group of n rollouts is mixed with probability

    P(mixed) = 1 - E[p^n] - E[(1 - p)^n],   E[p^n] = prod over j < n of (a + j) / (a + b + j),

so uncertain prompts rank above those known to be hopeless or solved, without a further bonus. DAPO (arXiv 2503.14476)
drops hopeless and solved prompts after sampling; this rule avoids them before.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.checks import check_least
from apportion.selection.base import RankingSelector
from apportion.types import Belief, Floats


def mixed_probability(belief: Belief, group_size: int) -> Floats:
    """Return the probability [P] that ``group_size`` rollouts hold a right and a wrong one, in closed form.

    >>> mixed_probability(Belief.uniform(1), 2).round(4).tolist()
    [0.3333]
    """
    a, b, j = belief.alpha[:, None], belief.beta[:, None], np.arange(group_size)
    right, wrong = np.prod((a + j) / (a + b + j), axis=1), np.prod((b + j) / (a + b + j), axis=1)
    return np.maximum(1 - right - wrong, 0.0)


@dataclass(kw_only=True)
class Mixed(RankingSelector):
    """Chooses the prompts with the largest P(mixed).

    Args:
        group_size: n, the size of the group that should be mixed.

    >>> from apportion.types import Prompt
    >>> selector = Mixed()
    >>> selector.prepare([Prompt(f"{q} + {q} =") for q in range(100)])
    >>> len(selector.choose(32)), selector.metrics()
    (32, {'never_chosen': 0.68, 'longest_wait': 1.0})
    """

    group_size: int = 8

    name: ClassVar[str] = "mixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "a group of one is never mixed", group_size=2)

    def score(self, belief: Belief) -> Floats:
        return mixed_probability(belief, self.group_size)
