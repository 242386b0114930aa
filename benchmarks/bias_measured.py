"""Measured expectations of gradient estimates: any rule runs unchanged over many batches of a fixed policy.

The policy of one parameter is that of ``bias_exact``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from apportion import Prompt, collect
from apportion.advantages import rollout_weights
from apportion.allocators.dapo import mixed
from apportion.types import Floats
from benchmarks.bias_exact import ROLLOUTS, SUCCESS, estimator, kept

PROMPTS, BATCHES, WARM_UP, SEED = 88, 3000, 100, 0


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
        wrong = iter((self.rng.random(len(success)) >= success).tolist())
        return [[ROLLOUTS[next(wrong)] for _ in range(count)] for count in counts.tolist()]


def by_prompt(groups, batch):
    """Weigh every group equally: the mean over groups of the mean over the rollouts in the loss."""
    ids, keep = kept(groups)
    weights = np.zeros(len(ids))
    weights[keep] = rollout_weights(ids[keep], "prompt") / keep.sum()
    return weights


def summed(groups, batch):
    """Weigh every rollout in the loss with 1: their sum."""
    return kept(groups)[1].astype(float)


def by_round(groups, batch):
    """Weigh every group equally, and each of its two rounds by one half, whatever their numbers of rollouts."""
    ids, _ = kept(groups)
    rounds = np.array([rollout.round for group in groups for rollout in group.rollouts])
    sizes = np.bincount(2 * ids + rounds, minlength=2 * len(groups))
    return 0.5 / sizes[2 * ids + rounds] / len(groups)


def inverse_binomial(groups, batch):
    """Multiply the mean over the B kept groups by (B - 1) / (D - 1), with D prompts drawn up to the last kept one."""
    drawn = int(np.flatnonzero(mixed(batch))[len(groups) - 1]) + 1
    return by_prompt(groups, batch) * (len(groups) - 1) / (drawn - 1)


@dataclass(frozen=True)
class Measured:
    """Sums over each of S batches: the estimates by p, and the truth to compare them with.

    - ``estimates`` [S, P]: for every (estimator, weights).
    - ``drawn`` [S, P]: the share of prompts with each p, of those that the batch started with.
    - ``counts`` [S, P]: the rollouts in the loss.
    """

    estimates: Mapping[tuple[str, str], Floats]
    drawn: Floats
    counts: Floats

    def ratio(self, name, weights):
        """Return estimate over truth [P], and half its interval [P] (delta method).

        The weights "sum" are compared with the truth of each rollout in the loss, E[n_q] grad p_q, and others with that
        of each prompt.
        """
        estimate = self.estimates[name, weights]
        truth = (self.counts if weights == "sum" else self.drawn) * SUCCESS * (1 - SUCCESS)
        ratio = estimate.sum(0) / truth.sum(0)
        return ratio, 1.96 * np.sqrt(((estimate - ratio * truth) ** 2).sum(0)) / truth.sum(0)


def measure(allocator, estimators, weights, *, prompts=PROMPTS, batches=BATCHES, warm_up=WARM_UP):
    """Run ``allocator`` over batches of a fixed policy. It observes all; the first ``warm_up`` are not measured.

    ``estimators`` are names, and ``weights`` functions of groups and batch by name, which return the weights [N] of all
    rollouts of the groups.
    """
    population = Population(SEED)
    found: dict[tuple[str, str], list[Floats]] = {(name, weighting): [] for name in estimators for weighting in weights}
    drawn, counts = [], []
    for number in range(warm_up + batches):
        batch = collect(allocator, population.start(prompts), population.sample, source=population.more)
        groups = allocator.groups(batch)
        allocator.observe(batch)
        if number < warm_up:
            continue
        ids, keep = kept(groups)
        places = np.array([group.prompt.data for group in groups])[ids]
        score = np.concatenate([group.rewards for group in groups]) - SUCCESS[places]
        weighed = {weighting: weigh(groups, batch) for weighting, weigh in weights.items()}
        for name in estimators:
            signal = estimator(name)(groups) * score
            for weighting, weight in weighed.items():
                found[name, weighting].append(np.bincount(places, signal * weight, minlength=len(SUCCESS)))
        # The number of fresh prompts depends on outcomes, so only the prompts of the start are a fair sample.
        fair = np.array([prompt.data for prompt in batch.prompts[: batch.started]])
        drawn.append(np.bincount(fair, minlength=len(SUCCESS)) / len(fair))
        counts.append(np.bincount(places[keep], minlength=len(SUCCESS)))
    return Measured({key: np.array(sums) for key, sums in found.items()}, np.array(drawn), np.array(counts))
