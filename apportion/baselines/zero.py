"""No baseline: the control for the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.baselines.base import Baseline
from apportion.types import Batch, Floats, Prompt


@dataclass
class Zero(Baseline):
    """b = 0: plain REINFORCE, the control for the others. With rewards 0 and 1 only successes change the policy.

    >>> Zero().predict([Prompt("a"), Prompt("b")]).tolist()
    [0.0, 0.0]
    """

    name: ClassVar[str] = "zero"

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        return np.zeros(len(prompts))

    def update(self, batch: Batch) -> None:
        """Do nothing, because the baseline is fixed."""
