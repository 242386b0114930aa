"""The decisions of a run that trainers have in common: how many rollouts, which prompts, what baseline."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from apportion.advantages import (
    ESTIMATORS,
    Weighting,
    check_baseline,
    check_weighting,
    default_weighting,
    rollout_needs,
)
from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.engines.saved_settings import settings_of
from apportion.selection import Selector, check_selector
from apportion.types import Batch, Needs


@dataclass(frozen=True, kw_only=True)
class TrainerAllocation:
    """An allocator, and what goes with it: estimator, weighting, baseline and selection, checked together.

    Raises TypeError for an allocator or a selection of another type, and ValueError for what does not fit together.
    """

    allocator: Allocator
    weighting: Weighting | None = None
    estimator: str | None = None
    baseline: Baseline | None = None
    selection: Selector | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.allocator, Allocator):
            raise TypeError(
                f"allocator must be an Allocator, got {self.allocator!r}; make one, such as apportion.HORA()"
            )
        check_weighting(self.weighting)
        if self.estimator is not None and self.estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}; leave it out for the "
                "default"
            )
        check_baseline(self.estimator, self.baseline)
        if self.selection is not None:
            if not isinstance(self.selection, Selector):
                raise TypeError(
                    f"selection must be a Selector, got {self.selection!r}; make one, such as "
                    "apportion.selection.Mixed()"
                )
            check_selector(self.selection, self.allocator.needs)

    @property
    def trained_estimator(self) -> str | None:
        """The estimator of the advantages that are trained on; None if it is the trainer's own formula."""
        return self.estimator

    @property
    def loss_weighting(self) -> Weighting:
        """What has equal weight in the loss."""
        return self.weighting or default_weighting(self.trained_estimator)

    @property
    def parts(self) -> dict[str, Allocator | Baseline | Selector | None]:
        """The allocator, the baseline and the selection by name; None for one that is left out."""
        return {"allocator": self.allocator, "baseline": self.baseline, "selection": self.selection}

    @property
    def needs(self) -> Needs:
        """What the allocator, the estimator, the baseline and the selection need to know of each rollout."""
        parts = (part.needs for part in self.parts.values() if part is not None)
        return reduce(or_, parts, rollout_needs(self.trained_estimator))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of all parts, as a checkpoint has them; see ``settings_of``."""
        return settings_of(self.parts)

    def observe(self, batch: Batch) -> None:
        """Let the allocator, the selection and the baseline learn from a finished batch."""
        self.allocator.observe(batch)
        if self.selection is not None:
            self.selection.observe(batch.sampled)
        if self.baseline is not None:
            self.baseline.update(batch.sampled)


def check_draws(allocator: Allocator, prompts: int, distinct: Callable[[int], int]) -> None:
    """Raise ValueError if a data set cannot give the fresh prompts that ``allocator`` may draw beside ``prompts``.

    ``distinct`` returns the number of distinct prompts of the data set, counted up to the number that it is given. So a
    run is refused before its first step, and does not end when its draws run out.
    """
    fresh = allocator.size(prompts).fresh
    if fresh and (found := distinct(prompts + fresh)) < prompts + fresh:
        raise ValueError(
            f"the data set must have {prompts + fresh} distinct prompts, the {prompts} of a generation batch and "
            f"the {fresh} that {allocator.name} may draw beside them, got {found}; give more, let the "
            "allocator draw fewer, or name an id_column if different questions share a prompt"
        )
