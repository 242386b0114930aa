"""Voting: the allocator that asks a stopping rule, prompt by prompt."""

import pytest

from apportion import Plan, Rollout
from apportion.allocators import Voting
from apportion.stopping import ESC, BayesianSPRT, Fixed
from tests.builders import finished, make_prompts


def test_a_sample_that_failed_is_paid_for_and_does_not_vote():
    voting = Voting(Fixed(), max_samples=4, wave=2, curtail=False)
    batch = finished(make_prompts(1), [[Rollout(answer="7")]], [2])
    assert voting.votes(batch, 0)[1].tolist() == [[0], [1]]
    assert voting.plan(batch).counts.tolist() == [2]
    batch = batch.add(Plan([2]), [[]])
    assert not voting.plan(batch) and voting.winner(batch, 0) == "7"


def test_a_sample_that_failed_spoils_one_window_and_not_every_later_one():
    voting = Voting(ESC(window=5), max_samples=40, wave=5, curtail=False)
    batch = finished(make_prompts(1), [[Rollout(answer="7")] * 4], [5])
    assert voting.plan(batch).counts.tolist() == [5]
    assert not voting.plan(batch.add(Plan([5]), [[Rollout(answer="7")] * 5]))


def test_a_rule_that_needs_more_samples_than_there_are_is_refused():
    with pytest.raises(ValueError, match="min_samples must be at most max_samples"):
        Voting(BayesianSPRT(min_samples=16), max_samples=8)
