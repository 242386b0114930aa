"""Curtailment against every possible continuation: it never changes the full vote and never stops late."""

from collections import Counter
from functools import cache
from itertools import product

import pytest

from apportion.stopping import decide

ALPHABET = ("a", "b", "c", None)


def full_vote(stream):
    """Return the answer with the most votes; the first to appear among equals, None if there is no answer."""
    ranked = Counter(answer for answer in stream if answer is not None).most_common(1)
    return ranked[0][0] if ranked else None


@cache
def possible(stream, max_samples):
    """Return the full vote's answer for every continuation, including one with unseen answers."""
    if len(stream) == max_samples:
        return frozenset([full_vote(stream)])
    return frozenset().union(*(possible((*stream, answer), max_samples) for answer in (*ALPHABET, "new")))


@pytest.mark.parametrize("max_samples", [1, 5])
def test_it_stops_exactly_when_every_continuation_gives_the_same_answer(max_samples):
    streams = list(product(ALPHABET, repeat=max_samples))
    decisions = decide(streams, rule="curtailment", max_samples=max_samples)
    for stream, decision in zip(streams, decisions, strict=True):
        sure = [t for t in range(1, max_samples + 1) if len(possible(stream[:t], max_samples)) == 1]
        assert (decision.samples, decision.answer) == (sure[0], full_vote(stream)), stream


def test_answers_of_other_questions_change_nothing():
    """Blocks give every question as many columns as the one with the most answers has."""
    streams = [["a"] * 8, list("abcdefgh"), ["a", "b"] * 4]
    together = decide(streams, rule="curtailment", max_samples=8)
    assert list(together) == [decide(stream, rule="curtailment", max_samples=8) for stream in streams]


def test_it_agrees_more_if_the_rule_would_stop_with_the_runner_up():
    stream = ["a"] * 14 + ["b"] * 9 + ["a"]
    chosen = {"rule": "optpo", "min_samples": 22, "exceedances": 2, "p0_factor": 0.2, "low_accuracy": "literal"}
    plain = decide(stream, max_samples=24, **chosen)
    curtailed = decide(stream, max_samples=24, curtail=True, **chosen)
    assert (plain.answer, curtailed.answer, full_vote(stream)) == ("b", "a", "a")
    assert curtailed.samples < plain.samples
