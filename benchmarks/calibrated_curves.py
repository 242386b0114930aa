"""Samples and agreement of a stopping rule at every threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from apportion.stopping import Curtailment, count_votes, encode_answers, leader, top_two
from apportion.stopping.adaptive_consistency import beta_confidence
from apportion.stopping.overtaking import log_prior
from apportion.stopping.posterior_predictive import overtaking_risk
from apportion.types import Counts, Floats
from benchmarks.recorded import Streams

Score = Callable[[Counts, Counts, int], Floats]
"""A score [...] from votes [..., K], samples [...] and the maximum; a rule stops if it is at most a threshold."""

BLOCK = 200
POINTS = 300
"""Number of thresholds of a curve."""


@dataclass(frozen=True, eq=False)
class Prefixes:
    """What is known after each sample of each stream, [S, T] each, with at most ``most`` samples a stream."""

    streams: Streams
    most: int

    @cached_property
    def votes(self):
        """The votes [B, T, K] of blocks of streams."""
        return list(self._blocks())

    def _blocks(self):
        encoded = [encode_answers(stream[: self.most]) for stream in self.streams.answers]
        for start in range(0, len(encoded), BLOCK):
            block = encoded[start : start + BLOCK]
            yield count_votes(np.array([codes for _, codes in block]), max(len(found) for found, _ in block))

    @cached_property
    def samples(self):
        """T, as an array from 1 to T."""
        return np.arange(1, self.votes[0].shape[1] + 1)

    @cached_property
    def wrong(self):
        """Whether the leader is not the winner of the full vote."""
        return np.concatenate([leader(votes) != leader(votes[:, -1:]) for votes in self.votes])

    @cached_property
    def right(self):
        """Whether the leader is right, NaN if unknown."""
        labels = [encode_answers(stream[: self.most])[0] for stream in self.streams.answers]
        leaders = np.concatenate([leader(votes) for votes in self.votes])
        chosen = [[found[place] for found, place in zip(labels, column, strict=True)] for column in leaders.T]
        return np.array([self.streams.right(each) for each in chosen]).T

    @cached_property
    def ended(self):
        """Whether no other answer can win, or all samples are taken."""
        ended = np.concatenate([Curtailment().stops(votes, len(self.samples)) for votes in self.votes])
        ended[:, -1] = True
        return ended

    def score(self, score):
        """Return the score after each sample."""
        most = len(self.samples)
        found = [score(votes, np.broadcast_to(self.samples, votes.shape[:-1]), most) for votes in self.votes]
        return np.concatenate(found)

    def ends(self, scores, threshold):
        """Return the index [S] of the sample at which a rule with this threshold and curtailment stops."""
        return ((scores <= threshold) | self.ended).argmax(axis=1)

    def at(self, ends, values):
        """Return the means [Q] over the orders of each question of ``values`` [S, T] where the streams end."""
        return self.streams.by_question(values[np.arange(len(ends)), ends])


def priced(few):
    """Return the score of the calibrated rule, with a prior with probability ``few`` for few answers.

    It is the risk of another winner, over the share of the samples that are left.
    """
    prior = log_prior(few)
    return lambda votes, samples, most: (
        overtaking_risk(votes, samples, most, prior=prior) / np.maximum(1 - samples / most, 1e-12)
    )


def beta_doubt(votes, samples, most):
    """Return the score of ``adaptive_consistency_beta``."""
    return 1 - beta_confidence(*top_two(votes))


@dataclass(frozen=True)
class Curve:
    """Samples and agreement of each question, [G, Q], at G thresholds."""

    samples: Floats
    agreement: Floats

    def needed(self, target, weights=None):
        """Return the samples a question at mean agreement ``target``, by a mixture of the two best thresholds.

        ``weights`` [Q] are those of the questions, by default equal.
        """
        weights = np.full(self.samples.shape[1], 1 / self.samples.shape[1]) if weights is None else weights
        x, y = hull(self.samples @ weights, self.agreement @ weights)
        return float(np.interp(target, y, x))


def curve(prefixes, score):
    """Return samples and agreement at thresholds that are quantiles of the scores."""
    scores = prefixes.score(score)
    positive = scores[(scores > 1e-7) & np.isfinite(scores)]
    thresholds = np.unique(np.append(0.0, np.quantile(positive, np.linspace(0, 1, POINTS))))
    ends = [prefixes.ends(scores, threshold) for threshold in thresholds]
    taken = np.broadcast_to(prefixes.samples, prefixes.wrong.shape)
    return Curve(
        np.array([prefixes.at(each, taken) for each in ends]),
        1 - np.array([prefixes.at(each, prefixes.wrong) for each in ends]),
    )


def hull(samples, agreement):
    """Return the corners of the upper concave hull of the points, by rising samples and agreement.

    >>> [each.tolist() for each in hull(np.array([1.0, 2, 3, 4]), np.array([0.5, 0.6, 0.9, 0.9]))]
    [[1.0, 3.0], [0.5, 0.9]]
    """
    corners: list[tuple[float, float]] = []
    for place in np.lexsort((-agreement, samples)):
        x, y = float(samples[place]), float(agreement[place])
        if corners and y <= corners[-1][1]:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], (x, y)):
            corners.pop()
        corners.append((x, y))
    found = np.array(corners)
    return found[:, 0], found[:, 1]


def _slope(a, b):
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else np.inf
