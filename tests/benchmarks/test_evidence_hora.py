"""Tests of HORA's evidence: its rivals deal what they say, its hits are those of the lab, and its verdicts follow."""

import numpy as np
import pytest

from apportion import HORA, Prompt, Rollout
from apportion.lab.measure.hits import expected_hits, expected_hits_under
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


def test_hits_are_those_that_the_lab_expects():
    success = np.random.default_rng(1).beta(0.4, 1.0, 16)
    first, correct, counts = drawn(success, HORA(**SETTINGS), 20, seed=3)
    found = metrics(success, first, correct, counts)
    assert 16 * found[0] == pytest.approx(expected_hits_under(success, HORA(**SETTINGS), draws=20, seed=3).expected)


def test_a_gain_is_without_the_noise_of_the_pre_rollouts():
    success = np.random.default_rng(1).beta(0.4, 1.0, 16)
    uniform = expected_hits(success, [8] * 16).expected
    far = expected_hits_under(success, HORA(**SETTINGS), draws=1500).gain(uniform) / 16
    assert gain(success, HORA(**SETTINGS), 8, 200, seed=0)[0] == pytest.approx(far, abs=0.008)


def test_the_longest_problems_are_as_many_as_a_pool_and_not_held_out():
    found = set(long_pool(0).problems)
    assert len(found) == 512 and {len(problem.operations) for problem in found} == {5}
    assert not found & set(held_out_problems())
