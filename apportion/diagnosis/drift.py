"""How fast success rates move along a run, beyond the noise of finite groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.replay.intervals import Spanned, mean_over_prompts, per_unit, ratio_over_prompts
from apportion.types import Counts, Floats

LAGS = (1, 2, 4, 8, 16, 32, 64)
LEAST_PAIRS = 30
"""Least number of prompts with two groups at a lag for which drift at that lag is reported."""


@dataclass(frozen=True)
class LagDrift:
    """Groups of the same prompt that are ``lag`` visits apart.

    ``kept`` is the correlation of their success rates over prompts, with the noise of the groups taken out.
    """

    lag: int
    prompts: int
    kept: float


@dataclass(frozen=True)
class RateDrift:
    """How the success rates of prompts, or their mean rewards, move.

    Args:
        ratio: mean squared change between neighbouring visits of a prompt, over what the noise of groups explains. 1
            means that no change can be seen. None if fewer than ``LEAST_PAIRS`` prompts have two neighbouring groups.
        rise: mean change from the first to the last group of a prompt with two visits or more; None likewise.
        lags: what is left of the knowledge about prompts after some visits.
        half_life: visits after which half of the knowledge is left, by interpolation; None if it is not reached.
        means: mean reward at the start and at the end of the run, of the first and the last eighth of the groups. None
            for a run of one step, which has no start and no end.
        problem: what is missing for these numbers; "" if nothing is.
    """

    ratio: Spanned | None
    rise: Spanned | None
    lags: tuple[LagDrift, ...]
    half_life: float | None
    means: tuple[float, float] | None
    problem: str


def drift_of(record: RunRecord) -> RateDrift:
    """Return how fast success rates move in a run. Groups with fewer than two rewards are left out."""
    part = record.of_groups(record.trials >= 2)
    order = np.lexsort((part.visit, part.prompt))
    prompt, share = part.prompt[order], part.shares[order]
    noise = (part.variances / (part.trials - 1))[order]
    means = None
    if len(part.step) and part.step[0] < part.step[-1]:
        eighth = max(1, len(part.step) // 8)
        early, late = part.step <= part.step[eighth - 1], part.step >= part.step[-eighth]  # no step is cut in two
        means = float(part.shares[early].mean()), float(part.shares[late].mean())
    pairs = _pairs(prompt, 1)
    prompts = len(np.unique(prompt[pairs]))
    if prompts < LEAST_PAIRS:
        problem = (
            f"drift needs {LEAST_PAIRS} prompts that were visited twice with two rewards or more, this run has "
            f"{prompts}"
        )
        return RateDrift(None, None, (), None, means, problem)
    changes = np.stack([(share[pairs + 1] - share[pairs]) ** 2, noise[pairs] + noise[pairs + 1]], axis=1)
    own = np.unique(prompt[pairs], return_inverse=True)[1]
    ratio = ratio_over_prompts(*per_unit(own, changes, prompts).T)
    starts = np.flatnonzero(np.r_[True, prompt[1:] != prompt[:-1]])
    ends = np.r_[starts[1:], len(prompt)] - 1
    rise = mean_over_prompts((share[ends] - share[starts])[ends > starts])
    lags = tuple(_lags(prompt, share, noise))
    return RateDrift(ratio if np.isfinite(ratio.value) else None, rise, lags, _half_life(lags), means, "")


def _pairs(prompt: Counts, lag: int) -> Counts:
    """Return each i whose group at i + lag has the same prompt. ``prompt`` [N] is sorted."""
    return np.flatnonzero(prompt[lag:] == prompt[:-lag]) if len(prompt) > lag else np.zeros(0, np.int64)


def _lags(prompt: Counts, share: Floats, noise: Floats) -> list[LagDrift]:
    found = []
    for lag in LAGS:
        places = _pairs(prompt, lag)
        prompts = len(np.unique(prompt[places]))
        if prompts < LEAST_PAIRS:
            break
        first, second = share[places], share[places + lag]
        spreads = first.var() - noise[places].mean(), second.var() - noise[places + lag].mean()
        if min(spreads) <= 0:  # the groups differ by no more than their noise
            break
        kept = float(np.mean((first - first.mean()) * (second - second.mean())) / (spreads[0] * spreads[1]) ** 0.5)
        found.append(LagDrift(lag, prompts, kept))
    return found


def _half_life(lags: tuple[LagDrift, ...]) -> float | None:
    """Return the lag at which the line through the measured lags, and 1 at lag 0, falls to one half."""
    before = LagDrift(0, 0, 1.0)
    for each in lags:
        if each.kept <= 0.5:
            return before.lag + (each.lag - before.lag) * (before.kept - 0.5) / (before.kept - each.kept)
        before = each
    return None
