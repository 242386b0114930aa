"""HORA's Hidden-online: a logistic probe that takes a few steps of Adam on recent batches after each batch."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.predictors.base import check_discount
from apportion.predictors.hidden_static import DECAY, RATE, STEPS
from apportion.predictors.probe import LogisticProbe, check_weight_decay
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.logistic_probe import ProbeData, descend, restored_weights
from apportion.types import Floats


@dataclass
class HiddenOnline(LogisticProbe):
    """A logistic probe on hidden states that follows the policy: ``steps`` steps of Adam after every batch.

    Hidden states are ``PrecomputedEmbeddings``; any other embedder will do. Each update replays the latest ``cycles``
    batches. A rollout of t batches ago counts ``discount`` ** t. If prompts have known rates at ``prepare``, the probe
    starts from a fit to these, and otherwise from 1/2 for all.

    Reference: T. Wang, D. Ding, E. Dobriban, S. Li, Y. Sun, "Where to Spend Rollouts", arXiv 2605.07114, Figure 6: 10
    generation cycles, 5 Adam steps, learning rate 1e-3, weight decay 1e-2, importance 0.97 ** t.
    Note: our copy of the paper ends within that sentence. We read t as the age in cycles, and a cycle as one batch. The
    weight decay is added to the gradient, and Adam's running means start from 0 at each update. The scale of features,
    ``clip`` and ``strength`` are our choice.
    Note: one batch moves each coefficient by at most 5.1 times ``rate`` at its update, and the log-odds of a prompt by
    that times d + 1 at most: 2.0 for MiniLM with d = 384. It is replayed ``cycles`` times.

    Args:
        embedder: gives the hidden state or the embedding of a prompt; by default MiniLM.
        clip: distance of predictions from 0 and from 1, at the least.
        strength: number of rollouts of evidence that a belief is worth.
        cycles: number of the latest batches that are replayed.
        steps: steps of Adam after each batch.
        rate: learning rate of Adam.
        weight_decay: factor of the coefficients in the gradient.
        discount: weight of a rollout for each batch since.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Batch, Plan, Prompt, Rollout
    >>> prompts = [Prompt("easy"), Prompt("hard")]
    >>> predictor = HiddenOnline(PrecomputedEmbeddings.from_array(prompts, [[1.0], [-1.0]]), rate=0.1)
    >>> batch = Batch.start(prompts, predictor.predict(prompts))
    >>> predictor.update(batch.add(Plan([2, 2]), [[Rollout(True)] * 2, [Rollout(False)] * 2]))
    >>> predictor.predict(prompts).mean.round(2).tolist()
    [0.62, 0.38]
    """

    cycles: int = 10
    steps: int = 5
    rate: float = 1e-3
    weight_decay: float = 0.01
    discount: float = 0.97

    name: ClassVar[str] = "hidden_online"
    _weights: Floats | None = field(default=None, init=False, repr=False, compare=False)
    _recent: ProbeData | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight_decay(self.weight_decay)
        check_discount(self.discount)
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, got {self.rate}; 0.001 is the paper's")
        for key, least in (("cycles", self.cycles), ("steps", self.steps)):
            if least < 1:
                raise ValueError(f"{key} must be at least 1, got {least}; leave it out for the paper's")

    def _line(self) -> Floats | None:
        return self._weights

    def _pretrain(self, outcomes: ProbeData) -> None:
        if self._weights is None:
            zeros = np.zeros(outcomes.features.shape[1])
            self._weights = descend(outcomes, zeros, STEPS, rate=RATE, weight_decay=DECAY)

    def _learn(self, outcomes: ProbeData) -> None:
        self._step(outcomes)

    def _step(self, outcomes: ProbeData, base: Floats | None = None) -> None:
        """Take the steps after a batch, for a probe that is added to ``base`` [d + 1]."""
        self._recent = outcomes.after(self._recent, self.cycles)
        start = np.zeros(outcomes.features.shape[1]) if self._weights is None else self._weights
        settings = {"rate": self.rate, "weight_decay": self.weight_decay, "discount": self.discount}
        self._weights = descend(self._recent, start, self.steps, **settings, base=base)

    def _memory(self) -> dict[str, Any]:
        return {"weights": self._weights, **ProbeData.saved(self._recent)}

    def _restore(self, saved: SavedValues) -> None:
        weights, recent = restored_weights(saved), ProbeData.restored(saved)
        if recent is not None and (weights is None or recent.features.shape[1] != len(weights)):
            raise saved.refusal("weights", f"an array [{recent.features.shape[1]}]")
        self._weights, self._recent = weights, recent
