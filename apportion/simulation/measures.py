"""What a simulated step was worth, by the truth: gradient variance, mixed groups, hits and costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apportion.allocators import Allocator
from apportion.allocators.spending.solver import even_split
from apportion.allocators.vip import SMALLEST_LOW, gradient_variance, minimise_noise
from apportion.simulation.course import SimulatedStep
from apportion.simulation.population import Population, place_of
from apportion.simulation.sampler import Outcomes
from apportion.types import Counts, Floats, Mask

OPTIMUM_LOW, OPTIMUM_HIGH = SMALLEST_LOW, 64
"""Bounds of the exact optimum, which are VIP's by default."""


class StepMeasures(NamedTuple):
    """Measures of one step.

    The variances are nan for rules whose counts depend on outcomes, and for rules without labels.

    Args:
        prompts: prompts in the batch.
        rollouts: rollouts that were asked for.
        tokens: tokens of the rollouts that arrived.
        variance: summed RLOO variance of the batch, 4 v / (n - 1), by Proposition 4.3 of arXiv 2602.01601. v is the
            true variance of a reward and n the rollouts asked.
        uniform: the same if the rollouts had been split evenly over the same prompts.
        optimum: the same for the counts that minimise it, from 3 to 64 a prompt, found with the true v.
        signal: sum of (1 - false positives - false negatives) p (1 - p), the derivative of the summed reward by a
            step of all log-odds. p is the true success probability.
        mixed: mixed groups, whose rewards differ. All others of two rollouts or more are dead.
        spurious: mixed groups whose rollouts are all right or all wrong in truth.
        hits: groups with a rollout that is right in truth.
        choose, predict, plan, observe: seconds.
    """

    prompts: float
    rollouts: float
    tokens: float
    variance: float
    uniform: float
    optimum: float
    signal: float
    mixed: float
    spurious: float
    hits: float
    choose: float
    predict: float
    plan: float
    observe: float


def measure(population: Population, allocator: Allocator, found: SimulatedStep) -> StepMeasures:
    """Return the measures of a step of ``allocator``."""
    places = np.array([place_of(prompt) for prompt in found.batch.prompts], np.int64)
    success = found.success[places]
    reward = population.reward_probability(success)
    told = 1 - population.false_positive - population.false_negative  # by the verifier, of the truth
    planned = allocator.one_round and allocator.needs.labels
    gradient = _gradient(reward, found.batch.asked) if planned else (np.nan,) * 3
    mixed, spurious, hits = _groups(found.outcomes)
    arrived = ~found.outcomes.failed
    return StepMeasures(
        len(places),
        float(found.batch.asked.sum()),
        float(found.outcomes.tokens[arrived].sum()),
        *gradient,
        told * float((success * (1 - success)).sum()),
        float(mixed.sum()),
        float((mixed & spurious).sum()),
        float(hits.sum()),
        *found.seconds,
    )


def _gradient(reward: Floats, counts: Counts) -> tuple[float, float, float]:
    """Return the variance at ``counts`` [P], at an even split, and at the optimum (nan beyond its bounds)."""
    total, size = int(counts.sum()), len(counts)
    even = even_split(total, np.zeros(size, np.int64), total)
    best = np.nan
    if OPTIMUM_LOW * size <= total <= OPTIMUM_HIGH * size:
        least = minimise_noise(reward * (1 - reward), total, "rloo", OPTIMUM_LOW, OPTIMUM_HIGH)
        best = float(gradient_variance(reward, least).sum())
    return float(gradient_variance(reward, counts).sum()), float(gradient_variance(reward, even).sum()), best


def _groups(outcomes: Outcomes) -> tuple[Mask, Mask, Mask]:
    """Return of each group whether it is mixed, whether it is all right or all wrong in truth, and whether it hits."""
    arrived = ~outcomes.failed
    _, group = np.unique(outcomes.prompt[arrived], return_inverse=True)
    size = np.bincount(group)
    positive = np.bincount(group, outcomes.reward[arrived])
    right = np.bincount(group, outcomes.right[arrived])
    return (positive > 0) & (positive < size), (right == 0) | (right == size), right > 0
