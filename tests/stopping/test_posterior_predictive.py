"""The posterior-predictive rule against simulations of its own prior, and its invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.stopping import PosteriorPredictive
from apportion.stopping.overtaking import ANSWERS, EXTRA, HYPOTHESES, TOTAL, overtaking

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)
UNANIMOUS = st.lists(st.integers(1, 12), min_size=1, max_size=1)


def sampled(rng, hypothesis, length, votes=()):
    """Return a stream of so many samples under ``hypothesis`` after ``votes``, and the final votes."""
    votes, stream = list(votes), []
    for _ in range(length):
        hidden = ANSWERS[hypothesis] - len(votes)
        unseen = hidden * EXTRA[hypothesis] if ANSWERS[hypothesis] else TOTAL[hypothesis]
        weights = np.array([*(v + EXTRA[hypothesis] for v in votes), unseen], float)
        place = int(rng.choice(len(weights), p=weights / weights.sum()))
        votes[place : place + 1] = [votes[place] + 1 if place < len(votes) else 1]
        stream.append(str(place))
    return stream, votes


def risk(votes, max_samples, samples=None):
    votes = np.array(votes)
    return float(PosteriorPredictive().risk(votes, np.array(sum(votes) if samples is None else samples), max_samples))


@pytest.mark.slow
@pytest.mark.parametrize("votes", [(4,), (5, 2, 1), (3, 3)])
def test_the_risk_bounds_what_happens_under_the_prior_and_is_close_to_it(votes):
    """The hypothesis is drawn from its posterior, the remaining samples from the hypothesis."""
    rng, total, draws = np.random.default_rng(0), 20, 1500
    weights = overtaking(total).weights(np.array([[*votes, 0]]), np.array([sum(votes)]))[0]
    lost = 0
    for hypothesis in rng.choice(HYPOTHESES, size=draws, p=weights):
        final = sampled(rng, hypothesis, total - sum(votes), votes)[1]
        lost += max(final[1:], default=0) >= final[0]
    share, bound = lost / draws, risk(votes, total)
    noise = 4 * np.sqrt(share * (1 - share) / draws) + 1e-3
    assert share <= bound + noise
    assert bound <= 1.1 * share + noise


@given(COUNTS | UNANIMOUS, st.integers(0, 3), st.integers(1, 50), st.sampled_from([0.001, 0.01, 0.1, 0.5]))
def test_the_early_exit_decides_the_same(votes, missing, more, eps):
    samples, total = sum(votes) + missing, sum(votes) + missing + more
    rule = PosteriorPredictive(eps)
    decided = rule.enough(np.array(votes), np.array(samples), total)
    assert bool(decided) == (risk(votes, total, samples) <= eps)


def test_the_risk_is_1_before_the_first_vote():
    assert risk([0], 32) == 1.0 and risk([0, 0], 32, samples=4) == 1.0
