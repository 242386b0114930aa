"""Learning curves under HORA and its variants in the lab, and pass@k of the trained policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from apportion.allocators import HORA, Allocator, Uniform
from apportion.lab.policy.exact import effective_solutions, solution_probabilities
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import OPERATIONS, held_out_problems
from apportion.predictors import DiscountedCounts, EmpiricalBayes, GaussianProcess
from benchmarks.evidence.hora_rules import Hardest, RandomPrompts
from benchmarks.evidence.learning import HARD, learn_seeds, passes, swept

BUDGET = {"rollouts_per_prompt": 8}
FORKS = {"base": "forks", "prompts_per_step": 16, "rollouts": 8192, "evaluate_every": 1024, "learning_rate": 6e-4}
"""The settings of benchmarks/methods_forks.toml, at the rate that is best there for uniform groups of 4."""
FORKS_SEEDS = (0, 1, 2)
PROBLEMS, EACH = 200, 8


def problem_features(prompts):
    """Return features [P, d] of problems of the lab: how often each operation is there, and how many there are."""
    operations = [prompt.data.operations for prompt in prompts]
    return np.array([[own.count(each) for each in OPERATIONS] + [len(own)] for own in operations], np.float32)


def predictor_named(name):
    """Return a predictor that gives HORA its prior. Embeddings are counts of operations, and need no download."""
    return {
        "counts": DiscountedCounts,
        "empirical_bayes": partial(EmpiricalBayes, embedder=problem_features),
        "gp": partial(GaussianProcess, embedder=problem_features),
    }[name]()


RULES: Mapping[str, Callable[[], Allocator]] = {
    "uniform": partial(Uniform, **BUDGET),
    "random": partial(RandomPrompts, pre_rollouts=4, **BUDGET),
    "hardest": partial(Hardest, pre_rollouts=4, **BUDGET),
    **{f"pre_{n}": partial(HORA, pre_rollouts=n, **BUDGET) for n in (1, 2, 4, 6)},
    **{
        name: lambda name=name: HORA(pre_rollouts=4, predictor=predictor_named(name), **BUDGET)
        for name in ("empirical_bayes", "gp")
    },
}


def tuned(rule, estimator):
    """Return learning curves of a rule at its best rate."""
    return swept(RULES[rule], {**HARD, "estimator": estimator}, measure=explored)


def untuned(rule):
    """Return learning curves of a rule at the rate that is best for HORA and for uniform groups of 8."""
    return learn_seeds(RULES[rule], HARD, measure=explored)


def forks(rule):
    """Return learning curves of a rule on problems with several right answers."""
    return learn_seeds(RULES[rule], FORKS, FORKS_SEEDS, measure=explored)


def explored(trainer, _):
    """Return exact pass@k on held-out problems, token entropy in nats, and right answers in use."""
    task = trainer.training.task
    found = solution_probabilities(trainer.policy, held_out_problems(500, task))
    success = np.array([each.sum() for each in found])
    sampler = LedgerSampler(trainer.policy, 0, max_new_tokens=trainer.sampler.max_new_tokens)
    groups = sampler([problem.prompt() for problem in held_out_problems(PROBLEMS, task)], [EACH] * PROBLEMS)
    written = np.concatenate([rollout.completion.logprobs for group in groups for rollout in group])
    return {
        "pass_at": passes(success),
        "entropy": float(-written.mean()),
        "solutions": float(effective_solutions(found).mean()),
    }
