"""Measured gradient variance on fixed prompts under several allocations.

Rules are compared on the same rollouts. Each distinct completion is differentiated once: see ``gradients``. If p is
near 1, a rare failure has a large gradient and few draws hold one: ``moments`` is more precise there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from transformers import Qwen2ForCausalLM

from apportion.lab.measure.gradients import share_products
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import TrainingRow, training_rows
from apportion.lab.world.task import Problem
from apportion.types import Counts, Floats, Group

CountRule = Callable[[np.random.Generator], ArrayLike]
"""Draws the counts [P] of one batch, for rules that are random before any outcome is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Total (trace) variance of the gradient under one rule, in squared units of the loss per unit of weight.

    ``per_prompt`` [P] is the variance of each prompt's share of the gradient. ``products`` [draws, draws] are the inner
    products of the shares of two draws, summed over prompts. They are enough to resample the draws.
    """

    per_prompt: Floats
    products: Floats

    @property
    def trace_variance(self) -> float:
        """The unbiased sum over prompts, whose rollouts are independent."""
        return float(self.per_prompt.sum())

    def resampled(self, times: Counts) -> Floats:
        """Return the trace variance [B] in bootstrap samples that hold each draw ``times`` [B, draws] times."""
        n = len(self.products)
        return (times @ np.diag(self.products) - ((times @ self.products) * times).sum(1) / n) / (n - 1)


def measure_variances(
    policy: Qwen2ForCausalLM,
    problems: Sequence[Problem],
    rules: Sequence[ArrayLike | CountRule],
    *,
    draws: int = 40,
    seed: int = 0,
) -> list[Measurement]:
    """Return a measurement for each rule on the same rollouts. A rule that gives a prompt n rollouts uses the first n.

    Gradients are those of ``surrogate_loss`` of ``training_rows`` under RLOO, over every parameter, at ratio 1 and
    temperature 1. The expectation of RLOO does not depend on n, so random counts give prompts no covariance.
    """
    if draws < 3:
        raise ValueError(f"draws must be at least 3, for a variance and its error, got {draws}; 40 gives about 10%")
    rng = np.random.default_rng(seed)
    planned = np.stack([_draw_counts(rule, len(problems), draws, rng) for rule in rules])
    prompts, most = [problem.prompt() for problem in problems], planned.max(0)
    rollouts = LedgerSampler(policy, seed)(prompts, most.sum(0))
    starts = most.cumsum(0) - most
    entries: list[list[tuple[int, int, TrainingRow]]] = [[] for _ in problems]
    for rule, draw in np.ndindex(planned.shape[:2]):
        first, n = starts[draw], planned[rule, draw]
        asked = np.flatnonzero(n)
        rows = training_rows([Group(prompts[q], tuple(rollouts[q][first[q] : first[q] + n[q]])) for q in asked])
        for q, row in zip(np.repeat(asked, n[asked]), rows, strict=True):
            if row.advantage:
                entries[q].append((rule, draw, row))
    shares = np.stack([share_products(policy, found, len(rules), draws) for found in entries])
    traces, sums = np.trace(shares, axis1=2, axis2=3), shares.sum((2, 3))
    variances = (traces - sums / draws) / (draws - 1)
    return [Measurement(variances[:, rule], shares[:, rule].sum(0)) for rule in range(len(rules))]


def ratio_interval(
    measurement: Measurement, base: Measurement, *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the ratio of two trace variances, with paired resampling.

    Both must come from one call of ``measure_variances``. If ``base`` has no variance, both ends are nan.
    """
    draws = len(base.products)
    times = np.random.default_rng(seed).multinomial(draws, np.full(draws, 1 / draws), resamples)
    above, below = measurement.resampled(times), base.resampled(times)
    usable = below > 0
    if not usable.any():
        return float("nan"), float("nan")
    low, high = np.quantile(above[usable] / below[usable], [0.025, 0.975])
    return float(low), float(high)


def _draw_counts(rule: ArrayLike | CountRule, prompts: int, draws: int, rng: np.random.Generator) -> Counts:
    counts = np.array([rule(rng) if callable(rule) else rule for _ in range(draws)], np.int64)
    if counts.shape != (draws, prompts) or (counts < 0).any():
        raise ValueError(
            f"counts must be [{prompts}], one of at least 0 for each problem, got shape {counts.shape[1:]} and least "
            f"{counts.min(initial=0)}; check the rule"
        )
    return counts
