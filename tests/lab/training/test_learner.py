"""The learner on groups of which only some rollouts enter the loss."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from apportion import Uniform
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.learner import PolicyLearner
from apportion.lab.training.settings import Training
from apportion.lab.world.task import problem_pool
from apportion.types import Group
from tests.damaged_states import check_damage
from tests.lab.states import weights

UPDATES = ("grpo", "gae", "reinforce_plus_plus", "sft")
PROMPTS = [problem.prompt() for problem in problem_pool(5, seed=8)]
KEPT = 3


def voted(policy, seed=1, keep=KEPT):
    """Return ragged groups with rewards of 0 and 1. The first ``keep`` rollouts of each enter the loss."""
    drawn = LedgerSampler(policy, seed, reward=None)(PROMPTS, [4, 8, 5, 8, 6])
    rng = np.random.default_rng(0)
    return [
        Group(
            prompt,
            tuple(replace(rollout, reward=float(rng.random() < 0.5)) for rollout in rollouts),
            keep=np.arange(len(rollouts)) < keep,
        )
        for prompt, rollouts in zip(PROMPTS, drawn, strict=True)
    ]


def learner(policy, base, estimator, **changes):
    return PolicyLearner(copy.deepcopy(policy), Training(base=base, estimator=estimator, **changes), None)


def update(learner, groups):
    return learner.update(groups, learner.training.decisions(Uniform(8)))


def test_the_critic_and_the_policy_learn_from_those_kept_alone(small_base, small_base_folder):
    some, alone = (learner(small_base, small_base_folder, "gae", critic_updates=3) for _ in range(2))
    groups = voted(small_base)
    update(some, groups)
    update(alone, [Group(group.prompt, group.rollouts[:KEPT]) for group in groups])
    assert weights(some.critic)[-1] != 0
    assert torch.equal(weights(some.critic), weights(alone.critic))
    assert torch.equal(weights(some.policy), weights(alone.policy))
    rows = some._actor_critic_rows(groups, some.training.decisions(Uniform(8)))
    assert [row.weight for row in rows] == pytest.approx([1 / (KEPT * 5)] * KEPT * 5)
    tokens = np.concatenate([row.advantage for row in rows])
    assert [tokens.mean(), tokens.std(ddof=1)] == pytest.approx([0, 1], abs=1e-6)


@pytest.mark.parametrize("estimator", UPDATES)
def test_what_was_voted_with_and_not_kept_counts_by_its_reward_alone(small_base, small_base_folder, estimator):
    """Other tokens of the same length and reward give the same update."""
    groups = voted(small_base)
    others = [
        replace(group, rollouts=(*group.rollouts[:KEPT], *map(reworded, group.rollouts[KEPT:]))) for group in groups
    ]
    one, other = (learner(small_base, small_base_folder, estimator, critic_updates=1) for _ in range(2))
    update(one, groups)
    update(other, others)
    assert not torch.equal(weights(one.policy), weights(small_base))
    assert torch.equal(weights(one.policy), weights(other.policy))
    if estimator == "gae":
        assert torch.equal(weights(one.critic), weights(other.critic))


def reworded(rollout):
    """Return the rollout with another label as its first token."""
    first, *rest = rollout.completion.tokens
    return replace(rollout, completion=replace(rollout.completion, tokens=((first + 1) % 47, *rest)))


@pytest.mark.parametrize("estimator", UPDATES)
def test_no_consensus_anywhere_is_no_update(small_base, small_base_folder, estimator):
    idle = learner(small_base, small_base_folder, estimator)
    assert update(idle, []) == {"rows": 0.0, "grad_norm": 0.0}
    none = [replace(group, keep=np.zeros(len(group.rollouts), bool)) for group in voted(small_base)]
    assert update(idle, none)["rows"] == 0.0
    assert torch.equal(weights(idle.policy), weights(small_base))


def test_a_damaged_state_is_refused_and_changes_nothing(small_base, small_base_folder):
    trained = learner(small_base, small_base_folder, "gae", critic_updates=1)
    update(trained, voted(small_base))

    def some(state):
        weight = next(iter(state["policy"]))
        return [("policy", weight), ("optimizer", "state", 0, "step"), ("optimizer", "param_groups")]

    make = partial(learner, small_base, small_base_folder, "gae")
    assert check_damage(make, trained.state_dict(), paths=some) > 20


@pytest.mark.parametrize("estimator", ["rloo", "gae"])
def test_under_the_gate_shaping_in_dead_groups_teaches_nothing(small_base, small_base_folder, estimator):
    """Groups with shaping are trained on as those whose rewards are their outcomes."""
    groups = [
        replace(each, rollouts=tuple(replace(own, correct=True) for own in each.rollouts)) for each in voted(small_base)
    ]
    plain = [replace(each, rollouts=tuple(replace(own, reward=1.0) for own in each.rollouts)) for each in groups]
    gated, free, bare = (
        learner(small_base, small_base_folder, estimator, outcome_gate=gate) for gate in (True, False, False)
    )
    for each, given in ((gated, groups), (free, groups), (bare, plain)):
        update(each, given)
    assert torch.equal(weights(gated.policy), weights(bare.policy))
    assert not torch.equal(weights(free.policy), weights(bare.policy))
