"""Learning curves under HORA and its variants in the lab, and pass@k of the trained policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from apportion.allocators import HORA, Allocator, Uniform
from apportion.lab.policy.exact import effective_solutions, exact_success, solution_probabilities
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import Run
from apportion.lab.training.pool import Pool
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import OPERATIONS, Problem, held_out_problems, training_problems
from apportion.predictors import DiscountedCounts, EmpiricalBayes, GaussianProcess, Predictor
from apportion.types import Floats, Prompt
from benchmarks.evidence.cell import Values
from benchmarks.evidence.hora_rules import Hardest, RandomPrompts
from benchmarks.evidence.learning import HARD, learn_seeds, passes, swept

BUDGET = {"rollouts_per_prompt": 8}
FORKS = {"base": "forks", "prompts_per_step": 16, "rollouts": 8192, "evaluate_every": 1024, "learning_rate": 6e-4}
"""The settings of benchmarks/methods_forks.toml, at the rate that is best there for uniform groups of 4."""
FORKS_SEEDS = (0, 1, 2)
PROBLEMS, EACH = 200, 8


def problem_features(prompts: list[Prompt] | tuple[Prompt, ...]) -> Floats:
    """Return features [P, d] of problems of the lab: how often each operation is there, and how many there are."""
    operations = [prompt.data.operations for prompt in prompts]
    return np.array([[own.count(each) for each in OPERATIONS] + [len(own)] for own in operations], np.float32)


def predictor_named(name: str) -> Predictor:
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


def tuned(rule: str, estimator: str) -> Values:
    """Return learning curves of a rule at its best rate."""
    return swept(RULES[rule], {**HARD, "estimator": estimator}, measure=explored)


def untuned(rule: str) -> Values:
    """Return learning curves of a rule at the rate that is best for HORA and for uniform groups of 8."""
    return learn_seeds(RULES[rule], HARD, measure=explored)


def forks(rule: str) -> Values:
    """Return learning curves of a rule on problems with several right answers."""
    return learn_seeds(RULES[rule], FORKS, FORKS_SEEDS, measure=explored)


def explored(trainer: Trainer, _: Run) -> Mapping[str, Any]:
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


LONGEST, POOL = 5, 512
"""Operations of the longest problems. The hard base solves 8% of them, 34% in 16 rollouts and 80% in 1,024."""
LONG = {**HARD, "estimator": "grpo", "rollouts": 4096}
"""Half an epoch. A run of uniform groups with seed 100, which is not measured, had solved 31% by then."""
PRINTED = {"rollouts_per_prompt": 16, "pre_rollouts": 8}
LONG_RULES: Mapping[str, Callable[[], Allocator]] = {
    "uniform": partial(Uniform, rollouts_per_prompt=16),
    "pre_8": partial(HORA, **PRINTED),
    "hardest": partial(Hardest, **PRINTED),
}


def long_problems(seed: int) -> tuple[Problem, ...]:
    """Return the problems of a run whose problems are all among the longest."""
    return longest(training_problems(8 * POOL, seed))[:POOL]


def long(rule: str) -> Values:
    """Return learning curves of a rule on the longest problems, with 16 rollouts a prompt."""
    return learn_seeds(LONG_RULES[rule], LONG, measure=_long_explored, kind=_long_trainer)


def _long_trainer(training: Training, allocator: Allocator, seed: int, folder: Path) -> Trainer:
    return Trainer(training, allocator, seed, folder, Pool(long_problems(seed), longest(held_out_problems()), {}))


def longest(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Return the longest of ``problems``."""
    return tuple(problem for problem in problems if len(problem.operations) == LONGEST)


def _long_explored(trainer: Trainer, run: Run) -> Mapping[str, Any]:
    """Return exact pass@k on held-out problems, and the share of groups in training without a right rollout."""
    success = exact_success(trainer.policy, trainer.pool.held_out)
    return {"pass_at": passes(success), "without": run.steps["without_correct"].mean()}
