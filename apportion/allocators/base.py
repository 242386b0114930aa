"""The allocator protocol: start, plan, groups, observe."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors.saved import Learner
from apportion.predictors.score_norms import score_norm
from apportion.types import Batch, Belief, Group, Mask, Needs, Plan, Prompt, Rollout, prompt_list
from apportion.untrusted import shown

NO_NEEDS = Needs()


@dataclass(frozen=True, slots=True)
class Size:
    """How many rollouts a batch can have, known before the first one is drawn.

    Args:
        asked: the most rollouts that can be requested; None if only the data bounds it.
        kept: the most rollouts that can enter the loss, by ``Group.keep``; None if only the data bounds it.
        exact: whether exactly ``asked`` rollouts are requested, whatever their outcomes.
        fresh: the most fresh prompts that can be drawn in the middle of the batch.
        least: the fewest rollouts that are requested, if ``exact`` does not say the number.
        rounds: the most rounds; None if only the data bounds them.
    """

    asked: int | None = None
    kept: int | None = None
    exact: bool = False
    fresh: int = 0
    least: int = 0
    rounds: int | None = None

    @property
    def fewest(self) -> int:
        """The fewest rollouts that are requested."""
        return (self.asked or 0) if self.exact else self.least


class Allocator(Learner, ABC):
    """A rule that decides how many rollouts each prompt gets. Only ``plan`` is required; all else has a default.

    ``plan`` and ``groups`` are pure functions of the batch: the same batch gives the same answer on every rank, after a
    restart, and in a replay. Only ``observe`` changes what a rule has learnt. A driver calls ``start``, then ``plan``
    and ``Batch.add`` until the plan is empty, then ``groups``, and after the update ``observe``. It calls
    ``check_rewards`` after every round.
    """

    kind: ClassVar[str] = "allocator"
    separable: ClassVar[bool] = False
    """Whether prompts are independent, so that each may run as a batch of one with no barrier between them."""

    one_round: ClassVar[bool] = False
    """Whether all rollouts are planned at once, so that no outcome of a batch decides about its plan."""

    adapts: ClassVar[bool] = True
    """Whether the rule means to give prompts unequal counts; False for those that are uniform by design."""

    @property
    def needs(self) -> Needs:
        """What this rule needs to know of each rollout."""
        return NO_NEEDS

    def __post_init__(self) -> None:
        """Check that the settings have the types of their annotations. A subclass with more to check calls this."""
        check_numbers(self)

    def size(self, prompts: int) -> Size:
        """Return how many rollouts a batch that starts with ``prompts`` prompts can have; unbounded by default.

        Raises ValueError if a batch of so many prompts cannot be planned; ``start`` calls it for that reason.
        """
        return Size()

    def with_budget(self, rollouts_per_prompt: int) -> Self:
        """Return this rule with a budget of ``rollouts_per_prompt`` on average, if its setting of that name is None.

        Engines call it once, with the number of rollouts that they draw without an allocator. The result shares the
        predictors of this rule. A rule that has a budget, or settings that decide its numbers, is returned as it is.

        Raises ValueError if the other settings do not fit the budget.
        """
        is_open = getattr(self, "rollouts_per_prompt", self) is None
        return self._copied(rollouts_per_prompt=rollouts_per_prompt) if is_open else self

    def with_estimator(self, estimator: str) -> Self:
        """Return this rule for the advantage ``estimator`` that trains, if its settings leave it open.

        Engines call it once. Only rules that minimise the variance of an estimator have such a setting.
        """
        return self

    def _copied(self, **settings: Any) -> Self:
        """Return a checked copy of a dataclass with these settings, also if a subclass has its own constructor."""
        changed: Any = copy.copy(self)
        for name, value in settings.items():
            object.__setattr__(changed, name, value)
        changed.__post_init__()
        return changed

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Announce a data set before training, so that no step waits for embeddings."""

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        """Return an empty batch with the belief before any of its rollouts."""
        prompts = prompt_list(prompts)
        self.size(len(prompts))
        return Batch.start(prompts, Belief.uniform(len(prompts)))

    @abstractmethod
    def plan(self, batch: Batch) -> Plan:
        """Return the next round. It is falsy if the batch is finished."""

    def final(self, batch: Batch, plan: Plan) -> Mask:
        """Return which prompts [P] are final once their part of ``plan`` has arrived, whatever the outcomes.

        No later plan gives rollouts to a final prompt, and its group is that of a batch of this prompt alone. If any
        prompt is final, no fresh prompts are drawn any more. If all are, no driver asks for another plan, and it may
        train on each prompt while others still run. The default is none; a rule that promises more must keep it, for
        ``plan`` as it returned it for ``batch``.
        """
        return np.zeros(len(batch.prompts), bool)

    def groups(self, batch: Batch) -> list[Group]:
        """Return the finished batch as groups for the estimator, one per prompt that has rollouts."""
        check_rewards(self, batch)
        return [Group(*own) for own in zip(batch.prompts, batch.rollouts, strict=True) if own[1]]

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return metrics of a finished batch for the training log, by name, beyond its counts; {} by default."""
        return {}

    def observe(self, batch: Batch) -> None:
        """Learn from a finished batch. Call it once per batch, after the update."""

    @property
    def _learns(self) -> bool:
        return type(self)._memory is not Learner._memory

    def state_dict(self) -> dict[str, Any]:
        """Return everything learnt so far, to be saved with a checkpoint."""
        return self._state() if self._learns else {}  # responses are large, so nothing is copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        if self._learns:
            self._load(state)
        elif state != {}:
            raise ValueError(
                f"{type(self).__name__} keeps no state, got {shown(state)}; is this another allocator's checkpoint?"
            )


class HasNeeds(Protocol):
    """An allocator, a selector or a baseline, which says what it needs to know of rollouts."""

    name: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What it needs to know of each rollout."""


def check_rewards(reader: HasNeeds, batch: Batch) -> None:
    """Raise ValueError if a rollout of ``batch`` lacks what ``reader`` needs.

    Drivers call it after every round, before more is sampled or trained on.
    """
    if reader.needs != NO_NEEDS:
        for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
            for rollout in rollouts:
                check_rollout(reader, prompt, rollout)


def check_rollout(reader: HasNeeds, prompt: Prompt, rollout: Rollout) -> None:
    """Raise ValueError if ``rollout`` lacks a verdict, a length or a score norm that ``reader`` needs."""
    needs = reader.needs
    if needs.binary and rollout.correct is None and rollout.reward is not None:
        raise ValueError(
            f"rewards must be 0 or 1 for {reader.name}, which counts correct rollouts, got {rollout.reward} "
            f"without a verdict; set Rollout.correct, or use an allocator or predictor for graded rewards"
        )
    if needs.tokens and rollout.tokens is None and rollout.step is None:
        raise ValueError(
            f"rollouts must say their tokens under the token budget of {reader.name}, got one without; "
            "set Rollout.tokens in the sampler, or give a budget in rollouts"
        )
    if needs.score_norms and rollout.reward is not None and rollout.step is None:
        score_norm(rollout, prompt, reader.name)
