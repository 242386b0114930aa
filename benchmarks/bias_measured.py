"""Measured expectations of gradient estimates: any rule, run as it is over many batches of a fixed policy.

The policy of one parameter is as in ``bias_exact``. The same rollouts serve a tabular policy, a softmax over
``ANSWERS`` answers of which the first is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apportion import Allocator, Batch, Group, Prompt, Rollout, collect
from apportion.advantages import rollout_weights
from apportion.allocators.dapo import mixed
from apportion.types import Counts, Floats
from benchmarks.bias_exact import ANSWERS, ROLLOUTS, SUCCESS, Advantages, kept

WRONG = np.array([0.6, 0.3, 0.1])
"""Shares of the three wrong answers of the tabular policy."""
POLICY = np.column_stack([SUCCESS, (1 - SUCCESS)[:, None] * WRONG])
"""Probability of every answer [P, K]."""
TRUTH = SUCCESS[:, None] * (np.eye(ANSWERS)[0] - POLICY)
"""Gradient [P, K] of the success of the tabular policy."""
PROMPTS, BATCHES, WARM_UP, SEED = 88, 3000, 100, 0

Weights = Callable[[Sequence[Group], Batch], Floats]
"""Weights [N] of all rollouts of the groups, 0 outside ``keep``."""


class Population:
    """Draws prompts, each ``SUCCESS`` with equal chance, and samples them; ``Prompt.data`` is its place there."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.drawn: Counter[int] = Counter()

    def start(self, count: int) -> list[Prompt]:
        """Prompts for a new batch; a number within the batch tells those of one probability apart."""
        self.drawn.clear()
        return self.more(count)

    def more(self, count: int) -> list[Prompt]:
        prompts = []
        for place in self.rng.integers(len(SUCCESS), size=count).tolist():
            prompts.append(Prompt(f"{place}", id=f"{place}/{self.drawn[place]}", data=place))
            self.drawn[place] += 1
        return prompts

    def sample(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        success = np.repeat(SUCCESS[[prompt.data for prompt in prompts]], counts)
        edges = success + (1 - success) * np.append(0, WRONG.cumsum()[:-1])[:, None]
        answers = iter((self.rng.random(len(success)) >= edges).sum(axis=0).tolist())
        return [[ROLLOUTS[next(answers)] for _ in range(count)] for count in counts.tolist()]


def by_prompt(groups: Sequence[Group], batch: Batch) -> Floats:
    """Every group weighs the same: the mean over groups of the mean over the rollouts in the loss."""
    ids, keep = kept(groups)
    weights = np.zeros(len(ids))
    weights[keep] = rollout_weights(ids[keep], "prompt") / keep.sum()
    return weights


def by_rollout(groups: Sequence[Group], batch: Batch) -> Floats:
    """Every rollout weighs the same: the mean over the rollouts in the loss."""
    keep = kept(groups)[1]
    return keep / keep.sum()


def summed(groups: Sequence[Group], batch: Batch) -> Floats:
    """The sum over the rollouts in the loss."""
    return kept(groups)[1].astype(float)


def by_round(groups: Sequence[Group], batch: Batch) -> Floats:
    """Every group weighs the same, and within it each of its two rounds one half, however many rollouts it has."""
    ids, _ = kept(groups)
    rounds = np.array([rollout.round for group in groups for rollout in group.rollouts])
    sizes = np.bincount(2 * ids + rounds, minlength=2 * len(groups))
    return 0.5 / sizes[2 * ids + rounds] / len(groups)


def over_drawn(groups: Sequence[Group], batch: Batch) -> Floats:
    """The sum of the kept groups' means over the prompts drawn up to the last that was kept."""
    return by_prompt(groups, batch) * len(groups) / _last_kept(groups, batch)


def inverse_binomial(groups: Sequence[Group], batch: Batch) -> Floats:
    """The mean over the B kept groups times (B - 1) / (D - 1), D the prompts drawn up to the last that was kept."""
    return by_prompt(groups, batch) * (len(groups) - 1) / (_last_kept(groups, batch) - 1)


def _last_kept(groups: Sequence[Group], batch: Batch) -> int:
    return int(np.flatnonzero(mixed(batch))[len(groups) - 1]) + 1


WEIGHTS: dict[str, Weights] = {"prompt": by_prompt, "rollout": by_rollout, "sum": summed}
COUNTED = ("sum",)
"""Weights judged by the count-weighted truth E[n_q] grad p_q; the others by the equal-weight truth."""


@dataclass(frozen=True)
class Measured:
    """Sums over each of S batches: coefficients of every answer's score by p, and what there was to estimate.

    ``coefficients`` [S, P, K] for every (estimator, weights); ``drawn`` [S, P] is the share of the prompts that have
    each p, ``asked`` [S, P] their rollouts over all the prompts, both of those that the batch started with; ``counts``
    [S, P] are the rollouts in the loss.
    """

    coefficients: Mapping[tuple[str, str], Floats]
    drawn: Floats
    counts: Floats
    asked: Floats

    @property
    def rollouts(self) -> Floats:
        """Rollouts drawn for a prompt [P], on average."""
        return self.asked.sum(0) / self.drawn.sum(0)

    def truth(self, weights: str) -> Floats:
        """What the batch has to estimate [S, P], up to the gradient of one prompt."""
        return self.counts if weights in COUNTED else self.drawn

    def ratio(self, name: str, weights: str) -> tuple[Floats, Floats]:
        """Estimate over truth [P] for the policy of one parameter, and half its 95% interval [P] (delta method)."""
        found = self.coefficients[name, weights]
        estimate = found[..., 0] * (1 - SUCCESS) - found[..., 1:].sum(-1) * SUCCESS
        return _ratio(estimate, self.truth(weights) * SUCCESS * (1 - SUCCESS))

    def tabular(self, name: str, weights: str) -> tuple[Floats, Floats]:
        """For the tabular policy: projection on the truth [P] over its length, and cosine [P]."""
        found = self.coefficients[name, weights].mean(0)
        estimate = found - found.sum(1, keepdims=True) * POLICY
        truth = TRUTH * self.truth(weights).mean(0)[:, None]
        products, lengths = (estimate * truth).sum(1), (truth**2).sum(1)
        return products / lengths, products / np.sqrt((estimate**2).sum(1) * lengths)


def _ratio(estimate: Floats, truth: Floats) -> tuple[Floats, Floats]:
    ratio = estimate.sum(0) / truth.sum(0)
    return ratio, 1.96 * np.sqrt(((estimate - ratio * truth) ** 2).sum(0)) / truth.sum(0)


def measure(
    allocator: Allocator,
    estimators: Mapping[str, Advantages],
    weights: Mapping[str, Weights] = WEIGHTS,
    *,
    prompts: int = PROMPTS,
    batches: int = BATCHES,
    warm_up: int = WARM_UP,
    seed: int = SEED,
) -> Measured:
    """Runs ``allocator`` over batches of a fixed policy; it observes each, and the first ``warm_up`` do not count."""
    population, cells = Population(seed), len(SUCCESS) * ANSWERS
    found: dict[tuple[str, str], list[Floats]] = {(name, weighting): [] for name in estimators for weighting in weights}
    drawn, counts, asked = [], [], []
    for number in range(warm_up + batches):
        batch = collect(allocator, population.start(prompts), population.sample, source=population.more)
        groups = allocator.groups(batch)
        allocator.observe(batch)
        if number < warm_up:
            continue
        ids, keep = kept(groups)
        places = np.array([group.prompt.data for group in groups])[ids]
        answers = np.array([rollout.completion for group in groups for rollout in group.rollouts])
        weighed = {weighting: weigh(groups, batch) for weighting, weigh in weights.items()}
        for name, advantages in estimators.items():
            signal = advantages(groups)
            for weighting, weight in weighed.items():
                sums = np.bincount(places * ANSWERS + answers, signal * weight, minlength=cells)
                found[name, weighting].append(sums.reshape(-1, ANSWERS))
        # How many fresh prompts are drawn depends on outcomes: only those that it started with are a fair sample.
        fair = np.array([prompt.data for prompt in batch.prompts[: batch.started]])
        drawn.append(np.bincount(fair, minlength=len(SUCCESS)) / len(fair))
        counts.append(np.bincount(places[keep], minlength=len(SUCCESS)))
        asked.append(np.bincount(fair, batch.asked[: batch.started], minlength=len(SUCCESS)) / len(fair))
    coefficients = {key: np.array(sums) for key, sums in found.items()}
    return Measured(coefficients, np.array(drawn), np.array(counts), np.array(asked))
