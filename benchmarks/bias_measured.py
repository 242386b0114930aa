"""Measured expectations of gradient estimates: any rule runs unchanged over many batches of a fixed policy.

The policy of one parameter is that of ``bias_exact``. The same rollouts are used for a tabular policy, a softmax over
``ANSWERS`` answers, of which the first is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apportion import Batch, Group, Prompt, collect
from apportion.advantages import rollout_weights
from apportion.allocators.dapo import mixed
from apportion.types import Floats
from benchmarks.bias_exact import ANSWERS, ROLLOUTS, SUCCESS, kept

WRONG = np.array([0.6, 0.3, 0.1])
"""Shares of the three wrong answers of the tabular policy."""
POLICY = np.column_stack([SUCCESS, (1 - SUCCESS)[:, None] * WRONG])
"""The probability of every answer [P, K]."""
TRUTH = SUCCESS[:, None] * (np.eye(ANSWERS)[0] - POLICY)
"""The gradient [P, K] of the success of the tabular policy."""
PROMPTS, BATCHES, WARM_UP, SEED = 88, 3000, 100, 0

Weights = Callable[[Sequence[Group], Batch], Floats]
"""Weights [N] of all rollouts of the groups, 0 outside ``keep``."""


class Population:
    """Draws prompts, each ``SUCCESS`` equally likely, and samples them. ``Prompt.data`` is the index in ``SUCCESS``."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.drawn: Counter[int] = Counter()

    def start(self, count):
        """Return prompts for a new batch. Prompts of one probability are numbered within the batch."""
        self.drawn.clear()
        return self.more(count)

    def more(self, count):
        prompts = []
        for place in self.rng.integers(len(SUCCESS), size=count).tolist():
            prompts.append(Prompt(f"{place}", id=f"{place}/{self.drawn[place]}", data=place))
            self.drawn[place] += 1
        return prompts

    def sample(self, prompts, counts):
        success = np.repeat(SUCCESS[[prompt.data for prompt in prompts]], counts)
        edges = success + (1 - success) * np.append(0, WRONG.cumsum()[:-1])[:, None]
        answers = iter((self.rng.random(len(success)) >= edges).sum(axis=0).tolist())
        return [[ROLLOUTS[next(answers)] for _ in range(count)] for count in counts.tolist()]


def by_prompt(groups, batch):
    """Weigh every group equally: the mean over groups of the mean over the rollouts in the loss."""
    ids, keep = kept(groups)
    weights = np.zeros(len(ids))
    weights[keep] = rollout_weights(ids[keep], "prompt") / keep.sum()
    return weights


def by_rollout(groups, batch):
    """Weigh every rollout equally: the mean over the rollouts in the loss."""
    keep = kept(groups)[1]
    return keep / keep.sum()


def summed(groups, batch):
    """Weigh every rollout in the loss with 1: their sum."""
    return kept(groups)[1].astype(float)


def by_round(groups, batch):
    """Weigh every group equally, and each of its two rounds by one half, whatever their numbers of rollouts."""
    ids, _ = kept(groups)
    rounds = np.array([rollout.round for group in groups for rollout in group.rollouts])
    sizes = np.bincount(2 * ids + rounds, minlength=2 * len(groups))
    return 0.5 / sizes[2 * ids + rounds] / len(groups)


def over_drawn(groups, batch):
    """Divide the sum of the kept groups' means by the number of prompts drawn up to the last kept one."""
    return by_prompt(groups, batch) * len(groups) / _last_kept(groups, batch)


def inverse_binomial(groups, batch):
    """Multiply the mean over the B kept groups by (B - 1) / (D - 1), with D prompts drawn up to the last kept one."""
    return by_prompt(groups, batch) * (len(groups) - 1) / (_last_kept(groups, batch) - 1)


def _last_kept(groups, batch):
    return int(np.flatnonzero(mixed(batch))[len(groups) - 1]) + 1


WEIGHTS: dict[str, Weights] = {"prompt": by_prompt, "rollout": by_rollout, "sum": summed}
COUNTED = ("sum",)
"""Weights compared with the count-weighted truth E[n_q] grad p_q. Others are compared with the equal-weight truth."""


@dataclass(frozen=True)
class Measured:
    """Sums over each of S batches: the coefficients of every answer's score by p, and the truth to compare them with.

    - ``coefficients`` [S, P, K]: for every (estimator, weights).
    - ``drawn`` [S, P]: the share of prompts with each p, of those that the batch started with.
    - ``asked`` [S, P]: their rollouts, divided by the number of these prompts.
    - ``counts`` [S, P]: the rollouts in the loss.
    """

    coefficients: Mapping[tuple[str, str], Floats]
    drawn: Floats
    counts: Floats
    asked: Floats

    @property
    def rollouts(self):
        """The mean number of rollouts drawn for a prompt [P]."""
        return self.asked.sum(0) / self.drawn.sum(0)

    def truth(self, weights):
        """Return the quantity to estimate [S, P], without the factor of one prompt's gradient."""
        return self.counts if weights in COUNTED else self.drawn

    def ratio(self, name, weights):
        """Return estimate over truth [P] for the policy of one parameter, and half its interval [P] (delta method)."""
        found = self.coefficients[name, weights]
        estimate = found[..., 0] * (1 - SUCCESS) - found[..., 1:].sum(-1) * SUCCESS
        return _ratio(estimate, self.truth(weights) * SUCCESS * (1 - SUCCESS))

    def tabular(self, name, weights):
        """Return, for the tabular policy, projection on the truth over its length [P] and cosine with it [P]."""
        found = self.coefficients[name, weights].mean(0)
        estimate = found - found.sum(1, keepdims=True) * POLICY
        truth = TRUTH * self.truth(weights).mean(0)[:, None]
        products, lengths = (estimate * truth).sum(1), (truth**2).sum(1)
        return products / lengths, products / np.sqrt((estimate**2).sum(1) * lengths)


def _ratio(estimate, truth):
    ratio = estimate.sum(0) / truth.sum(0)
    return ratio, 1.96 * np.sqrt(((estimate - ratio * truth) ** 2).sum(0)) / truth.sum(0)


def measure(allocator, estimators, weights=WEIGHTS, *, prompts=PROMPTS, batches=BATCHES, warm_up=WARM_UP, seed=SEED):
    """Run ``allocator`` over batches of a fixed policy. It observes all; the first ``warm_up`` are not measured."""
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
        # The number of fresh prompts depends on outcomes, so only the prompts of the start are a fair sample.
        fair = np.array([prompt.data for prompt in batch.prompts[: batch.started]])
        drawn.append(np.bincount(fair, minlength=len(SUCCESS)) / len(fair))
        counts.append(np.bincount(places[keep], minlength=len(SUCCESS)))
        asked.append(np.bincount(fair, batch.asked[: batch.started], minlength=len(SUCCESS)) / len(fair))
    coefficients = {key: np.array(sums) for key, sums in found.items()}
    return Measured(coefficients, np.array(drawn), np.array(counts), np.array(asked))
