"""Trajectory groups as rollouts that an allocator reads, and the rewards with which finished groups enter the loss.

tinker-cookbook subtracts the mean of a group from its rewards and sums over all tokens of the batch. So a prompt weighs
as much as its number of rollouts. Its public hook for rewards that depend on a whole group can change the weights: if a
reward r is replaced by m + w (r - m), where m is the mean of its group, the advantage is w (r - m), and every mean of
rewards in the log stays the same. With equal groups w is 1, and the rewards stay the same to the last bit.

If the advantages that enter the loss do not sum to 0 in a group, because of the estimator, or because some rollouts
stay out, the group gets one more member. It has no tokens, so it gives the loss no datum. Its reward makes the mean
that is subtracted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Metrics, Trajectory, TrajectoryGroup, Transition

from apportion.advantages import ESTIMATORS
from apportion.scheduler.outcomes import rollout_of
from apportion.tinker.settings import OWN_ESTIMATOR, TinkerAllocation
from apportion.types import Floats, Group, Rollout


@dataclass(frozen=True, slots=True)
class EarlierEpisode:
    """What is kept of an episode for later steps: its sampled ``tokens``. It serves only as a baseline."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """The completion of a rollout: a trajectory, the ``reward`` of its group beyond those of its steps, and metrics."""

    trajectory: Trajectory
    reward: float
    metrics: Metrics

    @property
    def tokens(self) -> tuple[int, ...]:
        """All sampled tokens. An allocator recognises equal responses by them."""
        return tuple(token for transition in self.trajectory.transitions for token in transition.ac.tokens)

    def for_reuse(self) -> EarlierEpisode:
        """Return the part of the rollout that a later step needs."""
        return EarlierEpisode(self.tokens)


def rollouts_of(group: TrajectoryGroup, allocation: TinkerAllocation) -> list[Rollout]:
    """Return the rollouts of a trajectory group; one whose reward or verdict is no finite number has failed.

    Raises ValueError if one lacks a verdict that is needed.
    """
    found, verdict = list[Rollout | None](), allocation.verdict
    members = zip(group.trajectories_G, group.final_rewards_G, group.metrics_G, group.get_total_rewards(), strict=True)
    for trajectory, reward, metrics, total in members:
        episode, steps = Episode(trajectory, reward, metrics), trajectory.transitions
        reports = [metrics, *(step.metrics for step in reversed(steps))]
        rollout = rollout_of(
            total,
            allocation.needs,
            verdict=next((own[verdict] for own in reports if own.get(verdict) is not None), None),
            tokens=len(episode.tokens),
            logprobs=np.concatenate([np.zeros(0), *(step.ac.logprobs for step in steps)]),
            completion=episode,
            remedy=f"name a metric of the environment that is above 0 for correct rollouts as verdict, now {verdict!r}",
        )
        found.append(rollout)
    return [rollout for rollout in found if rollout is not None]


def rewarded(
    groups: Sequence[Group], allocation: TinkerAllocation, average: float | None = None
) -> list[list[Episode]]:
    """Return the part of each group that enters the loss, such that the cookbook computes the estimator's advantages.

    Where prompts weigh equally, a group weighs as much as one of ``average`` rollouts; by default of their own mean.
    """
    if not groups:
        return []
    weighted, sizes = allocation.weighted(groups), [len(group.rollouts) for group in groups]
    if average is not None and allocation.loss_weighting == "prompt":
        weighted *= average * len(groups) / sum(int(group.keep.sum()) for group in groups)
    advantages = np.split(weighted, np.cumsum(sizes)[:-1])
    return [_members(group, own) for group, own in zip(groups, advantages, strict=True)]


def _members(group: Group, advantages: Floats) -> list[Episode]:
    """Return the kept members with rewards that give ``advantages`` [G], and a balancing one if these have a sum."""
    kept, rewards = np.flatnonzero(group.keep), group.rewards[group.keep]
    shifts = advantages[kept] - ESTIMATORS[OWN_ESTIMATOR](rewards, np.zeros(len(kept)))
    episodes = [group.rollouts[i].completion for i in kept]
    found = [replace(own, reward=own.reward + shift) for own, shift in zip(episodes, shifts.tolist(), strict=True)]
    if not np.isclose(total := advantages[kept].sum(), 0.0):
        found.append(Episode(_without_tokens(), float(rewards.mean() - total), {}))
    return found


def _without_tokens() -> Trajectory:
    nothing = tinker.ModelInput.empty()
    step = Transition(ob=nothing, ac=TokensWithLogprobs([], []), reward=0.0, episode_done=True)
    return Trajectory(transitions=[step], final_ob=nothing)
