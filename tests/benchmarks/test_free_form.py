"""Tests of the benchmark of free-form answers: its data, and what it measures."""

import asyncio

import numpy as np
import pytest

from apportion.answers import ExactMatch, PhraseMatch
from benchmarks.free_form import SAMPLES, Worded, hand_written, measure, precision


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


def test_a_line_without_any_merge_says_so():
    assert precision(np.tile([0.0, 0.0, 2.0], (3, 1))) == "none"
