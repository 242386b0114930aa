"""Contract tests of all stopping rules, with and without curtailment, by brute force over short streams."""

import tomllib
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.stopping import RULES, Curtailed, count_votes, decide, leader, make_rule

M = 10
SETTINGS = tomllib.loads("""
fixed = [{samples = 4}, {}]
optpo = [
    {min_samples = 3, exceedances = 2, choices = 5},
    {min_samples = 4, exceedances = 3, choices = 3, count_from = "min_samples"},
    {min_samples = 2, exceedances = 4, low_accuracy = "literal", p0_factor = 0.3},
    {min_samples = 3, exceedances = 2, low_accuracy = "literal", count_from = "min_samples"},
]
adaptive_consistency_beta = [{confidence = 0.8}]
adaptive_consistency_dirichlet = [{confidence = 0.8}, {confidence = 0.7, top = 9}]
esc = [{window = 3}, {window = 4}]
sprt = [{}, {p1 = 0.6, alpha = 0.3, beta = 0.65}, {p1 = 0.9, alpha = 0.05, beta = 0.4}]
msprt = [{}, {prior_alpha = 2.0, prior_beta = 1.0, alpha = 0.1, beta = 0.4}]
p_value = [{threshold = 0.15}]
posterior_predictive = [{eps = 0.1}]
calibrated = [{eps = 0.05}, {threshold = 0.0}, {threshold = 2.0}]
""")
"""Settings where the defaults do not stop within M samples, or where there is more to test."""

INNER = [make_rule(name, **chosen) for name in RULES for chosen in SETTINGS.get(name, [{}])]

each_rule = pytest.mark.parametrize("rule", INNER + [Curtailed(rule) for rule in INNER], ids=repr)
each_inner_rule = pytest.mark.parametrize("rule", INNER, ids=repr)
streams = st.lists(st.integers(-1, 3), min_size=1, max_size=M).map(lambda codes: np.array(codes))


def relabelled(codes):
    """Return codes in order of first appearance, and the number of answers; -1 stays."""
    places = {}
    return np.array([-1 if c < 0 else places.setdefault(c, len(places)) for c in codes], np.int64), len(places)


def votes_of(codes):
    return count_votes(*relabelled(codes))


def histories(longest):
    """Return every stream of up to ``longest`` samples, up to renaming the answers."""
    seen = {tuple(relabelled(codes)[0]) for n in range(longest + 1) for codes in product(range(-1, n), repeat=n)}
    return sorted(seen, key=lambda codes: (len(codes), codes))


@cache
def continuations(history, more):
    """Return the votes [C, T, K] of ``history`` followed by every sequence of ``more`` seen, new or missing answers."""
    known = max(history, default=-1) + 1
    futures = product(range(-1, known + more), repeat=more)
    codes = {tuple(relabelled(history + future)[0]) for future in futures}
    return count_votes(np.array(sorted(codes), np.int64).reshape(len(codes), -1), known + more)


@each_inner_rule
def test_the_settings_let_the_rule_stop_early(rule):
    if rule.name != "fixed":
        assert rule.stops(votes_of([0] * M), M)[: M - 1].any()


@each_rule
@given(codes=streams)
@settings(max_examples=10, deadline=None)
def test_rules_only_look_back(rule, codes):
    votes = votes_of(codes)
    stops, winners = rule.stops(votes, M), rule.winner(votes, M)
    for taken in range(1, len(codes) + 1):
        known = votes_of(codes[:taken])
        assert np.array_equal(rule.stops(known, M), stops[:taken])
        assert rule.stops_now(known, M) == stops[taken - 1]
        assert np.array_equal(rule.winner(known, M), winners[:taken])


@each_rule
@pytest.mark.parametrize("max_samples", [5, M])
def test_no_continuation_stops_before_the_earliest(rule, max_samples):
    for history in histories(4):
        past = continuations(history, 0)[0]
        if rule.stops(past, max_samples).any():
            continue
        earliest = rule.earliest(past, max_samples)
        assert 1 <= earliest <= max_samples - len(history)
        votes = continuations(history, min(earliest - 1, 4))
        assert not rule.stops(votes, max_samples)[:, len(history) :].any(), history


@each_rule
@given(codes=streams)
@settings(max_examples=10, deadline=None)
def test_free_waves_cost_no_sample(rule, codes):
    stream = [None if code < 0 else str(code) for code in codes]
    one, free = decide(stream, rule), decide(stream, rule, wave="free")
    assert (one.samples, one.answer) == (free.samples, free.answer)
    assert free.waves <= one.waves


@pytest.mark.parametrize("rule", [rule for rule in INNER if rule.name != "optpo"], ids=repr)
def test_the_answer_has_the_most_votes(rule):
    """OptPO may stop for the runner-up."""
    votes = count_votes(np.random.default_rng(2).integers(-1, 3, (200, M)), 3)
    assert np.array_equal(rule.winner(votes, M), leader(votes))
