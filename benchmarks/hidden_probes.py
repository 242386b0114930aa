"""HORA's predictors from hidden states: logistic probes that are fitted once, follow the policy, or do both.

Reference: T. Wang, D. Ding, E. Dobriban, S. Li, Y. Sun, "Where to Spend Rollouts", arXiv 2605.07114, Figures 6 and 10.
Note: our copy of the paper ends within the caption of Figure 6. The notes of each class say what we read into it. The
scale of features, ``clip`` and ``strength`` are our choice. Adam is Algorithm 1 of D. P. Kingma, J. Ba, "Adam: A Method
for Stochastic Optimization", 2015, with weight decay added to the gradient as in ``torch.optim.Adam``.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from apportion.predictors import Predictor, SentenceTransformerEmbedder
from apportion.predictors.embeddings import Embedder, embed
from apportion.predictors.statistics.beta_binomial import expit
from apportion.predictors.statistics.per_prompt import observations
from apportion.types import Batch, Belief, Floats, Prompt

Features = NDArray[np.float32]
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants."""
RATE, STEPS, MORE_STEPS, DECAY = 0.01, 500, 25, 0.1
"""Of the fit to known rates or to the first batches: Adam's learning rate and steps, steps before, weight decay."""


def features_of(embeddings: NDArray[Any]) -> Features:
    """Return features [P, d + 1] of ``embeddings`` [P, d]: each row scaled to a mean square of 1, and a column of 1.

    A row of zeros stays one.
    """
    x = np.asarray(embeddings, np.float64)
    size = np.sqrt((x**2).mean(axis=1, keepdims=True))
    scaled = np.divide(x, size, out=np.zeros_like(x), where=size > 0)
    return np.concatenate([scaled, np.ones((len(x), 1))], axis=1).astype(np.float32)


@dataclass(frozen=True)
class ProbeData:
    """Verdicts of n groups in one cycle or more. A cycle is one batch.

    Args:
        features: [n, d + 1].
        shares: [n], the share of right rollouts of each group.
        trials: [n], its verified rollouts.
        ages: [n], how many cycles ago it was: 0 for the latest.
    """

    features: Features
    shares: Floats
    trials: Floats
    ages: NDArray[np.int64]

    def after(self, earlier: "ProbeData | None", cycles: int | None = None) -> "ProbeData":
        """Return ``earlier`` outcomes, a cycle older, and these; the latest ``cycles`` cycles, or all of them."""
        if earlier is None:
            return self
        kept = earlier.ages + 1 < (np.inf if cycles is None else cycles)
        return ProbeData(
            np.concatenate([earlier.features[kept], self.features]),
            np.concatenate([earlier.shares[kept], self.shares]),
            np.concatenate([earlier.trials[kept], self.trials]),
            np.concatenate([earlier.ages[kept] + 1, self.ages]),
        )


def descend(
    outcomes: ProbeData,
    weights: Floats,
    steps: int,
    *,
    rate: float,
    weight_decay: float,
    discount: float = 1.0,
    base: Floats | None = None,
) -> Floats:
    """Return ``weights`` [d + 1] after ``steps`` steps of Adam, whose running means start from 0.

    The loss is the mean cross-entropy per rollout at log-odds ``features @ (base + weights)``, a rollout of age t
    counting ``discount`` ** t, plus ``weight_decay`` / 2 times the sum of squared ``weights``. ``base`` [d + 1] is 0 by
    default.

    In 5 steps no weight moves by more than 5.1 times ``rate``, whatever the outcomes are. In any number of steps it
    moves by 7.3 times ``rate`` a step at most. Both follow from the Cauchy-Schwarz inequality.
    """
    x, counts = outcomes.features.astype(np.float64), outcomes.trials * discount**outcomes.ages
    fixed = 0.0 if base is None else x @ base
    means, squares = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, steps + 1):
        gradient = x.T @ (counts * (expit(fixed + x @ weights) - outcomes.shares)) / counts.sum()
        gradient = gradient + weight_decay * weights
        means = BETA_1 * means + (1 - BETA_1) * gradient
        squares = BETA_2 * squares + (1 - BETA_2) * gradient**2
        size = np.sqrt(squares / (1 - BETA_2**step)) + EPSILON
        weights = weights - rate * means / (1 - BETA_1**step) / size
    return weights


