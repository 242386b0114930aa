"""Curtailment against every possible continuation: it never changes the full vote and never stops late."""

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.stopping import BayesianSPRT, Curtailed, Curtailment, Fixed, decide

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


@pytest.mark.parametrize("max_samples", [1, 2, 3, 4, 5, 6])
def test_it_stops_exactly_when_every_continuation_gives_the_same_answer(max_samples):
    streams = list(product(ALPHABET, repeat=max_samples))
    decisions = decide(streams, rule="curtailment", max_samples=max_samples)
    for stream, decision in zip(streams, decisions, strict=True):
        sure = [t for t in range(1, max_samples + 1) if len(possible(stream[:t], max_samples)) == 1]
        assert (decision.samples, decision.answer) == (sure[0], full_vote(stream)), stream


def test_a_tie_goes_to_the_answer_that_appeared_first():
    assert decide(["a", "a", "b", "b"], rule="curtailment", max_samples=4).samples == 2
    assert decide(["b", "a", "a", "b"], rule="curtailment", max_samples=4).samples == 4
    assert decide(["b", "a", "a", "b"], rule="curtailment", max_samples=4).answer == "b"


def test_an_answer_not_seen_yet_is_a_rival():
    assert decide(["a"] * 64, rule="curtailment").samples == 32
    assert decide(["a"] * 63, rule="curtailment").samples == 32


def test_samples_without_an_answer_bring_the_end_nearer_and_never_win():
    assert decide(["a", None, None, None, "a", None], rule="curtailment", max_samples=6).samples == 5
    assert decide([None] * 6, rule="curtailment", max_samples=6) == decide([None] * 6, rule="fixed", max_samples=6)


def test_answers_of_other_questions_change_nothing():
    """Blocks give every question as many columns as the one with the most answers has."""
    streams = [["a"] * 8, list("abcdefgh"), ["a", "b"] * 4]
    together = decide(streams, rule="curtailment", max_samples=8)
    assert list(together) == [decide(stream, rule="curtailment", max_samples=8) for stream in streams]


rules = st.one_of(
    st.builds(Fixed, st.integers(1, 24)),
    st.just(Curtailment()),
    st.builds(
        BayesianSPRT,
        min_samples=st.integers(1, 12),
        p0_factor=st.sampled_from([0.2, 0.6, 0.9]),
        exceedances=st.integers(1, 4),
        low_accuracy=st.sampled_from(["continue", "literal"]),
    ),
)
answer_lists = st.lists(st.sampled_from(["a", "a", "a", "b", "b", "c", None]), min_size=24, max_size=24)


@settings(max_examples=150)
@given(rules, st.lists(answer_lists, min_size=1, max_size=4), st.sampled_from([1, 3, 8, "free"]))
def test_with_any_rule_it_never_uses_more_samples_and_never_agrees_less(rule, streams, wave):
    plain = decide(streams, rule, max_samples=24, wave=wave)
    curtailed = decide(streams, rule, max_samples=24, wave=wave, curtail=True)
    assert (curtailed.samples <= plain.samples).all()
    for stream, before, after in zip(streams, plain, curtailed, strict=True):
        assert after.answer == full_vote(stream) or after.answer == before.answer
        if after.samples < before.samples:
            assert after.answer == full_vote(stream)


def test_it_agrees_more_if_the_rule_would_stop_with_the_runner_up():
    stream = ["a"] * 14 + ["b"] * 9 + ["a"]
    chosen = {"rule": "optpo", "min_samples": 22, "exceedances": 2, "p0_factor": 0.2, "low_accuracy": "literal"}
    plain = decide(stream, max_samples=24, **chosen)
    curtailed = decide(stream, max_samples=24, curtail=True, **chosen)
    assert (plain.answer, curtailed.answer, full_vote(stream)) == ("b", "a", "a")
    assert curtailed.samples < plain.samples


def test_a_curtailed_rule_stops_when_either_does():
    streams = [["a"] * 64, ["a", "b"] * 32, ["a"] * 12 + ["b"] * 4 + ["a"] * 48]
    both = decide(streams, rule="optpo", curtail=True)
    each = [decide(streams, rule=rule).samples for rule in ("optpo", "curtailment")]
    assert both.samples.tolist() == np.minimum(*each).tolist()
    assert list(decide(streams, rule=Curtailed(BayesianSPRT()))) == list(both)


def test_the_rule_inside_is_asked_whether_it_fits():
    with pytest.raises(ValueError, match="min_samples must be at most max_samples"):
        decide(["a"] * 8, rule="optpo", max_samples=8, curtail=True)
