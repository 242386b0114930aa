"""Inverse variance: more rollouts for prompts whose outcome is more certain. A rule to compare with.

Reference: the second ablation of H. T. Nguyen et al., arXiv 2602.01601 (2026), Appendix C.1: target weights
w_i proportional to 1 / (sigma_i^2 + epsilon), sigma_i^2 the running variance of a prompt's answers, normalised as in
``inverse_accuracy``. It is the opposite of VIP, which gives most to prompts of large variance.

Note: sigma_i^2 is ``Belief.variance``, the variance of a rollout's reward: p (1 - p) for rewards of 0 and 1, measured
by the predictor for graded ones.
Note: the paper does not print epsilon. 0.05 is ours: with rewards of 0 and 1 a prompt of certain outcome gets 6 times
the share of one with p = 1/2. Graded rewards on another scale need another epsilon.
Note: integers, bounds and the running estimate are as in ``inverse_accuracy``.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from apportion.allocators.spending.proportional import ProportionalAllocator
from apportion.predictors import MovingAverage, Predictor
from apportion.types import Belief, Floats


@dataclass(frozen=True, kw_only=True)
class InverseVariance(ProportionalAllocator):
    """Splits a fixed budget in proportion to 1 / (reward variance + epsilon).

    Rewards as its predictor takes them, binary or graded.

    Args:
        rollouts_per_prompt: budget per prompt, on average; by default the engine's number, or 8.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens per prompt, on average; a completion costs its predicted length.
        lengths: predicts the length of a completion; needed with ``tokens_per_prompt``, and only then.
        low: the fewest rollouts of one prompt, at least 1.
        high: the most rollouts of one prompt.
        epsilon: in units of the reward's variance. A smaller one gives more to prompts of certain outcome.
        predictor: predicts the variance; by default from the moving average of success rates.

    >>> from apportion import Batch, Belief, Prompt
    >>> allocator = InverseVariance(budget=24, low=1)
    >>> batch = Batch.start([Prompt("hard"), Prompt("even"), Prompt("easy")], Belief.from_mean([0.1, 0.5, 0.9]))
    >>> allocator.plan(batch).counts.tolist()
    [10, 4, 10]
    """

    predictor: Predictor = field(default_factory=MovingAverage)

    name: ClassVar[str] = "inverse_variance"

    def weights(self, belief: Belief) -> Floats:
        return 1 / (belief.variance + self.epsilon)
