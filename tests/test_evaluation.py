from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.evaluation import answer_scores, bootstrap_interval, evaluate, majority_at_k, pass_at_k


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(case):
    n, c, k = case
    outcomes = [1] * c + [0] * (n - c)
    hits = [any(subset) for subset in combinations(outcomes, k)]
    assert pass_at_k([c], [n], k)[0] == pytest.approx(np.mean(hits), abs=1e-12)


def test_pass_at_k_does_not_overflow():
    exact = 1 - comb(9_997, 5_000) / comb(10_000, 5_000)
    assert pass_at_k([3], [10_000], 5_000)[0] == pytest.approx(exact, rel=1e-10)


def test_pass_at_k_of_ragged_prompts_and_of_none():
    assert pass_at_k([1, 5, 0], [2, 5, 9], 2).tolist() == [1.0, 1.0, 0.0]
    assert pass_at_k([], [], 1).shape == (0,)


ANSWERS = st.lists(st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=9), min_size=1, max_size=6)
GOLD = st.sets(st.sampled_from(["1", "2", "3", "4"]))


@given(ANSWERS.flatmap(lambda answers: st.tuples(st.just(answers), st.lists(GOLD, min_size=6, max_size=6))))
def test_answer_scores_by_brute_force(case):
    """Of equal numbers of votes the answer that came first counts."""
    answers, gold = case[0], case[1][: len(case[0])]
    scores = []
    for own, known in zip(answers, gold, strict=True):
        ranked = Counter(answer for answer in own if answer is not None).most_common(1)
        right = [answer in known for answer in own]
        scores.append([np.mean(right), any(right), bool(ranked) and ranked[0][0] in known])
    assert answer_scores(answers, gold) == pytest.approx(np.mean(scores, axis=0))


def test_the_interval_of_few_different_values_is_that_of_resampled_prompts():
    values = np.random.default_rng(3).choice([0.0, 0.25, 1.0], 400, p=[0.5, 0.2, 0.3])
    drawn = np.random.default_rng(4).choice(values, (20_000, 400)).mean(axis=1)
    assert bootstrap_interval(values) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.002)
    assert bootstrap_interval([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])[0] == 0.0


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(2).random(101)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)


def test_equal_values_have_an_interval_without_width():
    assert bootstrap_interval([0.25] * 9) == (0.25, 0.25)


def test_resamples_in_blocks_are_as_many_as_asked_for(monkeypatch):
    sizes = []

    def counting(array, axis):
        sizes.append(array.shape)
        return array.mean(axis=axis)

    monkeypatch.setattr("apportion.evaluation.BLOCK", 35)
    bootstrap_interval(np.arange(10.0), counting, resamples=10)
    assert sizes == [(3, 10), (3, 10), (3, 10), (1, 10)]


OWN = st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=7)


def majority_by_subsets(own, known, k):
    """Maj@k by the votes of every subset: the share of right answers among those with the most."""
    shares = []
    for subset in combinations(own, k):
        votes = Counter(answer for answer in subset if answer is not None)
        best = [answer for answer in votes if votes[answer] == max(votes.values())]
        shares.append(sum(answer in known for answer in best) / max(1, len(best)))
    return np.mean(shares)


@given(OWN.flatmap(lambda own: st.tuples(st.just(own), GOLD, st.integers(1, len(own)))))
def test_majority_at_k_is_the_share_of_subsets_whose_majority_is_right(case):
    own, known, k = case
    found = majority_at_k([own, own[::-1]], [known] * 2, k)
    assert found == pytest.approx([majority_by_subsets(own, known, k)] * 2, abs=1e-12)


@pytest.mark.parametrize("block", [2**20, 100])
def test_random_subsets_are_near_all_of_them_and_the_same_for_a_seed(monkeypatch, block):
    monkeypatch.setattr("apportion.evaluation.BLOCK", block)
    own = [*"1232111323", None, None]
    exact = majority_by_subsets(own, {"1"}, 6)
    found = majority_at_k([own] * 20, [{"1"}] * 20, 6, draws=400)
    assert found.std() > 0 and found.mean() == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(20 * 400))
    assert found.tolist() == majority_at_k([own] * 20, [{"1"}] * 20, 6, draws=400).tolist()
    assert found.tolist() != majority_at_k([own] * 20, [{"1"}] * 20, 6, draws=400, seed=1).tolist()


def test_an_evaluation_covers_at_each_k_the_problems_that_have_it():
    found = evaluate([[1, 0, 0, 1], [0, 0], [1, 1]], [["7", "8", "8", "7"], ["8", None], ["1", "1"]], ks=[2, 1, 4, 2])
    assert (found.problems, found.rollouts, found.least, found.most) == (3, 8, 2, 4)
    assert found.mean.mean == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert [(at.k, at.problems) for at in found.at] == [(1, 3), (2, 3), (4, 1)]
    assert [at.passed.mean for at in found.at] == pytest.approx([1 / 2, (5 / 6 + 0 + 1) / 3, 1])
    assert [at.majority.mean for at in found.at] == pytest.approx([1 / 2, (3 / 6 + 0 + 1) / 3, 1 / 2])
    assert found.at[1].passed.low == 0 and found.at[1].passed.high == 1


def test_usual_ks_are_powers_of_two_up_to_what_nine_tenths_have():
    expected = {(8,) * 10: [1, 2, 4, 8], (3, *[12] * 9): [1, 2, 4, 8, 12], (3, 3, *[12] * 8): [1, 2, 3], (1,): [1]}
    for sizes, ks in expected.items():
        assert [at.k for at in evaluate([[1] * size for size in sizes]).at] == ks


def test_a_graded_evaluation_has_a_mean_only():
    found = evaluate([[0.25, 0.75], [0, 0]])
    assert found.mean.mean == 0.25 and found.at == ()
