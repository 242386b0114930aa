"""Measure the gradient's variance under VIP, and the error of VIP's formula for it.

For each base policy: the total variance of the gradient under VIP with the exact success probabilities, and with these
shuffled among the prompts, over that of the uniform rule on the same rollouts, under RLOO. Then, for each prompt, the
variance of the projected gradient over that of Proposition 4.3 of arXiv 2602.01601.

    python -m benchmarks.gradient_variance
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from apportion.allocators.vip import gradient_variance, minimise_variance
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.recipes import RECIPES
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import encode, training_problems
from benchmarks.common import options, table, write
from benchmarks.gradients import (
    completion_gradients,
    least_variance,
    ratio_interval,
    score_moments,
    share_products,
    trace_variance,
)

PROMPTS, PER_PROMPT, LOW, HIGH, GROUP = 64, 8, 3, 24, 8
ESTIMATOR = "rloo"
BANDS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)
POOL, PROMPTS_IN_BAND, WRONG_ROLLOUTS, GROUPS = 1000, 8, 60, 20_000
WRONG_MOMENTS = 240
EXACT, SHUFFLED, BEST = "vip, exact p", "vip, shuffled p", "least, known moments"


@dataclass(frozen=True)
class PromptCheck:
    """A prompt's variance over Proposition 4.3's, for groups of ``GROUP`` under RLOO with rewards -1 and 1.

    - ``sum_ratio``: with Z the sum of the entries of a rollout's gradient h (the paper's projection).
    - ``vector_ratio``: the total variance over 4 E|h|^2 p (1 - p) / (n - 1).
    """

    success: float
    sum_ratio: float
    vector_ratio: float


def check_prompt(policy, problem, p, seed):
    """Check one prompt with ``GROUPS`` groups of its rollouts, the right one drawn with probability p exactly."""
    wanted = int(min(6000, 1.2 * WRONG_ROLLOUTS / (1 - p) + 5 / p))
    [rollouts] = LedgerSampler(policy, seed)([problem.prompt()], [wanted])
    completions = {rollout.completion.tokens: rollout.completion for rollout in rollouts}
    right = {rollout.completion.tokens for rollout in rollouts if rollout.correct}
    times = Counter(rollout.completion.tokens for rollout in rollouts)
    correct = np.array([tokens in right for tokens in completions])
    weight = np.array([times[tokens] for tokens in completions], float)
    probability = np.where(correct, p, (1 - p) * weight / weight[~correct].sum())
    gradients = completion_gradients(policy, encode(problem.text), list(completions.values()))
    gram = (gradients @ gradients.T).double().numpy()
    reward = np.where(correct, 1.0, -1.0)
    drawn = np.random.default_rng(seed).choice(len(probability), (GROUPS, GROUP), p=probability)
    rewards = reward[drawn]
    advantages = (rewards - rewards.mean(1, keepdims=True)) * GROUP / (GROUP - 1)
    formula = float(gradient_variance(np.array([p]), np.array([GROUP]), ESTIMATOR)[0])
    z = gradients.double().sum(1).numpy()
    shares = advantages / GROUP
    lengths = np.einsum("gi,gj,gij->g", shares, shares, gram[drawn[:, :, None], drawn[:, None, :]])
    mean = np.bincount(drawn.ravel(), shares.ravel(), minlength=len(probability)) / GROUPS
    total = lengths.mean() - mean @ gram @ mean
    spread = probability @ z**2 - (probability @ z) ** 2
    along = (advantages * z[drawn]).mean(1).var() / (formula * spread)
    return PromptCheck(p, float(along), float(total / (formula * (probability @ np.diag(gram)))))


def check_prompts(policy, seed):
    """Check up to ``PROMPTS_IN_BAND`` prompts of each band of p."""
    pool = training_problems(POOL, seed)
    success = exact_success(policy, pool)
    band = np.digitize(success, BANDS)
    chosen = [q for number in range(1, len(BANDS)) for q in np.flatnonzero(band == number)[:PROMPTS_IN_BAND]]
    return [check_prompt(policy, pool[q], float(success[q]), seed + int(q)) for q in chosen]


def least(moments):
    """Return the variance under the best allocation over uniform's, and its standard error."""
    uniform = np.full(len(moments.success), PER_PROMPT)
    counts = least_variance(moments, int(uniform.sum()), LOW, HIGH)
    base = moments.variance(uniform).sum()
    ratio = moments.variance(counts).sum() / base
    slope = moments.slope(counts) - ratio * moments.slope(uniform)
    error = np.sqrt(((slope * moments.wrong_error) ** 2).sum()) / base
    return f"{ratio:.3f} +- {error:.3f}"


