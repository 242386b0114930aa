"""VIP: predict each prompt's success, then split the budget so that the gradient variance of the batch is smallest.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", arXiv 2602.01601 (2026). Symbols of the paper used here: p success
probability, n rollouts of a prompt, L and U its bounds (``low``, ``high``), C the budget, a_q = 4 sigma_Z^2 p_q (1 -
p_q) with sigma_Z equal for all prompts (its Appendix B.3), f(n) the variance of a prompt's projected gradient over a_q.

Note: the paper solves a continuous relaxation by bisection (Theorems 5.1 and 5.2) and rounds it greedily (Algorithm 2).
f is convex and decreasing from n = 3 on, so ``spend`` finds the integer optimum of its problem (5) directly; the tests
keep the paper's route as a reference.
Note: under a token budget the constraint of problem (5) is sum c_q n_q <= C, with c_q the predicted length of a
completion of prompt q: a knapsack, which ``spend_costs`` solves. This is ours; the paper counts rollouts.
Note: the default predictor is not the paper's. In benchmarks/moments and benchmarks/real_run the p of its Gaussian
process raises the variance above that of uniform counts. ``VIP(predictor=GaussianProcess())`` is VIP as printed.
Note: its Assumption 4.1(ii), reward uncorrelated with gradient norm, does not hold on every task;
benchmarks/gradient_variance measures what that costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, get_args

import numpy as np

from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.allocators.spending.solver import spend_widening
from apportion.checks import check_choice
from apportion.predictors import EmpiricalBayes, Predictor
from apportion.types import Belief, Counts, Floats, Needs

GroupEstimator = Literal["rloo", "dr_grpo"]
SMALLEST_LOW = 3
LEAST_SUCCESS = 1e-6
"""The least p in the bonus for hard prompts: that of the released code."""
LEAST_LOW: dict[str, int] = dict.fromkeys(get_args(GroupEstimator), SMALLEST_LOW)
"""The least L for which each estimator has a formula: the paper's, for both."""


def gradient_variance(success: Floats, counts: Counts, estimator: GroupEstimator = "rloo") -> Floats:
    """Return the variance of each prompt's projected gradient [P], in units of sigma_Z^2, from ``counts`` [P] rollouts.

    Proposition 4.2 (Dr. GRPO): 4 p (1 - p) (n - 1) / n^2. Proposition 4.3 (RLOO): 4 p (1 - p) / (n - 1), infinite at
    n = 1. A prompt with p = 0 or p = 1 has variance 0.

    >>> gradient_variance(np.array([0.5, 0.5]), np.array([3, 5]), "rloo").tolist()
    [0.5, 0.25]
    """
    return gradient_noise(success * (1 - success), counts, estimator)


def gradient_noise(variance: Floats, counts: Counts, estimator: GroupEstimator = "rloo") -> Floats:
    """Return ``gradient_variance`` with each prompt's ``variance`` [P] of a reward instead of p (1 - p)."""
    n, a = np.asarray(counts, np.float64), 4 * variance
    if estimator == "dr_grpo":
        f = (n - 1) / n**2
    else:
        f = np.divide(1.0, n - 1, out=np.full(n.shape, np.inf), where=n > 1)
    return np.multiply(a, f, out=np.zeros(np.broadcast_shapes(a.shape, f.shape)), where=a > 0)


def variance_drops(estimator: str, n: Counts) -> Floats:
    """Return f(n - 1) - f(n), elementwise: by how much rollout number ``n`` lowers the variance if a_q = 1.

    It is in closed form, so that no digits cancel. Decreasing for n > 3, hence the bound L >= 3 (section 5.2).
    """
    m = np.asarray(n, np.float64) - 1
    return (m * m - m - 1) / (m * m * (m + 1) ** 2) if estimator == "dr_grpo" else 1 / (m * (m - 1))


def minimise_variance(success: Floats, budget: int, estimator: GroupEstimator, low: int, high: int) -> Counts:
    """Return integer counts [P] that minimise the summed gradient variance: problem (5) of the paper, exactly.

    It takes a partial sort of at most P (high - low) numbers. Prompts with p = 0 or p = 1 have no variance to reduce:
    they keep ``low`` unless every other prompt is at ``high``; then they share the rest evenly.

    >>> minimise_variance(np.array([0.1, 0.5, 0.9]), 24, "rloo", low=3, high=12).tolist()
    [7, 10, 7]
    """
    return minimise_noise(success * (1 - success), budget, estimator, low, high)


def minimise_noise(variance: Floats, budget: int, estimator: GroupEstimator, low: int, high: int) -> Counts:
    """Return the counts of ``minimise_variance``, with each prompt's ``variance`` [P] instead of p (1 - p).

    It is the variance of a graded reward (Propositions E.1 and E.2) or a measured second moment of the gradient.
    """
    bounds = np.full(len(variance), low, np.int64)
    return spend_widening(lambda width: noise_drops(variance, estimator, low, width), budget, bounds, high)


