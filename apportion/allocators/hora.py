"""HORA: a few pre-rollouts for every prompt, then more for prompts where a first correct answer is likeliest.

Reference: T. Wang, D. Ding, E. Dobriban, S. Li, Y. Sun, "Where to Spend Rollouts: Hit-Utility Optimal Rollout
Allocation for Group-Based RLVR", arXiv 2605.07114. Symbols of the paper used here: G0 pre-rollouts of a prompt
(``pre_rollouts``), c_i its correct ones, Beta(1, 1) the prior on its success probability p, hit utility the posterior
probability that at least one of the extra rollouts is correct.

All rollouts of a prompt form its group, and G0 is part of the budget. The hit utility is concave in the number of
extra rollouts, so ``spend`` maximises its sum exactly.
Note: G0 = 8 is read off the paper's Figure 3. The text gives neither the total budget nor a cap: 16 per prompt and 64
are our choice. With another budget G0 is half of it, because pre-rollouts that take all of it leave nothing to decide.
Note: ties go to the prompt with fewer rollouts, then by prompt order, so that every rank makes the same plan.
Note: under a token budget, which is ours, hits are weighed against tokens by ``spend_costs``. The pre-rollouts are
charged at their predicted lengths too, not at the observed ones. Lengths are correlated with outcomes, so that counts
would depend on outcomes twice. Besides, short pre-rollouts would leave tokens for a third stage, and a fourth.
Note: the paper's prior is Beta(1, 1). If a predictor gives the prior, its mean is clipped to [0.05, 0.95], the same
bounds as VIP's success rates have. A prior mean of 0, which ``MovingAverage`` predicts for a prompt that always failed,
would make the hit utility 0 whatever is sampled. Such a prompt would never get more than its pre-rollouts, and a prompt
that rarely succeeds would hardly be learnt.
Note: the counts depend on outcomes of the same batch, which biases group-relative gradients; see docs/allocators.md.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Size
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.allocators.spending.solver import check_table, spend_widening
from apportion.checks import check_least
from apportion.types import Batch, Belief, Counts, Floats, Needs, Plan

CLIP = 0.05
"""Prior means are clipped to [CLIP, 1 - CLIP]."""


def clipped_prior(belief: Belief) -> Belief:
    """Return ``belief`` with means in [CLIP, 1 - CLIP] and the same weight, so that every hit utility is above 0.

    >>> prior = clipped_prior(Belief([0.0, 1.0], [2.0, 1.0]))
    >>> prior.alpha.tolist(), prior.beta.tolist()
    ([0.1, 1.0], [1.9, 1.0])
    """
    weight = belief.alpha + belief.beta
    least, most = CLIP * weight, (1 - CLIP) * weight
    return Belief(np.clip(belief.alpha, least, most), np.clip(belief.beta, least, most))


def hit_utility(posterior: Belief, extra: Counts) -> Floats:
    """Return the probability [P] of a success in ``extra`` [P] more rollouts: 1 - E[(1 - p)^m] under Beta(a, b).

    >>> hit_utility(Belief.uniform(3), np.array([0, 1, 2])).round(4).tolist()
    [0.0, 0.5, 0.6667]
    """
    gains = hit_gains(posterior, int(np.max(extra, initial=0)))
    return np.where(np.arange(gains.shape[1]) < np.asarray(extra)[:, None], gains, 0.0).sum(axis=1)


def hit_gains(posterior: Belief, width: int) -> Floats:
    """Return the hit utility of each further rollout, [P, width]: E[p (1 - p)^l] under Beta(a, b), l = 0, 1, ...

    It is a / (a + b) times the running product of (b + j) / (a + b + 1 + j), j < l, so that it never increases along l.
    """
    check_table(len(posterior), width)
    a, b, j = posterior.alpha[:, None], posterior.beta[:, None], np.arange(max(width - 1, 0))
    factors = np.concatenate([a / (a + b), (b + j) / (a + b + 1 + j)], axis=1)[:, :width]
    return np.cumprod(factors, axis=1, out=factors)


def maximise_hits(posterior: Belief, budget: int, low: Counts, high: int, pending: Counts | None = None) -> Counts:
    """Return counts [P], at least ``low`` [P], that maximise the summed hit utility of the rollouts beyond ``low``.

    ``pending`` [P] of those in ``low`` are not in the posterior yet (none by default), so that further ones gain less.

    >>> prior = Belief.uniform(3)
    >>> maximise_hits(prior.condition([0, 2, 4], [4, 4, 4]), budget=24, low=np.array([4, 4, 4]), high=12).tolist()
    [10, 8, 6]
    """
    return spend_widening(lambda width: gains_beyond(posterior, low, high, width, pending), budget, low, high)


def gains_beyond(posterior: Belief, low: Counts, high: int, width: int, pending: Counts | None = None) -> Floats:
    """Return ``hit_gains`` of ``width`` rollouts beyond ``low`` and ``pending`` [P]; -inf beyond ``high``."""
    if pending is None:
        gains = hit_gains(posterior, width)
    else:
        later = pending[:, None] + np.arange(width)
        gains = np.take_along_axis(hit_gains(posterior, width + int(pending.max(initial=0))), later, axis=1)
    gains[low[:, None] + np.arange(1, 1 + width) > high] = -np.inf
    return gains


@dataclass(frozen=True, kw_only=True)
class HORA(BudgetedAllocator):
    """Pre-rollouts, a Beta posterior, then the rest of the budget by hit utility; needs binary rewards.

    Args:
        pre_rollouts: G0, drawn first, for every prompt; half of what the budget pays for by default, and at least 1.
        rollouts_per_prompt: budget per prompt, on average, including pre-rollouts; by default the number of the
            engine that trains, and 16 without one.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens per prompt, on average; a completion costs its predicted length.
        lengths: predicts the length of a completion; needed with ``tokens_per_prompt``, and only then.
        high: the most rollouts of one prompt, including pre-rollouts.
        predictor: the prior, its mean clipped to [0.05, 0.95]; the paper's Beta(1, 1) by default.

    >>> from apportion import Prompt, Rollout
    >>> allocator = HORA(pre_rollouts=2, rollouts_per_prompt=6)
    >>> batch = allocator.start([Prompt("a"), Prompt("b")])
    >>> batch = batch.add(allocator.plan(batch), [[Rollout(True)] * 2, [Rollout(False)] * 2])
    >>> allocator.plan(batch).counts.tolist()
    [3, 5]
    """

    pre_rollouts: int | None = None

    name: ClassVar[str] = "hora"
    usual_rollouts: ClassVar[float] = 16.0
    priced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "it decides by their outcomes", pre_rollouts=1)

    @property
    def needs(self) -> Needs:
        return super().needs | Needs(binary=True)

    @property
    def least(self) -> int:
        half_is_known = self.rollouts_per_prompt is not None or self.tokens_per_prompt is not None
        return self.pre_rollouts or (self._half(prompts=1) if half_is_known else 1)

    def size(self, prompts: int) -> Size:
        return replace(super().size(prompts), rounds=2)

    def plan(self, batch: Batch) -> Plan:
        pre = np.maximum((self.pre_rollouts or self._half(len(batch.prompts))) - batch.asked, 0)
        if pre.any():
            return Plan(pre)
        posterior = clipped_prior(batch.belief).condition(batch.successes, batch.trials)
        gains = gains_beyond(posterior, batch.asked, self.high, self._width(batch, batch.asked))
        return Plan(self._spend(batch, gains, batch.asked) - batch.asked)

    def gains(self, belief: Belief, successes: Counts, trials: Counts, width: int) -> Floats:
        return hit_gains(clipped_prior(belief).condition(successes, trials), width)

    def _half(self, prompts: int) -> int:
        """Return half of the rollouts that the budget pays for on average, in a batch of ``prompts``."""
        if self.budget is not None:
            average = self.budget / max(1, prompts)
        elif self.tokens_per_prompt is not None and self.lengths is not None:
            average = self.tokens_per_prompt / self.lengths.initial
        else:
            average = self.rollouts_per_prompt or self.usual_rollouts
        return int(average // 2) if 2 <= average < math.inf else 1
