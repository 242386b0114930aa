"""Allocators in the cookbook's own loop: what reaches ``forward_backward`` is scored again, grouped and counted."""

import numpy as np
import pytest

from apportion import AR3PO, HORA, VIP, Batch, Belief, Neyman, Prompt, Rollout, Uniform
from apportion.baselines import SPO
from apportion.lab.world.task import decode
from apportion.predictors import GaussianProcess, PrecomputedEmbeddings
from apportion.tinker import allocated
from apportion.tinker.problems import question_of
from apportion.types import Plan
from tests.rules import small
from tests.tinker.problems import questions
from tests.tinker.runs import BELOW, assert_advantages, counts, sampled, trained

KINDS = ("vip", "hora", "dapo", "reinforce_ada")
"""A rule of each kind: planned at once, in stages, with fresh prompts, thinned. Votes are refused."""


def rloo(n):
    return n / (n - 1) if n > 1 else 0.0


def spied(allocator):
    """Return a list that gets every batch that ``allocator`` observes."""
    batches, observe = [], allocator.observe

    def seen(batch):
        batches.append(batch)
        observe(batch)

    object.__setattr__(allocator, "observe", seen)
    return batches


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_sees_what_the_rule_planned(configured, run, service, name):
    allocator = small(name, 4)
    batches = spied(allocator)
    log = run(allocated(configured({"count": 16}, max_steps=2), allocator))
    for step, batch in enumerate(batches):
        groups = allocator.groups(batch)
        rewards = sampled(service, step)
        assert sum(map(len, rewards.values())) == batch.asked.sum() == log[step]["env/all/allocation/rollouts"]
        assert sorted(counts(rewards).values()) == sorted(batch.asked[batch.asked > 0])
        assert sorted(counts(trained(service, step)).values()) == sorted(int(group.keep.sum()) for group in groups)
        assert_advantages(service, step, factor=rloo if allocator.needs.estimator == "rloo" else lambda n: 1.0)
        if name in ("vip", "hora"):
            assert batch.asked.sum() == 16
    assert len(batches) == 2


@pytest.mark.parametrize(("allocator", "each"), [(HORA(), 4), (HORA(rollouts_per_prompt=6), 6)])
def test_the_budget_is_the_group_size_unless_it_is_given(configured, run, service, allocator, each):
    """Rollouts may have equal weights, which the logged reward is without."""
    log = run(allocated(configured({"count": 16}, max_steps=1), allocator, weighting="rollout"))
    assert log[0]["env/all/allocation/rollouts"] == 4 * each and log[0]["env/all/allocation/rounds"] == 2
    assert_advantages(service, 0, weighting="rollout")
    rewards = [reward for own in sampled(service, 0).values() for reward in own]
    assert log[0]["env/all/reward/total"] == pytest.approx(sum(rewards) / len(rewards))


def test_single_rollouts_against_a_baseline_from_history(configured, run, service):
    run(allocated(configured({"count": 4}, num_epochs=2), Uniform(1), estimator="reinforce", baseline=SPO()))
    baseline = SPO()
    for step in range(2):
        rewards = sampled(service, step)
        prompts = [Prompt(decode(question)) for question in rewards]
        for (question, (reward,)), expected in zip(rewards.items(), baseline.predict(prompts), strict=True):
            (row,) = trained(service, step)[question]
            assert row.advantage == pytest.approx(reward - expected, abs=1e-6)
        batch = Batch.start(prompts, Belief.uniform(4))
        baseline.update(batch.add(Plan([1] * 4), [[Rollout(bool(own[0]))] for own in rewards.values()]))


def test_neyman_reads_score_norms_of_the_sampled_tokens(configured, run, service):
    allocator = Neyman(rollouts_per_prompt=6)
    batches = spied(allocator)
    run(allocated(configured({"count": 4}, num_epochs=3), allocator))
    norms = [rollout.score_norm for batch in batches for own in batch.rollouts for rollout in own]
    assert len(norms) == 72 and all(0 < norm < 2 for norm in norms)  # of two tokens
    assert len(set(counts(trained(service, 2)).values())) > 1


def test_a_named_metric_is_the_verdict(configured, run, service):
    allocator = HORA(pre_rollouts=4, rollouts_per_prompt=8)
    batches = spied(allocator)
    run(allocated(configured({"graded": True}, max_steps=1), allocator))
    rollouts = [rollout for own in batches[0].rollouts for rollout in own]
    assert {rollout.reward for rollout in rollouts} - {0.0, 1.0}
    assert all(rollout.correct == (rollout.reward > 0.5) for rollout in rollouts)


def test_texts_of_the_whole_data_set_are_prepared(configured, run, service):
    prompts = [Prompt(text) for text in questions(12)]
    allocator = VIP(
        rollouts_per_prompt=4,
        predictor=GaussianProcess(PrecomputedEmbeddings.from_array(prompts, np.eye(12))),
    )
    prepared, prepare = [], allocator.prepare
    object.__setattr__(allocator, "prepare", lambda known: [prepared.extend(known), prepare(known)])
    prompt_of = lambda builder: Prompt(question_of(builder).text, rate=0.25)  # noqa: E731
    run(allocated(configured({"count": 12}, max_steps=2), allocator, prompt_of=prompt_of))
    assert [prompt.rate for prompt in prepared] == [0.25] * 12 and sum(counts(trained(service, 1)).values()) == 16


def test_a_reused_response_is_a_baseline_only(configured, run, service):
    """AR3PO compares prompts without a correct rollout with an earlier correct one, which stays out of the loss."""
    allocator = AR3PO(stages=1, rollouts_per_stage=3)
    log = run(allocated(configured({"count": 4}, num_epochs=6, learning_rate=0.0), allocator))
    reused = [row.get("env/all/allocation/reused", 0) for row in log]
    assert max(reused) > 0
    for step in np.flatnonzero(reused):
        groups, rewards = trained(service, step), sampled(service, step)
        unsolved = [question for question in groups if not any(rewards[question])]
        compared = [question for question in unsolved if groups[question][0].advantage]
        assert len(compared) == reused[step]
        weight = sum(map(len, groups.values())) / len(groups) / 2
        for question in compared:  # the earlier one takes the place of a wrong one: the mean of the three is 1/3
            assert [row.advantage for row in groups[question]] == pytest.approx([-weight / 3] * 2)


def test_the_outcome_gate_leaves_groups_of_equal_verdicts_without_an_advantage(configured, run, service):
    """The reward of a graded problem also depends on the second token, which no verdict reads."""
    run(allocated(configured({"graded": True}, max_steps=2), Uniform(4), outcome_gate=True))
    shaped = 0
    for step in range(2):
        for question, group in trained(service, step).items():
            right = np.array([float(row.ids[0] < BELOW[question]) for row in group])
            rewards = right - [0.1 * (row.ids[1] % 2) for row in group]
            expected = rewards - rewards.mean() if len(set(right)) > 1 else 0.0 * right
            np.testing.assert_allclose([row.advantage for row in group], expected, atol=1e-6)
            shaped += len(set(right)) < 2 and len(set(rewards)) > 1
    assert shaped
