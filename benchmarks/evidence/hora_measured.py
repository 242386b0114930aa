"""Learning curves under HORA in the lab, with the uniform and learned priors, and pass@k of the trained policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from apportion.allocators import HORA, Allocator, Uniform
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import OPERATIONS, held_out_problems
from apportion.predictors import GaussianProcess
from benchmarks.evidence.learning import HARD, learn_seeds, passes, swept

BUDGET = {"rollouts_per_prompt": 8}
PROBLEMS, EACH = 200, 8


def problem_features(prompts):
    """Return features [P, d] of problems of the lab: how often each operation is there, and how many there are."""
    operations = [prompt.data.operations for prompt in prompts]
    return np.array([[own.count(each) for each in OPERATIONS] + [len(own)] for own in operations], np.float32)


RULES: Mapping[str, Callable[[], Allocator]] = {
    "uniform": partial(Uniform, **BUDGET),
    "pre_4": partial(HORA, pre_rollouts=4, **BUDGET),
    "gp": lambda: HORA(pre_rollouts=4, predictor=GaussianProcess(problem_features), **BUDGET),
}


def tuned(rule, estimator):
    """Return learning curves of a rule at its best rate."""
    return swept(RULES[rule], {**HARD, "estimator": estimator}, measure=explored)


def untuned(rule):
    """Return learning curves of a rule at the rate that is best for HORA and for uniform groups of 8."""
    return learn_seeds(RULES[rule], HARD, measure=explored)


def explored(trainer, _, held_out=500, problems=PROBLEMS):
    """Return exact pass@k on held-out problems, and token entropy in nats."""
    task = trainer.training.task
    success = exact_success(trainer.policy, held_out_problems(held_out, task))
    sampler = LedgerSampler(trainer.policy, 0, max_new_tokens=trainer.sampler.max_new_tokens)
    groups = sampler([problem.prompt() for problem in held_out_problems(problems, task)], [EACH] * problems)
    written = np.concatenate([rollout.completion.logprobs for group in groups for rollout in group])
    return {"pass_at": passes(success), "entropy": float(-written.mean())}
