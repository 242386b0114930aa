"""Controls that several claims share: the starting policy, and uniform groups in the lab, each at its best rate."""

from __future__ import annotations

from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.world.task import held_out_problems
from benchmarks.evidence.claim import Values
from benchmarks.evidence.learning import HARD, PASS_AT, abilities, pass_at, swept


def start() -> Values:
    """Return exact pass@k of the starting policy on held-out problems, by k."""
    success = exact_success(base_policy("hard"), held_out_problems(500))
    return {"pass_at": {str(k): pass_at(success, k) for k in PASS_AT}}


def uniform(rollouts_per_prompt: int, estimator: str) -> Values:
    """Return learning curves and abilities of uniform groups. Every step has 128 rollouts, or 64 with 4 a prompt."""
    rule = {"name": "uniform", "rollouts_per_prompt": rollouts_per_prompt}
    prompts = {4: 16, 8: 16, 16: 8}[rollouts_per_prompt]
    return swept(rule, {**HARD, "prompts_per_step": prompts, "estimator": estimator}, measure=abilities)
