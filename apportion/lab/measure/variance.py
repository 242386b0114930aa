"""Measured gradient variance on fixed prompts under several allocations, and their expected hits.

Rules are compared on the same rollouts. Each distinct completion is differentiated once: see ``gradients``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from transformers import Qwen2ForCausalLM

from apportion.allocators import HORA
from apportion.allocators.vip import GroupEstimator, gradient_variance, minimise_variance
from apportion.lab.measure.gradients import share_products
from apportion.lab.measure.hits import expected_hits, expected_hits_under
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import TrainingRow, training_rows
from apportion.lab.world.task import Problem
from apportion.types import Counts, Floats, Group

ROLLOUTS, LOW, HIGH = 8, 3, 24
"""Rollouts a prompt on average that a study compares, and their bounds under VIP."""

CountRule = Callable[[np.random.Generator], ArrayLike]
"""Draws the counts [P] of one batch, for rules that are random before any outcome is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Total (trace) variance of the gradient under one rule, in squared units of the loss per unit of weight.

    ``counts`` [draws, P] are those of each draw, and ``per_prompt`` [P] is the variance of each prompt's share of the
    gradient. ``products`` [draws, draws] are the inner products of the shares of two draws, summed over prompts. They
    are enough to resample the draws.
    """

    counts: Counts
    per_prompt: Floats
    products: Floats

    @property
    def trace_variance(self) -> float:
        """The unbiased sum over prompts, whose rollouts are independent."""
        return float(self.per_prompt.sum())

    @property
    def standard_error(self) -> float:
        """The jackknife standard error over the draws."""
        n, norms = len(self.products), np.diag(self.products)
        total = self.products.sum() - 2 * self.products.sum(1) + norms
        left_out = (norms.sum() - norms - total / (n - 1)) / (n - 2)
        return float(np.sqrt((n - 1) * left_out.var()))

    def resampled(self, times: Counts) -> Floats:
        """Return the trace variance [B] in bootstrap samples that hold each draw ``times`` [B, draws] times."""
        n = len(self.products)
        return (times @ np.diag(self.products) - ((times @ self.products) * times).sum(1) / n) / (n - 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rule beside the uniform one at the same budget. Intervals are 95%.

    ``trace_variance``, its ``ratio`` to uniform's and the ``formula_ratio`` (VIP's Propositions 4.2 and 4.3) are None
    for a rule that looks at outcomes, because it biases the gradient. ``expected_hits`` is the expected number of
    prompts with a correct rollout; it is exact if its interval has no width. ``hits_gain`` is its difference from
    uniform's. Ratios are nan if uniform has no variance.
    """

    rule: str
    trace_variance: float | None
    standard_error: float | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    formula_ratio: float | None
    expected_hits: float
    hits_gain: float
    hits_gain_interval: tuple[float, float]


def measure_variances(
    policy: Qwen2ForCausalLM,
    problems: Sequence[Problem],
    rules: Sequence[ArrayLike | CountRule],
    *,
    draws: int = 40,
    seed: int = 0,
    estimator: GroupEstimator = "rloo",
) -> list[Measurement]:
    """Return a measurement for each rule on the same rollouts. A rule that gives a prompt n rollouts uses the first n.

    Gradients are those of ``surrogate_loss`` of ``training_rows``, over every parameter, at ratio 1 and temperature 1.
    If counts are random, prompts may covary through them. They do not under RLOO, whose expectation does not depend on
    n. Under Dr. GRPO, whose expectation shrinks by (n - 1) / n, that part is left out.
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
        groups = [Group(prompts[q], tuple(rollouts[q][first[q] : first[q] + n[q]])) for q in asked]
        rows = training_rows(groups, estimator)
        for q, row in zip(np.repeat(asked, n[asked]), rows, strict=True):
            if row.advantage:
                entries[q].append((rule, draw, row))
    shares = np.stack([share_products(policy, found, len(rules), draws) for found in entries])
    traces, sums = np.trace(shares, axis1=2, axis2=3), shares.sum((2, 3))
    variances = (traces - sums / draws) / (draws - 1)
    return [Measurement(planned[rule], variances[:, rule], shares[:, rule].sum(0)) for rule in range(len(rules))]


def compare(
    policy: Qwen2ForCausalLM,
    problems: Sequence[Problem],
    *,
    rollouts_per_prompt: int = ROLLOUTS,
    low: int = LOW,
    high: int = HIGH,
    draws: int = 40,
    seed: int = 0,
    estimator: GroupEstimator = "rloo",
) -> list[Comparison]:
    """Compare uniform, VIP with exact p, VIP with p shuffled among the prompts (a control), and HORA at one budget.

    HORA spends half of the budget on its pre-rollouts. It takes about 15 seconds for 64 problems and 40 draws on one
    core. If p is near 1, a rare failure has a large gradient and few draws hold one: ``moments`` is more precise there.
    """
    success, budget = exact_success(policy, problems), rollouts_per_prompt * len(problems)
    uniform = np.full(len(problems), rollouts_per_prompt)

    def vip(p: Floats) -> Counts:
        return minimise_variance(p, budget, estimator, low, high)

    rules: dict[str, ArrayLike | CountRule] = {
        "uniform": uniform,
        "vip, exact p": vip(success),
        "vip, shuffled p": lambda rng: vip(rng.permutation(success)),
    }
    measured = measure_variances(policy, problems, list(rules.values()), draws=draws, seed=seed, estimator=estimator)
    base, base_hits = measured[0], expected_hits(success, uniform).expected
    rows = []
    for name, own in zip(rules, measured, strict=True):
        hits = expected_hits(success, own.counts)
        ratio = _ratio(own.trace_variance, base.trace_variance)
        formula = _ratio(*(gradient_variance(success, each.counts, estimator).sum(1).mean() for each in (own, base)))
        variance = (own.trace_variance, own.standard_error, ratio, ratio_interval(own, base, seed=seed), formula)
        rows.append(Comparison(name, *variance, hits.expected, hits.gain(base_hits), hits.gain_interval(base_hits)))
    hora = HORA(pre_rollouts=max(1, rollouts_per_prompt // 2), rollouts_per_prompt=rollouts_per_prompt, high=high)
    hits = expected_hits_under(success, hora, seed=seed)
    gain = (hits.expected, hits.gain(base_hits), hits.gain_interval(base_hits))
    return [*rows, Comparison("hora", None, None, None, None, None, *gain)]


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


def _ratio(value: float, base: float) -> float:
    return value / base if base > 0 else float("nan")


def _draw_counts(rule: ArrayLike | CountRule, prompts: int, draws: int, rng: np.random.Generator) -> Counts:
    counts = np.array([rule(rng) if callable(rule) else rule for _ in range(draws)], np.int64)
    if counts.shape != (draws, prompts) or (counts < 0).any():
        raise ValueError(
            f"counts must be [{prompts}], one of at least 0 for each problem, got shape {counts.shape[1:]} and least "
            f"{counts.min(initial=0)}; check the rule"
        )
    return counts
