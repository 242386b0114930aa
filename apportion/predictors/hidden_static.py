"""HORA's Hidden-static: a logistic probe that is fitted once and then frozen."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.predictors.probe import LogisticProbe, check_weight_decay
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.logistic_probe import ProbeData, descend, restored_weights
from apportion.types import Floats

RATE, STEPS, MORE_STEPS, DECAY = 0.01, 500, 25, 0.1


@dataclass
class HiddenStatic(LogisticProbe):
    """A logistic probe on hidden states, fitted to known rates or to the first batches, and then frozen.

    Hidden states are ``PrecomputedEmbeddings``; any other embedder will do. If prompts have known rates at ``prepare``,
    such as pass rates of the policy before training, the probe is fitted to these and no batch changes it. Otherwise it
    follows the batches until it has ``first`` observations, and no later batch changes it. An observation is the
    verdicts of one prompt in one batch.

    Reference: T. Wang, D. Ding, E. Dobriban, S. Li, Y. Sun, "Where to Spend Rollouts", arXiv 2605.07114, Figure 6,
    which "keeps the pretrained probe frozen during RL training".
    Note: our copy of the paper does not say how the probe was pretrained. The fit (500 steps of Adam at a rate of
    0.01), the scale of features, ``weight_decay``, ``first``, ``clip`` and ``strength`` are our choice. A weight decay
    of 0.01, the paper's online one, overfits on the recorded run of ``benchmarks/learned_priors``.
    Note: one batch can decide the probe if it alone has ``first`` observations. A belief is worth ``strength`` rollouts
    in any case.

    Args:
        embedder: gives the hidden state or the embedding of a prompt; by default MiniLM.
        clip: distance of predictions from 0 and from 1, at the least.
        strength: number of rollouts of evidence that a belief is worth.
        first: number of observations after which the probe is frozen.
        weight_decay: factor of half the squared norm of the coefficients, beside the mean cross-entropy of a rollout.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Prompt
    >>> prompts = [Prompt("easy", rate=0.9), Prompt("hard", rate=0.1), Prompt("new")]
    >>> predictor = HiddenStatic(PrecomputedEmbeddings.from_array(prompts, [[1.0], [-1.0], [2.0]]), weight_decay=0.0)
    >>> predictor.prepare(prompts)
    >>> predictor.predict(prompts).mean.round(2).tolist()
    [0.89, 0.11, 0.89]
    """

    first: int = 1024
    weight_decay: float = DECAY

    name: ClassVar[str] = "hidden_static"
    _weights: Floats | None = field(default=None, init=False, repr=False, compare=False)
    _seen: ProbeData | None = field(default=None, init=False, repr=False, compare=False)
    _frozen: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight_decay(self.weight_decay)
        if self.first < 1:
            raise ValueError(f"first must be at least 1 observation, got {self.first}; leave it out for the default")

    def _line(self) -> Floats | None:
        return self._weights

    def _pretrain(self, outcomes: ProbeData) -> None:
        if self._weights is None:
            self._fit(outcomes, STEPS)
            self._frozen = True

    def _learn(self, outcomes: ProbeData) -> None:
        if self._frozen:
            return
        self._seen = outcomes.after(self._seen)
        self._frozen = len(self._seen.shares) >= self.first
        self._fit(self._seen, STEPS if self._frozen else MORE_STEPS)
        if self._frozen:
            self._seen = None

    def _fit(self, outcomes: ProbeData, steps: int) -> None:
        start = np.zeros(outcomes.features.shape[1]) if self._weights is None else self._weights
        self._weights = descend(outcomes, start, steps, rate=RATE, weight_decay=self.weight_decay)

    def _memory(self) -> dict[str, Any]:
        return {"weights": self._weights, "frozen": int(self._frozen), **ProbeData.saved(self._seen)}

    def _restore(self, saved: SavedValues) -> None:
        weights, seen, frozen = restored_weights(saved), ProbeData.restored(saved), saved.count("frozen") > 0
        if (weights is None) != (seen is None and not frozen) or (frozen and seen is not None):
            raise saved.refusal("weights", "there if anything was learned")
        if seen is not None and weights is not None and seen.features.shape[1] != len(weights):
            raise saved.refusal("weights", f"an array [{seen.features.shape[1]}]")
        self._weights, self._seen, self._frozen = weights, seen, frozen
