"""Tests of the benchmark of free-form answers: its data, and what it measures."""

import asyncio

import numpy as np
import pytest

from apportion.answers import ExactMatch, PhraseMatch
from benchmarks.free_form import choose, cross_fitted, row
from benchmarks.free_form_measured import (
    SAMPLES,
    Found,
    KnownClasses,
    hand_written,
    measure,
)


@pytest.fixture(scope="module")
def words():
    return hand_written(orders=2, seed=0)


def run(questions, make):
    return asyncio.run(measure(questions, make))


def make_found(**changes):
    names = Found.__dataclass_fields__
    return Found(**dict.fromkeys(names, 0.0) | changes)


def test_each_wording_is_of_one_class_and_phrases_never_merge_two(words):
    assert len(words) == 60 and all(len(set(question.classes.values())) >= 2 for question in words)
    assert {len(stream) for question in words for stream in question.streams} == {SAMPLES}
    found = run(words, lambda question: PhraseMatch())
    assert sum(one.merged for one in found) == sum(one.rightly for one in found) > 0


def test_votes_are_the_same_for_the_same_seed(words):
    assert hand_written(2, 0) == words and hand_written(2, 1) != words


def test_known_classes_lose_nothing_and_exact_text_splits(words):
    known, exact = run(words, KnownClasses), run(words, lambda question: ExactMatch())
    assert all(one.merged == one.rightly == one.together for one in known)
    assert all(one.split == one.wrong == 0 for one in known)
    assert all(one.merged == one.wrong == 0 for one in exact)
    assert np.mean([one.split for one in exact]) > 0.3


def test_a_threshold_is_never_reported_on_the_questions_that_chose_it():
    good, bad = make_found(merged=1, rightly=1, together=1), make_found(merged=1, rightly=0, together=1)
    low, high = [good] * 10, [bad] * 10
    fitted, chosen = cross_fitted({0.5: low, 0.9: high})
    assert chosen == [0.5, 0.5] and fitted == low
    halves = np.array_split(np.random.default_rng(0).permutation(10), 2)
    mixed = {t: [good if (q in halves[0]) == (t == 0.5) else bad for q in range(10)] for t in (0.5, 0.9)}
    fitted, chosen = cross_fitted(mixed)
    assert chosen == [0.9, 0.5] and fitted == [bad] * 10  # what suits one half does not suit the other
    assert choose(mixed, list(halves[0])) == 0.5


def test_a_line_without_any_merge_says_so():
    assert row("exact", [make_found(together=2)] * 3)[1] == "none"
