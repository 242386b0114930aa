"""The settings of a run in the lab, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from apportion.advantages import ESTIMATORS, Weighting, needs
from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.lab.base import check_base
from apportion.lab.sampler import Reward


@dataclass(frozen=True)
class Training:
    """Settings of a run in the lab. Lengths are in rollouts, so that every allocator pays the same.

    ``base`` is easy, medium, hard or forks, or a folder with a saved policy.
    ``rollouts`` is the budget of the whole run; the step that reaches it is the last. With ``tokens`` the run ends when
    it has sampled so many, whatever the rollouts. A ``weighting`` of "prompt" gives every prompt of a step the same
    share of the loss. ``checkpoint_every`` counts steps.

    A ``reward`` of "share" is graded: the share of leading digits that are right. For allocators and predictors that
    take such rewards.

    ``estimator`` is one of ``apportion.advantages.ESTIMATORS``, or "gae": PPO with a critic, whose settings are
    ``critic_learning_rate``, ``critic_updates`` a step, ``discount`` (gamma) and ``trace`` (lambda). "reinforce" takes
    its ``baseline`` from history.
    """

    base: str = "medium"
    reward: Reward = "exact"
    problems: int = 512
    prompts_per_step: int = 32
    rollouts: int = 30_720
    tokens: int | None = None
    estimator: str = "rloo"
    baseline: Baseline | None = None
    weighting: Weighting = "prompt"
    learning_rate: float = 5e-4
    updates_per_step: int = 1
    clip_ratio: float = 0.2
    kl: float = 0.0
    critic_learning_rate: float = 1e-3
    critic_updates: int = 4
    discount: float = 1.0
    trace: float = 1.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    held_out: int = 1000
    evaluate_every: int = 1024
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        check_base(self.base)
        for key in (
            "problems",
            "prompts_per_step",
            "rollouts",
            "updates_per_step",
            "critic_updates",
            "evaluate_every",
            "checkpoint_every",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}; leave it out for the default")
        for key in ("learning_rate", "clip_ratio", "max_grad_norm", "temperature", "critic_learning_rate"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be positive, got {getattr(self, key)}; leave it out for the default")
        if self.estimator not in (*ESTIMATORS, "gae") or self.weighting not in get_args(Weighting):
            raise ValueError(
                f"estimator must be one of {', '.join(ESTIMATORS)}, gae, and weighting of "
                f"{', '.join(get_args(Weighting))}, got {self.estimator!r} and {self.weighting!r}; check the spelling"
            )
        takes_baseline = self.estimator != "gae" and "baseline" in needs(self.estimator)
        if takes_baseline != (self.baseline is not None):
            raise ValueError(
                f"a baseline goes with the estimator 'reinforce', got {self.baseline} with {self.estimator!r}; "
                'set both (baseline = "optimal", say), or neither'
            )
        if self.reward not in get_args(Reward):
            raise ValueError(f"reward must be one of {', '.join(get_args(Reward))}, got {self.reward!r}")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, got {self.tokens}; leave it out to count rollouts")
        if not 0 <= self.discount <= 1 or not 0 <= self.trace <= 1:
            raise ValueError(
                f"discount and trace must be between 0 and 1, got {self.discount} and {self.trace}; 1 is usual here"
            )
        if self.kl < 0:
            raise ValueError(f"kl must be at least 0, got {self.kl}; 0 leaves the reference out")
        if self.prompts_per_step > self.problems:
            raise ValueError(
                f"prompts_per_step must be at most problems, got {self.prompts_per_step} of {self.problems}; "
                "a step draws distinct prompts"
            )
        if not 1 <= self.held_out <= 1000:
            raise ValueError(f"held_out must be between 1 and 1000, got {self.held_out}; the pool has 1000 problems")

    def check(self, allocator: Allocator) -> None:
        """Raises ValueError where ``allocator`` cannot plan such a step, or cannot take such rewards."""
        allocator.check(self.prompts_per_step)
        if self.reward == "share" and (allocator.needs_binary or (self.baseline and self.baseline.needs_binary)):
            who = allocator.name if allocator.needs_binary else f"the baseline {self.baseline.name}"
            raise ValueError(
                f"reward must be 'exact' for {who}, which needs binary rewards, got 'share'; "
                "change it, or take a predictor or baseline for graded rewards"
            )
