"""Inverse accuracy: more rollouts for prompts that are answered wrongly more often. A rule to compare with.

Reference: the first ablation of H. T. Nguyen et al., arXiv 2602.01601 (2026), Appendix C.1: target weights
w_i proportional to 1 - acc_i + epsilon, normalised to meet the budget and the bounds, acc_i the running accuracy.

Note: the paper relaxes, solves and rounds, and does not state the objective. Ours is the squared distance to the shares
C w_i / sum w, and we find the integers that minimise it under the budget and the bounds exactly.
Note: the paper prints neither epsilon nor the bounds. 0.05 is ours: a prompt that is always solved gets a 21st of the
share of one that is never solved. The bounds are VIP's (3 and 64), so that a comparison with it changes one thing.
Note: "running accuracy" is read as the paper's own Moving Average predictor: plain success rates without a prior. A
prompt never seen gets the mean of the others.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from apportion.allocators.spending.proportional import ProportionalAllocator
from apportion.predictors import MovingAverage, Predictor
from apportion.types import Belief, Floats, Needs


@dataclass(frozen=True, kw_only=True)
class InverseAccuracy(ProportionalAllocator):
    """Splits a fixed budget in proportion to 1 - success probability + epsilon; needs binary rewards.

    Args:
        rollouts_per_prompt: budget per prompt, on average; by default the engine's number, or 8.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens per prompt, on average; a completion costs its predicted length.
        lengths: predicts the length of a completion; needed with ``tokens_per_prompt``, and only then.
        low: the fewest rollouts of one prompt, at least 1.
        high: the most rollouts of one prompt.
        epsilon: the weight of a prompt that is always solved. One that is never solved weighs 1 more.
        predictor: predicts the accuracy; by default the moving average of success rates.

    >>> from apportion import Batch, Belief, Prompt
    >>> allocator = InverseAccuracy(budget=24, low=1)
    >>> batch = Batch.start([Prompt("hard"), Prompt("even"), Prompt("easy")], Belief.from_mean([0.1, 0.5, 0.9]))
    >>> allocator.plan(batch).counts.tolist()
    [14, 8, 2]
    """

    predictor: Predictor = field(default_factory=MovingAverage)

    name: ClassVar[str] = "inverse_accuracy"

    @property
    def needs(self) -> Needs:
        return super().needs | Needs(binary=True)

    def weights(self, belief: Belief) -> Floats:
        return 1 - belief.mean + self.epsilon
