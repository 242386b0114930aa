"""The calibrated rule: its threshold, its score, and what recorded answers say about eps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.stopping import Calibrated, decide
from apportion.stopping.calibrated import PRIOR, risk_score
from apportion.stopping.posterior_predictive import overtaking_risk
from benchmarks.recorded import Question as Recorded
from benchmarks.recorded import Streams, read_vendored

COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def score(votes, total, samples=None):
    return float(risk_score(np.array(votes), np.array(sum(votes) if samples is None else samples), total))


def test_the_score_is_the_risk_over_the_share_of_samples_that_remain():
    risk = float(overtaking_risk(np.array([4, 2]), np.array(6), 24, prior=PRIOR))
    assert score([4, 2], 24) == pytest.approx(risk / 0.75)
    assert score([9, 2], 12) == 0.0, "nothing can change"
    assert score([3, 3], 6) == np.inf


@given(COUNTS, st.integers(0, 3), st.integers(1, 20), st.sampled_from([0.0, 0.01, 0.1, 0.5, 3.0]))
def test_the_early_exit_decides_the_same(votes, missing, more, threshold):
    samples, total = sum(votes) + missing, sum(votes) + missing + more
    decided = Calibrated(threshold=threshold).enough(np.array(votes), np.array(samples), total)
    assert bool(decided) == (score(votes, total, samples) <= threshold)


def test_eps_bounds_the_disagreement_on_the_game_of_24_which_decided_the_scale():
    """The data that SCALE was learned on: it says that the number in the file is what was learned."""
    for name in ("game24_cot", "game24_standard"):
        rows = [Recorded.of(row) for row in read_vendored() if row["dataset"] == name]
        streams = Streams.draw(rows, 5, 0).answers
        for most in (16, 64):
            full = decide(streams, "fixed", most).answer
            for eps in (0.01, 0.03):
                found = decide(streams, "calibrated", most, eps=eps)
                wrong = np.mean([a != b for a, b in zip(found.answer, full, strict=True)])
                assert wrong <= eps, (name, most, eps)
                plain = decide(streams, "posterior_predictive", most, eps=eps)
                assert most < 64 or found.samples.mean() < plain.samples.mean()


@given(st.lists(st.sampled_from("aab"), min_size=16, max_size=16), st.sampled_from([0.003, 0.01, 0.05]))
def test_what_is_expected_of_a_stopped_question_is_at_most_eps(stream, eps):
    """So the summary of a vote and what was asked for mean one figure, also for a threshold of an audit."""
    for rule in (Calibrated(eps), Calibrated(eps, threshold=0.5)):
        taken = decide(stream, rule, max_samples=16).samples
        votes = np.array([[stream[:taken].count(answer) for answer in dict.fromkeys(stream)]])
        expected = rule.expected(votes, np.array([taken]), 16)[0]
        assert expected <= eps or taken == len(stream)
