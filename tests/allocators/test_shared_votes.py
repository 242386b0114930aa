"""Votes under one budget: what they are worth, against enumeration, and who gets them, against every other split."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Rollout
from apportion.allocators import SharedVotes
from apportion.allocators.shared_votes import error_removed, take_largest, votes_worth
from apportion.checks import total_of
from tests.allocators.votes.builders import replayed
from tests.builders import finished, make_prompts

PAIRS = [(first, second) for first in range(7) for second in range(first + 1)]


def wrong(first, second):
    """P(q < 1/2) under Beta(first + 1, second + 1), exactly."""
    flips = first + second + 1
    return Fraction(sum(comb(flips, heads) for heads in range(second + 1)), 2**flips)


def wrong_after(first, second, votes):
    """The expected error of the leader after each sequence of ``votes`` more votes; one vote more is Laplace's urn."""
    total = Fraction(0)
    for sequence in product((True, False), repeat=votes):
        a, b, probability = first, second, Fraction(1)
        for for_first in sequence:
            probability *= Fraction((a if for_first else b) + 1, a + b + 2)
            a, b = a + for_first, b + (not for_first)
        total += probability * wrong(max(a, b), min(a, b))
    return total


def worth(states, left, counts):
    """The error that ``counts`` more votes are expected to remove, after the votes of ``states``, summed."""
    return sum(
        error_removed(np.array([a]), np.array([b]), most)[0, count]
        for (a, b), most, count in zip(states, left, counts, strict=True)
    )


def voted(states, silent=None):
    """The batch after each prompt's first votes: (leader, runner-up) in ``states``, and samples without an answer."""
    silent = silent or [0] * len(states)
    answers = [["a"] * a + ["b"] * b + [None] * none for (a, b), none in zip(states, silent, strict=True)]
    rollouts = [[Rollout(answer=answer) for answer in each] for each in answers]
    return finished(make_prompts(len(states)), rollouts)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_error_removed_is_that_of_every_sequence_of_votes(first, second):
    now, removed = wrong(first, second), error_removed(np.array([first]), np.array([second]), 9)[0]
    for votes in range(10):
        assert removed[votes] == pytest.approx(float(now - wrong_after(first, second, votes)), abs=1e-14)


@given(
    states=st.lists(st.sampled_from(PAIRS), min_size=1, max_size=3),
    left=st.lists(st.integers(0, 7), min_size=3, max_size=3),
)
@settings(deadline=None)
def test_no_split_of_a_budget_removes_more_error(states, left):
    """At each budget that buys whole blocks; at those between, no split is better than the envelope."""
    left = left[: len(states)]
    gains = votes_worth(*np.array(states).T, np.array(left))
    best = {}
    for counts in product(*(range(most + 1) for most in left)):
        best[sum(counts)] = max(best.get(sum(counts), 0.0), worth(states, left, counts))
    for budget in range(int((gains > 0).sum()) + 1):
        counts = take_largest(gains, budget)
        bound = sum(gains[q, :count].sum() for q, count in enumerate(counts))
        reached = worth(states, left, counts)
        assert counts.sum() == budget
        assert reached <= best[budget] + 1e-12 and best[budget] <= bound + 1e-12
        on_the_envelope = bound - reached < 1e-12
        assert not on_the_envelope or reached == pytest.approx(best[budget], abs=1e-12)
    everything = take_largest(gains, int((gains > 0).sum()))
    assert worth(states, left, everything) == pytest.approx(max(best.values()), abs=1e-12)


answer_streams = st.lists(st.sampled_from(["a", "a", "a", "b", "b", "c", None]), min_size=60, max_size=60)


@given(streams=st.lists(answer_streams, min_size=1, max_size=5), average=st.floats(3, 12), rounds=st.integers(1, 5))
@settings(deadline=None)
def test_the_budget_is_spent_to_the_last_sample_where_an_answer_is_left_to_ask_for(streams, average, rounds):
    shared = SharedVotes(samples_per_prompt=average, min_samples=3, max_samples=256, rounds=rounds)
    batch = replayed(shared, streams)
    answered = [stream[:3] != [None] * 3 for stream in streams]
    assert batch.asked.sum() == (total_of(average, len(streams)) if any(answered) else 3 * len(streams))
    assert (batch.asked[~np.array(answered)] == 3).all()
    assert batch.round <= 1 + rounds
    assert not shared.plan(batch)


def test_a_leader_that_cannot_be_overtaken_gets_no_more():
    shared = SharedVotes(samples_per_prompt=10, min_samples=6, max_samples=10, rounds=2)
    batch = replayed(shared, [["a"] * 10, ["a", "b"] * 5, list("aaaaabbbbb")])
    assert batch.asked.tolist() == [6, 9, 6]  # after 9, the fifth vote for one of two decides


def test_prompts_without_an_answer_get_no_more():
    shared = SharedVotes(samples_per_prompt=10, min_samples=4, max_samples=64)
    batch = replayed(shared, [[None] * 64, ["a", "b", "a", "c"] * 16, [None] * 4 + ["a"] * 60])
    assert batch.asked.tolist() == [4, 22, 4]
    assert [label.status for label in shared.labels(batch)] == ["unanswered", "exhausted", "unanswered"]


def test_samples_that_rarely_hold_an_answer_are_bought_later():
    shared = SharedVotes(samples_per_prompt=13, min_samples=12, max_samples=64, rounds=1)
    assert votes_worth(np.array([2, 6]), np.array([1, 5]), np.array([9, 9]))[:, 0].argmax() == 0
    assert shared.plan(voted([(2, 1), (6, 5)], [9, 1])).counts.tolist() == [0, 2]


@pytest.mark.parametrize("confidence", [0.6, 0.95])
def test_a_label_is_decided_where_its_leader_is_right_with_enough_confidence(confidence):
    pairs = [(first, second) for first, second in PAIRS if first > second]
    shared = SharedVotes(samples_per_prompt=6, min_samples=1, confidence=confidence)
    for pair, label in zip(pairs, shared.labels(voted(pairs)), strict=True):
        assert label.answer == "a"
        assert label.status == ("decided" if 1 - wrong(*pair) >= confidence else "exhausted")
