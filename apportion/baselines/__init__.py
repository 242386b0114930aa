"""Baselines from history: values to subtract from rewards, fixed before the rollouts are sampled.

The advantage r - b needs no other rollout of the prompt, so a group of one is enough. Because b does not depend on the
rollout, the gradient is unbiased for any b: E[h] = 0 for the score h. b only changes the variance, which is smallest at

    b* = E[r |h|^2] / E[|h|^2].

``advantages.group_optimal`` and ``batch_optimal`` estimate b* from the same batch instead, without history. Each
baseline has one file here and one line in ``BASELINES``.
"""

from apportion.baselines.base import Baseline
from apportion.baselines.optimal import Optimal
from apportion.baselines.predicted import Predicted
from apportion.baselines.spo import SPO
from apportion.baselines.tracked import Tracked
from apportion.baselines.zero import Zero

BASELINES: dict[str, type[Baseline]] = {baseline.name: baseline for baseline in (Zero, Predicted, Optimal, SPO)}
"""Every baseline by name."""

__all__ = ["BASELINES", "SPO", "Baseline", "Optimal", "Predicted", "Tracked", "Zero"]
