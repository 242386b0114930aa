"""Controls that several claims share: the starting policy, and uniform groups in the lab, each at its best rate."""

from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.recipes import task_of
from apportion.lab.world.task import held_out_problems
from benchmarks.evidence.learning import HARD, abilities, passes, swept


def start(base="hard"):
    """Return exact pass@k of the starting policy on held-out problems, by k."""
    return {"pass_at": passes(exact_success(base_policy(base), held_out_problems(500, task_of(base))))}


def uniform(rollouts_per_prompt, estimator):
    """Return learning curves and abilities of uniform groups. Every step has 128 rollouts, or 64 with 4 a prompt."""
    rule = {"name": "uniform", "rollouts_per_prompt": rollouts_per_prompt}
    prompts = {4: 16, 8: 16, 16: 8}[rollouts_per_prompt]
    return swept(rule, {**HARD, "prompts_per_step": prompts, "estimator": estimator}, measure=abilities)
