"""Exact expectations of one prompt's gradient estimate, over every outcome of its rollouts, by running the rule's code.

One prompt, one parameter: the policy is right with probability p, a rollout's score is h = r - p, and the truth is
dp / dtheta = p (1 - p). A rule that treats prompts one by one runs with one prompt, for every number of right rollouts
in every round. An end with s right rollouts among n has probability paths x p^s (1 - p)^(n - s).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb

import numpy as np

from apportion import Group, Prompt, Rollout
from apportion.advantages import advantages_of, needs
from apportion.types import Floats

SUCCESS = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98])
ANSWERS = 4
ROLLOUTS = tuple(Rollout(k == 0, answer=str(k), completion=k, tokens=1, score_norm=1.0) for k in range(ANSWERS))
"""One rollout for each answer. Answer 0 is right. ``Prompt.data`` is a prompt's index in ``SUCCESS``."""

Advantages = Callable[[Sequence[Group]], Floats]


def estimator(name):
    """Return the advantage estimator ``name``. If it takes a baseline, that is the true p."""
    if "baseline" in needs(name):
        return lambda groups: advantages_of(groups, name, baseline=[SUCCESS[group.prompt.data] for group in groups])
    return partial(advantages_of, estimator=name)


def kept(groups):
    """Return the group number [N] of every rollout, and whether it enters the loss [N]."""
    ids = np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups])
    return ids, np.concatenate([group.keep for group in groups])


@dataclass(frozen=True)
class Leaf:
    """An end of one prompt. ``paths`` sequences of outcomes have these numbers of right rollouts in each round."""

    group: Group
    paths: int
    right: int
    trials: int
    first: float
    """RLOO's estimate from the k rollouts of the first round alone: right x wrong / (k (k - 1)), or 0 if k is 1."""

    def probability(self, p):
        return self.paths * p**self.right * (1 - p) ** (self.trials - self.right)


def leaves(allocator):
    """Return every end of one prompt under ``allocator``, which treats prompts one by one and has learnt nothing."""
    return list(_descend(allocator, allocator.start([Prompt("p", data=0)]), 1, 0.0))


def _descend(allocator, batch, paths, first):
    plan = allocator.plan(batch)
    if not plan:
        [group] = allocator.groups(batch)
        yield Leaf(group, paths, int(batch.successes[0]), int(batch.trials[0]), first)
        return
    count = int(plan.counts[0])
    for right in range(count + 1):
        rollouts = [ROLLOUTS[0]] * right + [ROLLOUTS[1]] * (count - right)
        begun = right * (count - right) / (count * (count - 1)) if batch.round == 0 and count > 1 else first
        yield from _descend(allocator, batch.add(plan, [rollouts]), paths * comb(count, right), begun)


@dataclass(frozen=True)
class Exact:
    """The ``ratio`` [P] of expected estimate to truth, and ``noise``, the standard deviation [P] over the truth."""

    ratio: Floats
    noise: Floats


def exact(found, name, weights="prompt", scale=None):
    """Return estimate over truth for one prompt: its mean over p (1 - p), or its sum over E[n] p (1 - p).

    Mean and sum are over the rollouts in the loss. ``scale`` [leaves] multiplies the estimate of each end.
    """
    ratios, noises = [], []
    for place, p in enumerate(SUCCESS):
        groups = [replace(leaf.group, prompt=replace(leaf.group.prompt, data=place)) for leaf in found]
        ids, keep = kept(groups)
        sizes = np.bincount(ids, keep)
        score = np.concatenate([group.rewards for group in groups]) - p
        sums = np.bincount(ids, estimator(name)(groups) * score * keep)
        probability = np.array([leaf.probability(p) for leaf in found])
        values = sums / sizes if weights == "prompt" else sums
        values = values if scale is None else values * scale
        truth = p * (1 - p) * (1 if weights == "prompt" else probability @ sizes)
        mean = probability @ values
        ratios.append(mean / truth)
        noises.append(np.sqrt(probability @ (values - mean) ** 2) / truth)
    return Exact(np.array(ratios), np.array(noises))


def expected_rollouts(found):
    """Return the expected number of rollouts [P] of one prompt."""
    return np.array([sum(leaf.probability(p) * leaf.trials for leaf in found) for p in SUCCESS])


def first_round_factors(found):
    """Return factors [leaves] that make RLOO's mean unbiased: E[first round's estimate | right, trials] over RLOO's.

    The first round's estimate is unbiased. Its average over the paths to the same end is unbiased too, and less noisy.
    A factor is 0 if no path to that end has both outcomes in its first round.
    """
    paths: Counter[tuple[int, int]] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    for leaf in found:
        paths[leaf.right, leaf.trials] += leaf.paths
        sums[leaf.right, leaf.trials] += leaf.paths * leaf.first
    factors = []
    for leaf in found:
        s, n = leaf.right, leaf.trials
        own = s * (n - s) / (n * (n - 1))
        factors.append(sums[s, n] / paths[s, n] / own if own else 0.0)
    return np.array(factors)
