"""Graded rewards: who takes them and who refuses, and what VIP gains from predicting their variance."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

from apportion import VIP, Prompt, Rollout, collect
from apportion.advantages import rloo
from apportion.allocators import Allocator
from apportion.allocators.vip import minimise_noise
from apportion.predictors import (
    GradedGaussianProcess,
    PrecomputedEmbeddings,
    RunningVariance,
    Shuffled,
)
from tests.builders import LABELLED, make_prompts
from tests.rules import MAKE


class GradedSampler:
    """Rewards in [0, 1] without a verdict, and how often it was called."""

    def __init__(self):
        self.rng, self.calls = np.random.default_rng(0), 0

    def __call__(self, prompts, counts):
        self.calls += 1
        return [
            [
                Rollout(answer=f"{r:.1f}", reward=r, tokens=5, score_norm=1.0)
                for r in self.rng.random(n).round(2).tolist()
            ]
            for n in counts
        ]


def source():
    fresh = itertools.count(100)
    return lambda count: [Prompt(f"prompt {next(fresh)}") for _ in range(count)]


def for_graded(allocator):
    """The same rule with a predictor of reward variance wherever it, or a rule inside it, takes a predictor."""
    settings = {field.name: getattr(allocator, field.name) for field in fields(allocator)}
    inner = {name: for_graded(value) for name, value in settings.items() if isinstance(value, Allocator)}
    return replace(allocator, **inner, **({"predictor": RunningVariance()} if "predictor" in settings else {}))


@pytest.fixture(params=sorted(LABELLED))
def allocator(request):
    return MAKE[request.param]()


def test_every_allocator_says_which_rewards_it_takes(allocator):
    text = type(allocator).__doc__
    assert "binary" in text or "graded" in text
    if for_graded(allocator).needs.binary:
        assert "needs binary rewards" in text
    else:
        assert "graded" in text


def test_one_that_needs_binary_rewards_refuses_others_before_a_second_round(allocator):
    if not allocator.needs.binary:
        pytest.skip(f"{allocator.name} takes graded rewards as it is")
    sample = GradedSampler()
    with pytest.raises(ValueError, match=rf"rewards must be 0 or 1 for {allocator.name}, .* got 0\.\d+ .*; .* graded"):
        collect(allocator, make_prompts(6), sample, source=source())
    assert sample.calls == 1


def test_one_that_takes_graded_rewards_trains_on_them(allocator):
    allocator = for_graded(allocator)
    if allocator.needs.binary:
        pytest.skip(f"{allocator.name} needs binary rewards, whatever its predictor")
    sample = GradedSampler()
    for _ in range(3):
        batch = collect(allocator, make_prompts(6), sample, source=source())
        groups = allocator.groups(batch)
        rewards = [reward for group in groups for reward in group.rewards]
        advantages = rloo(rewards, [q for q, group in enumerate(groups) for _ in group.rollouts])
        assert len(rewards) > 6 and np.abs(advantages).max() > 0
        allocator.observe(batch)


class Population:
    """Prompts on a line; the reward's variance, (0.02 to 0.48)^2 / 3 around a mean of 1/2, is smooth along it."""

    def __init__(self, size=300, seed=0):
        self.rng = np.random.default_rng(seed)
        self.prompts = make_prompts(size)
        place = self.rng.random(size)
        self.reach = 0.02 + 0.46 * (0.5 + 0.5 * np.sin(9 * place)) ** 2
        self.variance = dict(zip([prompt.id for prompt in self.prompts], self.reach**2 / 3, strict=True))
        self.embedder = PrecomputedEmbeddings.from_array(self.prompts, np.c_[place, 0.02 * self.rng.random(size)])

    def sample(self, prompts, counts):
        reach = [np.sqrt(3 * self.variance[prompt.id]) for prompt in prompts]
        rewards = [self.rng.uniform(0.5 - r, 0.5 + r, n) for r, n in zip(reach, counts, strict=True)]
        return [[Rollout(reward=float(reward)) for reward in group] for group in rewards]

    def noise(self, prompts, counts):
        """Proposition E.2, from the true variances, summed over the batch."""
        return sum(self.variance[prompt.id] / (n - 1) for prompt, n in zip(prompts, counts, strict=True))


def noise_over_uniform(population, predictor, batches=10, size=32, low=3, high=32):
    """Expected gradient variance of VIP's counts over that of 8 each, in the second half; and of the best counts."""
    allocator = VIP(rollouts_per_prompt=8, low=low, high=high, predictor=predictor)
    allocator.prepare(population.prompts)
    found = []
    for _ in range(batches):
        chosen = [population.prompts[q] for q in population.rng.choice(len(population.prompts), size, replace=False)]
        batch = collect(allocator, chosen, population.sample)
        allocator.observe(batch)
        truth = np.array([population.variance[prompt.id] for prompt in chosen])
        best = minimise_noise(truth, 8 * size, "rloo", low, high)
        noises = [population.noise(chosen, counts) for counts in (batch.asked, best, np.full(size, 8))]
        found.append(np.array(noises[:2]) / noises[2])
    return np.mean(found[batches // 2 :], axis=0)


@pytest.mark.parametrize("seed", range(2))
def test_vip_with_the_graded_gp_comes_near_the_best_counts_and_shuffled_loses(seed):
    population, other = Population(seed=seed), Population(seed=seed)
    ratio, best = noise_over_uniform(population, GradedGaussianProcess(population.embedder))
    assert best < ratio < 1 - 0.6 * (1 - best)
    assert noise_over_uniform(other, Shuffled(GradedGaussianProcess(other.embedder)))[0] > 1
