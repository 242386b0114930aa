"""Tests of the benchmark of free-form answers: its data, and what it measures."""

import asyncio

import numpy as np
import pytest

from apportion.answers import ExactMatch, PhraseMatch
from benchmarks.free_form import SAMPLES, Worded, choose, cross_fitted, hand_written, measure, precision


@pytest.fixture(scope="module")
def words():
    return hand_written(orders=2, seed=0)


def pairs(questions, equivalence):
    return asyncio.run(measure(questions, equivalence))


def test_each_wording_is_of_one_class_and_phrases_never_merge_two(words):
    assert len(words) == 60 and all(len(set(question.classes.values())) >= 2 for question in words)
    assert {len(stream) for question in words for stream in question.streams} == {SAMPLES}
    merged, rightly, _ = pairs(words, PhraseMatch()).sum(axis=0)
    assert merged == rightly > 0


def test_votes_are_the_same_for_the_same_seed(words):
    assert hand_written(2, 0) == words and hand_written(2, 1) != words


def test_pairs_of_wordings_are_counted_by_what_they_mean():
    stream = ("a cat", "A cat!", "the cat", "a dog", "a cat", "dog")
    question = Worded("?", {"a cat": 0, "A cat!": 0, "the cat": 1, "a dog": 2, "dog": 2}, (stream, ("a dog",)))
    assert pairs([question], PhraseMatch()).tolist() == [[2.0, 1.0, 1.0]]
    assert pairs([question], ExactMatch()).tolist() == [[0.0, 0.0, 1.0]]


def test_a_threshold_is_never_reported_on_the_questions_that_chose_it():
    good, bad = np.ones((10, 3)), np.tile([1.0, 0.0, 1.0], (10, 1))
    fitted, chosen = cross_fitted({0.5: good, 0.9: bad})
    assert chosen == [0.5, 0.5] and (fitted == good).all()
    half = np.array_split(np.random.default_rng(0).permutation(10), 2)[0]
    low, high = bad.copy(), good.copy()
    low[half], high[half] = good[half], bad[half]
    fitted, chosen = cross_fitted({0.5: low, 0.9: high})
    assert chosen == [0.9, 0.5] and (fitted == bad).all()  # what suits one half does not suit the other
    assert choose({0.5: low, 0.9: high}, half) == 0.5


def test_a_line_without_any_merge_says_so():
    assert precision(np.tile([0.0, 0.0, 2.0], (3, 1))) == "none"
