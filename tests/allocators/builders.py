"""Sources of fresh prompts, graded batches, and the expected gradient of a rule of two rounds."""

import itertools

import numpy as np
from scipy.stats import binom

from apportion.advantages import rloo
from tests.builders import make_prompts
from tests.predictors.builders import graded_batch


def source_of(prompts):
    """A source of prompts in order that records the size of each draw."""
    rest, draws = iter(prompts), []

    def source(count):
        draws.append(count)
        return list(itertools.islice(rest, count))

    return source, draws


def graded(*groups):
    """Return a batch of one round with these rewards and no verdicts."""
    return graded_batch(make_prompts(len(groups)), groups)


def expected_gradient(p, first, second):
    """Return the expectation of RLOO's gradient over the true p (1 - p), and the chance of a group.

    All outcomes of a Bernoulli policy count: the score of a rollout is y - p. ``second`` gives the rollouts of the
    second round by the number of right ones among the ``first``; None is no group.
    """
    gradient = probability = 0.0
    for right in range(first + 1):
        if (extra := second(right)) is None:
            continue
        probability += binom.pmf(right, first, p)
        for more in range(extra + 1):
            outcomes = np.repeat([1.0, 0.0], [right + more, first + extra - right - more])
            one = (rloo(outcomes, [0] * len(outcomes)) * (outcomes - p)).mean()
            gradient += binom.pmf(right, first, p) * binom.pmf(more, extra, p) * one
    return gradient / probability / (p * (1 - p)), probability
