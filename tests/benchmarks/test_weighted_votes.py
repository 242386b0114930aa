"""Tests of the look at weighted votes: its winners and its placebo, on made answers."""

from collections import Counter

import numpy as np

from benchmarks.recorded import Question
from benchmarks.weighted_votes import gain, winners


def make_question(answers, tokens, gold="a"):
    return Question(tuple(answers), {answer: answer == gold for answer in answers}, tuple(tokens))


def test_equal_weights_give_the_plain_majority_and_the_first_of_equals():
    codes = np.random.default_rng(0).integers(4, size=(300, 9))
    chosen = winners(codes, np.ones(codes.shape))
    for row, winner in zip(codes.tolist(), chosen, strict=True):
        assert winner == Counter(row).most_common(1)[0][0]  # equal counts in order of first appearance


def test_the_larger_total_wins_even_with_fewer_votes():
    assert winners(np.array([[0, 0, 1]]), np.array([[1.0, 1.0, 3.0]])).tolist() == [1]


def test_a_factor_for_all_votes_of_a_question_changes_no_winner():
    rng = np.random.default_rng(1)
    codes, tokens = rng.integers(5, size=(200, 12)), rng.integers(1, 1000, size=(200, 12)).astype(float)
    assert (winners(codes, tokens) == winners(codes, tokens * 64)).all()


def test_weights_help_if_right_samples_are_longer_and_the_placebo_does_not_see_it():
    question = make_question("aaabbbbb", [100, 100, 100, 1, 1, 1, 1, 1])
    orders = np.random.default_rng(2).permuted(np.tile(np.arange(8), (400, 1)), axis=1)
    assert gain(question, orders) == 1
    assert gain(question, orders, np.random.default_rng(3)) < 0.6
