"""Metrics of how the rollouts of a batch were allocated, which every trainer logs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from apportion.advantages import ACROSS_GROUPS
from apportion.scheduler.shaping import shaping_of_groups
from apportion.selection import Selector
from apportion.types import Batch, Group

PREFIX, SELECTION_PREFIX = "allocation/", "selection/"
DIFFICULTIES = ("unsolved", "hard", "easy", "solved")
"""Difficulty of a prompt by its share of correct rollouts: none, at most half, more than half, all."""


def allocation_metrics(batch: Batch, groups: Sequence[Group], estimator: str | None) -> dict[str, float]:
    """Return the metrics of a finished batch, without the prefix.

    ``informative`` is the share of groups whose rewards differ, since dead ones have no gradient. All have one under an
    ``estimator`` that compares groups with each other, or with a baseline, unless all rewards of the batch are equal.
    ``signal`` is the variance of the rewards in a rollout's group, or in the batch under such an estimator, as the mean
    over rollouts. Under a loss that weighs rollouts or tokens equally it is what a rollout teaches.

    ``reward_per_prompt`` is the mean over prompts of their mean reward. Unlike that over rollouts it does not depend
    on the allocation. ``predicted_success`` was predicted before the first rollout, ``observed_success`` is the success
    rate of prompts with a verdict, and ``prediction_error`` their mean absolute difference. ``tokens_*`` are shares of
    the tokens by difficulty. ``phantom`` and ``phantom_gradient`` are ``groups`` and ``gradient`` of ``shaping_of``,
    before any gate.
    """
    asked = batch.asked
    received = [[r.reward for r in rollouts if r.reward is not None] for rollouts in batch.rollouts]
    if not any(received):
        received = [group.rewards.tolist() for group in groups]
    judged = np.flatnonzero(batch.trials > 0)
    observed = batch.successes[judged] / batch.trials[judged]
    found = {
        "rollouts": float(asked.sum()),
        "failed": float(asked.sum() - sum(r.step is None for rollouts in batch.rollouts for r in rollouts)),
        "rounds": float(batch.round),
        "prompts": float(len(batch.prompts)),
        "n_min": float(asked.min()),
        "n_mean": float(asked.mean()),
        "n_max": float(asked.max()),
        "groups": float(len(groups)),
        "informative": _informative(groups, estimator),
        "signal": _signal(groups, estimator),
        "reused": float(sum(r.step is not None for group in groups for r in group.rollouts)),
        "reward_per_prompt": float(np.mean([np.mean(own) for own in received if own])) if any(received) else math.nan,
    }
    if len(judged):
        predicted = batch.belief.mean[judged]
        found |= {
            "predicted_success": float(predicted.mean()),
            "observed_success": float(observed.mean()),
            "prediction_error": float(np.abs(predicted - observed).mean()),
        }
        found |= _tokens_by_difficulty(batch)
    if (shaping := shaping_of_groups(batch.rollouts, estimator)) is not None:
        found |= {"phantom": shaping.groups, "phantom_gradient": float(np.nan_to_num(shaping.gradient))}
    return found


def prefixed(found: Mapping[str, float], selection: Selector | None) -> dict[str, float]:
    """Return metrics of the allocation under ``PREFIX``, and those of ``selection`` under ``SELECTION_PREFIX``."""
    chosen = {} if selection is None else selection.metrics()
    return {PREFIX + name: value for name, value in found.items()} | {
        SELECTION_PREFIX + name: value for name, value in chosen.items()
    }


def _informative(groups: Sequence[Group], estimator: str | None) -> float:
    if estimator in ACROSS_GROUPS:
        return float(len({reward for group in groups for reward in group.rewards.tolist()}) > 1)
    return float(np.mean([group.informative for group in groups])) if groups else 0.0


def _signal(groups: Sequence[Group], estimator: str | None) -> float:
    sizes = np.array([len(group.rollouts) for group in groups], np.float64)
    if not sizes.sum():
        return 0.0
    if estimator in ACROSS_GROUPS:
        return float(np.var(np.concatenate([group.rewards for group in groups])))
    unbiased = sizes / np.maximum(sizes - 1, 1)
    return float(np.average(unbiased * [group.spread**2 for group in groups], weights=sizes))


def _tokens_by_difficulty(batch: Batch) -> dict[str, float]:
    spent = dict.fromkeys(DIFFICULTIES, 0.0)
    for rollouts, right, of in zip(batch.rollouts, batch.successes, batch.trials, strict=True):
        if of:
            name = "unsolved" if right == 0 else "solved" if right == of else "hard" if 2 * right <= of else "easy"
            spent[name] += sum(rollout.tokens or 0 for rollout in rollouts)
    total = sum(spent.values()) or 1.0
    return {f"tokens_{name}": tokens / total for name, tokens in spent.items()}
