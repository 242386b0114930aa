"""Tables of the replay of a real run: squared errors, and ratios to uniform allocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from apportion.evaluation import bootstrap_interval
from apportion.types import Floats

RESAMPLES = 2000

Pairs = list[tuple[float, float]]
"""A quantity under a rule and under uniform allocation, one pair for each batch."""


@dataclass
class Replayed:
    """What a predictor said along one replay: means [E, Q], and for each epoch one row for each batch.

    ``variances`` has RLOO's variance under VIP's counts and under uniform ones, ``hits`` the expected hits of HORA's
    extra rollouts and of uniform ones.
    """

    means: Floats
    variances: list[Pairs] = field(default_factory=list)
    hits: list[Pairs] = field(default_factory=list)


def interval(values, form=".3f"):
    """Return the mean of ``values`` [Q] and its bootstrap interval over prompts."""
    low, high = bootstrap_interval(values, resamples=RESAMPLES)
    return f"{values.mean():{form}} [{low:{form}}, {high:{form}}]"


def ratio(pairs):
    """Return the ratio of summed ``pairs``, and its bootstrap interval over them: batches of all seeds."""
    values = np.array(pairs)
    drawn = values[np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return f"{values[:, 0].sum() / values[:, 1].sum():.3f} [{low:.3f}, {high:.3f}]"


def all_seeds(parts):
    """Return the batches of all seeds."""
    return list(chain.from_iterable(parts))


def squared(runs, shares, epoch):
    """Return the squared error of each prompt's predicted share, [Q], mean over seeds."""
    return np.mean([(run.means[epoch] - shares[:, epoch]) ** 2 for run in runs], axis=0)


def errors(found, shares, epochs):
    """Return a row of squared errors for each predictor."""
    return [[name, *(interval(squared(runs, shares, epoch)) for epoch in epochs)] for name, runs in found.items()]