def vip(p):
    """Return VIP's counts for the success probabilities ``p`` [P]."""
    return minimise_variance(p, PER_PROMPT * len(p), ESTIMATOR, LOW, HIGH)


def measured_cells(policy, problems, draws, seed):
    """Return the measured ratio of each rule, with its interval."""
    success = exact_success(policy, problems)
    rules = [np.full(len(success), PER_PROMPT), vip(success), lambda rng: vip(rng.permutation(success))]
    base, *measured = share_products(policy, problems, rules, draws=draws, seed=seed)
    cells = {}
    for rule, found in zip((EXACT, SHUFFLED), measured, strict=True):
        low, high = ratio_interval(found, base, seed=seed)
        cells[rule] = f"{trace_variance(found) / trace_variance(base):.2f} ({low:.2f} to {high:.2f})"
    return cells


def bands_table(checks):
    """Return a table of medians by band of p over all bases, with the range of the vector ratio."""
    rows = []
    for low, high in pairwise(BANDS):
        part = [check for check in checks if low <= check.success < high]
        if not part:
            continue
        sums, vectors = ([getattr(each, name) for each in part] for name in ("sum_ratio", "vector_ratio"))
        ends = f"({min(vectors):.2f} to {max(vectors):.2f})"
        cells = [f"{np.median(sums):.2f}", f"{np.median(vectors):.2f} {ends}"]
        rows.append([f"{low:g} to {high:g}", len(part), *cells])
    columns = ["p", "prompts", "Z = sum of h", "total variance"]
    return table(columns, rows)


def main():
    """Measure, and write the table ``gradient_variance``."""
    arguments = options(__doc__, draws=240, seed=0, bases=tuple(RECIPES))
    torch.set_num_threads(1)
    problems = training_problems(PROMPTS, arguments.seed)
    rows, checks = [], []
    for base in arguments.bases:
        policy = base_policy(base)
        checks += check_prompts(policy, arguments.seed)
        moments = score_moments(policy, problems, wrong_rollouts=WRONG_MOMENTS, seed=arguments.seed)
        for rule, ratio in measured_cells(policy, problems, arguments.draws, arguments.seed).items():
            rows.append([base, ESTIMATOR, rule, ratio, "-"])
        rows.append([base, ESTIMATOR, BEST, "-", least(moments)])
    notes = [
        f"{PROMPTS} training prompts, {PER_PROMPT} rollouts a prompt on average, between {LOW} and {HIGH} under VIP; "
        f"{arguments.draws} batches, all rules on the same rollouts. Ratios to uniform with 95% bootstrap intervals. "
        f"Shuffled p is permuted anew in every batch. '{BEST}' is the best allocation within the same bounds under "
        "RLOO, by its ratio in closed form (+- standard error), slightly flattered, because it is chosen and judged by "
        "the same moments.",
        "## Proposition 4.3, prompt by prompt",
        "Variance of (1/n) sum of A_j Z_j over 4 sigma_Z^2 p (1 - p) / (n - 1). The proposition says 1. "
        f"RLOO, n = {GROUP}, rewards -1 and 1. Medians over prompts of all bases; {GROUPS:,} groups a prompt.",
        bands_table(checks),
    ]
    columns = ["base", "estimator", "rule", "ratio to uniform", "by moments"]
    write("gradient_variance", "Gradient variance under VIP, measured", columns, rows, notes, seeds=[arguments.seed])


if __name__ == "__main__":
    main()
