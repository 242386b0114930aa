"""DARS: the same rollouts for every prompt, then more for the hard ones, up to the signal of a prompt with p = 1/2.

Reference: Z. Yang, Z. Guo, Y. Huang, Y. Wang, D. Xie, Y. Wang, X. Liang, J. Tang, "Depth-Breadth Synergy in RLVR:
Unlocking LLM Reasoning Gains with Adaptive Exploration", arXiv 2508.13755 (2025), its equal-treatment schedule. Symbols
of the paper used here: N rollouts of a prompt in the first round (``pre_rollouts``), N_max the most of a prompt
(``high``), p its share of correct ones.

The sum of the absolute advantages of N rollouts is 2 N p (1 - p). A prompt with p < 1/2 gets as many more rollouts as
bring the sum up to the N / 2 of a prompt with p = 1/2: ceil((N / 2 - 2 N p (1 - p)) / (2 p (1 - p))), but no more than
N_max - N. If none is correct, p = 1 / (2 N) takes the place of 0. N = 8 and N_max = 32 are the paper's.

Note: a prompt that has no verified rollout, because all samples failed, gets no more: nothing is known of its p.
Note: the counts depend on outcomes of the same batch, which biases group-relative gradients; see docs/allocators.md.
With these defaults, RLOO and weight 1 for every prompt, a prompt's expected gradient is 1.17 times the true one at
p = .1, 1.08 times at .3, 1.02 times at .5, and 1.00 times from .7 on.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.checks import check_least
from apportion.types import Batch, Counts, Needs, Plan


def extra_rollouts(successes: Counts, trials: Counts, pre_rollouts: int, high: int) -> Counts:
    """Return the rollouts [P] of the second round, given ``successes`` [P] among ``trials`` [P] of the first.

    It is computed in integers, because in floating point the ratio of a prompt may end just above a whole number.

    >>> extra_rollouts(np.array([0, 1, 2, 3, 4, 8]), np.array([8] * 6), pre_rollouts=8, high=32).tolist()
    [24, 11, 3, 1, 0, 0]
    """
    right = np.where(successes == 0, 1, 2 * successes)  # successes in 2 N trials; 1 if none is correct
    drawn = 2 * np.where(successes == 0, pre_rollouts, trials)
    signal = 4 * right * (drawn - right)  # 4 p (1 - p), in units of 1 / drawn^2
    missing = pre_rollouts * (drawn**2 - signal)
    extra = -(-missing // np.maximum(signal, 1))
    return np.where((2 * successes < trials) & (trials > 0), np.minimum(extra, high - pre_rollouts), 0)


@dataclass(frozen=True)
class DARS(Allocator):
    """Rollouts for every prompt, then more for each with less than half of them correct; needs binary rewards.

    Args:
        pre_rollouts: N, drawn first, for every prompt.
        high: N_max, the most rollouts of one prompt.

    >>> from apportion import Prompt, Rollout
    >>> allocator = DARS(pre_rollouts=4, high=16)
    >>> batch = allocator.start([Prompt("a"), Prompt("b")])
    >>> outcomes = [[Rollout(True)] * 2 + [Rollout(False)] * 2, [Rollout(True)] + [Rollout(False)] * 3]
    >>> allocator.plan(batch.add(allocator.plan(batch), outcomes)).counts.tolist()
    [0, 2]
    """

    pre_rollouts: int = 8
    high: int = 32

    name: ClassVar[str] = "dars"
    separable: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(binary=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "it learns from them which prompts are hard", pre_rollouts=1)
        check_least(self, "raise it, because it counts the pre_rollouts too", high=self.pre_rollouts)

    def size(self, prompts: int) -> Size:
        extra = extra_rollouts(np.array([0]), np.array([1]), self.pre_rollouts, self.high)[0]  # if none is correct
        most = (self.pre_rollouts + int(extra)) * prompts
        return Size(asked=most, kept=most, least=self.pre_rollouts * prompts, rounds=2)

    def plan(self, batch: Batch) -> Plan:
        first = np.maximum(self.pre_rollouts - batch.asked, 0)
        extra = extra_rollouts(batch.successes, batch.trials, self.pre_rollouts, self.high)
        return Plan(np.where(batch.asked == self.pre_rollouts, extra, first))
