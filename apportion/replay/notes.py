"""What the numbers of a replay cannot say, for every place that shows them."""

from __future__ import annotations

import math

import numpy as np

from apportion.replay.results import Replay

POLICY = (
    "The policy was trained on what the run sampled. A replay says what a rule would have found at that policy, not "
    "what the policy would have become."
)


def notes(found: Replay) -> list[str]:
    """Return what the numbers of a replay cannot say, one sentence or two each."""
    told = [f"Left out: {reason}." for reason in found.dropped]
    for each in found.allocators:
        if not each.same_total:
            told.append(
                f"{each.name} takes {each.of_budget:.2f} times the budget of {each.budget} rollouts a prompt. Compare "
                "it by its ratios, whose control takes as many."
            )
        if each.missing is not None:
            told.append(f"{each.name}: {each.missing}.")
        if each.warnings:
            told.append(f"{each.name} logged {each.warnings} warnings, such as a batch that it could not fill.")
    for choice in found.selectors[1:]:
        if choice.above_shuffled.low <= 0:
            told.append(
                f"{choice.name} finds no more mixed groups than shuffled epochs do, beyond noise: it knew nothing."
            )
    expected = [each.name for each in found.allocators if each.source == "expected"]
    if expected:
        bound = 1 - 0.05 ** (1 / max(1, found.certain_size))
        smoothing = found.run.ratios.get("mixed")
        told.append(
            f"In expectation ({', '.join(expected)}), outcomes are drawn at the mean of {_around(found)}. At "
            f"{found.certain:.0%} of the groups that mean is 0 or 1, so nothing can be found there. But "
            f"{found.certain_size} wrong rollouts also fit a success rate of {bound:.1%}, so rules that search such "
            "prompts gain more than is shown."
        )
        if smoothing is not None and np.isfinite(smoothing.value):
            told.append(
                f"The run itself has {smoothing.value:.3f} times the mixed groups that this expectation gives it. "
                "Differences as small as that are not differences between rules."
            )
    if math.isnan(found.drift):
        told.append("No prompt has as many visits as the window, so how far mean rewards move within it is unknown.")
    elif found.drift:
        told.append(
            f"Within the window a prompt's mean reward moves by {found.drift:.3f} (root mean square, without sampling "
            "noise), which the replay does not see."
        )
    return [*told, POLICY]


def _around(found: Replay) -> str:
    return "up to ten visits around" if found.window is None else f"{found.window} visits before and after"
