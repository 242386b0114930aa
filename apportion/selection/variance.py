"""Prompts whose rewards are expected to vary most: p (1 - p) for rewards of 0 and 1.

Also called learnability: J. Foster, A. Sims, M. Forkel, J. Foerster, "Learning to Reason at the Frontier of
Learnability", arXiv 2502.12272 (2025). Under a belief it is E[p (1 - p)], so an uncertain prompt ranks below one that
is known to have p = 1/2.
"""

from dataclasses import dataclass
from typing import ClassVar

from apportion.selection.base import RankingSelector
from apportion.types import Belief, Floats


@dataclass(kw_only=True)
class LargestVariance(RankingSelector):
    """Chooses the prompts with the largest expected variance of a reward, ``Belief.variance``.

    >>> from apportion.types import Prompt
    >>> selector = LargestVariance(explore=0.0)
    >>> selector.prepare([Prompt("a"), Prompt("b")])
    >>> sorted(selector.choose(2))
    [0, 1]
    """

    name: ClassVar[str] = "variance"

    def score(self, belief: Belief) -> Floats:
        return belief.variance
