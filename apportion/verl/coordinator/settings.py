"""The settings that a user gives under ``allocation`` in verl's configuration."""

from dataclasses import dataclass
from typing import Any, get_args

from apportion.advantages import Weighting
from apportion.allocators import Allocator
from apportion.answers import EQUIVALENCES, EXTRACTORS

SCORE = "score"
"""The ``verdict`` that is the reward itself: a rollout is correct if it is above 0."""


@dataclass(frozen=True, kw_only=True)
class VerlAllocation:
    """How the rollouts of the trainer's requests are spent.

    Args:
        allocator: decides how many rollouts each prompt gets, with or without labels.
        weighting: what counts the same in the loss under the ``apportion_`` estimators: prompt, rollout or token; by
            default the one that the estimator is unbiased under, prompt for all but ``apportion_sequential``.
        verdict: what decides whether a rollout is correct: a key that the reward function returns beside the score, or
            "score". It is correct if the value is above 0. None if scores are 0 and 1.
        id_key: the key of ``extra_info`` that identifies a prompt; by default a hash of its text and data source.
        extract: without labels, how the answer is found in a response: one of ``apportion.answers.EXTRACTORS``.
        equivalence: without labels, when two answers are the same: one of ``apportion.answers.EQUIVALENCES``.
        deadline_seconds: time limit for each wave of a prompt's rollouts. Missing ones are given up, so that no
            straggler delays a round. Infinity waits forever.
        retries: number of times that a failed rollout is tried again before it counts as failed.
    """

    allocator: Allocator
    weighting: Weighting | None = None
    verdict: str | None = None
    id_key: str | None = None
    extract: str = "auto"
    equivalence: str = "exact"
    deadline_seconds: float = 3600.0
    retries: int = 1

    def __post_init__(self) -> None:
        known: dict[str, Any] = {"extract": EXTRACTORS, "equivalence": EQUIVALENCES}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"{name} must be one of {', '.join(values)}, got {getattr(self, name)!r}; check the spelling"
                )
        if self.weighting not in (None, *get_args(Weighting)):
            raise ValueError(
                f"weighting must be one of {', '.join(get_args(Weighting))}, got {self.weighting!r}; leave it out for "
                "the one that suits the estimator"
            )
        if not self.deadline_seconds > 0:
            raise ValueError(f"deadline_seconds must be above 0, got {self.deadline_seconds}; .inf waits forever")
        if self.retries < 0:
            raise ValueError(f"retries must be at least 0, got {self.retries}; 0 never tries a rollout again")
        if self.label_free and self.verdict is not None:
            raise ValueError(
                f"verdict must be left out without labels, because votes give the rewards, got {self.verdict!r} with "
                f"{self.allocator.name}"
            )

    @property
    def label_free(self) -> bool:
        """Whether rewards come from votes."""
        return not self.allocator.needs.labels
