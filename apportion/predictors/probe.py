"""The base class of logistic probes, which predict a prompt from its hidden state or from another embedding."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors.base import Predictor, check_clip, check_positive
from apportion.predictors.embeddings import Embedder, SentenceTransformerEmbedder, embed
from apportion.predictors.statistics.beta_binomial import expit
from apportion.predictors.statistics.logistic_probe import Features, ProbeData, features_of
from apportion.predictors.statistics.per_prompt import observations
from apportion.types import Batch, Belief, Floats, Prompt


@dataclass
class LogisticProbe(Predictor):
    """A base class: success is the logistic function of a line in the embedding, whose rows have a mean square of 1.

    A subclass returns its line from ``_line``, and changes it in ``_pretrain`` and ``_learn``. Before it has learned
    anything every prompt gets 0.5.

    Args:
        embedder: gives the hidden state or the embedding of a prompt; by default MiniLM.
        clip: distance of predictions from 0 and from 1, at the least.
        strength: number of rollouts of evidence that a belief is worth.
    """

    embedder: Embedder = field(default_factory=SentenceTransformerEmbedder)
    clip: float = 0.01
    strength: float = 2.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_clip(self, self.clip)
        check_positive(self, strength=self.strength)

    @property
    def reads_rates(self) -> bool:
        return True

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Embed all ``prompts`` once, and fit the probe to known rates, ``Prompt.rate``, if it has learned nothing."""
        embed(self.embedder, prompts)
        rated = [(prompt, prompt.rate) for prompt in prompts if prompt.rate is not None]
        if rated:
            self._pretrain(self._outcomes([each for each, _ in rated], [rate for _, rate in rated], [1] * len(rated)))

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        line = self._line()
        if line is None or not prompts:
            return Belief.from_mean(np.full(len(prompts), 0.5), self.strength)
        mean = expit(self._features(prompts).astype(np.float64) @ line)
        return Belief.from_mean(np.clip(mean, self.clip, 1 - self.clip), self.strength)

    def update(self, batch: Batch) -> None:
        if seen := observations(batch):
            prompts, rates, trials = zip(*((each.prompt, each.rate, each.trials) for each in seen), strict=True)
            self._learn(self._outcomes(prompts, rates, trials))

    @abstractmethod
    def _line(self) -> Floats | None:
        """Return the coefficients [d + 1], the constant last, or None before anything was learned."""

    @abstractmethod
    def _pretrain(self, outcomes: ProbeData) -> None:
        """Learn from known rates, if nothing was learned yet."""

    @abstractmethod
    def _learn(self, outcomes: ProbeData) -> None:
        """Learn from one batch."""

    def _outcomes(self, prompts: Sequence[Prompt], shares: Sequence[float], trials: Sequence[int]) -> ProbeData:
        ages = np.zeros(len(prompts), np.int64)
        return ProbeData(self._features(prompts), np.array(shares, np.float64), np.array(trials, np.float64), ages)

    def _features(self, prompts: Sequence[Prompt]) -> Features:
        x, line = features_of(embed(self.embedder, prompts)), self._line()
        if line is not None and x.shape[1] != len(line):
            raise ValueError(
                f"embeddings must have {len(line) - 1} dimensions as before, got {x.shape[1] - 1}; "
                "keep one embedder, or start from an empty state"
            )
        return x


def check_weight_decay(weight_decay: float) -> None:
    """Raise ValueError unless ``weight_decay`` is between 0 and 1."""
    if not 0 <= weight_decay <= 1:
        raise ValueError(f"weight_decay must be between 0 and 1, got {weight_decay}; HORA's paper has 0.01")
