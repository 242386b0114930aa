"""Tests of HORA's evidence: its rivals deal what they say, and its hits are those of whole batches."""

import numpy as np
import pytest

from apportion import HORA, Prompt, Rollout, collect
from apportion.lab.world.task import held_out_problems
from benchmarks.evidence.hora_hits_measured import drawn, gain, long_pool, metrics
from benchmarks.evidence.hora_rules import Hardest, RandomPrompts

SETTINGS = {"pre_rollouts": 4, "rollouts_per_prompt": 8}
RIGHT = (0, 4, 1, 0)


def extra(allocator, right=RIGHT):
    """Return the rollouts that follow 4 pre-rollouts, of which so many were right."""
    batch = allocator.start([Prompt(str(q)) for q in range(len(right))])
    outcomes = [[Rollout(n < count) for n in range(4)] for count in right]
    batch = batch.add(allocator.plan(batch), outcomes)
    return allocator.plan(batch).counts.tolist()


def test_rivals_deal_the_rest_as_they_say():
    assert extra(Hardest(**SETTINGS)) == [8, 0, 0, 8]
    assert extra(Hardest(high=9, **SETTINGS)) == [5, 1, 5, 5]
    assert sorted(extra(RandomPrompts(**SETTINGS))) == sorted(extra(HORA(**SETTINGS)))
    assert all(sum(extra(rule(**SETTINGS))) == 16 for rule in (Hardest, RandomPrompts))


def test_hits_are_what_whole_batches_find():
    success, rng = np.array([0.02, 0.1, 0.1, 0.3, 0.6, 0.97]), np.random.default_rng(1)
    prompts, rule = [Prompt(str(q)) for q in range(6)], HORA(pre_rollouts=3, rollouts_per_prompt=6, high=12)

    def sample(prompts, counts):
        return [[Rollout(bool(c)) for c in rng.random(n) < p] for n, p in zip(counts, success, strict=True)]

    whole = np.array([(collect(rule, prompts, sample).successes > 0).mean() for _ in range(500)])
    expected = metrics(success, *drawn(success, rule, 500, seed=2))[0]
    assert abs(expected - whole.mean()) < 5 * whole.std() / np.sqrt(500)


def test_a_gain_is_without_the_noise_of_the_pre_rollouts():
    success = np.random.default_rng(1).beta(0.4, 1.0, 16)
    far = metrics(success, *drawn(success, HORA(**SETTINGS), 1500, seed=0))[0] - (1 - (1 - success) ** 8).mean()
    assert gain(success, HORA(**SETTINGS), 8, 200, seed=0)[0] == pytest.approx(far, abs=0.008)


def test_the_longest_problems_are_as_many_as_a_pool_and_not_held_out():
    found = set(long_pool(0).problems)
    assert len(found) == 512 and {len(problem.operations) for problem in found} == {5}
    assert not found & set(held_out_problems())
