"""The settings of an allocation beside tinker-cookbook's own, checked before anything is sampled."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from tinker_cookbook.rl.types import EnvGroupBuilder

from apportion.advantages import check_agreement, check_compared
from apportion.checks import check_integer
from apportion.scheduler.decisions import TrainerAllocation
from apportion.tinker.problems import question_of, resized
from apportion.types import Prompt

OWN_ESTIMATOR = "dr_grpo"
"""What tinker-cookbook computes: the reward minus the mean of its group."""


@dataclass(frozen=True, kw_only=True)
class TinkerAllocation(TrainerAllocation):
    """How the rollouts of a batch are allocated, and how they enter the loss.

    Args:
        preset: a method as its paper combines the decisions, one of ``apportion.presets``, or its name.
        allocator: decides how many rollouts each prompt gets; with labels, and without rollouts of earlier steps. A
            preset has one.
        estimator: one of ``apportion.advantages.ESTIMATORS``. The default is the one whose variance the allocator
            minimises, and otherwise the cookbook's own, "dr_grpo".
        weighting: whether every "prompt" or every "rollout" has equal weight in the loss. The default is the one that
            the estimator is unbiased under, "prompt" for all but "sequential". Equal groups have equal weights anyway.
        baseline: what the estimators "reinforce" and "spo" subtract from rewards.
        selection: chooses the prompts of each batch, and those that the allocator draws in the middle of one. The
            default is the order of the data set.
        outcome_gate: with True, groups of equal outcomes teach nothing else, whatever the reward has beside the
            outcome; with "order", that also compares rollouts of the same outcome only. It goes by the ``verdict``.
        verdict: the metric of an environment that is above 0 for correct rollouts. If it reports no such metric, then
            rewards must be 0 or 1 for rules that count correct rollouts.
        prompt_of: returns the prompt of a group builder. The default reads the question of a ``ProblemGroupBuilder``.
            ``Prompt.rate`` may hold a success rate known before training.
        resize: returns a copy of a group builder with another number of environments. The default sets ``num_envs`` or
            ``group_size``.
        seed: of the selection, and of the prompts that an allocator draws in the middle of a batch.
    """

    verdict: str = "correct"
    prompt_of: Callable[[EnvGroupBuilder], Prompt] = question_of
    resize: Callable[[EnvGroupBuilder, int], EnvGroupBuilder] = resized
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("seed", self.seed, 0, "give the seed of the run")
        self._check_needs()
        object.__setattr__(self, "allocator", self.allocator.with_estimator(self.trained_estimator))
        check_compared(self.allocator, self.trained_estimator)
        check_agreement(self.allocator, self.trained_estimator, self.loss_weighting)

    @property
    def trained_estimator(self) -> str:  # never None: there is no formula without a name here
        """The estimator of the advantages that are trained on."""
        return self.estimator or self.allocator.needs.estimator or OWN_ESTIMATOR

    def with_budget(self, group_size: int | None) -> Self:
        """Return the settings with the user's ``group_size`` as the allocator's budget, unless it has one."""
        return self if group_size is None else replace(self, allocator=self.allocator.with_budget(group_size))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as texts, for the cookbook's log of its configuration."""
        return {name: repr(value) for name, value in vars(self).items()}

    def _check_needs(self) -> None:
        """Raise ValueError for an allocator that cannot work in this engine."""
        name, wanted = self.allocator.name, self.allocator.needs
        if not wanted.labels:
            raise ValueError(
                f"allocator must learn from the rewards of environments, got {name}, which learns from votes; use it "
                "with TRL or verl"
            )
        if wanted.reused_rollouts:
            raise ValueError(
                f"allocator must train on rollouts of the same step only, got {name}, which reuses those of earlier "
                "steps; switch reuse off in its settings, or use it with TRL or verl"
            )