@dataclass
class LogisticProbe(Predictor):
    """A base class: success is the logistic function of a line in the embedding, whose rows have a mean square of 1.

    A subclass changes ``_weights`` in ``_pretrain`` and ``_learn``, and may keep outcomes to learn from again in
    ``_kept``. Before it has learned anything every prompt gets 0.5.
    """

    embedder: Embedder = field(default_factory=SentenceTransformerEmbedder)
    clip: float = 0.01
    strength: float = 2.0

    def __post_init__(self) -> None:
        self._weights: Floats | None = None
        self._kept: ProbeData | None = None

    @property
    def reads_rates(self) -> bool:
        return True

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Embed all ``prompts`` once, and fit the probe to known rates, ``Prompt.rate``, if it has learned nothing."""
        embed(self.embedder, prompts)
        rated = [(prompt, prompt.rate) for prompt in prompts if prompt.rate is not None]
        if rated and self._line() is None:
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
    def _pretrain(self, outcomes: ProbeData) -> None:
        """Learn from known rates, before anything else."""

    @abstractmethod
    def _learn(self, outcomes: ProbeData) -> None:
        """Learn from one batch."""

    def _line(self) -> Floats | None:
        """Return the coefficients [d + 1], the constant last, or None before anything was learned."""
        return self._weights

    def _descend(self, outcomes: ProbeData, steps: int, **settings: Any) -> None:
        start = np.zeros(outcomes.features.shape[1]) if self._weights is None else self._weights
        self._weights = descend(outcomes, start, steps, **settings)

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


@dataclass
class HiddenStatic(LogisticProbe):
    """A logistic probe on hidden states, fitted to known rates or to the first batches, and then frozen.

    Hidden states are ``PrecomputedEmbeddings``; any other embedder will do. If prompts have known rates at ``prepare``,
    such as pass rates of the policy before training, the probe is fitted to these and no batch changes it. Otherwise it
    follows the batches until it has ``first`` observations, and no later batch changes it. An observation is the
    verdicts of one prompt in one batch.

    Note: the paper "keeps the pretrained probe frozen during RL training". Our copy does not say how it was pretrained.
    The fit (500 steps of Adam at a rate of 0.01), ``weight_decay`` and ``first`` are our choice. A weight decay of
    0.01, the paper's online one, overfits on the recorded run of ``benchmarks/learned_priors``.
    Note: one batch can decide the probe if it alone has ``first`` observations. A belief is worth ``strength`` rollouts
    in any case.

    Args:
        embedder: gives the hidden state or the embedding of a prompt; by default MiniLM.
        clip: distance of predictions from 0 and from 1, at the least.
        strength: number of rollouts of evidence that a belief is worth.
        first: number of observations after which the probe is frozen.
        weight_decay: factor of half the squared norm of the coefficients, beside the mean cross-entropy of a rollout.
    """

    first: int = 1024
    weight_decay: float = DECAY

    name: ClassVar[str] = "hidden_static"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._frozen = False

    def _pretrain(self, outcomes: ProbeData) -> None:
        self._fit(outcomes, STEPS)
        self._frozen = True

    def _learn(self, outcomes: ProbeData) -> None:
        if self._frozen:
            return
        seen = outcomes.after(self._kept)
        self._frozen = len(seen.shares) >= self.first
        self._fit(seen, STEPS if self._frozen else MORE_STEPS)
        self._kept = None if self._frozen else seen

    def _fit(self, outcomes: ProbeData, steps: int) -> None:
        self._descend(outcomes, steps, rate=RATE, weight_decay=self.weight_decay)


@dataclass
class HiddenOnline(LogisticProbe):
    """A logistic probe on hidden states that follows the policy: ``steps`` steps of Adam after every batch.

    Hidden states are ``PrecomputedEmbeddings``; any other embedder will do. Each update replays the latest ``cycles``
    batches. A rollout of t batches ago counts ``discount`` ** t. If prompts have known rates at ``prepare``, the probe
    starts from a fit to these, and otherwise from 1/2 for all. The paper has 10 generation cycles, 5 Adam steps, a
    learning rate of 1e-3, a weight decay of 1e-2 and an importance of 0.97 ** t.

    Note: we read t as the age in cycles, and a cycle as one batch. The weight decay is added to the gradient, and
    Adam's running means start from 0 at each update.
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
    """

    cycles: int = 10
    steps: int = 5
    rate: float = 1e-3
    weight_decay: float = 0.01
    discount: float = 0.97

    name: ClassVar[str] = "hidden_online"

    def _pretrain(self, outcomes: ProbeData) -> None:
        self._descend(outcomes, STEPS, rate=RATE, weight_decay=DECAY)

    def _learn(self, outcomes: ProbeData, base: Floats | None = None) -> None:
        """Take the steps after a batch, for a probe that is added to ``base`` [d + 1]."""
        self._kept = outcomes.after(self._kept, self.cycles)
        settings = {"rate": self.rate, "weight_decay": self.weight_decay, "discount": self.discount}
        self._descend(self._kept, self.steps, **settings, base=base)


@dataclass
class HiddenDual(HiddenOnline):
    """Two logistic probes whose log-odds are added: one frozen as in ``HiddenStatic``, one online on top of it.

    The weight decay of the online probe pulls predictions back to the frozen one, and not to 1/2. The settings of
    ``HiddenOnline`` are those of the online probe.

    Note: our copy of the paper has the name Hidden-dual, and not its definition. The sum is our reading of it.
    Note: one batch moves the log-odds of the online probe by at most 5.1 times ``rate`` times d + 1, as in
    ``HiddenOnline``. A batch also moves the other probe until this one is frozen.

    Args:
        first: number of observations after which the other probe is frozen, if no rates are known.
    """

    first: int = 1024

    name: ClassVar[str] = "hidden_dual"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._static = HiddenStatic(self.embedder, first=self.first)

    def _line(self) -> Floats | None:
        frozen = self._static._line()
        return frozen if frozen is None or self._weights is None else frozen + self._weights

    def _pretrain(self, outcomes: ProbeData) -> None:
        self._static._pretrain(outcomes)

    def _learn(self, outcomes: ProbeData, base: Floats | None = None) -> None:
        self._static._learn(outcomes)
        super()._learn(outcomes, self._static._line())
