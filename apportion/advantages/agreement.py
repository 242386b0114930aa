"""Whether a run trains what its allocator assumes: the estimator whose variance it minimises, and the weights.

VIP and Neyman minimise the variance of a mean over prompts. If rollouts have equal weight instead, prompts count by
their numbers of rollouts, and the same counts raise that variance above that of uniform counts.
"""

import logging
from typing import get_args

from apportion.advantages.grouping import Weighting
from apportion.allocators import Allocator
from apportion.checks import check_choice

logger = logging.getLogger(__name__)

UNBIASED_BY_ROLLOUT = ("sequential",)
"""Estimators that are unbiased as a sum over rollouts, but not as a mean over prompts."""

WITH_FORMULA = ("rloo", "dr_grpo")
"""Estimators for which every rule that minimises a variance has a formula."""


def default_weighting(estimator: str | None) -> Weighting:
    """Return the weighting under which ``estimator`` is unbiased for the mean over prompts; None is an engine's own.

    >>> default_weighting("rloo"), default_weighting("sequential")
    ('prompt', 'rollout')
    """
    return "rollout" if estimator in UNBIASED_BY_ROLLOUT else "prompt"


def check_weighting(weighting: object) -> None:
    """Raise ValueError unless ``weighting`` is a ``Weighting``, or None for the estimator's own."""
    if weighting is not None:
        remedy = "leave it out for the one that suits the estimator"
        check_choice("weighting", weighting, get_args(Weighting), remedy)


def check_agreement(allocator: Allocator, estimator: str, weighting: Weighting) -> None:
    """Compare what ``allocator`` minimises with what the run trains: ``estimator``, under ``weighting``.

    Raises ValueError if it minimises the variance of another estimator although it has a formula for this one. Logs a
    warning if it has none, or if prompts do not have equal weight.
    """
    minimised = allocator.needs.estimator
    if minimised is None:
        return
    if estimator != minimised and estimator in WITH_FORMULA:
        raise ValueError(
            f"{allocator.name} must minimise the variance of the estimator that trains, {estimator}, got {minimised}; "
            f'give it estimator="{estimator}"'
        )
    if estimator != minimised:
        logger.warning(
            "%s minimises the variance of %s, and the run trains %s, for which it has no formula; rloo and dr_grpo "
            "have one",
            allocator.name,
            minimised,
            estimator,
        )
    if weighting != "prompt":
        logger.warning(
            "%s minimises a variance under equal weights of prompts, and the run weighs every %s equally, which can "
            'raise the variance above that of uniform counts; leave weighting out, or set it to "prompt"',
            allocator.name,
            weighting,
        )
