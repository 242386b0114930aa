"""Tests of the benchmark of free-form answers: its data, and what it measures."""

import asyncio

from apportion.answers import ExactMatch, PhraseMatch
from benchmarks.free_form import Worded, measure


def pairs(questions, equivalence):
    return asyncio.run(measure(questions, equivalence))


def test_pairs_of_wordings_are_counted_by_what_they_mean():
    stream = ("a cat", "A cat!", "the cat", "a dog", "a cat", "dog")
    question = Worded("?", {"a cat": 0, "A cat!": 0, "the cat": 1, "a dog": 2, "dog": 2}, (stream, ("a dog",)))
    assert pairs([question], PhraseMatch()).tolist() == [[2.0, 1.0, 1.0]]
    assert pairs([question], ExactMatch()).tolist() == [[0.0, 0.0, 1.0]]
