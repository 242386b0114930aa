"""The settings that a user gives under ``allocation`` in verl's configuration."""

from dataclasses import dataclass
from typing import Literal, get_args

from apportion.answers import EQUIVALENCES, EXTRACTORS
from apportion.checks import check_choice, check_least
from apportion.scheduler.decisions import RunDecisions
from apportion.types import Prompt, Rollout

Resume = Literal["fallback", "strict"]

PREFIX = "apportion_"
"""Prefix of the names of this package's estimators in verl."""

LEAST_START = 60.0
"""Least number of seconds that a worker may take to start, because it imports verl."""

SCORE = "score"
"""The ``verdict`` that is the reward itself: a rollout is correct if it is above 0."""


@dataclass(frozen=True)
class TimeLimits:
    """The bounds of all waits that a person may have to change, as fractions of ``wait``, the setting ``wait_seconds``.

    ``answer`` is that of an actor that is asked whether it lives, and of the trainer's calls of the coordinator.
    ``commit`` is that of the commit of a prompt, ``start`` that of a worker that starts, restarts or connects, and
    ``row`` that of a task for the row of its prompt.
    """

    wait: float

    @property
    def answer(self) -> float:
        return self.wait / 2

    @property
    def commit(self) -> float:
        return self.wait / 4

    @property
    def start(self) -> float:
        return max(LEAST_START, self.wait / 6)

    @property
    def row(self) -> float:
        return self.wait / 12


@dataclass(frozen=True, kw_only=True)
class VerlAllocation(RunDecisions):
    """How the rollouts of the trainer's requests are spent.

    Args:
        preset: a method as its paper combines the decisions, for stock verl: ``+allocation={preset: hora_as_printed}``.
            In place of an allocator's group of settings choose the preset's: ``allocation=hora_as_printed``.
        allocator: decides how many rollouts each prompt gets, with or without labels.
        selection: chooses the prompts of each batch; by default verl's own sampler does.
        baseline: what ``apportion_reinforce`` and ``apportion_spo`` subtract from rewards, learned from earlier rounds.
        weighting: what counts the same in the loss under the ``apportion_`` estimators: prompt, rollout or token; by
            default the one that the estimator is unbiased under, prompt for all but ``apportion_sequential``.
        outcome_gate: with True, groups of equal outcomes teach nothing else, whatever the reward has beside the
            outcome; with "order", that also compares rollouts of the same outcome only. It goes by the ``verdict``.
            The scores of verl's log are then the rewards that train, whose mean is the accuracy.
        verdict: what decides whether a rollout is correct: a key that the reward function returns beside the score, or
            "score". It is correct if the value is above 0. None if scores are 0 and 1, or -1 and 1.
        id_key: the key of ``extra_info`` that identifies a prompt; by default a hash of its text and data source.
        rate_key: the key of ``extra_info`` with each prompt's known success rate, such as another model's. Predictors
            that take known rates begin with them. It may be None for single prompts.
        extract: without labels, how the answer is found in a response: one of ``apportion.answers.EXTRACTORS``.
        equivalence: without labels, when two answers are the same: one of ``apportion.answers.EQUIVALENCES``.
        stream: whether an asynchronous trainer is served by a stream in place of rounds. It plans each prompt alone,
            under a price if the rule splits a budget. The trainer takes groups as they finish. None is older than
            verl's ``max_off_policy_threshold``.
        slots: with ``stream``, the most rollouts at a time. The prompts that were opened first go first. By default all
            are requested at once, and the engine queues them.
        deadline_seconds: time limit for each wave of a prompt's rollouts. Missing ones are given up, so that no
            straggler delays a round. Infinity waits forever.
        silent_seconds: a worker that gives no sign of life for so long is killed, and others take its prompts over.
        wait_seconds: the trainer may be at one line of a step for so long, as in an update or the transfer of weights.
            Then the run ends. All other waits have fractions of it, see ``TimeLimits``.
        retries: number of times that a failed rollout is tried again before it counts as failed.
        resume: what happens if ``allocation.pt`` of the resumed checkpoint is missing or damaged. "fallback" continues
            with a new belief and a warning. "strict" stops.
    """

    verdict: str | None = None
    id_key: str | None = None
    rate_key: str | None = None
    extract: str = "auto"
    equivalence: str = "exact"
    stream: bool = False
    slots: int | None = None
    deadline_seconds: float = 3600.0
    silent_seconds: float = 60.0
    wait_seconds: float = 3600.0
    retries: int = 1
    resume: Resume = "fallback"

    def __post_init__(self) -> None:
        check_choice("extract", self.extract, EXTRACTORS)
        check_choice("equivalence", self.equivalence, EQUIVALENCES)
        check_choice("resume", self.resume, get_args(Resume))
        super().__post_init__()
        if self.slots is not None and not self.stream:
            raise ValueError(f"slots must be left out without stream, got {self.slots}; set stream=True too")
        if not self.deadline_seconds > 0:
            raise ValueError(f"deadline_seconds must be above 0, got {self.deadline_seconds}; .inf waits forever")
        check_least(self, "None bounds nothing", slots=1)
        check_least(self, "a busy worker may be silent for seconds", silent_seconds=5)
        check_least(self, "set it above the longest update, checkpoint and transfer of weights", wait_seconds=30)
        check_least(self, "0 never tries a rollout again", retries=0)
        for name, why in (("verdict", "votes give the rewards"), ("baseline", "it learns from rewards")):
            if self.label_free and (given := getattr(self, name)) is not None:
                raise ValueError(
                    f"{name} must be left out without labels, because {why}, got {getattr(given, 'name', given)!r} "
                    f"with {self.allocator.name}"
                )

    @property
    def limits(self) -> TimeLimits:
        """The bounds of all waits."""
        return TimeLimits(self.wait_seconds)

    def check_arrived(self, prompt: Prompt, *rollouts: Rollout) -> None:
        """As in ``RunDecisions``. The error names the setting that helps."""
        try:
            super().check_arrived(prompt, *rollouts)
        except ValueError as error:
            raise ValueError(
                f"allocation.verdict must say which rollouts are correct: {error}; or set allocation.verdict=score, "
                "with which a reward above 0 is correct"
            ) from error
