"""The mean of each prompt's recent success rates."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_least, check_numbers, check_positive
from apportion.predictors.base import Predictor
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import observations
from apportion.types import Batch, Belief, Prompt


@dataclass
class MovingAverage(Predictor):
    """Mean success rate of a prompt among the ``window`` most recent observations of all prompts.

    An observation is the success rate of one prompt in one batch. A prompt without an observation in the window gets
    the mean over the window. Before the first observation every prompt gets 0.5. Beliefs are worth ``strength``
    rollouts of evidence.

    Reference: the Moving Average baseline of arXiv 2602.01601, "Success probability prediction quality", which uses
    the 1024 most recent samples.
    Note: the paper does not say what is averaged or what an unseen prompt gets. Both are our choice.

    Args:
        window: number of the most recent observations that are averaged.
        strength: number of rollouts of evidence that a belief is worth.

    >>> from apportion.types import Plan, Rollout
    >>> predictor, prompts = MovingAverage(), [Prompt("a"), Prompt("b"), Prompt("new")]
    >>> batch = Batch.start(prompts, predictor.predict(prompts))
    >>> predictor.update(batch.add(Plan([2, 1, 0]), [[Rollout(True), Rollout(False)], [Rollout(True)], []]))
    >>> predictor.predict(prompts).mean.tolist()
    [0.5, 1.0, 0.75]
    """

    window: int = 1024
    strength: float = 2.0

    name: ClassVar[str] = "moving_average"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_least(self, "1024 is the paper's", window=1)
        check_positive(self, "strength")
        self._recent: deque[tuple[str, float]] = deque(maxlen=int(self.window))

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        rates: dict[str, list[float]] = {}
        for id, rate in self._recent:
            rates.setdefault(id, []).append(rate)
        overall = np.mean([rate for _, rate in self._recent] or [0.5])
        mean = np.array([np.mean(rates.get(prompt.id, overall)) for prompt in prompts], np.float64)
        return Belief.from_mean(mean, self.strength)

    def update(self, batch: Batch) -> None:
        self._recent.extend((seen.prompt.id, seen.rate) for seen in observations(batch))

    def _memory(self) -> dict[str, Any]:
        return {
            "ids": [id for id, _ in self._recent],
            "rates": np.array([rate for _, rate in self._recent], np.float64),
        }

    def _restore(self, saved: SavedValues) -> None:
        if len(ids := saved.texts("ids")) > self.window:
            raise saved.refusal("ids", f"at most {self.window} texts, the window,")
        rates = saved.array("rates", (len(ids),), low=0, high=1)
        self._recent.clear()
        self._recent.extend(zip(ids, rates.tolist(), strict=True))
