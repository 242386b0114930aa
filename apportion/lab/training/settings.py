"""The settings of a run in the lab, checked."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apportion.advantages import ESTIMATORS, OutcomeGate, Weighting, check_agreement, check_baseline
from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.checks import check_choice, check_least, check_positive
from apportion.lab.policy.recipes import check_base, task_of
from apportion.lab.world.task import Reward
from apportion.records import LogText
from apportion.scheduler import TrainerAllocation
from apportion.scheduler.scheduler import plans_prompts_alone
from apportion.selection import Selector, check_selector

Labels = Literal["gold", "none"]
LENGTHS = ("rollouts", "tokens", "steps")
"""The settings that give a run's length, of which one is set."""
ROLLOUTS = 30_720
"""The default length."""
COUNTS = (
    *(*LENGTHS, "prompts_per_step", "updates_per_step", "critic_updates", "reset_every"),
    *("slots", "evaluate_every", "checkpoint_every", "held_out", "problems"),
)
RANGES = {"discount": 1, "trace": 1, "held_out": 1000, "problems": 10**6}
"""Largest values of settings: the number of held-out problems, and what fits into memory."""


@dataclass(frozen=True)
class Training:
    """Settings of a run in the lab.

    ``base`` is easy, medium, hard, forks or notes, or a folder with a saved policy.
    The length of a run is one of ``rollouts`` (default 30,720), ``tokens`` and ``steps``. The step that reaches it is
    the last. A ``weighting`` of "prompt" gives every prompt of a step the same share of the loss. The default is that
    of the estimator, "rollout" for "sequential" and "prompt" for others. ``checkpoint_every`` counts steps.
    ``evaluate_every`` counts steps if the length does, and otherwise rollouts.

    With ``labels`` "none" the policy learns at test time: nothing is verified, and the allocator makes pseudo-labels
    from votes. Right answers are only for the report. ``prompts`` is a file of prompts that replaces the ``problems``
    drawn ones. Training restarts from the base after every ``reset_every`` steps.

    Under an ``outcome_gate`` groups of equal outcomes teach nothing else, see ``apportion.advantages.gated``.

    A ``reward`` of "share" is graded: the share of leading digits that are right. It needs an allocator and a predictor
    for graded rewards. The reward of "exact" is the outcome, plus ``length_weight`` times the share of the allowed
    tokens that a completion has, plus ``format_weight`` if it states an answer. So rewards differ where outcomes are
    equal. The base notes has free lengths.

    ``selection`` chooses the prompts of a step; by default they come in shuffled epochs.

    ``estimator`` is one of ``apportion.advantages.ESTIMATORS``, or "gae": PPO with a critic, whose settings are
    ``critic_learning_rate``, ``critic_updates`` per step, ``discount`` (gamma) and ``trace`` (lambda). "reinforce"
    takes its ``baseline`` from history.

    With an ``age_bound`` training is asynchronous: a stream samples in ``slots`` simulated slots while the policy
    learns, and no group is older than so many updates (``apportion.scheduler``). An update has at least as many
    rollouts as a step. By default a step is sampled by one policy, and then trained on.

    ``rollout_log`` is what the rollout log of the run has: "full" for all texts, "hashes" for hashes of them, or "none"
    for no log.
    """

    base: str = "medium"
    labels: Labels = "gold"
    reward: Reward = "exact"
    length_weight: float = 0.0
    format_weight: float = 0.0
    problems: int = 512
    prompts: Path | None = None
    prompts_per_step: int = 32
    selection: Selector | None = None
    rollouts: int | None = None
    tokens: int | None = None
    steps: int | None = None
    estimator: str = "rloo"
    baseline: Baseline | None = None
    weighting: Weighting | None = None
    outcome_gate: OutcomeGate = False
    learning_rate: float = 5e-4
    updates_per_step: int = 1
    clip_ratio: float = 0.2
    kl: float = 0.0
    critic_learning_rate: float = 1e-3
    critic_updates: int = 4
    discount: float = 1.0
    trace: float = 1.0
    reset_every: int | None = None
    age_bound: int | None = None
    slots: int = 64
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    held_out: int = 1000
    evaluate_every: int = 1024
    checkpoint_every: int = 20
    rollout_log: LogText | Literal["none"] = "full"

    def __post_init__(self) -> None:
        check_base(self.base)
        least = {"length_weight": -100, "format_weight": -100, "kl": 0, "age_bound": 0, "discount": 0, "trace": 0}
        check_least(self, "", **least, **dict.fromkeys(COUNTS, 1))
        check_positive(self, "learning_rate", "clip_ratio", "max_grad_norm", "temperature", "critic_learning_rate")
        for key, most in RANGES.items():
            if getattr(self, key) > most:
                raise ValueError(f"{key} must be at most {most}, got {getattr(self, key)}; lower it")
        check_choice("estimator", self.estimator, (*ESTIMATORS, "gae"))
        check_baseline(self.estimator, self.baseline)
        lengths = [f"{getattr(self, key)} {key}" for key in LENGTHS if getattr(self, key) is not None]
        if len(lengths) > 1:
            raise ValueError(f"a run ends by one of {', '.join(LENGTHS)}, got {' and '.join(lengths)}; leave one out")
        if self.labels == "none" and (self.reward != "exact" or self.baseline is not None or self.shaped):
            raise ValueError(
                f"without labels rewards come from the votes, got reward {self.reward!r}, baseline {self.baseline} and "
                f"weights {self.length_weight} and {self.format_weight}; leave them out, and set the allocator's reward"
            )
        if self.reward == "share" and self.shaped:
            raise ValueError(
                "length_weight and format_weight must be left out with the reward 'share', which has no verdict, got "
                f'{self.length_weight} and {self.format_weight}; leave them out, or set reward = "exact"'
            )
        if self.labels == "gold" and (self.prompts is not None or self.reset_every is not None):
            raise ValueError(
                f"prompts and reset_every are for learning without labels, got {self.prompts} and {self.reset_every}; "
                'set labels = "none", or leave them out'
            )
        if self.prompts is None and self.prompts_per_step > self.problems:
            raise ValueError(
                f"prompts_per_step must be at most problems, got {self.prompts_per_step} of {self.problems}; "
                "a step draws distinct prompts"
            )

    @property
    def shaped(self) -> bool:
        """Whether the reward has parts beside the outcome."""
        return bool(self.length_weight or self.format_weight)

    @property
    def task(self) -> str:
        """Name of the task that the base has learnt, a key of ``TASKS``."""
        return task_of(self.base)

    @property
    def unit(self) -> Literal["rollouts", "tokens", "step"]:
        """The unit of a run's length, which is a key of every record."""
        if self.steps is not None:
            return "step"
        return "rollouts" if self.tokens is None else "tokens"

    @property
    def length(self) -> int:
        """The length of a run in its ``unit``."""
        return self.steps or self.tokens or self.rollouts or ROLLOUTS

    def decisions(self, allocator: Allocator, selection: Selector | None = None) -> TrainerAllocation:
        """Return the decisions of a run, with a baseline of its own. With "gae" a critic gives the advantages."""
        estimator = None if self.estimator == "gae" else self.estimator
        return TrainerAllocation(
            allocator=allocator.with_estimator(self.estimator),
            baseline=copy.deepcopy(self.baseline),
            selection=selection,
            estimator=estimator,
            weighting=self.weighting,
            outcome_gate=self.outcome_gate,
        )

    def check(self, allocator: Allocator) -> None:
        """Raise ValueError if ``allocator`` cannot plan such a step or cannot take such rewards."""
        allocator.size(self.prompts_per_step)
        decisions = self.decisions(allocator)
        check_agreement(decisions.allocator, self.estimator, decisions.loss_weighting)
        if self.age_bound is not None and not plans_prompts_alone(allocator):
            raise ValueError(
                f"age_bound must be left out with {allocator.name}, which compares the prompts of a batch, got "
                f"{self.age_bound}; leave it out, or take a rule that is separable or has a price"
            )
        votes = not allocator.needs.labels
        if votes != (self.labels == "none"):
            raise ValueError(
                f"labels must be {'none' if votes else 'gold'!r} for {allocator.name}, got {self.labels!r}; change it, "
                f"or take an allocator that {'reads rewards' if votes else 'votes'}"
            )
        if self.selection is not None:
            check_selector(self.selection, allocator.needs, graded=self.reward == "share")
        binary = [allocator.name] if allocator.needs.binary else []
        if self.baseline is not None and self.baseline.needs.binary:
            binary.append(f"the baseline {self.baseline.name}")
        if self.outcome_gate:
            binary.append("outcome_gate")
        if self.reward == "share" and binary:
            raise ValueError(
                f"reward must be 'exact' for {binary[0]}, which needs binary rewards, got 'share'; "
                "change it, or take a predictor or baseline for graded rewards"
            )
