"""Gradients of single completions, and the variance of a batch's gradient from them: in closed form, and as measured.

The gradient of ``surrogate_loss`` at the sampling policy is linear in the advantages, and equal completions of one
prompt have equal gradients. So each distinct completion is differentiated once, a draw of the rollouts is a row of
coefficients on those gradients, and only their inner products are kept.

With rewards 0 and 1 the RLOO gradient of one prompt is a U-statistic with kernel (r - r')(h - h') / 2, h the gradient
of one rollout, so Hoeffding's formula gives its variance for every n. The expectation of h is 0, so the variance needs
only p, E|h|^2 of right and of wrong completions, and |E h|^2 of the right ones, which equals their E|h|^2 if only one
is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from apportion.allocators import Uniform, spend
from apportion.allocators.spending.solver import most_extra
from apportion.lab.policy.exact import solution_probabilities
from apportion.lab.policy.network import completion_logprobs
from apportion.lab.policy.sampler import LedgerCompletion, LedgerSampler
from apportion.lab.training.loss import TrainingRow, surrogate_loss, training_rows
from apportion.lab.world.task import EOS, encode
from apportion.scheduler import TrainerAllocation
from apportion.types import Floats, Group

MOST_ROLLOUTS = 100_000


def completion_gradients(policy, prompt, completions):
    """Return the gradient [completions, parameters] of each completion's loss at advantage 1 and weight 1."""
    parameters = list(policy.parameters())
    gradients = torch.empty(len(completions), sum(parameter.numel() for parameter in parameters))
    for row, completion in zip(gradients, completions, strict=True):
        loss = surrogate_loss(policy, [TrainingRow(tuple(prompt), completion, advantage=1.0, weight=1.0)])
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)], out=row)
    return gradients


def solutions_of(policy, problem):
    """Return every right completion with its log-probabilities."""
    texts = [(*encode(solution), EOS) for solution in problem.solutions]
    logprobs = completion_logprobs(policy, [encode(problem.text)] * len(texts), texts)[0].detach().numpy()
    return [LedgerCompletion(text, own[: len(text)], True) for text, own in zip(texts, logprobs, strict=True)]


def coefficients(entries, rules, draws):
    """Return the distinct rows of a prompt, and their coefficients [rules, draws, rows] in its shares of the gradient.

    ``entries`` are the rule, the draw and the row of its rollouts.
    """
    keys = [(row.completion.tokens, row.reused and not row.recompute) for *_, row in entries]
    distinct = {key: row for key, (*_, row) in zip(keys, entries, strict=True)}
    columns = {key: column for column, key in enumerate(distinct)}
    weights = np.zeros((rules, draws, len(distinct)))
    for key, (rule, draw, row) in zip(keys, entries, strict=True):
        weights[rule, draw, columns[key]] += row.advantage * row.weight
    return list(distinct.values()), weights


def share_products(policy, problems, rules, *, draws=40, seed=0):
    """Return the inner products [rules, draws, draws] of prompts' shares of the RLOO gradient, summed over prompts.

    A rule is the counts [P] of a batch, or a function of a random generator that draws them. All are measured on the
    same rollouts: a rule that gives a prompt n of them uses the first n. The expectation of RLOO does not depend on n,
    so random counts give prompts no covariance.
    """
    rng, prompts = np.random.default_rng(seed), [problem.prompt() for problem in problems]
    planned = np.array([[rule(rng) if callable(rule) else rule for _ in range(draws)] for rule in rules], np.int64)
    most = planned.max(0)
    rollouts = LedgerSampler(policy, seed)(prompts, most.sum(0))
    starts = most.cumsum(0) - most
    entries: list[list[tuple[int, int, TrainingRow]]] = [[] for _ in problems]
    for rule, draw in np.ndindex(planned.shape[:2]):
        first, n = starts[draw], planned[rule, draw]
        asked = np.flatnonzero(n)
        groups = [Group(prompts[q], tuple(rollouts[q][first[q] : first[q] + n[q]])) for q in asked]
        rows = training_rows(groups, TrainerAllocation(allocator=Uniform(2)))
        for q, row in zip(np.repeat(asked, n[asked]), rows, strict=True):
            if row.advantage:
                entries[q].append((rule, draw, row))
    products = np.zeros((len(rules), draws, draws))
    for own in filter(None, entries):
        rows, weights = coefficients(own, len(rules), draws)
        gradients = completion_gradients(policy, rows[0].prompt, [row.completion for row in rows])
        products += weights @ (gradients @ gradients.T).double().numpy() @ weights.transpose(0, 2, 1)
    return products


def trace_variance(products, times=None):
    """Return the unbiased total variance of the gradient, the sum over prompts, from ``products`` [draws, draws].

    With ``times`` [B, draws] it is that [B] of bootstrap samples that hold each draw so many times.
    """
    n = len(products)
    times = np.ones(n) if times is None else times
    return (times @ np.diag(products) - ((times @ products) * times).sum(-1) / n) / (n - 1)


def resampled(draws, *, seed=0, resamples=2000):
    """Return how many times bootstrap samples hold each draw [resamples, draws]."""
    return np.random.default_rng(seed).multinomial(draws, np.full(draws, 1 / draws), resamples)


def ratio_interval(products, base, *, seed=0):
    """Return the 95% percentile bootstrap interval of the ratio of two total variances, with paired resampling."""
    times = resampled(len(base), seed=seed)
    return tuple(np.quantile(trace_variance(products, times) / trace_variance(base, times), [0.025, 0.975]))


@dataclass(frozen=True)
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

    def variance(self, counts):
        """Return the total RLOO variance of each prompt's gradient from ``counts`` [P] or [S, P], at least 2."""
        p, n = self.success, np.asarray(counts, np.float64)
        right = p * (1 - p) * ((n - 2) * (1 - p) + 1) * self.right - (n - 2) * p**2 * self.right_mean
        return right / (n * (n - 1)) + self.slope(counts) * self.wrong

    def slope(self, counts):
        """Return the derivative of ``variance`` by ``wrong``, for its standard error."""
        p, n = self.success, np.asarray(counts, np.float64)
        return p * (1 - p) * ((n - 2) * p + 1) / (n * (n - 1))


def score_moments(policy, problems, *, wrong_rollouts=60, seed=0):
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
        solutions = solutions_of(policy, problem)
        gradients = completion_gradients(policy, encode(problem.text), [*solutions, *distinct.values()]).double()
        squares, shares = gradients.square().sum(1).numpy(), chances[q] / p
        norms = dict(zip(distinct, squares[len(solutions) :], strict=True))
        found = np.array([norms[completion.tokens] for completion in missed])
        right[q] = shares @ squares[: len(solutions)]
        mean[q] = np.square(shares @ gradients[: len(solutions)].numpy()).sum()
        wrong[q] = found.mean() if len(found) else mean[q] * (p / max(1 - p, 1e-9)) ** 2
        errors[q] = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else wrong[q]
    return Moments(success, right, wrong, errors, mean)


def least_variance(moments, budget, low, high):
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
