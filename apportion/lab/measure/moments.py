"""The gradient's variance in closed form, from exact success and two second moments of each prompt.

With rewards 0 and 1 the RLOO gradient of one prompt is a U-statistic with kernel (r - r')(h - h') / 2, h the gradient
of one rollout, so Hoeffding's formula gives its variance for every n. The expectation of h is 0, so the variance needs
only p, E|h|^2 of right and of wrong completions, and |E h|^2 of the right ones, which equals their E|h|^2 if only one
is right. The Dr. GRPO gradient is (n - 1) / n times that of RLOO.

VIP's Propositions 4.2 and 4.3 (arXiv 2602.01601) use 4 sigma_Z^2 p (1 - p) instead, with sigma_Z equal for all prompts
and uncorrelated with the reward. ``least_variance`` is VIP's allocation with these moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from transformers import Qwen2ForCausalLM

from apportion.allocators import spend
from apportion.allocators.spending.solver import most_extra
from apportion.lab.measure.gradients import completion_gradients
from apportion.lab.policy.exact import solution_probabilities
from apportion.lab.policy.network import completion_logprobs
from apportion.lab.policy.sampler import LedgerCompletion, LedgerSampler
from apportion.lab.world.task import EOS, Problem, encode
from apportion.types import Counts, Floats

MOST_ROLLOUTS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Success [P], and expected squared gradient norms of the right and of the wrong completions [P].

    ``wrong_error`` [P] is the standard error of ``wrong``, the only estimate among them. ``right_mean`` [P] is the
    squared norm of the mean gradient of the right completions, which is ``right`` for a problem with one solution.
    """

    success: Floats
    right: Floats
    wrong: Floats
    wrong_error: Floats
    right_mean: Floats

    def variance(self, counts: ArrayLike) -> Floats:
        """Return the total RLOO variance of each prompt's gradient from ``counts`` [P] or [S, P], at least 2."""
        p, n = self.success, np.asarray(counts, np.float64)
        right = p * (1 - p) * ((n - 2) * (1 - p) + 1) * self.right - (n - 2) * p**2 * self.right_mean
        return right / (n * (n - 1)) + self.slope(counts) * self.wrong

    def slope(self, counts: ArrayLike) -> Floats:
        """Return the derivative of ``variance`` by ``wrong``, for its standard error."""
        p, n = self.success, np.asarray(counts, np.float64)
        return p * (1 - p) * ((n - 2) * p + 1) / (n * (n - 1))


def score_moments(
    policy: Qwen2ForCausalLM, problems: Sequence[Problem], *, wrong_rollouts: int = 60, seed: int = 0
) -> Moments:
    """Return the moments of each problem, with E|h|^2 of wrong completions from about ``wrong_rollouts`` of them.

    If p is so near 1 that ``MOST_ROLLOUTS`` hold no wrong one, that moment is the least possible with E[h] = 0.
    """
    chances, sampler = solution_probabilities(policy, problems), LedgerSampler(policy, seed)
    success = np.array([chance.sum() for chance in chances])
    right, mean, wrong, errors = np.zeros((4, len(problems)))
    for q, (problem, p) in enumerate(zip(problems, success, strict=True)):
        wanted = int(min(MOST_ROLLOUTS, np.ceil(wrong_rollouts / max(1 - p, 1e-9))))
        [rollouts] = sampler([problem.prompt()], [wanted])
        missed = [rollout.completion for rollout in rollouts if not rollout.correct]
        distinct = {completion.tokens: completion for completion in missed}
        texts = [(*encode(solution), EOS) for solution in problem.solutions]
        logprobs = completion_logprobs(policy, [encode(problem.text)] * len(texts), texts)[0].detach().numpy()
        solutions = [LedgerCompletion(text, own[: len(text)], True) for text, own in zip(texts, logprobs, strict=True)]
        gradients = completion_gradients(policy, encode(problem.text), [*solutions, *distinct.values()]).double()
        squares, shares = gradients.square().sum(1).numpy(), chances[q] / p
        norms = dict(zip(distinct, squares[len(solutions) :], strict=True))
        found = np.array([norms[completion.tokens] for completion in missed])
        right[q] = shares @ squares[: len(solutions)]
        mean[q] = np.square(shares @ gradients[: len(solutions)].numpy()).sum()
        wrong[q] = found.mean() if len(found) else mean[q] * (p / max(1 - p, 1e-9)) ** 2
        errors[q] = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else wrong[q]
    return Moments(success, right, wrong, errors, mean)


def least_variance(moments: Moments, budget: int, low: int, high: int) -> Counts:
    """Return the counts [P] that exactly minimise the summed RLOO variance under these moments.

    The variance is c / n + d / (n (n - 1)) with c and d at least 0, so it is convex from n = 2 on.
    """
    if low < 2:
        raise ValueError(f"low must be at least 2, for a baseline, got {low}; raise it")
    bounds = np.full(len(moments.success), low)
    number = np.arange(low, low + 1 + most_extra(bounds, high, budget))
    curves = np.stack([moments.variance(np.full(len(bounds), n)) for n in number], axis=1)
    drops = curves[:, :-1] - curves[:, 1:]
    drops = np.minimum.accumulate(np.maximum(drops, 0.0), axis=1)  # rounding and errors of the moments break convexity
    return spend(drops, budget, bounds)