def noise_drops(variance: Floats, estimator: str, low: int, width: int) -> Floats:
    """Return by how much each of ``width`` rollouts beyond ``low`` lowers the gradient variance: a_q (f(n-1) - f(n)).

    The result is [P, width]. ``variance`` [P] replaces p (1 - p) as in ``minimise_noise``.
    """
    return 4 * variance[:, None] * variance_drops(estimator, np.arange(low + 1, low + 1 + width))


class VarianceAllocator(BudgetedAllocator):
    """Splits a budget at once so that the summed variance is smallest, by the formula of the ``estimator`` that trains.

    ``least_low`` has the estimators with a formula, and the number of rollouts from which on it is finite and convex.
    """

    estimator: str | None = None
    low: int = SMALLEST_LOW

    one_round: ClassVar[bool] = True
    priced: ClassVar[bool] = True
    least_low: ClassVar[Mapping[str, int]] = LEAST_LOW

    def __post_init__(self) -> None:
        super().__post_init__()
        check_estimator(self._minimised, self.least_low)
        check_low(self.low, self._minimised, self.least_low)

    @property
    def needs(self) -> Needs:
        return super().needs | Needs(estimator=self._minimised)

    def with_estimator(self, estimator: str) -> Self:
        known = estimator if estimator in self.least_low else "rloo"
        return self if self.estimator is not None else self._copied(estimator=known)

    @property
    def _minimised(self) -> str:
        return "rloo" if self.estimator is None else self.estimator


@dataclass(frozen=True, kw_only=True)
class VIP(VarianceAllocator):
    """Splits a fixed budget by predicted gradient variance; rewards as its predictor takes them, binary or graded.

    Args:
        estimator: the advantage estimator of the training run, "rloo" or "dr_grpo"; each has its own variance. The
            default is the trainer's, and "rloo" without a trainer, or if there is no formula for the trainer's.
        rollouts_per_prompt: budget per prompt, on average; by default the engine's number, or 8. The paper's settings
            are 8 and 16.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens per prompt, on average; a completion costs its predicted length.
        lengths: predicts the length of a completion; needed with ``tokens_per_prompt``, and only then.
        bonus: gamma of the authors' released code, which the paper does not print: each rollout of a prompt lowers the
            objective by gamma times -log p beside a / (n - 1), with a = p (1 - p). It sends rollouts to hard prompts.
        low: the fewest rollouts of one prompt, at least 3.
        high: the most rollouts of one prompt, the paper's U. It does not print one: 64 is our choice.
        predictor: predicts the variance of a reward; by default from each prompt's own rewards and those of all,
            binary or graded. ``GaussianProcess()``, "gp" in TOML, is the paper's, on MiniLM embeddings, for binary
            rewards; "graded_gp" is its Appendix E for graded ones.

    >>> from apportion import Prompt
    >>> from apportion.predictors import UniformPrior
    >>> allocator = VIP(rollouts_per_prompt=4, predictor=UniformPrior())
    >>> allocator.plan(allocator.start([Prompt("a"), Prompt("b")])).counts.tolist()
    [4, 4]
    """

    estimator: GroupEstimator | None = None
    bonus: float = 0.0
    low: int = SMALLEST_LOW
    predictor: Predictor = field(default_factory=EmpiricalBayes)

    name: ClassVar[str] = "vip"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.bonus < np.inf:
            raise ValueError(f"bonus must be 0 or more, got {self.bonus}; 0 is the paper's objective")

    def gains(self, belief: Belief, successes: Counts, trials: Counts, width: int) -> Floats:
        gains = noise_drops(belief.variance, self._minimised, self.low, width)
        if self.bonus:  # in units of 4 a, as the gains are
            gains -= 4 * self.bonus * np.log(np.maximum(belief.mean, LEAST_SUCCESS))[:, None]
        return gains


def check_estimator(estimator: str, known: Mapping[str, int] = LEAST_LOW) -> None:
    """Raise ValueError unless ``known`` has a variance formula for ``estimator``."""
    check_choice("estimator", estimator, known, "name the one that trains, because each has its own variance")


def check_low(low: int, estimator: str, known: Mapping[str, int] = LEAST_LOW) -> None:
    """Raise ValueError unless the variance is finite and convex in n from ``low`` on."""
    if low < known[estimator]:
        raise ValueError(
            f"low must be at least {known[estimator]} for {estimator}, whose variance is not finite and convex below "
            f"(arXiv 2602.01601, section 5.2), got {low}; raise it, or use neyman with reinforce and a baseline from "
            "history for low = 1"
        )
